"""Tasks of the exactly-once sink under broker failures, concurrent runs and restored checkpoints.

The tests run tasks as Spark's executors do, but without Spark, so that a failure can hit every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.types import StringType, StructType

from ottla.client.client import Client
from ottla.client.topics import create_topic, delete_topic
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.options import OptionError
from ottla.spark.sink.exactly_once import (
    ExactlyOnceTask,
    ExactlyOnceWriter,
    RowsNotReproducedError,
    TakenOverError,
    TaskAttempt,
    WrittenOnce,
)
from ottla.spark.sink.rows import OutgoingRecord
from ottla.spark.sink.writer import SinkPlan
from ottla.testing import Cluster
from tests.ottla_node import OttlaNode
from tests.spark.consume import consume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("spark")
QUERY = "8a7cbbd2"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["orders:2"]) as running:
        yield running


def sink(bootstrap: str, **options: str) -> SinkPlan:
    given = {"kafka.bootstrap.servers": bootstrap, "topic": "orders", "exactlyOnce": "true", **options}
    return SinkPlan.parse(given, StructType().add("key", StringType()).add("value", StringType()))


def rows(numbers: range, value: str = "v", then: Callable[[], object] | None = None) -> Iterator[OutgoingRecord]:
    """Yield numbered rows; call `then` before the last one."""
    for number in numbers:
        if then is not None and number == numbers[-1]:
            then()
        yield OutgoingRecord("orders", b"%d" % number, f"{value}{number}".encode(), (), None)


def attempt(
    cluster: Cluster, numbers: Iterator[OutgoingRecord], batch: int = 0, task: int = 0, run: str = "one", **options: str
) -> WrittenOnce:
    written = ExactlyOnceTask(sink(cluster.bootstrap, **options), TaskAttempt(QUERY, batch, task, run)).run(numbers)
    assert isinstance(written, WrittenOnce)
    return written


def keys(cluster: Cluster) -> list[int]:
    return sorted(int(seen.key or b"") for seen in consume(cluster.bootstrap, "orders"))


@pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn", "Produce", "TxnOffsetCommit", "EndTxn"])
@pytest.mark.parametrize("handled", [True, False])
def test_lost_response_neither_loses_nor_repeats_rows(cluster: Cluster, api: str, handled: bool) -> None:
    control = cluster.on(api, times=1).drop_connection(after_handling=handled)
    assert attempt(cluster, rows(range(20))).rows == 20
    assert control.wait()
    assert attempt(cluster, rows(range(20)), run="two").committed_before
    assert keys(cluster) == list(range(20))


def test_broker_restart_during_batch_neither_loses_nor_repeats_rows(cluster: Cluster) -> None:
    assert attempt(cluster, rows(range(20), then=lambda: cluster.restart_node(1))).rows == 20
    assert keys(cluster) == list(range(20))


@pytest.mark.parametrize("step", ["flush", "record", "commit"])
def test_broker_killed_during_commit_neither_loses_nor_repeats_rows(tmp_path: Path, step: str) -> None:
    """Kill the broker with SIGKILL before a step of the task and restart it; the task retries."""
    with OttlaNode(tmp_path / "data") as node:
        with Client(node.bootstrap) as client:
            create_topic(client, "orders", partitions=2)
        plan = sink(node.bootstrap, **{"kafka.request.timeout.ms": "120000"})
        done: list[str] = []

        class Attacked(ExactlyOnceTask):
            def __getattribute__(self, name: str) -> Any:
                if name == step and not done:
                    done.append(name)
                    node.kill()
                    node.start()
                return super().__getattribute__(name)

        Attacked(plan, TaskAttempt(QUERY, 0, 0, "one")).run(rows(range(20)))
        assert done
        again = ExactlyOnceTask(plan, TaskAttempt(QUERY, 0, 0, "two")).run(rows(range(20)))
        assert again.committed_before
        assert sorted(int(seen.key or b"") for seen in consume(node.bootstrap, "orders")) == list(range(20))


def test_transaction_timeout_is_reported_and_retried(cluster: Cluster) -> None:
    first_attempt = TaskAttempt(QUERY, 0, 0)

    class Slow(ExactlyOnceTask):
        def flush(self, producer: Any) -> None:
            super().flush(producer)
            cluster.expire_transaction(first_attempt.transactional_id)

    with pytest.raises(TakenOverError, match=r"kafka\.transaction\.timeout\.ms \(300000\)"):
        Slow(sink(cluster.bootstrap), first_attempt).run(rows(range(20)))
    assert keys(cluster) == []
    attempt(cluster, rows(range(20)))
    assert keys(cluster) == list(range(20))


def test_concurrent_attempt_is_fenced(cluster: Cluster) -> None:
    done = []
    with pytest.raises(TakenOverError, match="another attempt took over"):
        attempt(cluster, rows(range(20), then=lambda: done.append(attempt(cluster, rows(range(20)), run="two"))))
    assert done[0].rows == 20
    assert keys(cluster) == list(range(20))


def test_copied_or_restored_checkpoint_is_refused(cluster: Cluster) -> None:
    attempt(cluster, rows(range(10)))
    attempt(cluster, rows(range(10, 20)), batch=1)
    with pytest.raises(
        RowsNotReproducedError, match=r"batch 0 .* but batch 1 is committed: two runs share a checkpoint"
    ):
        attempt(cluster, rows(range(10)), run="copy")
    with pytest.raises(
        RowsNotReproducedError, match=r"has 12 rows .* where 10 .* are committed.*This task wrote nothing"
    ):
        attempt(cluster, rows(range(10, 22)), batch=1, run="copy")
    with pytest.raises(RowsNotReproducedError, match=r"has 0 rows .* where 10 .* are committed"):
        attempt(cluster, rows(range(0)), batch=1, run="copy")
    assert keys(cluster) == list(range(20))


def test_changed_values_of_same_keys_are_reported(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    attempt(cluster, rows(range(5)))
    attempt(cluster, rows(range(5)), run="two")
    assert "other values" not in capfd.readouterr().err
    attempt(cluster, rows(range(5), value="w"), run="three")
    assert "has the same keys with other values: the committed ones stay" in capfd.readouterr().err
    assert keys(cluster) == list(range(5))


def test_fewer_tasks_than_in_earlier_run_are_detected(cluster: Cluster) -> None:
    """The last of four tasks has committed; with two tasks, its rows belong to another task."""
    attempt(cluster, rows(range(15, 20)), task=3)
    again = [attempt(cluster, rows(range(10 * task, 10 * task + 10)), task=task, run="two") for task in (0, 1)]
    with pytest.raises(
        RowsNotReproducedError,
        match=rf"2 tasks, and task 3 of an earlier run has committed 5 rows .*group delete ottla-sink-{QUERY}-3",
    ):
        ExactlyOnceWriter(sink(cluster.bootstrap)).commit(list(again), 0)
    ExactlyOnceWriter(sink(cluster.bootstrap)).commit([*again, WrittenOnce(0), WrittenOnce(0)], 0)
    later = [attempt(cluster, rows(range(20 + task, 21 + task)), task=task, batch=1, run="two") for task in (0, 1)]
    assert not any(task.first for task in later), "only a run's first batch can be one that was left half done"
    ExactlyOnceWriter(sink(cluster.bootstrap)).commit(list(later), 1)


def test_recreated_topic_holds_only_new_rows(cluster: Cluster) -> None:
    attempt(cluster, rows(range(20)))
    with Client(cluster.bootstrap) as client:
        delete_topic(client, "orders")
        with pytest.raises(OptionError, match=r"topic orders is not on .*; create it first: ottla topic create orders"):
            attempt(cluster, rows(range(20, 40)), batch=1)
        create_topic(client, "orders", partitions=1)
    attempt(cluster, rows(range(20, 40)), batch=1, run="two")
    assert keys(cluster) == list(range(20, 40))


def test_missing_partition_is_not_a_missing_topic(cluster: Cluster) -> None:
    with pytest.raises(KafkaError, match="orders-7"), sink(cluster.bootstrap).connected():
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "orders-7")
