"""Requests to coordinators made of whatever their definitions allow, in any order: all are answered, and none trips.

What is drawn is often sensible, so that groups, transactions and shares come about, and often not: names of others,
numbers out of range, nothing where something is needed. OTTLA_HOSTILE_SEEDS runs more, OTTLA_HOSTILE_FIRST_SEED others.
"""

from __future__ import annotations

import logging
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from ottla.pending import Pending
from ottla.protocol.api import request_class, response_class, response_header_version
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import encode_request
from ottla.protocol.messages import k22_init_producer_id as k22
from ottla.protocol.messages import k24_add_partitions_to_txn as k24
from ottla.protocol.messages import k28_txn_offset_commit as k28
from ottla.protocol.messages import k78_share_fetch as k78
from ottla.protocol.messages import k90_describe_share_group_offsets as k90
from ottla.protocol.messages import k91_alter_share_group_offsets as k91
from ottla.protocol.messages.header import ResponseHeader
from ottla.protocol.schema import ZERO_UUID, Field, Message, Struct, Uuid
from ottla.records.builder import BatchBuilder
from tests.conversations.local_talk import CLIENT_ID, LENGTH, LocalTalk, written
from tests.conversations.shares.talk import ShareGroupTalk

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = int(os.environ.get("OTTLA_HOSTILE_SEEDS", "15"))
FIRST_SEED = int(os.environ.get("OTTLA_HOSTILE_FIRST_SEED", "0"))
STEPS = 200
APIS = (0, 8, 9, 11, 12, 13, 14, 15, 16, 22, 24, 25, 26, 27, 28, 42, 47, 61, 65, 66, 68, 69, 76, 77, 78, 79)
APIS += (83, 84, 85, 86, 87, 90, 91, 92)
OFTEN = (11, 14, 22, 26, 28, 68, 76, 78, 91)
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
}
SUBSCRIBED = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff"
SENSIBLE: dict[str, Any] = {
    "instance_id": None,
    "group_instance_id": None,
    "server_assignor": None,
    "subscribed_topic_regex": None,
    "rack_id": None,
    "rebalance_timeout_ms": 30_000,
    "session_timeout_ms": 30_000,
    "transaction_timeout_ms": 60_000,
    "max_bytes": 1 << 20,
    "max_records": 100,
    "batch_size": 100,
    "min_bytes": 1,
    "max_wait_ms": 100,
    "acks": -1,
    "protocol_type": "consumer",
    "protocol_name": "range",
    "retention_time_ms": -1,
    "subscribed_topic_names": ["t"],
}
NUMBERS = {
    "int8": (0, 1, 2, 3, 4, 5, -1, 127, -128),
    "int16": (0, 0, 1, 2, -1, 2**15 - 1, -(2**15)),
    "int32": (0, 0, 0, 1, 1, 2, 3, 4, -1, -2, 100, 30_000, 2**31 - 1, -(2**31)),
    "int64": (0, 0, 0, 1, 1, 2, 3, 4, -1, -2, 100, 30_000, 2**63 - 1, -(2**63)),
}


class Hostile:
    """Draws requests, from what is known of the answers."""

    def __init__(self, seed: int, topics: list[Uuid]) -> None:
        self.random = random.Random(seed)
        self._ids = [*topics, *topics, ZERO_UUID, Uuid(b"no such topic id")]
        self.members = ["m-1", "M" * 22, ""]
        self.producers = [0, 1, -1, 2**63 - 1]

    def request(self, key: int, version: int) -> Message:
        """A request of an API."""
        made = self._struct(request_class(key), version)
        assert isinstance(made, Message)
        return made

    def learn(self, response: Message) -> None:
        """Use ids that were given."""
        for known, name in ((self.members, "member_id"), (self.producers, "producer_id")):
            provided = getattr(response, name, None)
            if provided not in (None, "", -1):
                known.append(provided)
                del known[4:-6]

    def _struct(self, kind: type[Struct], version: int) -> Struct:
        fields = [field for field in kind.__schema__.fields if version in field.versions]
        return kind(**{field.name: self._value(field, version) for field in fields})

    def _value(self, field: Field, version: int) -> Any:
        draw = self.random
        if field.name in SENSIBLE and draw.random() < 0.85:
            value = SENSIBLE[field.name]
            if value is not None or version in field.nullable:
                return value
        if version in field.nullable and draw.random() < 0.05:
            return None
        if field.kind == "array":
            of = field.of
            count = draw.choice((0, 1, 1, 1, 2, 3))
            if isinstance(of, type):
                return [self._struct(of, version) for _ in range(count)]
            return [self._scalar(str(of), field.name) for _ in range(count)]
        if field.kind == "struct":
            assert isinstance(field.of, type)
            return self._struct(field.of, version)
        return self._scalar(field.kind, field.name)

    def _scalar(self, kind: str, name: str) -> Any:
        draw = self.random
        if kind in NUMBERS:
            return draw.choice(self.producers if name.endswith("producer_id") else NUMBERS[kind])
        if kind == "string":
            if "member" in name:
                return draw.choice(self.members)
            if "group" in name:
                return draw.choice(("g-1", "g-1", "g-2", "g-2", "g-3", "", "a\0\x07"))
            if "transactional" in name:
                return draw.choice(("x-1", "x-1", "x-2", "", "a\0\x07"))
            return draw.choice(("t", "t", "t", "u", "range", "none", "", "a\0\x07"))
        if kind == "bytes":
            return draw.choice((SUBSCRIBED, b"", b"junk", b"\xff" * 10))
        if kind == "uuid":
            return draw.choice(self._ids)
        if kind == "records":
            return self._batch()
        return draw.random() < 0.5

    def _batch(self) -> bytes:
        draw = self.random
        builder = BatchBuilder(
            producer_id=draw.choice(self.producers),
            producer_epoch=draw.choice((-1, 0, 1)),
            base_sequence=draw.choice((-1, 0, 1)),
            transactional=draw.random() < 0.5,
        )
        for _ in range(draw.randrange(1, 4)):
            builder.append(None, b"v", (), 1_700_000_000_000)
        return bytes(builder.build())


def read(parts: Any, key: int, version: int) -> Message:
    """An answer; nothing may be left behind it."""
    data = b"".join(written(part) for part in parts)
    _, position = ResponseHeader.decode_from(data, LENGTH.size, response_header_version(key, version))
    response, end = response_class(key).decode_from(data, position, version)
    assert end == len(data)
    return response


def begin(local: LocalTalk) -> ShareGroupTalk:
    """Have coordinators of every kind, and two topics."""
    talk = ShareGroupTalk(local, list, local.pause, share_logs=list)
    talk.find_coordinators()
    talk.create("t", 3)
    talk.create("u", 1)
    return talk


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_random_requests_are_answered_without_exception(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    verifies = {"transaction.partition.verification.enable": "true" if seed % 2 else "false"}
    local = LocalTalk({**SETTINGS, **verifies}, sync=seed % 3 == 0, seed=seed)
    talk = begin(local)
    hostile = Hostile(seed, [talk.topic_id("t"), talk.topic_id("u")])
    waiting: list[tuple[Message, Callable[[], Message | None]]] = []
    for _ in range(STEPS):
        key = hostile.random.choice((*APIS, *OFTEN))
        versions = local.versions[key]
        version = hostile.random.choice((versions[0], versions[-1], versions[-1]))
        request = hostile.request(key, version)
        if key == 0:
            request.acks = hostile.random.choice((-1, 1))  # type: ignore[attr-defined]
        frame = encode_request(key, version, 7, CLIENT_ID, request)
        response = local.ask_frame(frame)

        def read_now(response: Any = response, key: int = key, version: int = version) -> Message | None:
            if isinstance(response, Pending):
                return read(response.response, key, version) if response.done else None
            return read(response, key, version)

        waiting.append((request, read_now))
        if hostile.random.random() < 0.3:
            local.world.clock.advance(hostile.random.choice((0, 0.01, 0.5, 5, 40)))
        waiting = [entry for entry in waiting if not answered(entry[1], hostile)]
        assert tripped(caplog) == [], f"seed {seed}: {request}"
    local.world.clock.advance(600)
    assert [request for request, get in waiting if not answered(get, hostile)] == [], f"seed {seed}: no answer"
    # What it left behind can be read again.
    local.restart()
    talk.find_coordinators()
    local.world.clock.advance(5)
    assert tripped(caplog) == [], f"seed {seed}: after a restart"
    local.close()


def answered(get: Callable[[], Message | None], hostile: Hostile) -> bool:
    response = get()
    if response is not None:
        hostile.learn(response)
    return response is not None


def tripped(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as gone wrong. Kafka trips over markers of no producer, too, and ottla answers the same."""
    return [message for message in caplog.messages if not message.startswith("write_txn_markers")]


@pytest.mark.parametrize("start", [-(2**63), 2**63 - 1])
def test_share_group_with_maximum_start_offset_is_described(start: int) -> None:
    local = LocalTalk(SETTINGS)
    talk = begin(local)
    talk.alter_share_offsets("g-1", {"u": {0: start}})
    expected = k90.DescribeShareGroupOffsetsRequestTopic(topic_name="u", partitions=[0])
    group = k90.DescribeShareGroupOffsetsRequestGroup(group_id="g-1", topics=[expected])
    request = k90.DescribeShareGroupOffsetsRequest(groups=[group])
    (described,) = local.quietly(request, k90.DescribeShareGroupOffsetsResponse).groups
    assert described.error_code == 0
    assert described.topics[0].partitions[0].start_offset == start
    local.close()


def test_repeated_names_are_answered_as_in_kafka() -> None:
    """Partitions that are added are told as they were named; a topic of which some is refused comes once."""
    local = LocalTalk(SETTINGS)
    talk = begin(local)
    initialize = k22.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    producer = talk.patiently(lambda: local.quietly(initialize, k22.InitProducerIdResponse))
    topic = k24.AddPartitionsToTxnTopic(name="t", partitions=[0, 0, 1, 0])
    add = k24.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[topic],
    )
    (added,) = local.quietly(add, k24.AddPartitionsToTxnResponse, version=3).results_by_topic_v3_and_below
    assert [partition.partition_index for partition in added.results_by_partition] == [0, 0, 1, 0]
    partitions = [k28.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in (0, 9)]
    commit = k28.TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g-1",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[k28.TxnOffsetCommitRequestTopic(name="t", partitions=partitions)] * 2,
    )
    (committed,) = local.quietly(commit, k28.TxnOffsetCommitResponse).topics
    assert [(partition.partition_index, partition.error_code) for partition in committed.partitions] == [
        (9, 3),
        (9, 3),
        (0, 0),
        (0, 0),
    ]
    offsets = [
        k91.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=start_offset)
        for start_offset in (1, 2)
    ]
    alter = k91.AlterShareGroupOffsetsRequest(
        group_id="g-2", topics=[k91.AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=offsets)] * 2
    )
    (altered,) = local.quietly(alter, k91.AlterShareGroupOffsetsResponse).responses
    assert [(partition.partition_index, partition.error_code) for partition in altered.partitions] == [(0, 0)] * 4
    local.close()


def test_unknown_acquire_mode_is_refused() -> None:
    local = LocalTalk(SETTINGS)
    begin(local)
    request = k78.ShareFetchRequest(group_id="g-1", member_id="m-1", share_session_epoch=0, share_acquire_mode=9)
    assert local.quietly(request, k78.ShareFetchResponse).error_code == ErrorCode.INVALID_REQUEST
    local.close()
