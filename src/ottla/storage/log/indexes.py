"""The indexes of a segment: offset to position, timestamp to offset, and aborted transactions.

In memory they are plain columns; `Segment` reads and writes the files. A missing or corrupt index is rebuilt from the
log.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from itertools import chain
from operator import gt, lt
from typing import NamedTuple

from ottla.storage.errors import CorruptIndexError

OFFSET_ENTRY = 8
TIME_ENTRY = 12
MAX_RELATIVE_OFFSET = (1 << 31) - 1
_TIME = struct.Struct(">qi")
_ABORTED = struct.Struct(">hqqqq")
_SWAP = sys.byteorder == "little"


class OffsetIndex:
    """Entries (last offset of a batch, its position), both increasing; offsets are relative to the base offset."""

    __slots__ = ("base_offset", "positions", "relative")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.relative: array[int] = array("I")
        self.positions: array[int] = array("I")

    @classmethod
    def decode(cls, base_offset: int, data: bytes, log_size: int) -> OffsetIndex:
        """Decode an index file; cut trailing zeros that a crash left, and raise CorruptIndexError for other damage."""
        if len(data) % OFFSET_ENTRY:
            raise CorruptIndexError(f"offset index has {len(data)} bytes, not a multiple of {OFFSET_ENTRY}")
        cells = array("I")
        cells.frombytes(data)
        if _SWAP:
            cells.byteswap()
        index = cls(base_offset)
        index.relative, index.positions = cells[0::2], cells[1::2]
        while len(index.positions) > 1 and index.positions[-1] == 0:
            index._cut(_first_zero(index.positions))
        if len(index.positions) == 1 and index.positions[0] == 0:
            index._cut(0)
        if index.positions and (index.positions[-1] >= log_size or index.relative[-1] > MAX_RELATIVE_OFFSET):
            raise CorruptIndexError("offset index points outside its segment")
        if not (_grows(index.relative) and _grows(index.positions)):
            raise CorruptIndexError("offset index does not grow")
        return index

    def encode(self) -> bytes:
        """Return the index file's bytes."""
        cells = array("I", bytes(OFFSET_ENTRY * len(self.relative)))
        cells[0::2] = self.relative
        cells[1::2] = self.positions
        if _SWAP:
            cells.byteswap()
        return cells.tobytes()

    def __len__(self) -> int:
        return len(self.relative)

    def append(self, offset: int, position: int) -> None:
        """Add an entry: the batch at `position` ends with `offset`. Refuse an offset that does not increase."""
        relative = offset - self.base_offset
        if self.relative and relative <= self.relative[-1]:
            raise CorruptIndexError(f"offset {offset} is not above the index's last one")
        self.relative.append(relative)
        self.positions.append(position)

    @property
    def last_offset(self) -> int:
        """The last indexed offset, or the base offset."""
        return self.base_offset + (self.relative[-1] if self.relative else 0)

    def lookup(self, offset: int) -> int:
        """Return a position at or before the batch with `offset`: that of the last entry not above it."""
        slot = bisect_right(self.relative, offset - self.base_offset)
        return self.positions[slot - 1] if slot else 0

    def position_at_or_below(self, position: int) -> int:
        """Return the last indexed batch border that is not above a position."""
        slot = bisect_right(self.positions, position)
        return self.positions[slot - 1] if slot else 0

    def offset_at(self, position: int) -> int | None:
        """Return the last offset of the batch at exactly that position, if an entry has it."""
        slot = bisect_left(self.positions, position)
        if slot < len(self.positions) and self.positions[slot] == position:
            return self.base_offset + self.relative[slot]
        return None

    def offset_at_or_above(self, position: int) -> int | None:
        """Return the offset of the first entry at or past a position: an upper bound of a fetch's end."""
        slot = bisect_left(self.positions, position)
        return self.base_offset + self.relative[slot] if slot < len(self.positions) else None

    def truncate_to(self, offset: int) -> None:
        """Keep entries below `offset`."""
        self._cut(bisect_left(self.relative, offset - self.base_offset) if offset > self.base_offset else 0)

    def _cut(self, entries: int) -> None:
        del self.relative[entries:], self.positions[entries:]


def _grows(column: array[int]) -> bool:
    return all(map(lt, column, column[1:]))


def _first_zero(positions: array[int]) -> int:
    """Return where the trailing zeros of an increasing column begin; its first entry may be a real zero."""
    low, high = 1, len(positions)
    while low < high:
        middle = (low + high) // 2
        if positions[middle] == 0:
            high = middle
        else:
            low = middle + 1
    return low


class TimeIndex:
    """Entries (largest timestamp so far, offset of its batch), both increasing."""

    __slots__ = ("base_offset", "offsets", "timestamps")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps: array[int] = array("q")
        self.offsets: array[int] = array("q")

    @classmethod
    def decode(cls, base_offset: int, data: bytes) -> TimeIndex:
        """Decode a time index file; cut trailing zeros that a crash left; raise CorruptIndexError otherwise."""
        if len(data) % TIME_ENTRY:
            raise CorruptIndexError(f"time index has {len(data)} bytes, not a multiple of {TIME_ENTRY}")
        index = cls(base_offset)
        entries = list(_TIME.iter_unpack(data))
        with suppress(ValueError):
            del entries[entries.index((0, 0), 1) :]
        index.timestamps = array("q", [timestamp for timestamp, _ in entries])
        index.offsets = array("q", [base_offset + relative for _, relative in entries])
        before = chain((-1,), index.timestamps)
        if any(map(gt, before, index.timestamps)) or min(index.offsets, default=base_offset) < base_offset:
            raise CorruptIndexError("time index does not grow")
        if len(index.timestamps) == 1 and index.timestamps[0] == 0 and len(data) > TIME_ENTRY:
            index._cut(0)
        return index

    def encode(self) -> bytes:
        """Return the index file's bytes."""
        base = self.base_offset
        return b"".join(
            _TIME.pack(timestamp, offset - base)
            for timestamp, offset in zip(self.timestamps, self.offsets, strict=True)
        )

    def __len__(self) -> int:
        return len(self.timestamps)

    def maybe_append(self, timestamp: int, offset: int) -> bool:
        """Add an entry if the timestamp is above the last one."""
        if timestamp <= (self.timestamps[-1] if self.timestamps else -1):
            return False
        if self.offsets and offset < self.offsets[-1]:
            raise CorruptIndexError(f"offset {offset} is below the time index's last one")
        self.timestamps.append(timestamp)
        self.offsets.append(offset)
        return True

    @property
    def last(self) -> tuple[int, int]:
        """The last timestamp and its offset, or (-1, base offset)."""
        return (self.timestamps[-1], self.offsets[-1]) if self.timestamps else (-1, self.base_offset)

    def lookup(self, timestamp: int) -> int:
        """Return an offset at or before the first record with at least that timestamp."""
        slot = bisect_right(self.timestamps, timestamp)
        return self.offsets[slot - 1] if slot else self.base_offset

    def truncate_to(self, offset: int) -> None:
        """Keep entries below `offset`."""
        self._cut(bisect_left(self.offsets, offset))

    def _cut(self, entries: int) -> None:
        del self.timestamps[entries:], self.offsets[entries:]


class AbortedTxn(NamedTuple):
    """An aborted transaction: producer id, first offset, offset of its marker, and the last stable offset after it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions whose markers are in a segment, by increasing last offset."""

    __slots__ = ("_last_offsets", "entries")

    def __init__(self) -> None:
        self.entries: list[AbortedTxn] = []
        self._last_offsets: list[int] = []

    @classmethod
    def decode(cls, base_offset: int, data: bytes) -> TransactionIndex:
        """Decode a transaction index file; drop a torn last entry."""
        index = cls()
        for version, *fields in _ABORTED.iter_unpack(data[: len(data) - len(data) % _ABORTED.size]):
            if version != 0:
                raise CorruptIndexError(f"transaction index has an entry of version {version}")
            entry = AbortedTxn(*fields)
            if entry.last_offset < base_offset or (
                index._last_offsets and entry.last_offset <= index._last_offsets[-1]
            ):
                raise CorruptIndexError("transaction index does not grow")
            index.append(entry)
        return index

    def append(self, entry: AbortedTxn) -> None:
        """Add a transaction whose marker follows all others."""
        self.entries.append(entry)
        self._last_offsets.append(entry.last_offset)

    @staticmethod
    def encode_entry(entry: AbortedTxn) -> bytes:
        """Return one entry's bytes, to be appended to the file."""
        return _ABORTED.pack(0, *entry)

    def encode(self) -> bytes:
        """Return the whole file's bytes."""
        return b"".join(map(self.encode_entry, self.entries))

    def collect(self, start: int, end: int, into: list[AbortedTxn]) -> bool:
        """Add transactions that overlap [start, end); return True if later segments have none."""
        for entry in self.entries[bisect_left(self._last_offsets, start) :]:
            if entry.first_offset < end:
                into.append(entry)
            if entry.last_stable_offset >= end:
                return True
        return False

    def truncate_to(self, offset: int) -> bool:
        """Keep entries that end below `offset`; return whether any was removed."""
        keep = bisect_left(self._last_offsets, offset)
        gone = keep < len(self.entries)
        del self.entries[keep:], self._last_offsets[keep:]
        return gone
