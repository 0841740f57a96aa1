"""Reads the records of a batch one by one as Python objects.

For coordinators, inspectors and tests; whole logs go through `kernel` and `columnar`, which create no objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.records import kernel
from ottla.records.batch import HEADER_SIZE, BatchHeader, TimestampType, iter_batches, read_header
from ottla.records.compression import MAX_DECOMPRESSED, CompressionType, decompress
from ottla.records.errors import ErrorCode, InvalidRecords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer

_WALK_ERRORS: Final = {
    kernel.BAD_RECORD_LENGTH: "its length does not fit into the batch",
    kernel.BAD_TIMESTAMP_DELTA: "its timestamp delta cannot be read",
    kernel.BAD_OFFSET_DELTA: "its offset delta cannot be read",
    kernel.BAD_KEY: "its key does not fit into the record",
    kernel.BAD_VALUE: "its value does not fit into the record",
    kernel.BAD_HEADER_COUNT: "its number of headers is negative or does not fit into the record",
    kernel.BAD_HEADER_KEY: "a header's key has a negative length or does not fit into the record",
    kernel.BAD_HEADER_VALUE: "a header's value does not fit into the record",
    kernel.RECORD_SIZE_MISMATCH: "its length is not the length of its fields",
    kernel.TRAILING_BYTES: "more bytes follow it, the last of the batch",
    kernel.OFFSET_GAP: "its offset delta is not its place in the batch",
}


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
    """Return the bytes of a batch's records, decompressed; a view of the buffer if they are not compressed."""
    view = memoryview(buffer)[header.position + HEADER_SIZE : header.end]
    if len(view) != header.size - HEADER_SIZE:
        raise InvalidRecords(ErrorCode.INVALID_RECORD, "the batch is longer than the buffer it stands in")
    if header.compression == CompressionType.NONE:
        return view
    return decompress(header.compression, view, limit)


def iter_records(
    buffer: ReadableBuffer, header: BatchHeader | None = None, limit: int = MAX_DECOMPRESSED
) -> Iterator[Record]:
    """Yield the records of the batch with that header (default: the first batch of the buffer)."""
    if header is None:
        header = read_header(buffer)
    if header.record_count < 0:
        raise InvalidRecords(ErrorCode.INVALID_RECORD, f"the batch claims {header.record_count} records")
    if header.record_count == 0:
        return
    data = memoryview(record_bytes(buffer, header, limit))
    stamped = header.timestamp_type == TimestampType.LOG_APPEND_TIME
    walk = kernel.RecordWalk(data, 0, len(data), header.record_count)
    while walk.advance():
        yield Record(
            header.base_offset + walk.offset_delta,
            header.max_timestamp if stamped else header.base_timestamp + walk.timestamp_delta,
            _field(data, walk.key_position, walk.key_length),
            _field(data, walk.value_position, walk.value_length),
            _headers(walk) if walk.header_count else (),
        )
    if walk.error:
        raise invalid_record(walk)


def iter_all_records(buffer: ReadableBuffer, *, include_control: bool = False) -> Iterator[tuple[BatchHeader, Record]]:
    """Yield the records of all whole batches in a buffer with their headers; control batches only if requested."""
    for header in iter_batches(buffer):
        if include_control or not header.is_control:
            for record in iter_records(buffer, header):
                yield header, record


def invalid_record(walk: kernel.RecordWalk) -> InvalidRecords:
    """Return the error of a walk that stopped."""
    return InvalidRecords(ErrorCode.INVALID_RECORD, f"record {walk.index} is invalid: {_WALK_ERRORS[walk.error]}")


def _field(data: memoryview, position: int, length: int) -> bytes | None:
    return None if length < 0 else bytes(data[position : position + length])


def _headers(walk: kernel.RecordWalk) -> tuple[tuple[str, bytes | None], ...]:
    # Decode a name that is not UTF-8 with replacement characters, as Java does.
    return tuple((name.decode(errors="replace"), value) for name, value in kernel.read_headers(walk))
