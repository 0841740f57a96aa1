"""The metadata hash of topics, against Kafka's, and regular expressions."""

from __future__ import annotations

import pytest

from ottla.groups.environment import RequestContext
from ottla.groups.subscriptions import TopicHashes, resolve_regexes, topic_hash, validate_regex
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.uuids import Uuid
from tests.groups.world import MemoryTopic, MemoryTopics

TOPIC = MemoryTopic(Uuid(bytes(range(16))), "topic", 3, ("r2", "r1"))


def test_topic_hash_equals_kafkas() -> None:
    # Computed with org.apache.kafka.coordinator.group.Utils of Apache Kafka 4.3.1.
    assert topic_hash(TOPIC) == -4857857808034958877 % 2**64
    other = MemoryTopic(Uuid(bytes(16)), "other", 1)
    hashes = TopicHashes(MemoryTopics({"topic": TOPIC, "other": other}))
    assert hashes.of_topics(["topic", "other", "missing"]) == 4615179598155300808
    assert hashes.of_topics(["missing"]) == 0


def test_changed_topic_is_hashed_again() -> None:
    topics = MemoryTopics({"topic": TOPIC})
    hashes = TopicHashes(topics)
    before = hashes.of_topics(["topic"])
    topics.topics["topic"] = MemoryTopic(TOPIC.id, "topic", 4, TOPIC.rack_names)
    assert hashes.of_topics(["topic"]) == before
    hashes.forget(["topic"])
    assert hashes.of_topics(["topic"]) != before


@pytest.mark.parametrize("regex", ["a(", "[", "*a", "(?<=a)b", r"\1", "a{1001}", "\\"])
def test_expression_that_re2_rejects_is_invalid(regex: str) -> None:
    with pytest.raises(KafkaError) as error:
        validate_regex(regex)
    assert error.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_invalid_loaded_expression_matches_nothing() -> None:
    topics = MemoryTopics({"topic": TOPIC}, version=9)
    result = resolve_regexes(["a(", "top.*"], topics, RequestContext(1), 5)
    assert result["a("].topics == frozenset()
    assert result["top.*"] == (frozenset({"topic"}), 9, 5)


def test_hostile_expression_takes_linear_time() -> None:
    topics = MemoryTopics({"a" * 249: MemoryTopic(TOPIC.id, "a" * 249, 1)})
    assert resolve_regexes(["(a+)+b"], topics, RequestContext(1), 0)["(a+)+b"].topics == frozenset()
