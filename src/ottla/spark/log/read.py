"""Read the pieces of a directory scan on executors: verified bytes in, Arrow batches out.

Handles a broker that changes its files meanwhile: compaction replaces them, retention deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct
from typing import TYPE_CHECKING, Final

from ottla.records import kernel
from ottla.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, MAGIC_POSITION, iter_batches, read_header
from ottla.records.compression import MAX_DECOMPRESSED
from ottla.records.control import parse_control_key
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records, record_bytes
from ottla.spark.columns import Columns, TableWriter
from ottla.spark.data_loss import DataLossError, report_loss, warn
from ottla.spark.log.disk import disk_of, identity
from ottla.spark.log.files import read_checkpoint, read_entries
from ottla.storage.check.scan import read_folder
from ottla.storage.errors import CorruptIndexError
from ottla.storage.log.indexes import OFFSET_ENTRY, OffsetIndex
from ottla.storage.names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    TopicPartition,
    offset_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]

    from ottla.records.batch import BatchHeader
    from ottla.spark.log.plan import Piece
    from ottla.world.disk import File

SOURCE: Final = "ottla-log"
CHUNK: Final = 2 << 20  # of a local file: one Arrow batch, decoded while it is in the cache
PASSED_CHUNK: Final = 256 << 10  # of a local file outside the time range: skipped in the first-level cache
LARGEST_CHUNK: Final = 8 << 20  # of a remote file, or of large batches that would otherwise be read twice
_HEAD: Final = Struct(">qi4xb")


class DamagedLogError(Exception):
    """Bytes of a segment are no batch, or a batch does not match its CRC."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How pieces are read."""

    columns: Columns
    bad_records: str = "fail"
    include_control: bool = False
    fail_on_data_loss: bool = True
    times: tuple[int, int] | None = None


def read_pieces(pieces: Sequence[Piece], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the pieces of one task, without records that were deleted since the task was planned."""
    starts: dict[str, dict[TopicPartition, int]] = {}
    for piece in pieces:
        directory = piece.folder.rpartition("/")[0]
        if directory not in starts:
            starts[directory] = read_checkpoint(directory, LOG_START_CHECKPOINT)
        start = starts[directory].get(TopicPartition(piece.topic, piece.partition), 0)
        if start > piece.first_offset:
            _report_removed(piece, min(start, piece.end_offset), settings)
            if start >= piece.end_offset:
                continue
            yield from _read_piece(replace(piece, first_offset=start), settings)
        else:
            yield from _read_piece(piece, settings)


def _report_removed(piece: Piece, end: int, settings: ReadSettings) -> None:
    report_loss(
        SOURCE,
        f"{piece.topic}-{piece.partition}: offsets {piece.first_offset} to {end - 1} were removed while they were "
        "being read (retention or deletion)",
        "read again, or set failOnDataLoss=false to skip them",
        fail=settings.fail_on_data_loss,
    )


def _read_piece(piece: Piece, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    path = f"{piece.folder}/{offset_name(piece.segment, LOG_SUFFIX)}"
    disk = disk_of(path)
    for candidate in (path, path + DELETED_SUFFIX):
        try:
            file = disk.open(candidate, writable=False)
            if identity(candidate) != piece.inode:
                file.close()
                continue
        except FileNotFoundError:
            continue
        try:
            yield from _PieceReader(piece, settings, file, candidate).read()
        finally:
            file.close()
        return
    yield from _read_elsewhere(piece, settings)


def _read_elsewhere(piece: Piece, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """Read a piece by its offsets, from the files that hold them now; retention may delete more of them meanwhile."""
    while piece.first_offset < piece.end_offset:
        try:
            segments = read_folder(disk_of(piece.folder), piece.folder).segments
        except FileNotFoundError:
            segments = []
        base = segments[0].base_offset if segments else piece.end_offset
        if base > piece.first_offset:
            _report_removed(piece, min(base, piece.end_offset), settings)
        for number, segment in enumerate(segments):
            following = segments[number + 1].base_offset if number + 1 < len(segments) else piece.end_offset
            if segment.base_offset >= piece.end_offset or following <= piece.first_offset:
                continue
            try:
                file = disk_of(segment.path()).open(segment.path(), writable=False)
            except FileNotFoundError:
                # Deleted or replaced since it was listed: list again what is left of the piece.
                piece = replace(piece, first_offset=max(piece.first_offset, segment.base_offset))
                break
            try:
                moved = replace(piece, segment=segment.base_offset, start=0, end=file.size())
                yield from _PieceReader(moved, settings, file, segment.path()).read()
            finally:
                file.close()
            piece = replace(piece, first_offset=min(max(piece.first_offset, following), piece.end_offset))
        else:
            return


class _PieceReader:
    """Read one piece from one file."""

    def __init__(self, piece: Piece, settings: ReadSettings, file: File, path: str) -> None:
        self._piece = piece
        self._settings = settings
        self._file = file
        self._path = path
        partition = TopicPartition(piece.topic, piece.partition)
        self._table = TableWriter(settings.columns, partition, piece.segment, times=settings.times)

    def read(self) -> Iterator[pa.RecordBatch]:
        piece = self._piece
        least = LARGEST_CHUNK if "://" in self._path else CHUNK
        position, want = piece.start, least
        while position < piece.end:
            data = self._file.read_at(position, min(want, piece.end - position))
            passed, behind = self._pass(data)
            if behind:
                return
            position += passed
            chunk = memoryview(data)[passed:]
            whole, damage, done = self._walk(chunk, position)
            if whole:
                for start, end in self._in_time(chunk[:whole]):
                    yield from self._decode(chunk[start:end], position + start)
                position += whole
            if passed + whole:
                enough = least if whole or least > CHUNK else PASSED_CHUNK
                want = enough if 4 * (passed + whole) > 3 * len(data) else LARGEST_CHUNK
            if done:
                return
            if damage is not None:
                following = self._next_border(position)
                yield from self._damaged(damage, position, following)
                position = following
            elif not passed + whole:
                if len(chunk) < min(want, piece.end - position):
                    raise DataLossError(f"{self._path} was cut at {position + len(chunk)} while it was being read")
                want = max(want * 2, LOG_OVERHEAD + int.from_bytes(chunk[8:12], "big"))

    def _pass(self, data: bytes) -> tuple[int, bool]:
        """Return how many bytes are batches outside the time range, and whether the end offset was passed.

        The kernel does all the work, without a step in Python for each batch.
        """
        times = self._settings.times
        if times is None:
            return 0, False
        scan = kernel.BatchScan(data)
        passed = scan.next_in_time(0, *times)
        return passed, scan.base_offset >= self._piece.end_offset

    def _walk(self, chunk: memoryview, position: int) -> tuple[int, str | None, bool]:
        """Return how many bytes are whole batches, what is wrong behind them, and whether the end offset was passed."""
        at_byte, end = 0, len(chunk)
        left = self._piece.end - position
        last = self._piece.end_offset
        while end - at_byte > MAGIC_POSITION:
            base, length, magic = _HEAD.unpack_from(chunk, at_byte)
            size = LOG_OVERHEAD + length
            if magic != MAGIC or size < HEADER_SIZE or size > left - at_byte:
                return at_byte, f"{size} bytes with magic {magic} are no batch that fits here", False
            if base >= last:
                return at_byte, None, True
            if size > end - at_byte:
                return at_byte, None, False
            at_byte += size
        if at_byte < end and end == left:
            return at_byte, f"{end - at_byte} bytes behind the last batch are no batch", False
        return at_byte, None, False

    def _in_time(self, view: memoryview) -> Iterator[tuple[int, int]]:
        """Yield the runs of whole batches that can hold records within the time range."""
        if self._settings.times is None:
            yield 0, len(view)
            return
        earliest, latest = self._settings.times
        scan = kernel.BatchScan(view)
        start = run_end = 0
        while (next_batch := scan.next_in_time(run_end, earliest, latest)) < len(view):
            header = read_header(view, next_batch)
            too_late = header.max_timestamp > latest and header.compression and _too_late(view, header, latest)
            if next_batch > run_end or too_late:
                if start < run_end:
                    yield start, run_end
                start = header.end if too_late else next_batch
            run_end = header.end
        if start < run_end:
            yield start, run_end

    def _decode(self, view: memoryview, position: int) -> Iterator[pa.RecordBatch]:
        piece, settings = self._piece, self._settings
        wants_headers = settings.include_control or "position" in settings.columns.names
        headers = list(iter_batches(view)) if wants_headers else []
        positions = [(header.base_offset, position + header.position) for header in headers]
        first, last = piece.first_offset, piece.end_offset - 1
        if settings.bad_records == "fail":
            try:
                yield from self._table.decode(view, first, last, piece.aborted, positions)
            except InvalidRecords as error:
                raise DamagedLogError(self._explain(error.message, position)) from error
        else:
            try:
                batches = list(self._table.decode(view, first, last, piece.aborted, positions))
            except InvalidRecords:
                batches = list(self._one_by_one(view, position))
            yield from batches
        if settings.include_control:
            rows = [row for header in headers if header.is_control for row in self._control(view, header, position)]
            if rows:
                yield self._table.rows(rows)

    def _one_by_one(self, view: memoryview, position: int) -> Iterator[pa.RecordBatch]:
        piece = self._piece
        for header in iter_batches(view):
            data = view[header.position : header.end]
            start = position + header.position
            try:
                yield from self._table.decode(
                    data, piece.first_offset, piece.end_offset - 1, piece.aborted, [(header.base_offset, start)]
                )
            except InvalidRecords as error:
                yield from self._damaged(error.message, start, start + header.size)

    def _control(self, view: memoryview, header: BatchHeader, position: int) -> list[dict[str, object]]:
        piece = self._piece
        common: dict[str, object] = {
            "timestampType": int(header.timestamp_type),
            "leaderEpoch": header.partition_leader_epoch,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "sequence": header.base_sequence,
            "batchOffset": header.base_offset,
            "transactional": header.is_transactional,
            "control": True,
            "compression": "none",
            "position": position + header.position,
        }
        try:
            return [
                common
                | {
                    "key": parse_control_key(record.key).name.encode(),
                    "value": record.value,
                    "offset": record.offset,
                    "timestamp": record.timestamp * 1000,
                }
                for record in iter_records(view, header)
                if piece.first_offset <= record.offset < piece.end_offset
            ]
        except InvalidRecords as error:
            if self._settings.bad_records == "fail":
                raise DamagedLogError(self._explain(error.message, position + header.position)) from error
            return []

    def _damaged(self, reason: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Handle unreadable bytes by the option badRecords: fail, drop, or a row."""
        message = self._explain(reason, start)
        if self._settings.bad_records == "fail":
            raise DamagedLogError(message)
        if self._settings.bad_records == "drop":
            warn(SOURCE, f"{message}; dropped {end - start} bytes")
            return
        data: bytes | None = self._file.read_at(start, min(end - start, LARGEST_CHUNK))
        assert data is not None
        offset = int.from_bytes(data[:8], "big", signed=True) if len(data) >= 8 else None
        if offset is not None and offset < self._piece.first_offset:
            data = None  # may hold deleted records, below the log start offset
        yield self._table.rows([{"value": data, "offset": offset, "position": start, "badRecord": message}])

    def _explain(self, reason: str, position: int) -> str:
        return f"{self._path} is damaged at or behind byte {position}: {reason}"

    def _next_border(self, position: int) -> int:
        """Return where the next batch of the offset index begins, or the end of the piece."""
        try:
            data = read_entries(f"{self._piece.folder}/{offset_name(self._piece.segment, INDEX_SUFFIX)}", OFFSET_ENTRY)
            index = OffsetIndex.decode(self._piece.segment, data[: len(data) // OFFSET_ENTRY * OFFSET_ENTRY], 1 << 62)
        except (FileNotFoundError, CorruptIndexError):
            return self._piece.end
        return min((border for border in index.positions if border > position), default=self._piece.end)


def _too_late(view: memoryview, header: BatchHeader, latest: int) -> bool:
    """Return whether all records of a compressed batch are later than a time; the decoder reports damage."""
    if header.base_timestamp <= latest:
        return False
    try:
        records = record_bytes(view, header, MAX_DECOMPRESSED)
    except InvalidRecords:
        return False
    return kernel.RecordWalk(records, 0, len(records), header.record_count).is_later(header.base_timestamp, latest)
