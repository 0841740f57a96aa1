"""Protobuf's binary encoding to columns: the steps of a compiled decoder, one for each field of a message.

`ottla.schemas.protobuf_columns` compiles a message into steps. A step that meets anything unusual (a group, a message
in two parts, a wire type that does not fit) returns an error, and its caller parses the values in another way. The C
types are in `protobuf.pxd`.
"""

from __future__ import annotations

try:
    import cython  # type: ignore[import-untyped]
except ImportError:
    from .columns import cython  # type: ignore[attr-defined]

from .avro import FULL, Varint, _shifted, _unzigzag
from .columns import BinaryColumn, Column, FixedColumn, ListColumn, StructColumn

Bytes = bytes | bytearray | memoryview

# How a number is written and which column it goes to.
NUMBER_BOOL = 0
NUMBER_INT32 = 1
NUMBER_INT64 = 2
NUMBER_UINT32 = 3
NUMBER_UINT64 = 4
NUMBER_SINT32 = 5
NUMBER_SINT64 = 6
NUMBER_FIXED32 = 7
NUMBER_FIXED64 = 8
NUMBER_SFIXED32 = 9
NUMBER_SFIXED64 = 10
NUMBER_FLOAT = 11
NUMBER_DOUBLE = 12

UNUSUAL = -20


def _read_unsigned(data: Bytes, position: int, end: int, number: Varint) -> int:
    """Read a varint of up to 64 bits; return the position behind it or an error. The number is signed."""
    value = 0
    shift = 0
    while position < end:
        byte = data[position]
        position += 1
        if shift == 63 and byte > 1:
            return UNUSUAL
        value |= _shifted(byte & 0x7F, shift)
        if byte < 0x80:
            number.value = _signed64(value)
            return position
        shift += 7
    return UNUSUAL


def _signed64(value: int) -> int:
    if cython.compiled:
        return cython.cast("long long", value)  # type: ignore[no-any-return]
    return value - (1 << 64) if value >> 63 else value


def _little(data: Bytes, position: int, size: int) -> int:
    """Return a little-endian number of 4 or 8 bytes; that of 8 is signed."""
    value = 0
    index = size - 1
    while index >= 0:
        value = value << 8 | data[position + index]
        index -= 1
    return _signed64(value)


class FieldStep:
    """Reads one field of a message; the steps of a message are linked by `next`."""

    def __init__(self, number: int, column: Column) -> None:
        self.next: FieldStep | None = None
        self.field_number = number
        self.any_column = column
        self.seen = False
        self.number = Varint()

    def _begin(self) -> None:
        """Forget the message before."""
        self.seen = False

    def _take(self, data: Bytes, position: int, end: int, wire: int) -> int:
        return UNUSUAL

    def _finish(self, data: Bytes) -> int:
        """Append what was read, or the default, or null."""
        return 0


class NumberField(FieldStep):
    """A number, single or repeated; the last one counts if it is single."""

    def __init__(self, number: int, column: FixedColumn, kind: int, items: ListColumn | None, presence: bool) -> None:
        FieldStep.__init__(self, number, column)
        self.column = column
        self.kind = kind
        self.items = items
        self.presence = presence
        self.value = 0
        if kind in (NUMBER_FIXED32, NUMBER_SFIXED32, NUMBER_FLOAT):
            self.wire = 5
        elif kind in (NUMBER_FIXED64, NUMBER_SFIXED64, NUMBER_DOUBLE):
            self.wire = 1
        else:
            self.wire = 0

    def _one(self, data: Bytes, position: int, end: int) -> int:
        if self.wire == 0:
            position = _read_unsigned(data, position, end, self.number)
            self.value = self.number.value
            return position
        size = 4 if self.wire == 5 else 8
        if end - position < size:
            return UNUSUAL
        self.value = _little(data, position, size)
        return position + size

    def _take(self, data: Bytes, position: int, end: int, wire: int) -> int:
        if wire == self.wire:
            position = self._one(data, position, end)
            if position < 0:
                return position
            self.seen = True
            if self.items is not None:
                self._append(self.value)
            return position
        if wire != 2 or self.items is None:
            return UNUSUAL
        position = _read_unsigned(data, position, end, self.number)
        if position < 0:
            return position
        length = self.number.value
        if length < 0 or length > end - position:
            return UNUSUAL
        stop = position + length
        while position < stop:
            position = self._one(data, position, stop)
            if position < 0:
                return position
            self._append(self.value)
        return position

    def _append(self, value: int) -> int:
        kind = self.kind
        column = self.column
        if kind in (NUMBER_INT64, NUMBER_SFIXED64, NUMBER_DOUBLE):
            column.data._put8(value)
        elif kind in (NUMBER_INT32, NUMBER_SFIXED32, NUMBER_FLOAT):
            column.data._put4(_low32(value))
        elif kind == NUMBER_BOOL:
            column.data._put1(value != 0)
        elif kind in (NUMBER_UINT32, NUMBER_FIXED32):
            column.data._put8(value & 0xFFFFFFFF)
        elif kind == NUMBER_SINT32:
            column.data._put4(_low32(_unzigzag(value & 0xFFFFFFFF)))
        elif kind == NUMBER_SINT64:
            column.data._put8(_unzigzag(_bits(value)))
        else:  # unsigned 64 bits as a decimal of 128
            column.data._put8(value)
            column.data._put8(0)
        column.length += 1
        return 0

    def _finish(self, data: Bytes) -> int:
        if self.items is not None:
            return self.items._close()
        if self.seen:
            return self._append(self.value)
        if self.presence:
            return self.column.append_null()
        return self._append(0)


def _low32(value: int) -> int:
    """Return the lower 32 bits as a signed number."""
    if cython.compiled:
        return cython.cast("int", value)  # type: ignore[no-any-return]
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _bits(value: int) -> int:
    """Return a number of 64 bits without its sign."""
    if cython.compiled:
        return value
    return value & 0xFFFFFFFFFFFFFFFF


class BytesField(FieldStep):
    """A string or bytes, single or repeated."""

    def __init__(self, number: int, column: BinaryColumn, items: ListColumn | None, presence: bool) -> None:
        FieldStep.__init__(self, number, column)
        self.column = column
        self.items = items
        self.presence = presence
        self.start = 0
        self.length = 0

    def _take(self, data: Bytes, position: int, end: int, wire: int) -> int:
        if wire != 2:
            return UNUSUAL
        position = _read_unsigned(data, position, end, self.number)
        if position < 0:
            return position
        length = self.number.value
        if length < 0 or length > end - position:
            return UNUSUAL
        if self.items is not None:
            if not self.column._append(data, position, length):
                return FULL
        else:
            self.start = position
            self.length = length
            self.seen = True
        return position + length

    def _finish(self, data: Bytes) -> int:
        if self.items is not None:
            return self.items._close()
        if not self.seen and self.presence:
            return self.column.append_null()
        if not self.seen:
            return self.column._append_empty()
        return 0 if self.column._append(data, self.start, self.length) else FULL


class EnumField(FieldStep):
    """An enum by the name of its value; a number without a name is unusual."""

    def __init__(
        self,
        number: int,
        column: BinaryColumn,
        names: dict[int, bytes],
        items: ListColumn | None,
        default: bytes | None,
    ) -> None:
        FieldStep.__init__(self, number, column)
        self.column = column
        self.names = dict(names)
        self.items = items
        self.default = default
        """The name of an absent value; None if it is null."""
        self.name: bytes | None = None

    def _one(self, data: Bytes, position: int, end: int) -> int:
        position = _read_unsigned(data, position, end, self.number)
        if position < 0:
            return position
        self.name = self.names.get(_low32(self.number.value))
        if self.name is None:
            return UNUSUAL
        if self.items is not None and not self._append(self.name):
            return FULL
        return position

    def _append(self, name: bytes) -> bool:
        return self.column._append(name, 0, len(name))

    def _take(self, data: Bytes, position: int, end: int, wire: int) -> int:
        if wire == 0:
            self.seen = True
            return self._one(data, position, end)
        if wire != 2 or self.items is None:
            return UNUSUAL
        position = _read_unsigned(data, position, end, self.number)
        if position < 0:
            return position
        length = self.number.value
        if length < 0 or length > end - position:
            return UNUSUAL
        stop = position + length
        while position < stop:
            position = self._one(data, position, stop)
            if position < 0:
                return position
        return position

    def _finish(self, data: Bytes) -> int:
        if self.items is not None:
            return self.items._close()
        name = self.name if self.seen else self.default
        if name is None:
            return self.column.append_null()
        return 0 if self._append(name) else FULL


class MessageField(FieldStep):
    """A message, single or repeated; the entries of a map are repeated messages."""

    def __init__(self, number: int, message: MessageStep, items: ListColumn | None) -> None:
        FieldStep.__init__(self, number, message.column)
        self.message = message
        self.items = items
        self.start = 0
        self.stop = 0

    def _take(self, data: Bytes, position: int, end: int, wire: int) -> int:
        if wire != 2 or (self.seen and self.items is None):  # two parts of one message would have to be merged
            return UNUSUAL
        position = _read_unsigned(data, position, end, self.number)
        if position < 0:
            return position
        length = self.number.value
        if length < 0 or length > end - position:
            return UNUSUAL
        stop = position + length
        self.seen = True
        if self.items is None:
            self.start = position
            self.stop = stop
        elif self.message.read(data, position, stop) < 0:
            return UNUSUAL
        return stop

    def _finish(self, data: Bytes) -> int:
        if self.items is not None:
            return self.items._close()
        if not self.seen:
            return self.message.column.append_null()
        return 0 if self.message.read(data, self.start, self.stop) >= 0 else UNUSUAL


class MessageStep:
    """Reads a message into a column of structs."""

    def __init__(self, column: StructColumn, fields: list[FieldStep]) -> None:
        self.column = column
        self.first: FieldStep | None = fields[0] if fields else None
        for index in range(1, len(fields)):
            fields[index - 1].next = fields[index]
        self.number = Varint()

    def _find(self, number: int, hint: FieldStep | None) -> FieldStep | None:
        """Return the step of a field: fields are nearly always written in their order."""
        field = hint
        while field is not None:
            if field.field_number == number:
                return field
            field = field.next
        field = self.first
        while field is not None and field is not hint:
            if field.field_number == number:
                return field
            field = field.next
        return None

    def read(self, data: Bytes, position: int, end: int) -> int:
        """Append the message from a position to the end; return the end, or an error."""
        field = self.first
        while field is not None:
            field._begin()
            field = field.next
        hint = self.first
        while position < end:
            position = _read_unsigned(data, position, end, self.number)
            if position < 0:
                return position
            tag = self.number.value
            if tag < 8 or tag > 0xFFFFFFFF:
                return UNUSUAL
            field = self._find(tag >> 3, hint)
            if field is None:
                position = self._skip(data, position, end, tag & 7)
            else:
                position = field._take(data, position, end, tag & 7)
                hint = field
            if position < 0:
                return position
        field = self.first
        while field is not None:
            if field._finish(data) < 0:
                return UNUSUAL
            field = field.next
        self.column.length += 1
        return position

    def _skip(self, data: Bytes, position: int, end: int, wire: int) -> int:
        if wire == 0:
            return _read_unsigned(data, position, end, self.number)
        if wire == 2:
            position = _read_unsigned(data, position, end, self.number)
            if position < 0:
                return position
            length = self.number.value
        elif wire == 1:
            length = 8
        elif wire == 5:
            length = 4
        else:
            return UNUSUAL
        return position + length if 0 <= length <= end - position else UNUSUAL


class MessageRows:
    """The values of one Arrow array without nulls."""

    def __init__(self, data: Bytes, offsets: Bytes, first: int, count: int) -> None:
        self._view = memoryview(data if len(data) else b"\0").cast("B")
        if cython.compiled:
            self._data = cython.address(self._view[0])
        else:
            self._data = self._view
        self._offsets = memoryview(offsets).cast("B").cast("i")
        self._first = first
        self._count = count

    def decode(self, message: MessageStep, prefix: bytes) -> bool:
        """Append values that begin with a prefix; return False at the first that is unusual or has another one.

        The prefix is the frame: magic byte, schema id and message indexes.
        """
        size = len(prefix)
        for row in range(self._first, self._first + self._count):
            position = self._offsets[row]
            end = self._offsets[row + 1]
            if end - position < size:
                return False
            for index in range(size):
                if self._data[position + index] != prefix[index]:
                    return False
            if message.read(self._data, position + size, end) != end:
                return False
        return True
