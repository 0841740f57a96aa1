"""Which records a member is given: what was released first, then what nobody has seen, within its limits (KIP-932).

A batch of the log is never torn apart unless the member asks for a strict limit (KIP-1206). Records that were delivered
often already come in ever smaller portions, and before their last delivery one by one, so that a bad record takes no
others with it.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.shares.in_flight import Lock, RecordState, Run
from ottla.shares.partition import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.shares.in_flight import Batch
    from ottla.shares.partition import SharePartition

BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1
LEAST_THROTTLED_DELIVERIES = 2


class LogBatch(NamedTuple):
    """A batch of the log, as far as it matters here."""

    base_offset: int
    last_offset: int
    producer_id: int = -1
    is_transactional: bool = False
    is_control: bool = False


class Acquired(NamedTuple):
    """Neighbouring records that a member now holds, and how often they were delivered, this time included."""

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
    """Those of the batches whose transaction was aborted."""
    if not aborted:
        return []
    return [
        batch
        for batch in batches
        if batch.is_transactional
        and not batch.is_control
        and any(
            each.producer_id == batch.producer_id and each.first_offset <= batch.base_offset < each.last_offset
            for each in aborted
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
    """Give a member records of the batches that were read from `fetch_offset` on."""
    if partition.phase is not Phase.ACTIVE or max_records <= 0 or not batches:
        return []
    if batches[-1].last_offset < partition.start_offset:
        return []
    attempt = _Attempt(partition, member, batches, batch_size, strict=mode == RECORD_LIMIT)
    attempt.run(fetch_offset, max_records)
    found = attempt.found
    if found:
        unwanted = aborted_batches(batches, aborted)
        for each in unwanted:
            partition.archive(each.base_offset, each.last_offset, RecordState.ACQUIRED)
        if unwanted:
            found = _without(found, unwanted)
            partition.move_start()  # else a long aborted transaction would fill the room for records in flight for ever
    if attempt.lock is not None and not attempt.lock.held:
        attempt.lock.cancel()
    return found


class _Attempt:
    """One member, one fetch of one partition."""

    def __init__(
        self, partition: SharePartition, member: str, batches: Sequence[LogBatch], batch_size: int, *, strict: bool
    ) -> None:
        self.partition = partition
        self.member = member
        self.batches = batches
        self.batch_size = batch_size
        self.strict = strict
        self.found: list[Acquired] = []
        self.count = 0
        self.lock: Lock | None = None
        self.limit = partition.settings().delivery_count_limit
        self.throttled_from = max(LEAST_THROTTLED_DELIVERIES, ceil(self.limit / 2))

    def run(self, fetch_offset: int, max_records: int) -> None:
        """Acquire what may be had."""
        partition, base = self.partition, self.batches[0].base_offset
        last = self.batches[-1].last_offset
        room = min(max_records, partition.settings().max_record_locks - partition.records_in_flight)
        if room <= 0:
            # Nothing new may come in, but what was released in between may go out again.
            if fetch_offset > partition.end_offset:
                return
            room = min(max_records, partition.end_offset - fetch_offset + 1)
            last = min(last, partition.end_offset)
        if partition.in_flight and fetch_offset < base:
            # What was free there is not in the log any more: compacted away, or deleted.
            partition.archive(fetch_offset, base - 1, RecordState.AVAILABLE)
        begin = base
        below = partition.in_flight.floor(base) if partition.in_flight else None
        if below is None:
            begin = max(base, partition.start_offset)
        elif below.last >= base:
            begin = below.first
        known = partition.in_flight.beginning_in(min(base, begin), last)
        if not known:
            self._acquire_new(begin, last, room)
            return
        if not self._acquire_known(known, begin, base, last, room):
            return
        if self.count < room and known[-1].last < last:
            self._acquire_new(known[-1].last + 1, last, room - self.count)
        if self.found:
            partition.gap_moved(self.found[-1].last + 1)

    def _acquire_known(self, known: Sequence[Batch], begin: int, base: int, last: int, room: int) -> bool:
        """Acquire what is free among batches in flight, and what lies in gaps between them; False ends it there."""
        partition, unseen = self.partition, begin
        for batch in known:
            if self.count >= room:
                break
            if partition.gap is not None:
                if unseen < batch.first:
                    self._acquire_new(unseen, batch.first - 1, room - self.count)
                unseen = batch.last + 1
                if self.count >= room:
                    break
            free = [run for run in batch.runs if run.is_free and run.last >= base and run.first <= last]
            if not free:
                continue
            throttled = max(run.count for run in free) >= self.throttled_from
            if throttled and self.count:
                self._moved()
                return False
            covered = base <= batch.first and batch.last <= last
            strictly = self.strict and len(batch) > room - self.count
            if batch.whole and covered and not throttled and not strictly:
                self._take(batch.runs[0])
                continue
            batch.whole = False
            before = self.count
            self._acquire_some(batch, max(base, batch.first), min(last, batch.last), room - self.count)
            if throttled and self.count > before:
                self._moved()
                return False
        return True

    def _moved(self) -> None:
        if self.found:
            self.partition.gap_moved(self.found[-1].last + 1)

    def _acquire_some(self, batch: Batch, first: int, last: int, most: int) -> None:
        """Acquire the free records of a range of a batch, record by record where that matters."""
        taken, portion = 0, -1
        for run in batch.within(first, last):
            if not run.is_free:
                continue
            last_chance = self.limit > 2 and run.count == self.limit - 1
            if last_chance and taken:
                return
            if run.count >= self.throttled_from and portion < 0:
                portion = max(1, len(batch) >> (run.count - self.throttled_from + 1))
            wanted = run.last - run.first + 1
            if last_chance:
                wanted = 1
            if self.strict:
                wanted = min(wanted, most - taken)
            if taken < portion:
                wanted = min(wanted, portion - taken)
            if wanted < run.last - run.first + 1:
                batch.cut(run.first + wanted)
            self._take(run, joined=taken > 0)
            taken += wanted
            if last_chance or taken == portion or (self.strict and taken == most):
                return

    def _take(self, run: Run, *, joined: bool = False) -> None:
        run.acquire(self.member, self._one_lock())
        size = run.last - run.first + 1
        self.count += size
        latest = self.found[-1] if self.found else None
        if joined and latest is not None and latest.last + 1 == run.first and latest.delivery_count == run.count:
            self.found[-1] = latest._replace(last=run.last)
        else:
            self.found.append(Acquired(run.first, run.last, run.count))

    def _acquire_new(self, first: int, last: int, most: int) -> None:
        """Acquire records that nobody has seen."""
        partition = self.partition
        if not partition.in_flight:
            first = max(first, partition.end_offset)
        if first > last:
            return
        if most < last - first + 1:
            wanted = self._end_of_batch(first + most - 1)
            last = min(wanted, last) if partition.gap is not None else wanted
        if self.strict and last - first + 1 > most:
            self._add_partly(first, last, first + most - 1)
            latest = first + most - 1
        else:
            for begin, end in self._portions(first, last):
                run = Run(begin, end, RecordState.AVAILABLE, 0)
                partition.in_flight.add(run)
                run.acquire(self.member, self._one_lock())
                self.found.append(Acquired(begin, end, run.count))
            latest = last
        if partition.in_flight.first.first == first:
            partition.start_offset = first
        partition.end_offset = max(partition.end_offset, last)
        partition.gap_moved(latest + 1)
        self.count += latest - first + 1

    def _add_partly(self, first: int, last: int, until: int) -> None:
        batch = self.partition.in_flight.add(Run(first, last, RecordState.AVAILABLE, 0))
        batch.cut(until + 1)
        batch.runs[0].acquire(self.member, self._one_lock())
        self.partition.look_for_free = True
        self.found.append(Acquired(first, until, 1))

    def _portions(self, first: int, last: int) -> list[tuple[int, int]]:
        """Cut a range at borders of batches, so that each portion has at least `batch_size` records but the last."""
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
        """The last offset of the batch that holds an offset; the offset itself if none does."""
        holder = None
        for batch in self.batches:
            if batch.base_offset > offset:
                break
            holder = batch
        return holder.last_offset if holder is not None and offset <= holder.last_offset else offset

    def _one_lock(self) -> Lock:
        if self.lock is None:
            self.lock = self.partition.lock()
        return self.lock


def _without(found: Sequence[Acquired], unwanted: Sequence[LogBatch]) -> list[Acquired]:
    """What was acquired, without the batches that nobody may see."""
    left = list(found)
    for batch in unwanted:
        kept: list[Acquired] = []
        for each in left:
            if each.last < batch.base_offset or each.first > batch.last_offset:
                kept.append(each)
                continue
            if each.first < batch.base_offset:
                kept.append(each._replace(last=batch.base_offset - 1))
            if each.last > batch.last_offset:
                kept.append(each._replace(first=batch.last_offset + 1))
        left = kept
    return left
