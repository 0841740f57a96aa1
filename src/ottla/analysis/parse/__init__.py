"""Parsers: one module per input kind, each returns the events of a line, a record or a folder."""
