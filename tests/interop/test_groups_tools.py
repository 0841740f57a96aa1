"""Kafka's command-line tools for groups and transactions, and groups of aiokafka, against ottla."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from ottla.testing import Cluster

from .apache_kafka import CONSUMER_GROUPS, TRANSACTIONS, run_tool
from .java_client import JavaClients, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.interop
SECONDS = 300  # a guard


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["news:3", "shared:4"]) as running:
        yield running


def test_consumer_groups_tool_works(cluster: Cluster, java_clients: JavaClients, kafka_jvm: object) -> None:
    def tool(*arguments: str) -> str:
        return run_tool(CONSUMER_GROUPS, "--bootstrap-server", cluster.bootstrap, *arguments)

    with java_clients.producer(cluster.bootstrap) as producer:
        producer.send([Record("news", b"%d" % number, partition=number % 3) for number in range(30)])
    with ExitStack() as consumers:
        for protocol in ("classic", "consumer"):
            settings = {"group_id": protocol, "group_protocol": protocol, "auto_offset_reset": "earliest"}
            consumer = consumers.enter_context(java_clients.consumer(cluster.bootstrap, **settings))
            consumer.subscribe("news")
            assert len(consumer.poll(min_records=30)) == 30
            consumer.commit()
        listed = {tuple(line.split()) for line in tool("--list", "--type", "--state").splitlines() if "Stable" in line}
        assert listed == {("classic", "Classic", "Stable"), ("consumer", "Consumer", "Stable")}
        described = [line.split() for line in tool("--describe", "--all-groups").splitlines() if "news" in line]
        for protocol in ("classic", "consumer"):
            lines = [line for line in described if line[0] == protocol]
            assert [line[1:6] for line in lines] == [["news", str(index), "10", "10", "0"] for index in range(3)]
    # What is asked for is shown, and done only when told so.
    reset = ("--reset-offsets", "--group", "classic", "--topic", "news", "--to-offset", "4")
    assert tool(*reset, "--dry-run").count(" 4") == 3
    assert offsets(java_clients, cluster) == {"news:0": 10, "news:1": 10, "news:2": 10}
    tool(*reset, "--execute")
    assert offsets(java_clients, cluster) == {"news:0": 4, "news:1": 4, "news:2": 4}
    assert "Successful" in tool("--delete-offsets", "--group", "classic", "--topic", "news:0")
    assert offsets(java_clients, cluster) == {"news:1": 4, "news:2": 4}


def offsets(clients: JavaClients, cluster: Cluster) -> dict[str, int]:
    group = clients.admin(cluster.bootstrap).call("list_group_offsets", groups=["classic"])["classic"]
    return {name: record["offset"] for name, record in group.items() if record is not None}


def test_transactions_tool_works(cluster: Cluster, java_clients: JavaClients, kafka_jvm: object) -> None:
    def tool(*arguments: str) -> str:
        return run_tool(TRANSACTIONS, "--bootstrap-server", cluster.bootstrap, *arguments)

    with java_clients.producer(cluster.bootstrap, transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin()
        producer.send([Record("shared", b"not yet", partition=2)])
        (listed,) = [line.split() for line in tool("list").splitlines() if line.startswith("open")]
        assert listed[3] == "Ongoing"
        (active,) = tool("describe-producers", "--topic", "shared", "--partition", "2").splitlines()[1:]
        assert active.split()[0] == listed[2]
        # An administrator ends it, and readers go on.
        tool("abort", "--topic", "shared", "--partition", "2", "--start-offset", "0")
        assert "None" in tool("describe-producers", "--topic", "shared", "--partition", "2").splitlines()[-1]


async def test_aiokafka_members_form_group(cluster: Cluster) -> None:
    def consumer() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            "shared",
            bootstrap_servers=cluster.bootstrap,
            group_id="aio",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            heartbeat_interval_ms=200,
            session_timeout_ms=SECONDS * 1000,
            request_timeout_ms=SECONDS * 1000,
            metadata_max_age_ms=500,
        )

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                await asyncio.sleep(0.05)

    async with AsyncExitStack() as consumers:
        one = await consumers.enter_async_context(consumer())
        await until(lambda: len(one.assignment()) == 4)
        two = await consumers.enter_async_context(consumer())
        await until(lambda: len(one.assignment()) == len(two.assignment()) == 2)
        assert not one.assignment() & two.assignment()
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id="aio", transaction_timeout_ms=600_000
        ) as producer:
            async with producer.transaction():
                for number in range(8):
                    await producer.send_and_wait("shared", b"%d" % number, partition=number % 4)
                await producer.send_offsets_to_transaction({TopicPartition("news", 0): 5}, "aio-offsets")
            values = set()
            for entry in (one, two):
                async with asyncio.timeout(SECONDS):
                    for _ in range(4):
                        values.add((await entry.getone()).value)
                await entry.commit()
            assert values == {b"%d" % number for number in range(8)}
        # One goes; the other takes over where it was.
        await one.stop()
        await until(lambda: len(two.assignment()) == 4)
        for partition in two.assignment():
            assert await two.committed(partition) == await two.position(partition)
