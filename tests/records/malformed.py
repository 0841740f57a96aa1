"""Batches that say what a test wants them to say, right CRC included, however wrong that is."""

from __future__ import annotations

from ottla.records.builder import seal_batch
from ottla.records.compression import compress
from ottla.records.iterate import Record

NOW = 1_700_000_000_000


def varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def framed(body: bytes) -> bytes:
    return varint(len(body)) + body


def record(
    index: int = 0, key: bytes | None = b"key", value: bytes | None = b"value", timestamp_delta: int = 0
) -> bytes:
    return framed(b"\0" + varint(timestamp_delta) + varint(index) + field(key) + field(value) + varint(0))


def sealed(body: bytes, count: int = 1, codec: int = 0, **overrides: int) -> bytearray:
    """A batch with that body, its codec applied, and a header that fits unless it is overridden."""
    fields = {
        "base_offset": 0,
        "partition_leader_epoch": -1,
        "attributes": codec,
        "last_offset_delta": count - 1,
        "base_timestamp": NOW,
        "max_timestamp": NOW,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": count,
    }
    fields.update(overrides)
    return seal_batch(compress(codec, body), **fields)


def good_records(count: int = 3) -> list[Record]:
    return [Record(0, NOW + i, b"key %d" % i, b"value %d" % i, (("h", b"x"), ("n", None))) for i in range(count)]
