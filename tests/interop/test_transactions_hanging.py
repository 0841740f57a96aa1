"""Hanging transactions: records of a transaction that no coordinator ends.

Brokers that do not verify (KIP-890) take them from older clients, Apache Kafka and ottla alike. `ottla txn hanging` and
Kafka's own tool find the same ones on either, each ends what the other found, and readers of what is committed go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from tests.cli.live import run
from tests.conversations.side_by_side import Talk
from tests.conversations.transactions.talk import TransactionTalk

from .apache_kafka import TRANSACTIONS, run_tool
from .librdkafka import read_to_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ottla_node import OttlaNode

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

SETTINGS = {
    "transaction.partition.verification.enable": "false",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "log.retention.ms": "-1",  # the records are of long ago
}
TOPIC = "stuck"
OLD_CLIENT = 7  # a version of Produce that does not add its partitions to the transaction
LONG_MS = 900_000
Hanging = set[tuple[int, int, int, int]]


@pytest.fixture(params=["Apache Kafka", "ottla"])
def bootstrap(
    request: pytest.FixtureRequest,
    kafka_jvm: object,
    apache_kafka_factory: Callable[..., ApacheKafka],
    ottla_factory: Callable[..., OttlaNode],
) -> str:
    factory = ottla_factory if request.param == "ottla" else apache_kafka_factory
    return factory(settings=SETTINGS).start().bootstrap


def leave_hanging(talk: TransactionTalk) -> dict[int, int]:
    """Leave a transaction open on each partition; return the producers of those that hang, by partition."""
    # Ended, and then a batch comes late.
    late = talk.init("late", version=1, timeout_ms=LONG_MS)
    talk.add(late, (TOPIC, 0))
    assert talk.produce(late, (TOPIC, 0), 0, version=OLD_CLIENT) is ErrorCode.NONE
    talk.end(late, committed=True, version=3)
    assert talk.produce(late, (TOPIC, 0), 1, version=OLD_CLIENT) is ErrorCode.NONE
    # Never begun.
    never = talk.init("never", version=1, timeout_ms=LONG_MS)
    assert talk.produce(never, (TOPIC, 1), 0, version=OLD_CLIENT) is ErrorCode.NONE
    # Nobody's.
    nobodys = talk.init(None, version=1)._replace(transactional_id="forgotten")
    assert talk.produce(nobodys, (TOPIC, 2), 0, version=OLD_CLIENT) is ErrorCode.NONE
    # Begun, on another partition: that one does not hang.
    elsewhere = talk.init("elsewhere", version=1, timeout_ms=LONG_MS)
    talk.add(elsewhere, (TOPIC, 3))
    for partition in (3, 4):
        assert talk.produce(elsewhere, (TOPIC, partition), 0, version=OLD_CLIENT) is ErrorCode.NONE
    return {0: late.id, 1: never.id, 2: nobodys.id, 4: elsewhere.id}


def found_by_ottla(bootstrap: str) -> Hanging:
    rows = run(bootstrap, "txn", "hanging", "--json").rows
    assert {row["topic"] for row in rows} <= {TOPIC}
    return {(row["partition"], row["producer_id"], row["producer_epoch"], row["start_offset"]) for row in rows}


def found_by_kafkas_tool(bootstrap: str) -> Hanging:
    printed = run_tool(TRANSACTIONS, "--bootstrap-server", bootstrap, "find-hanging", "--topic", TOPIC)
    lines = [line.split() for line in printed.splitlines()]
    rows = [dict(zip(lines[0], line, strict=False)) for line in lines[1:] if line]
    names = ("Partition", "ProducerId", "ProducerEpoch", "StartOffset")
    return {tuple(int(row[name]) for name in names) for row in rows}  # type: ignore[misc]


def readable(bootstrap: str, partition: int) -> list[bytes]:
    """What a consumer of committed records finds, from the start to where it may read."""
    return [message.value() or b"" for message in read_to_end(bootstrap, TOPIC, {partition: 0}, committed=True)]


def test_hanging_transactions_are_found_and_aborted(bootstrap: str, tmp_path: object) -> None:
    wire = Talk(bootstrap, str(tmp_path))
    talk = TransactionTalk(wire)
    talk.find_coordinators()
    wire.create(TOPIC, 5)
    producers = leave_hanging(talk)
    for partition in range(5):
        assert talk.plain(TOPIC, partition) is ErrorCode.NONE
    # Kafka's tool and ottla's find the same, on either broker.
    assert {partition: producer for partition, producer, _, _ in found_by_ottla(bootstrap)} == producers
    assert found_by_kafkas_tool(bootstrap) == found_by_ottla(bootstrap)
    young = run(bootstrap, "txn", "hanging", "--topic", TOPIC, "--older-than", 10_000_000)
    assert young.out == "no hanging transactions\n"
    assert [readable(bootstrap, partition) for partition in range(5)] == [[b"0"], [], [], [], []]
    # Each ends some, and the other no longer finds them.
    starts = {partition: start for partition, _, _, start in found_by_ottla(bootstrap)}
    for partition in (0, 2):
        ended = run(bootstrap, "txn", "abort", TOPIC, partition, "--start-offset", starts[partition])
        assert ended.code == 0, ended.err
    run_tool(
        TRANSACTIONS,
        "--bootstrap-server",
        bootstrap,
        "abort",
        "--topic",
        TOPIC,
        "--partition",
        "1",
        "--start-offset",
        "0",
    )
    assert found_by_kafkas_tool(bootstrap) == found_by_ottla(bootstrap)
    assert [partition for partition, *_ in found_by_ottla(bootstrap)] == [4]
    by_producer = ("--producer-id", producers[4], "--producer-epoch", 0, "--coordinator-epoch", 0)
    assert run(bootstrap, "txn", "abort", TOPIC, 4, *by_producer).code == 0
    assert found_by_kafkas_tool(bootstrap) == found_by_ottla(bootstrap) == set()
    assert run(bootstrap, "txn", "hanging").out == "no hanging transactions\n"
    # Readers go on, but not past the transaction that lives.
    expected = [[b"0", b"plain"], [b"plain"], [b"plain"], [], [b"plain"]]
    assert [readable(bootstrap, partition) for partition in range(5)] == expected
    # The one that lives is its producer's to end.
    assert talk.state("elsewhere") == "Ongoing"
    wire.close()
