"""Read a topic with an independent client (librdkafka)."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.markers import markers_written


class Seen(NamedTuple):
    """A consumed record."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def consume(bootstrap: str, topic: str, *, committed: bool = True) -> list[Seen]:
    """Return all records of a topic up to its end, or up to the first open transaction."""
    markers_written(bootstrap)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests-consume",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, 60).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        records: list[Seen] = []
        open_partitions = set(partitions)
        while open_partitions:
            message = consumer.poll(60)
            assert message is not None, f"no end of {topic} in 60 s; missing are partitions {open_partitions}"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                open_partitions.discard(message.partition())
            else:
                records.append(Seen(message.partition(), message.key(), message.value(), message.headers() or []))
        return records
    finally:
        consumer.close()
