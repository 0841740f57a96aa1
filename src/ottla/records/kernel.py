# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""The native kernel: walks a batch's records in place, without a Python object a record.

The same file runs as it stands, and compiled by Cython with the C types of `kernel.pxd`. What is done with the
records (rules, compaction, columns) is decided by the callers; this module only looks at bytes and moves them.
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
    from collections.abc import Callable, MutableSequence, Sequence

    from _typeshed import WriteableBuffer as Buffer

    Bytes = bytes | bytearray | memoryview

# Whether the compiled form is running.
COMPILED = bool(cython.compiled)

# Why a walk stopped before the batch's end; 0 is "it did not".
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

# What `index_records` writes for each record, one behind the other.
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

# What `measure` adds up.
TOTALS_WIDTH = 6
(
    TOTAL_ROWS,
    TOTAL_KEY_BYTES,
    TOTAL_VALUE_BYTES,
    TOTAL_HEADERS,
    TOTAL_HEADER_KEY_BYTES,
    TOTAL_HEADER_VALUE_BYTES,
) = range(TOTALS_WIDTH)

# A slot of the key map: the two halves of the key's hash, and the latest offset plus one (0 is an empty slot).
SLOT_WIDTH = 3


_MASK32 = 0xFFFFFFFF


def _varint(data: Bytes, position: int, end: int) -> int:
    """A varint of 32 bits and its length in bytes, as raw << 3 | length; 0 where there is none.

    As in Java, what its fifth byte has beyond the 32 bits is dropped; a sixth byte makes it none.
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
    # Apart from `_varint`, so that compilers put the short ones, which are nearly all, where they are called.
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
    """The signed number in what `_varint` returned."""
    return _decoded(packed >> 3)


def _decoded(raw: int) -> int:
    """The signed number that a varint's bits stand for."""
    return (raw >> 1) ^ -(raw & 1)


def _varlong_end(data: Bytes, position: int, end: int) -> int:
    """Where the varint of up to 64 bits at a position ends; 0 where there is none."""
    length = 0
    while length < 10 and position + length < end:
        length += 1
        if data[position + length - 1] < 0x80:
            return position + length
    return 0


def _varlong(data: Bytes, position: int, stop: int) -> int:
    """The signed number of the varint that stands from a position to `stop`."""
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
    """Where a record ends that is no earlier than its batch's base; 0 for one that needs a closer look, as few do.

    Such a look is for lengths and times of more than two bytes, times before the base, and all that is wrong.
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
    """A sum or difference of two int64 as Java has it, which wraps around where Python goes on counting."""
    if not cython.compiled:
        value = (value + 0x8000000000000000 & 0xFFFFFFFFFFFFFFFF) - 0x8000000000000000
    return value


def _copy(target: bytearray | memoryview, at: int, source: Bytes, start: int, length: int) -> None:
    if cython.compiled:
        memcpy(target + at, source + start, length)  # type: ignore[operator]
    else:
        target[at : at + length] = source[start : start + length]


class RecordWalk:
    """A walk over `count` records that stand, uncompressed, from `start` to `end` of a buffer.

    `advance` puts the next record's fields into the attributes; `error` says why a walk could not go on and `index`
    at which record. Positions are the buffer's; a length of -1 means null.
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
        """Stand before the first record again."""
        self._position = self._start
        self.index = 0
        self.error = 0

    def _stand(self, start: int, end: int, count: int) -> None:
        """Stand before the records of another batch in the same buffer, which a `BatchScan` found to be there."""
        self._start = start
        self._end = end
        self.count = count
        self.rewind()

    def advance(self) -> bool:
        """Go to the next record; False at the end of the batch and at an error."""
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
        end = position + length  # from here on nothing of the record lies behind its own end
        position += 1  # attributes, none of which is in use

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
        """Go to the next record if it is like nearly all: without headers, and its numbers have a byte or two.

        Where it is not, or where anything is wrong with it, the walk stands where it stood. Each number is read with a
        branch of its own: processors guess it right, and then need not wait for one number to find the next.
        """
        data = self._data
        position = self._position
        if self._end - position < 10:  # for what stands before a key
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
        """Whether all records are later than a time; nothing but their timestamps is looked at.

        What cannot be read is not later, so that it is decoded, and refused by then.
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
    """Walk over all records and hold each to a log's rules; True where all of them may be appended.

    The timestamps count as the batch's own where they are fixed, and must lie from `before` ms ago to `after` ms ahead
    where the range is checked. The walk then knows the largest timestamp, and how many records the rules `rejected`.
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
    """Write INDEX_WIDTH numbers for each record into a table of int64, and return how many records there were."""
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
    """The headers of the record that a walk stands at, as Python objects."""
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


def encode_record(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str | bytes, bytes | None]],
) -> None:
    """Write one record behind `out`."""
    body = bytearray(1)  # attributes, none of which is in use
    _write_varint(body, timestamp_delta)
    _write_varint(body, offset_delta)
    _write_bytes(body, key)
    _write_bytes(body, value)
    _write_varint(body, len(headers))
    for name, content in headers:
        _write_bytes(body, name.encode() if isinstance(name, str) else name)
        _write_bytes(body, content)
    _write_varint(out, len(body))
    out += body


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # the length -1
    else:
        _write_varint(out, len(data))
        out += data


def _write_varint(out: bytearray, value: int) -> None:
    rest = _zigzag(value)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _zigzag(value: int) -> int:
    return _shifted(value, 1) ^ (value >> 63)


def _add(a: int, b: int) -> int:
    """A sum in 64 unsigned bits."""
    a += b
    if not cython.compiled:
        a &= 0xFFFFFFFFFFFFFFFF
    return a


def _rotated(value: int, bits: int) -> int:
    value = value << bits | value >> (64 - bits)
    if not cython.compiled:
        value &= 0xFFFFFFFFFFFFFFFF
    return value


# SipHash's initial state ("somepseudorandomlygeneratedbytes").
_INIT0 = 0x736F6D6570736575
_INIT1 = 0x646F72616E646F6D
_INIT2 = 0x6C7967656E657261
_INIT3 = 0x7465646279746573


class KeyHash:
    """SipHash-2-4 with 128 bits under a secret seed, so that nobody can choose keys that collide."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != 16:
            raise ValueError("a seed has 16 bytes")
        self._k0 = int.from_bytes(seed[:8], "little")
        self._k1 = int.from_bytes(seed[8:], "little")
        self._v0 = self._v1 = self._v2 = self._v3 = 0
        self._low = 0
        self._high = 0

    def digest(self, key: Bytes) -> tuple[int, int]:
        """The two halves of one key's hash; for the many, `put_keys` and `mark_latest` use it from within."""
        walk = RecordWalk(key, 0, len(key), 0)
        self._hash(walk._data, 0, len(key))
        return self._low, self._high

    def _rounds(self, count: int) -> None:
        v0 = self._v0
        v1 = self._v1
        v2 = self._v2
        v3 = self._v3
        for _ in range(count):
            v0 = _add(v0, v1)
            v1 = _rotated(v1, 13) ^ v0
            v0 = _rotated(v0, 32)
            v2 = _add(v2, v3)
            v3 = _rotated(v3, 16) ^ v2
            v0 = _add(v0, v3)
            v3 = _rotated(v3, 21) ^ v0
            v2 = _add(v2, v1)
            v1 = _rotated(v1, 17) ^ v2
            v2 = _rotated(v2, 32)
        self._v0 = v0
        self._v1 = v1
        self._v2 = v2
        self._v3 = v3

    def _hash(self, data: Bytes, position: int, length: int) -> None:
        self._v0 = self._k0 ^ _INIT0
        self._v1 = self._k1 ^ _INIT1 ^ 0xEE
        self._v2 = self._k0 ^ _INIT2
        self._v3 = self._k1 ^ _INIT3
        stop = position + length
        while stop - position >= 8:
            word = 0
            for i in range(8):
                word |= _shifted(data[position + i], 8 * i)
            self._v3 ^= word
            self._rounds(2)
            self._v0 ^= word
            position += 8
        word = _shifted(length & 0xFF, 56)
        for i in range(stop - position):
            word |= _shifted(data[position + i], 8 * i)
        self._v3 ^= word
        self._rounds(2)
        self._v0 ^= word
        self._v2 ^= 0xEE
        self._rounds(4)
        self._low = self._v0 ^ self._v1 ^ self._v2 ^ self._v3
        self._v1 ^= 0xDD
        self._rounds(4)
        self._high = self._v0 ^ self._v1 ^ self._v2 ^ self._v3

    def _slot(self, slots: MutableSequence[int], size: int) -> int:
        """Where the key hashed last stands in the map, or the empty slot it would take; -1 where the map is full."""
        slot = self._low % size
        for _ in range(size):
            at = slot * 3
            if slots[at + 2] == 0 or (slots[at] == self._low and slots[at + 1] == self._high):
                return at
            slot += 1
            if slot == size:
                slot = 0
        return -1

    def put_keys(
        self, walk: RecordWalk, base_offset: int, first_offset: int, slots: MutableSequence[int], room: int
    ) -> int:
        """Enter the keys of a batch's records, from an offset on, and return how many new ones the map took.

        At most `room` new keys are taken: a walk that stands before its end stopped at a record (`offset_delta`) that
        would have needed one more.
        """
        taken = 0
        size = len(slots) // 3
        while walk.advance():
            offset = base_offset + walk.offset_delta
            if walk.key_length < 0 or offset < first_offset:
                continue
            self._hash(walk._data, walk.key_position, walk.key_length)
            at = self._slot(slots, size)
            if at < 0 or (slots[at + 2] == 0 and taken == room):
                walk.index -= 1
                return taken
            if slots[at + 2] == 0:
                taken += 1
            slots[at] = self._low
            slots[at + 1] = self._high
            slots[at + 2] = offset + 1
        return taken

    def latest_offset(self, key: Bytes, slots: MutableSequence[int]) -> int:
        """The latest offset that was entered for a key, or -1."""
        walk = RecordWalk(key, 0, len(key), 0)
        self._hash(walk._data, 0, len(key))
        at = self._slot(slots, len(slots) // 3)
        if at < 0:
            return -1
        latest = slots[at + 2]
        return latest - 1

    def mark_latest(
        self, walk: RecordWalk, base_offset: int, slots: MutableSequence[int], marks: MutableSequence[int]
    ) -> int:
        """For each record of a batch, mark what compaction may do; returns the number of records walked over.

        The mark is 0 for a record without a key or with a later one for its key, 1 for the latest, 2 for the latest
        that is a tombstone.
        """
        if len(marks) < walk.count:
            raise IndexError("too few marks for the batch's records")
        size = len(slots) // 3
        while walk.advance():
            mark = 0
            if walk.key_length >= 0:
                self._hash(walk._data, walk.key_position, walk.key_length)
                at = self._slot(slots, size)
                latest = 0
                if at >= 0:
                    latest = slots[at + 2]
                if base_offset + walk.offset_delta + 1 >= latest:
                    mark = 1 if walk.value_length >= 0 else 2
            marks[walk.index - 1] = mark
        return walk.index


def copy_records(walk: RecordWalk, marks: Sequence[int], timestamp_shift: int, out: bytearray | memoryview) -> int:
    """Copy the records with a mark into `out` and return the bytes written.

    The shift is added to their timestamp deltas, for a batch that gets another base timestamp. `out` needs room for
    all records and 16 bytes more for each.
    """
    if len(marks) < walk.count or len(out) < walk._end - walk._position + 16 * walk.count:
        raise IndexError("too few marks or too little room for the batch's records")
    target = _pointer(out)
    written = 0
    walk.max_timestamp = -1
    while walk.advance():
        if not marks[walk.index - 1]:
            continue
        if timestamp_shift == 0:
            start = walk.record_position
        else:
            start = walk._offset_position
            delta = _zigzag(_wrapped(walk.timestamp_delta + timestamp_shift))
            written += _put_varint(target, written, _zigzag(1 + _varint_size(delta) + walk._position - start))
            target[written] = walk._data[walk._body_position]
            written += 1
            written += _put_varint(target, written, delta)
        _copy(target, written, walk._data, start, walk._position - start)
        written += walk._position - start
    return written


def _pointer(view: bytearray | memoryview) -> bytearray | memoryview:
    if cython.compiled:
        return cython.address(view[0])  # type: ignore[no-any-return]
    return view


def _varint_size(value: int) -> int:
    size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


def _put_varint(target: bytearray | memoryview, at: int, value: int) -> int:
    size = 1
    while value > 0x7F:
        target[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
        size += 1
    target[at] = value
    return size


def measure(
    walk: RecordWalk, base_offset: int, first_offset: int, last_offset: int, totals: MutableSequence[int]
) -> bool:
    """Add up what columns of a batch's records need, counting records from the first to the last offset."""
    rows = 0
    keys = 0
    values = 0
    while walk.advance():
        offset = base_offset + walk.offset_delta
        if offset < first_offset or offset > last_offset:
            continue
        rows += 1
        if walk.key_length > 0:
            keys += walk.key_length
        if walk.value_length > 0:
            values += walk.value_length
        if walk.header_count > 0:
            _measure_headers(walk, totals)
    totals[0] += rows
    totals[1] += keys
    totals[2] += values
    return walk.error == 0


def _measure_headers(walk: RecordWalk, totals: MutableSequence[int]) -> None:
    # The walk has been over these bytes, so every length in them holds.
    position = walk.headers_position
    for _ in range(walk.header_count):
        packed = _varint(walk._data, position, walk._position)
        length = _signed(packed)
        position += (packed & 7) + length
        totals[4] += length
        packed = _varint(walk._data, position, walk._position)
        length = _signed(packed)
        position += packed & 7
        if length > 0:
            position += length
            totals[5] += length
    totals[3] += walk.header_count


class BatchScan:
    """Finds runs of plain batches: whole and uncompressed ones, whose records are read where they stand.

    Batches of a run have the same attributes. `look` puts a header's fields into the attributes, and `walk` is
    what goes over the records.
    """

    def __init__(self, data: Bytes) -> None:
        self._view = memoryview(data).cast("B")
        self.walk = RecordWalk(self._view, 0, 0, 0)
        self.end = 0
        self.base_offset = 0
        self.crc = 0
        self.attributes = 0
        self.last_offset = 0
        self.base_timestamp = 0
        self.max_timestamp = 0
        self.count = 0
        self.rows = 0
        self.record_bytes = 0

    def look(self, position: int) -> bool:
        """Read the header at a position; False where no whole batch of the current format begins."""
        data = self.walk._data
        left = self.walk._size - position
        if position < 0 or left < 61 or data[position + 16] != 2:
            return False
        size = 12 + _integer(data, position + 8, 4)
        self.end = position + size
        if size < 61 or size > left or self.end > 0x7FFFFFFF:
            return False
        self.base_offset = _integer(data, position, 8)
        self.crc = _integer(data, position + 17, 4) & _MASK32
        self.attributes = _integer(data, position + 21, 2)
        self.last_offset = _wrapped(self.base_offset + _integer(data, position + 23, 4))
        self.base_timestamp = _integer(data, position + 27, 8)
        self.max_timestamp = _integer(data, position + 35, 8)
        self.count = _integer(data, position + 57, 4)
        return True

    def run(self, position: int, most: int, refused: int, first_offset: int, last_offset: int) -> int:
        """Where the run of plain batches from a position on ends; `rows` and `record_bytes` are what it has.

        It has no more than `most` bytes unless it is one batch, none of the `refused` attributes, and no batch that
        lies wholly outside the offsets from the first to the last.
        """
        start = position
        attributes = 0
        self.rows = 0
        self.record_bytes = 0
        while self.look(position):
            if position == start:
                attributes = self.attributes
            size = self.end - position - 61
            if (
                self.attributes != attributes
                or attributes & refused
                or self.base_offset > last_offset
                or self.last_offset < first_offset
                or not 0 < self.count <= size // 7
                or (self.rows > 0 and self.record_bytes + size > most)
            ):
                break
            self.rows += self.count
            self.record_bytes += size
            position = self.end
        return position

    def next_in_time(self, position: int, earliest: int, latest: int) -> int:
        """The position of the first batch, from one on, that may hold data of some time, or behind all whole batches.

        A header has the latest time of its batch and not the earliest, except where the broker stamped all alike.
        Records are walked over where that decides it; whether a compressed batch is wanted is left to the caller.
        """
        while self.look(position):
            if self.max_timestamp >= earliest and not (
                self.max_timestamp > latest and (self.attributes & 0x28 or self._is_later(position, latest))
            ):
                return position
            position = self.end
        return position

    def _is_later(self, position: int, latest: int) -> bool:
        if self.attributes & 0x07:
            return False
        self.walk._stand(position + 61, self.end, self.count)
        return self.walk.is_later(self.base_timestamp, latest)


def _integer(data: Bytes, position: int, size: int) -> int:
    """A signed number, its highest byte first, as headers have it."""
    value = 0
    for i in range(size):
        value = value << 8 | data[position + i]
    if value >> (8 * size - 1):
        value -= _shifted(2, 8 * size - 1)
    return value


class BinaryColumn:
    """The buffers of one Arrow column of bytes: offsets, data, and a bit for each value that is not null."""

    def __init__(self, rows: int, size: int, allocate: Callable[[int], Buffer]) -> None:
        self.offsets = allocate(4 * (rows + 1))
        self.data = allocate(size)
        self.validity = bytearray(b"\xff") * ((rows + 7) // 8)
        self._offsets = memoryview(self.offsets).cast("B").cast("i")
        self._offsets[0] = 0
        self._view = memoryview(self.data).cast("B")
        if cython.compiled:
            if size > 0:
                self._data = cython.address(self._view[0])
        else:
            self._data = self._view
        self._validity = memoryview(self.validity)
        self._rows = rows
        self._size = size
        self.length = 0
        self.nulls = 0
        self._used = 0

    def _append(self, source: Bytes, position: int, length: int) -> bool:
        row = self.length
        if row >= self._rows or length > self._size - self._used:
            return False
        if length > 0:
            _copy(self._data, self._used, source, position, length)
            self._used += length
        elif length < 0:
            self.nulls += 1
            self._validity[row >> 3] &= ~(1 << (row & 7))
        self.length = row + 1
        self._offsets[row + 1] = self._used
        return True


class ColumnWriter:
    """Fills the buffers of Arrow columns with records, batch by batch, into room that `measure` counted.

    `allocate` gives the room, which need not be zeroed: what lies behind the rows that were added is cut off. Records
    before the earliest and behind the latest time are left out.
    """

    def __init__(
        self,
        totals: Sequence[int],
        with_headers: bool,
        timestamp_scale: int,
        allocate: Callable[[int], Buffer] = bytearray,
        earliest: int = -0x8000000000000000,
        latest: int = 0x7FFFFFFFFFFFFFFF,
    ) -> None:
        rows = totals[0]
        headers = totals[3] if with_headers else 0
        self.rows = 0
        self.keys = BinaryColumn(rows, totals[1], allocate)
        self.values = BinaryColumn(rows, totals[2], allocate)
        self.header_keys = BinaryColumn(headers, totals[4] if with_headers else 0, allocate)
        self.header_values = BinaryColumn(headers, totals[5] if with_headers else 0, allocate)
        self.offsets = allocate(8 * rows)
        self.timestamps = allocate(8 * rows)
        self.header_offsets = allocate(4 * (rows + 1))
        self._offsets = memoryview(self.offsets).cast("B").cast("q")
        self._timestamps = memoryview(self.timestamps).cast("B").cast("q")
        self._header_offsets = memoryview(self.header_offsets).cast("B").cast("i")
        self._header_offsets[0] = 0
        self._with_headers = with_headers
        self._scale = timestamp_scale
        self._capacity = rows
        self._earliest = earliest
        self._latest = latest

    def add(
        self,
        walk: RecordWalk,
        base_offset: int,
        base_timestamp: int,
        fixed_timestamp: bool,
        first_offset: int,
        last_offset: int,
    ) -> int:
        """Append the records of a batch from the first to the last offset, and return how many they were."""
        row = self.rows
        timestamp = base_timestamp
        while walk.advance():
            offset = base_offset + walk.offset_delta
            if offset < first_offset or offset > last_offset:
                continue
            if not fixed_timestamp:
                timestamp = _wrapped(base_timestamp + walk.timestamp_delta)
            if timestamp < self._earliest or timestamp > self._latest:
                continue
            if row >= self._capacity:
                raise IndexError("more records than were measured")
            self._offsets[row] = offset
            self._timestamps[row] = _wrapped(timestamp * self._scale)
            if not (
                self.keys._append(walk._data, walk.key_position, walk.key_length)
                and self.values._append(walk._data, walk.value_position, walk.value_length)
            ):
                raise IndexError("longer keys or values than were measured")
            row += 1
            if self._with_headers:
                if walk.header_count > 0 and not self._append_headers(walk):
                    raise IndexError("more headers than were measured")
                self._header_offsets[row] = self.header_keys.length
        added = row - self.rows
        self.rows = row
        return added

    def add_run(
        self,
        scan: BatchScan,
        position: int,
        stop: int,
        crc: Callable[[memoryview], int] | None,
        first_offset: int,
        last_offset: int,
    ) -> int:
        """Append the records of a run's batches, each as its CRC is checked, and return how far that went.

        Short of `stop` a batch has a wrong CRC there, or a record that the walk has an `error` of.
        """
        while position < stop and scan.look(position):
            if crc is not None and crc(scan._view[position + 21 : scan.end]) != scan.crc:
                return position
            scan.walk._stand(position + 61, scan.end, scan.count)
            stamped = scan.attributes & 8
            timestamp = scan.max_timestamp if stamped else scan.base_timestamp
            self.add(scan.walk, scan.base_offset, timestamp, stamped != 0, first_offset, last_offset)
            if scan.walk.error:
                return position
            position = scan.end
        return position

    def _append_headers(self, walk: RecordWalk) -> bool:
        position = walk.headers_position
        for _ in range(walk.header_count):
            packed = _varint(walk._data, position, walk._position)
            length = _signed(packed)
            position += packed & 7
            if not self.header_keys._append(walk._data, position, length):
                return False
            position += length
            packed = _varint(walk._data, position, walk._position)
            length = _signed(packed)
            position += packed & 7
            if length < 0:
                length = -1
            if not self.header_values._append(walk._data, position, length):
                return False
            if length > 0:
                position += length
        return True


def fill(column: MutableSequence[int], first: int, stop: int, value: int) -> None:
    """Write one int64 into the rows of a column from the first to before `stop`."""
    if not 0 <= first <= stop <= len(column):
        raise IndexError("rows that the column does not have")
    for row in range(first, stop):
        column[row] = value
