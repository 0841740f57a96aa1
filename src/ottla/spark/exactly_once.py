"""The exactly-once sink: each task's rows of a micro-batch in one transaction that also says which batch it was.

docs/exactly-once.md has the design and what happens at each crash point. In short, an attempt of a task

1. fences every earlier attempt (InitProducerId of the transactional id of query and task),
2. looks whether the batch was committed (the offset of the task's bookkeeping group, stable reads only),
3. sends its rows, records batch and fingerprint in that group, and commits: one transaction for all three.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from ottla.client.connection import ConnectionFailedError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from ottla.spark.sink import SinkPlan, Written
from ottla.spark.sink_rows import OutgoingRecord, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import WriterCommitMessage

    from ottla.client.client import Client
    from ottla.client.producer import Producer

_PREFIX: Final = "ottla-sink"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_OFFSET_FETCH: Final = 9  # from 10 on topics have ids in place of names


class RowsNotReproducedError(RuntimeError):
    """A batch was run again and gave a task other rows than those that are committed."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Which part of which micro-batch of which query."""

    query: str
    batch: int
    task: int

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
        return cls(query, int(batch), context.partitionId())


@dataclass(slots=True)
class Fingerprint:
    """What a task wrote, whatever the order: how many rows, and a sum over where they went.

    A row counts by topic, partition column and key; by its value only where it has no key, because a value may differ
    in a harmless way (a sum of floating-point numbers taken in another order).
    """

    rows: int = 0
    total: int = 0

    def add(self, row: OutgoingRecord) -> None:
        """Count one row."""
        said = f"{row.topic}/{'' if row.partition is None else row.partition}/{row.key is None:d}".encode()
        self.rows += 1
        self.total = (self.total + zlib.crc32((row.value or b"") if row.key is None else row.key, zlib.crc32(said))) & (
            2**64 - 1
        )

    def __str__(self) -> str:
        return f"{self.rows}:{self.total:x}"


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch that a task has committed, with the fingerprint of its rows."""

    batch: int
    fingerprint: str


class ExactlyOnceTask:
    """One attempt at one task; each step is a method, so that a test can end the process before or after it."""

    def __init__(self, plan: SinkPlan, place: TaskPlace) -> None:
        self.plan = plan
        self.place = place

    def run(self, rows: Iterator[OutgoingRecord]) -> Written:
        """Write the rows if no attempt before this one did."""
        with self.plan.client() as client:
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
            except BaseException:
                _abort(producer)
                raise
            self.commit(producer)
            return Written(written.rows)

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
                        found = Committed(each.committed_offset - 1, each.metadata or "")
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
        producer.add_offsets(place.transactional_id, {(topic, 0): (place.batch + 1, str(written))})

    def commit(self, producer: Producer) -> None:
        """Commit rows and record together."""
        producer.commit()

    def finish(self, before: Committed | None, now: Fingerprint) -> Written:
        """The batch is committed already: hold its rows against those of this run."""
        if before is None or before.batch < self.place.batch:
            return Written(0)
        if before.batch > self.place.batch:
            raise RowsNotReproducedError(
                f"batch {self.place.batch} of query {self.place.query} is asked for, but batch {before.batch} is "
                "committed: two runs share a checkpoint, or an old checkpoint was put back"
            )
        if before.fingerprint != str(now):
            raise RowsNotReproducedError(
                f"batch {self.place.batch} of query {self.place.query} was run again and task {self.place.task} has "
                f"{now.rows} rows ({now}) where {before.fingerprint.partition(':')[0]} ({before.fingerprint}) are "
                "committed: the plan does not give the same rows to the same task twice. Nothing was written. Make it "
                "reproducible (no rand, uuid or unordered limit; the same number of cores for file sources), or put "
                ".coalesce(1) before writeStream"
            )
        return Written(now.rows, committed_before=True)


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """Writes each row of a query once, as readers with isolation level read_committed see it."""

    task = ExactlyOnceTask

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one task's rows, unless an earlier attempt has committed them."""
        return self.task(self.plan, TaskPlace.here()).run(rows_of(iterator, self.plan.layout, self.plan.topic))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing is left to do: every task has committed its own part, so calling this twice is harmless."""

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
