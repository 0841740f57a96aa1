"""The format "ottla": topics of a running cluster, in batch and streaming reads."""
