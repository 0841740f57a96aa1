"""The stream writer of the exactly-once sink; `foreach_batch` has the function for foreachBatch.

Tasks write and flush (`task`); the driver decides and commits (`commit`). docs/exactly-once.md has the design.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from ottla.protocol.errors import KafkaError
from ottla.spark.data_loss import warn
from ottla.spark.options import OptionError
from ottla.spark.sink.commit import BatchCommit, TaskResult
from ottla.spark.sink.decision import BookkeepingError
from ottla.spark.sink.task import ExactlyOnceTask, TaskAttempt
from ottla.spark.sink.writer import SinkPlan, Written

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import WriterCommitMessage

    from ottla.spark.sink.checkpoint import CheckpointMark


@dataclass
class WrittenOnce(Written):
    """The commit message of one task, with its open transactions."""

    attempt: TaskAttempt | None = None
    result: TaskResult | None = None


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """Write each row of a query once, as read_committed consumers see it."""

    task = ExactlyOnceTask
    batch_commit = BatchCommit

    def __init__(self, plan: SinkPlan, mark: CheckpointMark | None = None) -> None:
        self.plan = plan
        self.mark = mark

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenOnce:
        """Write one task's rows and leave them uncommitted."""
        attempt = TaskAttempt.here()
        result = self.task(self.plan, attempt).run(iterator)
        rows = sum(entry.rows for entry in result.transactions)
        return WrittenOnce(rows, result.skipped, attempt, result)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Decide which transactions are the batch, and commit them; or finish an earlier run's decision."""
        attempt, results = _results(messages)
        if attempt is None:
            raise RuntimeError(f"batch {batchId} has no commit message, so its query is not known")
        self._batch_commit(attempt).commit(batchId, results)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Abort the transactions of finished tasks, so that readers need not wait. Nothing depends on it.

        Spark also calls it when `commit` failed, so what is decided must stay.
        """
        attempt, results = _results(messages)
        if attempt is not None:
            try:
                self._batch_commit(attempt).abandon(batchId, results)
            except (KafkaError, OptionError, BookkeepingError) as error:
                warn("ottla", f"transactions of batch {batchId} stay open until their timeout: {error}")

    def _batch_commit(self, attempt: TaskAttempt) -> BatchCommit:
        return make_commit(self.plan, attempt.query, attempt.run, self.batch_commit, self.mark)


def _results(messages: list[WriterCommitMessage | None]) -> tuple[TaskAttempt | None, list[TaskResult]]:
    """Return one attempt, which has query and run, and the results of all tasks."""
    written = [message for message in messages if isinstance(message, WrittenOnce)]
    attempt = next((message.attempt for message in written if message.attempt is not None), None)
    return attempt, [message.result for message in written if message.result is not None]


def make_commit(
    plan: SinkPlan,
    query: str,
    run: str,
    kind: type[BatchCommit] = BatchCommit,
    mark: CheckpointMark | None = None,
) -> BatchCommit:
    """Return the commit of a query's batches, with the settings of a plan."""
    return kind(
        plan.connected,
        lambda client, name: plan.producer(client, transactional_id=name),
        query,
        run=run,
        topic=plan.topic,
        mark=mark,
    )
