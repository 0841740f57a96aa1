"""Commands that read and write records: `ottla consume` and `ottla produce`."""
