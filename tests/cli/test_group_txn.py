"""`ottla group` and `ottla txn` against a running cluster with real members and producers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.testing.clients import eventually

from .live import run

if TYPE_CHECKING:
    from ottla.testing import Cluster


def fill(cluster: Cluster, topic: str, partitions: int = 2, per_partition: int = 10) -> None:
    cluster.create_topic(topic, partitions)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(partitions * per_partition):
        producer.produce(topic, b"%d" % number, partition=number % partitions, timestamp=1700000000000 + number)
    producer.flush(60)


def commit(cluster: Cluster, group: str, topic: str, offsets: list[int]) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    consumer.commit(
        offsets=[TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)], asynchronous=False
    )
    consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_with_members_is_described_and_not_changed(cluster: Cluster, protocol: str) -> None:
    where, topic, group = cluster.bootstrap, f"read-{protocol}", f"readers-{protocol}"
    fill(cluster, topic)
    settings = {
        "bootstrap.servers": where,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "client.id": "reader",
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    seen = 0
    while seen < 20:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        seen += 1
    consumer.commit(offsets=[TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 10)], asynchronous=False)
    listed = {row["group"]: row for row in run(where, "group", "list", "--json").rows}
    assert (listed[group]["type"].lower(), listed[group]["state"]) == (protocol, "Stable")
    assert group in run(where, "group", "list", "--state", "stable", "--type", protocol).out
    assert group not in run(where, "group", "list", "--state", "empty").out
    described = run(where, "group", "describe", group, "--json").rows[0]
    assert (described["type"], described["state"], described["lag"]) == (protocol, "Stable", 6)
    assert [member["client_id"] for member in described["members"]] == ["reader"]
    assert described["members"][0]["assigned"] == [[topic, 0], [topic, 1]]
    assert [(row["offset"], row["end"], row["lag"]) for row in described["partitions"]] == [(4, 10, 6), (10, 10, 0)]
    assert "reader" in run(where, "group", "describe", group).out
    refused = run(where, "group", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
    assert refused.code == 1
    assert "NON_EMPTY_GROUP" in refused.err
    assert run(where, "group", "delete", group).code == 1
    consumer.close()
    eventually(lambda: cluster.group(group).state == "Empty", "the end of the last member")
    assert run(where, "group", "delete", group, "--json").rows == [{"group": group, "deleted": True}]
    assert run(where, "group", "describe", group).code == 4


def test_lag_above_limit_exits_with_5(cluster: Cluster) -> None:
    where = cluster.bootstrap
    fill(cluster, "lagging")
    commit(cluster, "late", "lagging", [3, 10])
    assert run(where, "group", "lag", "late", "--json").rows[0]["lag"] == 7
    assert run(where, "group", "lag", "late", "--fail-above", 7).code == 0
    assert run(where, "group", "lag", "late", "--fail-above", 6).code == 5


def test_offsets_are_reset_only_with_execute(cluster: Cluster) -> None:
    where = cluster.bootstrap
    fill(cluster, "moved")
    commit(cluster, "mover", "moved", [4, 5])

    def reset(*words: object) -> list[int]:
        rows = run(where, "group", "reset-offsets", "mover", *words, "--json").rows
        return [row["new"] for row in rows]

    def now() -> list[int]:
        return [row["offset"] for row in run(where, "group", "lag", "mover", "--json").rows[0]["partitions"]]

    assert reset("--all-topics", "--to-earliest") == [0, 0]
    assert now() == [4, 5]
    assert reset("--all-topics", "--to-latest") == [10, 10]
    assert reset("--all-topics", "--to-current") == [4, 5]
    assert reset("--all-topics", "--shift-by", -2) == [2, 3]
    assert reset("--all-topics", "--shift-by", 100) == [10, 10]
    assert reset("--all-topics", "--to-offset", 7) == [7, 7]
    assert reset("-t", "moved:1", "--to-time", "1700000000006") == [3]
    assert reset("-t", "moved:1", "--to-time", "now") == [10]
    assert now() == [4, 5]
    assert reset("-t", "moved:1", "--shift-by", -5, "--execute") == [0]
    assert now() == [4, 0]
    assert run(where, "group", "reset-offsets", "mover", "--all-topics").code == 2
    assert run(where, "group", "reset-offsets", "mover", "--to-latest").code == 2
    assert run(where, "group", "reset-offsets", "mover", "-t", "moved:9", "--to-latest").code == 4
    assert run(where, "group", "reset-offsets", "nobody", "--all-topics", "--to-latest").code == 4
    assert run(where, "group", "reset-offsets", "fresh", "-t", "moved", "--shift-by", 1).code == 1
    dry = run(where, "group", "reset-offsets", "mover", "--all-topics", "--to-latest")
    assert "nothing was changed" in dry.err


def test_unknown_group_state_is_refused(cluster: Cluster) -> None:
    completed = run(cluster.bootstrap, "group", "list", "--state", "bogus")
    assert completed.code == 2
    assert "--state bogus: use one of Empty, " in completed.err
    assert run(cluster.bootstrap, "group", "list", "--state", "stable").code == 0


def test_delete_continues_after_a_missing_group(cluster: Cluster) -> None:
    fill(cluster, "left", 1)
    commit(cluster, "leavers", "left", [1])
    gone = run(cluster.bootstrap, "group", "delete", "strangers", "leavers")
    assert (gone.code, gone.out) == (4, "deleted leavers\n")
    assert "group strangers" in gone.err


def test_delete_offsets_of_one_topic(cluster: Cluster) -> None:
    where = cluster.bootstrap
    fill(cluster, "kept", 1)
    fill(cluster, "dropped", 1)
    commit(cluster, "some", "kept", [1])
    commit(cluster, "some", "dropped", [2])
    assert run(where, "group", "delete", "some", "--offsets-of", "dropped").out == "deleted 1 offset of some\n"
    left = run(where, "group", "lag", "some", "--json").rows[0]["partitions"]
    assert [row["topic"] for row in left] == ["kept"]


def test_open_transaction_is_listed_and_described(cluster: Cluster) -> None:
    where = cluster.bootstrap
    cluster.create_topic("accounts", 2)
    producer = Producer({"bootstrap.servers": where, "transactional.id": "bank-1", "transaction.timeout.ms": 600_000})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("accounts", b"1", partition=1)
    producer.flush(60)
    listed = {row["transactional_id"]: row for row in run(where, "txn", "list", "--json").rows}
    assert listed["bank-1"]["state"] == "Ongoing"
    assert "bank-1" in run(where, "txn", "list", "--state", "Ongoing", "--pattern", "bank-.*").out
    assert "bank-1" not in run(where, "txn", "list", "--state", "Empty").out
    assert "bank-1" not in run(where, "txn", "list", "--longer-than", 3600).out
    assert run(where, "txn", "list", "--state", "Hungry").code == 1
    described = run(where, "txn", "describe", "bank-1", "--json").rows[0]
    assert (described["state"], described["partitions"]) == ("Ongoing", [["accounts", 1]])
    assert "accounts-1" in run(where, "txn", "describe", "bank-1").out
    producers = run(where, "txn", "producers", "accounts", "--json").rows
    assert [(row["partition"], row["open_since_offset"]) for row in producers] == [(1, 0)]
    # It is open, but its coordinator knows it: it does not hang.
    assert run(where, "txn", "hanging", "--older-than", 0, "--json").out == ""
    producer.commit_transaction(60)
    assert run(where, "txn", "describe", "bank-1", "--json").rows[0]["state"] in ("CompleteCommit", "PrepareCommit")
    assert run(where, "txn", "describe", "nobody").code == 4


def test_hanging_transaction_is_found_and_aborted(cluster: Cluster) -> None:
    """A late record of an old client opens a transaction that no coordinator ends; the test writes one to the log."""
    where = cluster.bootstrap
    cluster.create_topic("stuck", 1, configs=None)
    leave_hanging(cluster, "stuck")
    rows = run(where, "txn", "hanging", "-t", "stuck", "--older-than", 0, "--json").rows
    assert [(row["topic"], row["producer_id"], row["start_offset"]) for row in rows] == [("stuck", 4711, 0)]
    assert "4711" in run(where, "txn", "hanging", "--older-than", 0).out
    assert run(where, "txn", "hanging", "--older-than", 3600).out == "no hanging transactions\n"
    assert run(where, "txn", "abort", "stuck", 0, "--start-offset", 99).code == 4
    assert run(where, "txn", "abort", "stuck", 0).code == 2
    assert run(where, "consume", "stuck", "-e").out == ""
    assert run(where, "txn", "abort", "stuck", 0, "--start-offset", 0).code == 0
    assert run(where, "txn", "hanging", "-t", "stuck", "--older-than", 0, "--json").out == ""
    assert cluster.partition("stuck").last_stable_offset == 2


def leave_hanging(cluster: Cluster, topic: str) -> None:
    """Append a transactional batch to the log, as a broker before KIP-890 does with a late one."""
    from ottla.records.builder import build_batch
    from ottla.records.iterate import Record

    def write(broker: object) -> None:
        partition = broker.partitions[topic, 0]  # type: ignore[attr-defined]
        now = broker.world.clock.now_ms()  # type: ignore[attr-defined]
        batch = build_batch(
            [Record(0, now - 1000, None, b"late")],
            producer_id=4711,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        partition.append(batch)

    cluster.call(write)
