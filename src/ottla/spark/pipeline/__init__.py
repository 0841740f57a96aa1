"""`ottla pipeline`: Spark pipelines as folders, each run in its own process."""
