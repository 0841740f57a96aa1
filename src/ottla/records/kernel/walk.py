"""Iterates over a batch's records in place, and checks them as Kafka's LogValidator does.

The C types of the compiled form are in `walk.pxd`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # Cython is needed to compile this file, not to run it
    from ottla.records.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import MutableSequence

    Bytes = bytes | bytearray | memoryview

# Whether the compiled form is running.
COMPILED = bool(cython.compiled)

# Why a walk stopped before the batch's end; 0: it did not.
BAD_RECORD_LENGTH = 1
BAD_TIMESTAMP_DELTA = 2
BAD_OFFSET_DELTA = 3
BAD_KEY = 4
BAD_VALUE = 5
BAD_HEADER_COUNT = 6
BAD_HEADER_KEY = 7
BAD_HEADER_VALUE = 8
RECORD_SIZE_MISMATCH = 9
TRAILING_BYTES = 10
OFFSET_GAP = 11

# What `index_records` writes for each record, in this order.
INDEX_WIDTH = 8
(
    INDEX_OFFSET_DELTA,
    INDEX_TIMESTAMP_DELTA,
    INDEX_KEY_POSITION,
    INDEX_KEY_LENGTH,
    INDEX_VALUE_POSITION,
    INDEX_VALUE_LENGTH,
    INDEX_HEADERS_POSITION,
    INDEX_HEADER_COUNT,
) = range(INDEX_WIDTH)


_MASK32 = 0xFFFFFFFF


def _varint(data: Bytes, position: int, end: int) -> int:
    """Return a varint of 32 bits and its length in bytes, as raw << 3 | length; 0 if there is none.

    As in Java, bits of the fifth byte beyond the 32 are dropped; a sixth byte is an error.
    """
    if position >= end:
        return 0
    byte = data[position]
    if byte < 0x80:
        return byte << 3 | 1
    if position + 1 < end:
        second = data[position + 1]
        if second < 0x80:
            return (byte & 0x7F | second << 7) << 3 | 2
    return _long_varint(data, position, end)


def _long_varint(data: Bytes, position: int, end: int) -> int:
    # A function of its own, so that compilers inline `_varint` for the short ones, which are nearly all.
    value = 0
    length = 0
    while length < 5 and position + length < end:
        byte = data[position + length]
        value |= (byte & 0x7F) << (7 * length)
        length += 1
        if byte < 0x80:
            return (value & _MASK32) << 3 | length
    return 0


def _signed(packed: int) -> int:
    """Return the signed number in a result of `_varint`."""
    return _decoded(packed >> 3)


def _decoded(raw: int) -> int:
    """Return the signed number of a varint's bits (zigzag)."""
    return (raw >> 1) ^ -(raw & 1)


def _varlong_end(data: Bytes, position: int, end: int) -> int:
    """Return the end of the varint of up to 64 bits at a position; 0 if there is none."""
    length = 0
    while length < 10 and position + length < end:
        length += 1
        if data[position + length - 1] < 0x80:
            return position + length
    return 0


def _varlong(data: Bytes, position: int, stop: int) -> int:
    """Return the signed number of the varint from a position to `stop`."""
    value = 0
    shift = 0
    while position < stop:
        byte = data[position]
        value |= _shifted(byte & 0x7F, shift)
        shift += 7
        position += 1
    if not cython.compiled:
        value &= 0xFFFFFFFFFFFFFFFF
    return (value >> 1) ^ -(value & 1)


def _behind_later(data: Bytes, position: int, end: int) -> int:
    """Return the end of a record that is no earlier than its batch's base timestamp; 0 if that needs a full decode.

    A full decode is needed for lengths and deltas of more than two bytes, negative deltas, and errors.
    """
    if end - position < 6:
        return 0
    raw = data[position]
    position += 1
    if raw > 0x7F:
        second = data[position]
        if second > 0x7F:
            return 0
        raw = raw & 0x7F | second << 7
        position += 1
    length = raw >> 1
    if raw & 1 or length < 3 or length > end - position:
        return 0
    second = data[position + 1]
    if second & 1 or (second > 0x7F and data[position + 2] > 0x7F):
        return 0
    return position + length


def _shifted(byte: int, shift: int) -> int:
    # A function, so that the shift happens in 64 unsigned bits when compiled.
    return byte << shift


def _wrapped(value: int) -> int:
    """Return a sum or difference of two int64 with Java's wrap-around."""
    if not cython.compiled:
        value = (value + 0x8000000000000000 & 0xFFFFFFFFFFFFFFFF) - 0x8000000000000000
    return value


def _copy(target: bytearray | memoryview, at: int, source: Bytes, start: int, length: int) -> None:
    if cython.compiled:
        memcpy(target + at, source + start, length)  # type: ignore[operator]
    else:
        target[at : at + length] = source[start : start + length]


class RecordWalk:
    """Iterates over `count` uncompressed records from `start` to `end` of a buffer.

    `advance` copies the next record's fields into the attributes; `error` is the reason why a walk stopped, and `index`
    the record. Positions are the buffer's; a length of -1 means null.
    """

    def __init__(self, data: Bytes, start: int, end: int, count: int) -> None:
        if not 0 <= start <= end <= len(data) or end > 0x7FFFFFFF:
            raise IndexError(f"records from {start} to {end} in a buffer of {len(data)} bytes")
        self._view = data
        if cython.compiled:
            if len(data) > 0:
                self._data = cython.address(self._view[0])
        else:
            self._data = data
        self._size = len(data)
        self._start = start
        self._position = start
        self._end = end
        self.count = count
        self.index = 0
        self.error = 0
        self.record_position = start
        self._body_position = start
        self._offset_position = start
        self.offset_delta = 0
        self.timestamp_delta = 0
        self.key_position = 0
        self.key_length = -1
        self.value_position = 0
        self.value_length = -1
        self.headers_position = 0
        self.header_count = 0
        self.max_timestamp = -1
        self.max_timestamp_index = -1
        self.rejected = 0

    def rewind(self) -> None:
        """Return to the position before the first record."""
        self._position = self._start
        self.index = 0
        self.error = 0

    def _stand(self, start: int, end: int, count: int) -> None:
        """Move to the records of another batch in the same buffer, which a `BatchScan` has found."""
        self._start = start
        self._end = end
        self.count = count
        self.rewind()

    def advance(self) -> bool:
        """Read the next record; return False at the end of the batch and at an error."""
        if self.index >= self.count or self.error:
            return False
        if self._advance_plainly():
            return True
        data = self._data
        position = self._position
        packed = _varint(data, position, self._end)
        length = _signed(packed)
        position += packed & 7
        if packed == 0 or length < 1 or length > self._end - position:
            self.error = BAD_RECORD_LENGTH
            return False
        self.record_position = self._position
        self._body_position = position
        end = position + length  # no field may lie beyond the record's end
        position += 1  # attributes, all unused

        packed = _varint(data, position, end)
        if 0 < packed & 7 < 5:  # in all of its 64 bits
            self.timestamp_delta = _signed(packed)
            position += packed & 7
        else:
            stop = _varlong_end(data, position, end)
            if stop == 0:
                self.error = BAD_TIMESTAMP_DELTA
                return False
            self.timestamp_delta = _varlong(data, position, stop)
            position = stop
        self._offset_position = position

        packed = _varint(data, position, end)
        if packed == 0:
            self.error = BAD_OFFSET_DELTA
            return False
        self.offset_delta = _signed(packed)
        position += packed & 7

        packed = _varint(data, position, end)
        length = _signed(packed)
        position += packed & 7
        if packed == 0 or length > end - position:
            self.error = BAD_KEY
            return False
        self.key_position = position
        if length < 0:
            length = -1
        else:
            position += length
        self.key_length = length

        packed = _varint(data, position, end)
        length = _signed(packed)
        position += packed & 7
        if packed == 0 or length > end - position:
            self.error = BAD_VALUE
            return False
        self.value_position = position
        if length < 0:
            length = -1
        else:
            position += length
        self.value_length = length

        packed = _varint(data, position, end)
        length = _signed(packed)
        position += packed & 7
        if packed == 0 or length < 0 or length > end - position:
            self.error = BAD_HEADER_COUNT
            return False
        self.headers_position = position
        self.header_count = length
        if length > 0:
            position = self._skip_headers(position, end)
            if position < 0:
                return False
        if position != end:
            self.error = RECORD_SIZE_MISMATCH
            return False
        if self.index == self.count - 1 and position != self._end:
            self.error = TRAILING_BYTES
            return False
        self._position = position
        self.index += 1
        return True

    def _advance_plainly(self) -> bool:
        """Read the next record if it has no headers and no number of more than two bytes, as nearly all do.

        Otherwise, and on any error, leave the walk unchanged. Each number has its own branch, which processors predict
        well.
        """
        data = self._data
        position = self._position
        if self._end - position < 10:  # for the fields before the key
            return False
        high = 0  # has 0x80 once there was a third byte

        raw = data[position]
        position += 1
        if raw > 0x7F:
            high = data[position]
            raw = raw & 0x7F | high << 7
            position += 1
        self._body_position = position
        end = position + _decoded(raw)
        position += 1

        raw = data[position]
        position += 1
        if raw > 0x7F:
            second = data[position]
            high |= second
            raw = raw & 0x7F | second << 7
            position += 1
        self.timestamp_delta = _decoded(raw)
        self._offset_position = position

        raw = data[position]
        position += 1
        if raw > 0x7F:
            second = data[position]
            high |= second
            raw = raw & 0x7F | second << 7
            position += 1
        self.offset_delta = _decoded(raw)

        raw = data[position]
        position += 1
        if raw > 0x7F:
            second = data[position]
            high |= second
            raw = raw & 0x7F | second << 7
            position += 1
        length = _decoded(raw)
        self.key_position = position
        if length >= 0:
            position += length
        else:
            length = -1
        self.key_length = length

        if end > self._end or position > end - 2:
            return False
        raw = data[position]
        position += 1
        if raw > 0x7F:
            second = data[position]
            high |= second
            raw = raw & 0x7F | second << 7
            position += 1
        length = _decoded(raw)
        self.value_position = position
        if length >= 0:
            position += length
        else:
            length = -1
        self.value_length = length

        if high > 0x7F or position != end - 1 or data[position] != 0:
            return False
        if self.index == self.count - 1 and end != self._end:
            return False
        self.record_position = self._position
        self.headers_position = end
        self.header_count = 0
        self._position = end
        self.index += 1
        return True

    def is_later(self, base_timestamp: int, latest: int) -> bool:
        """Return whether all records are later than a time, by their timestamps only.

        An unreadable record counts as not later, so that it is decoded and refused.
        """
        if base_timestamp <= latest:
            return False
        data = self._data
        position = self._start
        plain = base_timestamp < 0x4000000000000000  # so that nothing wraps around
        for _ in range(self.count):
            behind = _behind_later(data, position, self._end) if plain else 0
            if behind:
                position = behind
                continue
            packed = _varint(data, position, self._end)
            length = _signed(packed)
            position += packed & 7
            if packed == 0 or length < 1 or length > self._end - position:
                return False
            packed = _varint(data, position + 1, position + length)
            delta = _signed(packed)
            if not 0 < packed & 7 < 5:
                stop = _varlong_end(data, position + 1, position + length)
                if stop == 0:
                    return False
                delta = _varlong(data, position + 1, stop)
            if _wrapped(base_timestamp + delta) <= latest:
                return False
            position += length
        return position == self._end

    def _skip_headers(self, position: int, end: int) -> int:
        data = self._data
        for _ in range(self.header_count):
            packed = _varint(data, position, end)
            length = _signed(packed)
            position += packed & 7
            if packed == 0 or length < 0 or length > end - position:
                self.error = BAD_HEADER_KEY
                return -1
            position += length
            packed = _varint(data, position, end)
            length = _signed(packed)
            position += packed & 7
            if packed == 0 or length > end - position:
                self.error = BAD_HEADER_VALUE
                return -1
            if length > 0:
                position += length
        return position


def check_records(
    walk: RecordWalk,
    base_timestamp: int,
    fixed_timestamp: bool,
    keys_required: bool,
    check_range: bool,
    now: int,
    before: int,
    after: int,
) -> bool:
    """Check all records against a log's rules; return whether all of them may be appended.

    Where timestamps are fixed, the batch's counts for every record; where the range is checked, timestamps must lie
    from `before` ms ago to `after` ms ahead. Sets the walk's largest timestamp and the number of `rejected` records.
    """
    largest = -1
    largest_index = -1
    rejected = 0
    while walk.advance():
        if walk.offset_delta != walk.index - 1:
            walk.error = OFFSET_GAP
            walk.index -= 1
            return False
        if fixed_timestamp:
            timestamp = base_timestamp
        else:
            timestamp = _wrapped(base_timestamp + walk.timestamp_delta)
        if timestamp > largest:
            largest = timestamp
            largest_index = walk.index - 1
        if keys_required and walk.key_length < 0:
            rejected += 1
        elif check_range and timestamp != -1:
            age = _wrapped(now - timestamp)
            if age > before or _wrapped(-age) > after:
                rejected += 1
    walk.max_timestamp = largest
    walk.max_timestamp_index = largest_index
    walk.rejected = rejected
    return walk.error == 0 and rejected == 0


def index_records(walk: RecordWalk, table: MutableSequence[int]) -> int:
    """Write INDEX_WIDTH numbers for each record into a table of int64; return the number of records."""
    if len(table) < walk.count * INDEX_WIDTH:
        raise IndexError("the table is too small for the batch's records")
    row = 0
    while walk.advance():
        table[row + 0] = walk.offset_delta
        table[row + 1] = walk.timestamp_delta
        table[row + 2] = walk.key_position
        table[row + 3] = walk.key_length
        table[row + 4] = walk.value_position
        table[row + 5] = walk.value_length
        table[row + 6] = walk.headers_position
        table[row + 7] = walk.header_count
        row += 8
    return row // 8


def read_headers(walk: RecordWalk) -> list[tuple[bytes, bytes | None]]:
    """Return the headers of the walk's current record, as Python objects."""
    headers: list[tuple[bytes, bytes | None]] = []
    position = walk.headers_position
    for _ in range(walk.header_count):
        packed = _varint(walk._data, position, walk._position)
        start = position + (packed & 7)
        position = start + _signed(packed)
        name = bytes(walk._view[start:position])
        packed = _varint(walk._data, position, walk._position)
        start = position + (packed & 7)
        length = _signed(packed)
        if length < 0:
            position = start
            headers.append((name, None))
        else:
            position = start + length
            headers.append((name, bytes(walk._view[start:position])))
    return headers


def _zigzag(value: int) -> int:
    return _shifted(value, 1) ^ (value >> 63)
