"""The exactly-once sink: each task's rows of a micro-batch in one transaction that also says which batch it was.

docs/exactly-once.md has the design and what happens at each crash point. In short, an attempt of a task

1. fences every earlier attempt (InitProducerId of the transactional id of query and task),
2. looks whether the batch was committed (the offset of the task's bookkeeping group, stable reads only),
3. sends its rows, records batch and fingerprint in that group, and commits: one transaction for all three.

The driver, which alone knows how many tasks a batch has, then looks for tasks of an earlier run that it has no more.
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
_RUN_PROPERTY: Final = "spark.jobGroup.id"  # another one each time that a query is started
_NOT_MINE: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
_OFFSET_FETCH: Final = 9  # from 10 on topics have ids in place of names


class RowsNotReproducedError(RuntimeError):
    """A batch was run again and gave a task other rows than those that are committed."""


class TakenOverError(RuntimeError):
    """Somebody else goes on with a task's transaction, or the broker has ended it."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Which part of which micro-batch of which query."""

    query: str
    batch: int
    task: int
    run: str = ""

    @property
    def transactional_id(self) -> str:
        """The same for every attempt and every batch; also the name of the bookkeeping group."""
        return f"{_PREFIX}-{self.query}-{self.task}"

    @classmethod
    def here(cls) -> TaskPlace:
        """The task that this Python worker runs."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query, batch = (context and context.getLocalProperty(name) for name in (_QUERY_PROPERTY, _BATCH_PROPERTY))
        if context is None or query is None or batch is None:
            raise RuntimeError("exactlyOnce works in a task of a streaming query, which says query and batch id")
        return cls(query, int(batch), context.partitionId(), context.getLocalProperty(_RUN_PROPERTY) or "")


@dataclass(slots=True)
class Fingerprint:
    """What a task wrote, whatever the order: how many rows, a sum over where they went, and one over their values.

    A row goes by topic, partition column and key, and by its value where it has no key. The values of rows with keys
    are counted apart: they may differ in a harmless way (a sum of floating-point numbers taken in another order).
    """

    rows: int = 0
    total: int = 0
    values: int = 0

    def add(self, row: OutgoingRecord) -> None:
        """Count one row."""
        said = f"{row.topic}/{'' if row.partition is None else row.partition}/{row.key is None:d}".encode()
        value = row.value or b""
        self.rows += 1
        self.total = (self.total + zlib.crc32(value if row.key is None else row.key, zlib.crc32(said))) & (2**64 - 1)
        self.values = (self.values + zlib.crc32(value, zlib.crc32(row.key or b""))) & (2**64 - 1)

    def __str__(self) -> str:
        return f"{self.rows}:{self.total:x}"


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch that a task has committed, with the fingerprint of its rows, and the run that did."""

    batch: int
    fingerprint: str
    values: str = ""
    run: str = ""

    @classmethod
    def parse(cls, offset: int, metadata: str) -> Committed:
        """Read a group's commit."""
        rows, total, values, run = (*metadata.split(":", 3), "", "", "", "")[:4]
        return cls(offset - 1, f"{rows}:{total}", values, run)

    @property
    def rows(self) -> str:
        """How many rows, as text."""
        return self.fingerprint.partition(":")[0]


@dataclass
class WrittenOnce(Written):
    """What a task says of itself; `first` where it is the task's first batch of this run that has a commit."""

    query: str = ""
    first: bool = False


class ExactlyOnceTask:
    """One attempt at one task; each step is a method, so that a test can end the process before or after it."""

    def __init__(self, plan: SinkPlan, place: TaskPlace) -> None:
        self.plan = plan
        self.place = place

    def run(self, rows: Iterator[OutgoingRecord]) -> Written:
        """Write the rows if no attempt before this one did."""
        with self.plan.connected() as client:
            first = next(rows, None)
            if first is None:
                # Nothing to write, so nothing to fence; but rows that are committed must not have vanished.
                return self.finish(self.look(client), Fingerprint())
            producer = self.plan.producer(
                client, transactional_id=self.place.transactional_id, first_partition=self.place.task
            )
            self.fence(producer)
            before = self.look(client)
            written = Fingerprint()
            if before is not None and before.batch >= self.place.batch:
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
                written.rows, query=self.place.query, first=before is None or before.run != self.place.run
            )

    def _explain(self, error: BaseException) -> None:
        """Say what the errors mean that a producer gets whose transaction is no longer its own."""
        if isinstance(error, KafkaError) and error.code in _NOT_MINE:
            place = self.place
            raise TakenOverError(
                f"task {place.task} of batch {place.batch} of query {place.query} lost its transaction: another "
                "attempt took over, or it was open for longer than kafka.transaction.timeout.ms "
                f"({self.plan.transaction_timeout_ms}). The next attempt looks what is committed and writes the rest"
            ) from error

    def fence(self, producer: Producer) -> None:
        """End and lock out every earlier attempt; when this returns, each of them is committed or never will be."""
        producer.initialize()

    def look(self, client: Client) -> Committed | None:
        """The last batch that this task committed in any attempt."""
        group = self.place.transactional_id

        def ask() -> Committed | None:
            connection = client.node(client.coordinator(group))
            version = min(connection.best_version(9), _OFFSET_FETCH)
            if version < 8:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "exactlyOnce needs Apache Kafka 3.0 or newer.")
            request = OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=group, topics=None)], require_stable=True
            )
            answer = connection.send(request, OffsetFetchResponse, version=version).groups[0]
            if answer.error_code:
                raise KafkaError(answer.error_code, f"offsets of {group}")
            found = None
            for topic in answer.topics:
                for each in topic.partitions:
                    if each.error_code:
                        raise KafkaError(each.error_code, f"offsets of {group}")
                    if each.committed_offset > 0 and (found is None or each.committed_offset > found.batch + 1):
                        found = Committed.parse(each.committed_offset, each.metadata or "")
            return found

        def attempt() -> Committed | None:
            try:
                return ask()
            except (KafkaError, ConnectionFailedError):
                client.forget_coordinator(group)
                raise

        return client.retrying(attempt)

    def send(self, producer: Producer, row: OutgoingRecord) -> None:
        """Take one row; it goes out with the next full batch."""
        producer.send(row.topic, row.key, row.value, row.headers, row.partition)

    def flush(self, producer: Producer) -> None:
        """Send what waits; all rows are acknowledged then, and none is committed."""
        producer.flush()

    def record(self, producer: Producer, topic: str, written: Fingerprint) -> None:
        """Say within the transaction that this batch is done; the offset is that of the next batch."""
        place = self.place
        said = f"{written}:{written.values:x}:{place.run}"
        producer.add_offsets(place.transactional_id, {(topic, 0): (place.batch + 1, said)})

    def commit(self, producer: Producer) -> None:
        """Commit rows and record together."""
        producer.commit()

    def finish(self, before: Committed | None, now: Fingerprint) -> Written:
        """The batch is committed already: hold its rows against those of this run."""
        place = self.place
        if before is None or before.batch < place.batch:
            return WrittenOnce(0, query=place.query)
        if before.batch > place.batch:
            raise RowsNotReproducedError(
                f"batch {place.batch} of query {place.query} is asked for, but batch {before.batch} is "
                "committed: two runs share a checkpoint, or an old checkpoint was put back"
            )
        if before.fingerprint != str(now):
            raise RowsNotReproducedError(
                f"batch {place.batch} of query {place.query} was run again and task {place.task} has "
                f"{now.rows} rows ({now}) where {before.rows} ({before.fingerprint}) are "
                "committed: the plan does not give the same rows to the same task twice. This task wrote nothing. Make "
                "it reproducible (no rand, uuid or unordered limit; the same input files), or put .coalesce(1) before "
                "writeStream"
            )
        if before.values and before.values != f"{now.values:x}":
            warn(
                "ottla",
                f"batch {place.batch} of query {place.query} was run again and task {place.task} has the same keys "
                "with other values: those that are committed stay",
            )
        return WrittenOnce(now.rows, committed_before=True, query=place.query, first=before.run != place.run)


def check_tasks(plan: SinkPlan, query: str, tasks: int, batch: int) -> None:
    """Raise if a task that this batch no longer has is committed: its rows are then in other tasks, a second time."""
    prefix = f"{_PREFIX}-{query}-"
    with plan.connected() as client:
        for listed in client.retrying(lambda: list_groups(client)):
            number = listed.group.removeprefix(prefix)
            if not listed.group.startswith(prefix) or not number.isdigit() or int(number) < tasks:
                continue
            found = ExactlyOnceTask(plan, TaskPlace(query, batch, int(number))).look(client)
            if found is not None and found.batch >= batch:
                raise RowsNotReproducedError(
                    f"batch {batch} of query {query} was run again with {tasks} tasks, and task {number} of an earlier "
                    f"run has committed {found.rows} rows of it, which may now be in the topic twice: the plan does "
                    "not cut a batch in the same way again (another number of cores, or other input files). Once the "
                    f"topic is put right, `ottla group delete {listed.group}` lets the query go on"
                )


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """Writes each row of a query once, as readers with isolation level read_committed see it."""

    task = ExactlyOnceTask

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one task's rows, unless an earlier attempt has committed them."""
        return self.task(self.plan, TaskPlace.here()).run(rows_of(iterator, self.plan.layout, self.plan.topic))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Every task has committed its own part; what is left is to see that there were as many as in an earlier run.

        Only a run's first batch can be one that an earlier run left half done.
        """
        query = next((each.query for each in messages if isinstance(each, WrittenOnce) and each.first), None)
        if query is not None:
            check_tasks(self.plan, query, len(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to undo: what was committed is known by its batch id, what was not is fenced by the next attempt."""


def _chain(first: OutgoingRecord, rest: Iterator[OutgoingRecord]) -> Iterator[OutgoingRecord]:
    yield first
    yield from rest


def _abort(producer: Producer) -> None:
    """Let readers go on at once; if this fails, the next attempt or the transaction's timeout does it."""
    try:
        producer.abort()
    except (KafkaError, ConnectionFailedError):
        return
