from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records.batch import iter_batches
from ottla.records.builder import build_batch, build_control_batch, build_end_transaction_marker
from ottla.records.columnar import AbortedTransaction, iter_arrow, schema, to_arrow
from ottla.records.compression import CompressionType
from ottla.records.control import ControlType, control_key
from ottla.records.errors import ErrorCode, InvalidRecords
from ottla.records.iterate import Record, iter_all_records

from .malformed import NOW, body_of, field, sealed, varint
from .strategies import codecs, record_lists

pytestmark = pytest.mark.usefixtures("either_kernel")


def log_of(*batches: bytes | bytearray) -> bytes:
    return b"".join(batches)


def rows_of(batch: pa.RecordBatch) -> list[Record]:
    raw = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        Record(row["offset"], at, row["key"], row["value"], tuple((h["key"], h["value"]) for h in row["headers"]))
        for row, at in zip(batch.drop_columns("timestamp").to_pylist(), raw, strict=True)
    ]


@given(st.lists(st.tuples(record_lists, codecs), max_size=4), st.integers(1, 400))
def test_columns_equal_iterated_records(groups: list[tuple[list[Record], int]], target: int) -> None:
    offset = 7
    log = bytearray()
    for records, codec in groups:
        log += build_batch(records, offset, compression=codec)
        offset += len(records)
    expected = [record for _, record in iter_all_records(log)]
    whole = to_arrow(log)
    whole.validate(full=True)
    assert whole.schema == schema()
    assert rows_of(whole) == expected
    pieces = list(iter_arrow(log, target_bytes=target))
    assert [row for piece in pieces for row in rows_of(piece)] == expected


@given(record_lists, st.integers(0, 20), st.integers(0, 20))
def test_offset_range_selects_rows(records: list[Record], first: int, last: int) -> None:
    log = build_batch(records[:5], 5) + build_batch(records, 10, compression=CompressionType.LZ4)
    selected = to_arrow(log, first_offset=first, last_offset=last)
    selected.validate(full=True)
    assert rows_of(selected) == [r for _, r in iter_all_records(log) if first <= r.offset <= last]


@given(st.lists(st.tuples(record_lists, codecs, st.booleans()), max_size=5), st.integers(1, 400), st.integers(0, 20))
def test_runs_of_plain_batches_equal_single_batches(
    groups: list[tuple[list[Record], int, bool]], target: int, first: int
) -> None:
    offset = 7
    log = bytearray()
    for records, codec, stamped in groups:
        log += build_batch(records, offset, compression=codec, log_append_time=9 if stamped else None)
        log += marker(offset + len(records), 1, ControlType.COMMIT) if stamped else b""
        offset += len(records) + 1
    expected = rows_of(to_arrow(log, first_offset=first))
    for pieces in (
        [to_arrow(log, headers=False, first_offset=first)],
        list(iter_arrow(log, headers=False, first_offset=first, target_bytes=target)),
    ):
        actual = []
        for piece in pieces:
            piece.validate(full=True)
            actual += piece.drop_columns("timestamp").to_pylist()
        assert [(row["offset"], row["key"], row["value"]) for row in actual] == [
            row[0:1] + row[2:4] for row in expected
        ]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_damage_within_run_is_reported_with_position(number: int) -> None:
    batches = [build_batch([Record(0, 1, None, b"value" * 9)] * 3, 10 * base) for base in range(3)]
    assert to_arrow(log_of(*batches), headers=False).num_rows == 9
    batches[number][-2] ^= 1
    with pytest.raises(InvalidRecords, match=f"base offset {10 * number} has a wrong CRC"):
        list(iter_arrow(log_of(*batches), headers=False))
    batches[number] = sealed(body_of(b"\0", varint(0), varint(0), varint(50), b"abc" * 9), base_offset=10 * number)
    with pytest.raises(InvalidRecords, match="record 0 is invalid: its key does not fit"):
        list(iter_arrow(log_of(*batches), headers=False))


def test_truncated_batch_ends_run() -> None:
    one, two = (build_batch([Record(0, 1, None, b"value" * 9)] * 3, base) for base in (0, 3))
    for length in range(len(two)):
        assert to_arrow(one + two[:length], headers=False).num_rows == 3
    two[8:12] = b"\x7f\xff\xff\xff"
    assert to_arrow(one + two, headers=False).num_rows == 3


def test_batch_columns_equal_header() -> None:
    log = log_of(
        build_batch([Record(0, 1, None, b"a")] * 2, 0, partition_leader_epoch=3, compression=4),
        build_batch(
            [Record(0, 1, None, b"b")] * 3, 2, producer_id=9, producer_epoch=1, base_sequence=5, transactional=True
        ),
    )
    table = to_arrow(log, batch_columns=True, headers=False).to_pydict()
    assert table["leader_epoch"] == [3, 3, -1, -1, -1]
    assert table["producer_id"] == [-1, -1, 9, 9, 9]
    assert table["producer_epoch"] == [-1, -1, 1, 1, 1]
    assert table["base_sequence"] == [-1, -1, 5, 5, 5]
    assert table["base_offset"] == [0, 0, 2, 2, 2]
    assert table["transactional"] == [False, False, True, True, True]
    assert table["compression"] == [4, 4, 0, 0, 0]
    assert "headers" not in table


def test_log_append_time_is_batch_max_timestamp() -> None:
    log = log_of(
        build_batch([Record(0, 1000, None, None)] * 2, log_append_time=5000), build_batch([Record(0, 7, None, None)], 2)
    )
    table = to_arrow(log)
    assert table.column("timestamp_type").to_pylist() == [1, 1, 0]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [5000, 5000, 7]


def test_timestamps_can_be_microseconds() -> None:
    table = to_arrow(build_batch([Record(0, NOW, None, None)]), timestamp_unit="us")
    assert table.schema == schema(timestamp_unit="us")
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [NOW * 1000]


def transactional(offset: int, producer: int, value: bytes) -> bytearray:
    return build_batch(
        [Record(0, 1, None, value)], offset, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
    )


def marker(offset: int, producer: int, kind: ControlType) -> bytearray:
    return build_end_transaction_marker(
        kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=1, base_offset=offset
    )


TRANSACTIONS = log_of(
    transactional(0, 1, b"aborted"),
    transactional(1, 2, b"committed"),
    build_batch([Record(0, 1, None, b"plain")], 2, producer_id=1, producer_epoch=0, base_sequence=0),
    transactional(3, 1, b"aborted"),
    marker(4, 1, ControlType.ABORT),
    marker(5, 2, ControlType.COMMIT),
    transactional(6, 1, b"later"),
    marker(7, 1, ControlType.COMMIT),
    build_control_batch(control_key(ControlType.LEADER_CHANGE), b"", 1, 8),
)


@pytest.mark.parametrize("last_offset", [None, 4])
def test_aborted_transaction_is_skipped_up_to_its_marker(last_offset: int | None) -> None:
    everything = to_arrow(TRANSACTIONS).column("value").to_pylist()
    assert everything == [b"aborted", b"committed", b"plain", b"aborted", b"later"]
    committed = to_arrow(TRANSACTIONS, aborted=[AbortedTransaction(1, 0, last_offset)])
    assert committed.column("value").to_pylist() == [b"committed", b"plain", b"later"]
    assert to_arrow(
        TRANSACTIONS, aborted=[AbortedTransaction(1, 0, last_offset)], first_offset=2, last_offset=5
    ).column("value").to_pylist() == [b"plain"]


def test_aborted_transaction_ends_by_index_without_marker() -> None:
    log = log_of(transactional(3, 1, b"aborted"), transactional(6, 1, b"later"))
    assert to_arrow(log, aborted=[AbortedTransaction(1, 0, 4)]).column("value").to_pylist() == [b"later"]


def test_empty_log_has_columns_and_no_rows() -> None:
    assert to_arrow(b"").num_rows == 0
    assert to_arrow(b"").schema == schema()
    assert list(iter_arrow(b"")) == []
    assert to_arrow(build_batch([], 5)).num_rows == 0


def test_header_name_with_invalid_utf8_is_replaced() -> None:
    body = body_of(b"\0", varint(0), varint(0), varint(-1), varint(-1), varint(1), field(b"a\xffb"), field(b"v"))
    (row,) = to_arrow(sealed(body)).column("headers").to_pylist()
    assert row == [{"key": "a\ufffdb", "value": b"v"}]


def test_wrong_crc_is_found_unless_already_checked() -> None:
    log = build_batch([Record(0, 1, None, b"value")])
    log[-2] ^= 1
    with pytest.raises(InvalidRecords) as caught:
        to_arrow(log)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert to_arrow(log, verify_crc=False).num_rows == 1


@pytest.mark.parametrize("count", [-1, 2, 1000, 2**31 - 1])
def test_wrong_count_is_refused_without_allocation(count: int) -> None:
    log = sealed(body_of(b"\0", b"\0" * 40), record_count=count)
    with pytest.raises(InvalidRecords):
        to_arrow(log)


def test_import_loads_no_part_of_broker() -> None:
    script = (
        "import sys, ottla.records.columnar\n"
        "parts = {name.split('.')[1] for name in sys.modules if name.startswith('ottla.')}\n"
        "assert parts <= {'records', 'protocol'}, parts"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_batches_after_last_offset_are_not_read() -> None:
    good, bad = build_batch([Record(0, 1, None, b"a")]), build_batch([Record(0, 1, None, b"b")], 1)
    bad[-1] ^= 1
    assert to_arrow(good + bad, last_offset=0).num_rows == 1
    assert [h.base_offset for h in iter_batches(good + bad)] == [0, 1]
