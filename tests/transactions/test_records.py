"""Records of `__transaction_state`: encoding, decoding, and loading of invalid ones."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.records.iterate import Record
from ottla.storage.names import TopicPartition
from ottla.transactions.metadata import TransactionRecord
from ottla.transactions.records import decode_record, encode_key, encode_value
from ottla.transactions.states import WRITTEN, TransactionState, TransactionVersion

from .stage import A0, A1, B0, NONE, Stage

NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR

ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
longs = st.integers(-1, 2**63 - 1)
records = st.builds(
    TransactionRecord,
    producer_id=longs,
    previous_producer_id=longs,
    next_producer_id=longs,
    producer_epoch=st.integers(-1, 32767),
    timeout_ms=st.integers(0, 2**31 - 1),
    state=st.sampled_from(WRITTEN),
    partitions=st.dictionaries(st.builds(TopicPartition, ids, st.integers(0, 2**31 - 1)), st.none(), max_size=5),
    start_timestamp=longs,
    last_update_timestamp=longs,
    client_transaction_version=st.sampled_from(TransactionVersion),
).map(lambda record: record._replace(partitions={}) if record.state is TransactionState.EMPTY else record)


@given(ids, records)
def test_version_1_record_round_trips(transactional_id, record):
    value = encode_value(record, TransactionVersion.TV_2)
    assert decode_record(encode_key(transactional_id), value) == (transactional_id, record)


@given(ids, records)
def test_version_0_record_omits_ids_and_client_version(transactional_id, record):
    value = encode_value(record, TransactionVersion.TV_0)
    kept = record._replace(
        previous_producer_id=-1, next_producer_id=-1, client_transaction_version=TransactionVersion.TV_0
    )
    assert decode_record(encode_key(transactional_id), value) == (transactional_id, kept)


def test_record_bytes_equal_kafkas():
    record = TransactionRecord(
        1000,
        1000,
        -1,
        3,
        60_000,
        TransactionState.ONGOING,
        {A0: None, B0: None, A1: None},
        5,
        6,
        TransactionVersion.TV_2,
    )
    assert encode_key("app").hex() == "0000" + "0003617070"
    assert encode_value(record, TransactionVersion.TV_2).hex() == (
        "0001" "00000000000003e8" "0003" "0000ea60" "01"
        "03" "0261" "03" "00000000" "00000001" "00" "0262" "02" "00000000" "00"
        "0000000000000006" "0000000000000005"
        "02" "00" "08" "00000000000003e8" "02" "02" "0002"
    )  # fmt: skip
    assert encode_value(record, TransactionVersion.TV_0).hex() == (
        "0000" "00000000000003e8" "0003" "0000ea60" "01"
        "00000002" "000161" "00000002" "00000000" "00000001" "000162" "00000001" "00000000"
        "0000000000000006" "0000000000000005"
    )  # fmt: skip


def test_tombstone_removes_id():
    assert decode_record(encode_key("app"), None) == ("app", None)


def test_key_of_unknown_type_is_ignored():
    value = encode_value(_record(), TransactionVersion.TV_2)
    assert decode_record(b"\x00\x01" + encode_key("app")[2:], value) is None


@pytest.mark.parametrize("version", [b"\x00\x02", b"\xff\xff"])
def test_value_of_unknown_version_is_an_error(version):
    value = encode_value(_record(), TransactionVersion.TV_2)
    with pytest.raises(ProtocolError, match="unknown"):
        decode_record(encode_key("app"), version + value[2:])


@given(st.binary(max_size=60), st.binary(max_size=60) | st.none())
def test_any_bytes_decode_or_raise_protocol_error(key, value):
    with contextlib.suppress(ProtocolError):
        decode_record(key, value)


@given(st.binary(max_size=80))
def test_any_value_decodes_or_raises_protocol_error(value):
    with contextlib.suppress(ProtocolError):
        decode_record(encode_key("app"), b"\x00\x01" + value)


@pytest.mark.parametrize("state", [-1, 6, 7, 100])
def test_unwritten_state_is_an_error(state):
    value = bytearray(encode_value(_record(), TransactionVersion.TV_2))
    value[2 + 8 + 2 + 4] = state & 0xFF
    with pytest.raises(ProtocolError, match="number of a state"):
        decode_record(encode_key("app"), bytes(value))


def test_record_without_key_is_an_error():
    with pytest.raises(ProtocolError):
        decode_record(None, b"")


def test_partition_with_unreadable_records_is_not_loaded():
    stage = Stage()
    producer = stage.init()
    partition = stage.coordinator.partition_for("app")
    good = stage.log.stored(partition)
    bad = [Record(71, 0, encode_key("app"), b"\x00\x01?"), Record(72, 0, b"", None)]
    unreadable = stage.coordinator.load(partition, 9, [*good, *bad])
    assert [record.offset for record in unreadable] == [71, 72]
    assert "TransactionLogValue" in unreadable[0].reason
    assert stage.add(producer, A0) is NOT_COORDINATOR
    assert stage.coordinator.load(partition, 10, good) == []
    assert stage.add(producer, A0) is NONE


def test_loading_keeps_last_record_of_each_id():
    stage = Stage()
    one, two = stage.init("one"), stage.init("two")
    stage.add(one, A0, transactional_id="one")
    stage.crash()
    assert (stage.state("one"), stage.state("two")) == ("Ongoing", "Empty")
    assert stage.commit(one, transactional_id="one").error is NONE
    assert stage.add(two, A0, transactional_id="two") is NONE
    assert stage.add(two, A0, transactional_id="one") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def _record() -> TransactionRecord:
    return TransactionRecord(1, 1, -1, 0, 1, TransactionState.ONGOING, {A0: None}, 0, 0, TransactionVersion.TV_2)
