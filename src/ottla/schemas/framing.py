"""Confluent's framing of values: a magic byte and the schema's id before the data, or a guid in a header.

Protobuf data begins with the indexes of its message in the file; Avro and JSON data follow the prefix directly.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

MAGIC_ID: Final = 0
MAGIC_GUID: Final = 1
KEY_HEADER: Final = "__key_schema_id"
VALUE_HEADER: Final = "__value_schema_id"
MAX_INDEXES: Final = 1000


class FramingError(ValueError):
    """Data without the registry's framing; the message has the reason."""


class Framed(NamedTuple):
    """The schema of a value, by id or guid, and its data."""

    schema_id: int | None
    guid: str | None
    data: bytes


def unframe(data: bytes, headers: Mapping[str, bytes | None] | None = None, *, is_key: bool = False) -> Framed:
    """Split a key or value into schema and data; a header with a guid comes before the prefix."""
    header = (headers or {}).get(KEY_HEADER if is_key else VALUE_HEADER)
    if header is not None:
        return _from_header(header, data)
    if len(data) < 5:
        raise FramingError(f"{len(data)} bytes are too few for a magic byte and a schema id")
    if data[0] == MAGIC_GUID and len(data) >= 17:
        return Framed(None, str(uuid.UUID(bytes=data[1:17])), data[17:])
    if data[0] != MAGIC_ID:
        raise FramingError(
            f"the magic byte is {data[0]}, not {MAGIC_ID}: the data was not written with a schema registry"
        )
    return Framed(int.from_bytes(data[1:5], "big"), None, data[5:])


def schema_of(data: bytes | memoryview | None, header: bytes | None = None) -> int | str | None:
    """Return the schema id or guid of a key or value that looks framed, else None; never raises.

    Data without a header is taken for framed if it begins with the magic byte 0 and an id: it may be a coincidence.
    """
    if header is not None:
        try:
            framed = _from_header(header, b"")
        except FramingError:
            return None
        return framed.guid if framed.schema_id is None else framed.schema_id
    if data is None or len(data) < 5 or data[0] != MAGIC_ID:
        return None
    schema_id = int.from_bytes(data[1:5], "big", signed=True)
    return schema_id if schema_id > 0 else None


def _from_header(header: bytes, data: bytes) -> Framed:
    """Split a header: a magic byte, a guid or id, and for Protobuf the message indexes, which precede the data."""
    if len(header) >= 17 and header[0] == MAGIC_GUID:
        return Framed(None, str(uuid.UUID(bytes=header[1:17])), header[17:] + data)
    if len(header) >= 5 and header[0] == MAGIC_ID:
        return Framed(int.from_bytes(header[1:5], "big"), None, header[5:] + data)
    raise FramingError(f"the header with the schema id has {len(header)} bytes and no known magic byte")


def frame(schema_id: int, data: bytes) -> bytes:
    """Return data with the prefix of a schema's id."""
    return bytes([MAGIC_ID]) + schema_id.to_bytes(4, "big") + data


def read_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the indexes that name a Protobuf message, outermost first, and the message's bytes."""
    count, position = _zigzag(data, 0)
    if count == 0:
        return (0,), data[position:]
    if not 0 < count <= MAX_INDEXES:
        raise FramingError(f"{count} message indexes: the data was not written by a Protobuf serializer")
    indexes = []
    for _ in range(count):
        index, position = _zigzag(data, position)
        indexes.append(index)
    return tuple(indexes), data[position:]


def write_indexes(indexes: tuple[int, ...]) -> bytes:
    """Return message indexes as bytes; the first message of a file is one byte."""
    if indexes == (0,):
        return b"\0"
    return b"".join(map(_encode_zigzag, (len(indexes), *indexes)))


def _zigzag(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 35:
            raise FramingError("the message indexes of the Protobuf data are cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def _encode_zigzag(number: int) -> bytes:
    value = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
