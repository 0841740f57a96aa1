"""The hash of a group's topics, held to Kafka's own, and regular expressions."""

from __future__ import annotations

import pytest

from ottla.groups.environment import RequestContext
from ottla.groups.subscriptions import TopicHashes, resolve_regexes, topic_hash, validate_regex
from ottla.hashing.xxh3 import xxh3_64
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.uuids import Uuid
from tests.groups.world import MemoryTopic, MemoryTopics

# Length of bytes 3, 10, 17, ... and what hash4j's XXH3 gives for them, as a signed number.
XXH3 = {
    0: 3244421341483603138,
    1: 1433843135270481901,
    2: 2058273368586827884,
    3: -6266602912829716452,
    4: 7895465118229274323,
    7: -8177813798836339154,
    8: 6941064856527638883,
    9: -72226354546400344,
    15: -7007203045674962495,
    16: -5131753158909839995,
    17: 8163341949877205007,
    31: -1350609124411935565,
    32: 1873302701886544469,
    33: 4486878507168070088,
    63: 1392666320581687265,
    64: 2917965298538373825,
    65: -9038134159117547962,
    96: -1115511928276236477,
    97: 2137665177113230204,
    127: -7381504916640527093,
    128: 7440608504995537343,
    129: -4150982730466284604,
    150: -2099654248002752798,
    240: 7229805477010515663,
    241: -8364630114420064745,
    255: -5297528147452990407,
    256: 4339360625268998362,
    1023: -3284946428344021948,
    1024: -7241394453710343503,
    1025: -9192937061388044938,
    2048: -6060151295482384687,
    2049: 6174105427284153526,
    4097: -6548606585983356040,
    10000: -229423296946878931,
}


@pytest.mark.parametrize(("size", "expected"), XXH3.items())
def test_xxh3_is_the_one_that_kafka_uses(size: int, expected: int) -> None:
    assert xxh3_64(bytes((index * 7 + 3) & 255 for index in range(size))) == expected % 2**64


TOPIC = MemoryTopic(Uuid(bytes(range(16))), "topic", 3, ("r2", "r1"))


def test_a_topics_hash_is_kafkas() -> None:
    # Computed with org.apache.kafka.coordinator.group.Utils of Apache Kafka 4.3.1.
    assert topic_hash(TOPIC) == -4857857808034958877 % 2**64
    other = MemoryTopic(Uuid(bytes(16)), "other", 1)
    hashes = TopicHashes(MemoryTopics({"topic": TOPIC, "other": other}))
    assert hashes.of_topics(["topic", "other", "missing"]) == 4615179598155300808
    assert hashes.of_topics(["missing"]) == 0


def test_a_changed_topic_has_another_hash_once_the_old_one_is_forgotten() -> None:
    topics = MemoryTopics({"topic": TOPIC})
    hashes = TopicHashes(topics)
    before = hashes.of_topics(["topic"])
    topics.topics["topic"] = MemoryTopic(TOPIC.id, "topic", 4, TOPIC.rack_names)
    assert hashes.of_topics(["topic"]) == before
    hashes.forget(["topic"])
    assert hashes.of_topics(["topic"]) != before


@pytest.mark.parametrize("regex", ["a(", "[", "*a", "(?<=a)b", r"\1", "a{1001}", "\\"])
def test_what_re2_does_not_take_is_refused(regex: str) -> None:
    with pytest.raises(KafkaError) as error:
        validate_regex(regex)
    assert error.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_regular_expression_of_a_log_that_is_not_one_matches_nothing() -> None:
    topics = MemoryTopics({"topic": TOPIC}, version=9)
    found = resolve_regexes(["a(", "top.*"], topics, RequestContext(1), 5)
    assert found["a("].topics == frozenset()
    assert found["top.*"] == (frozenset({"topic"}), 9, 5)


def test_a_hostile_regular_expression_ends_soon() -> None:
    topics = MemoryTopics({"a" * 249: MemoryTopic(TOPIC.id, "a" * 249, 1)})
    assert resolve_regexes(["(a+)+b"], topics, RequestContext(1), 0)["(a+)+b"].topics == frozenset()
