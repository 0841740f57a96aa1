"""Reads a log: a byte range by offset, an offset by timestamp, the aborted transactions of a range.

A fetch parses no record; only the search by timestamp opens one batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.storage.log.slices import FileSlice, LogRead, TimestampOffset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.records.batch import BatchHeader
    from ottla.records.iterate import Record
    from ottla.storage.log.indexes import AbortedTxn
    from ottla.storage.log.log import Log
    from ottla.storage.log.segment import Segment

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6


def read(log: Log, offset: int, max_bytes: int, upper_bound: int, *, min_one_batch: bool, aborted: bool) -> LogRead:
    """Return the batches of one segment from `offset` on that end below `upper_bound`, at most `max_bytes` of them."""
    if offset < log.log_start_offset or offset > log.log_end_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Offset {offset} of {log.topic_partition} is not in {log.log_start_offset}..{log.log_end_offset}.",
        )
    if offset >= upper_bound:
        return _nothing(offset, aborted)
    segments = log.segments
    slot = max(bisect_right(log.bases, offset) - 1, 0)
    first = None
    while slot < len(segments):
        segment = segments[slot]
        first = segment.find(offset)
        if first is not None:
            break
        slot += 1
    if first is None or first.base_offset >= upper_bound:
        return _nothing(offset, aborted)
    start = first.position
    limit = _position_of(log, slot, upper_bound, start)
    if limit <= start:
        return _nothing(offset, aborted)
    requested = max(max_bytes, first.size) if min_one_batch else max_bytes
    end = limit if start + requested >= limit else segment.border_at_or_below(start + requested, start)
    if end <= start:
        return LogRead(offset, None, segment.base_offset, start, [] if aborted else None, True)
    transactions = None
    if aborted:
        transactions = aborted_transactions(log, offset, min(_offset_above(log, slot, end), upper_bound))
    records = FileSlice(segment, start, end - start)
    return LogRead(offset, records, segment.base_offset, start, transactions, False)


def _nothing(offset: int, aborted: bool) -> LogRead:
    return LogRead(offset, None, -1, -1, [] if aborted else None, False)


def _position_of(log: Log, slot: int, upper_bound: int, start: int) -> int:
    """Return the position in a segment at which the batches below an offset end."""
    segment = log.segments[slot]
    if upper_bound >= log.log_end_offset:
        return segment.size
    if slot + 1 < len(log.bases) and log.bases[slot + 1] <= upper_bound:
        return segment.size
    batch = segment.find(upper_bound, start)
    return segment.size if batch is None else batch.position


def _offset_above(log: Log, slot: int, position: int) -> int:
    """Return an offset that no batch before a position of a segment reaches."""
    offset = log.segments[slot].offset_index.offset_at_or_above(position)
    if offset is not None:
        return offset
    return log.bases[slot + 1] if slot + 1 < len(log.bases) else log.log_end_offset


def aborted_transactions(log: Log, start: int, end: int) -> list[AbortedTxn]:
    """Return the aborted transactions that overlap [start, end).

    Look at segments that have any, from the one with `start` on (a marker follows its data), and stop at an entry whose
    last stable offset is at or past `end`.
    """
    aborted: list[AbortedTxn] = []
    if not log.txn_bases or start >= end:
        return aborted
    holder = log.bases[max(bisect_right(log.bases, start) - 1, 0)]
    for base in log.txn_bases[bisect_left(log.txn_bases, holder) :]:
        segment = log.segments[bisect_left(log.bases, base)]
        if segment.txn_index.collect(start, end, aborted):
            break
    return aborted


def offset_for_timestamp(log: Log, timestamp: int) -> TimestampOffset | None:
    """Return the first record at or after a timestamp, or what a special timestamp of ListOffsets names."""
    if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        earliest = log.epochs.earliest
        known = earliest is not None and earliest[1] <= log.log_start_offset
        return TimestampOffset(-1, log.log_start_offset, earliest[0] if known and earliest else None)
    if timestamp == LATEST_TIMESTAMP:
        return TimestampOffset(-1, log.log_end_offset, log.epochs.latest)
    if timestamp in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        return TimestampOffset(-1, -1, -1)  # there is no tiered storage
    if timestamp == MAX_TIMESTAMP:
        return _offset_of_max_timestamp(log)
    if timestamp < 0:
        return None
    for segment in log.segments:
        if segment.largest_timestamp() >= timestamp:
            return _first_at_or_after(segment, timestamp, log.log_start_offset)
    return None


def _offset_of_max_timestamp(log: Log) -> TimestampOffset | None:
    segment = max(log.segments, key=lambda candidate: candidate.max_timestamp_and_offset()[0])
    timestamp, offset = segment.max_timestamp_and_offset()
    for header in segment.batches(segment.offset_index.lookup(offset)):
        if header.max_timestamp == timestamp:
            for record in _records(segment, header):
                if record.timestamp == timestamp:
                    return _answer(header, record)
            return None
    return None


def _first_at_or_after(segment: Segment, timestamp: int, start_offset: int) -> TimestampOffset | None:
    position = segment.offset_index.lookup(max(segment.time_index.lookup(timestamp), start_offset))
    for header in segment.batches(position):
        if header.max_timestamp >= timestamp:
            for record in _records(segment, header):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return _answer(header, record)
    return None


def _answer(header: BatchHeader, record: Record) -> TimestampOffset:
    epoch = header.partition_leader_epoch
    return TimestampOffset(record.timestamp, record.offset, epoch if epoch >= 0 else None)


def _records(segment: Segment, header: BatchHeader) -> Iterator[Record]:
    data = segment.file().read_at(header.position, header.size)
    try:
        yield from iter_records(data, header._replace(position=0))
    except InvalidRecords as error:
        raise KafkaError(error.code, error.message) from error
