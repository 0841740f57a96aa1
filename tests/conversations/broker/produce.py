"""Produce: every rule that a batch can break, acks, topics that are not there, idempotence."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.schema import Uuid
from ottla.records.builder import build_batch
from ottla.records.compression import CompressionType
from ottla.records.iterate import Record
from tests.records.malformed import INVALID_BODIES, NOW, record, sealed

from . import script

if TYPE_CHECKING:
    from tests.conversations.side_by_side import Talk

WORDS = ("error_message", "batch_index_error_message")
NOBODY = Uuid(b"nobody has this!")
HOUR = 3_600_000


def batch(count: int = 1, *, timestamp: int = NOW, key: bytes | None = b"k", **options: int) -> bytes:
    records = [Record(0, timestamp + index, key, b"value %d" % index) for index in range(count)]
    return bytes(build_batch(records, **options))  # type: ignore[arg-type]


def produce(
    name: str, *batches: bytes, version: int = 12, acks: int = -1, topic_id: Uuid | None = None, first: int = 0
) -> ProduceRequest:
    topic = TopicProduceData(
        partition_data=[PartitionProduceData(index=first + index, records=batch) for index, batch in enumerate(batches)]
    )
    if version >= 13:
        assert topic_id is not None
        topic.topic_id = topic_id
    else:
        topic.name = name
    return ProduceRequest(acks=acks, timeout_ms=20_000, topic_data=[topic])


@script()
def produce_versions(talk: Talk) -> None:
    topic_id = talk.create("t", 2)
    for version in range(3, 14):
        for label, data in (
            ("good", [batch(2), batch(1)]),
            ("one of two", [batch(1), b""]),
            ("zstd", [batch(1, compression=CompressionType.ZSTD)]),
        ):
            talk.ask(
                f"{label} v{version}",
                produce("t", *data, version=version, topic_id=topic_id),
                ProduceResponse,
                version=version,
                unordered=("partition_responses",),
                own_words=WORDS,
            )
        for label, name, other in (("unknown topic", "nowhere", NOBODY), ("unknown partition", "t", topic_id)):
            talk.ask(
                f"{label} v{version}",
                produce(name, batch(), version=version, topic_id=other, first=7),
                ProduceResponse,
                version=version,
                own_words=WORDS,
            )
    for version in (0, 1, 2):
        frame = bytes(2) + version.to_bytes(2, "big") + (9).to_bytes(4, "big") + b"\xff\xff"
        talk.ask_bytes(f"v{version}", frame + b"\xff\xff" + (1000).to_bytes(4, "big") + (0).to_bytes(4, "big"))


@script()
def produce_acks(talk: Talk) -> None:
    talk.create("t")
    talk.create("two", min_insync_replicas="2")
    for acks in (-1, 1, 2, -2, 32767):
        talk.ask(f"acks {acks}", produce("t", batch(), acks=acks), ProduceResponse, version=12, own_words=WORDS)
    talk.ask("too few replicas", produce("two", batch()), ProduceResponse, version=12, own_words=WORDS)
    talk.ask("too few replicas with acks 1", produce("two", batch(), acks=1), ProduceResponse, version=12)
    talk.tell("acks 0", produce("t", batch(), acks=0), version=12)
    talk.tell("acks 0, unknown topic", produce("nowhere", batch(), acks=0), version=12)
    talk.tell("acks 0, bad batch", produce("t", b"\x00" * 70, acks=0), version=12)
    talk.tell("acks 0, too few replicas", produce("two", batch(), acks=0), version=12)
    talk.tell("acks 0, one good one bad", produce("t", batch(), batch(), acks=0), version=12)
    talk.ask("and then", produce("t", batch()), ProduceResponse, version=12)
    talk.ask("nothing", ProduceRequest(acks=-1, timeout_ms=1000), ProduceResponse, version=12)
    talk.tell("nothing with acks 0", ProduceRequest(acks=0, timeout_ms=1000), version=12)
    talk.ask("a topic without partitions", produce("t"), ProduceResponse, version=12)
    twice = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch())]),
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch())]),
        ],
    )
    response = talk.quietly(twice, ProduceResponse, version=12)
    talk.note("one partition twice", [[p.error_code for p in t.partition_responses] for t in response.responses])


DELTAS = "Kafka does not look at offset deltas of uncompressed records; here they must count up"
TRIPS = "Kafka trips over it with UNKNOWN_SERVER_ERROR; here it is INVALID_RECORD"
UNREADABLE = "Kafka lets through what no consumer can read; here it is INVALID_RECORD"


@script(differs={"length too large": TRIPS})
def produce_validation(talk: Talk) -> None:
    talk.create("t")
    good = sealed(record())
    legacy = bytearray(80)
    legacy[11] = 68
    # Null records are not sent: Apache Kafka 4.3.1 trips over them and never answers.
    table: dict[str, bytes | bytearray] = {
        "empty": b"",
        "too short for a header": good[:40],
        "cut off": good[:-1],
        "a byte more": bytes(good) + b"\0",
        "a header more": bytes(good) + bytes(61),
        "two batches": bytes(good) + bytes(sealed(record())),
        "magic 0": bytes(legacy),
        "magic 1": bytes(legacy[:16]) + b"\x01" + bytes(legacy[17:]),
        "magic 3": bytes(good[:16]) + b"\x03" + bytes(good[17:]),
        "magic -1": bytes(good[:16]) + b"\xff" + bytes(good[17:]),
        "length 0": bytes(good[:8]) + bytes(4) + bytes(good[12:]),
        "length -1": bytes(good[:8]) + b"\xff" * 4 + bytes(good[12:]),
        "length 20": bytes(good[:8]) + b"\x00\x00\x00\x14" + bytes(good[12:]),
        "length too large": bytes(good[:8]) + b"\x7f\xff\xff\xff" + bytes(good[12:]),
        "wrong CRC": bytes(good[:17]) + b"\x00\x00\x00\x01" + bytes(good[21:]),
        "base offset 5": sealed(record(), base_offset=5),
        "base offset -1": sealed(record(), base_offset=-1),
        "count 0": sealed(b"", 0),
        "count -1": sealed(record(), record_count=-1),
        "count 2": sealed(record(), record_count=2),
        "count a million": sealed(record(), record_count=1_000_000, last_offset_delta=999_999),
        "last offset delta -1": sealed(record(), last_offset_delta=-1),
        "last offset delta 5": sealed(record(), last_offset_delta=5),
        "control": sealed(record(), attributes=0x20),
        "log append time": sealed(record(), attributes=0x08),
        "delete horizon": sealed(record(), attributes=0x40),
        "unknown attributes": sealed(record(), attributes=0x100),
        "codec 5": sealed(record(), attributes=5),
        "codec 7": sealed(record(), attributes=7),
        "gzip of no gzip": sealed(record(), attributes=1),
        "lz4 of no lz4": sealed(record(), attributes=3),
        "zstd of no zstd": sealed(record(), attributes=4),
        "producer without sequence": sealed(record(), producer_id=7, producer_epoch=0),
        "sequence without producer": sealed(record(), base_sequence=7),
        "sequence -2": sealed(record(), producer_id=7, producer_epoch=0, base_sequence=-2),
        "producer epoch -1": sealed(record(), producer_id=7, base_sequence=0),
        "transactional without an id": sealed(
            record(), attributes=0x10, producer_id=7, producer_epoch=0, base_sequence=0
        ),
        "transactional without a producer": sealed(record(), attributes=0x10),
        "negative timestamp": sealed(record(), base_timestamp=-5, max_timestamp=-5),
        "no timestamp": sealed(record(), base_timestamp=-1, max_timestamp=-1),
        "another max timestamp": sealed(record(), max_timestamp=NOW + 5),
        "leader epoch 9": sealed(record(), partition_leader_epoch=9),
    }
    for label, data in table.items():
        talk.ask(label, produce("t", bytes(data)), ProduceResponse, version=12, own_words=WORDS)
    # The log has grown by what was let through; so it must have on both sides.
    talk.ask("the log", produce("t", batch()), ProduceResponse, version=12)


@script(
    differs={
        "plain: length too long": TRIPS,
        "plain: offset delta not zero": DELTAS,
        "plain: offset delta negative": DELTAS,
        "gzip: length past the batch": UNREADABLE,
        "gzip: length below the fields": UNREADABLE,
        "gzip: offset delta not zero": TRIPS,
        "gzip: offset delta negative": TRIPS,
    }
)
def produce_malformed_records(talk: Talk) -> None:
    for codec, name in ((0, "plain"), (1, "gzip")):
        talk.create(f"malformed-{name}")
        for label, body in INVALID_BODIES.items():
            request = produce(f"malformed-{name}", bytes(sealed(body, codec=codec)))
            response = talk.quietly(request, ProduceResponse, version=12).responses[0].partition_responses[0]
            talk.note(f"{name}: {label}", response.error_code)


@script()
def produce_topic_rules(talk: Talk) -> None:
    now = int(time.time() * 1000)
    talk.create("compacted", cleanup_policy="compact")
    talk.create("stamped", message_timestamp_type="LogAppendTime")
    talk.create("bounded", message_timestamp_before_max_ms=str(HOUR), message_timestamp_after_max_ms=str(HOUR))
    talk.create("small", max_message_bytes="100")
    talk.create("gzipped", compression_type="gzip")
    talk.create("plain", compression_type="uncompressed")

    def ask(label: str, topic: str, data: bytes) -> None:
        talk.ask(label, produce(topic, data), ProduceResponse, version=12, own_words=WORDS)

    ask("compacted with keys", "compacted", batch(2))
    ask("compacted without keys", "compacted", batch(2, key=None))
    mixed = bytes(build_batch([Record(0, NOW, b"k", b"v"), Record(0, NOW, None, b"v"), Record(0, NOW, b"", None)]))
    ask("compacted with some keys", "compacted", mixed)
    ask("stamped", "stamped", batch(2))
    ask("stamped by the producer", "stamped", bytes(sealed(record(), attributes=0x08)))
    ask("in time", "bounded", batch(2, timestamp=now))
    ask("too old", "bounded", batch(2, timestamp=now - 2 * HOUR))
    ask("too new", "bounded", batch(2, timestamp=now + 2 * HOUR))
    ask("no timestamp", "bounded", batch(1, timestamp=-1))
    ask("far future where an hour is allowed", "plain", batch(1, timestamp=now + 2 * HOUR))
    ask("too large", "small", batch(20))
    ask("small enough", "small", batch(1))
    ask("too large but compressed", "small", batch(20, compression=CompressionType.GZIP))
    for codec in CompressionType:
        ask(f"{codec.name} to gzip", "gzipped", batch(3, compression=codec))
        ask(f"{codec.name} to plain", "plain", batch(3, compression=codec))
    for topic in ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"):
        ask(f"to {topic}", topic, batch(1))


def a_producer(talk: Talk) -> tuple[int, int]:
    """A fresh producer id and its epoch; a broker that has just started may have none at hand yet."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    response = InitProducerIdResponse()

    def given() -> bool:
        nonlocal response
        response = talk.quietly(request, InitProducerIdResponse)
        return response.error_code == ErrorCode.NONE

    talk.wait_until(given, "no producer id was given")
    return response.producer_id, response.producer_epoch


@script()
def produce_idempotence(talk: Talk) -> None:
    talk.create("t", 2)
    producer, epoch = a_producer(talk)

    def ask(label: str, sequence: int, count: int = 1, *, bump: int = 0, of: int = 0, partition: int = 0) -> None:
        data = batch(count, producer_id=producer + of, producer_epoch=epoch + bump, base_sequence=sequence)
        talk.ask(label, produce("t", data, first=partition), ProduceResponse, version=12, own_words=WORDS)

    ask("first", 0, 2)
    ask("first again", 0, 2)
    ask("second", 2, 3)
    ask("a gap", 7)
    ask("third", 5)
    ask("first, still known", 0, 2)
    ask("fourth", 6)
    ask("fifth", 7)
    ask("sixth", 8)
    ask("first, forgotten", 0, 2)
    ask("fifth again", 7)
    ask("an overlap", 8, 2)
    ask("half of what was sent", 2, 2)
    ask("next epoch not at zero", 9, bump=1)
    ask("next epoch", 0, bump=1)
    ask("last epoch", 9)
    ask("next epoch goes on", 1, bump=1)
    ask("an epoch skipped", 0, bump=5)
    ask("other partition not at zero", 5, partition=1)
    ask("a stranger at zero", 0, of=100_000)
    ask("a stranger not at zero", 5, of=200_000)
    data = batch(2, producer_id=producer + 300_000, producer_epoch=0, base_sequence=2**31 - 1)
    talk.ask("a sequence that wraps", produce("t", data), ProduceResponse, version=12, own_words=WORDS)
    data = batch(1, producer_id=producer + 300_000, producer_epoch=0, base_sequence=1)
    talk.ask("behind the wrap", produce("t", data), ProduceResponse, version=12, own_words=WORDS)
