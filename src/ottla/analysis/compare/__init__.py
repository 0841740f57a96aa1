"""Comparisons of whole topics, record by record, as Spark jobs: `diff` and `exactly-once`."""
