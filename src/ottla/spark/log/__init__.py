"""Format "ottla-log": batch and streaming reads of a log directory, without a broker."""
