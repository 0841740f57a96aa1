"""KafkaShareConsumers against ottla: sharing, read_committed isolation, and release of acquired records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ottla_node import OttlaNode

from .java_client import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .java_client import JavaClients

pytestmark = pytest.mark.interop

RECORDS = 600
# Long enough that no acquisition lock expires on a slow machine.
SETTINGS = {"group.share.max.record.lock.duration.ms": "3600000", "group.share.max.session.timeout.ms": "3600000"}
LONG = (
    ["SET", "share.record.lock.duration.ms", "3600000"],
    ["SET", "share.session.timeout.ms", "600000"],
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    with OttlaNode(tmp_path_factory.mktemp("ottla") / "data", settings=SETTINGS) as node:
        yield node
        assert [line for line in node.complaints() if "ERROR" in line or "Traceback" in line] == []


def begin_at_the_start(node: OttlaNode, clients: JavaClients, group: str, *more: list[str]) -> None:
    ops = [["SET", "share.auto.offset.reset", "earliest"], *LONG, *more]
    clients.admin(node.bootstrap).call("alter_configs", changes=[{"resource": ["GROUP", group], "ops": ops}])


def test_two_share_consumers_get_every_record_once(node: OttlaNode, java_clients: JavaClients) -> None:
    java_clients.admin(node.bootstrap).create_topic("shared", 2)
    begin_at_the_start(node, java_clients, "two")
    with java_clients.producer(node.bootstrap, batch_size="200") as producer:
        producer.send(Record("shared", value=b"%d" % number) for number in range(RECORDS))
    seen: list[bytes | None] = []
    with (
        java_clients.share_consumer(node.bootstrap, group_id="two", max_poll_records="50") as one,
        java_clients.share_consumer(node.bootstrap, group_id="two", max_poll_records="50") as two,
    ):
        one.subscribe("shared")
        two.subscribe("shared")
        for _ in range(200):
            for consumer in (one, two):
                seen += [record.value for record in consumer.poll(timeout_ms=2_000)]
            if len(seen) >= RECORDS:
                break
    assert sorted(seen, key=lambda value: int(value or b"0")) == [b"%d" % number for number in range(RECORDS)]


def test_share_consumer_skips_aborted_and_rereads_released_records(node: OttlaNode, java_clients: JavaClients) -> None:
    java_clients.admin(node.bootstrap).create_topic("transacted")
    begin_at_the_start(node, java_clients, "committed", ["SET", "share.isolation.level", "read_committed"])
    with java_clients.producer(node.bootstrap, transactional_id="t") as producer:
        producer.init_transactions()
        for value, good in ((b"lost", False), (b"kept", True), (b"lost too", False), (b"kept too", True)):
            producer.begin()
            producer.send([Record("transacted", value=value)])
            (producer.commit if good else producer.abort)()
    with java_clients.share_consumer(
        node.bootstrap, group_id="committed", share_acknowledgement_mode="explicit"
    ) as consumer:
        consumer.subscribe("transacted")
        # One may come before the other: each is given back when it first comes, and accepted when it comes again.
        came: list[tuple[bytes | None, int | None]] = []
        while len(came) < 4:
            records = consumer.poll()
            assert records, f"nothing more came after {came}"
            consumer.call(
                "acknowledge",
                records=[
                    {"topic": record.topic, "partition": record.partition, "offset": record.offset}
                    | {"type": "RELEASE" if record.delivery_count == 1 else "ACCEPT"}
                    for record in records
                ],
            )
            response = consumer.call("commit")
            assert not any(response.values()), response
            came += [(record.value, record.delivery_count) for record in records]
    assert sorted(came) == [(b"kept", 1), (b"kept", 2), (b"kept too", 1), (b"kept too", 2)]
