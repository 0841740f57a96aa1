"""An executor's side of the exactly-once sink: one attempt at one task writes its rows and leaves them uncommitted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.client.connection import ConnectionFailedError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.options import OptionError
from ottla.spark.sink.bookkeeping import decided_batch
from ottla.spark.sink.commit import FENCED, TaskResult
from ottla.spark.sink.decision import UNKNOWN_RANGE, OffsetRange, SinkTransaction, task_id
from ottla.spark.sink.rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa  # type: ignore[import-untyped]

    from ottla.client.client import Client, TopicPartition
    from ottla.client.producer import Delivered, Producer
    from ottla.spark.sink.rows import OutgoingRecord
    from ottla.spark.sink.writer import SinkPlan

_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_RUN_PROPERTY: Final = "spark.jobGroup.id"  # changes with each start of a query
_AGE_LIMIT: Final = 0.7  # of the transaction timeout; later rows go to another transaction
_DEAD_LIMIT: Final = 0.9  # nothing more is sent in a transaction of this age


class TakenOverError(RuntimeError):
    """Another attempt took over a task's transactional id, or the broker aborted the transaction."""


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """The query, batch, task and attempt number, and the start (run) of the query."""

    query: str
    batch: int
    task: int
    attempt: int = 0
    run: str = ""

    @classmethod
    def here(cls) -> TaskAttempt:
        """Return the attempt that this Python worker runs."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query, batch = (context and context.getLocalProperty(name) for name in (_QUERY_PROPERTY, _BATCH_PROPERTY))
        if context is None or query is None or batch is None:
            raise RuntimeError("exactlyOnce needs a task of a streaming query, with a query id and a batch id")
        run = context.getLocalProperty(_RUN_PROPERTY) or ""
        return cls(query, int(batch), context.partitionId(), context.attemptNumber(), run)

    def transactional_id(self, segment: int) -> str:
        """Return the id of one of this attempt's transactions.

        Spark runs at most two attempts of a task at once; they have different numbers, so different slots.
        """
        return task_id(self.query, self.task, self.attempt % 2, segment)


class ExactlyOnceTask:
    """One attempt at one task; each step is a method, so that a test can kill the process around it."""

    def __init__(self, plan: SinkPlan, attempt: TaskAttempt) -> None:
        self.plan = plan
        self.attempt = attempt
        self.result = TaskResult(attempt.task)
        self._rows = 0

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write the rows and flush them, or read and drop them if the batch is decided."""
        rows = rows_of(batches, self.plan.layout, self.plan.topic)
        with self.plan.connected() as client:
            if self.is_decided(client):
                self.result.skipped = True
                for _ in batches:  # operators before the sink, such as state stores, must see their whole input
                    pass
                return self.result
            first = next(rows, None)
            if first is not None:
                self._write(client, first, rows)
        return self.result

    def is_decided(self, client: Client) -> bool:
        """Return whether a decision about this batch exists, made by an earlier run."""
        decided = decided_batch(client, self.attempt.query)
        return decided is not None and decided >= self.attempt.batch

    def _write(self, client: Client, row: OutgoingRecord | None, rows: Iterator[OutgoingRecord]) -> None:
        """Fill one transaction after the other: a second one only if the first one gets near its timeout."""
        segment = 0
        unsent: list[tuple[TopicPartition, bytearray]] = []
        while row is not None or unsent:
            transactional_id = self.attempt.transactional_id(segment)
            producer = self.plan.producer(
                client,
                transactional_id=transactional_id,
                first_partition=self.attempt.task,
                delivered=self._delivered,
            )
            self.fence(producer)
            try:
                for partition, batch in unsent:
                    producer.send_batch(*partition, batch)
                row, unsent = self._fill(producer, row, rows)
            except BaseException as error:
                self._abort(producer)
                self._explain(error)
                raise
            entry = SinkTransaction(transactional_id, *producer.identity, producer.records_sent)
            self.result.transactions.append(entry)
            segment += 1

    def _fill(
        self, producer: Producer, row: OutgoingRecord | None, rows: Iterator[OutgoingRecord]
    ) -> tuple[OutgoingRecord | None, list[tuple[TopicPartition, bytearray]]]:
        """Send rows until there are no more, or until the transaction gets old.

        Return the first row that was not sent, and the batches that must not be sent because the transaction has
        probably timed out: the input gave no row for that long.
        """
        timeout = self.plan.transaction_timeout_ms / 1000
        opened: float | None = None  # a transaction starts with the first batch that is sent
        while row is not None:
            if opened is None:
                opened = self.now() if producer.in_transaction else None
            elif self.now() - opened > timeout * _AGE_LIMIT:
                break
            self.send(producer, row)
            row = next(rows, None)
        if opened is not None and self.now() - opened > timeout * _DEAD_LIMIT:
            return row, producer.take_unsent()
        self.flush(producer)
        return row, []

    def now(self) -> float:
        """Return the seconds of a clock that is never set back."""
        return time.monotonic()

    def _delivered(self, delivered: Delivered) -> None:
        partition = delivered.topic, delivered.partition
        offset = delivered.base_offset
        offsets = OffsetRange(offset, offset + delivered.records - 1) if offset >= 0 else UNKNOWN_RANGE
        before = self.result.ranges.get(partition)
        self.result.ranges[partition] = offsets if before is None else before.union(offsets)

    def _abort(self, producer: Producer) -> None:
        """Abort, so that readers need not wait for the next attempt or for the transaction timeout."""
        try:
            producer.abort()
        except (KafkaError, ConnectionFailedError):
            return

    def _explain(self, error: BaseException) -> None:
        """Turn fencing errors into `TakenOverError`."""
        if isinstance(error, KafkaError) and error.code in FENCED:
            attempt = self.attempt
            raise TakenOverError(
                f"task {attempt.task} of batch {attempt.batch} of query {attempt.query} lost its transaction: another "
                "attempt took over, or no row could be sent for kafka.transaction.timeout.ms "
                f"({self.plan.transaction_timeout_ms}). The next attempt writes the rows of the task"
            ) from error

    def fence(self, producer: Producer) -> None:
        """Open a transactional id: abort and fence what an earlier attempt left open."""
        try:
            producer.initialize()
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            timeout = self.plan.transaction_timeout_ms
            raise OptionError(
                f"the brokers' transaction.max.timeout.ms is below {timeout}: set the option "
                "kafka.transaction.timeout.ms to at most that"
            ) from error

    def send(self, producer: Producer, row: OutgoingRecord) -> None:
        """Add one row to the next produce batch."""
        producer.send(row.topic, row.key, row.value, row.headers, row.partition)

    def flush(self, producer: Producer) -> None:
        """Send all pending rows: they are acknowledged, and not committed."""
        producer.flush()
