"""Explains record batches byte by byte, for the inspector: header, records, control and internal records.

More lenient than a broker: it shows what is there up to the first byte that makes no sense.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from ottla.protocol.errors import KafkaError, ProtocolError
from ottla.protocol.inspect.inspector import NULL, Line, node_line
from ottla.protocol.inspect.walk import walk
from ottla.protocol.record_values import (
    ControlRecordType,
    control_value_class,
    decode_control_key,
    decode_versioned_metadata_record,
    record_classes,
)
from ottla.protocol.schema import Message
from ottla.records.batch import HEADER_SIZE, BatchHeader, check_crc, read_header
from ottla.records.compression import CompressionType
from ottla.records.iterate import record_bytes
from ottla.schemas.framing import KEY_HEADER, VALUE_HEADER, schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER_FIELDS = (
    ("base_offset", "q"),
    ("batch_length", "i"),
    ("partition_leader_epoch", "i"),
    ("magic", "b"),
    ("crc", "I"),
    ("attributes", "h"),
    ("last_offset_delta", "i"),
    ("base_timestamp", "q"),
    ("max_timestamp", "q"),
    ("producer_id", "q"),
    ("producer_epoch", "h"),
    ("base_sequence", "i"),
    ("num_records", "i"),
)
_SCHEMA_HEADERS = (KEY_HEADER.encode(), VALUE_HEADER.encode())
LOGS = {"offsets": "offsets", "transactions": "transaction", "share": "share"}


def batch_lines(
    frame: bytes | memoryview, start: int, end: int, depth: int = 0, values: str | None = None
) -> Iterator[Line]:
    """Return the lines of the batches between two positions; `values` names the kind of internal records."""
    position = start
    index = 0
    while position < end:
        if end - position < HEADER_SIZE:
            # A fetch response may end with a partial batch, which clients ignore.
            yield Line(depth, f"PartOfBatch[{index}]", f"{end - position} bytes", position, end)
            return
        header = read_header(frame, position)
        yield Line(depth, f"RecordBatch[{index}]", None, position, position)
        yield from _header_lines(frame, header, depth + 1, end)
        if header.end > end or header.size < HEADER_SIZE:
            if header.size < HEADER_SIZE:
                raise ProtocolError(
                    f"expected a batch of {HEADER_SIZE} bytes or more, got {header.size}",
                    path=f"RecordBatch[{index}].batch_length",
                    position=position + 8,
                )
            yield Line(depth + 1, "part_of_records", f"{end - position - HEADER_SIZE} bytes", position, end)
            return
        yield from _records_lines(frame, header, depth + 1, values, f"RecordBatch[{index}]")
        position = header.end
        index += 1


def _header_lines(frame: bytes | memoryview, header: BatchHeader, depth: int, end: int) -> Iterator[Line]:
    position = header.position
    for name, letter in HEADER_FIELDS:
        layout = Struct(">" + letter)
        value: Any = layout.unpack_from(frame, position)[0]
        shown: Any = value
        if name == "crc":
            good = header.end <= end and check_crc(frame, header)
            shown = f"{value:#010x}, {'right' if good else 'WRONG'}"
        elif name == "attributes":
            shown = f"{value}: {_attributes(header)}"
        yield Line(depth, name, shown, position, position + layout.size, letter)
        position += layout.size


def _attributes(header: BatchHeader) -> str:
    try:
        codec = CompressionType(header.compression).name.lower()
    except ValueError:
        codec = f"unknown compression {header.compression}"
    words = [codec, header.timestamp_type.name.lower()]
    words += ["transactional"] if header.is_transactional else []
    words += ["control"] if header.is_control else []
    words += ["delete horizon"] if header.has_delete_horizon else []
    return ", ".join(words)


def _records_lines(
    frame: bytes | memoryview, header: BatchHeader, depth: int, values: str | None, path: str
) -> Iterator[Line]:
    start = header.position + HEADER_SIZE
    try:
        data = record_bytes(frame, header)
    except KafkaError as error:
        raise ProtocolError(
            f"expected compressed records, got none: {error.message}", path=path, position=start
        ) from error
    if header.compression:
        yield Line(depth, "decompressed", f"{len(data)} bytes", start, header.end)
        reader = _Reader(data, 0, len(data), path, shown=(start, header.end))
    else:
        reader = _Reader(frame, start, header.end, path)
    for index in range(max(header.record_count, 0)):
        reader.path = f"{path}.Record[{index}]"
        yield Line(depth, f"Record[{index}]", None, *reader.here())
        yield from _record_lines(reader, depth + 1, header, values)
    left = reader.end - reader.position
    if left:
        raise ProtocolError(f"{left} bytes left after the last record", path=path, position=reader.here()[0])


class _Reader:
    """Reads varints and bytes; `shown` replaces positions of bytes that are not the frame's own."""

    def __init__(
        self,
        data: bytes | bytearray | memoryview,
        position: int,
        end: int,
        path: str,
        shown: tuple[int, int] | None = None,
    ) -> None:
        self.data = memoryview(data)
        self.position = position
        self.end = end
        self.path = path
        self.shown = shown

    def here(self, start: int | None = None) -> tuple[int, int]:
        """Return the positions of a line that began at `start`."""
        return self.shown or (self.position if start is None else start, self.position)

    def fail(self, expected: str, field: str, position: int) -> ProtocolError:
        """Return the error at a position of the batch."""
        where = self.shown[0] if self.shown else position
        return ProtocolError(expected, path=f"{self.path}.{field}", position=where)

    def varint(self, field: str, bits: int = 32) -> int:
        """Read a zigzag varint."""
        start, value, shift = self.position, 0, 0
        while True:
            if self.position >= self.end:
                raise self.fail("expected a varint, got the end of the batch", field, start)
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift >= bits + 3:
                raise self.fail(f"expected a varint of at most {bits // 7 + 1} bytes", field, start)
        return (value >> 1) ^ -(value & 1)

    def bytes(self, length: int, field: str) -> memoryview:
        """Read `count` bytes."""
        left = self.end - self.position
        if length > left:
            raise self.fail(f"expected {length} bytes, got {left}", field, self.position)
        self.position += length
        return self.data[self.position - length : self.position]


def _record_lines(reader: _Reader, depth: int, header: BatchHeader, values: str | None) -> Iterator[Line]:
    def varint(name: str, bits: int = 32) -> tuple[int, Line]:
        start = reader.position
        value = reader.varint(name, bits)
        return value, Line(depth, name, value, *reader.here(start), "varint")

    yield varint("length")[1]
    attributes = reader.bytes(1, "attributes")[0]
    yield Line(depth, "attributes", attributes, *reader.here(reader.position - 1), "int8")
    yield varint("timestamp_delta", 64)[1]
    yield varint("offset_delta")[1]
    key_length, line = varint("key_length")
    yield line
    key = None
    key_start = reader.position
    if key_length >= 0:
        key = reader.bytes(key_length, "key")
    yield Line(depth, "key", NULL if key is None else key, *reader.here(key_start), "bytes")
    value_length, line = varint("value_length")
    yield line
    value = None
    value_start = reader.position
    if value_length >= 0:
        value = reader.bytes(value_length, "value")
    yield Line(depth, "value", NULL if value is None else value, *reader.here(value_start), "bytes")
    if values is None and not header.is_control:
        for name, field_data, start in (("key", key, key_start), ("value", value, value_start)):
            schema = schema_of(field_data)
            if schema is not None:
                span = reader.shown or (start + 1, start + 5)
                yield Line(depth, f"{name}_schema_id", f"{schema}, if a registry's client wrote the {name}", *span)
    for data, at, message in _meaning(header, values, key, key_start, value, value_start):
        yield from _message_lines(reader, data, at, message, depth + 1)
    count, line = varint("num_headers")
    yield line
    for index in range(max(count, 0)):
        yield Line(depth, f"Header[{index}]", None, *reader.here())
        begin = reader.position
        length = reader.varint(f"Header[{index}].key_length")
        if length < 0:
            raise reader.fail(f"expected a header key, got a length of {length}", f"Header[{index}]", begin)
        header_name = reader.bytes(length, f"Header[{index}].key")
        yield Line(depth + 1, "key", bytes(header_name).decode("utf-8", "replace"), *reader.here(begin), "string")
        begin = reader.position
        length = reader.varint(f"Header[{index}].value_length")
        content = None if length < 0 else reader.bytes(length, f"Header[{index}].value")
        yield Line(depth + 1, "value", NULL if content is None else content, *reader.here(begin), "bytes")
        if content is not None and bytes(header_name) in _SCHEMA_HEADERS:
            schema = schema_of(None, bytes(content))
            if schema is not None:
                yield Line(depth + 1, "schema", schema, *reader.here(begin))


def _meaning(
    header: BatchHeader,
    values: str | None,
    key: memoryview | None,
    key_start: int,
    value: memoryview | None,
    value_start: int,
) -> Iterator[tuple[memoryview, int, tuple[type[Message], int, int]]]:
    """Return the messages in a record's key and value: data, position, and (class, version, bytes before it)."""
    if header.is_control:
        if key is not None and value is not None and len(key) >= 4:
            kind = decode_control_key(key)
            if isinstance(kind, ControlRecordType):
                yield value, value_start, (control_value_class(kind), 0, 2 if kind <= ControlRecordType.COMMIT else 0)
        return
    if values == "metadata" and value is not None:
        record, version = decode_versioned_metadata_record(value)
        if isinstance(record, Message):
            yield value, value_start, (type(record), version, len(value) - len(record.encode(version)))
    elif values in LOGS and key is not None and len(key) >= 2:
        number = int.from_bytes(key[:2], "big", signed=True)
        key_class = record_classes(LOGS[values], "coordinator-key").get(number)
        value_class = record_classes(LOGS[values], "coordinator-value").get(number)
        if key_class is not None:
            yield key, key_start, (key_class, 0, 2)
        if value_class is not None and value is not None and len(value) >= 2:
            yield value, value_start, (value_class, int.from_bytes(value[:2], "big", signed=True), 2)


def _message_lines(
    reader: _Reader, data: memoryview, start: int, message: tuple[type[Message], int, int], depth: int
) -> Iterator[Line]:
    cls, version, skip = message
    yield Line(depth, f"{cls.__name__} v{version}", None, *(reader.shown or (start, start)))
    try:
        for node in walk(cls, data, version, skip):
            line = node_line(node)
            span = reader.shown or (start + line.position, start + line.end)
            yield line._replace(depth=line.depth + depth, position=span[0], end=span[1])
    except ProtocolError as error:
        where = reader.shown[0] if reader.shown else start + (error.position or 0)
        raise ProtocolError(
            error.expected, message=error.message, version=version, path=f"{reader.path}.{error.path}", position=where
        ) from error
