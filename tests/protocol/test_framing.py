"""Frames: documented dumps bit for bit, headers, and a stream split into any pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.api import APIS, request_header_version, response_header_version
from ottla.protocol.errors import ProtocolError
from ottla.protocol.framing import (
    FrameCutter,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_request_parts,
    encode_response,
    encode_response_parts,
)
from ottla.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.k01_fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from ottla.protocol.messages.k12_heartbeat import HeartbeatResponse
from ottla.protocol.messages.k18_api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.schema import Uuid

API_VERSIONS_REQUEST = bytes.fromhex(
    "00 00 00 23 00 12 00 04 25 ed c0 ae 00 09 6b 61 66 6b 61 2d 63 6c 69"
    "00 0a 6b 61 66 6b 61 2d 63 6c 69 04 30 2e 31 00"
)
API_VERSIONS_RESPONSE = bytes.fromhex("00 00 00 13 25 ed c0 ae 00 00 02 00 12 00 00 00 04 00 00 00 00 00 00")


def test_api_versions_request_of_kafka_cli_is_decoded() -> None:
    header, request = decode_request(API_VERSIONS_REQUEST[4:])
    assert (header.request_api_key, header.request_api_version) == (18, 4)
    assert (header.correlation_id, header.client_id) == (636338350, "kafka-cli")
    assert request == ApiVersionsRequest(client_software_name="kafka-cli", client_software_version="0.1")
    assert encode_request(18, 4, 636338350, "kafka-cli", request) == API_VERSIONS_REQUEST


def test_api_versions_response_has_header_v0_in_every_version() -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])
    assert encode_response(18, 4, 636338350, response) == API_VERSIONS_RESPONSE
    header, decoded = decode_response(API_VERSIONS_RESPONSE[4:], 18, 4)
    assert (header.correlation_id, decoded) == (636338350, response)


def test_unsupported_api_versions_version_is_answered_in_version_0() -> None:
    request = bytes.fromhex("0012 007b 00000007 ffff 00")
    header, _ = decode_request_header(request)
    assert (header.request_api_version, header.correlation_id, header.client_id) == (123, 7, None)
    with pytest.raises(ProtocolError, match="expected a version from 0 to 4"):
        decode_request(request)
    response = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])
    assert encode_response(18, 0, 7, response) == bytes.fromhex("00000010 00000007 0023 00000001 0012 0000 0004")


TOPIC_ID = Uuid(bytes(range(16)))


def test_fetch_request_16_layout() -> None:
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=0x03200000,
        isolation_level=1,
        session_id=2,
        session_epoch=3,
        topics=[
            FetchTopic(
                topic_id=TOPIC_ID,
                partitions=[
                    FetchPartition(
                        partition=4,
                        current_leader_epoch=5,
                        fetch_offset=6,
                        last_fetched_epoch=7,
                        log_start_offset=8,
                        partition_max_bytes=0x00100000,
                    )
                ],
            )
        ],
        forgotten_topics_data=[ForgottenTopic(topic_id=TOPIC_ID, partitions=[9])],
        rack_id="r",
    )
    expected = (
        "000001f4 00000001 03200000 01 00000002 00000003"
        "02 000102030405060708090a0b0c0d0e0f"
        "02 00000004 00000005 0000000000000006 00000007 0000000000000008 00100000 00"
        "00"
        "02 000102030405060708090a0b0c0d0e0f 02 00000009 00"
        "02 72 00"
    )
    assert request.encode(16) == bytes.fromhex(expected)
    assert FetchRequest.decode(bytes.fromhex(expected), 16) == request


def test_fetch_response_16_layout() -> None:
    response = FetchResponse(
        throttle_time_ms=1,
        error_code=0,
        session_id=2,
        responses=[
            FetchableTopicResponse(
                topic_id=TOPIC_ID,
                partitions=[
                    PartitionData(
                        partition_index=3,
                        error_code=100,
                        high_watermark=4,
                        last_stable_offset=5,
                        log_start_offset=6,
                        aborted_transactions=[AbortedTransaction(producer_id=7, first_offset=8)],
                        preferred_read_replica=-1,
                        records=b"batch",
                    )
                ],
            )
        ],
    )
    expected = (
        "00000001 0000 00000002"
        "02 000102030405060708090a0b0c0d0e0f"
        "02 00000003 0064 0000000000000004 0000000000000005 0000000000000006"
        "02 0000000000000007 0000000000000008 00"
        "ffffffff 06 6261746368 00"
        "00"
        "00"
    )
    assert response.encode(16) == bytes.fromhex(expected)
    assert FetchResponse.decode(bytes.fromhex(expected), 16) == response
    frame = encode_response(1, 16, 9, response)
    assert frame[:9] == (5 + len(bytes.fromhex(expected))).to_bytes(4, "big") + bytes.fromhex("00000009 00")


def test_header_version_follows_first_flexible_version() -> None:
    assert [request_header_version(1, version) for version in (11, 12)] == [1, 2]
    assert [response_header_version(1, version) for version in (11, 12)] == [0, 1]
    assert {response_header_version(18, version) for version in range(5)} == {0}
    assert [request_header_version(18, version) for version in (2, 3, 99)] == [1, 2, 2]
    assert request_header_version(17, 1) == 1  # SaslHandshake never became flexible
    assert len(APIS) > 75


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ("", "expected an API key and a version of 4 bytes, got 0"),
        ("0012 00", "expected an API key and a version of 4 bytes, got 3"),
        ("0004 0000 00000001 ffff", "expected the key of an API, got 4"),
        ("7fff 0000 00000001 ffff", "expected the key of an API, got 32767"),
        ("ffff 0000 00000001 ffff", "expected the key of an API, got -1"),
        ("0012 0003 000000", "correlation_id at byte 4: expected int32 to be 4 bytes, got 3"),
        ("0012 0003 00000001 0009 61", "client_id at byte 10: expected string to be 9 bytes, got 1"),
        ("0012 0003 00000001 fffe", "client_id at byte 8: expected string to have a length, got -2"),
        ("0012 0003 00000001 0001 61 00 01 01 00 00", "1 byte left after ApiVersionsRequest v3"),
        (
            "0012 0003 00000001 0001 61 00 05 01",
            "client_software_name at byte 13: expected string to be 4 bytes, got 1",
        ),
    ],
)
def test_bad_frame_error_names_field_and_byte(frame: str, message: str) -> None:
    for wrap in (bytes, bytearray, memoryview):
        with pytest.raises(ProtocolError) as caught:
            decode_request(wrap(bytes.fromhex(frame)))
        assert message in str(caught.value)


def test_unknown_header_tags_are_kept() -> None:
    frame = bytes.fromhex("0012 0003 00000001 0001 61 01 07 02 6869 01 01 00")
    header, _ = decode_request(frame)
    assert header.unknown_tags == {7: b"hi"}


def test_large_records_stay_parts_of_frame() -> None:
    records = memoryview(bytes(5000))
    request = ProduceRequest(topic_data=[TopicProduceData(partition_data=[PartitionProduceData(records=records)])])
    parts = encode_request_parts(0, 11, 1, "c", request)
    assert any(part is records for part in parts)
    assert b"".join(parts) == encode_request(0, 11, 1, "c", request)
    assert int.from_bytes(parts[0][:4], "big") == sum(map(len, parts)) - 4
    assert encode_response_parts(12, 4, 1, HeartbeatResponse()) == [
        bytes.fromhex("0000000c 00000001 00 00000000 0000 00")
    ]


# -- the stream -----------------------------------------------------------------------------------------------------


def frames(cutter: FrameCutter, *pieces: bytes) -> list[bytes]:
    return [bytes(frame) for piece in pieces for frame in cutter.feed(piece)]


STREAM = API_VERSIONS_REQUEST + API_VERSIONS_RESPONSE + bytes(4) + API_VERSIONS_REQUEST
WHOLE = [API_VERSIONS_REQUEST[4:], API_VERSIONS_RESPONSE[4:], b"", API_VERSIONS_REQUEST[4:]]


def test_stream_split_at_any_byte_gives_same_frames() -> None:
    assert frames(FrameCutter(), STREAM) == WHOLE
    assert frames(FrameCutter(), *(STREAM[i : i + 1] for i in range(len(STREAM)))) == WHOLE
    for cut in range(len(STREAM) + 1):
        assert frames(FrameCutter(), STREAM[:cut], STREAM[cut:]) == WHOLE
    for cut in range(len(API_VERSIONS_REQUEST) + 1):
        (frame,) = frames(FrameCutter(), API_VERSIONS_REQUEST[:cut], API_VERSIONS_REQUEST[cut:])
        assert decode_request(frame) == decode_request(API_VERSIONS_REQUEST[4:])


@settings(max_examples=100, deadline=None, database=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_stream_in_random_pieces_gives_same_frames(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(borders)]
    assert frames(FrameCutter(), *pieces) == WHOLE


def test_frame_in_one_piece_is_not_copied() -> None:
    (frame,) = FrameCutter().feed(API_VERSIONS_REQUEST)
    assert frame.obj is API_VERSIONS_REQUEST


def test_memory_follows_received_bytes_not_announced_length() -> None:
    cutter = FrameCutter()
    assert list(cutter.feed(bytes.fromhex("06400000") + bytes(10))) == []
    assert cutter.waiting == 14


@pytest.mark.parametrize("length", ["ffffffff", "80000000", "06400001", "7fffffff"])
def test_invalid_frame_length_is_an_error(length: str) -> None:
    data = bytes.fromhex(length)
    for pieces in ([data], [data[:1], data[1:]], [API_VERSIONS_REQUEST + data]):
        cutter = FrameCutter()
        with pytest.raises(ProtocolError, match="expected a frame of 0 to 104857600 bytes"):
            frames(cutter, *pieces)


def test_frames_before_invalid_length_are_returned() -> None:
    stream = FrameCutter(max_size=64).feed(API_VERSIONS_REQUEST + b"\0\0\0\x41")
    assert next(stream) == API_VERSIONS_REQUEST[4:]
    with pytest.raises(ProtocolError):
        next(stream)
