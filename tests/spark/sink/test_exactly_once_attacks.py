"""The exactly-once sink under broker failures, long tasks, compaction, retention, concurrent runs and old checkpoints.

The tests run tasks and commits as Spark does, but without Spark. test_sink_crashes.py interrupts every request.
"""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from ottla.client.client import Client
from ottla.client.groups import delete_group, list_groups
from ottla.client.producer import Producer
from ottla.client.topics import create_topic, delete_records, delete_topic
from ottla.client.transactions import fence
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.options import OptionError
from ottla.spark.sink.bookkeeping import open_transactions, parse_name, read_decision
from ottla.spark.sink.checkpoint import CheckpointMark
from ottla.spark.sink.commit import (
    BatchCommit,
    DriverFencedError,
    RowsRemovedError,
    StaleCheckpointError,
    TaskResult,
    UnfinishedUpgradeError,
)
from ottla.spark.sink.decision import BookkeepingError, Decision, OffsetRange, SinkTransaction, other_slot, task_id
from ottla.spark.sink.exactly_once import ExactlyOnceWriter, WrittenOnce, make_commit
from ottla.spark.sink.task import ExactlyOnceTask, TakenOverError, TaskAttempt
from ottla.spark.sink.writer import SinkPlan
from ottla.testing import Cluster
from tests.ottla_node import OttlaNode
from tests.spark.consume import consume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["orders:2"]) as running:
        yield running


@pytest.fixture
def query() -> str:
    return str(uuid.uuid4())


def sink(bootstrap: str, **options: str) -> SinkPlan:
    given = {"kafka.bootstrap.servers": bootstrap, "topic": "orders", "exactlyOnce": "true", **options}
    schema = StructType().add("key", StringType()).add("value", StringType())
    return SinkPlan.parse(given, schema.add("topic", StringType()) if options.get("topic") == "" else schema)


def rows(numbers: range, value: str = "v") -> Iterator[pa.RecordBatch]:
    """Yield an Arrow batch for every five numbers."""
    for start in range(0, len(numbers), 5):
        chunk = numbers[start : start + 5]
        yield pa.RecordBatch.from_pydict({"key": [str(n) for n in chunk], "value": [f"{value}{n}" for n in chunk]})


def write(
    plan: SinkPlan, query: str, numbers: range, batch: int = 0, task: int = 0, attempt: int = 0, run: str = "one"
) -> TaskResult:
    return ExactlyOnceTask(plan, TaskAttempt(query, batch, task, attempt, run)).run(rows(numbers))


def commit(plan: SinkPlan, query: str, results: list[TaskResult], batch: int = 0, run: str = "one") -> Decision | None:
    return make_commit(plan, query, run).commit(batch, results)


def keys(bootstrap: str, topic: str = "orders") -> list[int]:
    return sorted(int(seen.key or b"") for seen in consume(bootstrap, topic))


@pytest.mark.parametrize(
    "api", ["InitProducerId", "AddPartitionsToTxn", "Produce", "DescribeTransactions", "TxnOffsetCommit", "EndTxn"]
)
@pytest.mark.parametrize("handled", [True, False])
def test_lost_response_neither_loses_nor_repeats_rows(cluster: Cluster, query: str, api: str, handled: bool) -> None:
    plan = sink(cluster.bootstrap)
    control = cluster.on(api, times=1).drop_connection(after_handling=handled)
    commit(plan, query, [write(plan, query, range(20))])
    assert control.wait()
    again = write(plan, query, range(20), run="two")
    assert again.skipped
    commit(plan, query, [again], run="two")
    assert keys(cluster.bootstrap) == list(range(20))


@pytest.mark.parametrize("step", ["fence", "check", "decide", "end"])
def test_broker_killed_during_commit_neither_loses_nor_repeats_rows(tmp_path: Path, query: str, step: str) -> None:
    """Kill the broker with SIGKILL before a step of the driver and restart it; the driver retries."""
    with OttlaNode(tmp_path / "data") as node:
        with Client(node.bootstrap) as client:
            create_topic(client, "orders", partitions=2)
        plan = sink(node.bootstrap, **{"kafka.request.timeout.ms": "120000"})
        done: list[str] = []

        class Attacked(BatchCommit):
            def __getattribute__(self, name: str) -> Any:
                if name == step and not done:
                    done.append(name)
                    node.kill()
                    node.start()
                return super().__getattribute__(name)

        results = [write(plan, query, range(10)), write(plan, query, range(10, 20), task=1)]
        make_commit(plan, query, "one", Attacked).commit(0, results)
        assert done
        commit(plan, query, [write(plan, query, range(20), run="two")], run="two")
        assert keys(node.bootstrap) == list(range(20))


def test_transactions_aborted_before_decision_are_copied(cluster: Cluster, query: str) -> None:
    """A batch that takes longer than the transaction timeout."""
    plan = sink(cluster.bootstrap, **{"kafka.compression.type": "zstd"})
    results = [write(plan, query, range(10)), write(plan, query, range(10, 20), task=1)]
    cluster.expire_transaction(task_id(query, 0))
    decision = commit(plan, query, results)
    assert decision is not None
    assert [entry.transactional_id for entry in decision.transactions] == [task_id(query, 1)]
    assert keys(cluster.bootstrap) == list(range(20))


def test_transactions_aborted_after_decision_are_copied_once(cluster: Cluster, query: str) -> None:
    """A driver that stands still for longer than the timeout, after it ended one of three transactions."""
    plan = sink(cluster.bootstrap)

    class Paused(BatchCommit):
        def end(self, client: Client, transactions: Any) -> list[SinkTransaction]:
            ended = super().end(client, transactions[:1])
            for entry in transactions[1:]:
                cluster.expire_transaction(entry.transactional_id)
            assert not ended
            raise KeyboardInterrupt

    results = [write(plan, query, range(10 * task, 10 * task + 10), task=task) for task in range(3)]
    with pytest.raises(KeyboardInterrupt):
        make_commit(plan, query, "one", Paused).commit(0, results)
    ExactlyOnceWriter(plan).abort([WrittenOnce(10, False, TaskAttempt(query, 0, 0), result) for result in results], 0)
    again = write(plan, query, range(100, 200), run="two")
    assert again.skipped
    for _ in range(2):
        commit(plan, query, [again], run="two")
        assert keys(cluster.bootstrap) == list(range(30))


def test_abort_after_failed_commit_keeps_decided_transactions(cluster: Cluster, query: str) -> None:
    plan = sink(cluster.bootstrap)

    class Failing(BatchCommit):
        def end(self, client: Client, transactions: Any) -> list[SinkTransaction]:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    result = write(plan, query, range(10))
    message = WrittenOnce(10, False, TaskAttempt(query, 0, 0), result)
    writer = ExactlyOnceWriter(plan)
    writer.batch_commit = Failing  # type: ignore[misc]
    with pytest.raises(KafkaError):
        writer.commit([message], 0)
    writer.abort([message, None], 0)
    with Client(cluster.bootstrap) as client:
        assert open_transactions(client, query) == [task_id(query, 0)]
    later = WrittenOnce(5, False, TaskAttempt(query, 1, 1), write(plan, query, range(5), batch=1, task=1))
    writer.abort([later], 1)
    with Client(cluster.bootstrap) as client:
        assert open_transactions(client, query) == [task_id(query, 0)], "what is not decided is aborted at once"
    ExactlyOnceWriter(plan).commit([message], 0)
    assert keys(cluster.bootstrap) == list(range(10))


def test_retried_and_speculated_attempts_are_written_once(cluster: Cluster, query: str) -> None:
    plan = sink(cluster.bootstrap)
    slow = write(plan, query, range(100, 110))
    chosen = write(plan, query, range(10), attempt=1)
    assert slow.transactions[0].transactional_id != chosen.transactions[0].transactional_id
    commit(plan, query, [chosen])
    assert keys(cluster.bootstrap) == list(range(10))
    with Client(cluster.bootstrap) as client:
        assert open_transactions(client, query) == [], "the attempt that Spark dropped must not hold back readers"


def test_zombie_task_of_same_slot_cannot_lose_rows(cluster: Cluster, query: str) -> None:
    """A late attempt with the same transactional id aborts the transaction of the attempt that Spark chose."""
    plan = sink(cluster.bootstrap)
    chosen = write(plan, query, range(10))
    write(plan, query, range(100, 110), attempt=2)
    commit(plan, query, [chosen])
    assert keys(cluster.bootstrap) == list(range(10))


def test_attempt_that_lost_its_transaction_fails_with_reason(cluster: Cluster, query: str) -> None:
    plan = sink(cluster.bootstrap)

    class Fenced(ExactlyOnceTask):
        def flush(self, producer: Producer) -> None:
            with Client(cluster.bootstrap) as client:
                fence(client, task_id(query, 0))
            super().flush(producer)

    with pytest.raises(TakenOverError, match="another attempt took over"):
        Fenced(plan, TaskAttempt(query, 0, 0)).run(rows(range(20)))
    assert keys(cluster.bootstrap) == []


@pytest.mark.parametrize("stalled", [False, True])
def test_task_longer_than_timeout_uses_several_transactions(cluster: Cluster, query: str, stalled: bool) -> None:
    """With `stalled`, the input gives no row until the transaction has timed out with unsent rows behind it."""
    plan = sink(cluster.bootstrap)

    class Slow(ExactlyOnceTask):
        clock = 0.0
        sent = 0

        def now(self) -> float:
            return self.clock

        def send(self, producer: Producer, row: Any) -> None:
            self.sent += 1
            super().send(producer, row)
            if self.sent == 5:
                producer.flush()
            if self.sent == 8:
                self.clock += 850.0 if stalled else 700.0
                if stalled:
                    cluster.expire_transaction(task_id(query, 0))

    result = Slow(plan, TaskAttempt(query, 0, 0)).run(rows(range(20)))
    assert [entry.rows for entry in result.transactions] == ([5, 15] if stalled else [8, 12])
    commit(plan, query, [result])
    assert keys(cluster.bootstrap) == list(range(20))


def test_too_long_timeout_names_option(cluster: Cluster, query: str) -> None:
    plan = sink(cluster.bootstrap, **{"kafka.transaction.timeout.ms": "900001"})
    with pytest.raises(OptionError, match=r"transaction\.max\.timeout\.ms is below 900001: set the option kafka\."):
        write(plan, query, range(5))


def compacted(cluster: Cluster) -> None:
    cluster.create_topic(
        "state",
        1,
        configs={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": "0",
            "min.compaction.lag.ms": "0",
        },
    )


def compact_away(cluster: Cluster, plan: SinkPlan) -> None:
    """Let the cleaner remove the rows of aborted transactions."""
    cluster.roll_segments("state")
    with Client(cluster.bootstrap) as client:
        producer = Producer(client)
        producer.send("state", b"-1", b"newer")
        producer.flush()
    cluster.roll_segments("state")
    cluster.compact("state")


def test_compaction_before_decision_fails_and_next_start_writes(cluster: Cluster, query: str) -> None:
    compacted(cluster)
    plan = sink(cluster.bootstrap, topic="state")
    result = write(plan, query, range(10))
    cluster.expire_transaction(task_id(query, 0))
    compact_away(cluster, plan)
    with pytest.raises(RowsRemovedError, match=r"10 rows of aborted.*Nothing of the batch is committed"):
        commit(plan, query, [result])
    commit(plan, query, [write(plan, query, range(10), run="two")], run="two")
    assert keys(cluster.bootstrap, "state") == [-1, *range(10)]


def test_compaction_after_decision_is_reported_and_loses_nothing(cluster: Cluster, query: str) -> None:
    compacted(cluster)
    plan = sink(cluster.bootstrap, topic="state")

    class Paused(BatchCommit):
        def end(self, client: Client, transactions: Any) -> list[SinkTransaction]:
            super().end(client, transactions[:1])
            raise KeyboardInterrupt

    results = [write(plan, query, range(3)), write(plan, query, range(3, 10), task=1)]
    with pytest.raises(KeyboardInterrupt):
        make_commit(plan, query, "one", Paused).commit(0, results)
    cluster.expire_transaction(task_id(query, 1))
    compact_away(cluster, plan)
    again = write(plan, query, range(10), run="two")
    with pytest.raises(
        RowsRemovedError, match=r"removed 7 of its rows. The next start writes the whole batch .* 3 rows"
    ):
        commit(plan, query, [again], run="two")
    commit(plan, query, [write(plan, query, range(10), run="three")], run="three")
    assert sorted(set(keys(cluster.bootstrap, "state"))) == [-1, *range(10)]


def test_rows_deleted_by_user_are_reported(cluster: Cluster, query: str, capfd: pytest.CaptureFixture[str]) -> None:
    plan = sink(cluster.bootstrap)

    class Paused(BatchCommit):
        def end(self, client: Client, transactions: Any) -> list[SinkTransaction]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_commit(plan, query, "one", Paused).commit(0, [write(plan, query, range(10))])
    cluster.expire_transaction(task_id(query, 0))
    kept = [int(seen.key or b"") for seen in consume(cluster.bootstrap, "orders", committed=False) if seen.partition]
    with Client(cluster.bootstrap) as client:
        delete_records(client, "orders", {0: -1})
    commit(plan, query, [write(plan, query, range(10), run="two")], run="two")
    assert keys(cluster.bootstrap) == sorted(kept)
    assert f"{10 - len(kept)} rows were deleted from orders-0" in capfd.readouterr().err


def test_copied_or_restored_checkpoint_is_refused(cluster: Cluster, query: str) -> None:
    plan = sink(cluster.bootstrap)
    for batch in range(2):
        commit(plan, query, [write(plan, query, range(10 * batch, 10 * batch + 10), batch=batch)], batch)
    old = write(plan, query, range(10), run="copy")
    assert old.skipped
    with pytest.raises(StaleCheckpointError, match=r"batch 0 .* but batch 1 is decided: an old checkpoint .* retire"):
        commit(plan, query, [old], run="copy")
    assert keys(cluster.bootstrap) == list(range(20))


@pytest.fixture
def unverified() -> Iterator[Cluster]:
    """A cluster that accepts rows on partitions that their coordinator does not know, so that they get no marker."""
    with Cluster(topics=["orders:2"], configs={"transaction.partition.verification.enable": "false"}) as running:
        yield running


class Forgotten(ExactlyOnceTask):
    """A task whose second partition gets no marker, as Kafka may do in a restart."""

    def fence(self, producer: Producer) -> None:
        super().fence(producer)
        add = producer._add_partitions
        producer._add_partitions = lambda partitions: add([entry for entry in partitions if entry[1] == 0])  # type: ignore


def test_committed_rows_without_marker_are_written_again(
    unverified: Cluster, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.spark.sink.commit._MARKER_PATIENCE", 0.5)
    plan = sink(unverified.bootstrap)
    result = Forgotten(plan, TaskAttempt(query, 0, 0)).run(rows(range(20)))
    commit(plan, query, [result])
    assert keys(unverified.bootstrap) == list(range(20))


def test_stale_rows_without_marker_are_not_committed(unverified: Cluster, query: str) -> None:
    """The rows of a first attempt hang on one partition, where the next attempt has the same producer id."""
    plan = sink(unverified.bootstrap)
    Forgotten(plan, TaskAttempt(query, 0, 0)).run(rows(range(100, 120)))
    result = write(plan, query, range(20), run="two")
    decision = commit(plan, query, [result], run="two")
    assert decision is not None
    assert not decision.transactions, "they were copied"
    assert keys(unverified.bootstrap) == list(range(20))


def test_decision_without_marker_does_not_stop_query(unverified: Cluster, query: str) -> None:
    plan = sink(unverified.bootstrap, **{"kafka.request.timeout.ms": "1000"})
    with Client(unverified.bootstrap) as client:
        producer = Producer(client, transactional_id=f"ottla-sink-{query}")
        producer.initialize()
        producer._groups.add(f"ottla-sink-{query}")  # the coordinator never hears of the group
        producer.add_offsets(f"ottla-sink-{query}", {("orders", 0): (1, "aborted")})
    commit(plan, query, [write(plan, query, range(20))])
    assert keys(unverified.bootstrap) == list(range(20))


def test_driver_fenced_while_it_decides_fails_with_reason(cluster: Cluster, query: str) -> None:
    plan = sink(cluster.bootstrap)

    class Overtaken(BatchCommit):
        def decide(self, *arguments: Any) -> Decision:
            commit(plan, query, [write(plan, query, range(10), run="two", task=1)], run="two")
            return super().decide(*arguments)

    result = write(plan, query, range(100, 110))
    with pytest.raises(DriverFencedError, match="another driver of the same query took over"):
        make_commit(plan, query, "one", Overtaken).commit(0, [result])
    assert keys(cluster.bootstrap) == list(range(10))


def test_batch_begun_by_earlier_version_is_refused(cluster: Cluster, query: str) -> None:
    """The earlier version had a group per task, with the batch as offset, in the transaction with the rows."""
    plan = sink(cluster.bootstrap)
    with Client(cluster.bootstrap) as client:
        producer = Producer(client, transactional_id=task_id(query, 0))
        producer.initialize()
        for number in range(4):
            producer.send("orders", str(number).encode(), b"v")
        producer.add_offsets(task_id(query, 0), {("orders", 0): (8, "4:aa:bb:run")})
        producer.commit()
    with pytest.raises(UnfinishedUpgradeError, match=r"batch 7 .* 4 rows of task 0 are in the topic.*sink retire"):
        commit(plan, query, [write(plan, query, range(10), batch=7)], 7)
    assert keys(cluster.bootstrap) == list(range(4))
    commit(plan, query, [write(plan, query, range(4, 10), batch=8)], 8)  # batch 7 was complete
    assert keys(cluster.bootstrap) == list(range(10))


def test_expired_bookkeeping_of_unfinished_batch_is_refused(cluster: Cluster, query: str, tmp_path: Path) -> None:
    plan = sink(cluster.bootstrap)
    began = tmp_path / "offsets" / "5"
    began.parent.mkdir()
    began.touch()
    mark = CheckpointMark.of({"checkpointlocation": tmp_path.as_uri()})
    assert mark == CheckpointMark.of({"checkpointLocation": str(tmp_path)})
    assert CheckpointMark.of({"checkpointlocation": "s3a://bucket/cp"}) is None

    def commit_marked(run: str) -> None:
        results = [write(plan, query, range(10), batch=5, run=run)]
        make_commit(plan, query, run, mark=mark).commit(5, results)

    commit_marked("one")
    assert (tmp_path / "ottla-sink").exists()
    with Client(cluster.bootstrap) as client:
        delete_group(client, f"ottla-sink-{query}")
    os.utime(began, (1, 1))
    with pytest.raises(BookkeepingError, match=r"batch 5 .* days ago and is unfinished.*delete .*ottla-sink and start"):
        commit_marked("two")
    assert keys(cluster.bootstrap) == list(range(10))
    (tmp_path / "ottla-sink").unlink()
    commit_marked("three")
    assert len(keys(cluster.bootstrap)) == 20, "on request the batch is written again"


def test_deleted_bookkeeping_fails_batch_that_skipped(cluster: Cluster, query: str) -> None:
    plan = sink(cluster.bootstrap)
    with pytest.raises(BookkeepingError, match=r"tasks \[3\] of batch 0 .* was deleted while the batch ran"):
        commit(plan, query, [TaskResult(3, skipped=True)])


def test_batch_without_rows_is_decided(cluster: Cluster, query: str) -> None:
    plan = sink(cluster.bootstrap)
    commit(plan, query, [write(plan, query, range(0))])
    assert write(plan, query, range(10), run="zombie").skipped
    assert keys(cluster.bootstrap) == []


def test_query_has_one_group_and_few_transactional_ids(cluster: Cluster, query: str) -> None:
    plan = sink(cluster.bootstrap)
    for batch in range(5):
        results = [
            write(plan, query, range(batch * 9 + task * 3, batch * 9 + task * 3 + 3), batch, task) for task in range(3)
        ]
        commit(plan, query, results, batch)
    with Client(cluster.bootstrap) as client:
        assert [group.group for group in list_groups(client)] == [f"ottla-sink-{query}"]
        decision = read_decision(client, query)
    assert decision is not None
    assert (decision.batch, decision.rows, len(decision.transactions)) == (4, 9, 3)
    assert keys(cluster.bootstrap) == list(range(45))


def test_recreated_topic_holds_only_new_rows(cluster: Cluster, query: str) -> None:
    plan = sink(cluster.bootstrap)
    commit(plan, query, [write(plan, query, range(20))])
    with Client(cluster.bootstrap) as client:
        delete_topic(client, "orders")
        with pytest.raises(OptionError, match=r"topic orders is not on .*; create it first: ottla topic create orders"):
            write(plan, query, range(20, 40), batch=1)
        create_topic(client, "orders", partitions=1)
    commit(plan, query, [write(plan, query, range(20, 40), batch=1, run="two")], 1, "two")
    assert keys(cluster.bootstrap) == list(range(20, 40))


def test_missing_partition_is_not_a_missing_topic(cluster: Cluster) -> None:
    with pytest.raises(KafkaError, match="orders-7"), sink(cluster.bootstrap).connected():
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "orders-7")


def test_decision_of_thousands_of_tasks_is_stored(cluster: Cluster, query: str) -> None:
    plan = sink(cluster.bootstrap)
    transactions = tuple(SinkTransaction(task_id(query, n), 5000 + n * n % 997, n % 7, n * 31) for n in range(3000))
    decision = Decision(6, "run", 10**6, 123, ("orders",), transactions, {("orders", 1): OffsetRange(5, 2**40)})
    chunks = decision.chunks(query)
    assert len(chunks) > 1
    assert max(map(len, chunks)) <= 4096
    assert Decision.parse(query, 6, chunks) == decision
    writer = make_commit(plan, query, "run")
    with Client(cluster.bootstrap) as client:
        writer.record(client, writer.fence(client), decision)
        assert read_decision(client, query) == decision
        with pytest.raises(BookkeepingError, match="cannot be read"):
            Decision.parse(query, 6, chunks[:1])


def test_names_of_groups_and_ids_are_recognised(query: str) -> None:
    assert other_slot(task_id(query, 3)) == task_id(query, 3, 1)
    assert other_slot(task_id(query, 3, 1)) == task_id(query, 3)
    assert other_slot(task_id(query, 3, 0, 2)) == task_id(query, 3, 1, 2)
    assert parse_name(task_id(query, 3, 1, 2)) == (query, 3)
    assert parse_name(f"ottla-sink-{query}.4") == (query, None)
    assert parse_name(f"ottla-sink-{query}@orders-12") == (f"{query}@orders", 12)
    assert parse_name("ottla-sink-orders") is None
