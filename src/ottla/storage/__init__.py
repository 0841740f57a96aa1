"""One broker's log directories on a `Disk`, in Apache Kafka's own format: logs, segments, indexes, state, checkpoints.

Responsible for files and offsets. Not for who leads a partition, which topics exist or who may write: see `cluster`.
"""
