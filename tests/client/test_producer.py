"""The producer of `ottla.client` against a cluster in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer
from hypothesis import given
from hypothesis import strategies as st

from ottla.client import Client
from ottla.client.partitioner import murmur2, partition_for_key
from ottla.client.producer import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.testing import Cluster
from tests.markers import markers_written

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.bootstrap, timeout=60) as connected:
        yield connected


def read(cluster: Cluster, topic: str, *, committed: bool, partitions: int) -> list[tuple[bytes | None, bytes | None]]:
    """Return all records that a librdkafka consumer reads."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"read-{topic}",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    markers_written(cluster.bootstrap)
    consumer.subscribe([topic])
    result: list[tuple[bytes | None, bytes | None]] = []
    ended: set[int | None] = set()
    while len(ended) < partitions:
        message = consumer.poll(60)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.name() == "_PARTITION_EOF", error
            ended.add(message.partition())
        else:
            result.append((message.key(), message.value()))
    consumer.close()
    return result


@given(key=st.binary(max_size=40))
def test_partition_of_a_key_equals_other_clients(key: bytes) -> None:
    from kafka.partitioner.default import murmur2 as reference  # kafka-python's implementation

    assert murmur2(key) == reference(key) & 0xFFFFFFFF
    assert 0 <= partition_for_key(key, 7) < 7


def test_batches_are_stored_in_order_with_headers_and_nulls(cluster: Cluster, client: Client) -> None:
    cluster.create_topic("plain", 1)
    producer = Producer(client, batch_bytes=2000, compression="lz4")
    for number in range(500):
        producer.send("plain", b"%d" % number, None if number == 3 else b"x" * 20, [("h", b"1")], timestamp=number)
    producer.flush()
    stored = cluster.records("plain")
    assert [record.key for record in stored] == [b"%d" % number for number in range(500)]
    assert stored[3].value is None
    assert stored[7].headers == (("h", b"1"),)
    assert {record.producer_id for record in stored} == {producer.identity[0]}
    assert [record.timestamp for record in stored[:3]] == [0, 1, 2]


def test_records_without_a_key_reach_every_partition(cluster: Cluster, client: Client) -> None:
    cluster.create_topic("spread", 3)
    producer = Producer(client, batch_bytes=1000)
    for _ in range(300):
        producer.send("spread", None, b"x" * 50)
    producer.flush()
    counts = [len(cluster.records("spread", index)) for index in range(3)]
    assert sum(counts) == 300
    assert all(counts)


def test_transaction_is_atomic_for_read_committed(cluster: Cluster, client: Client) -> None:
    cluster.create_topic("money", 2)
    producer = Producer(client, transactional_id="bank")
    producer.initialize()
    for round_ in range(4):
        for number in range(10):
            producer.send("money", b"%d" % number, b"%d" % round_)
        producer.flush()
        if round_ % 2:
            producer.abort()
        else:
            producer.add_offsets("bank-group", {("money", 0): (round_ + 1, f"round {round_}")})
            producer.commit()
    assert (
        sorted(value for _, value in read(cluster, "money", committed=True, partitions=2)) == [b"0"] * 10 + [b"2"] * 10
    )
    assert len(read(cluster, "money", committed=False, partitions=2)) == 40


def test_second_producer_fences_the_first(cluster: Cluster, client: Client) -> None:
    cluster.create_topic("fenced", 1)
    first = Producer(client, transactional_id="one")
    first.initialize()
    first.send("fenced", None, b"of the first")
    first.flush()
    second = Producer(client, transactional_id="one")
    second.initialize()
    second.send("fenced", None, b"of the second")
    second.commit()
    first.send("fenced", None, b"too late")
    with pytest.raises(KafkaError) as raised:
        first.commit()
    assert raised.value.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
    assert read(cluster, "fenced", committed=True, partitions=1) == [(None, b"of the second")]


def test_invalid_send_raises_immediately(cluster: Cluster, client: Client) -> None:
    cluster.create_topic("small", 1)
    producer = Producer(client)
    with pytest.raises(KafkaError, match="small has partitions 0 to 0, not 4"):
        producer.send("small", None, b"x", partition=4)
    with pytest.raises(KafkaError, match="topic nowhere"):
        producer.send("nowhere", None, b"x")
    with pytest.raises(ValueError, match="compression is one of none, gzip"):
        Producer(client, compression="zip")
