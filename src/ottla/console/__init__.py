"""The console: a web page that shows what a cluster, its clients and its data are doing, for any Kafka.

`server` runs it, `pages/` has one module per page, `data/` reads and changes the cluster through `ottla.client`.
"""
