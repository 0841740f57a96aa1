"""The cleaning of closed segments (Kafka's Cleaner): map each key to its latest offset, then copy what remains.

Runs in a worker: it has its own file handles and changes nothing that the event loop owns. `compaction` decides what to
clean and swaps the result in.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from ottla.records import kernel
from ottla.records.batch import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    TimestampType,
    check_crc,
)
from ottla.records.builder import seal_batch
from ottla.records.compression import CompressionType
from ottla.records.compression import compress as compress_bytes
from ottla.records.control import ControlType, parse_control_key
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records, record_bytes
from ottla.storage.errors import CleaningAbortedError, CorruptLogError
from ottla.storage.log.indexes import TransactionIndex
from ottla.storage.log.segment import MIN_BATCH, Segment, parse_header
from ottla.storage.names import CLEANED_SUFFIX, SEGMENT_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ottla.storage.config import LogConfig
    from ottla.storage.environment import StorageEnvironment
    from ottla.storage.log.indexes import AbortedTxn

_CHUNK = 1 << 20
_SLOT_BYTES = 24
_LOAD_FACTOR = 0.9
DEFAULT_DEDUPE_BYTES = 128 << 20


class SourceSegment(NamedTuple):
    """A closed segment as the cleaner sees it: names and numbers, copied on the loop."""

    base_offset: int
    path: str
    size: int
    modified_ms: int
    index_bytes: int
    time_index_bytes: int


class LastRecord(NamedTuple):
    """A live producer's epoch and its last data offset, -1 if it has none in that epoch."""

    last_data_offset: int
    producer_epoch: int


@dataclass(slots=True)
class CleaningStats:
    """The counters of one cleaning."""

    bytes_read: int = 0


@dataclass(slots=True)
class CleaningPlan:
    """The input of a cleaning, copied on the loop."""

    env: StorageEnvironment
    folder: str
    config: LogConfig
    now_ms: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    segments: list[SourceSegment]
    aborted: list[AbortedTxn]
    last_records: dict[int, LastRecord]
    hash_seed: bytes
    dedupe_bytes: int = DEFAULT_DEDUPE_BYTES
    cancelled: Callable[[], bool] = lambda: False
    stats: CleaningStats = field(default_factory=CleaningStats)


class _Transactions:
    """The transactions that overlap a position of the log (CleanedTransactionMetadata): which data is aborted, which
    markers are obsolete.
    """

    __slots__ = ("_aborted", "_committed", "_ongoing", "kept")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._aborted = deque(sorted(aborted, key=lambda entry: entry.first_offset))
        self._ongoing: dict[int, tuple[AbortedTxn, bool]] = {}  # producer id -> transaction, has data
        self._committed: set[int] = set()
        self.kept = TransactionIndex()

    def _consume(self, offset: int) -> None:
        while self._aborted and self._aborted[0].first_offset <= offset:
            entry = self._aborted.popleft()
            self._ongoing.setdefault(entry.producer_id, (entry, False))

    def on_data(self, header: BatchHeader) -> bool:
        """Return whether a data batch belongs to an aborted transaction."""
        self._consume(header.last_offset)
        if not header.is_transactional:
            return False
        ongoing = self._ongoing.get(header.producer_id)
        if ongoing is not None:
            self._ongoing[header.producer_id] = (ongoing[0], True)
            return True
        self._committed.add(header.producer_id)
        return False

    def on_control(self, header: BatchHeader, control: ControlType | None) -> bool:
        """Return whether a control batch is the marker of a transaction without remaining data."""
        self._consume(header.last_offset)
        if control is None:
            return True  # an earlier compaction emptied it
        if control == ControlType.ABORT:
            ongoing = self._ongoing.pop(header.producer_id, None)
            if ongoing is not None and ongoing[1]:
                self.kept.append(ongoing[0])
                return False
            return True
        if control == ControlType.COMMIT:
            if header.producer_id in self._committed:
                self._committed.discard(header.producer_id)
                return False
            return True
        return False


class Cleaning:
    """One cleaning of one log: call `build_map`, then `clean` for each of `groups`."""

    def __init__(self, plan: CleaningPlan) -> None:
        self.plan = plan
        self.end_offset = plan.first_dirty_offset
        self.groups: list[list[SourceSegment]] = []
        self._hash = kernel.KeyHash(plan.hash_seed)
        self._slots: array[int] = array("Q")
        self._latest_offset = -1
        self._transactions = _Transactions(plan.aborted)

    # The map -----------------------------------------------------------------------------------------------------

    def build_map(self) -> None:
        """Map each key of the dirty section to its latest offset, and group the segments to copy."""
        plan = self.plan
        dirty = _holding(plan.segments, plan.first_dirty_offset, plan.first_uncleanable_offset)
        counted = sum(header.record_count for source in dirty for _, _, header in self._batches(source, check=False))
        slots = max(min(int(counted / _LOAD_FACTOR) + 8, plan.dedupe_bytes // _SLOT_BYTES), 8)
        self._slots = array("Q", bytes(slots * _SLOT_BYTES))
        room = int(slots * _LOAD_FACTOR)
        transactions = _Transactions(e for e in plan.aborted if e.last_offset >= plan.first_dirty_offset)
        full = False
        for number, source in enumerate(dirty):
            room, full = self._map_segment(source, room, transactions)
            if full:
                break
            after = dirty[number + 1].base_offset if number + 1 < len(dirty) else plan.first_uncleanable_offset
            self._latest_offset = max(self._latest_offset, after - 1)
        if full and self._latest_offset < plan.first_dirty_offset:
            raise CorruptLogError("one batch has more keys than the cleaner's map can hold", 0)
        self.end_offset = max(self._latest_offset + 1, plan.first_dirty_offset)
        to_clean = [source for source in plan.segments if source.base_offset < self.end_offset]
        self.groups = group_by_size(to_clean, plan.config, plan.first_uncleanable_offset)

    def _map_segment(self, source: SourceSegment, room: int, transactions: _Transactions) -> tuple[int, bool]:
        plan = self.plan
        for chunk, at, header in self._batches(source):
            if header.last_offset < plan.first_dirty_offset:
                continue
            if header.magic != MAGIC:
                continue
            if header.is_control:
                transactions.on_control(header, _control_type(chunk, header, at))
            elif not transactions.on_data(header) and header.record_count > 0:
                records = memoryview(record_bytes(chunk, header._replace(position=at)))
                walk = kernel.RecordWalk(records, 0, len(records), header.record_count)
                room -= self._hash.put_keys(walk, header.base_offset, plan.first_dirty_offset, self._slots, room)
                if walk.error:
                    raise CorruptLogError(f"record {walk.index} of the batch cannot be read", header.position)
                if walk.index < walk.count:
                    return room, True
            self._latest_offset = header.last_offset
        return room, False

    # The copy ----------------------------------------------------------------------------------------------------

    def clean(self, group: list[SourceSegment]) -> Segment:
        """Copy the remaining records of a group of segments into one segment marked `.cleaned`, and fsync it."""
        plan = self.plan
        env = plan.env
        made = Segment(env, plan.folder, group[0].base_offset, CLEANED_SUFFIX)
        for suffix in SEGMENT_SUFFIXES:
            if env.disk.exists(made.path(suffix)):
                env.disk.remove(made.path(suffix))
        made.reset_indexes()
        self._transactions.kept = TransactionIndex()
        out = env.disk.open(made.log_path, create=True)
        try:
            written = 0
            parts: list[bytes | bytearray | memoryview] = []
            waiting = 0
            for source in group:
                for chunk, at, header in self._batches(source):
                    kept = self._filter(chunk, at, header)
                    if kept is None:
                        continue
                    batch, max_timestamp = kept
                    made.index_batch(
                        header.last_offset,
                        max_timestamp,
                        written + waiting,
                        len(batch),
                        plan.config.index_interval_bytes,
                    )
                    parts.append(batch)
                    waiting += len(batch)
                    if waiting >= _CHUNK:
                        out.append(*parts)
                        written, waiting, parts = written + waiting, 0, []
            if parts:
                out.append(*parts)
                written += waiting
            out.sync()
        finally:
            out.close()
        made.written_elsewhere(written)
        made.write_indexes(sync=True)
        made.write_txn_index(self._transactions.kept, sync=True)
        for suffix in SEGMENT_SUFFIXES[:3]:
            env.disk.set_modified_ms(made.path(suffix), group[-1].modified_ms)
        return made

    def _filter(
        self, chunk: memoryview, at: int, header: BatchHeader
    ) -> tuple[bytes | bytearray | memoryview, int] | None:
        """Return what remains of a batch, with its largest timestamp; None if nothing does."""
        plan = self.plan
        whole = chunk[at : at + header.size]
        if header.magic != MAGIC:
            return bytes(whole), header.max_timestamp
        horizon = header.delete_horizon_ms
        if header.is_control:
            removable = self._transactions.on_control(header, _control_type(chunk, header, at))
            discard = removable and horizon is not None and horizon <= plan.now_ms
        else:
            removable = discard = self._transactions.on_data(header)
        keep_empty = self._must_stay(header)
        if discard and not keep_empty:
            return None
        marks = bytearray(max(header.record_count, 0))
        marker_without_data = removable and header.is_control
        tombstones = False
        records = memoryview(b"")
        if not discard and marks:
            records = memoryview(record_bytes(whole, header._replace(position=0)))
            tombstones = self._mark(records, header, horizon, marks)
        if not any(marks):
            return (empty_batch(header), header.max_timestamp) if keep_empty else None
        set_horizon = horizon is None and (tombstones or marker_without_data)
        if all(marks) and not set_horizon:
            return bytes(whole), header.max_timestamp
        if set_horizon:
            horizon = plan.now_ms + plan.config.delete_retention_ms
        return keep_marked_records(records, header, marks, horizon)

    def _mark(self, records: memoryview, header: BatchHeader, horizon: int | None, marks: bytearray) -> bool:
        """Mark the records that remain; return whether a tombstone is among them."""
        walk = kernel.RecordWalk(records, 0, len(records), header.record_count)
        if header.is_control or header.base_offset > self._latest_offset:
            marks[:] = b"\x01" * len(marks)
            if header.is_control:
                return False
            tombstones = False
            while walk.advance():
                tombstones = tombstones or walk.value_length < 0
        else:
            self._hash.mark_latest(walk, header.base_offset, self._slots, marks)
            expired = horizon is not None and self.plan.now_ms >= horizon
            tombstones = 2 in marks and not expired
            marks[:] = marks.replace(b"\x02", b"\x00" if expired else b"\x01")
        if walk.error:
            raise CorruptLogError(f"record {walk.index} of the batch cannot be read", header.position)
        return tombstones

    def _must_stay(self, header: BatchHeader) -> bool:
        """Return whether a batch stays even if empty: a live producer's last batch, or the last of this cleaning."""
        if header.producer_id >= 0:
            last = self.plan.last_records.get(header.producer_id)
            if last is not None:
                if last.last_data_offset >= 0:
                    if header.last_offset == last.last_data_offset:
                        return True
                elif header.is_control and header.producer_epoch == last.producer_epoch:
                    return True
        return header.next_offset == self.plan.first_uncleanable_offset

    # Reading -----------------------------------------------------------------------------------------------------

    def _batches(self, source: SourceSegment, *, check: bool = True) -> Iterator[tuple[memoryview, int, BatchHeader]]:
        """Yield the batches of a segment with the bytes that hold them; raise with the position for a bad CRC or a torn
        batch.
        """
        file = self.plan.env.disk.open(source.path, writable=False)
        try:
            position, chunk_size = 0, _CHUNK
            while position < source.size:
                if self.plan.cancelled():
                    raise CleaningAbortedError
                chunk = memoryview(file.read_at(position, min(chunk_size, source.size - position)))
                if check:
                    self.plan.stats.bytes_read += len(chunk)
                at = 0
                while len(chunk) - at >= (HEADER_SIZE if position + len(chunk) < source.size else MIN_BATCH):
                    header = parse_header(chunk, at, position)
                    if header.size > len(chunk) - at:
                        break
                    if check and header.magic == MAGIC and not check_crc(chunk, header._replace(position=at)):
                        raise CorruptLogError(f"wrong CRC in {source.path} at byte {position + at}", position + at)
                    yield chunk, at, header
                    at += header.size
                if at == 0:
                    if position + len(chunk) >= source.size:
                        raise CorruptLogError(f"cut off batch in {source.path} at byte {position}", position)
                    chunk_size *= 2
                else:
                    chunk_size = _CHUNK
                position += at
        finally:
            file.close()


def _holding(segments: list[SourceSegment], start: int, end: int) -> list[SourceSegment]:
    """Return the segments that may hold offsets of [start, end)."""
    holding = []
    for number, source in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else end
        if following > start and source.base_offset < end:
            holding.append(source)
    return holding


def group_by_size(
    segments: list[SourceSegment], config: LogConfig, first_uncleanable_offset: int
) -> list[list[SourceSegment]]:
    """Group neighbouring segments that fit into one, by bytes, index sizes and offset range."""
    groups: list[list[SourceSegment]] = []
    size = index = time_index = 0
    for number, source in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else first_uncleanable_offset
        if (
            groups
            and size + source.size <= config.segment_bytes
            and index + source.index_bytes <= config.segment_index_bytes
            and time_index + source.time_index_bytes <= config.segment_index_bytes
            and (source.size == 0 or following - 1 - groups[-1][0].base_offset <= 0x7FFFFFFF)
        ):
            groups[-1].append(source)
        else:
            groups.append([source])
            size = index = time_index = 0
        size += source.size
        index += source.index_bytes
        time_index += source.time_index_bytes
    return groups


def _control_type(chunk: memoryview, header: BatchHeader, at: int) -> ControlType | None:
    """Return the type of a control batch; None if it is empty."""
    for record in iter_records(chunk, header._replace(position=at)):
        try:
            return parse_control_key(record.key)
        except InvalidRecords:
            return ControlType.UNKNOWN
    return None


def keep_marked_records(
    records: memoryview, header: BatchHeader, marks: bytearray, horizon: int | None
) -> tuple[bytearray, int]:
    """Build a batch of the marked records only and return it with its largest timestamp; offsets do not change."""
    count = header.record_count
    table = array("q", bytes(8 * kernel.INDEX_WIDTH * count))
    kernel.index_records(kernel.RecordWalk(records, 0, len(records), count), table)
    deltas = list(compress(table[kernel.INDEX_TIMESTAMP_DELTA :: kernel.INDEX_WIDTH], marks))
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
        max_timestamp = header.max_timestamp
    else:
        max_timestamp = header.base_timestamp + max(deltas)
    base = header.base_timestamp + deltas[0] if horizon is None else horizon
    room = memoryview(bytearray(len(records) + 16 * count))
    walk = kernel.RecordWalk(records, 0, len(records), count)
    body: bytes | bytearray | memoryview = room[: kernel.copy_records(walk, marks, header.base_timestamp - base, room)]
    codec = header.compression
    if codec != CompressionType.NONE:
        body = compress_bytes(codec, body)
    attributes = header.attributes & ~DELETE_HORIZON_FLAG
    if horizon is not None:
        attributes |= DELETE_HORIZON_FLAG
    made = seal_batch(
        body,
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base,
        max_timestamp=max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=len(deltas),
    )
    return made, max_timestamp


def empty_batch(header: BatchHeader) -> bytearray:
    """Build a batch without records that keeps its offsets and its producer's last sequence."""
    return seal_batch(
        b"",
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        attributes=header.attributes & (LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG),
        last_offset_delta=header.last_offset_delta,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=0,
    )
