"""Acquires records of a share partition for a member: available in-flight records first, then new ones (KIP-932).

Batches of the log are acquired whole unless the fetch has a strict record limit (KIP-1206). Records with a high
delivery count are acquired in ever smaller portions, and one by one before their last delivery, so that a bad record
does not archive its neighbours.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.shares.in_flight import AcquisitionLock, RecordState, Run
from ottla.shares.partition import SharePartitionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.shares.in_flight import InFlightBatch
    from ottla.shares.partition import SharePartition

BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1
LEAST_THROTTLED_DELIVERIES = 2


class LogBatch(NamedTuple):
    """The header fields of a log batch that acquisition needs."""

    base_offset: int
    last_offset: int
    producer_id: int = -1
    is_transactional: bool = False
    is_control: bool = False


class Acquired(NamedTuple):
    """A range of acquired records with its delivery count, this delivery included."""

    first: int
    last: int
    delivery_count: int


class Aborted(Protocol):
    """An aborted transaction: the producer, its first offset, and the offset of its marker."""

    @property
    def producer_id(self) -> int:
        """The producer."""
        ...

    @property
    def first_offset(self) -> int:
        """The transaction's first offset."""
        ...

    @property
    def last_offset(self) -> int:
        """The offset of the marker."""
        ...


def aborted_batches(batches: Iterable[LogBatch], aborted: Sequence[Aborted]) -> list[LogBatch]:
    """Return the batches that belong to aborted transactions."""
    if not aborted:
        return []
    return [
        batch
        for batch in batches
        if batch.is_transactional
        and not batch.is_control
        and any(
            txn.producer_id == batch.producer_id and txn.first_offset <= batch.base_offset < txn.last_offset
            for txn in aborted
        )
    ]


def acquire(
    partition: SharePartition,
    member: str,
    batches: Sequence[LogBatch],
    *,
    fetch_offset: int,
    max_records: int,
    batch_size: int = 500,
    mode: int = BATCH_OPTIMIZED,
    aborted: Sequence[Aborted] = (),
) -> list[Acquired]:
    """Acquire records of batches that were read from `fetch_offset` on, and return their ranges."""
    if partition.partition_state is not SharePartitionState.ACTIVE or max_records <= 0 or not batches:
        return []
    if batches[-1].last_offset < partition.start_offset:
        return []
    acquisition = _Acquisition(partition, member, batches, batch_size, strict=mode == RECORD_LIMIT)
    acquisition.run(fetch_offset, max_records)
    acquired = acquisition.acquired
    if acquired:
        aborted_ranges = aborted_batches(batches, aborted)
        for batch in aborted_ranges:
            partition.archive(batch.base_offset, batch.last_offset, RecordState.ACQUIRED)
        if aborted_ranges:
            acquired = _exclude(acquired, aborted_ranges)
            # Otherwise a long aborted transaction would use up the limit of in-flight records.
            partition.advance_start_offset()
    if acquisition.lock is not None and not acquisition.lock.held:
        acquisition.lock.cancel()
    return acquired


class _Acquisition:
    """One acquisition: one member, one fetch of one share partition."""

    def __init__(
        self, partition: SharePartition, member: str, batches: Sequence[LogBatch], batch_size: int, *, strict: bool
    ) -> None:
        self.partition = partition
        self.member = member
        self.batches = batches
        self.batch_size = batch_size
        self.strict = strict
        self.acquired: list[Acquired] = []
        self.count = 0
        self.lock: AcquisitionLock | None = None
        self.limit = partition.settings().delivery_count_limit
        self.throttled_from = max(LEAST_THROTTLED_DELIVERIES, ceil(self.limit / 2))

    def run(self, fetch_offset: int, max_records: int) -> None:
        """Acquire up to `max_records` records."""
        partition, base = self.partition, self.batches[0].base_offset
        last = self.batches[-1].last_offset
        limit_left = min(max_records, partition.settings().max_record_locks - partition.records_in_flight)
        if limit_left <= 0:
            # The limit of in-flight records is reached; released records can still be acquired.
            if fetch_offset > partition.end_offset:
                return
            limit_left = min(max_records, partition.end_offset - fetch_offset + 1)
            last = min(last, partition.end_offset)
        if partition.in_flight and fetch_offset < base:
            # Available records before the first batch were compacted or deleted.
            partition.archive(fetch_offset, base - 1, RecordState.AVAILABLE)
        begin = base
        below = partition.in_flight.floor(base) if partition.in_flight else None
        if below is None:
            begin = max(base, partition.start_offset)
        elif below.last >= base:
            begin = below.first
        in_flight = partition.in_flight.beginning_in(min(base, begin), last)
        if not in_flight:
            self._acquire_new(begin, last, limit_left)
            return
        if not self._acquire_in_flight(in_flight, begin, base, last, limit_left):
            return
        if self.count < limit_left and in_flight[-1].last < last:
            self._acquire_new(in_flight[-1].last + 1, last, limit_left - self.count)
        if self.acquired:
            partition.advance_gap(self.acquired[-1].last + 1)

    def _acquire_in_flight(
        self, in_flight: Sequence[InFlightBatch], begin: int, base: int, last: int, limit_left: int
    ) -> bool:
        """Acquire available in-flight records and those in gaps; return False if the acquisition must end there."""
        partition, next_new = self.partition, begin
        for batch in in_flight:
            if self.count >= limit_left:
                break
            if partition.gap is not None:
                if next_new < batch.first:
                    self._acquire_new(next_new, batch.first - 1, limit_left - self.count)
                next_new = batch.last + 1
                if self.count >= limit_left:
                    break
            available = [run for run in batch.runs if run.is_available and run.last >= base and run.first <= last]
            if not available:
                continue
            throttled = max(run.count for run in available) >= self.throttled_from
            if throttled and self.count:
                self._advance_gap()
                return False
            covered = base <= batch.first and batch.last <= last
            strictly = self.strict and len(batch) > limit_left - self.count
            if batch.whole and covered and not throttled and not strictly:
                self._acquire_run(batch.runs[0])
                continue
            batch.whole = False
            before = self.count
            self._acquire_subset(batch, max(base, batch.first), min(last, batch.last), limit_left - self.count)
            if throttled and self.count > before:
                self._advance_gap()
                return False
        return True

    def _advance_gap(self) -> None:
        if self.acquired:
            self.partition.advance_gap(self.acquired[-1].last + 1)

    def _acquire_subset(self, batch: InFlightBatch, first: int, last: int, limit_left: int) -> None:
        """Acquire available records of a range of a batch, within the limits of throttling and strict mode."""
        taken, portion = 0, -1
        for run in batch.within(first, last):
            if not run.is_available:
                continue
            last_chance = self.limit > 2 and run.count == self.limit - 1
            if last_chance and taken:
                return
            if run.count >= self.throttled_from and portion < 0:
                portion = max(1, len(batch) >> (run.count - self.throttled_from + 1))
            size = run.last - run.first + 1
            if last_chance:
                size = 1
            if self.strict:
                size = min(size, limit_left - taken)
            if taken < portion:
                size = min(size, portion - taken)
            if size < run.last - run.first + 1:
                batch.cut(run.first + size)
            self._acquire_run(run, joined=taken > 0)
            taken += size
            if last_chance or taken == portion or (self.strict and taken == limit_left):
                return

    def _acquire_run(self, run: Run, *, joined: bool = False) -> None:
        run.acquire(self.member, self._one_lock())
        size = run.last - run.first + 1
        self.count += size
        latest = self.acquired[-1] if self.acquired else None
        if joined and latest is not None and latest.last + 1 == run.first and latest.delivery_count == run.count:
            self.acquired[-1] = latest._replace(last=run.last)
        else:
            self.acquired.append(Acquired(run.first, run.last, run.count))

    def _acquire_new(self, first: int, last: int, limit_left: int) -> None:
        """Acquire records that were never in flight."""
        partition = self.partition
        if not partition.in_flight:
            first = max(first, partition.end_offset)
        if first > last:
            return
        if limit_left < last - first + 1:
            size = self._end_of_batch(first + limit_left - 1)
            last = min(size, last) if partition.gap is not None else size
        if self.strict and last - first + 1 > limit_left:
            self._add_partly(first, last, first + limit_left - 1)
            latest = first + limit_left - 1
        else:
            for begin, end in self._portions(first, last):
                run = Run(begin, end, RecordState.AVAILABLE, 0)
                partition.in_flight.add(run)
                run.acquire(self.member, self._one_lock())
                self.acquired.append(Acquired(begin, end, run.count))
            latest = last
        if partition.in_flight.first.first == first:
            partition.start_offset = first
        partition.end_offset = max(partition.end_offset, last)
        partition.advance_gap(latest + 1)
        self.count += latest - first + 1

    def _add_partly(self, first: int, last: int, until: int) -> None:
        batch = self.partition.in_flight.add(Run(first, last, RecordState.AVAILABLE, 0))
        batch.cut(until + 1)
        batch.runs[0].acquire(self.member, self._one_lock())
        self.partition.find_next_fetch_offset = True
        self.acquired.append(Acquired(first, until, 1))

    def _portions(self, first: int, last: int) -> list[tuple[int, int]]:
        """Split a range at batch borders into portions of at least `batch_size` records, except the last."""
        portions = []
        if not self.strict and last - first + 1 > self.batch_size:
            for batch in self.batches:
                if batch.base_offset > last:
                    break
                if batch.base_offset - first >= max(self.batch_size, 1):
                    portions.append((first, batch.base_offset - 1))
                    first = batch.base_offset
        return [*portions, (first, last)]

    def _end_of_batch(self, offset: int) -> int:
        """Return the last offset of the batch that holds an offset, or the offset itself."""
        holder = None
        for batch in self.batches:
            if batch.base_offset > offset:
                break
            holder = batch
        return holder.last_offset if holder is not None and offset <= holder.last_offset else offset

    def _one_lock(self) -> AcquisitionLock:
        if self.lock is None:
            self.lock = self.partition.lock()
        return self.lock


def _exclude(acquired: Sequence[Acquired], aborted_ranges: Sequence[LogBatch]) -> list[Acquired]:
    """Return the acquired ranges without those of aborted batches."""
    remaining = list(acquired)
    for batch in aborted_ranges:
        ranges: list[Acquired] = []
        for held in remaining:
            if held.last < batch.base_offset or held.first > batch.last_offset:
                ranges.append(held)
                continue
            if held.first < batch.base_offset:
                ranges.append(held._replace(last=batch.base_offset - 1))
            if held.last > batch.last_offset:
                ranges.append(held._replace(first=batch.last_offset + 1))
        remaining = ranges
    return remaining
