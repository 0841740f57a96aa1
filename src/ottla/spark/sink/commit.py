"""The driver's side of the exactly-once sink: decide which transactions are a batch, then commit them.

docs/exactly-once.md has the protocol and every crash point. The decision is a compare-and-set: the driver fences all
other drivers (InitProducerId), reads the last decision, and writes its own in a transaction that fails if it is fenced.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.client.connection import ConnectionFailedError
from ottla.client.transactions import describe_transactions, end_transaction, fence
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.data_loss import warn
from ottla.spark.sink.bookkeeping import committed_by_tasks, open_transactions, read_decision
from ottla.spark.sink.decision import (
    BookkeepingError,
    Decision,
    OffsetRange,
    SinkTransaction,
    driver_id,
    group_name,
    other_slot,
)
from ottla.spark.sink.recovery import Search, copy_rows, exists, open_transactions_on, search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from ottla.client.client import Client, TopicPartition
    from ottla.client.producer import Producer
    from ottla.spark.sink.checkpoint import CheckpointMark

FENCED: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
_PATIENCE: Final = 60.0  # seconds until the broker has written the markers of an abort
_MARKER_PATIENCE: Final = 30.0  # seconds until a transaction without markers counts as hanging
_COPIED_TOGETHER: Final = 32  # transactions
_THREADS: Final = 8
_SEQUENTIAL: Final = 16  # up to this many transactions are ended by one thread


class StaleCheckpointError(BookkeepingError):
    """A batch was requested that is older than the last decided one."""


class UnfinishedUpgradeError(BookkeepingError):
    """The batch was written in part by a sink of an earlier version."""


class RowsRemovedError(RuntimeError):
    """Compaction removed rows of an aborted transaction before they could be written again."""


class DriverFencedError(RuntimeError):
    """Another driver of the same query took over while this one decided."""


@dataclass(slots=True)
class TaskResult:
    """What one task of a batch has written: transactions that are flushed and open."""

    task: int
    transactions: list[SinkTransaction] = field(default_factory=list)
    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    skipped: bool = False
    """The task found the batch decided, and wrote nothing."""


class BatchCommit:
    """Commits one batch of a query, or finishes the commit that an earlier driver began.

    Each step is a method, so that a test can kill the process around it.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Client]],
        make_producer: Callable[[Client, str], Producer],
        query: str,
        *,
        run: str = "",
        topic: str | None = None,
        mark: CheckpointMark | None = None,
    ) -> None:
        self._connect = connect
        self._make_producer = make_producer
        self.query = query
        self.run = run
        self._topic = topic
        self._mark = mark

    def commit(self, batch: int, results: Sequence[TaskResult]) -> Decision | None:
        """Make the rows of a batch visible once; return its decision, or None if there is nothing to decide."""
        written = [transaction for result in results for transaction in result.transactions]
        with self._connect() as client:
            producer = self.fence(client)
            last = self._read_stable(client, producer)
            if last is not None and last.batch >= batch:
                self.abort(client, set(written) - set(last.transactions))
                if last.batch > batch:
                    raise StaleCheckpointError(
                        f"batch {batch} of query {self.query} was requested, but batch {last.batch} is decided: an old "
                        "checkpoint was restored, or two runs share one. Use a new checkpoint, or write the batch "
                        f"again after `ottla sink retire {self.query}`"
                    )
                self.finish(client, producer, last)
                self._abort_leftovers(client, [])
                return last
            self._check_skipped(batch, results)
            if last is None:
                self._check_first(client, batch, written)
            if last is None or last.run != self.run:
                self._abort_leftovers(client, written)
            decision = self._decision(batch, results, last)
            if not decision.topics:
                return None  # no row was ever written, so no topic can hold the bookkeeping
            dead = self.check(client, results)
            decision = self.decide(client, producer, decision, dead)
            if self._mark is not None and (last is None or last.run != self.run):
                self._mark.write(self.query, batch)
            self.finish(client, producer, decision)
            return decision

    def abandon(self, batch: int, results: Sequence[TaskResult]) -> None:
        """Abort the transactions of a failed batch, so that readers need not wait, unless the batch is decided."""
        written = {transaction for result in results for transaction in result.transactions}
        with self._connect() as client:
            self.fence(client)
            last = self.read(client)
            decided = last.transactions if last is not None and last.batch == batch else ()
            self.abort(client, written - set(decided))

    def finish_last(self) -> Decision | None:
        """Finish the last decision of the query, for example before its bookkeeping is deleted."""
        with self._connect() as client:
            producer = self.fence(client)
            last = self._read_stable(client, producer)
            if last is not None:
                self.finish(client, producer, last)
            return last

    def fence(self, client: Client) -> Producer:
        """Fence all other drivers of this query: what they have not decided yet, they can no longer decide."""
        producer = self._make_producer(client, driver_id(self.query))
        producer.initialize()
        return producer

    def read(self, client: Client) -> Decision | None:
        """Return the last decision."""
        return read_decision(client, self.query)

    def check(self, client: Client, results: Sequence[TaskResult]) -> list[SinkTransaction]:
        """Return the transactions that the broker has aborted; abort those of attempts that Spark has dropped."""
        written = {entry.transactional_id: entry for result in results for entry in result.transactions}
        others = {other_slot(name) for name in written} - set(written)
        states = describe_transactions(client, sorted({*written, *others}))
        dead = []
        for name, entry in written.items():
            state = states.get(name)
            identity = state and (state.transaction_state, state.producer_id, state.producer_epoch)
            if identity != ("Ongoing", entry.producer_id, entry.epoch):
                dead.append(entry)
                others.add(name)
        for name in sorted(others):
            if name in states and states[name].transaction_state == "Ongoing":
                fence(client, name)
        return dead + self._contaminated(client, results, dead)

    def decide(
        self, client: Client, producer: Producer, decision: Decision, dead: Sequence[SinkTransaction]
    ) -> Decision:
        """Record the decision. Rows of transactions that are already aborted are written in the same transaction."""
        found = search(client, decision, dead) if dead else None
        if found is not None:
            missing = [entry for entry in dead if found.incomplete(entry)]
            if missing and not found.deleted:
                raise RowsRemovedError(
                    f"batch {decision.batch} of query {self.query} took longer than its transaction timeout, and "
                    f"{_missing(found, missing)} rows of aborted transactions were removed by compaction. "
                    "Nothing of the batch is committed, and the next start writes it. Set a longer "
                    "kafka.transaction.timeout.ms (up to the brokers' transaction.max.timeout.ms), or smaller batches"
                )
            self._warn_deleted(decision, found, missing)
        self.record(client, producer, decision.without(dead), dead, found)
        return decision.without(dead)

    def finish(self, client: Client, producer: Producer, decision: Decision) -> None:
        """Commit every transaction of a decision; write the rows of those that the broker has aborted."""
        undetermined = {*self.end(client, decision.transactions), *self._end_hanging(client, decision)}
        if undetermined:
            aborted, found = self._find_aborted(client, decision, sorted(undetermined, key=_by_id))
            missing = [entry for entry in aborted if found.incomplete(entry)]
            if missing and not found.deleted:
                self._revoke(client, producer, decision, found, missing)
            self._warn_deleted(decision, found, missing)
            for start in range(0, len(aborted), _COPIED_TOGETHER):
                group = aborted[start : start + _COPIED_TOGETHER]
                decision = decision.without(group)
                self.record(client, producer, decision, group, found)

    def end(self, client: Client, transactions: Sequence[SinkTransaction]) -> list[SinkTransaction]:
        """Commit transactions; return those that have another epoch by now, so that they were ended before."""
        if len(transactions) <= _SEQUENTIAL:
            return [entry for entry in transactions if not _committed(client, entry)]
        with ThreadPoolExecutor(_THREADS) as threads:
            parts = threads.map(self._end_part, [transactions[start::_THREADS] for start in range(_THREADS)])
            return [entry for part in parts for entry in part]

    def record(
        self,
        client: Client,
        producer: Producer,
        decision: Decision,
        aborted: Sequence[SinkTransaction] = (),
        found: Search | None = None,
    ) -> None:
        """Write the decision, and the rows of aborted transactions that it no longer names, in one transaction."""
        try:
            if found is not None:
                copy_rows(client, producer, decision, aborted, found)
                producer.flush()
            topics = [topic for topic in decision.topics if exists(client, topic)]
            for number, metadata in enumerate(decision.chunks(self.query)):
                producer.add_offsets(
                    group_name(self.query, number), {(topic, 0): (decision.batch + 1, metadata) for topic in topics}
                )
            producer.commit()
        except KafkaError as error:
            if error.code in FENCED:
                raise DriverFencedError(
                    f"the driver of query {self.query} could not decide batch {decision.batch}: another driver of "
                    "the same query took over, or its transaction was open for longer than "
                    "kafka.transaction.timeout.ms. Nothing is lost: the driver that took over, or the next start, "
                    "finishes the batch"
                ) from error
            raise

    def abort(self, client: Client, transactions: Iterable[SinkTransaction]) -> None:
        """Abort transactions that are not part of a decision, so that readers need not wait for their timeout."""
        for entry in transactions:
            try:
                end_transaction(client, entry.transactional_id, entry.producer_id, entry.epoch, committed=False)
            except (KafkaError, ConnectionFailedError):
                continue

    def _decision(self, batch: int, results: Sequence[TaskResult], last: Decision | None) -> Decision:
        transactions = [entry for result in results for entry in result.transactions]
        ranges: dict[TopicPartition, OffsetRange] = {}
        for result in results:
            for partition, offsets in result.ranges.items():
                ranges[partition] = offsets.union(ranges[partition]) if partition in ranges else offsets
        topics = {topic for topic, _ in ranges} or {self._topic} - {None} or set(last.topics if last else ())
        return Decision(
            batch,
            self.run,
            sum(entry.rows for entry in transactions),
            int(time.time() * 1000),
            tuple(sorted(topic for topic in topics if topic is not None)),
            tuple(sorted(transactions, key=_by_id)),
            ranges,
        )

    def _check_skipped(self, batch: int, results: Sequence[TaskResult]) -> None:
        skipped = [result.task for result in results if result.skipped]
        if skipped:
            raise BookkeepingError(
                f"tasks {skipped} of batch {batch} of query {self.query} found the batch decided, and now there is no "
                f"decision: group {group_name(self.query)} was deleted while the batch ran. Nothing is committed; "
                "start the query again"
            )

    def _check_first(self, client: Client, batch: int, written: Sequence[SinkTransaction]) -> None:
        """Raise if the bookkeeping has expired, or if an earlier version, which committed task by task, left a part."""
        if self._mark is not None:
            try:
                self._mark.check(self.query, batch)
            except BookkeepingError:
                self.abort(client, written)
                raise
        earlier = committed_by_tasks(client, self.query, batch)
        if earlier:
            self.abort(client, written)
            tasks = ", ".join(str(task) for task in sorted(earlier))
            raise UnfinishedUpgradeError(
                f"batch {batch} of query {self.query} was begun by an earlier version of ottla, which committed the "
                f"rows of each task on its own: {sum(earlier.values())} rows of task {tasks} are in the topic, and "
                "other tasks may not have committed. Nothing was written now. Finish the batch with that version, or "
                f"accept these rows twice: `ottla sink retire {self.query}`, then start the query again"
            )

    def _abort_leftovers(self, client: Client, written: Sequence[SinkTransaction]) -> None:
        """Abort what tasks of earlier runs left open, also those whose number no task has any more."""
        mine = {entry.transactional_id for entry in written}
        for name in open_transactions(client, self.query):
            if name not in mine:
                fence(client, name)

    def _read_stable(self, client: Client, producer: Producer) -> Decision | None:
        """Return the last decision; end a decision of a fenced driver that the coordinator ended without a marker.

        Apache Kafka does so if it restarts and a transaction times out before its partitions have leaders.
        """
        try:
            return self.read(client)
        except KafkaError as error:
            if error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise
        producer.add_group(group_name(self.query))
        producer.abort()
        producer.initialize()
        return self.read(client)

    def _contaminated(
        self, client: Client, results: Sequence[TaskResult], dead: Sequence[SinkTransaction]
    ) -> list[SinkTransaction]:
        """Abort and return transactions that would also commit rows of an earlier attempt.

        The coordinator ended that attempt's transaction without a marker, and the partition takes both for one.
        """
        ranges = {partition for result in results for partition in result.ranges}
        opened = open_transactions_on(client, ranges)
        contaminated = []
        for result in results:
            for entry in result.transactions:
                starts = {
                    partition: opened[partition][entry.producer_id]
                    for partition in ranges
                    if entry.producer_id in opened[partition]
                }
                if entry in dead:
                    if starts:
                        self._abort_on(client, entry, sorted(starts))
                elif any(
                    partition in result.ranges and start < result.ranges[partition].first
                    for partition, start in starts.items()
                ):
                    self._abort_on(client, entry, sorted(starts))
                    contaminated.append(entry)
        return contaminated

    def _end_hanging(self, client: Client, decision: Decision) -> list[SinkTransaction]:
        """Wait for the markers of a decision's transactions; abort and return those that get none.

        Their coordinator has ended them without markers: an abort by a later transaction would lose their rows.
        """
        deadline = time.monotonic() + _MARKER_PATIENCE
        while True:
            opened = open_transactions_on(client, decision.ranges)
            hanging = {
                entry: partitions
                for entry in decision.transactions
                if (
                    partitions := [
                        partition
                        for partition, offsets in sorted(decision.ranges.items())
                        if opened[partition].get(entry.producer_id, offsets.last + 1) <= offsets.last
                    ]
                )
            }
            if not hanging:
                return []
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        for entry, partitions in hanging.items():
            self._abort_on(client, entry, partitions)
        return list(hanging)

    def _abort_on(self, client: Client, entry: SinkTransaction, partitions: Sequence[TopicPartition]) -> None:
        """Abort a transaction, with markers on partitions that its coordinator may not know any more."""
        producer = self._make_producer(client, entry.transactional_id)
        producer.initialize()
        producer.add_partitions(partitions)
        producer.abort()

    def _find_aborted(
        self, client: Client, decision: Decision, transactions: Sequence[SinkTransaction]
    ) -> tuple[list[SinkTransaction], Search]:
        """Return which of the transactions were aborted, by their markers in the log; the others were committed."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            found = search(client, decision, transactions)
            pending = [
                entry for entry in transactions if found.logged[entry].rows and found.logged[entry].ended is None
            ]
            if not pending:
                break
            if time.monotonic() > deadline:
                raise KafkaError(
                    ErrorCode.CONCURRENT_TRANSACTIONS,
                    f"{pending[0].transactional_id} is being ended, and its markers are not written; start again later",
                )
            time.sleep(0.2)
        return [entry for entry in transactions if not found.logged[entry].is_committed], found

    def _warn_deleted(self, decision: Decision, found: Search, missing: Sequence[SinkTransaction]) -> None:
        """Report rows of aborted transactions that retention, DeleteRecords or the deletion of a topic removed."""
        if missing:
            partitions = ", ".join(f"{topic}-{index}" for topic, index in found.deleted)
            warn(
                "ottla",
                f"batch {decision.batch} of query {self.query}: {_missing(found, missing)} rows were deleted from "
                f"{partitions} before or after their transactions were aborted",
            )

    def _revoke(
        self,
        client: Client,
        producer: Producer,
        decision: Decision,
        found: Search,
        missing: Sequence[SinkTransaction],
    ) -> None:
        """Take a decision back that can no longer be carried out, and fail with what the next start does."""
        self.record(client, producer, Decision(decision.batch - 1, self.run, topics=decision.topics))
        committed = decision.rows - sum(entry.rows for entry in missing)
        raise RowsRemovedError(
            f"the broker aborted transactions of batch {decision.batch} of query {self.query} after it was decided "
            f"(the driver was away for longer than kafka.transaction.timeout.ms), and compaction has since removed "
            f"{_missing(found, missing)} of its rows. The next start writes the whole batch again, so that none is "
            f"missing; up to {committed} rows may then be in the log twice until compaction removes the older ones"
        )

    def _end_part(self, transactions: Sequence[SinkTransaction]) -> list[SinkTransaction]:
        with self._connect() as client:
            return [entry for entry in transactions if not _committed(client, entry)]


def _committed(client: Client, entry: SinkTransaction) -> bool:
    """Commit a transaction; return False if its transactional id has another epoch, or the transaction was aborted."""
    try:
        end_transaction(client, entry.transactional_id, entry.producer_id, entry.epoch, committed=True)
    except KafkaError as error:
        if error.code in FENCED:
            return False
        raise
    return True


def _by_id(entry: SinkTransaction) -> str:
    return entry.transactional_id


def _missing(found: Search, transactions: Iterable[SinkTransaction]) -> int:
    return sum(entry.rows - found.logged[entry].rows for entry in transactions)
