"""Commands on a running cluster: `ottla topic`, `config`, `cluster`, `group`, `txn`."""
