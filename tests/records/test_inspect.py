"""Inspection of record batches: internal records are decoded to their fields."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ProtocolError
from ottla.protocol.record_schemas.group import OffsetCommitKey, OffsetCommitValue
from ottla.protocol.schema import Uuid
from ottla.records.builder import build_batch
from ottla.records.inspect import batch_lines
from ottla.records.iterate import Record

# A metadata batch as Kafka lays it out: frame version 1, TopicRecord (2), version 0, then name and id.
TOPIC_ID = bytes(range(16))
TOPIC_RECORD = bytes([1, 2, 0, 4]) + b"abc" + TOPIC_ID + b"\0"


def shown(data: bytes, values: str | None = None) -> list[str]:
    return [
        "  " * line.depth + line.label + ("" if line.value is None else f" ({_text(line.value)})")
        for line in batch_lines(data, 0, len(data), 0, values)
    ]


def _text(value: object) -> str:
    return bytes(value).hex() if isinstance(value, memoryview) else str(value)


def test_metadata_record_is_decoded_to_fields() -> None:
    lines = shown(bytes(build_batch([Record(0, 5, None, TOPIC_RECORD)])), "metadata")
    assert "      TopicRecord v0" in lines
    assert "        name (abc)" in lines
    assert f"        topic_id ({Uuid(TOPIC_ID)})" in lines


def test_offset_commit_key_and_value_are_decoded() -> None:
    key = (1).to_bytes(2, "big") + OffsetCommitKey(group="g", topic="t", partition=3).encode(0)
    value = (3).to_bytes(2, "big") + OffsetCommitValue(offset=42, metadata="m", commit_timestamp=7).encode(3)
    lines = [line.strip() for line in shown(bytes(build_batch([Record(0, 5, key, value)])), "offsets")]
    assert "group (g)" in lines
    assert "partition (3)" in lines
    assert "offset (42)" in lines


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
def test_compressed_records_are_decoded(compression: int) -> None:
    data = bytes(build_batch([Record(0, 5, b"k", b"v" * 100)], compression=compression))
    assert "    key (6b)" in shown(data)


def test_values_are_decoded_only_on_request() -> None:
    assert not any("TopicRecord" in line for line in shown(bytes(build_batch([Record(0, 5, None, TOPIC_RECORD)]))))


def test_positions_point_into_frame() -> None:
    data = b"##" + bytes(build_batch([Record(0, 5, b"key", b"value")]))
    lines = {line.label: line for line in batch_lines(data, 2, len(data))}
    assert data[lines["value"].position : lines["value"].end] == b"value"
    assert lines["base_offset"].position == 2


@pytest.mark.parametrize("cut", [1, 30, 60])
def test_partial_last_batch_is_shown_as_partial(cut: int) -> None:
    whole = bytes(build_batch([Record(0, 5, b"key", b"value")]))
    lines = shown(whole + whole[:cut])
    assert lines[-1].strip().startswith("PartOf")


def test_truncated_records_raise_protocol_error_with_position() -> None:
    whole = bytearray(build_batch([Record(0, 5, b"key", b"value", (("h", b"x"),))]))
    for cut in range(62, len(whole)):
        data = bytearray(whole[:cut])
        data[8:12] = (cut - 12).to_bytes(4, "big")
        with pytest.raises(ProtocolError) as caught:
            list(batch_lines(bytes(data), 0, len(data)))
        assert caught.value.position is not None
        assert 61 <= caught.value.position <= cut


def test_batch_shorter_than_its_header_is_reported() -> None:
    data = bytearray(build_batch([Record(0, 5, b"key", b"value")]))
    data[8:12] = (5).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="batch of 61 bytes or more, got 17"):
        list(batch_lines(bytes(data), 0, len(data)))
