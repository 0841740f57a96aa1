"""Reads the records of a batch one by one as Python objects, lazily.

For coordinators, inspectors and tests; whole logs go through `kernel` and `columnar`, which make no objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.records.batch import HEADER_SIZE, BatchHeader, TimestampType, iter_batches, read_header
from ottla.records.compression import MAX_DECOMPRESSED, CompressionType, decompress
from ottla.records.errors import INVALID_RECORD, InvalidRecords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer


class Record(NamedTuple):
    """One record; a header's name is text, its value bytes or None."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def record_bytes(
    buffer: ReadableBuffer, header: BatchHeader, limit: int = MAX_DECOMPRESSED
) -> memoryview | bytes | bytearray:
    """The bytes of a batch's records, decompressed where they are compressed, else a view of the buffer."""
    view = memoryview(buffer)[header.position + HEADER_SIZE : header.end]
    if len(view) != header.size - HEADER_SIZE:
        raise InvalidRecords(INVALID_RECORD, "the batch is longer than the buffer it stands in")
    if header.compression == CompressionType.NONE:
        return view
    return decompress(header.compression, view, limit)


def iter_records(
    buffer: ReadableBuffer, header: BatchHeader | None = None, limit: int = MAX_DECOMPRESSED
) -> Iterator[Record]:
    """The records of the batch with that header (the first batch of the buffer where none is given)."""
    if header is None:
        header = read_header(buffer)
    if header.record_count < 0:
        raise InvalidRecords(INVALID_RECORD, f"the batch claims {header.record_count} records")
    if header.record_count == 0:
        return
    data = memoryview(record_bytes(buffer, header, limit))
    log_append_time = header.timestamp_type == TimestampType.LOG_APPEND_TIME
    position = 0
    for _ in range(header.record_count):
        length, position = _read_varint(data, position)
        end = position + length
        if length < 0 or end > len(data):
            raise InvalidRecords(INVALID_RECORD, f"a record at byte {position} claims {length} bytes")
        record = data[:end]
        timestamp_delta, position = _read_varint(record, position + 1, bits=64)
        offset_delta, position = _read_varint(record, position)
        key, position = _read_bytes(record, position)
        value, position = _read_bytes(record, position)
        headers, position = _read_headers(record, position)
        if position != end:
            raise InvalidRecords(INVALID_RECORD, f"a record has {end - position} bytes more than its fields")
        timestamp = header.max_timestamp if log_append_time else header.base_timestamp + timestamp_delta
        yield Record(header.base_offset + offset_delta, timestamp, key, value, headers)
    if position != len(data):
        raise InvalidRecords(INVALID_RECORD, f"{len(data) - position} bytes follow the batch's last record")


def iter_all_records(
    buffer: ReadableBuffer, *, control: bool = False
) -> Iterator[tuple[BatchHeader, Record]]:
    """The records of all whole batches in a buffer, each with its batch; control batches only if wanted."""
    for header in iter_batches(buffer):
        if control or not header.is_control:
            for record in iter_records(buffer, header):
                yield header, record


def _read_headers(data: memoryview, position: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = _read_varint(data, position)
    if count == 0:
        return (), position
    if count < 0 or count > len(data) - position:
        raise InvalidRecords(INVALID_RECORD, f"a record claims {count} headers")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(data, position)
        if name is None:
            raise InvalidRecords(INVALID_RECORD, "a header's name has a negative length")
        value, position = _read_bytes(data, position)
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), position


def _read_bytes(data: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(data):
        raise InvalidRecords(INVALID_RECORD, f"a field at byte {position} claims {length} bytes")
    return bytes(data[position:end]), end


def _read_varint(data: memoryview, position: int, bits: int = 32) -> tuple[int, int]:
    value = 0
    shift = 0
    try:
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits:
                raise InvalidRecords(INVALID_RECORD, f"a number at byte {position} is too long")
    except IndexError:
        raise InvalidRecords(INVALID_RECORD, f"a number at byte {position} is cut off") from None
    value &= (1 << bits) - 1
    return (value >> 1) ^ -(value & 1), position
