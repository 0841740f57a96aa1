from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.errors import CorruptIndexError
from ottla.storage.log.indexes import AbortedTxn, OffsetIndex, TimeIndex, TransactionIndex

ENTRIES = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=50)


def grown(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    a = b = 0
    pairs = []
    for one, other in steps:
        a, b = a + one, b + other
        pairs.append((a, b))
    return pairs


@given(ENTRIES, st.integers(0, 60_000), st.integers(0, 2**40))
def test_offset_index_lookup_returns_last_entry_not_above(steps: list[tuple[int, int]], target: int, base: int) -> None:
    entries = grown(steps)
    index = OffsetIndex(base)
    for relative, position in entries:
        index.append(base + relative, position)
    encoded = index.encode()
    assert encoded == b"".join(struct.pack(">ii", *entry) for entry in entries)
    again = OffsetIndex.decode(base, encoded, 10**6)
    assert again.lookup(base + target) == max((p for r, p in entries if r <= target), default=0)
    assert again.position_at_or_below(target) == max((p for r, p in entries if p <= target), default=0)
    assert again.offset_at_or_above(target) == min((base + r for r, p in entries if p >= target), default=None)
    again.truncate_to(base + target)
    assert again.encode() == b"".join(struct.pack(">ii", *entry) for entry in entries if entry[0] < target)


@given(ENTRIES, st.integers(0, 10))
def test_index_decode_ignores_preallocated_zeros(steps: list[tuple[int, int]], zeros: int) -> None:
    entries = grown(steps)
    data = b"".join(struct.pack(">ii", *entry) for entry in entries)
    assert OffsetIndex.decode(7, data + bytes(8 * zeros), 10**6).encode() == data
    times = b"".join(struct.pack(">qi", *entry) for entry in entries)
    encoded = TimeIndex.decode(7, times + bytes(12 * zeros)).encode()
    assert encoded == times or (not entries and zeros == 1)


def test_offset_index_beyond_segment_is_corrupt() -> None:
    with pytest.raises(CorruptIndexError):
        OffsetIndex.decode(0, struct.pack(">ii", 5, 100), 100)
    with pytest.raises(CorruptIndexError):
        OffsetIndex.decode(0, b"1234567", 100)
    with pytest.raises(CorruptIndexError):
        OffsetIndex.decode(0, struct.pack(">iiii", 5, 50, 4, 60), 100)
    index = OffsetIndex(10)
    index.append(12, 0)
    with pytest.raises(CorruptIndexError):
        index.append(12, 5)


def test_time_index_appends_only_later_timestamps() -> None:
    index = TimeIndex(100)
    assert index.last == (-1, 100)
    assert index.maybe_append(50, 105)
    assert not index.maybe_append(50, 110)
    assert not index.maybe_append(40, 110)
    assert index.maybe_append(60, 120)
    assert index.encode() == struct.pack(">qiqi", 50, 5, 60, 20)
    assert [index.lookup(t) for t in (49, 50, 59, 60, 99)] == [100, 105, 105, 120, 120]
    index.truncate_to(120)
    assert index.last == (50, 105)
    with pytest.raises(CorruptIndexError):
        TimeIndex.decode(0, struct.pack(">qiqi", 50, 5, 40, 20))
    with pytest.raises(CorruptIndexError):
        TimeIndex.decode(0, b"x" * 11)


def test_transaction_index_collects_overlapping_range() -> None:
    index = TransactionIndex()
    for entry in (AbortedTxn(1, 0, 5, 3), AbortedTxn(2, 3, 9, 10), AbortedTxn(1, 12, 20, 21)):
        index.append(entry)
    data = index.encode()
    assert data == b"".join(struct.pack(">hqqqq", 0, *e) for e in ((1, 0, 5, 3), (2, 3, 9, 10), (1, 12, 20, 21)))
    again = TransactionIndex.decode(0, data + b"torn")

    def collect(start: int, end: int) -> tuple[list[int], bool]:
        into: list[AbortedTxn] = []
        complete = again.collect(start, end, into)
        return [entry.last_offset for entry in into], complete

    assert collect(0, 3) == ([5], True)
    assert collect(0, 8) == ([5, 9], True)
    assert collect(6, 8) == ([9], True)
    assert collect(10, 12) == ([], True)
    assert collect(10, 13) == ([20], True)
    assert collect(0, 99) == ([5, 9, 20], False)
    assert again.truncate_to(9)
    assert again.encode() == data[:34]
    with pytest.raises(CorruptIndexError):
        TransactionIndex.decode(6, data)
    with pytest.raises(CorruptIndexError):
        TransactionIndex.decode(0, struct.pack(">hqqqq", 1, 1, 0, 5, 3))
