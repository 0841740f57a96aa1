"""Malformed batches with a valid CRC."""

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
    """Return a batch with the body compressed by its codec and a matching header, unless overridden."""
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


def body_of(attributes: bytes = b"\0", *fields: bytes) -> bytes:
    return framed(attributes + b"".join(fields))


# Malformed bytes in place of the single record of a batch.
ZERO, ONE, NULL = varint(0), varint(1), varint(-1)
INVALID_BODIES = {
    "no bytes": b"",
    "length cut off": b"\x80",
    "length too long": b"\x80" * 5 + b"\0",
    "length zero": ZERO,
    "length negative": varint(-5) + b"\0" * 9,
    "length past the batch": varint(100) + record()[1:],
    "length below the fields": varint(5) + record()[1:],
    "length above the fields": framed(record()[1:] + b"\0"),
    "attributes only": body_of(b"\0"),
    "timestamp cut off": body_of(b"\0", b"\x80"),
    "timestamp too long": body_of(b"\0", b"\x80" * 10, ZERO, ZERO, NULL, NULL, ZERO),
    "no offset": body_of(b"\0", ZERO),
    "no key": body_of(b"\0", ZERO, ZERO),
    "key past the record": body_of(b"\0", ZERO, ZERO, varint(4), b"abc"),
    "key of 2 GiB": body_of(b"\0", ZERO, ZERO, varint(2**31 - 1), b"abc"),
    "no value": body_of(b"\0", ZERO, ZERO, NULL),
    "value past the record": body_of(b"\0", ZERO, ZERO, NULL, varint(4), b"abc"),
    "no header count": body_of(b"\0", ZERO, ZERO, NULL, NULL),
    "negative header count": body_of(b"\0", ZERO, ZERO, NULL, NULL, NULL),
    "more headers than bytes": body_of(b"\0", ZERO, ZERO, NULL, NULL, varint(2**31 - 1), field(b"k"), NULL),
    "no header key": body_of(b"\0", ZERO, ZERO, NULL, NULL, ONE),
    "negative header key": body_of(b"\0", ZERO, ZERO, NULL, NULL, ONE, NULL, NULL),
    "header key past the record": body_of(b"\0", ZERO, ZERO, NULL, NULL, ONE, varint(3), b"k"),
    "no header value": body_of(b"\0", ZERO, ZERO, NULL, NULL, ONE, field(b"k")),
    "header value past the record": body_of(b"\0", ZERO, ZERO, NULL, NULL, ONE, field(b"k"), varint(3), b"v"),
    "one header fewer than counted": body_of(b"\0", ZERO, ZERO, NULL, NULL, varint(2), field(b"k"), NULL),
    "bytes behind the last record": record() + b"\0",
    "a record more than counted": record(0) + record(1),
    "offset delta not zero": record(1),
    "offset delta negative": record(-1),
}
