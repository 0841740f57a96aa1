"""Records of Kafka's internal topics: their frames, and unknown types."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolSubscription
from ottla.protocol.record_schemas.control import (
    EndTxnMarker,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    SnapshotHeaderRecord,
)
from ottla.protocol.record_schemas.group import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue
from ottla.protocol.record_schemas.metadata import FeatureLevelRecord, PartitionRecord, TopicRecord
from ottla.protocol.record_schemas.share import ShareSnapshotKey, ShareSnapshotValue
from ottla.protocol.record_schemas.storage import ProducerEntry, ProducerSnapshot
from ottla.protocol.record_schemas.transaction import TransactionLogKey, TransactionLogValue
from ottla.protocol.record_values import (
    ControlRecordType,
    UnknownRecord,
    decode_control_key,
    decode_control_value,
    decode_metadata_record,
    decode_offsets_key,
    decode_offsets_value,
    decode_share_key,
    decode_share_value,
    decode_transaction_key,
    decode_transaction_value,
    decode_versioned_metadata_record,
    encode_control_key,
    encode_control_value,
    encode_coordinator_key,
    encode_coordinator_value,
    encode_metadata_record,
    record_classes,
)
from ottla.protocol.schema import Uuid

TOPIC_ID = Uuid(bytes(range(16)))
PARTITION = PartitionRecord(
    partition_id=1,
    topic_id=TOPIC_ID,
    replicas=[1],
    isr=[1],
    leader=1,
    leader_epoch=0,
    partition_epoch=0,
    directories=[TOPIC_ID],
)
ID = "000102030405060708090a0b0c0d0e0f"


@pytest.mark.parametrize(
    ("record", "version", "expected"),
    [
        (FeatureLevelRecord(name="metadata.version", feature_level=20), 0,
         "01 0c 00 11 6d657461646174612e76657273696f6e 0014 00"),
        (TopicRecord(name="saz", topic_id=TOPIC_ID), 0, f"01 02 00 04 73617a {ID} 00"),
        (PARTITION, 1,
         f"01 03 01 00000001 {ID} 02 00000001 02 00000001 01 01 00000001 00000000 00000000 02 {ID} 00"),
    ],
)  # fmt: skip
def test_metadata_record_starts_with_three_varints(record: object, version: int, expected: str) -> None:
    data = bytes.fromhex(expected)
    assert decode_versioned_metadata_record(data) == (record, version)
    assert encode_metadata_record(record, version) == data  # type: ignore[arg-type]
    assert decode_metadata_record(memoryview(data)) == record


def test_directories_exist_from_partition_record_1() -> None:
    with pytest.raises(ProtocolError, match="directories"):
        encode_metadata_record(PartitionRecord(directories=[TOPIC_ID]), 0)


def test_all_metadata_records_are_declared() -> None:
    assert set(record_classes("metadata", "metadata")) == {
        0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 14, 15, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
    }  # fmt: skip


def test_unknown_metadata_records_are_kept() -> None:
    for head in ("01 ac02 00", "01 02 09"):  # an unknown type, and an unknown version
        data = bytes.fromhex(head) + b"whatever"
        record = decode_metadata_record(data)
        assert isinstance(record, UnknownRecord)
        assert record.data == b"whatever"
        assert encode_metadata_record(record) == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "MetadataRecord at byte 0: expected the frame version"),
        ("01", "MetadataRecord at byte 1: expected the type"),
        ("01 ffffff7f 00", "MetadataRecord at byte 1: expected the type"),
        ("00 02 00", "MetadataRecord at byte 0: expected frame version 1, got 0"),
        ("01 02 00 04 7361", "TopicRecord v0, name at byte 4: expected string to be 3 bytes, got 2"),
        (f"01 02 00 01 {ID} 00 00", "1 byte left after TopicRecord v0"),
    ],
)
def test_malformed_metadata_record_fails(data: str, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_metadata_record(bytes.fromhex(data))
    assert message in str(caught.value)


def test_only_metadata_records_have_metadata_frame() -> None:
    with pytest.raises(ProtocolError, match="expected a metadata record"):
        encode_metadata_record(HeartbeatRequest())


def test_offsets_keys_have_type_and_values_version() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    assert encode_coordinator_key(key) == bytes.fromhex("0001 0001 67 0001 74 00000003")
    assert decode_offsets_key(encode_coordinator_key(key)) == key
    value = OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=9)
    written = encode_coordinator_value(value, 3)
    assert written == bytes.fromhex("0003 0000000000000007 00000002 0001 6d 0000000000000009")
    assert decode_offsets_value(key, written) == value
    assert decode_offsets_value(1, written) == value
    assert encode_coordinator_value(value)[:2] == b"\0\4"


def test_transaction_and_share_records_round_trip() -> None:
    key = TransactionLogKey(transactional_id="x")
    assert decode_transaction_key(encode_coordinator_key(key)) == key
    for version in (0, 1):
        value = TransactionLogValue(producer_id=4, transaction_timeout_ms=60000, transaction_partitions=None)
        assert decode_transaction_value(encode_coordinator_value(value, version)) == value
    share = ShareSnapshotKey(group_id="g", topic_id=TOPIC_ID, partition=2)
    assert decode_share_key(encode_coordinator_key(share)) == share
    snapshot = ShareSnapshotValue(start_offset=5)
    assert decode_share_value(share, encode_coordinator_value(snapshot, 0)) == snapshot


def test_unknown_coordinator_records_are_kept() -> None:
    key = decode_offsets_key(bytes.fromhex("00ff 6869"))
    assert key == UnknownRecord(255, 0, b"hi")
    assert encode_coordinator_key(key) == bytes.fromhex("00ff 6869")
    value = decode_offsets_value(key, bytes.fromhex("0009 79"))
    assert value == UnknownRecord(255, 9, b"y")
    assert encode_coordinator_value(value) == bytes.fromhex("0009 79")
    assert decode_offsets_value(GroupMetadataKey(), b"\0\x63z") == UnknownRecord(2, 99, b"z")


@pytest.mark.parametrize("data", [b"", b"\0"])
def test_truncated_prefix_fails(data: bytes) -> None:
    for read in (decode_offsets_key, decode_transaction_key, decode_share_key, decode_transaction_value):
        with pytest.raises(ProtocolError, match=f"to be 2 bytes, got {len(data)}"):
            read(data)


def test_keys_and_values_cannot_be_swapped() -> None:
    with pytest.raises(ProtocolError, match="expected the key"):
        encode_coordinator_key(OffsetCommitValue())
    with pytest.raises(ProtocolError, match="expected the value"):
        encode_coordinator_value(OffsetCommitKey())


def test_every_key_has_a_value() -> None:
    for log in ("offsets", "transaction", "share"):
        assert record_classes(log, "coordinator-key").keys() == record_classes(log, "coordinator-value").keys()


# -- control records ------------------------------------------------------------------------------------------------


def test_end_txn_marker_layout() -> None:
    assert encode_control_key(ControlRecordType.COMMIT) == bytes.fromhex("0000 0001")
    assert decode_control_key(bytes.fromhex("0000 0000")) is ControlRecordType.ABORT
    assert decode_control_key(bytes.fromhex("0005 0001 ff")) is ControlRecordType.COMMIT
    marker = EndTxnMarker(coordinator_epoch=3)
    assert encode_control_value(marker) == bytes.fromhex("0000 00000003")
    assert decode_control_value(ControlRecordType.COMMIT, bytes.fromhex("0000 00000003")) == marker


def test_quorum_control_record_contains_its_version() -> None:
    voters = [LeaderChangeMessageVoter(voter_id=1)]
    change = LeaderChangeMessage(version=0, leader_id=1, voters=voters, granting_voters=voters)
    data = bytes.fromhex("0000 00000001 02 00000001 00 02 00000001 00 00")
    assert encode_control_value(change) == data
    assert decode_control_value(ControlRecordType.LEADER_CHANGE, data) == change
    header = SnapshotHeaderRecord(last_contained_log_timestamp=5)
    assert decode_control_value(ControlRecordType.SNAPSHOT_HEADER, encode_control_value(header)) == header


def test_malformed_control_record_fails() -> None:
    assert decode_control_key(bytes.fromhex("0000 0063")) == UnknownRecord(99, 0, b"")
    for key in ("0000", "ffff 0001"):
        with pytest.raises(ProtocolError):
            decode_control_key(bytes.fromhex(key))
    for value in ("", "ffff 00000000", "0000 0000"):
        with pytest.raises(ProtocolError):
            decode_control_value(ControlRecordType.ABORT, bytes.fromhex(value))


# -- others ---------------------------------------------------------------------------------------------------------


def test_producer_snapshot_round_trips() -> None:
    entries = [ProducerEntry(producer_id=n, epoch=1, last_sequence=n, timestamp=2**40) for n in range(5)]
    snapshot = ProducerSnapshot(crc=2**32 - 1, producer_entries=entries)
    data = snapshot.encode(1)
    assert len(data) == 4 + 4 + 5 * 46
    assert ProducerSnapshot.decode(data, 1) == snapshot


def test_subscription_is_decoded_in_its_own_version() -> None:
    subscription = ConsumerProtocolSubscription(topics=["a", "b"], generation_id=4, rack_id="r")
    assert ConsumerProtocolSubscription.decode(subscription.encode(3), 3) == subscription
