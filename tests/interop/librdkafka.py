"""Reads topics with librdkafka to the end of their partitions, ignoring transient errors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Message

PATIENCE = 600.0

# Transient errors that librdkafka reports and retries: a broker, leader or coordinator that is not available yet.
PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


def read_to_end(bootstrap: str, topic: str, starts: Mapping[int, int], *, committed: bool = False) -> list[Message]:
    """Every record of some partitions, each from its offset to the end; `committed` ones only, to where those go."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "log_level": 0,
        }
    )
    result: list[Message] = []
    ended: set[int | None] = set()
    passed: list[str] = []
    deadline = time.monotonic() + PATIENCE
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition, start in starts.items()])
        while len(ended) < len(starts):
            notified = f"{len(result)} records, the ends of partitions {ended}, then {passed[-5:]}"
            assert time.monotonic() < deadline, f"the end of {topic} does not come: {notified}"
            for message in consumer.consume(500, timeout=1):
                error = message.error()
                if error is None:
                    result.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    assert error.code() in PASSING, f"{topic} cannot be read: {error}; {notified}"
                    passed.append(str(error))
        return result
    finally:
        consumer.close()
