"""`ottla pipeline`: Spark pipelines as folders, run in a process of their own."""
