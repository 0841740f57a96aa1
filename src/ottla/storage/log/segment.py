"""One segment of a log (Kafka's LogSegment): its records' file, its indexes, and how a batch is found in it.

High watermark and producer state are `Log`'s. Contents are loaded on first use.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import TYPE_CHECKING

from ottla.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC, MAGIC_POSITION, BatchHeader
from ottla.storage.errors import CorruptIndexError, CorruptLogError
from ottla.storage.log.indexes import (
    MAX_RELATIVE_OFFSET,
    OFFSET_ENTRY,
    TIME_ENTRY,
    AbortedTxn,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from ottla.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ottla.storage.config import LogConfig
    from ottla.storage.environment import StorageEnvironment
    from ottla.storage.open_files import OpenFile
    from ottla.world.disk import Buffer, File

MIN_BATCH = 14 + LOG_OVERHEAD  # an empty message of format 0
_LOOKUP_WINDOW = 8 << 10
_SCAN_WINDOW = 128 << 10
_LEGACY = struct.Struct(">qiIbb")
_LEGACY_TIMESTAMP = struct.Struct(">q")
_INDEX_OBJECT_BYTES = 400


class Segment:
    """The records from one base offset up to the next segment's (Kafka's LogSegment)."""

    __slots__ = (
        "_bytes_since_index",
        "_deferred",
        "_first_timestamp",
        "_max_timestamp",
        "_offset_index",
        "_offset_of_max_timestamp",
        "_pins",
        "_saved_size",
        "_size",
        "_time_index",
        "_txn_index",
        "active",
        "base_offset",
        "created_ms",
        "env",
        "folder",
        "jitter_ms",
        "log_path",
        "mark",
    )

    def __init__(self, env: StorageEnvironment, folder: str, base_offset: int, mark: str = "") -> None:
        self.env = env
        self.folder = folder
        self.base_offset = base_offset
        self.mark = mark
        self.log_path = self.path(LOG_SUFFIX)
        self.active = False
        self.created_ms = 0
        self.jitter_ms = 0
        self._size = -1
        self._saved_size = -1  # size of the records when both index files were last written; -1 if never
        self._pins = 0
        self._deferred: Callable[[], None] | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None
        self._first_timestamp: int | None = None
        self._max_timestamp = -2  # not known yet
        self._offset_of_max_timestamp = -1
        self._bytes_since_index = 0

    @classmethod
    def create(cls, env: StorageEnvironment, folder: str, base_offset: int, mark: str = "") -> Segment:
        """Create an empty segment with empty index files; files of that name that a crash left are emptied."""
        segment = cls(env, folder, base_offset, mark)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            env.create_empty(segment.path(suffix))
        env.remove_if_exists(segment.path(TXN_INDEX_SUFFIX))
        env.files.drop(segment.log_path)
        log_file = env.files.get(segment.log_path, create=True)
        if log_file.size():
            log_file.truncate(0)
        segment._size = segment._saved_size = 0
        segment._offset_index = OffsetIndex(base_offset)
        segment._time_index = TimeIndex(base_offset)
        segment._txn_index = TransactionIndex()
        segment._max_timestamp = -1
        segment._offset_of_max_timestamp = base_offset
        return segment

    def __repr__(self) -> str:
        return f"Segment({self.log_path!r})"

    def path(self, suffix: str) -> str:
        """Return the path of one of the segment's files."""
        return f"{self.folder}/{offset_name(self.base_offset, suffix)}{self.mark}"

    def has_empty_files(self) -> bool:
        """Return whether the segment has no records and its index files are empty, as `create` left them."""
        if self.size or self.mark:
            return False
        try:
            if self.env.disk.size(self.path(INDEX_SUFFIX)) or self.env.disk.size(self.path(TIME_INDEX_SUFFIX)):
                return False
        except FileNotFoundError:
            return False
        if self.env.disk.exists(self.path(TXN_INDEX_SUFFIX)):
            return False
        self.reset_indexes()
        self._txn_index = TransactionIndex()
        self._saved_size = 0
        return True

    def file(self) -> File:
        """Return the records' file, for immediate use only: another call may close it."""
        return self.env.files.get(self.log_path)

    @property
    def size(self) -> int:
        """The bytes of records."""
        if self._size < 0:
            self._size = self.env.disk.size(self.log_path)
        return self._size

    # Indexes -----------------------------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index, read from its file or rebuilt."""
        if self._offset_index is None:
            self._load_indexes()
        elif not self.active:
            self.env.indexes.used(self)
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The time index, read from its file or rebuilt."""
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    @property
    def txn_index(self) -> TransactionIndex:
        """The transaction index; empty for a segment without an index file."""
        if self._txn_index is None:
            try:
                data = self.env.disk.read(self.path(TXN_INDEX_SUFFIX))
            except FileNotFoundError:
                data = b""
            self._txn_index = TransactionIndex.decode(self.base_offset, data)
        return self._txn_index

    def has_readable_txn_index(self) -> bool:
        """Return whether the transaction index file can be decoded."""
        try:
            return self.txn_index is not None
        except CorruptIndexError:
            return False

    def end_by_index(self) -> tuple[int, int]:
        """Return the offset after the last whole batch and its end, read from the last offset index entry on."""
        position = 0
        file = self.env.open_if_exists(self.path(INDEX_SUFFIX))
        if file is not None:
            try:
                size = file.size() // OFFSET_ENTRY * OFFSET_ENTRY
                if size:
                    position = int.from_bytes(file.read_at(size - OFFSET_ENTRY // 2, OFFSET_ENTRY // 2))
            finally:
                file.close()
        for start in (position, 0) if position else (0,):
            offset, end = self.base_offset, 0
            try:
                for header in self.batches(start, window=_LOOKUP_WINDOW):
                    offset, end = header.next_offset, header.position + header.size
            except CorruptLogError:
                pass
            if end == self.size:
                break
        return offset, end

    def _load_indexes(self) -> None:
        read = self.env.disk.read
        try:
            self._offset_index = OffsetIndex.decode(self.base_offset, read(self.path(INDEX_SUFFIX)), self.size)
            self._time_index = TimeIndex.decode(self.base_offset, read(self.path(TIME_INDEX_SUFFIX)))
        except (FileNotFoundError, CorruptIndexError):
            self.rebuild_indexes()
            return
        if not self.active:
            self.env.indexes.loaded(self, self._index_cost())

    def _index_cost(self) -> int:
        entries = 8 * len(self._offset_index or ()) + 16 * len(self._time_index or ())
        return _INDEX_OBJECT_BYTES + entries

    def unload_indexes(self) -> None:
        """Drop the indexes of a closed segment from memory; the files keep them."""
        if not self.active:
            self._offset_index = self._time_index = None

    def rebuild_indexes(self, interval: int = 4096) -> None:
        """Rebuild offset index and time index from the batch headers, and write them."""
        self.reset_indexes()
        for header in self.batches():
            if not self.can_hold(header.last_offset):
                raise CorruptLogError(f"offset {header.last_offset} is out of range", header.position)
            self.index_batch(header.last_offset, header.max_timestamp, header.position, header.size, interval)
        self.write_indexes()
        if not self.active:
            self.env.indexes.loaded(self, self._index_cost())

    def reset_indexes(self) -> None:
        """Empty offset index and time index."""
        self._saved_size = -1
        self._offset_index = OffsetIndex(self.base_offset)
        self._time_index = TimeIndex(self.base_offset)
        self._max_timestamp = -1
        self._offset_of_max_timestamp = self.base_offset
        self._bytes_since_index = 0

    def index_batch(self, last_offset: int, max_timestamp: int, position: int, size: int, interval: int) -> None:
        """Note a batch that was appended; add an index entry at most every `interval` bytes."""
        if position == 0:
            self._first_timestamp = max_timestamp
        if max_timestamp > self._max_timestamp:
            if self._max_timestamp == -2:
                self._load_max_timestamp()
            if max_timestamp > self._max_timestamp:
                self._max_timestamp = max_timestamp
                self._offset_of_max_timestamp = last_offset
        if self._bytes_since_index > interval:
            if self._offset_index is None or self._time_index is None:
                self._load_indexes()
            assert self._offset_index is not None
            assert self._time_index is not None
            if last_offset - self.base_offset <= MAX_RELATIVE_OFFSET:
                self._offset_index.append(last_offset, position)
                self._time_index.maybe_append(self._max_timestamp, self._offset_of_max_timestamp)
            self._bytes_since_index = 0
        self._bytes_since_index += size

    def write_indexes(self, *, sync: bool = False) -> None:
        """Add the largest timestamp to the time index and write both sparse indexes to their files."""
        if self._saved_size >= 0 and self._saved_size == self._size and not sync:
            return
        timestamp, offset = self.max_timestamp_and_offset()
        self.time_index.maybe_append(timestamp, offset)
        self.env.write_file(self.path(INDEX_SUFFIX), self.offset_index.encode(), sync=sync)
        self.env.write_file(self.path(TIME_INDEX_SUFFIX), self.time_index.encode(), sync=sync)
        self._saved_size = self.size

    def written_elsewhere(self, size: int) -> None:
        """Set the size of a records' file that was written through another handle."""
        self._size = size

    def add_aborted(self, entry: AbortedTxn) -> None:
        """Add an aborted transaction, whose marker is in this segment, to the transaction index."""
        index = self.txn_index
        file = self.env.disk.open(self.path(TXN_INDEX_SUFFIX), create=True)
        try:
            file.append(index.encode_entry(entry))
        finally:
            file.close()
        index.append(entry)

    def write_txn_index(self, index: TransactionIndex, *, sync: bool = False) -> None:
        """Replace the transaction index; an empty one has no file."""
        self._txn_index = index
        path = self.path(TXN_INDEX_SUFFIX)
        if index.entries:
            self.env.write_file(path, index.encode(), sync=sync)
        elif self.env.disk.exists(path):
            self.env.disk.remove(path)

    def is_index_full(self, config: LogConfig) -> bool:
        """Return whether an index has reached `segment.index.bytes`."""
        offsets, times = self._offset_index, self._time_index
        if offsets is None or times is None:
            offsets, times = self.offset_index, self.time_index
        size = config.segment_index_bytes
        return len(offsets.relative) >= size // OFFSET_ENTRY or len(times) >= size // TIME_ENTRY - 1

    def can_hold(self, offset: int) -> bool:
        """Return whether an offset is within the indexes' 31 bits of the base offset."""
        return 0 <= offset - self.base_offset <= MAX_RELATIVE_OFFSET

    # Timestamps --------------------------------------------------------------------------------------------------

    def max_timestamp_and_offset(self) -> tuple[int, int]:
        """Return the largest timestamp and the last offset of its batch; (-1, base offset) without records."""
        if self._max_timestamp == -2:
            self._load_max_timestamp()
        return self._max_timestamp, self._offset_of_max_timestamp

    def _load_max_timestamp(self) -> None:
        timestamp, offset = self.time_index.last
        if self._max_timestamp != -2:
            return  # rebuilding the missing index has set it
        if timestamp >= 0:
            batch = self.find(offset)
            if batch is None or (batch.magic == MAGIC and batch.max_timestamp != timestamp):
                self.rebuild_indexes()
                return
        self._max_timestamp, self._offset_of_max_timestamp = timestamp, offset

    def first_timestamp(self) -> int:
        """Return the largest timestamp of the first batch, from which `segment.ms` counts; -1 without records."""
        if self._first_timestamp is None:
            first = next(self.batches(window=_LOOKUP_WINDOW), None) if self.size else None
            if first is None:
                return -1
            self._first_timestamp = first.max_timestamp
        return self._first_timestamp

    def largest_timestamp(self) -> int:
        """Return the largest timestamp, by which retention decides; the file's time if records have none."""
        timestamp, _ = self.max_timestamp_and_offset()
        return timestamp if timestamp >= 0 else self.env.disk.modified_ms(self.log_path)

    # Records -----------------------------------------------------------------------------------------------------

    def append(self, *parts: Buffer) -> int:
        """Append whole batches and return their position; call `index_batch` for each afterwards."""
        position = self._size if self._size >= 0 else self.size
        self._size = position + self.env.files.get(self.log_path).append(*parts)
        return position

    def batches(self, position: int = 0, end: int | None = None, window: int = _SCAN_WINDOW) -> Iterator[BatchHeader]:
        """Yield the headers of whole batches from a batch border on; raise `CorruptLogError` for bytes that are no
        header.
        """
        if end is None:
            end = self.size
        while end - position >= MIN_BATCH:
            chunk = self.file().read_at(position, min(window, end - position))
            if len(chunk) < MIN_BATCH:
                return
            start = 0
            while len(chunk) - start >= HEADER_SIZE or (
                position + len(chunk) == end and len(chunk) - start >= MIN_BATCH
            ):
                if len(chunk) - start < HEADER_SIZE and chunk[start + MAGIC_POSITION] == MAGIC:
                    return  # torn inside its header
                header = parse_header(chunk, start, position)
                start += header.size
                if position + start > end:
                    return
                yield header
            position += start

    def find(self, offset: int, start: int = 0) -> BatchHeader | None:
        """Return the first batch that ends at or past an offset; None if the segment ends before."""
        position = max(self.offset_index.lookup(offset), start)
        for header in self._indexed_batches(position):
            if header.last_offset >= offset:
                return header
        return None

    def border_at_or_below(self, limit: int, start: int) -> int:
        """Return the last batch border not above a position, searching from a border at `start`."""
        if limit >= self.size:
            return self.size
        border = max(start, self.offset_index.position_at_or_below(limit))
        for header in self._indexed_batches(border):
            end = header.position + header.size
            if end > limit:
                break
            border = end
        return border

    def _indexed_batches(self, position: int) -> Iterator[BatchHeader]:
        """Yield batches from an index entry's position on; rebuild the index and yield all if the entry is wrong."""
        indexed = self.offset_index.offset_at(position)
        walk = self.batches(position, window=_LOOKUP_WINDOW)
        if indexed is None:
            return walk
        try:
            first = next(walk, None)
        except CorruptLogError:
            first = None
        if first is not None and first.last_offset == indexed:
            return chain((first,), walk)
        self.rebuild_indexes()
        return self.batches(window=_LOOKUP_WINDOW)

    def next_offset(self) -> tuple[int, int]:
        """Return the offset after the last whole batch and that batch's end; (base offset, 0) if empty."""
        offset, end = self.base_offset, 0
        for header in self.batches(self.offset_index.lookup(self.offset_index.last_offset)):
            offset, end = header.next_offset, header.position + header.size
        return offset, end

    def next_offset_by_scan(self) -> int:
        """Return the offset after the last whole batch, without using the indexes."""
        offset = self.base_offset
        for header in self.batches():
            offset = header.next_offset
        return offset

    def truncate(self, size: int) -> None:
        """Truncate the records' file and fsync it, so that the rest cannot come back; indexes are the caller's."""
        file = self.file()
        file.truncate(size)
        file.sync()
        self._size = size
        self._saved_size = -1
        if size == 0:
            self._first_timestamp = None
            self.created_ms = self.env.clock.now_ms()

    def truncate_to(self, offset: int) -> int:
        """Delete the batch that holds `offset` and all after it; return the bytes deleted."""
        batch = self.find(offset)
        size = self.size
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        if self.txn_index.truncate_to(offset):
            self.write_txn_index(self.txn_index)
        if batch is not None:
            self.truncate(batch.position)
        self._bytes_since_index = 0
        self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last
        for header in self.batches(self.offset_index.lookup(self._offset_of_max_timestamp)):
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._offset_of_max_timestamp = header.max_timestamp, header.last_offset
        return size - self.size

    # Lifecycle ----------------------------------------------------------------------------------------------

    def activate(self, config: LogConfig) -> None:
        """Make this the segment that takes appends."""
        self.active = True
        self.env.indexes.forget(self)
        self.created_ms = self.env.clock.now_ms()
        jitter = config.segment_jitter_ms
        self.jitter_ms = self.env.random.below(jitter) if jitter > 0 else 0

    def deactivate(self) -> None:
        """Close the segment for appends: write its indexes, which may leave memory now."""
        self.write_indexes()
        self.active = False
        self.bound_memory()

    def bound_memory(self) -> None:
        """Count the indexes of a closed segment among those that may leave memory."""
        self.env.indexes.loaded(self, self._index_cost())

    def pin(self) -> OpenFile:
        """Keep the records' file open and in place until `unpin`."""
        entry = self.env.files.pin(self.log_path)
        self._pins += 1
        return entry

    def unpin(self, entry: OpenFile) -> None:
        """Release a pin; the last one runs a deferred deletion."""
        self.env.files.unpin(self.log_path, entry)
        self._pins -= 1
        if self._pins == 0 and self._deferred is not None:
            deferred, self._deferred = self._deferred, None
            deferred()

    def when_unpinned(self, action: Callable[[], None]) -> None:
        """Call `action` now, or at the last `unpin`."""
        if self._pins == 0:
            action()
        else:
            self._deferred = action

    def change_mark(self, mark: str) -> None:
        """Rename all files of the segment to another mark (`.deleted`, `.swap`, or none)."""
        for suffix in SEGMENT_SUFFIXES:
            old = self.path(suffix)
            new = f"{self.folder}/{offset_name(self.base_offset, suffix)}{mark}"
            try:
                self.env.disk.rename(old, new)
            except FileNotFoundError:
                continue
            self.env.files.rename(old, new)
        self.mark = mark
        self.log_path = self.path(LOG_SUFFIX)

    def move_to(self, folder: str) -> None:
        """Note that the segment's files are in another folder."""
        self.folder = folder
        self.log_path = self.path(LOG_SUFFIX)

    def delete_files(self) -> None:
        """Delete all files of the segment."""
        self.env.indexes.forget(self)
        for suffix in SEGMENT_SUFFIXES:
            self.env.remove_if_exists(self.path(suffix))

    def paths_to_sync(self) -> list[str]:
        """Return the files to fsync before the recovery point may pass this segment."""
        return [self.path(suffix) for suffix in SEGMENT_SUFFIXES]


def parse_header(chunk: bytes | memoryview, at: int, chunk_position: int) -> BatchHeader:
    """Return the header at `at` of bytes that were read at `chunk_position`; formats 0, 1 and 2."""
    if len(chunk) - at >= HEADER_SIZE:
        fields = HEADER.unpack_from(chunk, at)
        if fields[3] == MAGIC:
            if fields[1] < HEADER_SIZE - LOG_OVERHEAD or fields[0] < 0 or fields[6] < 0:
                raise CorruptLogError(f"no batch at position {chunk_position + at}", chunk_position + at)
            return BatchHeader._make((*fields, chunk_position + at))
    offset, length, crc, magic, attributes = _LEGACY.unpack_from(chunk, at)
    if magic not in (0, 1) or length < MIN_BATCH - LOG_OVERHEAD or offset < 0:
        raise CorruptLogError(f"no batch at position {chunk_position + at}", chunk_position + at)
    timestamp = -1
    if magic == 1 and len(chunk) - at >= _LEGACY.size + _LEGACY_TIMESTAMP.size:
        (timestamp,) = _LEGACY_TIMESTAMP.unpack_from(chunk, at + _LEGACY.size)
    return BatchHeader(
        offset, length, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, 1, chunk_position + at
    )
