"""Decides what each task of a directory scan reads: byte ranges of segments, cut at batches through the offset index.

Planning runs once, on the driver's side; it opens indexes and tails, never whole segments.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.records.batch import MAGIC, MAGIC_POSITION
from ottla.spark.log.disk import disk_of, identity
from ottla.spark.offsets import EARLIEST, LATEST
from ottla.spark.options import OptionError

if TYPE_CHECKING:
    from ottla.records.columnar import AbortedTransaction
    from ottla.spark.log.files import PartitionFiles
    from ottla.spark.offsets import Bound
    from ottla.spark.pushdown.filters import Limits
    from ottla.storage.check.scan import SegmentFiles
    from ottla.storage.log.indexes import OffsetIndex

# The last is for tables of decisions: records of open transactions are left out and what lies behind them is not.
ISOLATIONS: Final = ("read_uncommitted", "read_committed", "decided")
READ_UNCOMMITTED, READ_COMMITTED, DECIDED = ISOLATIONS
SMALLEST_TASK: Final = 16 << 20
LARGEST_TASK: Final = 64 << 20
# How many bytes that are likely too late weigh as much as one that is decoded and sent: they are walked over.
LATE_WEIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Batches of one segment, by bytes and by offsets: should the file be replaced meanwhile, the offsets hold."""

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
        """Bytes to read."""
        return self.end - self.start


@dataclass(slots=True)
class ScanRange:
    """What the options leave of one partition; `late` where a limit of time is likely to leave nothing of it."""

    log: PartitionFiles
    first_offset: int
    end_offset: int
    aborted: list[AbortedTransaction] = field(default_factory=list)
    late: bool = False


def choose_ranges(
    logs: list[PartitionFiles], start: Bound, end: Bound, limits: Limits, *, isolation: str, strict_times: bool
) -> list[ScanRange]:
    """Turn the options and Spark's filters into offsets, partition by partition."""
    known = {log.partition for log in logs}
    for bound, name in ((start, "startingOffsets"), (end, "endingOffsets")):
        for topic, partition in bound.partitions:
            if (topic, partition) not in known:
                raise OptionError(f"{name} names {topic}-{partition}, which is not among the partitions that are read")
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
                stable, hidden = log.end_offset, sorted([*hidden, *undecided], key=lambda each: each.first_offset)
        first = _start(log, start, strict_times)
        last = _end(log, end)
        low, high = limits.offsets
        first, last = max(first, low), min(last, high + 1, stable)
        if limits.earliest is not None and first < last:
            found = log.offset_at(limits.earliest)
            first = last if found is None else max(first, found)
        late = last
        if limits.latest is not None and first < last:
            late = min(max(_later(log, limits.latest), first), last)
        for begin, stop, is_late in ((first, late, False), (late, last, True)):
            if begin < stop:
                aborted = [each for each in hidden if each.first_offset < stop and (each.last_offset or begin) >= begin]
                ranges.append(ScanRange(log, begin, stop, aborted, is_late))
    return ranges


def _later(log: PartitionFiles, timestamp: int) -> int:
    """From where on records are likely later than a time; that they all are is for whoever reads them to see."""
    try:
        found = log.offset_at(timestamp + 1)
    except OptionError:
        found = None
    return log.end_offset if found is None else found


def _start(log: PartitionFiles, bound: Bound, strict: bool) -> int:
    topic, partition = log.partition
    timestamp = bound.time(topic, partition)
    if timestamp is not None:
        found = log.offset_at(timestamp)
        if found is None and strict:
            raise OptionError(
                f"{log.partition} has no record at {timestamp} ms or later; give an earlier startingTimestamp, or "
                f"startingOffsetsByTimestampStrategy=latest to read nothing from it"
            )
        return log.end_offset if found is None else found
    offset = bound.offset(topic, partition)
    if offset == EARLIEST:
        return log.start_offset
    if offset == LATEST:
        return log.end_offset
    return _checked(log, offset, "startingOffsets")


def _end(log: PartitionFiles, bound: Bound) -> int:
    topic, partition = log.partition
    timestamp = bound.time(topic, partition)
    if timestamp is not None:
        found = log.offset_at(timestamp)
        return log.end_offset if found is None else found
    offset = bound.offset(topic, partition)
    return log.end_offset if offset == LATEST else _checked(log, offset, "endingOffsets")


def _checked(log: PartitionFiles, offset: int, name: str) -> int:
    if not log.start_offset <= offset <= log.end_offset:
        raise OptionError(
            f"{name} asks for offset {offset} of {log.partition}, which has {log.start_offset} to {log.end_offset}"
        )
    return offset


def plan_tasks(ranges: list[ScanRange], *, largest: int = LARGEST_TASK, least_tasks: int = 0) -> list[list[Piece]]:
    """Cut ranges into pieces and put small pieces together, so that a task is neither tiny nor huge."""
    whole = [(piece, LATE_WEIGHT if each.late else 1) for each in ranges for piece in _segments(each)]
    total = sum(piece.size // weight for piece, weight in whole)
    wanted = least_tasks or 2 * (os.cpu_count() or 1)
    target = max(min(-(-total // wanted), largest), 1 if least_tasks else SMALLEST_TASK)
    logs = {str(each.log.partition): each.log for each in ranges}
    tasks: list[list[Piece]] = []
    room = 0
    for piece, weight in whole:
        for part in _split(logs[f"{piece.topic}-{piece.partition}"], piece, target * weight):
            if not tasks or part.size // weight > room:
                tasks.append([])
                room = target
            tasks[-1].append(part)
            room -= part.size // weight
    return tasks


def _segments(wanted: ScanRange) -> list[Piece]:
    log = wanted.log
    pieces = []
    for number, segment in enumerate(log.segments):
        last = number + 1 == len(log.segments)
        limit = log.tail[0] if last else log.segments[number + 1].base_offset
        first, end = max(wanted.first_offset, segment.base_offset), min(wanted.end_offset, limit)
        size = log.size_of(segment)
        if first >= end or not size:
            continue
        try:
            inode = identity(segment.path())
        except FileNotFoundError:
            inode = -1  # gone already: the task will look where its offsets are now
        start = 0
        index = log.offset_index(segment)
        if index is not None and inode >= 0:
            start = index.lookup(first)
            size = min(_end_position(index, end, size), size)
        aborted = tuple(
            each for each in wanted.aborted if each.first_offset < end and (each.last_offset or first) >= first
        )
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
    """A batch border behind everything below an offset: the first indexed batch that lies wholly at or above it."""
    # An entry has its batch's last offset, so only the batch behind it is sure to begin at or past the end.
    slot = bisect_left(index.relative, end_offset - 1 - index.base_offset) + 1
    return index.positions[slot] if slot < len(index.positions) else size


def _split(log: PartitionFiles, piece: Piece, target: int) -> list[Piece]:
    """Cut a piece at indexed batches, about every `target` bytes; where the index is missing it stays whole."""
    segment = next((each for each in log.segments if each.base_offset == piece.segment), None)
    index = log.offset_index(segment) if segment is not None and piece.inode >= 0 else None
    count = round(piece.size / target)
    if segment is None or index is None or count < 2:
        return [piece]
    borders = []
    at = piece.start
    for number in range(1, count):
        border = index.position_at_or_below(piece.start + piece.size * number // count)
        if border <= at:
            continue
        offset = _base_offset(segment, border)
        if offset is not None and piece.first_offset < offset < piece.end_offset:
            borders.append((border, offset))
        at = border
    parts = []
    start, first = piece.start, piece.first_offset
    for border, offset in [*borders, (piece.end, piece.end_offset)]:
        aborted = tuple(
            each for each in piece.aborted if each.first_offset < offset and (each.last_offset or first) >= first
        )
        parts.append(
            Piece(
                piece.folder,
                piece.topic,
                piece.partition,
                piece.segment,
                piece.inode,
                start,
                border,
                first,
                offset,
                aborted,
            )
        )
        start, first = border, offset
    return parts


def _base_offset(segment: SegmentFiles, position: int) -> int | None:
    """The base offset of the batch at an indexed position, if one stands there."""
    try:
        file = disk_of(segment.path()).open(segment.path(), writable=False)
    except FileNotFoundError:
        return None
    head = file.read_at(position, MAGIC_POSITION + 1)
    file.close()
    if len(head) <= MAGIC_POSITION or head[MAGIC_POSITION] != MAGIC:
        return None
    return int.from_bytes(head[:8], "big", signed=True)
