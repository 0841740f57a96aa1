"""Arrow columns under construction: buffers that grow, filled value by value and cut back when a record is damaged.

The C types of the compiled form are in `columns.pxd`. A column knows no logical type: callers wrap its buffers.
"""

from __future__ import annotations

import sys

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # Cython is needed to compile this file, not to run it

    class cython:  # type: ignore[no-redef] # noqa: N801
        """Stands in for the module of that name."""

        compiled = False


if cython.compiled:
    from cython.cimports.cpython.bytearray import (  # type: ignore[import-untyped]
        PyByteArray_AS_STRING,
        PyByteArray_Resize,
    )
    from cython.cimports.libc.string import memcpy  # type: ignore[import-untyped]

Bytes = bytes | bytearray | memoryview

# Whether the compiled form is running.
COMPILED = bool(cython.compiled)
# Arrow's offsets are 32-bit.
MAX_BYTES = 0x7FFFFFFF

_MASK64 = 0xFFFFFFFFFFFFFFFF


class Buffer:
    """Bytes that grow. `take` returns them and begins again."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._capacity = 0
        self.used = 0

    def take(self) -> bytearray:
        """Return the buffer, of which the first `used` bytes count, and begin an empty one of the same size."""
        taken = self._bytes
        self._bytes = bytearray()
        capacity = self._capacity
        self._capacity = 0
        self.used = 0
        if cython.compiled:
            self._grow(min(capacity, 1 << 22))
        return taken

    def _grow(self, room: int) -> int:
        """Make room for that many more bytes."""
        capacity = max(2 * self._capacity, self.used + room, 256)
        if cython.compiled:
            PyByteArray_Resize(self._bytes, capacity)
            self._pointer = cython.cast("unsigned char*", PyByteArray_AS_STRING(self._bytes))
        self._capacity = capacity
        return 0

    def _put(self, source: Bytes, position: int, length: int) -> int:
        if cython.compiled:
            if length > self._capacity - self.used:
                self._grow(length)
            memcpy(self._pointer + self.used, cython.address(source[position]), length)
        else:
            self._bytes += source[position : position + length]
        self.used += length
        return 0

    def _put1(self, value: int) -> int:
        if cython.compiled:
            if self.used >= self._capacity:
                self._grow(1)
            self._pointer[self.used] = value
        else:
            self._bytes.append(value)
        self.used += 1
        return 0

    def _put4(self, value: int) -> int:
        if cython.compiled:
            if self._capacity - self.used < 4:
                self._grow(4)
            memcpy(self._pointer + self.used, cython.address(value), 4)
        else:
            self._bytes += (value & 0xFFFFFFFF).to_bytes(4, sys.byteorder)
        self.used += 4
        return 0

    def _put8(self, value: int) -> int:
        if cython.compiled:
            if self._capacity - self.used < 8:
                self._grow(8)
            memcpy(self._pointer + self.used, cython.address(value), 8)
        else:
            self._bytes += (value & _MASK64).to_bytes(8, sys.byteorder)
        self.used += 8
        return 0

    def _int_at(self, position: int) -> int:
        """Return the 32-bit number at a position."""
        if cython.compiled:
            value = 0
            memcpy(cython.address(value), self._pointer + position, 4)
            return value
        return int.from_bytes(self._bytes[position : position + 4], sys.byteorder, signed=True)

    def _cut(self, used: int) -> None:
        if not cython.compiled:
            del self._bytes[used:]
        self.used = used


class Column:
    """Rows of one type. Siblings in a struct are linked by `next`.

    `validity` is a bitmap as long as the last null needs; rows behind it are valid.
    """

    def __init__(self) -> None:
        self.length = 0
        self.validity: bytearray | None = None
        self.next: Column | None = None

    def take_validity(self) -> bytearray | None:
        """Return the bitmap for all rows, or None if none is null; the caller takes the other buffers."""
        bitmap = self.validity
        self.validity = None
        if bitmap is not None:
            bitmap.extend(b"\xff" * (((self.length + 7) >> 3) - len(bitmap)))
        return bitmap

    def begin(self) -> None:
        """Begin an empty column, after the buffers were taken."""
        self.length = 0

    def append_null(self) -> int:
        """Append a null."""
        row = self.length
        self._append_empty()
        if self.validity is None:
            self.validity = bytearray()
        missing = (row >> 3) + 1 - len(self.validity)
        if missing > 0:
            # Twice the size, so that many nulls in a row extend it seldom.
            self.validity.extend(b"\xff" * (missing + len(self.validity)))
        self.validity[row >> 3] &= ~(1 << (row & 7)) & 0xFF
        return 0

    def _append_empty(self) -> int:
        """Append a row of which only the validity counts."""
        self.length += 1
        return 0

    def truncate(self, rows: int) -> None:
        """Drop the rows from an index on."""
        if self.validity is not None:
            for row in range(rows, min(self.length, 8 * len(self.validity))):
                self.validity[row >> 3] |= 1 << (row & 7)
        self._cut(rows)
        self.length = rows

    def _cut(self, rows: int) -> None:
        """Drop the data of rows."""


class FixedColumn(Column):
    """Values of 1, 4, 8 or 16 bytes; a boolean is one byte."""

    def __init__(self, width: int) -> None:
        Column.__init__(self)
        self.width = width
        self.data = Buffer()

    def _append_empty(self) -> int:
        width = self.width
        while width >= 8:
            self.data._put8(0)
            width -= 8
        if width == 4:
            self.data._put4(0)
        elif width == 1:
            self.data._put1(0)
        self.length += 1
        return 0

    def _cut(self, rows: int) -> None:
        self.data._cut(rows * self.width)


class BinaryColumn(Column):
    """Strings or bytes."""

    def __init__(self) -> None:
        Column.__init__(self)
        self.offsets = Buffer()
        self.data = Buffer()
        self.offsets._put4(0)

    def begin(self) -> None:
        """Begin an empty column with its first offset."""
        self.length = 0
        self.offsets._put4(0)

    def _append_empty(self) -> int:
        self.offsets._put4(self.data.used)
        self.length += 1
        return 0

    def _append(self, source: Bytes, position: int, length: int) -> bool:
        """Append bytes; return False if they no longer fit into an Arrow column."""
        if length > MAX_BYTES - self.data.used:
            return False
        self.data._put(source, position, length)
        self.offsets._put4(self.data.used)
        self.length += 1
        return True

    def _cut(self, rows: int) -> None:
        self.data._cut(self.offsets._int_at(4 * rows))
        self.offsets._cut(4 * (rows + 1))


class StructColumn(Column):
    """Rows of fields, each a column of the same length."""

    def __init__(self, fields: list[Column]) -> None:
        Column.__init__(self)
        self.fields = list(fields)
        self.first: Column | None = fields[0] if fields else None
        for index in range(1, len(fields)):
            fields[index - 1].next = fields[index]

    def _append_empty(self) -> int:
        field = self.first
        while field is not None:
            field.append_null()
            field = field.next
        self.length += 1
        return 0

    def _cut(self, rows: int) -> None:
        field = self.first
        while field is not None:
            field.truncate(rows)
            field = field.next


class ListColumn(Column):
    """Lists; the items of a map are structs of a key and a value."""

    def __init__(self, items: Column) -> None:
        Column.__init__(self)
        self.items = items
        self.offsets = Buffer()
        self.offsets._put4(0)

    def begin(self) -> None:
        """Begin an empty column with its first offset."""
        self.length = 0
        self.offsets._put4(0)

    def _append_empty(self) -> int:
        return self._close()

    def _close(self) -> int:
        """End the list whose items were appended."""
        self.offsets._put4(self.items.length)
        self.length += 1
        return 0

    def _cut(self, rows: int) -> None:
        # Items of an unfinished list are behind the last offset.
        self.items.truncate(self.offsets._int_at(4 * rows))
        self.offsets._cut(4 * (rows + 1))
