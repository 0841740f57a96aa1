"""Each rule of Kafka's LogValidator with Kafka's error code, on both kernels."""

from __future__ import annotations

import struct

import pytest

from ottla.records.batch import TimestampType, check_crc, read_header
from ottla.records.builder import build_batch, build_end_transaction_marker
from ottla.records.compression import CompressionType
from ottla.records.control import ControlType
from ottla.records.errors import ErrorCode, InvalidRecords, RecordError
from ottla.records.iterate import Record, iter_records
from ottla.records.validate import MAX_INT64, LogRules, ValidBatch, validate

from .malformed import INVALID_BODIES, NOW, NULL, body_of, field, framed, good_records, record, sealed, varint

pytestmark = pytest.mark.usefixtures("either_kernel")

RULES = LogRules()
ALL_CODECS = pytest.mark.parametrize("codec", list(CompressionType), ids=lambda codec: codec.name.lower())


def refused(data: bytes | bytearray, code: ErrorCode, rules: LogRules = RULES, *, now: int = NOW) -> InvalidRecords:
    with pytest.raises(InvalidRecords) as caught:
        validate(data, rules, now)
    assert caught.value.code == code, caught.value
    return caught.value


def accepted(data: bytes | bytearray, rules: LogRules = RULES, now: int = NOW) -> ValidBatch:
    return validate(data, rules, now)


# accepted batches


@ALL_CODECS
def test_valid_batch_is_stamped_in_place(codec: CompressionType) -> None:
    data = build_batch(good_records(5), compression=codec, producer_id=3, producer_epoch=1, base_sequence=0)
    crc = read_header(data).crc
    valid = accepted(data)
    assert (valid.record_count, valid.max_timestamp, valid.max_timestamp_delta) == (5, NOW + 4, 4)
    assert valid.log_append_time == -1
    assert not valid.rewritten
    stamped = valid.stamp(1000, 7)
    assert stamped.obj is data
    header = read_header(data)
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (1000, 7, crc)
    assert check_crc(data, header)
    assert list(iter_records(data)) == [r._replace(offset=1000 + i) for i, r in enumerate(good_records(5))]


def test_batch_in_read_only_buffer_is_copied_and_stamped() -> None:
    data = bytes(build_batch(good_records()))
    stamped = accepted(data).stamp(5, 0)
    assert read_header(stamped).base_offset == 5
    assert read_header(data).base_offset == 0


@ALL_CODECS
def test_log_append_time_sets_type_and_max_timestamp(codec: CompressionType) -> None:
    rules = LogRules(timestamp_type=TimestampType.LOG_APPEND_TIME)
    data = build_batch(good_records(), compression=codec)
    valid = accepted(data, rules, now=NOW + 500)
    assert (valid.max_timestamp, valid.log_append_time) == (NOW + 500, NOW + 500)
    stamped = valid.stamp(0, 0)
    header = read_header(stamped)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == NOW + 500
    assert check_crc(stamped, header)
    assert [r.timestamp for r in iter_records(stamped)] == [NOW + 500] * 3


@ALL_CODECS
def test_wrong_max_timestamp_is_corrected(codec: CompressionType) -> None:
    body = record(0, timestamp_delta=5) + record(1, timestamp_delta=-3)
    valid = accepted(sealed(body, 2, codec, max_timestamp=12))
    assert (valid.max_timestamp, valid.max_timestamp_delta) == (NOW + 5, 0)
    stamped = valid.stamp(0, 0)
    assert read_header(stamped).max_timestamp == NOW + 5
    assert check_crc(stamped, read_header(stamped))


def test_records_without_timestamps_are_always_accepted() -> None:
    valid = accepted(build_batch([Record(0, -1, None, b"v")]), LogRules(timestamp_before_max_ms=0))
    assert (valid.max_timestamp, valid.max_timestamp_delta) == (-1, -1)


def test_client_log_append_time_is_corrected() -> None:
    # Kafka looks at the type only where it does not look at the time.
    valid = accepted(build_batch(good_records(), log_append_time=NOW - 1))
    header = read_header(valid.stamp(0, 0))
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.max_timestamp == NOW - 1


def test_null_empty_and_negative_lengths_are_accepted() -> None:
    body = framed(b"\0" + varint(0) + varint(0) + varint(-9) + varint(-2) + varint(1) + field(b"") + varint(-7))
    assert accepted(sealed(body)).record_count == 1
    body = framed(b"\0" + varint(0) + varint(0) + varint(0) + varint(0) + varint(1) + field(b"") + field(b""))
    assert accepted(sealed(body), LogRules(compacted=True)).record_count == 1


def test_varint_overflow_bits_are_dropped_as_in_java() -> None:
    zero_in_five, zero_in_ten = b"\x80" * 4 + b"\x70", b"\x80" * 9 + b"\x7e"
    assert accepted(sealed(body_of(b"\0", zero_in_ten, zero_in_five, NULL, NULL, zero_in_five))).record_count == 1


def test_trailing_partial_batch_is_ignored() -> None:
    data = build_batch(good_records())
    for tail in (b"\xff" * 11, bytes(8) + struct.pack(">i", 500) + bytes(3), bytes(data[:-1])):
        assert len(accepted(data + tail).batch) == len(data)


# the request's one batch


@pytest.mark.parametrize("size", [0, 11, 16])
def test_missing_batch_is_refused(size: int) -> None:
    refused(bytes(build_batch(good_records()))[:size], ErrorCode.INVALID_RECORD)


def test_truncated_batch_is_refused() -> None:
    data = build_batch(good_records())
    for cut in range(17, len(data)):
        refused(data[:cut], ErrorCode.INVALID_RECORD)


def test_more_than_one_batch_is_refused() -> None:
    data = build_batch(good_records())
    refused(data + data, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_format_is_refused(magic: int) -> None:
    data = build_batch(good_records())
    data[16] = magic
    refused(data, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("magic", [3, 127, 128, 255])
def test_unknown_magic_is_refused(magic: int) -> None:
    data = build_batch(good_records())
    data[16] = magic
    refused(data, ErrorCode.CORRUPT_MESSAGE)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13, 14, 48])
def test_invalid_batch_length_is_refused(length: int) -> None:
    data = build_batch(good_records())
    struct.pack_into(">i", data, 8, length)
    refused(data, ErrorCode.CORRUPT_MESSAGE)


def test_invalid_trailing_bytes_are_refused() -> None:
    refused(build_batch(good_records()) + bytes(12), ErrorCode.CORRUPT_MESSAGE)


def test_batch_over_size_limit_is_refused() -> None:
    data = build_batch(good_records())
    assert accepted(data, LogRules(max_message_bytes=len(data)))
    refused(data, ErrorCode.MESSAGE_TOO_LARGE, LogRules(max_message_bytes=len(data) - 1))


@ALL_CODECS
def test_flipped_bit_after_crc_is_found(codec: CompressionType) -> None:
    data = build_batch(good_records(), compression=codec)
    for position in range(17, len(data)):
        data[position] ^= 1 << position % 8
        refused(data, ErrorCode.CORRUPT_MESSAGE)
        data[position] ^= 1 << position % 8


def test_client_base_offset_must_be_zero() -> None:
    data = build_batch(good_records(), 1)
    refused(data, ErrorCode.INVALID_RECORD)
    assert accepted(data, LogRules(from_client=False))


@pytest.mark.parametrize(
    ("last_offset_delta", "record_count"), [(-1, 0), (-2, 1), (0, 0), (0, -1), (0, 2), (1, 1), (2**31 - 1, 1)]
)
def test_offset_range_and_count_must_agree(last_offset_delta: int, record_count: int) -> None:
    data = sealed(record(), last_offset_delta=last_offset_delta, record_count=record_count)
    refused(data, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("count", [-1, -(2**31)])
def test_negative_record_count_is_refused(count: int) -> None:
    refused(sealed(record(), record_count=count), ErrorCode.INVALID_RECORD, LogRules(from_client=False))


def test_only_coordinators_write_control_records() -> None:
    data = build_end_transaction_marker(
        ControlType.COMMIT, producer_id=1, producer_epoch=1, coordinator_epoch=0, timestamp=NOW
    )
    refused(data, ErrorCode.INVALID_RECORD)
    assert accepted(data, LogRules(from_client=False)).header.is_control


def test_idempotent_batch_without_sequence_is_refused() -> None:
    refused(sealed(record(), producer_id=5, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD)
    assert accepted(sealed(record(), producer_id=5, producer_epoch=0, base_sequence=0))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_refused(codec: int) -> None:
    refused(sealed(record(), attributes=codec), ErrorCode.UNKNOWN_SERVER_ERROR)


# the records


@ALL_CODECS
@pytest.mark.parametrize("body", INVALID_BODIES.values(), ids=INVALID_BODIES)
def test_malformed_records_are_refused(body: bytes, codec: CompressionType) -> None:
    refused(sealed(body, codec=codec), ErrorCode.INVALID_RECORD)


@ALL_CODECS
def test_fewer_records_than_count_are_refused(codec: CompressionType) -> None:
    refused(sealed(record(0) + record(1), 3, codec), ErrorCode.INVALID_RECORD)


@ALL_CODECS
@pytest.mark.parametrize("deltas", [(0, 2), (0, 0), (1, 0), (0, 1, 3)])
def test_offset_delta_gaps_and_repeats_are_refused(deltas: tuple[int, ...], codec: CompressionType) -> None:
    body = b"".join(record(delta) for delta in deltas)
    refused(sealed(body, len(deltas), codec), ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("codec", list(CompressionType)[1:], ids=lambda codec: codec.name.lower())
def test_records_failing_decompression_are_refused(codec: CompressionType) -> None:
    refused(sealed(record(), attributes=codec), ErrorCode.UNKNOWN_SERVER_ERROR)


@pytest.mark.parametrize("codec", list(CompressionType)[1:], ids=lambda codec: codec.name.lower())
def test_decompression_bomb_is_refused(codec: CompressionType) -> None:
    data = sealed(record(value=bytes(300_000)), codec=codec)
    assert accepted(data, LogRules(max_decompressed=400_000))
    refused(data, ErrorCode.MESSAGE_TOO_LARGE, LogRules(max_decompressed=200_000))


# records that the log's rules reject


@ALL_CODECS
def test_compacted_topic_reports_records_without_key(codec: CompressionType) -> None:
    body = record(0) + record(1, key=None) + record(2, key=b"") + record(3, key=None)
    data = sealed(body, 4, codec)
    assert accepted(data).record_count == 4
    error = refused(data, ErrorCode.INVALID_RECORD, LogRules(compacted=True))
    assert [e.batch_index for e in error.record_errors] == [1, 3]


@ALL_CODECS
def test_timestamps_out_of_range_are_named(codec: CompressionType) -> None:
    rules = LogRules(timestamp_before_max_ms=1000, timestamp_after_max_ms=100)
    body = b"".join(record(i, timestamp_delta=d) for i, d in enumerate((0, -1000, -1001, 100, 101)))
    error = refused(sealed(body, 5, codec), ErrorCode.INVALID_TIMESTAMP, rules)
    assert error.record_errors == (
        RecordError(2, f"timestamp {NOW - 1001} is not from {NOW - 1000} to {NOW + 100}"),
        RecordError(4, f"timestamp {NOW + 101} is not from {NOW - 1000} to {NOW + 100}"),
    )


def test_bad_timestamp_outranks_missing_keys() -> None:
    body = record(0, key=None) + record(1, timestamp_delta=4_000_000)
    error = refused(sealed(body, 2), ErrorCode.INVALID_TIMESTAMP, LogRules(compacted=True))
    assert [e.batch_index for e in error.record_errors] == [0, 1]


def test_default_timestamp_limit_is_one_hour_ahead() -> None:
    assert accepted(sealed(record(timestamp_delta=3_600_000)))
    refused(sealed(record(timestamp_delta=3_600_001)), ErrorCode.INVALID_TIMESTAMP)
    assert accepted(sealed(record(timestamp_delta=-NOW)))


@pytest.mark.parametrize(
    ("base", "delta", "taken"),
    [
        (-(2**63), 0, False),
        (2**63 - 1, 0, False),
        (2**63 - 1, 1, False),
        (0, 2**63 - 1, False),
        (5, -(2**63), False),
        (0, -2, True),
        (-1, 0, True),
    ],
)
def test_int64_timestamps_wrap_as_in_java(base: int, delta: int, taken: bool) -> None:
    data = sealed(record(timestamp_delta=delta), base_timestamp=base)
    if taken:
        accepted(data)
    else:
        refused(data, ErrorCode.INVALID_TIMESTAMP)


def test_client_log_append_time_is_refused_by_log_append_time_topic() -> None:
    rules = LogRules(timestamp_type=TimestampType.LOG_APPEND_TIME)
    error = refused(build_batch(good_records(), log_append_time=NOW), ErrorCode.INVALID_TIMESTAMP, rules)
    assert [e.batch_index for e in error.record_errors] == [0, 1, 2]
    refused(build_batch(good_records(), log_append_time=-1), ErrorCode.INVALID_TIMESTAMP)


def test_log_append_time_topic_ignores_create_time() -> None:
    rules = LogRules(timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_before_max_ms=0)
    assert accepted(sealed(record(timestamp_delta=-(10**9))), rules).max_timestamp == NOW


def test_structural_error_outranks_rejected_records() -> None:
    error = refused(sealed(record(0, key=None) + b"\0", 2), ErrorCode.INVALID_RECORD, LogRules(compacted=True))
    assert error.record_errors == ()


# topics with their own codec


@ALL_CODECS
@pytest.mark.parametrize("topic_codec", list(CompressionType), ids=lambda codec: f"to {codec.name.lower()}")
def test_topic_codec_replaces_producers_codec(codec: CompressionType, topic_codec: CompressionType) -> None:
    data = build_batch(
        good_records(), compression=codec, producer_id=8, producer_epoch=2, base_sequence=4, transactional=True
    )
    valid = accepted(data, LogRules(compression=topic_codec))
    assert valid.rewritten is (codec != topic_codec)
    stamped = valid.stamp(50, 3)
    header = read_header(stamped)
    assert check_crc(stamped, header)
    assert header.compression == topic_codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 2, 4)
    assert (header.base_offset, header.partition_leader_epoch, header.is_transactional) == (50, 3, True)
    assert list(iter_records(stamped)) == [r._replace(offset=50 + i) for i, r in enumerate(good_records())]


def test_rewritten_batch_has_timestamp_type_of_log() -> None:
    rules = LogRules(compression=CompressionType.LZ4, timestamp_type=TimestampType.LOG_APPEND_TIME)
    stamped = accepted(build_batch(good_records(), compression=CompressionType.ZSTD), rules, NOW + 9).stamp(0, 0)
    header = read_header(stamped)
    assert (header.timestamp_type, header.max_timestamp) == (TimestampType.LOG_APPEND_TIME, NOW + 9)
    assert check_crc(stamped, header)


def test_batch_rewritten_past_size_limit_is_refused() -> None:
    data = build_batch([Record(0, NOW, None, bytes(5000))], compression=CompressionType.ZSTD)
    rules = LogRules(compression=CompressionType.NONE, max_message_bytes=1000)
    refused(data, ErrorCode.MESSAGE_TOO_LARGE, rules)


def test_control_batches_stay_uncompressed() -> None:
    data = build_end_transaction_marker(
        ControlType.ABORT, producer_id=1, producer_epoch=1, coordinator_epoch=0, timestamp=NOW
    )
    valid = accepted(data, LogRules(from_client=False, compression=CompressionType.GZIP))
    assert not valid.rewritten


def test_timestamp_before_max_is_unlimited_by_default() -> None:
    assert RULES.timestamp_before_max_ms == MAX_INT64
