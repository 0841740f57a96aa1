from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records import kernel as whichever
from ottla.records.batch import HEADER_SIZE, read_header
from ottla.records.builder import build_batch
from ottla.records.iterate import Record, iter_records
from ottla.records.uncompiled import load_uncompiled_kernel

from .malformed import INVALID_BODIES, NOW, sealed, varint
from .malformed import record as a_record
from .strategies import record_lists

if TYPE_CHECKING:
    from types import ModuleType

SEED = bytes(range(16))


def walk_over(kernel: ModuleType, data: bytes | bytearray) -> Any:
    return kernel.RecordWalk(data, HEADER_SIZE, len(data), read_header(data).record_count)


def test_compiled_flag_matches_loaded_kernel() -> None:
    assert whichever.COMPILED is (whichever.RecordWalk.__module__ == "ottla.records.kernel._compiled")
    assert load_uncompiled_kernel().COMPILED is False


@given(records=record_lists)
def test_index_points_at_every_field(either_kernel: ModuleType, records: list[Record]) -> None:
    data = build_batch(records)
    table = array("q", bytes(8 * either_kernel.INDEX_WIDTH * len(records)))
    assert either_kernel.index_records(walk_over(either_kernel, data), table) == len(records)
    for i, record in enumerate(records):
        delta, timestamp, key, key_size, value, value_size, _, headers = table[8 * i : 8 * i + 8]
        assert (delta, timestamp, headers) == (i, record.timestamp - records[0].timestamp, len(record.headers))
        assert (None if key_size < 0 else data[key : key + key_size]) == record.key
        assert (None if value_size < 0 else data[value : value + value_size]) == record.value


def test_rewound_walk_restarts(either_kernel: ModuleType) -> None:
    walk = walk_over(either_kernel, build_batch([Record(0, 1, b"a", None), Record(0, 1, b"b", None)]))
    while walk.advance():
        pass
    assert walk.index == 2
    walk.rewind()
    assert walk.advance()
    assert (walk.index, walk.offset_delta) == (1, 0)


def walked(kernel: ModuleType, body: bytes, count: int) -> tuple[int, int, list[int]]:
    """Return everything that a walk over records reads."""
    walk = kernel.RecordWalk(body, 0, len(body), count)
    table = array("q", bytes(8 * kernel.INDEX_WIDTH * count))
    kernel.index_records(walk, table)
    return walk.error, walk.index, list(table)


def walked_slowly(body: bytes, count: int) -> tuple[int, int, list[int]]:
    """Return the same by a walk without the fast path."""
    kernel = load_uncompiled_kernel()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel.RecordWalk, "_advance_plainly", lambda walk: False)
        return walked(kernel, body, count)


@pytest.mark.parametrize("body", INVALID_BODIES.values(), ids=INVALID_BODIES)
@pytest.mark.parametrize("before", [0, 1, 64])
def test_invalid_record_is_found_at_any_index(either_kernel: ModuleType, body: bytes, before: int) -> None:
    good = b"".join(a_record(i, b"key", b"v" * 100) for i in range(before))
    for behind in (b"", b"\0" * 20, b"\x80" * 20, b"\xff" * 20, a_record(before + 1, b"k" * 100)):
        for count in (before + 1, before + 2):
            whole = good + body + behind
            assert walked(either_kernel, whole, count) == walked_slowly(whole, count)


@given(
    numbers=st.lists(
        st.sampled_from([0, 1, -1, 5, 63, 64, -64, -65, 100, 8191, 8192, -8192, -8193, 2**31 - 1]), min_size=6
    ),
    padded=st.integers(0, 6),
    cut=st.integers(0, 12),
    count=st.integers(1, 3),
)
def test_fast_and_slow_path_end_at_same_byte(
    either_kernel: ModuleType, numbers: list[int], padded: int, cut: int, count: int
) -> None:
    fields = [varint(number) for number in numbers]
    if padded < len(fields):  # a number with a byte more than it needs, which Java reads as well
        fields[padded] = fields[padded][:-1] + bytes([fields[padded][-1] | 0x80, 0])
    key, value = (b"x" * max(min(number, 200), 0) for number in numbers[2:4])
    body = b"\0" + fields[0] + fields[1] + fields[2] + key + fields[3] + value + fields[4]
    for length in (varint(len(body)), fields[5], varint(len(body))[:-1] + bytes([varint(len(body))[-1] | 0x80, 0])):
        whole = (length + body) * count
        for data in (whole, whole[: len(whole) - cut]):
            assert walked(either_kernel, data, count) == walked_slowly(data, count)


def test_slow_path_record_is_read_between_fast_path_ones(either_kernel: ModuleType) -> None:
    records = [
        Record(0, NOW, b"a", b"1" * 100),
        Record(1, NOW + 10_000_000, b"b", b"2"),
        Record(2, NOW - 70, None, None),
        Record(3, NOW, b"c", b"3" * 9000, (("name", b"content"),)),
        Record(4, NOW + 2**40, b"", b""),
        Record(5, NOW, b"d" * 63, b"4" * 64),
    ]
    data = build_batch(records)
    body = bytes(data[HEADER_SIZE:])
    assert walked(either_kernel, body, 6) == walked_slowly(body, 6)
    assert list(iter_records(data)) == records


@given(records=record_lists, latest=st.integers(-(2**62), 2**62))
def test_is_later_requires_every_record_to_be_later(
    either_kernel: ModuleType, records: list[Record], latest: int
) -> None:
    earliest = min(record.timestamp for record in records)
    for time in (latest, earliest - 1, earliest, records[0].timestamp - 1):
        walk = walk_over(either_kernel, build_batch(records))
        assert walk.is_later(records[0].timestamp, time) == (earliest > time)


def test_wrapped_timestamp_is_not_later(either_kernel: ModuleType) -> None:
    body = a_record(0, timestamp_delta=5)
    assert either_kernel.RecordWalk(body, 0, len(body), 1).is_later(2**63 - 6, NOW)
    assert not either_kernel.RecordWalk(body, 0, len(body), 1).is_later(2**63 - 5, NOW)


def test_malformed_records_are_not_later(either_kernel: ModuleType) -> None:
    good = b"".join(a_record(number, timestamp_delta=number) for number in range(3))
    for length in range(len(good)):
        assert not either_kernel.RecordWalk(good[:length], 0, length, 3).is_later(NOW, NOW - 1)
    assert either_kernel.RecordWalk(good, 0, len(good), 3).is_later(NOW, NOW - 1)
    assert not either_kernel.RecordWalk(good, 0, len(good), 2).is_later(NOW, NOW - 1)
    for body in (
        b"\x80" * 11,
        varint(-5) + b"\0" * 9,
        varint(9) + b"\0" + b"\x80" * 8,
        varint(12) + b"\0" + b"\x80" * 11,
    ):
        assert not either_kernel.RecordWalk(body, 0, len(body), 1).is_later(NOW, NOW - 1)


def test_batches_are_found_by_timestamp_in_headers_and_records(either_kernel: ModuleType) -> None:
    batches = [
        build_batch([Record(0, NOW, None, b"early")]),
        build_batch([Record(0, NOW + 10, None, b""), Record(0, NOW + 20, None, b"")], 1),
        build_batch([Record(0, NOW + 50, None, b""), Record(0, NOW + 12, None, b"behind a later one")], 3),
        build_batch([Record(0, NOW + 15, None, b"not what the broker says")], 5, log_append_time=NOW + 60),
        build_batch([Record(0, NOW + 50, None, b""), Record(0, NOW + 40, None, b"")], 6),
        build_batch([Record(0, NOW + 50, None, b""), Record(0, NOW + 40, None, b"who knows")], 8, compression=3),
    ]
    starts = [sum(len(batch) for batch in batches[:number]) for number in range(len(batches) + 1)]
    log = b"".join(batches)
    scan = either_kernel.BatchScan(log)
    batch_numbers, position = [], 0
    while (position := scan.next_in_time(position, NOW + 5, NOW + 30)) < len(log):
        batch_numbers.append(starts.index(position))
        position = scan.end
    assert batch_numbers == [1, 2, 5]
    assert position == len(log)
    assert either_kernel.BatchScan(log[:-1]).next_in_time(starts[3], 0, NOW + 30) == starts[5]


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (0, 11), (11, 11)])
def test_walk_outside_buffer_raises(either_kernel: ModuleType, start: int, end: int) -> None:
    with pytest.raises(IndexError):
        either_kernel.RecordWalk(bytes(10), start, end, 1)


def test_too_small_output_raises(either_kernel: ModuleType) -> None:
    data = build_batch([Record(0, 1, b"a", b"b")] * 2)
    with pytest.raises(IndexError):
        either_kernel.index_records(walk_over(either_kernel, data), array("q", bytes(8 * 15)))
    hasher = either_kernel.KeyHash(SEED)
    with pytest.raises(IndexError):
        hasher.mark_latest(walk_over(either_kernel, data), 0, array("Q", bytes(24)), bytearray(1))
    with pytest.raises(IndexError):
        either_kernel.copy_records(walk_over(either_kernel, data), bytes(2), 0, bytearray(len(data) - HEADER_SIZE))
    writer = either_kernel.ColumnWriter([1, 9, 9, 0, 0, 0], True, 1)
    with pytest.raises(IndexError):
        writer.add(walk_over(either_kernel, data), 0, 0, False, 0, 99)
    writer = either_kernel.ColumnWriter([2, 1, 9, 0, 0, 0], True, 1)
    with pytest.raises(IndexError):
        writer.add(walk_over(either_kernel, data), 0, 0, False, 0, 99)
    headers = build_batch([Record(0, 1, None, None, (("h", b"v"),))])
    writer = either_kernel.ColumnWriter([1, 0, 0, 1, 1, 0], True, 1)
    with pytest.raises(IndexError):
        writer.add(walk_over(either_kernel, headers), 0, 0, False, 0, 99)
    with pytest.raises(IndexError):
        either_kernel.fill(array("q", bytes(16)), 1, 3, 5)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (8, "3b62a9ba6258f5610f83e264f31497b4"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
    ],
)
def test_key_hashes_are_siphash(either_kernel: ModuleType, size: int, expected: str) -> None:
    low, high = either_kernel.KeyHash(SEED).digest(bytes(range(size)))
    assert (low.to_bytes(8, "little") + high.to_bytes(8, "little")).hex() == expected


def test_seed_must_have_16_bytes(either_kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        either_kernel.KeyHash(b"short")


@given(batches=st.lists(st.lists(st.one_of(st.none(), st.binary(max_size=2)), min_size=1, max_size=8), max_size=5))
def test_key_map_returns_latest_offset(either_kernel: ModuleType, batches: list[list[bytes | None]]) -> None:
    hasher = either_kernel.KeyHash(SEED)
    slots = array("Q", bytes(24 * 64))
    latest: dict[bytes, int] = {}
    built = []
    offset = 0
    taken = 0
    for keys in batches:
        data = build_batch([Record(0, 1, key, b"" if i % 2 else None) for i, key in enumerate(keys)], offset)
        built.append((offset, keys, data))
        taken += hasher.put_keys(walk_over(either_kernel, data), offset, 0, slots, 64)
        latest.update({key: offset + i for i, key in enumerate(keys) if key is not None})
        offset += len(keys)
    assert taken == len(latest)
    for key, known in latest.items():
        assert hasher.latest_offset(key, slots) == known
    assert hasher.latest_offset(b"absent", slots) == -1
    for base, keys, data in built:
        marks = bytearray(len(keys))
        assert hasher.mark_latest(walk_over(either_kernel, data), base, slots, marks) == len(keys)
        expected = [0 if k is None or latest[k] != base + i else (1 if i % 2 else 2) for i, k in enumerate(keys)]
        assert list(marks) == expected


def test_key_map_stops_when_full(either_kernel: ModuleType) -> None:
    hasher = either_kernel.KeyHash(SEED)
    slots = array("Q", bytes(24 * 4))
    data = build_batch([Record(0, 1, key, b"") for key in (b"a", b"b", b"a", b"c", b"d")], 10)
    walk = walk_over(either_kernel, data)
    assert hasher.put_keys(walk, 10, 0, slots, 2) == 2
    assert walk.index < walk.count
    assert 10 + walk.offset_delta == 13
    assert hasher.latest_offset(b"a", slots) == 12
    assert hasher.latest_offset(b"c", slots) == -1
    assert hasher.put_keys(walk_over(either_kernel, data), 10, 13, slots, 99) == 2
    full = walk_over(either_kernel, build_batch([Record(0, 1, b"e", b"")], 15))
    assert hasher.put_keys(full, 15, 0, slots, 99) == 0
    assert full.index < full.count
    assert hasher.latest_offset(b"e", slots) == -1


@given(records=record_lists, shift=st.integers(-(2**61), 2**61), data=st.data())
def test_marked_records_are_copied_with_shifted_timestamps(
    either_kernel: ModuleType, records: list[Record], shift: int, data: st.DataObject
) -> None:
    marks = bytes(data.draw(st.lists(st.integers(0, 2), min_size=len(records), max_size=len(records))))
    batch = build_batch(records)
    out = bytearray(len(batch) + 16 * len(records))
    size = either_kernel.copy_records(walk_over(either_kernel, batch), marks, shift, out)
    kept = [i for i, mark in enumerate(marks) if mark]
    copy = sealed(bytes(out[:size]), len(kept), base_timestamp=records[0].timestamp)
    assert list(iter_records(copy)) == [
        records[i]._replace(offset=i, timestamp=records[i].timestamp + shift) for i in kept
    ]


def test_zero_shift_copies_identical_bytes(either_kernel: ModuleType) -> None:
    batch = build_batch([Record(0, NOW + i, b"k", b"v") for i in range(3)])
    out = bytearray(1000)
    size = either_kernel.copy_records(walk_over(either_kernel, batch), b"\1\1\1", 0, out)
    assert out[:size] == batch[HEADER_SIZE:]
