"""Compaction's work on records: a map from the hash of each key to its latest offset, and the copy of what remains.

The C types of the compiled form are in `keys.pxd`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # Cython is needed to compile this file, not to run it
    from ottla.records.uncompiled import cython

from .walk import RecordWalk, _copy, _wrapped, _zigzag

if TYPE_CHECKING:
    from collections.abc import MutableSequence, Sequence

    Bytes = bytes | bytearray | memoryview

# A slot of the key map: the two halves of the key's hash, and the latest offset plus one (0 is an empty slot).
SLOT_WIDTH = 3


def _add(a: int, b: int) -> int:
    """Return a sum modulo 2**64."""
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
    """SipHash-2-4 with 128 bits and a secret seed, so that clients cannot choose colliding keys."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != 16:
            raise ValueError("a seed has 16 bytes")
        self._k0 = int.from_bytes(seed[:8], "little")
        self._k1 = int.from_bytes(seed[8:], "little")
        self._v0 = self._v1 = self._v2 = self._v3 = 0
        self._low = 0
        self._high = 0

    def digest(self, key: Bytes) -> tuple[int, int]:
        """Return the two halves of one key's hash."""
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
                byte = data[position + i]
                word |= byte << (8 * i)
            self._v3 ^= word
            self._rounds(2)
            self._v0 ^= word
            position += 8
        byte = length & 0xFF
        word = byte << 56
        for i in range(stop - position):
            byte = data[position + i]
            word |= byte << (8 * i)
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
        """Return the slot of the key that was hashed last, or the empty slot for it; -1 if the map is full."""
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
        """Add the keys of a batch's records from an offset on; return how many were new.

        At most `room` new keys are added: a walk that did not reach its end stopped at a record (`offset_delta`) that
        needed one more.
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
        """Return the latest offset of a key in the map, or -1."""
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
        """Mark what compaction may do with each record of a batch; return the number of records.

        0: the record has no key, or its key has a later record; 1: the latest record of its key; 2: the latest, and a
        tombstone.
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
    """Copy the marked records into `out` and return the bytes written.

    `timestamp_shift` is added to their timestamp deltas, for a batch that gets another base timestamp. `out` must have
    space for all records and 16 bytes more for each.
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
