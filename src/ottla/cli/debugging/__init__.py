"""Commands that show what happened: `ottla tap`, `decode`, `analyze`."""
