"""Appends records to a partition without a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.client.partitioner import partition_for_key
from ottla.records.builder import BatchBuilder
from ottla.testing.control.state import find_partition

if TYPE_CHECKING:
    from ottla.broker.runtime import BrokerRuntime


class NewRecord(NamedTuple):
    """A record to append; its key chooses the partition unless that is given."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


def append_record(cluster: BrokerRuntime, record: NewRecord) -> tuple[int, int]:
    """Append a record as its partition's leader does, and return partition and offset; KeyError without a topic."""
    index = record.partition
    if index is None:
        topic = cluster.image.topic(record.topic)
        if topic is None:
            raise KeyError(f"there is no topic {record.topic}")
        index = 0 if record.key is None else partition_for_key(record.key, len(topic.partitions))
    builder = BatchBuilder()
    now_ms = cluster.world.clock.now_ms()
    timestamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
    builder.append(record.key, record.value, record.headers, timestamp_ms)
    result = find_partition(cluster, record.topic, index).append(builder.build())
    return index, result.first_offset
