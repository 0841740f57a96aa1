"""Parsers: one module per kind of input, each yielding rows of `ottla.analysis.event`."""
