"""A group of real consumers changes from the classic to the consumer protocol and back while records are produced.

Apache Kafka goes through the same, so that what is asked here is what Kafka does.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from ottla.client.client import Client
from ottla.client.topics import create_topic
from ottla.testing import Cluster

from .librdkafka import PASSING

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interop

PARTITIONS = 6
SECONDS = 600  # a guard
# What a commit may be told while its partitions change hands.
MOVED = {"_NO_OFFSET", "STALE_MEMBER_EPOCH", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID"}


@pytest.fixture(scope="module", params=["ottla", pytest.param("Apache Kafka", marks=pytest.mark.peer)])
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "ottla":
        with Cluster(3) as cluster:
            yield cluster.bootstrap
    else:
        yield request.getfixturevalue("apache_kafka").bootstrap


def consumer(bootstrap: str, group: str, protocol: str) -> Consumer:
    settings: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    if protocol == "classic":
        settings |= {
            "partition.assignment.strategy": "range",
            # Longer than a machine stops, but no longer: librdkafka says once that it leaves, and a stop loses that.
            "session.timeout.ms": 60_000,
            "heartbeat.interval.ms": 300,
        }
    made = Consumer(settings)
    made.subscribe([group])
    return made


class Member(threading.Thread):
    """Reads, notes and commits until it is told to leave."""

    def __init__(self, bootstrap: str, group: str, protocol: str, seen: set[bytes]) -> None:
        super().__init__(daemon=True)
        self._consumer = consumer(bootstrap, group, protocol)
        self._seen = seen
        self._leaves = threading.Event()
        self.problems: list[str] = []
        self.start()

    def run(self) -> None:
        while not self._leaves.is_set():
            for message in self._consumer.consume(50, 0.1):
                error = message.error()
                if error is None:
                    self._seen.add(message.value() or b"")
                elif error.code() not in PASSING:
                    self.problems.append(str(error))
            try:
                self._consumer.commit(asynchronous=False)
            except KafkaException as problem:
                error = problem.args[0]
                if error.name() not in MOVED and error.code() not in PASSING:
                    self.problems.append(str(error))
        self._consumer.close()

    def end(self) -> None:
        self._leaves.set()
        self.join(SECONDS)

    def leave(self) -> None:
        self.end()
        assert not self.is_alive(), "a consumer does not close"
        assert self.problems == []


def wait_for(admin: AdminClient, group: str, kind: str, members: int) -> None:
    """Until the group is stable, of that kind, with that many members."""
    deadline = time.monotonic() + SECONDS
    result: tuple[object, ...] = ()
    while time.monotonic() < deadline:
        try:
            described = admin.describe_consumer_groups([group])[group].result(SECONDS)
            result = (described.type.name, described.state.name, len(described.members))
        except KafkaException as error:  # a coordinator that has just come up, or a request that librdkafka lost
            result = (str(error),)
        if result == (kind, "STABLE", members):
            return
        time.sleep(0.1)
    raise AssertionError(f"{group} is {result}, not {kind} with {members} members")


def wait_until_committed(admin: AdminClient, group: str, count: int) -> None:
    """Until the group has committed so many records, and not more."""
    deadline = time.monotonic() + SECONDS
    result: object = None
    while time.monotonic() < deadline:
        consumer_group_offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        try:
            result = [
                max(topic_partition.offset, 0)
                for topic_partition in consumer_group_offsets[group].result(SECONDS).topic_partitions
            ]
            if sum(result) == count:
                return
        except KafkaException as error:
            result = str(error)
        time.sleep(0.1)
    raise AssertionError(f"{group} has committed {result}, not {count} records")


@pytest.fixture
def everybody() -> Iterator[list[Member]]:
    """Keeps all members of a test, to close them at its end."""
    members: list[Member] = []
    yield members
    for member in members:
        member.end()


def test_group_changes_protocol_and_back_while_consuming(bootstrap: str, everybody: list[Member]) -> None:
    group = "changes-its-protocol"
    with Client(bootstrap, timeout=SECONDS) as client:
        create_topic(client, group, partitions=PARTITIONS)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    # Offsets are counted: no record may be there twice.
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 1, "enable.idempotence": True, "log_level": 0}
    producer = Producer({**settings, "message.timeout.ms": SECONDS * 1000})
    sent: list[bytes] = []
    failed: list[object] = []

    def produce() -> None:
        for _ in range(120):
            sent.append(b"%d" % len(sent))
            producer.produce(
                group,
                sent[-1],
                partition=len(sent) % PARTITIONS,
                on_delivery=lambda error, _: error and failed.append(error),
            )
        assert producer.flush(SECONDS) == 0, "the records are not written"
        assert not failed, failed

    seen: set[bytes] = set()

    def members(protocol: str) -> list[Member]:
        made = [Member(bootstrap, group, protocol, seen) for _ in range(2)]
        everybody.extend(made)
        return made

    old = members("classic")
    produce()
    wait_for(admin, group, "CLASSIC", 2)
    new = members("consumer")
    produce()
    wait_for(admin, group, "CONSUMER", 4)
    for member in old:
        member.leave()
    produce()
    wait_for(admin, group, "CONSUMER", 2)
    old = members("classic")
    produce()
    wait_for(admin, group, "CONSUMER", 4)
    for member in new:
        member.leave()
    produce()
    wait_for(admin, group, "CLASSIC", 2)
    # Who lost a partition before its commit has seen records that the next owner reads again, and commits.
    wait_until_committed(admin, group, len(sent))
    for member in old:
        member.leave()
    assert seen == set(sent), f"{len(sent)} were sent, {len(seen)} seen"
