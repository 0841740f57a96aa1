from __future__ import annotations

import pytest
from hypothesis import given

from ottla.records.batch import check_crc, read_header
from ottla.records.builder import BatchBuilder, build_batch, build_end_transaction_marker
from ottla.records.control import (
    ControlType,
    EndTransactionMarker,
    control_key,
    parse_control_key,
    parse_marker,
)
from ottla.records.errors import ErrorCode, InvalidRecords
from ottla.records.iterate import Record, iter_all_records, iter_records

from .strategies import codecs, record_lists

pytestmark = pytest.mark.usefixtures("either_kernel")


@given(record_lists, codecs)
def test_built_batch_round_trips(records: list[Record], codec: int) -> None:
    data = build_batch(records, 500, compression=codec)
    header = read_header(data)
    assert check_crc(data, header)
    assert header.record_count == len(records)
    assert list(iter_records(data)) == [r._replace(offset=500 + i) for i, r in enumerate(records)]


def test_gaps_in_offsets_are_kept() -> None:
    builder = BatchBuilder(10)
    for offset in (10, 13, 14, 20):
        builder.append(b"k", None, timestamp=1, offset=offset)
    data = builder.build(last_offset=25)
    assert [record.offset for record in iter_records(data)] == [10, 13, 14, 20]
    assert read_header(data).next_offset == 26


@pytest.mark.parametrize("offset", [9, 10, 10 + 2**31])
def test_offsets_out_of_range_are_refused(offset: int) -> None:
    builder = BatchBuilder(10)
    builder.append(b"k", b"v", offset=10)
    with pytest.raises(ValueError, match="offset"):
        builder.append(b"k", b"v", offset=offset)


def test_negative_timestamp_and_low_last_offset_are_refused() -> None:
    builder = BatchBuilder()
    builder.append(b"k", b"v")
    with pytest.raises(ValueError, match="timestamp"):
        builder.append(b"k", b"v", timestamp=-2)
    with pytest.raises(ValueError, match="last offset"):
        builder.build(last_offset=-1)


def test_uncompressed_size_equals_size_without_codec() -> None:
    builder = BatchBuilder()
    builder.append(b"k", b"v" * 100, [("h", b"x")], 12)
    assert builder.uncompressed_size == len(builder.build())


@pytest.mark.parametrize("control_type", [ControlType.COMMIT, ControlType.ABORT])
def test_end_transaction_marker_layout(control_type: ControlType) -> None:
    data = build_end_transaction_marker(
        control_type, producer_id=4, producer_epoch=3, coordinator_epoch=8, timestamp=99, base_offset=6
    )
    header = read_header(data)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 3, -1)
    (record,) = iter_records(data)
    assert parse_marker(record.key, record.value) == EndTransactionMarker(control_type, 8)
    assert list(iter_all_records(data)) == []
    assert list(iter_all_records(data, include_control=True)) == [(header, record)]


def test_only_commit_and_abort_end_a_transaction() -> None:
    with pytest.raises(ValueError, match="LEADER_CHANGE"):
        build_end_transaction_marker(
            ControlType.LEADER_CHANGE, producer_id=1, producer_epoch=1, coordinator_epoch=1, timestamp=1
        )


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_bad_control_keys_are_invalid(key: bytes | None) -> None:
    with pytest.raises(InvalidRecords) as caught:
        parse_control_key(key)
    assert caught.value.code == ErrorCode.INVALID_RECORD


def test_unknown_control_types_are_skipped() -> None:
    assert parse_control_key(b"\0\0\0\x63") is ControlType.UNKNOWN
    assert parse_control_key(b"\0\x01\0\x02\0") is ControlType.LEADER_CHANGE
    with pytest.raises(ValueError, match="unknown"):
        control_key(ControlType.UNKNOWN)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0\0\0\x02", b"\0\0\0\0\0\1"),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\0\0\0\0\0"),
        (b"\0\0\0\1", b"\xff\0" * 3),
    ],
)
def test_bad_markers_are_invalid(key: bytes, value: bytes | None) -> None:
    with pytest.raises(InvalidRecords) as caught:
        parse_marker(key, value)
    assert caught.value.code == ErrorCode.INVALID_RECORD
