"""Verification and repair of a log directory that no broker has open: `ottla log verify` and `ottla log repair`."""
