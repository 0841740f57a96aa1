"""Compiled codecs: every message in every version, valid and malformed bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ottla.protocol.errors import ProtocolError
from ottla.protocol.inspect.walk import walk
from ottla.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.k01_fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.record_schemas.group import ClassicMemberMetadata, ConsumerGroupMemberMetadataValue

from .strategies import ALL_MESSAGES, of_message

if TYPE_CHECKING:
    from ottla.protocol.schema import Message

every_message = pytest.mark.parametrize("cls", ALL_MESSAGES, ids=[cls.__name__ for cls in ALL_MESSAGES])
few = settings(
    max_examples=5,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


@every_message
@few
@given(data=st.data())
def test_message_round_trip_keeps_unknown_tags(cls: type[Message], data: st.DataObject) -> None:
    for version in cls.__schema__.versions:
        message = data.draw(of_message(cls, version), label=f"v{version}")
        encoded = message.encode(version)
        assert cls.decode(encoded, version) == message
        assert cls.decode(bytearray(encoded), version) == message
        assert cls.decode_from(b"before" + encoded + b"after", 6, version) == (message, 6 + len(encoded))
        assert cls.decode(b"before" + encoded, version, 6) == message
        assert b"".join(message.encode_parts(version)) == encoded
        assert max((node.end for node in walk(cls, encoded, version)), default=0) == len(encoded)


@every_message
def test_default_message_encodes_in_every_version(cls: type[Message]) -> None:
    for version in cls.__schema__.versions:
        message = cls()
        assert cls.decode(message.encode(version), version) == message


# -- bad bytes ------------------------------------------------------------------------------------------------------


@every_message
@settings(few, max_examples=2)
@given(data=st.data())
def test_truncated_message_error_names_field_and_byte(cls: type[Message], data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(cls.__schema__.versions))
    encoded = data.draw(of_message(cls, version)).encode(version)
    cuts = range(len(encoded)) if len(encoded) < 200 else range(0, len(encoded), len(encoded) // 200)
    for cut in cuts:
        with pytest.raises(ProtocolError) as caught:
            cls.decode(encoded[:cut], version)
        error = caught.value
        assert (error.message, error.version) == (cls.__name__, version)
        assert error.path
        assert error.position is not None
        assert 0 <= error.position <= cut
        assert error.path.split("[")[0].split(".")[0] in {*(f.name for f in cls.__schema__.fields), "tags"}


@every_message
def test_trailing_bytes_are_an_error(cls: type[Message]) -> None:
    for version in cls.__schema__.versions:
        encoded = cls().encode(version)
        with pytest.raises(ProtocolError) as caught:
            cls.decode(encoded + b"xy", version)
        assert caught.value.expected == f"2 bytes left after {cls.__name__} v{version}"
        assert caught.value.position == len(encoded)


def bad(cls: type[Message], version: int, hexadecimal: str) -> ProtocolError:
    data = bytes.fromhex(hexadecimal)
    with pytest.raises(ProtocolError) as caught:
        cls.decode(data, version)
    with pytest.raises(ProtocolError) as again:
        cls.decode(memoryview(data), version)
    assert str(again.value) == str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("cls", "version", "data", "path", "position", "expected"),
    [
        (HeartbeatRequest, 0, "0001 67 0000", "generation_id", 3, "expected int32 to be 4 bytes, got 2"),
        (HeartbeatRequest, 0, "0005 67", "group_id", 2, "expected string to be 5 bytes, got 1"),
        (HeartbeatRequest, 0, "ffff", "group_id", 0, "expected string, got null, which it may not be"),
        (HeartbeatRequest, 0, "fffe", "group_id", 0, "expected string to have a length, got -2"),
        (HeartbeatRequest, 4, "00", "group_id", 0, "expected string, got null, which it may not be"),
        (HeartbeatRequest, 4, "818002 78", "group_id", 0, "expected string of at most 32767 bytes, got 32768"),
        (
            HeartbeatRequest,
            4,
            "ff",
            "group_id",
            0,
            "expected the length of string as an unsigned varint, got 1 bytes of it",
        ),
        (
            HeartbeatRequest,
            4,
            "808080808001",
            "group_id",
            0,
            "expected the length of string as an unsigned varint of at most 5 bytes",
        ),
        (
            HeartbeatRequest,
            4,
            "ffffffff0f",
            "group_id",
            0,
            "expected the length of string of at most 2147483647, got 4294967295",
        ),
        (MetadataRequest, 1, "fffffffe", "topics", 0, "expected array to have a length, got -2"),
        (MetadataRequest, 0, "ffffffff", "topics", 0, "expected array, got null, which it may not be"),
        (MetadataRequest, 1, "7fffffff", "topics", 0, "expected an array of 2147483647 elements, got 0 bytes"),
        (MetadataRequest, 12, "ffffffff07", "topics", 0, "expected an array of 2147483646 elements, got 0 bytes"),
        (MetadataRequest, 1, "00000001 0003 61", "topics[0].name", 6, "expected string to be 3 bytes, got 1"),
        (ApiVersionsRequest, 3, "01 01 01 00 05 61", "tags[0]", 5, "expected tagged field 0 to be 5 bytes, got 1"),
        (
            ApiVersionsRequest,
            3,
            "01 01 02 00 01 61",
            "tags",
            6,
            "expected a tag as an unsigned varint, got 0 bytes of it",
        ),
        (ApiVersionsRequest, 3, "01 01 00 ff", "", 3, "1 byte left after ApiVersionsRequest v3"),
        (
            FetchRequest,
            12,
            "ffffffff" + "00" * 21 + "01 01 01 01 0100",
            "tags[1]",
            29,
            "expected no tag 1 (replica_state) in this version",
        ),
        (
            FetchRequest,
            16,
            "00" * 21 + "01 01 01 01 00 03 0261 62",
            "tags[0]",
            29,
            "expected tagged field 0 to be 3 bytes, 1 are left",
        ),
        (
            ProduceRequest,
            3,
            "ffff 0001 00000000 00000001 0001 61 00000001 00000000 7fffffff 00",
            "topic_data[0].partition_data[0].records",
            27,
            "expected records to be 2147483647 bytes, got 1",
        ),
    ],
)
def test_malformed_bytes_error_names_field_and_byte(
    cls: type[Message], version: int, data: str, path: str, position: int, expected: str
) -> None:
    error = bad(cls, version, data)
    assert (error.path, error.position, error.expected) == (path, position, expected)
    assert str(error).startswith(f"{cls.__name__} v{version}")


def test_unknown_version_is_an_error() -> None:
    for version in (-1, 3, 19):
        with pytest.raises(ProtocolError, match="expected a version from 4 to 18"):
            FetchRequest.decode(b"", version)
        with pytest.raises(ProtocolError, match="expected a version from 4 to 18"):
            FetchRequest().encode(version)


def test_wrong_count_allocates_nothing() -> None:
    import tracemalloc

    data = bytes.fromhex("ffffffff07") + bytes(100)
    with pytest.raises(ProtocolError):
        MetadataRequest.decode(data, 12)  # compiles
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            MetadataRequest.decode(data, 12)
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


def test_invalid_utf8_is_replaced_as_in_java() -> None:
    assert HeartbeatRequest.decode(b"\0\2\xff\x61\0\0\0\0\0\0", 0).group_id == "\ufffda"


def test_overlong_varint_is_accepted() -> None:
    assert HeartbeatRequest.decode(b"\x82\x80\0g\0\0\0\0\1\x80\0\0", 4).group_id == "g"
    assert HeartbeatRequest.decode(b"\x82\x80\0g\0\0\0\0\1\x80\0\0", 4).group_instance_id is None


# -- unencodable values ---------------------------------------------------------------------------------------------


def refused(message: Message, version: int) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        message.encode(version)
    with pytest.raises(ProtocolError):
        message.encode_parts(version)
    assert (caught.value.message, caught.value.version) == (type(message).__name__, version)
    return caught.value


def test_field_absent_in_version_needs_default_unless_ignorable() -> None:
    assert FetchRequest(rack_id="r", session_id=3).encode(4) == FetchRequest().encode(4)
    error = refused(FetchRequest(replica_id=3), 15)
    assert (error.path, error.expected) == ("replica_id", "expected the default -1 in this version")
    assert refused(FetchRequest(replica_state=ReplicaState(replica_id=2)), 14).path == "replica_state"
    inner = FetchRequest(topics=[FetchTopic(partitions=[FetchPartition(last_fetched_epoch=3)])])
    assert refused(inner, 11).path == "topics[0].partitions[0].last_fetched_epoch"


@pytest.mark.parametrize(
    ("message", "version", "path", "expected"),
    [
        (HeartbeatRequest(group_id=None), 4, "group_id", "expected string, got null, which it may not be"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id=b"x"), 4, "group_id", "expected string, got b'x'"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id="\ud800"), 4, "group_id", "expected string, got '\\ud800'"),
        (HeartbeatRequest(group_id="x" * 32768), 4, "group_id", "expected string of at most 32767 bytes, got 32768"),
        (HeartbeatRequest(group_id="x" * 32768), 0, "group_id", "expected string of at most 32767 bytes, got 32768"),
        (HeartbeatRequest(generation_id=2**31), 4, "generation_id", "expected int32, got 2147483648"),
        (MetadataRequest(topics=[None]), 12, "topics[0]", "expected MetadataRequestTopic, got None"),  # type: ignore[list-item]
        (MetadataRequest(topics=[MetadataRequestTopic(name=3)]), 12, "topics[0].name", "expected string, got 3"),  # type: ignore[arg-type]
        (FetchRequest(replica_state=None), 16, "replica_state", "expected struct, got null, which it may not be"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_unencodable_value_error_names_field(message: Message, version: int, path: str, expected: str) -> None:
    error = refused(message, version)
    assert (error.path, error.expected) == (path, expected)


def test_unknown_tags_require_flexible_version() -> None:
    message = HeartbeatRequest()
    message.unknown_tags = {7: b"seven"}
    assert HeartbeatRequest.decode(message.encode(4), 4) == message
    assert refused(message, 3).path == "unknown_tags"


def test_known_and_unknown_tags_are_written_in_order() -> None:
    response = ApiVersionsResponse(finalized_features_epoch=5)
    response.unknown_tags = {0x100: b"later", 7: b"x"}
    encoded = response.encode(3)
    assert encoded.endswith(bytes.fromhex("03 01 08 0000000000000005 07 01 78 8002 05") + b"later")
    assert ApiVersionsResponse.decode(encoded, 3) == response


def test_nullable_tagged_struct_defaults_to_empty() -> None:
    # Its definition has a null without quotes as default, which is none: absent means empty, and null is written.
    absent = ConsumerGroupMemberMetadataValue()
    assert absent.classic_member_metadata == ClassicMemberMetadata()
    assert absent.encode(0)[-1:] == b"\0"
    null = ConsumerGroupMemberMetadataValue(classic_member_metadata=None)
    assert null.encode(0)[-4:] == bytes.fromhex("01 00 01 00")
    present = ConsumerGroupMemberMetadataValue(classic_member_metadata=ClassicMemberMetadata(session_timeout_ms=9))
    for value in (absent, null, present):
        assert ConsumerGroupMemberMetadataValue.decode(value.encode(0), 0) == value


# -- records --------------------------------------------------------------------------------------------------------


def produce(records: Any) -> ProduceRequest:
    return ProduceRequest(
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=1, records=records)])]
    )


@pytest.mark.parametrize("version", [3, 11])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_records_are_view_of_frame(version: int, wrap: Any) -> None:
    frame = wrap(produce(b"batch" * 1000).encode(version))
    records = ProduceRequest.decode(frame, version).topic_data[0].partition_data[0].records
    assert type(records) is memoryview
    assert records == b"batch" * 1000
    assert records.obj is (frame.obj if wrap is memoryview else frame)


def test_large_records_are_separate_parts_and_small_ones_are_copied() -> None:
    large, small = memoryview(bytes(2000)), b"small"
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                partitions=[
                    PartitionData(partition_index=0, records=small),
                    PartitionData(partition_index=1, records=large),
                    PartitionData(partition_index=2, records=b""),
                    PartitionData(partition_index=3, records=None),
                ]
            )
        ]
    )
    parts = response.encode_parts(16)
    assert [part is large for part in parts] == [False, True, False]
    assert b"".join(parts) == response.encode(16)
    assert FetchResponse.decode(b"".join(parts), 16) == response


class Slice:
    """A file slice that the server sends later: the codec knows only its length."""

    def __len__(self) -> int:
        return 7


def test_file_slice_is_passed_through() -> None:
    piece = Slice()
    message = produce(piece)
    parts = message.encode_parts(11)
    assert parts[1] is piece
    assert b"".join([parts[0], bytes(7), parts[2]]) == produce(bytes(7)).encode(11)
    with pytest.raises(ProtocolError, match="encode_parts"):
        message.encode(11)
