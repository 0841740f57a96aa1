"""Turns record batches into Arrow columns, for scans that look at whole logs; needs pyarrow.

Runs wherever a scan runs (Spark executors import it), so it knows bytes and nothing of brokers, files or sockets.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from ottla.records import kernel
from ottla.records.batch import CONTROL_FLAG, LOG_APPEND_TIME_FLAG, BatchHeader, check_crc, iter_batches
from ottla.records.compression import MAX_DECOMPRESSED
from ottla.records.control import ControlType, parse_control_key
from ottla.records.errors import ErrorCode, InvalidRecords
from ottla.records.iterate import invalid_record, iter_records, record_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _typeshed import ReadableBuffer

MAX_OFFSET: Final = 2**63 - 1
TARGET_BYTES: Final = 2 * 1024 * 1024  # of records in one Arrow batch: some ten thousand rows, and still in cache
_MAX_BYTES: Final = 2**31 - 1  # Arrow's binary columns count in int32
_SMALLEST_RECORD: Final = 7

HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
_TIMESTAMP_SCALES: Final = {"ms": 1, "us": 1000}

# Columns that say the same for all records of a batch.
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
    """A transaction that read_committed leaves out.

    Its end is known from a log's transaction index; a fetch response leaves it to the marker in the log.
    """

    producer_id: int
    first_offset: int
    last_offset: int | None = None


def schema(*, headers: bool = True, batch_columns: bool = False, timestamp_unit: str = "ms") -> pa.Schema:
    """The columns that a scan with these options has."""
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
    verify_crc: bool = True,
    limit: int = MAX_DECOMPRESSED,
    target_bytes: int = TARGET_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Decode the whole batches of a buffer, about `target_bytes` of records at a time.

    Records from the first to the last offset are taken, except control records and those of aborted transactions.
    """
    group = _Group(schema(headers=headers, batch_columns=batch_columns, timestamp_unit=timestamp_unit))
    for header in _visible(buffer, first_offset, last_offset, aborted, verify_crc):
        records = record_bytes(buffer, header, limit)
        if group.size and group.size + len(records) > target_bytes:
            yield group.decode(first_offset, last_offset)
            group = _Group(group.shape)
        group.add(header, records)
    if group.size:
        yield group.decode(first_offset, last_offset)


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
    """Decode all batches of a buffer at once, into one Arrow batch; options as in `iter_arrow`."""
    group = _Group(schema(headers=headers, batch_columns=batch_columns, timestamp_unit=timestamp_unit))
    for header in _visible(buffer, first_offset, last_offset, aborted, verify_crc):
        group.add(header, record_bytes(buffer, header, limit))
    return group.decode(first_offset, last_offset)


def _visible(
    buffer: ReadableBuffer,
    first_offset: int,
    last_offset: int,
    aborted: Iterable[AbortedTransaction],
    verify_crc: bool,
) -> Iterator[BatchHeader]:
    """The batches that may hold records which a reader sees."""
    waiting = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    active: dict[int, AbortedTransaction] = {}
    for header in iter_batches(buffer):
        if header.base_offset > last_offset:
            return
        last = header.base_offset + header.last_offset_delta
        while waiting and waiting[-1].first_offset <= last:
            transaction = waiting.pop()
            active[transaction.producer_id] = transaction
        if header.attributes & CONTROL_FLAG:
            if header.producer_id in active and _aborts(buffer, header):
                del active[header.producer_id]
            continue
        if last < first_offset or (active and header.is_transactional and _is_aborted(header, active)):
            continue
        if verify_crc and not check_crc(buffer, header):
            raise InvalidRecords(
                ErrorCode.CORRUPT_MESSAGE, f"the batch with base offset {header.base_offset} has a wrong CRC"
            )
        if header.record_count:
            yield header


def _is_aborted(header: BatchHeader, active: dict[int, AbortedTransaction]) -> bool:
    transaction = active.get(header.producer_id)
    if transaction is None:
        return False
    return transaction.last_offset is None or header.base_offset <= transaction.last_offset


def _aborts(buffer: ReadableBuffer, header: BatchHeader) -> bool:
    return any(parse_control_key(record.key) == ControlType.ABORT for record in iter_records(buffer, header))


class _Group:
    """Batches that become one Arrow batch."""

    __slots__ = ("_headers", "_walks", "shape", "size")

    def __init__(self, shape: pa.Schema) -> None:
        self.shape = shape
        self.size = 0
        self._headers: list[BatchHeader] = []
        self._walks: list[kernel.RecordWalk] = []

    def add(self, header: BatchHeader, records: memoryview | bytes | bytearray) -> None:
        if not 0 <= header.record_count <= len(records) // _SMALLEST_RECORD:
            raise InvalidRecords(
                ErrorCode.INVALID_RECORD, f"{len(records)} bytes do not hold {header.record_count} records"
            )
        self._headers.append(header)
        self._walks.append(kernel.RecordWalk(records, 0, len(records), header.record_count))
        self.size += len(records)

    def decode(self, first_offset: int, last_offset: int) -> pa.RecordBatch:
        scale = _TIMESTAMP_SCALES[self.shape.field("timestamp").type.unit]
        with_headers = "headers" in self.shape.names
        if with_headers or self.size > _MAX_BYTES:
            room = self._measured(first_offset, last_offset)
        else:  # no key and no value is longer than its record: room for all saves a walk over them
            rows = sum(header.record_count for header in self._headers)
            room = array("q", [rows, self.size, self.size, 0, 0, 0])
        writer = kernel.ColumnWriter(room, with_headers, scale, pa.allocate_buffer)
        added: list[int] = []
        for header, walk in zip(self._headers, self._walks, strict=True):
            stamped = bool(header.attributes & LOG_APPEND_TIME_FLAG)
            base_timestamp = header.max_timestamp if stamped else header.base_timestamp
            added.append(writer.add(walk, header.base_offset, base_timestamp, stamped, first_offset, last_offset))
            if walk.error:
                raise invalid_record(walk)
        return pa.RecordBatch.from_arrays(list(self._arrays(writer, added)), schema=self.shape)

    def _measured(self, first_offset: int, last_offset: int) -> array[int]:
        """What the columns need, to the byte."""
        totals = array("q", bytes(8 * kernel.TOTALS_WIDTH))
        for header, walk in zip(self._headers, self._walks, strict=True):
            if not kernel.measure(walk, header.base_offset, first_offset, last_offset, totals):
                raise invalid_record(walk)
            walk.rewind()
        if max(totals) > _MAX_BYTES:
            raise OverflowError("more than 2 GiB of keys, values or headers do not fit into one Arrow batch")
        return totals

    def _arrays(self, writer: kernel.ColumnWriter, rows: list[int]) -> Iterator[pa.Array]:
        count = writer.rows
        yield _binary(writer.keys)
        yield _binary(writer.values)
        yield pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(writer.offsets)[: 8 * count]], 0)
        timestamp = self.shape.field("timestamp").type
        yield pa.Array.from_buffers(timestamp, count, [None, pa.py_buffer(writer.timestamps)[: 8 * count]], 0)
        for field in list(self.shape)[4:]:
            if field.name == "headers":
                yield _header_lists(writer)
            else:
                yield _batch_column(field, [_batch_value(field.name, header) for header in self._headers], rows)


def _batch_column(field: pa.Field, values: list[int], rows: list[int]) -> pa.Array:
    """One value for all rows of a batch."""
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
    except pa.ArrowInvalid:  # a name that is not UTF-8 is read as Java reads it
        raw = _binary(writer.header_keys).to_pylist()
        names = pa.array([name.decode(errors="replace") for name in raw], pa.string())
    pairs = pa.StructArray.from_arrays([names, _binary(writer.header_values)], fields=list(HEADERS.value_type))
    return pa.Array.from_buffers(HEADERS, writer.rows, [None, pa.py_buffer(writer.header_offsets)], 0, children=[pairs])
