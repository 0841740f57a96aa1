"""`ottla sink` against a cluster with the bookkeeping of exactly-once sinks."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest

from ottla.client import Client
from ottla.client.groups import list_groups
from ottla.client.producer import Producer
from ottla.client.transactions import list_transactions
from ottla.spark.sink.commit import BatchCommit, TaskResult
from ottla.spark.sink.decision import OffsetRange, SinkTransaction, task_id
from ottla.testing import Cluster
from tests.spark.consume import consume

from .live import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["orders:1"]) as running:
        yield running


def write(cluster: Cluster, query: str, task: int, first: int) -> TaskResult:
    """Leave a transaction with three rows open, as a task does."""
    with Client(cluster.bootstrap) as client:
        producer = Producer(client, transactional_id=task_id(query, task))
        for number in range(first, first + 3):
            producer.send("orders", b"%d" % number, b"v")
        producer.flush()
        entry = SinkTransaction(task_id(query, task), *producer.identity, 3)
    return TaskResult(task, [entry], {("orders", 0): OffsetRange(0, 100)})


class Dies(BatchCommit):
    """A driver that dies after its decision."""

    def end(self, *_: object) -> list[SinkTransaction]:
        raise KeyboardInterrupt


def committer(cluster: Cluster, query: str, kind: type[BatchCommit] = BatchCommit) -> BatchCommit:
    return kind(lambda: Client(cluster.bootstrap), lambda client, key: Producer(client, transactional_id=key), query)


def test_sinks_are_listed_and_retired(cluster: Cluster, tmp_path: Path) -> None:
    done, doubtful, named = str(uuid.uuid4()), str(uuid.uuid4()), f"{uuid.uuid4()}@orders"
    committer(cluster, done).commit(4, [write(cluster, done, 0, 0)])
    committer(cluster, named).commit(0, [write(cluster, named, 0, 3)])
    with pytest.raises(KeyboardInterrupt):
        committer(cluster, doubtful, Dies).commit(7, [write(cluster, doubtful, 0, 6), write(cluster, doubtful, 1, 9)])
    cluster.expire_transaction(task_id(doubtful, 1))
    where = cluster.bootstrap
    rows = {row["query"]: row for row in run(where, "sink", "list", "--json").rows}
    assert set(rows) == {done, doubtful, named}
    assert (rows[done]["state"], rows[done]["batch"], rows[done]["rows"]) == ("idle", 4, 3)
    assert (rows[doubtful]["state"], rows[doubtful]["topics"]) == ("in doubt", ["orders"])
    assert doubtful in run(where, "sink", "list").out

    (tmp_path / "metadata").write_text(json.dumps({"id": doubtful}))
    assert run(where, "sink", "retire", "--checkpoint", str(tmp_path)).code == 2, "it asks, and there is no terminal"
    retired = run(where, "sink", "retire", "--checkpoint", str(tmp_path), "--yes", "--json").rows
    assert [(row["query"], row["batch"]) for row in retired] == [(doubtful, 7)]
    assert sorted(int(seen.key or b"") for seen in consume(where, "orders")) == list(range(12))
    assert "retired" in run(where, "sink", "retire", done, named.partition("@")[0], "--yes").out
    with Client(where) as client:
        assert list_groups(client) == []
        assert list_transactions(client, ["Ongoing"]) == []


def test_wrong_arguments_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    where = cluster.bootstrap
    assert run(where, "sink", "list").code == 0
    assert run(where, "sink", "retire").code == 2
    assert run(where, "sink", "retire", "--checkpoint", str(tmp_path)).code == 2
    assert run(where, "sink", "retire", str(uuid.uuid4()), "--yes").code == 4
