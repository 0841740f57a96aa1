"""Consumes, transforms and produces in transactions until it is killed or fails; prints each commit.

python -m tests.interop.eos_loop BOOTSTRAP INPUT OUTPUT GROUP TRANSACTIONAL_ID PROTOCOL
"""

from __future__ import annotations

import os
import sys

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition


def main(bootstrap: str, source: str, target: str, group: str, transactional_id: str, protocol: str) -> None:
    """Loop for ever."""
    # To begin anew from the bootstrap servers makes librdkafka forget whom it was about to ask for the group: with a
    # single broker that comes back, it must not.
    common = {"bootstrap.servers": bootstrap, "metadata.recovery.strategy": "none", "log_level": 0}
    reading = {
        **common,
        "group.id": group,
        "group.protocol": protocol,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    if protocol == "classic":
        reading |= {"session.timeout.ms": 3000, "heartbeat.interval.ms": 500}
    producer = Producer(
        {
            **common,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 20_000,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(60)
    consumer = Consumer(reading)
    consumer.subscribe([source])
    while True:
        messages = [entry for entry in consumer.consume(20, timeout=0.2) if entry.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        next_offsets: dict[int, int] = {}
        for message in messages:
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            producer.produce(target, value + b"!", partition=partition)
            next_offsets[partition] = offset + 1
        offsets = [TopicPartition(source, partition, offset) for partition, offset in next_offsets.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
        producer.commit_transaction(30)
        print("committed", len(messages), flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (KafkaException, AssertionError) as error:
        print("died", error, flush=True)
        os._exit(1)  # as a crash would, without leaving the group
