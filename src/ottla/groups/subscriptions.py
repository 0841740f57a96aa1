"""Subscriptions: the topics that regular expressions match, and the metadata hash of the subscribed topics."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ottla.cluster.expressions import compile_expression
from ottla.groups.consumer.group import ResolvedRegex
from ottla.hashing.xxh3 import xxh3_64
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.groups.environment import RequestContext, Topic, Topics

_INT32: Final = struct.Struct("<i")
_HASH_VERSION: Final = b"\x00"


class TopicHashes:
    """The hashes of topics, cached until a topic changes (Kafka's topicHashCache)."""

    __slots__ = ("_hashes", "_topics")

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._hashes: dict[str, int] = {}

    def forget(self, names: Iterable[str]) -> None:
        """Remove changed topics from the cache."""
        for name in names:
            self._hashes.pop(name, None)

    def of_topics(self, names: Iterable[str]) -> int:
        """Return the metadata hash of existing topics together; 0 if none exists."""
        hashes = []
        for name in sorted(names):
            topic = self._topics.by_name(name)
            if topic is None:
                continue
            hashed = self._hashes.get(name)
            if hashed is None:
                hashed = self._hashes[name] = topic_hash(topic)
            hashes.append(hashed)
        if not hashes:
            return 0
        return _signed(xxh3_64(struct.pack(f"<{len(hashes)}Q", *hashes)))


def topic_hash(topic: Topic) -> int:
    """Return the hash of a topic's id, name, partitions and racks; a change makes groups bump their epoch."""
    data = bytearray(_HASH_VERSION)
    data += topic.id[7::-1]  # Java stores both halves of the id little-endian
    data += topic.id[:7:-1]
    data += _text(topic.name)
    data += _INT32.pack(topic.partition_count)
    for partition in range(topic.partition_count):
        data += _INT32.pack(partition)
        for rack in sorted(topic.racks(partition)):
            data += _INT32.pack(len(rack))
            data += _text(rack)
    return xxh3_64(bytes(data))


def _text(text: str) -> bytes:
    encoded = text.encode("utf-16-le", "surrogatepass")
    return encoded + _INT32.pack(len(encoded) // 2)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def validate_regex(regex: str) -> None:
    """Raise INVALID_REGULAR_EXPRESSION unless RE2 compiles the expression."""
    compile_expression(regex, "SubscribedTopicRegex")


def resolve_regexes(
    regexes: Iterable[str], topics: Topics, context: RequestContext, now_ms: int
) -> dict[str, ResolvedRegex]:
    """Return the topics that each expression matches as a whole and that the member may describe."""
    names = list(topics.names())
    matched: dict[str, list[str]] = {}
    for regex in regexes:
        try:
            compiled = compile_expression(regex, "SubscribedTopicRegex")
        except KafkaError:
            # Loaded from a log: another implementation may have accepted it.
            matched[regex] = []
            continue
        matched[regex] = [name for name in names if compiled.fullmatch(name) is not None]
    seen = dict.fromkeys(name for matches in matched.values() for name in matches)
    allowed = set(context.describable(list(seen)))
    return {
        regex: ResolvedRegex(frozenset(name for name in matches if name in allowed), topics.version, now_ms)
        for regex, matches in matched.items()
    }
