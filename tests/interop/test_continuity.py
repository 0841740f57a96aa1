"""Groups and transactions continue after a directory was handed to the other broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .java_client import JavaClients, Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ottla_node import OttlaNode

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

KAFKA_FIRST = pytest.mark.parametrize("kafka_first", [False, True], ids=["ottla first", "kafka first"])


@pytest.fixture
def brokers(
    ottla_factory: Callable[..., OttlaNode],
    apache_kafka_factory: Callable[..., ApacheKafka],
    tmp_path: Path,
) -> tuple[OttlaNode, ApacheKafka]:
    """Both brokers on one directory, neither running."""
    settings = {
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        # Members stay until the other broker was asked about them.
        "group.consumer.max.session.timeout.ms": "1800000",
        "group.consumer.session.timeout.ms": "1800000",
    }
    data = tmp_path / "data"
    return ottla_factory(data, settings=settings), apache_kafka_factory(data, settings=settings)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_continues_after_change_of_broker(
    brokers: tuple[OttlaNode, ApacheKafka], java_clients: JavaClients, protocol: str
) -> None:
    group = {"group_id": "group", "group_protocol": protocol, "max_poll_records": "2"}
    read: list[bytes | None] = []
    for turn in range(3):
        node = brokers[turn % 2]
        with node:
            if turn == 0:
                java_clients.admin(node.bootstrap).create_topic("numbers")
            with java_clients.producer(node.bootstrap, enable_idempotence="false") as producer:
                producer.send([Record("numbers", b"%d" % (turn * 3 + index)) for index in range(3)])
            with java_clients.consumer(node.bootstrap, **group) as consumer:
                consumer.subscribe("numbers")
                read += [record.value for record in consumer.poll(min_records=2)]
                consumer.commit()
            described = java_clients.admin(node.bootstrap).call("list_group_offsets", groups=["group"])
            assert described["group"]["numbers:0"]["offset"] == len(read)
        assert node.complaints() == []
    assert read == [b"%d" % index for index in range(len(read))]
    assert len(read) >= 6


@KAFKA_FIRST
def test_member_survives_change_of_broker(
    brokers: tuple[OttlaNode, ApacheKafka], java_clients: JavaClients, kafka_first: bool
) -> None:
    one, other = brokers[::-1] if kafka_first else brokers
    for protocol in ("classic", "consumer"):
        with one:
            settings = {"group_id": f"live-{protocol}", "group_protocol": protocol}
            if protocol == "classic":
                settings["session_timeout_ms"] = "1800000"
                java_clients.admin(one.bootstrap).create_topic("shared", 2)
            consumer = java_clients.consumer(one.bootstrap, group_instance_id="static", **settings)
            consumer.subscribe("shared")
            consumer.await_assignment(2)
            before = members(java_clients, one.bootstrap, settings["group_id"])
        with other:
            after = members(java_clients, other.bootstrap, settings["group_id"])
        consumer.close()
        assert after == before
        assert len(after) == 1, after


def members(clients: JavaClients, bootstrap: str, group: str) -> list[tuple[str, str, bool | None, list[str]]]:
    admin = clients.admin(bootstrap)
    described = admin.call("describe_consumer_groups", groups=[group])[group]
    admin.close()
    return [
        (member["consumerId"], member["groupInstanceId"], member["upgraded"], member["assignment"]["topicPartitions"])
        for member in described["members"]
    ]


@KAFKA_FIRST
def test_transactional_producer_continues_after_change_of_broker(
    brokers: tuple[OttlaNode, ApacheKafka], java_clients: JavaClients, kafka_first: bool
) -> None:
    order = brokers[::-1] if kafka_first else brokers
    expected: list[bytes] = []
    for turn in range(4):
        node = order[turn % 2]
        with node:
            if turn == 0:
                java_clients.admin(node.bootstrap).create_topic("money")
            left = java_clients.producer(node.bootstrap, transactional_id="teller")
            left.init_transactions()  # ends what the other broker's producer left open
            for end in ("commit", "abort"):
                value = b"%d %s" % (turn, end.encode())
                left.begin()
                left.send([Record("money", value)])
                left.send_offsets({"money:0": turn}, group="tellers")
                left.call(end)
                if end == "commit":
                    expected.append(value)
            read = java_clients.read_all(node.bootstrap, ["money"], isolation_level="read_committed")
            assert [record.value for record in read] == expected
            left.begin()
            left.send([Record("money", b"%d never decided" % turn)])
        assert node.complaints() == []
    with order[0] as node:
        with java_clients.producer(node.bootstrap, transactional_id="teller") as producer:
            producer.init_transactions()
        offsets = java_clients.admin(node.bootstrap).call("list_group_offsets", groups=["tellers"])
        assert offsets["tellers"]["money:0"]["offset"] == 3
        read = java_clients.read_all(node.bootstrap, ["money"], isolation_level="read_committed")
        assert [record.value for record in read] == expected
        assert len(java_clients.read_all(node.bootstrap, ["money"])) == 12
