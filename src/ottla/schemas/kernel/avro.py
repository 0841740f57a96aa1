"""Avro's binary encoding to columns: the steps of a compiled decoder, each reading one type of the writer's schema.

`ottla.schemas.avro_steps` compiles a writer's and a reader's schema into steps. A step returns the position behind its
value, or one of the error codes below; it never reads behind the end. The C types are in `avro.pxd`.
"""

from __future__ import annotations

import struct

try:
    import cython  # type: ignore[import-untyped]
except ImportError:
    from .columns import cython  # type: ignore[attr-defined]

from .columns import BinaryColumn, Buffer, Column, FixedColumn, ListColumn, StructColumn

if cython.compiled:
    from cython.cimports.libc.string import memcpy  # type: ignore[import-untyped]

Bytes = bytes | bytearray | memoryview

# Why a step failed. -1 is kept for exceptions.
CUT_OFF = -2
BAD_VARINT = -3
BAD_LENGTH = -4
BAD_COUNT = -5
BAD_BRANCH = -6
BAD_SYMBOL = -7
UNRESOLVED = -8
BAD_DECIMAL = -9
OUT_OF_RANGE = -10
FULL = -11

# Where `FramedRows.decode` stopped.
DONE = 0
OTHER_SCHEMA = 1
UNFRAMED = 2
FAILED = 3

# Items that take no bytes may be this many in one block; all others are bounded by the bytes that are left.
MAX_EMPTY_ITEMS = 1 << 16


class Failure:
    """Where the last record failed: the names of fields, innermost first, and a reason if the step has its own."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.reason: str | None = None


class Varint:
    """The number that `_read_varint` read."""

    def __init__(self) -> None:
        self.value = 0


def _read_varint(data: Bytes, position: int, end: int, number: Varint) -> int:
    """Read a zigzag varint of up to 64 bits; return the position behind it or an error."""
    if position < end:
        byte = data[position]
        if byte < 0x80:
            number.value = (byte >> 1) ^ -(byte & 1)
            return position + 1
    value = 0
    shift = 0
    while position < end:
        byte = data[position]
        position += 1
        if shift == 63 and byte > 1:
            return BAD_VARINT
        value |= _shifted(byte & 0x7F, shift)
        if byte < 0x80:
            number.value = _unzigzag(value)
            return position
        shift += 7
    return CUT_OFF


def _shifted(byte: int, shift: int) -> int:
    return byte << shift


def _unzigzag(value: int) -> int:
    if cython.compiled:
        return cython.cast("long long", value >> 1) ^ -cython.cast("long long", value & 1)  # type: ignore[no-any-return]
    return (value >> 1) ^ -(value & 1)


class Step:
    """Reads one value. Steps of a record's fields and a union's branches are linked by `next`."""

    def __init__(self, least: int = 0) -> None:
        self.next: Step | None = None
        self.name = ""
        self.failure: Failure | None = None
        self.least = least
        """The smallest number of bytes that a value takes."""
        self.number = Varint()

    def _read(self, data: Bytes, position: int, end: int) -> int:
        return position

    def _failed(self, step: Step, code: int) -> int:
        """Note the field that failed; return the code."""
        if self.failure is not None and code != FULL and step.name:
            self.failure.path.append(step.name)
        return code


class NullStep(Step):
    """Reads null: appends one, or nothing if the reader has no such field."""

    def __init__(self, column: Column | None) -> None:
        Step.__init__(self)
        self.column = column

    def _read(self, data: Bytes, position: int, end: int) -> int:
        if self.column is not None:
            self.column.append_null()
        return position


class BooleanStep(Step):
    """Reads a boolean."""

    def __init__(self, column: FixedColumn) -> None:
        Step.__init__(self, 1)
        self.column = column

    def _read(self, data: Bytes, position: int, end: int) -> int:
        if position >= end:
            return CUT_OFF
        self.column.data._put1(data[position] == 1)
        self.column.length += 1
        return position + 1


class IntStep(Step):
    """Reads an int into a column of 32 bits."""

    def __init__(self, column: FixedColumn) -> None:
        Step.__init__(self, 1)
        self.column = column

    def _read(self, data: Bytes, position: int, end: int) -> int:
        position = _read_varint(data, position, end, self.number)
        if position < 0:
            return position
        value = self.number.value
        if value > 0x7FFFFFFF or value < -0x80000000:
            return BAD_VARINT
        self.column.data._put4(value)
        self.column.length += 1
        return position


class LongStep(Step):
    """Reads an int or a long into a column of 64 bits, multiplied by a scale."""

    def __init__(self, column: FixedColumn, scale: int, limit: int) -> None:
        Step.__init__(self, 1)
        self.column = column
        self.scale = scale
        self.limit = limit
        """The largest absolute value."""

    def _read(self, data: Bytes, position: int, end: int) -> int:
        position = _read_varint(data, position, end, self.number)
        if position < 0:
            return position
        value = self.number.value
        if value > self.limit or value < -self.limit - 1:
            return OUT_OF_RANGE
        self.column.data._put8(value * self.scale)
        self.column.length += 1
        return position


class PromotedStep(Step):
    """Reads an int, long or float into a column of floats or doubles."""

    def __init__(self, column: FixedColumn, is_float: bool) -> None:
        Step.__init__(self, 4 if is_float else 1)
        self.column = column
        self.is_float = is_float
        self.to_double = column.width == 8

    def _read(self, data: Bytes, position: int, end: int) -> int:
        if self.is_float:
            if end - position < 4:
                return CUT_OFF
            value = _float_at(data, position)
            position += 4
        else:
            position = _read_varint(data, position, end, self.number)
            if position < 0:
                return position
            value = float(self.number.value)
        if self.to_double:
            _put_double(self.column.data, value)
        else:
            _put_float(self.column.data, value)
        self.column.length += 1
        return position


def _float_at(data: Bytes, position: int) -> float:
    if cython.compiled:
        value = 0.0
        memcpy(cython.address(value), cython.address(data[position]), 4)
        return value
    number: float = struct.unpack_from("<f", data, position)[0]
    return number


def _put_double(buffer: Buffer, value: float) -> int:
    if cython.compiled:
        bits = 0
        memcpy(cython.address(bits), cython.address(value), 8)
        return buffer._put8(bits)
    return buffer._put8(int.from_bytes(struct.pack("<d", value), "little"))


def _put_float(buffer: Buffer, value: float) -> int:
    if cython.compiled:
        bits = 0
        single = value
        memcpy(cython.address(bits), cython.address(single), 4)
        return buffer._put4(bits)
    return buffer._put4(int.from_bytes(struct.pack("<f", value), "little"))


class CopyStep(Step):
    """Reads a float, double or fixed of the column's width."""

    def __init__(self, column: FixedColumn) -> None:
        Step.__init__(self, column.width)
        self.column = column

    def _read(self, data: Bytes, position: int, end: int) -> int:
        if end - position < self.least:
            return CUT_OFF
        self.column.data._put(data, position, self.least)
        self.column.length += 1
        return position + self.least


class BytesStep(Step):
    """Reads a string or bytes."""

    def __init__(self, column: BinaryColumn) -> None:
        Step.__init__(self, 1)
        self.column = column

    def _read(self, data: Bytes, position: int, end: int) -> int:
        position = _read_varint(data, position, end, self.number)
        if position < 0:
            return position
        length = self.number.value
        if length < 0 or length > end - position:
            return BAD_LENGTH
        if not self.column._append(data, position, length):
            return FULL
        return position + length


class FixedStep(Step):
    """Reads a fixed into a column of bytes."""

    def __init__(self, column: BinaryColumn, size: int) -> None:
        Step.__init__(self, size)
        self.column = column

    def _read(self, data: Bytes, position: int, end: int) -> int:
        if end - position < self.least:
            return CUT_OFF
        if not self.column._append(data, position, self.least):
            return FULL
        return position + self.least


class DecimalStep(Step):
    """Reads a decimal, of a fixed size or prefixed with its length, into a column of 128 bits.

    `limit_high` and `limit_low` are the two halves of the largest absolute value.
    """

    def __init__(self, column: FixedColumn, size: int, limit_high: int, limit_low: int) -> None:
        Step.__init__(self, 1 if size < 0 else size)
        self.column = column
        self.size = size
        self.limit_high = limit_high
        self.limit_low = limit_low

    def _read(self, data: Bytes, position: int, end: int) -> int:
        length = self.size
        if length < 0:
            position = _read_varint(data, position, end, self.number)
            if position < 0:
                return position
            length = self.number.value
        if length < 0 or length > end - position:
            return BAD_LENGTH
        sign = 0xFF if length > 0 and data[position] >= 0x80 else 0
        stop = position + length
        while stop - position > 16:  # only repeated sign bytes may be in front
            if data[position] != sign:
                return BAD_DECIMAL
            position += 1
        if length > 16 and (data[position] >= 0x80) != (sign == 0xFF):
            return BAD_DECIMAL
        high = 0xFFFFFFFFFFFFFFFF if sign else 0
        low = high
        while position < stop:
            high = _shifted_in(high, low >> 56)
            low = _shifted_in(low, data[position])
            position += 1
        if not self._fits(high, low, sign != 0):
            return BAD_DECIMAL
        self.column.data._put8(_as_signed(low))
        self.column.data._put8(_as_signed(high))
        self.column.length += 1
        return stop

    def _fits(self, high: int, low: int, negative: bool) -> bool:
        if negative:
            low = _negated(low)
            high = _inverted(high)
            if low == 0:
                high = _shifted_sum(high)
        return high < self.limit_high or (high == self.limit_high and low <= self.limit_low)


def _shifted_in(value: int, byte: int) -> int:
    if cython.compiled:
        return (value << 8) | byte
    return ((value << 8) | byte) & 0xFFFFFFFFFFFFFFFF


def _as_signed(value: int) -> int:
    if cython.compiled:
        return cython.cast("long long", value)  # type: ignore[no-any-return]
    return value - (1 << 64) if value >> 63 else value


def _negated(value: int) -> int:
    if cython.compiled:
        return ~value + 1
    return -value & 0xFFFFFFFFFFFFFFFF


def _inverted(value: int) -> int:
    if cython.compiled:
        return ~value
    return ~value & 0xFFFFFFFFFFFFFFFF


def _shifted_sum(value: int) -> int:
    if cython.compiled:
        return value + 1
    return (value + 1) & 0xFFFFFFFFFFFFFFFF


class EnumStep(Step):
    """Reads an enum as the name of its symbol; `starts` has where each name begins, and -1 for one to refuse."""

    def __init__(self, column: BinaryColumn | None, symbols: list[bytes | None]) -> None:
        Step.__init__(self, 1)
        self.column = column
        self.symbols = list(symbols)
        self.count = len(symbols)

    def _read(self, data: Bytes, position: int, end: int) -> int:
        position = _read_varint(data, position, end, self.number)
        if position < 0:
            return position
        index = self.number.value
        if index < 0 or index >= self.count:
            return BAD_SYMBOL
        if self.column is None:
            return position
        symbol = self.symbols[index]
        if symbol is None:
            return UNRESOLVED
        if not self.column._append(symbol, 0, len(symbol)):
            return FULL
        return position


class RecordStep(Step):
    """Reads a record: its fields in the writer's order, then defaults. Without a column its fields are skipped."""

    def __init__(self, column: StructColumn | None, fields: list[Step], least: int) -> None:
        Step.__init__(self, least)
        self.column = column
        self.first: Step | None = fields[0] if fields else None
        for index in range(1, len(fields)):
            fields[index - 1].next = fields[index]

    def _read(self, data: Bytes, position: int, end: int) -> int:
        field = self.first
        while field is not None:
            position = field._read(data, position, end)
            if position < 0:
                return self._failed(field, position)
            field = field.next
        if self.column is not None:
            self.column.length += 1
        return position


class ListStep(Step):
    """Reads an array or, with a step for keys, a map; without a column it is skipped."""

    def __init__(self, column: ListColumn | None, key: Step | None, item: Step) -> None:
        Step.__init__(self, 1)
        self.column = column
        self.entries = column.items if column is not None and key is not None else None
        self.key = key
        self.item = item
        self.item_least = item.least + (1 if key is not None else 0)

    def _read(self, data: Bytes, position: int, end: int) -> int:
        while True:
            position = _read_varint(data, position, end, self.number)
            if position < 0:
                return position
            count = self.number.value
            if count == 0:
                break
            if count < 0:
                if count < -0x7FFFFFFFFFFFFFFF:
                    return BAD_COUNT
                count = -count
                position = _read_varint(data, position, end, self.number)
                if position < 0:
                    return position
                size = self.number.value
                if size < 0 or size > end - position:
                    return BAD_LENGTH
                if self.column is None:
                    position += size
                    continue
            if count > (MAX_EMPTY_ITEMS if self.item_least == 0 else (end - position) // self.item_least):
                return BAD_COUNT
            while count > 0:
                if self.key is not None:
                    position = self.key._read(data, position, end)
                    if position < 0:
                        return position
                position = self.item._read(data, position, end)
                if position < 0:
                    return self._failed(self.item, position)
                if self.entries is not None:
                    self.entries.length += 1
                count -= 1
        if self.column is not None:
            if self.column.items.length > 0x7FFFFFFF:
                return FULL
            self.column._close()
        return position


class NullableStep(Step):
    """Reads a union of null and one other type into a column of that type."""

    def __init__(self, column: Column | None, value: Step, null_index: int) -> None:
        Step.__init__(self, 1)
        self.column = column
        self.value = value
        self.null_index = null_index
        self.name = value.name

    def _read(self, data: Bytes, position: int, end: int) -> int:
        position = _read_varint(data, position, end, self.number)
        if position < 0:
            return position
        index = self.number.value
        if index == self.null_index:
            if self.column is not None:
                self.column.append_null()
            return position
        if index != 1 - self.null_index:
            return BAD_BRANCH
        return self.value._read(data, position, end)


class UnionStep(Step):
    """Reads a union: the branch that the data names."""

    def __init__(self, branches: list[Step]) -> None:
        Step.__init__(self, 1)
        self.count = len(branches)
        self.first = branches[0] if branches else None
        for index in range(1, len(branches)):
            branches[index - 1].next = branches[index]

    def _read(self, data: Bytes, position: int, end: int) -> int:
        position = _read_varint(data, position, end, self.number)
        if position < 0:
            return position
        index = self.number.value
        if index < 0 or index >= self.count:
            return BAD_BRANCH
        branch = self.first
        while index > 0 and branch is not None:
            branch = branch.next
            index -= 1
        if branch is None:
            return BAD_BRANCH
        return branch._read(data, position, end)


class MemberStep(Step):
    """Reads a value into one member of a struct that stands for a union; the other members become null."""

    def __init__(self, column: StructColumn, member: Column, value: Step) -> None:
        Step.__init__(self, value.least)
        self.column = column
        self.member = member
        self.value = value

    def _read(self, data: Bytes, position: int, end: int) -> int:
        field = self.column.first
        while field is not None:
            if field is self.member:
                position = self.value._read(data, position, end)
                if position < 0:
                    return position
            else:
                field.append_null()
            field = field.next
        self.column.length += 1
        return position


class DefaultStep(Step):
    """Appends a default: a value that is encoded with the reader's schema."""

    def __init__(self, encoded: bytes, value: Step) -> None:
        Step.__init__(self)
        self.encoded = encoded
        self.value = value

    def _read(self, data: Bytes, position: int, end: int) -> int:
        code = self.value._read(self.encoded, 0, len(self.encoded))
        return code if code < 0 else position


class SkipStep(Step):
    """Skips a value of a fixed size, or (with size -1) a varint, or (with size -2) a length and as many bytes."""

    def __init__(self, size: int) -> None:
        Step.__init__(self, 1 if size < 0 else size)
        self.size = size

    def _read(self, data: Bytes, position: int, end: int) -> int:
        if self.size >= 0:
            return position + self.size if self.size <= end - position else CUT_OFF
        position = _read_varint(data, position, end, self.number)
        if position < 0 or self.size == -1:
            return position
        length = self.number.value
        if length < 0 or length > end - position:
            return BAD_LENGTH
        return position + length


class RefusedStep(Step):
    """A branch of the writer's union that the reader has no type for: data with it fails."""

    def __init__(self, reason: str) -> None:
        Step.__init__(self)
        self.reason = reason

    def _read(self, data: Bytes, position: int, end: int) -> int:
        if self.failure is not None:
            self.failure.reason = self.reason
        return UNRESOLVED


class FramedRows:
    """The values of one Arrow array: bytes that begin with a magic byte and a schema id."""

    def __init__(self, data: Bytes, offsets: Bytes, validity: Bytes | None, first: int, count: int) -> None:
        # A pointer into an empty buffer would be none.
        self._view = memoryview(data if len(data) else b"\0").cast("B")
        if cython.compiled:
            self._data = cython.address(self._view[0])
        else:
            self._data = self._view
        self._offsets = memoryview(offsets).cast("B").cast("i")
        self._validity = None if validity is None else memoryview(validity).cast("B")
        self._has_nulls = validity is not None
        self._first = first
        self.count = count
        self.row = 0
        """The next row."""
        self.schema_id = -1
        """Of the row at which `decode` stopped with OTHER_SCHEMA."""
        self.error = 0
        """Of the row at which it stopped with FAILED; the number of bytes left over if it is positive."""

    def value(self, row: int) -> bytes:
        """Return the bytes of a row."""
        index = self._first + row
        return bytes(self._view[self._offsets[index] : self._offsets[index + 1]])

    def is_null(self) -> bool:
        """Return whether the next row is null."""
        index = self._first + self.row
        return self._has_nulls and not (self._validity[index >> 3] >> (index & 7)) & 1  # type: ignore[index]

    def decode(self, step: Step, column: Column, schema_id: int) -> int:
        """Append rows to the column while they have this schema id; return why it stopped.

        Null rows become null. A row that fails leaves no trace in the column.
        """
        while self.row < self.count:
            if self.is_null():
                column.append_null()
                self.row += 1
                continue
            index = self._first + self.row
            position = self._offsets[index]
            end = self._offsets[index + 1]
            if end - position < 5 or self._data[position] != 0:
                return UNFRAMED
            number = 0
            for i in range(position + 1, position + 5):
                number = number << 8 | self._data[i]
            if number != schema_id:
                self.schema_id = number
                return OTHER_SCHEMA
            if not self._decode_value(step, column, position + 5, end):
                return FAILED
        return DONE

    def decode_row(self, step: Step, column: Column, prefix: int) -> bool:
        """Append the next row, of which the first `prefix` bytes are skipped; return False if it failed."""
        index = self._first + self.row
        return self._decode_value(step, column, self._offsets[index] + prefix, self._offsets[index + 1])

    def skip(self, column: Column) -> None:
        """Append null for the next row."""
        column.append_null()
        self.row += 1

    def _decode_value(self, step: Step, column: Column, position: int, end: int) -> bool:
        rows = column.length
        position = step._read(self._data, position, end)
        if position != end:
            self.error = position if position < 0 else end - position
            column.truncate(rows)
            return False
        self.row += 1
        return True
