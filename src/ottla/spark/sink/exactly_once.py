"""The exactly-once sink: a transaction per task holds the rows of a micro-batch and the number of the batch.

docs/exactly-once.md has the design and every crash point. In short, an attempt of a task

1. fences every earlier attempt (InitProducerId with the transactional id of query and task),
2. checks whether the batch was committed (the offset of the task's bookkeeping group, stable reads only),
3. sends its rows, records batch and fingerprint in that group, and commits: one transaction for all three.

The driver, which alone knows how many tasks a batch has, then checks for tasks of an earlier run that no longer exist.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from ottla.client.connection import ConnectionFailedError
from ottla.client.groups import list_groups
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from ottla.spark.data_loss import warn
from ottla.spark.sink.rows import OutgoingRecord, rows_of
from ottla.spark.sink.writer import SinkPlan, Written

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import WriterCommitMessage

    from ottla.client.client import Client
    from ottla.client.producer import Producer

_PREFIX: Final = "ottla-sink"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_RUN_PROPERTY: Final = "spark.jobGroup.id"  # changes with each start of a query
_NOT_MINE: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
_OFFSET_FETCH: Final = 9  # from 10 on topics have ids in attempt of names


class RowsNotReproducedError(RuntimeError):
    """A batch ran again and a task has other rows than those that are committed."""


class TakenOverError(RuntimeError):
    """Another attempt took over a task's transaction, or the broker aborted it."""


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """The query, batch and task number of this attempt."""

    query: str
    batch: int
    task: int
    run: str = ""

    @property
    def transactional_id(self) -> str:
        """The same id for every attempt and every batch; also the name of the bookkeeping group."""
        return f"{_PREFIX}-{self.query}-{self.task}"

    @classmethod
    def here(cls) -> TaskAttempt:
        """Return the task that this Python worker runs."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query, batch = (context and context.getLocalProperty(name) for name in (_QUERY_PROPERTY, _BATCH_PROPERTY))
        if context is None or query is None or batch is None:
            raise RuntimeError("exactlyOnce needs a task of a streaming query, with a query id and a batch id")
        return cls(query, int(batch), context.partitionId(), context.getLocalProperty(_RUN_PROPERTY) or "")


@dataclass(slots=True)
class Fingerprint:
    """What a task wrote, in any order: the number of rows, a sum over their destinations, one over their values.

    A row's destination is its topic, partition column and key, and its value if it has no key. Values of rows with keys
    are summed apart: they may differ harmlessly (a sum of floating-point numbers in another order).
    """

    rows: int = 0
    total: int = 0
    values: int = 0

    def add(self, row: OutgoingRecord) -> None:
        """Add one row."""
        destination = f"{row.topic}/{'' if row.partition is None else row.partition}/{row.key is None:d}".encode()
        value = row.value or b""
        self.rows += 1
        checksum = zlib.crc32(value if row.key is None else row.key, zlib.crc32(destination))
        self.total = (self.total + checksum) & (2**64 - 1)
        self.values = (self.values + zlib.crc32(value, zlib.crc32(row.key or b""))) & (2**64 - 1)

    def __str__(self) -> str:
        return f"{self.rows}:{self.total:x}"


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch that a task has committed, the fingerprint of its rows, and the run."""

    batch: int
    fingerprint: str
    values: str = ""
    run: str = ""

    @classmethod
    def parse(cls, offset: int, metadata: str) -> Committed:
        """Parse a group's commit."""
        rows, total, values, run = (*metadata.split(":", 3), "", "", "", "")[:4]
        return cls(offset - 1, f"{rows}:{total}", values, run)

    @property
    def rows(self) -> str:
        """The number of rows, as text."""
        return self.fingerprint.partition(":")[0]


@dataclass
class WrittenOnce(Written):
    """A task's commit message; `first` if it is the task's first batch of this run with a commit."""

    query: str = ""
    first: bool = False


class ExactlyOnceTask:
    """One attempt at one task; each step is a method, so that a test can kill the process around it."""

    def __init__(self, plan: SinkPlan, attempt: TaskAttempt) -> None:
        self.plan = plan
        self.attempt = attempt

    def run(self, rows: Iterator[OutgoingRecord]) -> Written:
        """Write the rows unless an earlier attempt committed them."""
        with self.plan.connected() as client:
            first = next(rows, None)
            if first is None:
                # Nothing to write and nothing to fence; but an earlier attempt must not have committed rows.
                return self.finish(self.last_committed(client), Fingerprint())
            producer = self.plan.producer(
                client, transactional_id=self.attempt.transactional_id, first_partition=self.attempt.task
            )
            self.fence(producer)
            before = self.last_committed(client)
            written = Fingerprint()
            if before is not None and before.batch >= self.attempt.batch:
                for row in _chain(first, rows):
                    written.add(row)
                return self.finish(before, written)
            try:
                for row in _chain(first, rows):
                    self.send(producer, row)
                    written.add(row)
                self.flush(producer)
                self.record(producer, first.topic, written)
            except BaseException as error:
                _abort(producer)
                self._explain(error)
                raise
            try:
                self.commit(producer)
            except KafkaError as error:
                self._explain(error)
                raise
            return WrittenOnce(
                written.rows, query=self.attempt.query, first=before is None or before.run != self.attempt.run
            )

    def _explain(self, error: BaseException) -> None:
        """Turn fencing errors into `TakenOverError`."""
        if isinstance(error, KafkaError) and error.code in _NOT_MINE:
            attempt = self.attempt
            raise TakenOverError(
                f"task {attempt.task} of batch {attempt.batch} of query {attempt.query} lost its transaction: another "
                "attempt took over, or it was open for longer than kafka.transaction.timeout.ms "
                f"({self.plan.transaction_timeout_ms}). The next attempt writes what is not committed"
            ) from error

    def fence(self, producer: Producer) -> None:
        """Fence every earlier attempt: when this returns, each is committed or never will be."""
        producer.initialize()

    def last_committed(self, client: Client) -> Committed | None:
        """Return the last batch that this task committed in any attempt."""
        group = self.attempt.transactional_id

        def fetch() -> Committed | None:
            connection = client.node(client.coordinator(group))
            version = min(connection.best_version(9), _OFFSET_FETCH)
            if version < 8:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "exactlyOnce needs Apache Kafka 3.0 or newer.")
            request = OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=group, topics=None)], require_stable=True
            )
            response = connection.send(request, OffsetFetchResponse, version=version).groups[0]
            if response.error_code:
                raise KafkaError(response.error_code, f"offsets of {group}")
            latest = None
            for topic in response.topics:
                for partition in topic.partitions:
                    if partition.error_code:
                        raise KafkaError(partition.error_code, f"offsets of {group}")
                    offset = partition.committed_offset
                    if offset > 0 and (latest is None or offset > latest.batch + 1):
                        latest = Committed.parse(offset, partition.metadata or "")
            return latest

        def fetch_from_current_coordinator() -> Committed | None:
            try:
                return fetch()
            except (KafkaError, ConnectionFailedError):
                client.forget_coordinator(group)
                raise

        return client.retrying(fetch_from_current_coordinator)

    def send(self, producer: Producer, row: OutgoingRecord) -> None:
        """Add one row to the next produce batch."""
        producer.send(row.topic, row.key, row.value, row.headers, row.partition)

    def flush(self, producer: Producer) -> None:
        """Send all pending rows: they are acknowledged, and not committed."""
        producer.flush()

    def record(self, producer: Producer, topic: str, written: Fingerprint) -> None:
        """Commit the number of the next batch within the transaction, as the bookkeeping group's offset."""
        attempt = self.attempt
        metadata = f"{written}:{written.values:x}:{attempt.run}"
        producer.add_offsets(attempt.transactional_id, {(topic, 0): (attempt.batch + 1, metadata)})

    def commit(self, producer: Producer) -> None:
        """Commit rows and record together."""
        producer.commit()

    def finish(self, before: Committed | None, now: Fingerprint) -> Written:
        """Compare the rows of this run with those that are already committed."""
        attempt = self.attempt
        if before is None or before.batch < attempt.batch:
            return WrittenOnce(0, query=attempt.query)
        if before.batch > attempt.batch:
            raise RowsNotReproducedError(
                f"batch {attempt.batch} of query {attempt.query} was requested, but batch {before.batch} is "
                "committed: two runs share a checkpoint, or an old checkpoint was restored"
            )
        if before.fingerprint != str(now):
            raise RowsNotReproducedError(
                f"batch {attempt.batch} of query {attempt.query} ran again and task {attempt.task} has "
                f"{now.rows} rows ({now}) where {before.rows} ({before.fingerprint}) are "
                "committed: the plan does not give the same rows to the same task twice. This task wrote nothing. Make "
                "it reproducible (no rand, uuid or unordered limit; the same input files), or put .coalesce(1) before "
                "writeStream"
            )
        if before.values and before.values != f"{now.values:x}":
            warn(
                "ottla",
                f"batch {attempt.batch} of query {attempt.query} ran again and task {attempt.task} has the same keys "
                "with other values: the committed ones stay",
            )
        return WrittenOnce(now.rows, committed_before=True, query=attempt.query, first=before.run != attempt.run)


def check_tasks(plan: SinkPlan, query: str, tasks: int, batch: int) -> None:
    """Raise if a task that this batch no longer has is committed: its rows are now in other tasks as well."""
    prefix = f"{_PREFIX}-{query}-"
    with plan.connected() as client:
        for listed in client.retrying(lambda: list_groups(client)):
            number = listed.group.removeprefix(prefix)
            if not listed.group.startswith(prefix) or not number.isdigit() or int(number) < tasks:
                continue
            committed = ExactlyOnceTask(plan, TaskAttempt(query, batch, int(number))).last_committed(client)
            if committed is not None and committed.batch >= batch:
                raise RowsNotReproducedError(
                    f"batch {batch} of query {query} ran again with {tasks} tasks, and task {number} of an earlier "
                    f"run has committed {committed.rows} rows of it, which may now be in the topic twice: the plan "
                    "does not split a batch in the same way again (another number of cores, or other input files). "
                    f"Repair the topic, then `ottla group delete {listed.group}` lets the query continue"
                )


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """Write each row of a query once, as read_committed consumers see it."""

    task = ExactlyOnceTask

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one task's rows, unless an earlier attempt committed them."""
        return self.task(self.plan, TaskAttempt.here()).run(rows_of(iterator, self.plan.layout, self.plan.topic))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Check that the batch has as many tasks as in an earlier run.

        Every task has committed its own part. Only a run's first batch can be one that an earlier run left incomplete.
        """
        query = next(
            (message.query for message in messages if isinstance(message, WrittenOnce) and message.first), None
        )
        if query is not None:
            check_tasks(self.plan, query, len(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: committed parts are known by their batch id, the next attempt fences open ones."""


def _chain(first: OutgoingRecord, rest: Iterator[OutgoingRecord]) -> Iterator[OutgoingRecord]:
    yield first
    yield from rest


def _abort(producer: Producer) -> None:
    """Abort the transaction, so that readers need not wait for the next attempt or for the transaction timeout."""
    try:
        producer.abort()
    except (KafkaError, ConnectionFailedError):
        return
