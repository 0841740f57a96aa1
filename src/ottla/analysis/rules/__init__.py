"""Rules: one module per analysis. A rule takes the ordered events of one key and yields rows for the report."""
