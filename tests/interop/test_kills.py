"""Kills ottla (SIGKILL) repeatedly during appends, rolls, compaction and metadata snapshots.

What was acknowledged is there after every restart, at its offset and byte for byte, and Apache Kafka, which gets the
directory in the end, reads the same records. OTTLA_KILLS sets how often (20 unless told) and OTTLA_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from hashlib import blake2b
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ottla.client.client import Client
from ottla.client.topics import create_topic

from .apache_kafka import check_log_directory
from .librdkafka import PATIENCE, read_to_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ottla_node import OttlaNode

    from .apache_kafka import ApacheKafka
    from .java_client import JavaClients

pytestmark = pytest.mark.interop

KILLS = int(os.environ.get("OTTLA_KILLS", "20"))
SEED = int(os.environ.get("OTTLA_SEED", str(random.SystemRandom().randrange(1 << 32))))

# Everything that can be interrupted happens all the time.
BUSY = {
    "log.cleaner.backoff.ms": "50",
    "log.retention.check.interval.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "100",
    "metadata.log.max.record.bytes.between.snapshots": "2000",
    "metadata.max.idle.interval.ms": "100",
}


class Load:
    """Writes as fast as it can until the broker dies, and remembers what was acknowledged."""

    def __init__(self, seed: int, clients: JavaClients) -> None:
        self.clients = clients
        self.random = random.Random(seed)
        self.acknowledged: dict[tuple[str, int], dict[int, bytes]] = {}
        self.last_of_key: dict[bytes, int] = {}
        self.topics: set[str] = set()
        self.number = 0
        self.deliveries = 0
        self.checked: dict[tuple[str, int], int] = {}

    def create(self, bootstrap: str) -> None:
        """Make the topics that are written to: small segments, so that they roll often."""
        small = {"segment.bytes": "1048576", "index.interval.bytes": "512"}
        compacted = {**small, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        with Client(bootstrap, timeout=PATIENCE) as client:
            create_topic(client, "appended", partitions=2, configs=small)
            create_topic(client, "compacted", partitions=1, configs=compacted)

    def write_until_killed(self, node: OttlaNode) -> None:
        """Write, and kill the node a moment after the first record was acknowledged, whenever that is."""
        creator = threading.Thread(target=self._create_topics, args=(node,))
        creator.start()
        producer = Producer(
            {
                "bootstrap.servers": node.bootstrap,
                "acks": "all",
                "retries": 0,
                "linger.ms": 0,
                "batch.num.messages": 20,
                "message.timeout.ms": int(PATIENCE * 1000),
                "queue.buffering.max.messages": 2000,
                "compression.type": self.random.choice(["none", "lz4", "zstd"]),
                "log_level": 0,
            }
        )
        before, deadline = self.deliveries, time.monotonic() + PATIENCE
        try:
            while self.deliveries == before and node.running:
                self._write(producer)
                assert time.monotonic() < deadline, f"seed {SEED}: nothing is acknowledged"
            end = time.monotonic() + 0.05 + self.random.random() / 2
            while time.monotonic() < end and node.running:
                self._write(producer)
            assert node.running, f"seed {SEED}: the broker ended by itself"
        finally:
            node.kill()
            producer.purge()
            producer.flush(5)
            creator.join()

    def _write(self, producer: Producer) -> None:
        for _ in range(20):
            self._send(producer)
        producer.poll(0)

    def _send(self, producer: Producer) -> None:
        self.number += 1
        number = self.number
        try:
            if self.random.random() < 0.3:
                key = b"%d" % self.random.randrange(20)
                value = b"%d " % number + self.random.randbytes(self.random.randrange(6000))

                def kept(error: object, message: Message) -> None:
                    if error is None:
                        self.deliveries += 1
                        self.last_of_key[key] = max(number, self.last_of_key.get(key, 0))

                producer.produce("compacted", value, key, on_delivery=kept)
            else:
                value = b"%d " % number + self.random.randbytes(self.random.randrange(4000))

                def appended(error: object, message: Message) -> None:
                    if error is None:
                        self.deliveries += 1
                        position = (message.topic() or "", message.partition() or 0)
                        self.acknowledged.setdefault(position, {})[message.offset() or 0] = digest(value)

                producer.produce("appended", value, partition=number % 2, on_delivery=appended)
        except BufferError:
            producer.poll(0.01)

    def _create_topics(self, node: OttlaNode) -> None:
        """Keep the metadata log growing, so that there are snapshots."""
        admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0, "socket.timeout.ms": 1000})
        while node.running:
            name = f"made-{len(self.topics)}-{self.number}"
            try:
                admin.create_topics([NewTopic(name, 1, 1)], operation_timeout=1, request_timeout=1)[name].result(2)
                self.topics.add(name)
            except (KafkaException, TimeoutError):
                continue

    def check(self, bootstrap: str) -> None:
        """Everything acknowledged so far is there."""
        there = set(self.clients.admin(bootstrap).call("list_topics"))
        assert self.topics <= there, f"seed {SEED}: lost topics {sorted(self.topics - there)}"
        for (topic, partition), expected in sorted(self.acknowledged.items()):
            start = self.checked.get((topic, partition), 0)
            result = {offset: digest(value) for offset, _, value in read(bootstrap, topic, partition, start)}
            lost = [offset for offset in expected if offset >= start and result.get(offset) != expected[offset]]
            assert lost == [], f"seed {SEED}: {topic}-{partition} lost or changed {lost[:5]} of {len(expected)}"
            self.checked[topic, partition] = max(result, default=start - 1) + 1
        newest: dict[bytes, int] = {}
        for _, key, value in read(bootstrap, "compacted", 0, 0):
            newest[key] = int(value.partition(b" ")[0])
        for key, number in sorted(self.last_of_key.items()):
            assert newest.get(key, 0) >= number, f"seed {SEED}: key {key!r} went back to {newest.get(key)}"

    def contents(self, bootstrap: str) -> dict[str, dict[int | bytes, bytes]]:
        """Every record that is there, acknowledged or not, and the newest of each key where they are compacted."""
        contents: dict[str, dict[int | bytes, bytes]] = {}
        for partition in (0, 1):
            contents[f"appended-{partition}"] = {
                offset: digest(value) for offset, _, value in read(bootstrap, "appended", partition, 0)
            }
        contents["compacted-0"] = {key: digest(value) for _, key, value in read(bootstrap, "compacted", 0, 0)}
        return contents


def digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=8).digest()


def read(bootstrap: str, topic: str, partition: int, start: int) -> list[tuple[int, bytes, bytes]]:
    """Offset, key and value of every record from an offset to the end; offsets must grow."""
    result: list[tuple[int, bytes, bytes]] = []
    for message in read_to_end(bootstrap, topic, {partition: start}):
        offset = message.offset()
        assert offset is not None
        assert offset >= start, f"seed {SEED}: {topic}-{partition} has {offset} after {start - 1}"
        start = offset + 1
        result.append((offset, message.key() or b"", message.value() or b""))
    return result


def test_acknowledged_records_survive_kills(
    ottla_factory: Callable[..., OttlaNode],
    apache_kafka_factory: Callable[..., ApacheKafka],
    java_clients: JavaClients,
    tmp_path: Path,
) -> None:
    print(f"OTTLA_SEED={SEED} OTTLA_KILLS={KILLS}")
    load = Load(SEED, java_clients)
    node = ottla_factory(tmp_path / "data", settings=BUSY, log_level="warn")
    for kill in range(KILLS):
        node.start()
        if kill == 0:
            load.create(node.bootstrap)
        load.check(node.bootstrap)
        load.write_until_killed(node)
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "data", killed)
    node.start()
    load.check(node.bootstrap)
    there = load.contents(node.bootstrap)
    node.stop()
    print(f"{KILLS} kills, {load.deliveries} records acknowledged, {len(load.topics)} topics made")
    check_log_directory(tmp_path / "data", java_clients)
    with apache_kafka_factory(tmp_path / "data") as kafka:
        load.checked.clear()
        load.check(kafka.bootstrap)
        read_by_kafka = load.contents(kafka.bootstrap)
    different = [position for position in there if there[position] != read_by_kafka[position]]
    assert different == [], f"seed {SEED}: Apache Kafka reads other records in {different}"
    assert kafka.recovered_logs() == []
    # Apache Kafka also opens what the last kill left, without a start of ottla in between.
    with apache_kafka_factory(killed) as kafka:
        load.checked.clear()
        load.check(kafka.bootstrap)
