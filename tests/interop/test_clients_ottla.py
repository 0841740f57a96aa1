"""ottla's client and commands against Apache Kafka."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from ottla.client import Client
from ottla.client.reading import RecordReader, bounds
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from tests.cli.live import run
from tests.client.sending import send_batches
from tests.markers import markers_written

from .java_client import JavaClients
from .java_client import Record as JavaRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop


SECONDS = 300  # a guard


def eventually(observe: Callable[[], object], expected: object) -> None:
    """A broker of Apache Kafka learns of a change a moment after the controller has answered."""
    end = time.monotonic() + SECONDS
    while (last := observe()) != expected:
        assert time.monotonic() < end, f"it is {last}, not {expected}"
        time.sleep(0.05)


def create(where: str, topic: str, partitions: int) -> None:
    created = run(where, "topic", "create", topic, "-p", partitions)
    assert created.code == 0, created.err
    eventually(lambda: partitions_of(where, topic), partitions)


def partitions_of(where: str, topic: str) -> int:
    """How many partitions the broker knows that have a leader."""
    ran = run(where, "topic", "describe", topic, "--json")
    return 0 if ran.code else sum(partition["leader"] >= 0 for partition in ran.rows[0]["partitions"])


def test_ottla_client_manages_kafka_topics_and_configs(apache_kafka: ApacheKafka) -> None:
    where = apache_kafka.bootstrap
    created = run(where, "topic", "create", "cli-topic", "-p", 2, "-c", "retention.ms=60000", "--json").rows[0]
    assert (created["partitions"], created["replication_factor"]) == (2, 1)
    assert run(where, "topic", "create", "cli-topic").err == (
        "ottla: TOPIC_ALREADY_EXISTS (36): Topic 'cli-topic' already exists.\n"
    )
    run(where, "topic", "add-partitions", "cli-topic", 3)
    eventually(lambda: partitions_of(where, "cli-topic"), 3)
    described = run(where, "topic", "describe", "cli-topic", "--json").rows[0]
    assert described["configs"]["retention.ms"] == "60000"
    assert run(where, "config", "alter", "topic", "cli-topic", "--set", "retention.ms=70000").code == 0

    def retention() -> tuple[str, str]:
        rows = {row["key"]: row for row in run(where, "config", "describe", "topic", "cli-topic", "--json").rows}
        return rows["retention.ms"]["value"], rows["retention.ms"]["source"]

    eventually(retention, ("70000", "topic"))
    assert run(where, "config", "alter", "topic", "cli-topic", "--set", "retention.ms=x").code == 1
    assert run(where, "config", "describe", "broker", "1", "--all").code == 0
    assert run(where, "topic", "delete", "--yes", "cli-topic").code == 0
    eventually(lambda: run(where, "topic", "describe", "cli-topic").code, 4)
    for command in ("describe", "apis", "features", "quorum", "log-dirs"):
        assert run(where, "cluster", command, "--json").rows


def test_ottla_client_produces_to_and_consumes_from_kafka(apache_kafka: ApacheKafka) -> None:
    where = apache_kafka.bootstrap
    create(where, "cli-records", 3)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        sent = run(
            where, "produce", "cli-records", "-K", ":", "-H", "h=1", "-z", codec, "--json", stdin=f"{codec}:value\n"
        )
        assert sent.rows[0]["offset"] >= 0
    rows = run(where, "consume", "cli-records", "-e", "--json").rows
    assert {row["key"] for row in rows} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert all(row["headers"] == [{"name": "h", "value": "1"}] for row in rows)
    assert len(run(where, "consume", "cli-records", "-o", "s@-1h", "-o", "e@now", "-f", "%o ").out.split()) == 5
    trimmed = run(where, "topic", "trim", "--yes", "cli-records", "--json").rows
    assert sum(row["start"] for row in trimmed) == 5


RESETS = [
    (("--to-earliest",), [0, 0]),
    (("--to-latest",), [3, 0]),
    (("--to-current",), [3, 0]),
    (("--to-offset", 2), [2, 0]),
    (("--to-time", "-1h"), [0, 0]),
    (("--to-time", "now"), [3, 0]),
    (("--shift-by", -1), [2, 0]),
    (("--shift-by", 9), [3, 0]),
]
"""Where a group's offsets would be put, of a partition with three records and one with none; nothing is changed."""


def test_ottla_client_manages_kafka_groups(apache_kafka: ApacheKafka, java_clients: JavaClients) -> None:
    where = apache_kafka.bootstrap
    create(where, "cli-groups", 2)
    run(where, "produce", "cli-groups", "-p", 0, stdin="a\nb\nc\n")
    for protocol in ("classic", "consumer"):
        group = f"cli-{protocol}"
        with java_clients.consumer(
            where, group_id=group, group_protocol=protocol, auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe("cli-groups")
            assert len(consumer.poll(min_records=3)) == 3
            consumer.commit()
            described = run(where, "group", "describe", group, "--json").rows[0]
            assert (described["type"], described["state"], described["lag"]) == (protocol, "Stable", 0)
            assert described["members"][0]["assigned"] == [["cli-groups", 0], ["cli-groups", 1]]
            assert run(where, "group", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute").code == 1
        assert group in {row["group"] for row in run(where, "group", "list", "--json").rows}
        rows = run(where, "group", "list", "--type", protocol, "--state", "empty", "--json").rows
        assert {row["group"] for row in rows if row["group"].startswith("cli-")} == {group}
        for where_to, new in RESETS:
            planned = run(where, "group", "reset-offsets", group, "--all-topics", *where_to, "--json").rows
            assert [row["new"] for row in planned] == new, where_to
        assert run(where, "group", "lag", group, "--json").rows[0]["lag"] == 0
        moved = run(
            where, "group", "reset-offsets", group, "-t", "cli-groups:0", "--shift-by", -2, "--execute", "--json"
        )
        assert [(row["old"], row["new"]) for row in moved.rows] == [(3, 1)]
        assert run(where, "group", "lag", group, "--json").rows[0]["lag"] == 2
        assert run(where, "group", "delete", group, "--offsets-of", "cli-groups").code == 0
        assert run(where, "group", "lag", group, "--json").rows[0]["partitions"] == []
        assert run(where, "group", "delete", group).code == 0
        assert run(where, "group", "describe", group).code == 4


def test_ottla_client_describes_kafka_transactions(apache_kafka: ApacheKafka, java_clients: JavaClients) -> None:
    where = apache_kafka.bootstrap
    create(where, "cli-txn", 1)
    with java_clients.producer(where, transactional_id="cli-txn-id") as producer:
        producer.init_transactions()
        producer.begin()
        producer.send([JavaRecord("cli-txn", b"open")])
        listed = {row["transactional_id"]: row["state"] for row in run(where, "txn", "list", "--json").rows}
        assert listed["cli-txn-id"] == "Ongoing"
        described = run(where, "txn", "describe", "cli-txn-id", "--json").rows[0]
        assert described["partitions"] == [["cli-txn", 0]]
        producers = run(where, "txn", "producers", "cli-txn", "--json").rows
        assert producers[0]["open_since_offset"] == 0
        assert run(where, "txn", "hanging", "-t", "cli-txn", "--older-than", 0, "--json").out == ""
        assert run(where, "consume", "cli-txn", "-e").out == ""
        producer.abort()
        producer.begin()
        producer.send([JavaRecord("cli-txn", b"kept")])
        producer.commit()
    markers_written(where)
    assert run(where, "consume", "cli-txn", "-e").out == "kept\n"
    assert run(where, "txn", "describe", "nobody").code == 4


def test_hanging_transaction_of_kafka_is_aborted(apache_kafka: ApacheKafka, java_clients: JavaClients) -> None:
    where = apache_kafka.bootstrap
    create(where, "cli-abort", 1)

    def open_since() -> list[int | None]:
        rows = run(where, "txn", "producers", "cli-abort", "--json").rows
        return sorted((row["open_since_offset"] for row in rows), key=lambda offset: offset is None)

    with java_clients.producer(where, transactional_id="cli-abort-id") as producer:
        producer.init_transactions()
        producer.begin()
        producer.send([JavaRecord("cli-abort", b"dropped")])
        run(where, "produce", "cli-abort", "-v", "behind it")
        assert open_since() == [0, None]
        assert run(where, "consume", "cli-abort", "-e").out == ""
        assert run(where, "txn", "abort", "cli-abort", 0, "--start-offset", 99).code == 4
        aborted = run(where, "txn", "abort", "cli-abort", 0, "--start-offset", 0, "--json").rows[0]
        assert aborted["aborted"] is True
        assert open_since() == [None, None]
        assert run(where, "consume", "cli-abort", "-e").out == "behind it\n"
        producer.abort()


def test_ottla_client_works_on_kafka(apache_kafka: ApacheKafka) -> None:
    with Client(apache_kafka.bootstrap, timeout=SECONDS) as client:
        create(apache_kafka.bootstrap, "raw", 2)
        batch = build_batch([Record(0, 1_700_000_000_000 + n, b"k", json.dumps(n).encode()) for n in range(10)])
        assert send_batches(client, "raw", {0: batch, 1: batch})[1].base_offset == 0
        known = bounds(client, "raw", [0, 1])
        assert [(entry.start, entry.end) for entry in known.values()] == [(0, 10), (0, 10)]
        read = list(RecordReader(client, "raw", {0: 3, 1: 8}, until={0: 5, 1: 10}))
        assert sorted((entry.partition, entry.record.offset) for entry in read) == [(0, 3), (0, 4), (1, 8), (1, 9)]
        assert client.list_offsets("raw", [0], 1_700_000_000_005)[0] == (5, 1_700_000_000_005)
        with pytest.raises(KafkaError) as refused:
            client.topics(["nowhere"])
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
