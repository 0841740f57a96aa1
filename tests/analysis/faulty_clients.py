"""Faults planted with real clients against a cluster that is watched from every side.

`watch` starts the cluster behind a tap and leaves an event log, a capture, a log directory and the clients' log.
Each scenario makes one client do one wrong thing; the driver of the client is a parameter.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ottla.client.client import Client
from ottla.history import Operation, Poll, Send
from ottla.protocol.messages.k13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.testing import Cluster, Tap
from ottla.testing.tap.tap import CaptureFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE = 300.0
TRANSACTION_TIMEOUT_MS = 1_000
POLL_INTERVAL_MS = 500
LONG_HEARTBEAT_MS = 5_000
CONFIGS = {
    "group.min.session.timeout.ms": 100,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}
NEVER = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 2**31 - 1}
"""A coordinator that does not look for transactions that timed out."""


@dataclass(slots=True)
class Watched:
    """A running cluster and what is recorded of it."""

    cluster: Cluster
    bootstrap: str
    folder: Path

    @property
    def inputs(self) -> dict[str, Path]:
        """The recordings by their input kind."""
        return {
            "ottla-events": self.folder / "events.jsonl",
            "tap": self.folder / "capture.jsonl",
            "kafka-log": self.folder / "data",
        }

    def wait_for(self, kind: str, count: int = 1, **fields: Any) -> None:
        """Wait until the event log has so many such events."""
        wait_until(lambda: len(self.cluster.events(kind, **fields)) >= count)


@contextmanager
def watch(folder: Path, **configs: int) -> Iterator[Watched]:
    """Start a cluster with the topic `orders` of two partitions behind a tap."""
    settings = {**CONFIGS, **{name.replace("_", "."): value for name, value in configs.items()}}
    with Cluster(
        topics=["orders:2"], data_dir=str(folder / "data"), events=str(folder / "events.jsonl"), configs=settings
    ) as cluster:
        capture = CaptureFile(str(folder / "capture.jsonl"), cluster.bootstrap)
        with Tap(cluster.bootstrap, sinks=[capture]) as tap:
            yield Watched(cluster, tap.bootstrap, folder)
        capture.close()


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition, with minutes of patience."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.02)


class TransactionalClient(Protocol):
    """A producer with a transactional id."""

    def begin(self) -> None:
        """Begin a transaction and write four records to `orders`, acknowledged."""

    def commit(self) -> str:
        """Commit; return the error, or an empty string."""

    def close(self) -> None:
        """Close the client."""


class GroupClient(Protocol):
    """A consumer in a group that reads `orders`."""

    def poll(self, count: int) -> None:
        """Read so many records."""

    def poll_once(self) -> None:
        """Poll for a moment, so that the client can rejoin."""

    def close(self) -> None:
        """Close the client."""


# Scenarios


def late_end(run: Watched, make: Callable[[Watched, str, int], TransactionalClient]) -> None:
    """`billing` commits one transaction in time and the next one after it timed out."""
    client = make(run, "billing", TRANSACTION_TIMEOUT_MS)
    client.begin()
    assert not client.commit()
    client.begin()
    run.wait_for("transaction.state", to="CompleteAbort")
    assert client.commit(), "the late EndTxn is refused"
    client.close()


def fenced(run: Watched, make: Callable[[Watched, str, int], TransactionalClient]) -> None:
    """`new` takes over the transactional id while `old` has a transaction open; `old` then tries to commit."""
    old = make(run, "old", 60_000)
    old.begin()
    new = make(run, "new", 60_000)
    new.begin()
    assert not new.commit()
    assert old.commit(), "the fenced producer is refused"
    old.close()
    new.close()


def stuck(run: Watched, make: Callable[[Watched, str, int], TransactionalClient]) -> TransactionalClient:
    """`billing` leaves a transaction open and the coordinator does not abort it: the last stable offset is stuck."""
    client = make(run, "billing", TRANSACTION_TIMEOUT_MS)
    client.begin()
    return client


def slow_polls(run: Watched, make: Callable[[Watched, str], GroupClient], times: int) -> None:
    """`slow` exceeds its max.poll.interval.ms so many times, and joins again each time."""
    produce(run, 8)
    client = make(run, "slow")
    client.poll(8)
    for number in range(1, times + 1):
        run.wait_for("member.left", number)
        poll_until_joined(run, client, number + 1)
    client.close()


def kicked(run: Watched, make: Callable[[Watched, str, int], GroupClient]) -> None:
    """`zombie` is removed from its group and `heir` takes over, before the next heartbeat of `zombie` tells it."""
    produce(run, 8)
    zombie = make(run, "zombie", LONG_HEARTBEAT_MS)
    zombie.poll(8)
    zombie.poll_once()
    heir = make(run, "heir", 50)
    joined = [event["member"] for event in run.cluster.events("member.joined")]
    wait_until(lambda: heir.poll_once() or zombie.poll_once() or sorted(_assigned(run).values()) == [1, 1])
    produce(run, 8)
    zombie.poll(1)  # it has taken its partition
    with Client(run.bootstrap, client_id="operator") as operator:
        request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=joined[0])])
        operator.to_node(operator.coordinator("g"), request, LeaveGroupResponse)
    wait_until(lambda: heir.poll_once() or any(count == 2 for count in _assigned(run).values()))
    for _ in range(5):
        heir.poll_once()  # it takes both partitions
    poll_until_joined(run, zombie, 3)
    heir.close()
    zombie.close()


def _assigned(run: Watched) -> dict[str, int]:
    """Return how many partitions each member of the latest generation has."""
    events = run.cluster.events("member.assigned")
    latest = max((event["epoch"] for event in events), default=0)
    return {
        event["member"]: sum(map(len, event["partitions"].values())) for event in events if event["epoch"] == latest
    }


def poll_until_joined(run: Watched, client: GroupClient, count: int) -> None:
    """Poll until so many members have joined since the start."""
    wait_until(lambda: client.poll_once() or len(run.cluster.events("member.joined")) >= count)


def produce(run: Watched, count: int) -> None:
    """Write so many records to each partition."""
    producer = Producer({"bootstrap.servers": run.bootstrap, "client.id": "writer", "linger.ms": 0, "log_level": 0})
    for number in range(count):
        producer.produce("orders", f"value {number}", partition=number % 2)
    assert producer.flush(PATIENCE) == 0


# librdkafka


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send this process's standard error, where librdkafka logs, to a file."""
    kept = os.dup(2)
    target = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(target)
        os.close(kept)


class LibrdkafkaProducer:
    """librdkafka's transactional producer."""

    def __init__(self, run: Watched, name: str, timeout_ms: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": run.bootstrap,
                "client.id": name,
                "transactional.id": "app-0",
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "linger.ms": 0,
                "debug": "eos",
            }
        )
        self._producer.init_transactions(PATIENCE)

    def begin(self) -> None:
        self._producer.begin_transaction()
        for number in range(4):
            self._producer.produce("orders", f"value {number}", partition=number % 2)
        assert self._producer.flush(PATIENCE) == 0

    def commit(self) -> str:
        try:
            self._producer.commit_transaction(PATIENCE)
        except KafkaException as error:
            return str(error)
        return ""

    def close(self) -> None:
        del self._producer


class LibrdkafkaConsumer:
    """librdkafka's consumer with the shortest possible poll interval."""

    def __init__(self, run: Watched, name: str, **settings: Any) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": run.bootstrap,
                "group.id": "g",
                "client.id": name,
                "session.timeout.ms": POLL_INTERVAL_MS,
                "max.poll.interval.ms": POLL_INTERVAL_MS,
                "heartbeat.interval.ms": 50,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
                "debug": "consumer,cgrp,fetch",
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self._consumer.subscribe(["orders"])

    @property
    def client(self) -> Consumer:
        """The client itself, for steps of one test."""
        return self._consumer

    def poll(self, count: int) -> None:
        def read() -> bool:
            nonlocal count
            message = self._consumer.poll(0.05)
            count -= message is not None and message.error() is None
            return count <= 0

        wait_until(read)

    def poll_once(self) -> None:
        self._consumer.poll(0.05)

    def close(self) -> None:
        self._consumer.close()


def patient_librdkafka(run: Watched, name: str, heartbeat_ms: int) -> LibrdkafkaConsumer:
    """Make a librdkafka consumer that is never removed for its own silence."""
    return LibrdkafkaConsumer(
        run, name, session_timeout_ms=60_000, max_poll_interval_ms=60_000, heartbeat_interval_ms=heartbeat_ms
    )


def rewound(run: Watched) -> None:
    """`again` reads to the end, commits, goes back to offset 1 of each partition, and commits less than before."""
    produce(run, 8)
    consumer = patient_librdkafka(run, "again", 100)
    consumer.poll(8)
    client = consumer.client
    client.commit(asynchronous=False)
    for partition in range(2):
        client.seek(TopicPartition("orders", partition, 1))
    consumer.poll(6)
    client.commit(offsets=[TopicPartition("orders", partition, 2) for partition in range(2)], asynchronous=False)
    consumer.close()


def behind(run: Watched) -> None:
    """`reader` commits offset 1 of each partition and reads no further, while 18 more records arrive."""
    produce(run, 2)
    consumer = patient_librdkafka(run, "reader", 100)
    consumer.poll(2)
    consumer.client.commit(asynchronous=False)
    produce(run, 18)
    consumer.close()


def skewed(run: Watched) -> None:
    """librdkafka's partitioner puts all records of one key into one partition."""
    producer = Producer({"bootstrap.servers": run.bootstrap, "linger.ms": 0, "log_level": 0})
    for number in range(120):
        producer.produce("orders", f"value {number}", key="always the same")
    assert producer.flush(PATIENCE) == 0
    produce(run, 4)


def read_aborted(run: Watched) -> list[Operation]:
    """A librdkafka consumer with isolation.level=read_uncommitted reads a transaction that its producer aborted.

    Return the history of both clients: what was aborted must not have been read.
    """
    producer = Producer({"bootstrap.servers": run.bootstrap, "transactional.id": "app-0", "log_level": 0})
    producer.init_transactions(PATIENCE)
    sent: list[Send] = []
    producer.begin_transaction()
    for number in range(4):
        producer.produce("orders", f"aborted {number}", partition=0)
        sent.append(Send("orders-0", f"aborted {number}"))
    assert producer.flush(PATIENCE) == 0
    producer.abort_transaction(PATIENCE)
    consumer = LibrdkafkaConsumer(run, "dirty", isolation_level="read_uncommitted")
    records: list[tuple[int, str]] = []

    def read() -> bool:
        message = consumer.client.poll(0.05)
        if message is not None and message.error() is None:
            records.append((message.offset() or 0, (message.value() or b"").decode()))
        return len(records) == len(sent)

    wait_until(read)
    consumer.close()
    return [Operation("producer", "fail", sent), Operation("dirty", "ok", [Poll({"orders-0": records})])]


# aiokafka


async def skewed_by_aiokafka(run: Watched) -> None:
    """aiokafka's partitioner puts all records of one key into one partition."""
    producer = AIOKafkaProducer(bootstrap_servers=run.bootstrap, client_id="skewer")
    await producer.start()
    for number in range(120):
        await producer.send("orders", b"value %d" % number, key=b"always the same")
    await producer.flush()
    for partition in range(2):
        await producer.send_and_wait("orders", b"other", partition=partition)
    await producer.stop()


async def behind_with_aiokafka(run: Watched) -> None:
    """`reader`, an aiokafka consumer, commits offset 1 of each partition, and 18 more records arrive."""
    await asyncio.to_thread(produce, run, 2)
    consumer = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=run.bootstrap,
        client_id="reader",
        group_id="g",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    for _ in range(2):
        await consumer.getone()
    await consumer.commit()
    await asyncio.to_thread(produce, run, 18)
    await consumer.stop()


class TwiceAssignor(RoundRobinPartitionAssignor):
    """An assignor that gives partition 0 to every member."""

    @classmethod
    def assign(cls, cluster: Any, members: Any) -> Any:
        return {
            member: ConsumerProtocolMemberAssignment(cls.version, [("orders", [0, 1] if index == 0 else [0])], b"")
            for index, member in enumerate(sorted(members))
        }


async def assigned_twice(run: Watched) -> None:
    """Two aiokafka members whose leader assigns `orders-0` to both."""
    consumers = [
        AIOKafkaConsumer(
            "orders",
            bootstrap_servers=run.bootstrap,
            client_id=f"member-{number}",
            group_id="g",
            partition_assignment_strategy=(TwiceAssignor,),
            heartbeat_interval_ms=50,
            auto_offset_reset="earliest",
        )
        for number in range(2)
    ]
    await asyncio.gather(*[consumer.start() for consumer in consumers])
    deadline = time.monotonic() + PATIENCE
    while not (
        all(AioPartition("orders", 0) in consumer.assignment() for consumer in consumers)
        and len(run.cluster.events("request", api="Heartbeat")) >= 6
    ):
        assert time.monotonic() < deadline, "gave up waiting"
        await asyncio.sleep(0.02)
    await asyncio.gather(*[consumer.stop() for consumer in consumers])


async def late_end_of_aiokafka(run: Watched) -> None:
    """`billing`, an aiokafka producer, commits a transaction after it timed out."""
    producer = AIOKafkaProducer(
        bootstrap_servers=run.bootstrap,
        client_id="billing",
        transactional_id="app-0",
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    await producer.start()
    await producer.begin_transaction()
    for partition in range(2):
        await producer.send_and_wait("orders", b"value", partition=partition)
    await asyncio.to_thread(run.wait_for, "transaction.state", to="CompleteAbort")
    try:
        await producer.commit_transaction()
    except AioError:
        pass
    else:
        raise AssertionError("the late EndTxn is refused")
    finally:
        await producer.stop()
