"""The format "ottla-log": the topics of a log directory, read from its files without a broker."""
