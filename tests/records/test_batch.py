from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records.batch import (
    HEADER_SIZE,
    TimestampType,
    check_crc,
    decrement_sequence,
    increment_sequence,
    iter_batches,
    read_header,
    stamp_offset,
    stamp_timestamp,
)
from ottla.records.builder import BatchBuilder, build_batch
from ottla.records.errors import ErrorCode, InvalidRecords
from ottla.records.iterate import Record, iter_records


def batch(count: int = 3, base_offset: int = 0, **options: object) -> bytearray:
    records = [Record(0, 1000 + i, b"k%d" % i, b"v%d" % i) for i in range(count)]
    return build_batch(records, base_offset, **options)  # type: ignore[arg-type]


def test_header_round_trips_builder_options() -> None:
    data = batch(
        4,
        70,
        partition_leader_epoch=5,
        producer_id=9,
        producer_epoch=2,
        base_sequence=11,
        transactional=True,
        compression=4,
    )
    header = read_header(data)
    assert (header.base_offset, header.last_offset, header.next_offset) == (70, 73, 74)
    assert header.size == header.end == len(data)
    assert header.partition_leader_epoch == 5
    assert (header.producer_id, header.producer_epoch) == (9, 2)
    assert (header.base_sequence, header.last_sequence) == (11, 14)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1003)
    assert header.record_count == 4
    assert header.magic == 2
    assert header.compression == 4
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.has_producer_id
    assert header.is_transactional
    assert not header.is_control
    assert not header.has_delete_horizon
    assert header.delete_horizon_ms is None
    assert check_crc(data, header)


def test_delete_horizon_keeps_record_timestamps() -> None:
    data = batch(2, delete_horizon_ms=777_000)
    header = read_header(data)
    assert header.has_delete_horizon
    assert header.delete_horizon_ms == 777_000
    assert [record.timestamp for record in iter_records(data)] == [1000, 1001]


def test_batch_without_records_keeps_its_offset_range() -> None:
    builder = BatchBuilder(100, producer_id=1, producer_epoch=0, base_sequence=7)
    data = builder.build(last_offset=109)
    header = read_header(data)
    assert len(data) == HEADER_SIZE
    assert (header.base_offset, header.last_offset, header.record_count) == (100, 109, 0)
    assert header.last_sequence == 16
    assert list(iter_records(data)) == []


def test_iter_batches_stops_at_partial_batch() -> None:
    pieces = [batch(n, base_offset=10 * n) for n in (1, 2, 3)]
    data = b"".join(pieces)
    assert [header.position for header in iter_batches(data)] == [
        0,
        len(pieces[0]),
        len(pieces[0] + pieces[1]),
    ]
    for cut in range(len(data)):
        whole = [header.end for header in iter_batches(data[:cut])]
        assert whole == [end for end in (len(pieces[0]), len(pieces[0] + pieces[1])) if end <= cut]


def test_walk_starts_and_ends_inside_buffer() -> None:
    one = batch()
    data = b"xyz" + one + one + one[:-1]
    assert [h.position for h in iter_batches(data, 3)] == [3, 3 + len(one)]
    assert [h.position for h in iter_batches(data, 3, 3 + len(one))] == [3]


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_walk_refuses_invalid_batch_length(length: int) -> None:
    data = batch()
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(InvalidRecords) as caught:
        list(iter_batches(data))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("magic", "code"),
    [
        (0, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (1, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (3, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_walk_refuses_other_magic(magic: int, code: int) -> None:
    data = batch()
    data[16] = magic
    with pytest.raises(InvalidRecords) as caught:
        list(iter_batches(data))
    assert caught.value.code == code


def test_missing_header_is_corrupt() -> None:
    with pytest.raises(InvalidRecords) as caught:
        read_header(batch()[: HEADER_SIZE - 1])
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_crc_covers_all_later_bytes() -> None:
    data = batch()
    header = read_header(data)
    for position in range(21, len(data)):
        data[position] ^= 0x10
        assert not check_crc(data, header)
        data[position] ^= 0x10
    assert check_crc(data, header)


def test_stamping_offset_and_epoch_keeps_crc() -> None:
    data = bytearray(b"..") + batch()
    before = read_header(data, 2)
    stamp_offset(data, 2, 2**40, 17)
    after = read_header(data, 2)
    assert after == before._replace(base_offset=2**40, partition_leader_epoch=17)
    assert check_crc(data, after)


def test_stamping_log_append_time_sets_bit_max_timestamp_and_crc() -> None:
    data = batch(transactional=True, compression=1)
    assert stamp_timestamp(data, 0, TimestampType.LOG_APPEND_TIME, 5555)
    header = read_header(data)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == 5555
    assert header.is_transactional
    assert header.compression == 1
    assert check_crc(data, header)
    assert [record.timestamp for record in iter_records(data)] == [5555] * 3


def test_stamping_same_values_writes_nothing() -> None:
    data = batch()
    before = bytes(data)
    assert not stamp_timestamp(data, 0, TimestampType.CREATE_TIME, 1002)
    assert data == before


def test_sequence_numbers_wrap_around() -> None:
    assert increment_sequence(2**31 - 1, 1) == 0
    assert increment_sequence(2**31 - 2, 3) == 1
    assert decrement_sequence(0, 1) == 2**31 - 1
    header = read_header(batch(4, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert header.last_sequence == 1


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_decrement_undoes_increment(sequence: int, step: int) -> None:
    there = increment_sequence(sequence, step)
    assert 0 <= there < 2**31
    assert decrement_sequence(there, step) == sequence
