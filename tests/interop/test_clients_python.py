"""confluent-kafka, aiokafka and kafka-python against ottla: produce, consume, seek and administer."""

from __future__ import annotations

import asyncio
import time
import warnings
from contextlib import closing
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioTopic
from confluent_kafka import admin as confluent_admin

from ottla.testing import Cluster

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kafka
    from kafka import admin as kafka_admin

if TYPE_CHECKING:
    from collections.abc import Iterator

# Guards only: nothing here is about time, and a machine may stand still for a while.
SECONDS = 300
TRANSACTION_MS = 600_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as running:
        yield running


# confluent-kafka (librdkafka).


def confluent_read(consumer: confluent_kafka.Consumer, count: int) -> list[Any]:
    """So many records; what librdkafka tells on the way and gets over by itself is shown if they do not come."""
    result: list[Any] = []
    notified: list[str] = []
    deadline = time.monotonic() + SECONDS
    while len(result) < count:
        assert time.monotonic() < deadline, f"{len(result)} of {count} came; {notified}"
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            result.append(message)
        else:
            assert error.retriable() or error.code() in PASSING, error
            notified.append(str(error))
    return result


PASSING = (
    confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
    confluent_kafka.KafkaError._TRANSPORT,
    confluent_kafka.KafkaError._TIMED_OUT,
)


class ConfluentProducer:
    """Keeps what became of each record."""

    def __init__(self, **configs: Any) -> None:
        self.failed: list[Any] = []
        self.producer = confluent_kafka.Producer(configs)

    def produce(self, *args: Any, **more: Any) -> None:
        self.producer.produce(*args, on_delivery=self._delivered, **more)

    def _delivered(self, error: Any, _: object) -> None:
        if error is not None:
            self.failed.append(error)

    def flush(self) -> None:
        assert self.producer.flush(SECONDS) == 0
        assert self.failed == []


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_confluent_produces_and_consumes(cluster: Cluster, codec: str) -> None:
    topic = f"confluent-{codec}"
    cluster.create_topic(topic, 3)
    producer = ConfluentProducer(**{"bootstrap.servers": cluster.bootstrap, "compression.type": codec})
    for number in range(300):
        producer.produce(
            topic,
            b"value %d" % number,
            b"%d" % number,
            headers=[("h", b"%d" % number)],
            timestamp=1_700_000_000_000 + number,
        )
    producer.flush()
    with closing(
        confluent_kafka.Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
        )
    ) as consumer:
        consumer.subscribe([topic])
        result = confluent_read(consumer, 300)
    assert {(record.key(), record.value()) for record in result} == {(b"%d" % n, b"value %d" % n) for n in range(300)}
    assert all(entry.headers() == [("h", entry.key())] for entry in result)
    assert {entry.timestamp()[1] for entry in result} == set(range(1_700_000_000_000, 1_700_000_000_300))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_confluent_group_seeks_and_commits(cluster: Cluster, protocol: str) -> None:
    topic = f"confluent-seek-{protocol}"
    cluster.create_topic(topic, 2)
    producer = ConfluentProducer(**{"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(20):
        producer.produce(topic, b"%d" % number, partition=number % 2, timestamp=1_700_000_000_000 + number)
    producer.flush()
    settings: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": topic,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if protocol == "classic":
        settings["session.timeout.ms"] = SECONDS * 1000
    with closing(confluent_kafka.Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        confluent_read(consumer, 20)
        consumer.seek(confluent_kafka.TopicPartition(topic, 1, 7))
        assert [record.value() for record in confluent_read(consumer, 3)] == [b"15", b"17", b"19"]
        low, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=SECONDS)
        assert (low, high) == (0, 10)
        at = consumer.offsets_for_times([confluent_kafka.TopicPartition(topic, 0, 1_700_000_000_005)], timeout=SECONDS)
        assert at[0].offset == 3
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 4)], asynchronous=False)
    with closing(confluent_kafka.Consumer(settings)) as other:
        assert other.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=SECONDS)[0].offset == 4


def test_confluent_administers(cluster: Cluster) -> None:
    client = confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
    expected = confluent_admin.NewTopic("confluent-admin", 2, 3, config={"retention.ms": "60000"})
    client.create_topics([expected])["confluent-admin"].result(SECONDS)
    client.create_partitions([confluent_admin.NewPartitions("confluent-admin", 4)])["confluent-admin"].result(SECONDS)
    described = client.list_topics("confluent-admin", timeout=SECONDS).topics["confluent-admin"]
    assert len(described.partitions) == 4
    assert len(described.partitions[0].replicas) == 3
    resource = confluent_admin.ConfigResource(confluent_admin.ResourceType.TOPIC, "confluent-admin")
    assert client.describe_configs([resource])[resource].result(SECONDS)["retention.ms"].value == "60000"
    changed = confluent_admin.ConfigResource(
        confluent_admin.ResourceType.TOPIC,
        "confluent-admin",
        incremental_configs=[
            confluent_admin.ConfigEntry(
                "retention.ms", "70000", incremental_operation=confluent_admin.AlterConfigOpType.SET
            )
        ],
    )
    client.incremental_alter_configs([changed])[changed].result(SECONDS)
    assert client.describe_configs([resource])[resource].result(SECONDS)["retention.ms"].value == "70000"
    assert len(client.describe_cluster().result(SECONDS).nodes) == 3
    client.delete_topics(["confluent-admin"])["confluent-admin"].result(SECONDS)
    assert "confluent-admin" not in client.list_topics(timeout=SECONDS).topics


def test_confluent_commits_and_aborts_transactions(cluster: Cluster) -> None:
    cluster.create_topic("confluent-txn", 2)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": "confluent",
            "transaction.timeout.ms": TRANSACTION_MS,
        }
    )
    producer.init_transactions(SECONDS)
    for number in range(6):
        producer.begin_transaction()
        producer.produce("confluent-txn", b"%d" % number, partition=number % 2)
        assert producer.flush(SECONDS) == 0
        (producer.abort_transaction if number % 3 == 2 else producer.commit_transaction)(SECONDS)
    with closing(
        confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "confluent-txn",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
    ) as consumer:
        consumer.subscribe(["confluent-txn"])
        assert {record.value() for record in confluent_read(consumer, 4)} == {b"0", b"1", b"3", b"4"}


# aiokafka.


@pytest.mark.parametrize("codec", [None, "gzip", "lz4", "zstd"])
async def test_aiokafka_produces_consumes_and_seeks(cluster: Cluster, codec: str | None) -> None:
    topic = f"aio-{codec}"
    cluster.create_topic(topic, 2)
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, compression_type=codec) as producer:
        for number in range(50):
            sent = await producer.send_and_wait(
                topic, b"%d" % number, key=b"k", partition=number % 2, headers=[("h", b"x")]
            )
            assert (sent.partition, sent.offset) == (number % 2, number // 2)
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        session_timeout_ms=SECONDS * 1000,
        request_timeout_ms=SECONDS * 1000,
    ) as consumer:
        result = [await asyncio.wait_for(consumer.getone(), SECONDS) for _ in range(50)]
        assert {record.value for record in result} == {b"%d" % number for number in range(50)}
        assert result[0].headers == (("h", b"x"),)
        consumer.seek(AioPartition(topic, 1), 24)
        assert (await asyncio.wait_for(consumer.getone(AioPartition(topic, 1)), SECONDS)).value == b"49"
        assert await consumer.end_offsets([AioPartition(topic, 0)]) == {AioPartition(topic, 0): 25}
        await consumer.commit()
        assert await consumer.committed(AioPartition(topic, 1)) == 25


async def test_aiokafka_administers_and_uses_transactions(cluster: Cluster) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await client.start()
    try:
        await client.create_topics([AioTopic("aio-admin", 1, 1)])
        assert "aio-admin" in await client.list_topics()
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id="aio", transaction_timeout_ms=TRANSACTION_MS
        ) as producer:
            async with producer.transaction():
                await producer.send_and_wait("aio-admin", b"yes")
            await producer.begin_transaction()
            await producer.send_and_wait("aio-admin", b"no")
            await producer.abort_transaction()
        async with AIOKafkaConsumer(
            "aio-admin",
            bootstrap_servers=cluster.bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            assert (await asyncio.wait_for(consumer.getone(), SECONDS)).value == b"yes"
        await client.delete_topics(["aio-admin"])
        assert "aio-admin" not in await client.list_topics()
    finally:
        await client.close()


# kafka-python.


def kafka_python_read(consumer: Any) -> Any:
    message = next(consumer, None)
    assert message is not None, f"nothing came in {SECONDS} s"
    return message


@pytest.mark.parametrize("codec", [None, "gzip", "lz4"])
def test_kafka_python_produces_consumes_and_seeks(cluster: Cluster, codec: str | None) -> None:
    topic = f"kafka-python-{codec}"
    cluster.create_topic(topic, 2)
    bootstrap = cluster.bootstrap.split(",")
    with closing(kafka.KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec)) as producer:
        sent = [
            producer.send(topic, b"%d" % number, partition=number % 2, headers=[("h", b"x")]) for number in range(40)
        ]
        producer.flush(SECONDS)
        assert sorted(entry.get(SECONDS).offset for entry in sent) == sorted([*range(20)] * 2)
    with closing(
        kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            consumer_timeout_ms=SECONDS * 1000,
            session_timeout_ms=SECONDS * 1000,
        )
    ) as consumer:
        result = [kafka_python_read(consumer) for _ in range(40)]
        assert {record.value for record in result} == {b"%d" % number for number in range(40)}
        topic_partition = kafka.TopicPartition(topic, 1)
        consumer.seek(topic_partition, 19)
        while (message := kafka_python_read(consumer)).partition != 1:
            pass
        assert message.value == b"39"
        assert consumer.beginning_offsets([topic_partition]) == {topic_partition: 0}
        assert consumer.end_offsets([topic_partition]) == {topic_partition: 20}
        consumer.commit()
        assert consumer.committed(topic_partition) == 20


def test_kafka_python_administers(cluster: Cluster) -> None:
    with closing(kafka_admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))) as client:
        client.create_topics([kafka_admin.NewTopic("kafka-python-admin", 2, 1)])
        assert "kafka-python-admin" in client.list_topics()
        resource = kafka_admin.ConfigResource(kafka_admin.ConfigResourceType.TOPIC, "kafka-python-admin")
        assert client.describe_configs([resource])
        assert isinstance(client.list_groups(), list)
        client.delete_topics(["kafka-python-admin"])
        assert "kafka-python-admin" not in client.list_topics()
