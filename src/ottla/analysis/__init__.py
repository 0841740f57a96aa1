"""What went wrong? Event logs, captures, client logs and Kafka's own topics, read into one table and judged by rules.

A rule looks at the events of one group, transaction or client in order and keeps only its state, so the same rule runs
in this process over a short log and in Spark over a fleet's. `docs/debugging.md` shows each at work.
"""
