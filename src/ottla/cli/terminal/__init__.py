"""Output on the terminal: tables, JSON, progress, sizes and times."""
