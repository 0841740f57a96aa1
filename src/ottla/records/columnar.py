"""Decodes record batches into Arrow columns, for scans of whole logs; requires pyarrow.

Runs on Spark executors, so it depends on bytes only: no broker, files or sockets.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from ottla.records import kernel
from ottla.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    check_crc,
    iter_batches,
    read_header,
)
from ottla.records.compression import MAX_DECOMPRESSED
from ottla.records.control import ControlType, parse_control_key
from ottla.records.crc import crc32c
from ottla.records.errors import ErrorCode, InvalidRecords
from ottla.records.iterate import invalid_record, iter_records, record_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _typeshed import ReadableBuffer

MAX_OFFSET: Final = 2**63 - 1
TARGET_BYTES: Final = 2 * 1024 * 1024  # of records in one Arrow batch: about ten thousand rows, and still in cache
_MAX_BYTES: Final = 2**31 - 1  # Arrow's binary columns count in int32
_SMALLEST_RECORD: Final = 7

HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
_TIMESTAMP_SCALES: Final = {"ms": 1, "us": 1000}

# Columns with one value for all records of a batch.
_BATCH_COLUMNS: Final = {
    "leader_epoch": pa.int32(),
    "producer_id": pa.int64(),
    "producer_epoch": pa.int16(),
    "base_sequence": pa.int32(),
    "base_offset": pa.int64(),
    "transactional": pa.bool_(),
    "compression": pa.int8(),
}


class AbortedTransaction(NamedTuple):
    """An aborted transaction, whose records read_committed skips.

    A transaction index gives its end; for a fetch response the marker in the log does.
    """

    producer_id: int
    first_offset: int
    last_offset: int | None = None


def schema(*, headers: bool = True, batch_columns: bool = False, timestamp_unit: str = "ms") -> pa.Schema:
    """Return the columns of a scan with these options."""
    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp(timestamp_unit, tz="UTC"), nullable=False),
        pa.field("timestamp_type", pa.int32(), nullable=False),
    ]
    if headers:
        fields.append(pa.field("headers", HEADERS, nullable=False))
    if batch_columns:
        fields += [pa.field(name, kind, nullable=False) for name, kind in _BATCH_COLUMNS.items()]
    return pa.schema(fields)


def iter_arrow(
    buffer: ReadableBuffer,
    *,
    first_offset: int = 0,
    last_offset: int = MAX_OFFSET,
    aborted: Iterable[AbortedTransaction] = (),
    headers: bool = True,
    batch_columns: bool = False,
    timestamp_unit: str = "ms",
    times: tuple[int, int] | None = None,
    verify_crc: bool = True,
    limit: int = MAX_DECOMPRESSED,
    target_bytes: int = TARGET_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Decode the whole batches of a buffer, about `target_bytes` of records per Arrow batch.

    Yield records from the first to the last offset (and timestamp in ms, if given), except control records and those of
    aborted transactions.
    """
    shape = schema(headers=headers, batch_columns=batch_columns, timestamp_unit=timestamp_unit)
    scan = _Scan(buffer, first_offset, last_offset, aborted, verify_crc, limit, times)
    group = _Group(shape, scan)
    for part in scan.parts(target_bytes, runs=not (headers or batch_columns)):
        if group.size and group.size + part.size > target_bytes:
            yield group.decode()
            group = _Group(shape, scan)
        group.add(part)
    if group.size:
        yield group.decode()


def to_arrow(
    buffer: ReadableBuffer,
    *,
    first_offset: int = 0,
    last_offset: int = MAX_OFFSET,
    aborted: Iterable[AbortedTransaction] = (),
    headers: bool = True,
    batch_columns: bool = False,
    timestamp_unit: str = "ms",
    verify_crc: bool = True,
    limit: int = MAX_DECOMPRESSED,
) -> pa.RecordBatch:
    """Decode all batches of a buffer into one Arrow batch; options as in `iter_arrow`."""
    scan = _Scan(buffer, first_offset, last_offset, aborted, verify_crc, limit)
    group = _Group(schema(headers=headers, batch_columns=batch_columns, timestamp_unit=timestamp_unit), scan)
    for part in scan.parts(_MAX_BYTES, runs=not (headers or batch_columns)):
        group.add(part)
    return group.decode()


class _Part(NamedTuple):
    """Consecutive batches: one, or a run of uncompressed ones that the kernel reads in place."""

    header: BatchHeader  # of the first batch; all have the same
    stop: int
    rows: int
    size: int
    records: memoryview | bytes | bytearray | None  # of one batch; None for a run


class _Scan:
    """Finds the batches of a buffer that may hold records for the reader."""

    def __init__(
        self,
        buffer: ReadableBuffer,
        first_offset: int,
        last_offset: int,
        aborted: Iterable[AbortedTransaction],
        verify_crc: bool,
        limit: int,
        times: tuple[int, int] | None = None,
    ) -> None:
        self.view = memoryview(buffer).cast("B")
        self.batches = kernel.BatchScan(self.view)
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.verify_crc = verify_crc
        self.times = times or ()
        self._limit = limit
        self._waiting = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)

    def parts(self, most: int, *, runs: bool) -> Iterator[_Part]:
        """Yield what is to be decoded: single batches, and runs of up to `most` bytes if wanted."""
        view, scan = self.view, self.batches
        active: dict[int, AbortedTransaction] = {}
        refused = COMPRESSION_MASK | CONTROL_FLAG
        if self._waiting:
            refused |= TRANSACTIONAL_FLAG
        position = 0
        while position < len(view):
            if runs:
                stop = scan.run(position, most, refused, self.first_offset, self.last_offset)
                if stop > position:
                    yield _Part(read_header(view, position), stop, scan.rows, scan.record_bytes, None)
                    position = stop
                    continue
            header = next(iter_batches(view, position), None)
            if header is None or header.base_offset > self.last_offset:
                return
            position = header.end
            if self._is_visible(header, active):
                self.check_crc(header)
                if header.record_count:
                    records = record_bytes(view, header, self._limit)
                    if not 0 < header.record_count <= len(records) // _SMALLEST_RECORD:
                        raise InvalidRecords(
                            ErrorCode.INVALID_RECORD, f"{len(records)} bytes do not hold {header.record_count} records"
                        )
                    yield _Part(header, position, header.record_count, len(records), records)

    def check_crc(self, header: BatchHeader) -> None:
        """Raise if the CRC of a batch is invalid."""
        if self.verify_crc and not check_crc(self.view, header):
            raise InvalidRecords(
                ErrorCode.CORRUPT_MESSAGE, f"the batch with base offset {header.base_offset} has a wrong CRC"
            )

    def _is_visible(self, header: BatchHeader, active: dict[int, AbortedTransaction]) -> bool:
        """Return whether a batch may hold records for the reader; `active` are the aborted transactions so far."""
        last = header.base_offset + header.last_offset_delta
        while self._waiting and self._waiting[-1].first_offset <= last:
            transaction = self._waiting.pop()
            active[transaction.producer_id] = transaction
        if header.attributes & CONTROL_FLAG:
            if header.producer_id in active and _aborts(self.view, header):
                del active[header.producer_id]
            return False
        return last >= self.first_offset and not (active and header.is_transactional and _is_aborted(header, active))


def _is_aborted(header: BatchHeader, active: dict[int, AbortedTransaction]) -> bool:
    transaction = active.get(header.producer_id)
    if transaction is None:
        return False
    return transaction.last_offset is None or header.base_offset <= transaction.last_offset


def _aborts(buffer: ReadableBuffer, header: BatchHeader) -> bool:
    return any(parse_control_key(record.key) == ControlType.ABORT for record in iter_records(buffer, header))


class _Group:
    """Parts that become one Arrow batch."""

    __slots__ = ("_parts", "_scan", "_shape", "size")

    def __init__(self, shape: pa.Schema, scan: _Scan) -> None:
        self._shape = shape
        self._scan = scan
        self._parts: list[_Part] = []
        self.size = 0

    def add(self, part: _Part) -> None:
        self._parts.append(part)
        self.size += part.size

    def decode(self) -> pa.RecordBatch:
        scale = _TIMESTAMP_SCALES[self._shape.field("timestamp").type.unit]
        with_headers = "headers" in self._shape.names
        if with_headers or self.size > _MAX_BYTES:
            room = self._measured()
        else:  # keys and values are no longer than their records: an upper bound saves a walk
            room = array("q", [sum(part.rows for part in self._parts), self.size, self.size, 0, 0, 0])
        writer = kernel.ColumnWriter(room, with_headers, scale, pa.allocate_buffer, *self._scan.times)
        added = [self._write(part, writer) for part in self._parts]
        return pa.RecordBatch.from_arrays(list(self._arrays(writer, added)), schema=self._shape)

    def _write(self, part: _Part, writer: kernel.ColumnWriter) -> int:
        scan = self._scan
        first, last = scan.first_offset, scan.last_offset
        before = writer.rows
        if part.records is None:
            walk, batches = scan.batches.walk, scan.batches
            position = part.header.position
            crc = crc32c if scan.verify_crc else None
            reached = writer.add_run(batches, position, part.stop, crc, first, last)
            if reached < part.stop and not walk.error:
                scan.check_crc(read_header(scan.view, reached))
        else:
            header = part.header
            stamped = bool(header.attributes & LOG_APPEND_TIME_FLAG)
            timestamp = header.max_timestamp if stamped else header.base_timestamp
            walk = kernel.RecordWalk(part.records, 0, part.size, part.rows)
            writer.add(walk, header.base_offset, timestamp, stamped, first, last)
        if walk.error:
            raise invalid_record(walk)
        return writer.rows - before

    def _measured(self) -> array[int]:
        """Return the sizes of the columns: exact, or for runs an upper bound."""
        scan = self._scan
        totals = array("q", bytes(8 * kernel.TOTALS_WIDTH))
        for part in self._parts:
            if part.records is None:
                for which, most in enumerate((part.rows, part.size, part.size)):
                    totals[which] += most
                continue
            walk = kernel.RecordWalk(part.records, 0, part.size, part.rows)
            if not kernel.measure(walk, part.header.base_offset, scan.first_offset, scan.last_offset, totals):
                raise invalid_record(walk)
        if max(totals) > _MAX_BYTES:
            raise OverflowError("more than 2 GiB of keys, values or headers do not fit into one Arrow batch")
        return totals

    def _arrays(self, writer: kernel.ColumnWriter, rows: list[int]) -> Iterator[pa.Array]:
        count = writer.rows
        yield _binary(writer.keys)
        yield _binary(writer.values)
        yield pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(writer.offsets)[: 8 * count]], 0)
        timestamp = self._shape.field("timestamp").type
        yield pa.Array.from_buffers(timestamp, count, [None, pa.py_buffer(writer.timestamps)[: 8 * count]], 0)
        for field in list(self._shape)[4:]:
            if field.name == "headers":
                yield _header_lists(writer)
            else:
                yield _batch_column(field, [_batch_value(field.name, part.header) for part in self._parts], rows)


def _batch_column(field: pa.Field, values: list[int], rows: list[int]) -> pa.Array:
    """Return a column with one value for all rows of a batch."""
    if len(set(values)) == 1:
        value = bool(values[0]) if field.type == pa.bool_() else values[0]
        return pa.repeat(pa.scalar(value, field.type), sum(rows))
    column = array("q", bytes(8 * sum(rows)))
    first = 0
    for value, added in zip(values, rows, strict=True):
        kernel.fill(column, first, first + added, value)
        first += added
    return pa.Array.from_buffers(pa.int64(), first, [None, pa.py_buffer(column)], 0).cast(field.type)


def _batch_value(name: str, header: BatchHeader) -> int:
    match name:
        case "timestamp_type":
            return int(header.timestamp_type)
        case "leader_epoch":
            return header.partition_leader_epoch
        case "transactional":
            return int(header.is_transactional)
        case "compression":
            return header.compression
        case _:
            value: int = getattr(header, name)
            return value


def _binary(column: kernel.BinaryColumn, kind: pa.DataType | None = None) -> pa.Array:
    validity = pa.py_buffer(column.validity) if column.nulls else None
    offsets = pa.py_buffer(column.offsets)[: 4 * (column.length + 1)]
    used = int.from_bytes(memoryview(offsets)[-4:], sys.byteorder)
    buffers = [validity, offsets, pa.py_buffer(column.data)[:used]]
    return pa.Array.from_buffers(kind or pa.binary(), column.length, buffers, column.nulls)


def _header_lists(writer: kernel.ColumnWriter) -> pa.Array:
    names = _binary(writer.header_keys, pa.string())
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:  # decode invalid UTF-8 as Java does
        raw = _binary(writer.header_keys).to_pylist()
        names = pa.array([name.decode(errors="replace") for name in raw], pa.string())
    pairs = pa.StructArray.from_arrays([names, _binary(writer.header_values)], fields=list(HEADERS.value_type))
    return pa.Array.from_buffers(HEADERS, writer.rows, [None, pa.py_buffer(writer.header_offsets)], 0, children=[pairs])
