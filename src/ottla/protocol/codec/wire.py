"""Byte forms that codecs, walk and framing share: varints, tag sections, sizes of fixed types.

Functions raise plain ValueError or IndexError; the callers explain them (see `walk`).
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LENGTH = 0x7FFFFFFF
MAX_STRING = 0x7FFF

# The letter of `struct` and the size of each type of fixed size.
FIXED: dict[str, tuple[str, int]] = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}

_layouts: dict[str, Layout] = {}


def layout(letters: str) -> Layout:
    """Return the big-endian layout for struct's letters, made once."""
    known = _layouts.get(letters)
    if known is None:
        known = _layouts[letters] = Layout(">" + letters)
    return known


SLICE = 16_384
"""Numbers of a large array that are read with one call: a worker's call holds the interpreter's lock."""


def unpack_many(letter: str) -> Callable[[bytes | memoryview, int, int], list[int]]:
    """Return a function (buffer, position, count) that reads an array of numbers with one call."""
    ready = [Layout(f">{count}{letter}").unpack_from for count in range(9)]
    size = Layout(f">{letter}").size

    def read(buffer: bytes | memoryview, position: int, count: int) -> list[int]:
        if count < 9:
            return list(ready[count](buffer, position))
        if count <= SLICE:
            return list(Layout(f">{count}{letter}").unpack_from(buffer, position))
        numbers: list[int] = []
        for start in range(0, count, SLICE):
            numbers += Layout(f">{min(SLICE, count - start)}{letter}").unpack_from(buffer, position + start * size)
        return numbers

    return read


def pack_many(letter: str) -> Callable[[list[int]], bytes]:
    """Return a function that writes an array of numbers with one call."""
    ready = [Layout(f">{count}{letter}").pack for count in range(9)]

    def write(values: list[int]) -> bytes:
        count = len(values)
        if count < 9:
            return ready[count](*values)
        return Layout(f">{count}{letter}").pack(*values)

    return write


def read_uvarint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint; return it and the position after it."""
    first = buffer[position]
    if first < 128:
        return first, position + 1
    return finish_uvarint(buffer, position + 1, first)


def finish_uvarint(buffer: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint whose first byte has the continuation bit; it has at most 31 bits."""
    value = first & 127
    shift = 7
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 28:
            raise ValueError("a varint of more than five bytes")
    if value > MAX_LENGTH:
        raise ValueError("a varint above 2147483647")
    return value, position


def string_length(buffer: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """Read the rest of a compact string's length + 1, which is neither zero nor above Kafka's limit."""
    if first:
        value, position = nullable_string_length(buffer, position, first)
        if value:
            return value, position
    raise ValueError("null in a field that is not nullable")


def nullable_string_length(buffer: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """Read the rest of a compact string's length + 1, where zero means null."""
    value, position = finish_uvarint(buffer, position, first)
    if value > MAX_STRING + 1:
        raise ValueError("a string of more than 32767 bytes")
    return value, position


def long_length(buffer: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """Read the rest of a compact length + 1, which is not zero."""
    if first:
        value, position = finish_uvarint(buffer, position, first)
        if value:
            return value, position
    raise ValueError("null in a field that is not nullable")


def uvarint(value: int) -> bytes:
    """Write an unsigned varint."""
    if value < 128:
        return SMALL_UVARINTS[value]
    if value > MAX_LENGTH:
        raise ValueError("a length above 2147483647")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


SMALL_UVARINTS = tuple(bytes((value,)) for value in range(128))


def tag_section(fields: dict[int, bytes]) -> bytes:
    """Write tagged fields, lowest tag first, with their number before them."""
    out = [uvarint(len(fields))]
    for tag in sorted(fields):
        data = fields[tag]
        out += (uvarint(tag), uvarint(len(data)), data)
    return b"".join(out)
