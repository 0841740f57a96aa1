"""Arrow columns of records: their sizes, runs of batches that can be read at once, and the columns themselves.

The C types of the compiled form are in `columns.pxd`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # Cython is needed to compile this file, not to run it
    from ottla.records.uncompiled import cython

from .walk import _MASK32, RecordWalk, _copy, _shifted, _signed, _varint, _wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence, Sequence

    from _typeshed import WriteableBuffer as Buffer

    Bytes = bytes | bytearray | memoryview

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


def measure(
    walk: RecordWalk, base_offset: int, first_offset: int, last_offset: int, totals: MutableSequence[int]
) -> bool:
    """Add up the sizes of the columns of a batch's records, from the first to the last offset."""
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
    # The walk has checked these bytes, so every length is valid.
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
    """Finds runs of plain batches: whole and uncompressed, so that their records are read in place.

    Batches of a run have the same attributes. `look` copies a header's fields into the attributes; `walk` iterates over
    the records.
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
        """Read the header at a position; return False if no whole batch of the current format begins there."""
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
        """Return the end of the run of plain batches from a position on; set `rows` and `record_bytes`.

        A run has at most `most` bytes unless it is one batch, none of the `refused` attributes, and no batch wholly
        outside the offsets from the first to the last.
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
        """Return the position of the first batch from here on that may hold records of the time range, or the end.

        A header has the largest timestamp of its batch, not the smallest, unless it is LogAppendTime; records are read
        where that decides. Compressed batches are always returned.
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
    """Return a signed big-endian number of `size` bytes."""
    value = 0
    for i in range(size):
        value = value << 8 | data[position + i]
    if value >> (8 * size - 1):
        value -= _shifted(2, 8 * size - 1)
    return value


class BinaryColumn:
    """The buffers of one Arrow column of bytes: offsets, data, and the validity bitmap."""

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
    """Fills the buffers of Arrow columns with records, batch by batch, in buffers of the sizes that `measure` counted.

    `allocate` returns a buffer, zeroed or not: rows that were not added are cut off. Records outside the time range are
    skipped.
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
        """Append the records of a batch from the first to the last offset; return how many."""
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
        """Append the records of a run's batches after checking each CRC; return the position reached.

        Short of `stop`, the batch there has a wrong CRC, or a record for which the walk has an `error`.
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
    """Set the rows of an int64 column from `first` to before `stop` to one value."""
    if not 0 <= first <= stop <= len(column):
        raise IndexError("rows that the column does not have")
    for row in range(first, stop):
        column[row] = value
