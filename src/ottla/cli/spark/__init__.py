"""Commands that run on Spark: `ottla export` and `ottla pipeline`."""
