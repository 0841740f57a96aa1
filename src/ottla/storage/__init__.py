"""One broker's log directories on a `Disk`, in Apache Kafka's own format: logs, segments, indexes, state, checkpoints.

Owns files and offsets. Leadership, topics and permissions belong to `cluster` and `security`.
"""
