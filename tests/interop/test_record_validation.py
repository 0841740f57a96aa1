"""Valid and invalid batches against Apache Kafka and `validate`: equal errors, equal stored bytes."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.records.batch import TimestampType, check_crc, iter_batches, read_header
from ottla.records.builder import build_batch
from ottla.records.compression import CompressionType
from ottla.records.control import ControlType, control_key
from ottla.records.errors import ErrorCode, InvalidRecords
from ottla.records.iterate import Record, iter_records
from ottla.records.validate import LogRules, validate
from tests.records.malformed import INVALID_BODIES, record, sealed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .apache_kafka import ApacheKafka
    from .java_client import JavaClients

pytestmark = pytest.mark.interop

CODECS = list(CompressionType)
HOUR = 3_600_000
SECONDS = 300.0  # what a wait must not take


class Answer(NamedTuple):
    code: int
    base_offset: int
    log_append_time: int
    failed_records: tuple[int, ...]


class RawProducer:
    """Sends Produce version 8 with whatever bytes it is given."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def produce(self, topic: str, data: bytes | bytearray) -> Answer:
        name = struct.pack(">h", len(topic)) + topic.encode()
        body = struct.pack(">hhihhhi", 0, 8, 1, -1, -1, -1, int(SECONDS * 1000))
        body += struct.pack(">i", 1) + name + struct.pack(">iii", 1, 0, len(data)) + data
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", self._file.read(4))
        response = self._file.read(size)
        position = 4 + 4 + len(name) + 4
        code, base_offset, log_append_time, errors = struct.unpack_from(">4xhqq8xi", response, position)
        position += 34
        failed = []
        for _ in range(errors):
            index, length = struct.unpack_from(">ih", response, position)
            failed.append(index)
            position += 6 + max(length, 0)
        return Answer(code, base_offset, log_append_time, tuple(failed))


class Topics(NamedTuple):
    node: ApacheKafka
    producer: RawProducer

    def ask(self, topic: str, data: bytes | bytearray) -> Answer:
        deadline = time.monotonic() + SECONDS
        while True:  # a topic that was just made may not have its leader yet
            response = self.producer.produce(f"v-{topic}", data)
            if response.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                return response
            assert time.monotonic() < deadline, (topic, response)
            time.sleep(0.02)

    def log(self, topic: str) -> bytes:
        return (self.node.log_dir / f"v-{topic}-0" / "00000000000000000000.log").read_bytes()


RULES = {
    "plain": LogRules(),
    "compacted": LogRules(compacted=True),
    "stamped": LogRules(timestamp_type=TimestampType.LOG_APPEND_TIME),
    "narrow": LogRules(timestamp_before_max_ms=4 * HOUR, timestamp_after_max_ms=2 * HOUR),
    "small": LogRules(max_message_bytes=300),
    "bytes": LogRules(),
    "bytes-stamped": LogRules(timestamp_type=TimestampType.LOG_APPEND_TIME),
    "read": LogRules(),
} | {f"to-{codec.name.lower()}": LogRules(compression=codec) for codec in CODECS}
CONFIGS = {
    "compacted": {"cleanup.policy": "compact"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "narrow": {"message.timestamp.before.max.ms": f"{4 * HOUR}", "message.timestamp.after.max.ms": f"{2 * HOUR}"},
    "small": {"max.message.bytes": "300"},
    "bytes-stamped": {"message.timestamp.type": "LogAppendTime"},
} | {f"to-{c.name.lower()}": {"compression.type": c.name.lower().replace("none", "uncompressed")} for c in CODECS}


@pytest.fixture(scope="module")
def topics(apache_kafka: ApacheKafka) -> Iterator[Topics]:
    admin = AdminClient({"bootstrap.servers": apache_kafka.bootstrap})
    made = admin.create_topics([NewTopic(f"v-{name}", 1, 1, config=CONFIGS.get(name, {})) for name in RULES])
    for future in made.values():
        future.result(SECONDS)
    with closing(RawProducer(apache_kafka.port)) as producer:
        yield Topics(apache_kafka, producer)


def ours(name: str, data: bytes | bytearray, now: int) -> tuple[int, tuple[int, ...]]:
    try:
        validate(data, RULES[name], now)
    except InvalidRecords as error:
        return int(error.code), tuple(record_error.batch_index for record_error in error.record_errors)
    return 0, ()


def case_batches(now: int) -> Iterator[tuple[str, str, bytes | bytearray]]:
    """Topic, name and bytes of every case."""
    at_now = {"base_timestamp": now, "max_timestamp": now}
    good = build_batch([Record(0, now, b"k", b"v"), Record(0, now + 1, None, None, (("h", b"x"), ("n", None)))])
    yield "plain", "good", good
    yield "plain", "two batches", good + good
    yield "plain", "incomplete second batch", good + good[:-1]
    yield "plain", "short tail", good + b"\xff" * 11
    yield "plain", "tail with a bad length", good + bytes(12)
    yield "plain", "cut off", good[:-1]
    yield "plain", "nothing", b""
    for magic in (0, 1, 3, 255):
        yield "plain", f"magic {magic}", good[:16] + bytes([magic]) + good[17:]
    for length in (-1, 0, 13, 20, 48):
        yield "plain", f"length {length}", good[:8] + struct.pack(">i", length) + good[12:]
    yield "plain", "bad crc", good[:-1] + bytes([good[-1] ^ 1])
    yield "plain", "base offset 1", sealed(record(), base_offset=1, **at_now)
    for last, count in ((-1, 0), (-2, 1), (0, 0), (0, -1), (0, 2), (1, 1)):
        yield (
            "plain",
            f"last {last} count {count}",
            sealed(record(), last_offset_delta=last, record_count=count, **at_now),
        )
    yield "plain", "control", sealed(record(key=control_key(ControlType.COMMIT)), attributes=0x20, **at_now)
    yield "plain", "no sequence", sealed(record(), producer_id=5, producer_epoch=0, **at_now)
    for codec in (5, 6, 7):
        yield "plain", f"codec {codec}", sealed(record(), attributes=codec, **at_now)
    for codec in CODECS[1:]:
        yield "plain", f"not {codec.name}", sealed(record(), attributes=codec, **at_now)
    yield "small", "too large", sealed(record(value=bytes(300)), **at_now)
    # Half an hour from each bound: the first answers of a slow machine are those of its last.
    for hours in (-4.5, -3.5, 0, 0.5, 1.5, 2.5):
        yield "plain", f"{hours} hours", sealed(record(timestamp_delta=int(hours * HOUR)), **at_now)
        yield "narrow", f"{hours} hours", sealed(record(timestamp_delta=int(hours * HOUR)), **at_now)
    for delta in (-(10**12), -now, -now - 2, 2**62, 2**63 - 1, -(2**63)):
        yield "plain", f"timestamp {delta}", sealed(record(timestamp_delta=delta), **at_now)
        yield "narrow", f"timestamp {delta}", sealed(record(timestamp_delta=delta), **at_now)
    yield "plain", "no timestamp", sealed(record(), base_timestamp=-1, max_timestamp=-1)
    for codec in CODECS:
        old = -5 * HOUR
        two = record(0, key=None, timestamp_delta=old) + record(1, timestamp_delta=old) + record(2)
        for topic in ("plain", "narrow", "compacted", "stamped"):
            yield topic, f"mixed {codec.name}", sealed(two, 3, codec, **at_now)
        for topic in ("plain", "stamped"):
            yield topic, f"client stamps {codec.name}", sealed(record(), codec=codec, attributes=codec | 8, **at_now)
        yield (
            "plain",
            f"client stamps nothing {codec.name}",
            sealed(record(), codec=codec, attributes=codec | 8, base_timestamp=now, max_timestamp=-1),
        )
        yield "plain", f"wrong maximum {codec.name}", sealed(record(), codec=codec, base_timestamp=now, max_timestamp=3)
        for name, body in INVALID_BODIES.items():
            yield "plain", f"{name} {codec.name}", sealed(body, codec=codec, **at_now)
        yield "plain", f"gap {codec.name}", sealed(record(0) + record(2), 2, codec, **at_now)
        yield "plain", f"one fewer {codec.name}", sealed(record(0) + record(1), 3, codec, **at_now)


# Kafka's answer where ours is INVALID_RECORD on purpose: it appends what cannot be read, or trips over it.
NONE, ZIPPED = ("NONE",), ("GZIP", "SNAPPY", "LZ4", "ZSTD")
DIFFERENT = {
    **dict.fromkeys([f"length too long {c}" for c in NONE], ErrorCode.UNKNOWN_SERVER_ERROR),
    **{
        f"{name} {c}": ErrorCode.NONE
        for c in NONE
        for name in ("offset delta not zero", "offset delta negative", "gap")
    },
    **{
        f"{name} {c}": ErrorCode.UNKNOWN_SERVER_ERROR
        for c in ZIPPED
        for name in ("offset delta not zero", "offset delta negative", "gap")
    },
    **{f"{name} {c}": ErrorCode.NONE for c in ZIPPED for name in ("length past the batch", "length below the fields")},
}


def test_both_accept_and_refuse_same_batches(topics: Topics) -> None:
    now = int(time.time() * 1000)
    unlike = {}
    for topic, name, data in case_batches(now):
        response = topics.ask(topic, data)
        theirs = (ErrorCode(response.code), response.failed_records)
        expected = ours(topic, data, now + 5)
        if theirs != expected:
            assert expected == (ErrorCode.INVALID_RECORD, ()), (topic, name, theirs, expected)
            unlike[name] = theirs[0]
    assert unlike == DIFFERENT


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_both_store_same_bytes(topics: Topics, codec: CompressionType) -> None:
    now = int(time.time() * 1000)
    for topic in ("bytes", "bytes-stamped"):
        data = build_batch([Record(0, now + i, b"k", b"v" * i, (("h", None),)) for i in range(20)], compression=codec)
        response = topics.ask(topic, data)
        assert response.code == 0
        stored = next(b for b in iter_batches(topics.log(topic)) if b.base_offset == response.base_offset)
        at = response.log_append_time if response.log_append_time >= 0 else now
        stamped = validate(data, RULES[topic], at).stamp(response.base_offset, stored.partition_leader_epoch)
        assert topics.log(topic)[stored.position : stored.end] == stamped


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("compression", CODECS, ids=lambda codec: f"to {codec.name.lower()}")
def test_both_recompress_to_topic_compression_type(
    topics: Topics, codec: CompressionType, compression: CompressionType
) -> None:
    now = int(time.time() * 1000)
    topic = f"to-{compression.name.lower()}"
    data = build_batch([Record(0, now + i, b"k", b"v" * 500) for i in range(200)], compression=codec)
    response = topics.ask(topic, data)
    assert response.code == 0
    log = topics.log(topic)
    stored = next(b for b in iter_batches(log) if b.base_offset == response.base_offset)
    valid = validate(data, RULES[topic], now)
    stamped = valid.stamp(response.base_offset, stored.partition_leader_epoch)
    mine = read_header(stamped)
    assert mine.compression == stored.compression == compression
    assert check_crc(log, stored)
    same = ("attributes", "base_offset", "last_offset_delta", "base_timestamp", "max_timestamp", "record_count")
    assert [getattr(mine, name) for name in same] == [getattr(stored, name) for name in same]
    assert list(iter_records(stamped)) == list(iter_records(log, stored))


def test_java_consumer_reads_built_batches(topics: Topics, java_clients: JavaClients) -> None:
    now = int(time.time() * 1000)
    sent = []
    for codec in CODECS:
        records = [
            Record(0, now, b"key", b"value" * 30_000, (("name", b"x"), ("name", None), ("", b""))),
            Record(0, now + 1, None, None),
            Record(0, now - 5, b"", b""),
        ]
        sent += records
        assert topics.ask("read", build_batch(records, compression=codec)).code == 0
    read = java_clients.read_all(topics.node.bootstrap, ["v-read"])
    assert [(r.key, r.value, r.headers, r.timestamp) for r in read] == [
        (r.key, r.value, r.headers, r.timestamp) for r in sent
    ]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_librdkafka_batches_are_read(topics: Topics, codec: CompressionType) -> None:
    name = f"v-librdkafka-{codec.name.lower()}"
    admin = AdminClient({"bootstrap.servers": topics.node.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS)
    settings = {"bootstrap.servers": topics.node.bootstrap, "compression.type": codec.name.lower(), "linger.ms": 50}
    producer = Producer(settings)
    sent = [
        Record(i, 1_700_000_000_000 + i, b"key %d" % i if i % 3 else None, b"value" * i, (("h", b"x"), ("n", None)))
        for i in range(200)
    ]
    for entry in sent:
        producer.produce(name, entry.value, entry.key, timestamp=entry.timestamp, headers=list(entry.headers))
    assert producer.flush(SECONDS) == 0
    log = topics.log(f"librdkafka-{codec.name.lower()}")
    batches = list(iter_batches(log))
    assert all(check_crc(log, header) for header in batches)
    assert codec in {header.compression for header in batches}
    assert [record for header in batches for record in iter_records(log, header)] == sent
