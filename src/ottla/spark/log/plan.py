"""Plan the tasks of a directory scan: byte ranges of segments, cut at batches of the offset index.

Runs once, on the driver; opens indexes and the ends of logs, never whole segments.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ottla.records.batch import MAGIC, MAGIC_POSITION
from ottla.spark.log.disk import disk_of, identity
from ottla.spark.offsets import EARLIEST, LATEST, available_range
from ottla.spark.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.records.columnar import AbortedTransaction
    from ottla.spark.log.files import PartitionFiles
    from ottla.spark.offsets import Bound
    from ottla.spark.pushdown.filters import Limits
    from ottla.storage.check.scan import SegmentFiles
    from ottla.storage.log.indexes import OffsetIndex

# "decided" is for system tables: it skips records of open transactions and reads what follows them.
ISOLATIONS: Final = ("read_uncommitted", "read_committed", "decided")
READ_UNCOMMITTED, READ_COMMITTED, DECIDED = ISOLATIONS
SMALLEST_TASK: Final = 16 << 20
LARGEST_TASK: Final = 64 << 20
# Bytes that a time filter is likely to drop are only scanned: so many cost as much as one that is decoded and sent.
LATE_WEIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Batches of one segment, by bytes and by offsets: if the file is replaced meanwhile, the offsets still hold."""

    folder: str
    topic: str
    partition: int
    segment: int
    inode: int
    start: int
    end: int
    first_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def size(self) -> int:
        """The number of bytes to read."""
        return self.end - self.start


@dataclass(slots=True)
class ScanRange:
    """The offsets of one partition to scan; `late` if a time filter is likely to drop all of them."""

    log: PartitionFiles
    first_offset: int
    end_offset: int
    aborted: list[AbortedTransaction] = field(default_factory=list)
    late: bool = False


def choose_ranges(
    logs: list[PartitionFiles],
    start: Bound,
    end: Bound,
    limits: Limits,
    *,
    isolation: str,
    strict_times: bool,
    fail_on_data_loss: bool,
) -> list[ScanRange]:
    """Resolve the options and Spark's filters to offsets, partition by partition."""
    known = {log.partition for log in logs}
    start.check_partitions("startingOffsets", known)
    end.check_partitions("endingOffsets", known)
    ranges = []
    for log in logs:
        topic, number = log.partition
        if not log.segments or not limits.partition(topic, number):
            continue
        stable = log.end_offset
        hidden: list[AbortedTransaction] = []
        if isolation != READ_UNCOMMITTED:
            stable, hidden, undecided = log.transactions()
            if isolation == DECIDED:
                stable, hidden = (
                    log.end_offset,
                    sorted([*hidden, *undecided], key=lambda transaction: transaction.first_offset),
                )
        first, last = available_range(
            "ottla-log",
            log.partition,
            _edge(log, start, stable, strict=strict_times),
            _edge(log, end, stable),
            (log.start_offset, max(stable, log.start_offset)),
            fail_on_data_loss=fail_on_data_loss,
        )
        low, high = limits.offsets
        first, last = max(first, low), min(last, high + 1)
        if limits.earliest is not None and first < last:
            earliest = log.offset_at(limits.earliest)
            first = last if earliest is None else max(first, earliest)
        late = last
        if limits.latest is not None and first < last:
            late = min(max(_later(log, limits.latest), first), last)
        for begin, stop, is_late in ((first, late, False), (late, last, True)):
            if begin < stop:
                ranges.append(ScanRange(log, begin, stop, _overlapping(hidden, begin, stop), is_late))
    return ranges


def _overlapping(transactions: Iterable[AbortedTransaction], first: int, end: int) -> list[AbortedTransaction]:
    """Return the aborted transactions with records between two offsets."""
    return [
        transaction
        for transaction in transactions
        if transaction.first_offset < end and (transaction.last_offset or first) >= first
    ]


def _later(log: PartitionFiles, timestamp: int) -> int:
    """Return the offset from which records are likely later than a time; the reader still checks each record."""
    try:
        offset = log.offset_at(timestamp + 1)
    except OptionError:
        offset = None
    return log.end_offset if offset is None else offset


def _edge(log: PartitionFiles, bound: Bound, stable: int, *, strict: bool = False) -> int:
    """Resolve one side of a read; if `strict`, a record at its timestamp or later must exist."""
    timestamp = bound.time(*log.partition)
    if timestamp is not None:
        offset = log.offset_at(timestamp)
        if offset is None and strict:
            raise OptionError(
                f"{log.partition} has no record at {timestamp} ms or later; give an earlier startingTimestamp, or "
                f"startingOffsetsByTimestampStrategy=latest to read nothing from it"
            )
        return stable if offset is None else min(offset, stable)
    offset = bound.offset(*log.partition)
    if offset in (EARLIEST, LATEST):
        return log.start_offset if offset == EARLIEST else stable
    return offset


def plan_tasks(ranges: list[ScanRange], *, largest: int = LARGEST_TASK, least_tasks: int = 0) -> list[list[Piece]]:
    """Cut ranges into pieces and combine small pieces, so that a task is neither tiny nor huge."""
    whole = [(piece, LATE_WEIGHT if scan.late else 1) for scan in ranges for piece in _segments(scan)]
    total = sum(piece.size // weight for piece, weight in whole)
    task_count = least_tasks or 2 * (os.cpu_count() or 1)
    target = max(min(-(-total // task_count), largest), 1 if least_tasks else SMALLEST_TASK)
    logs = {str(scan.log.partition): scan.log for scan in ranges}
    tasks: list[list[Piece]] = []
    remaining = 0
    for piece, weight in whole:
        size = target * weight
        # With minPartitions no part may be larger than its share, or there would be fewer tasks.
        count = -(-piece.size // size) if least_tasks else round(piece.size / size)
        for part in _split(logs[f"{piece.topic}-{piece.partition}"], piece, count):
            if not tasks or part.size // weight > remaining:
                tasks.append([])
                remaining = target
            tasks[-1].append(part)
            remaining -= part.size // weight
    return tasks


def _segments(scan: ScanRange) -> list[Piece]:
    """Return one piece per segment of a range."""
    log = scan.log
    pieces = []
    for number, segment in enumerate(log.segments):
        last = number + 1 == len(log.segments)
        limit = log.tail[0] if last else log.segments[number + 1].base_offset
        first, end = max(scan.first_offset, segment.base_offset), min(scan.end_offset, limit)
        size = log.size_of(segment)
        if first >= end or not size:
            continue
        try:
            inode = identity(segment.path())
        except FileNotFoundError:
            inode = -1  # deleted or replaced: the task finds the file that holds its offsets now
        start = 0
        index = log.offset_index(segment)
        if index is not None and inode >= 0:
            start = index.lookup(first)
            size = min(_end_position(index, end, size), size)
        aborted = tuple(_overlapping(scan.aborted, first, end))
        pieces.append(
            Piece(
                log.folder.path,
                *log.partition,
                segment.base_offset,
                inode,
                start,
                max(size, start),
                first,
                end,
                aborted,
            )
        )
    return pieces


def _end_position(index: OffsetIndex, end_offset: int, size: int) -> int:
    """Return the position of the first indexed batch that lies wholly at or above an offset."""
    # An entry holds its batch's last offset, so that only the next batch is sure to begin at or past the end.
    slot = bisect_left(index.relative, end_offset - 1 - index.base_offset) + 1
    return index.positions[slot] if slot < len(index.positions) else size


def _split(log: PartitionFiles, piece: Piece, count: int) -> list[Piece]:
    """Cut a piece into about `count` parts at indexed batches; without an index it stays whole."""
    segment = next((segment for segment in log.segments if segment.base_offset == piece.segment), None)
    index = log.offset_index(segment) if segment is not None and piece.inode >= 0 else None
    if segment is None or index is None or count < 2:
        return [piece]
    borders = []
    last_border = piece.start
    for number in range(1, count):
        border = index.position_at_or_below(piece.start + piece.size * number // count)
        if border <= last_border:
            continue
        offset = _base_offset(segment, border)
        if offset is not None and piece.first_offset < offset < piece.end_offset:
            borders.append((border, offset))
        last_border = border
    parts = []
    start, first = piece.start, piece.first_offset
    for border, offset in [*borders, (piece.end, piece.end_offset)]:
        aborted = tuple(_overlapping(piece.aborted, first, offset))
        parts.append(replace(piece, start=start, end=border, first_offset=first, end_offset=offset, aborted=aborted))
        start, first = border, offset
    return parts


def _base_offset(segment: SegmentFiles, position: int) -> int | None:
    """Return the base offset of the batch at an indexed position, or None if there is none."""
    try:
        file = disk_of(segment.path()).open(segment.path(), writable=False)
    except FileNotFoundError:
        return None
    head = file.read_at(position, MAGIC_POSITION + 1)
    file.close()
    if len(head) <= MAGIC_POSITION or head[MAGIC_POSITION] != MAGIC:
        return None
    return int.from_bytes(head[:8], "big", signed=True)
