"""What subscriptions come to: the topics that regular expressions match, and the hash of all that a group reads."""

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
    """The hashes of topics, computed once for as long as a topic stays as it is."""

    __slots__ = ("_hashes", "_topics")

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._hashes: dict[str, int] = {}

    def forget(self, names: Iterable[str]) -> None:
        """Topics have changed."""
        for name in names:
            self._hashes.pop(name, None)

    def of_topics(self, names: Iterable[str]) -> int:
        """The hash of all these topics together, those that do not exist left out; 0 if none does."""
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
    """The hash of a topic's id, name, partitions and their racks; what changes it makes groups assign anew."""
    data = bytearray(_HASH_VERSION)
    data += topic.id[7::-1]  # both halves of the id are numbers, the low byte first
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
    """Refuse what is not a regular expression of RE2."""
    compile_expression(regex, "SubscribedTopicRegex")


def resolve_regexes(
    regexes: Iterable[str], topics: Topics, context: RequestContext, now_ms: int
) -> dict[str, ResolvedRegex]:
    """The topics that each regular expression matches as a whole, of those that the member may know of."""
    names = list(topics.names())
    matched: dict[str, list[str]] = {}
    for regex in regexes:
        try:
            compiled = compile_expression(regex, "SubscribedTopicRegex")
        except KafkaError:
            # It came from a log: another implementation may have taken it.
            matched[regex] = []
            continue
        matched[regex] = [name for name in names if compiled.fullmatch(name) is not None]
    seen = dict.fromkeys(name for each in matched.values() for name in each)
    allowed = set(context.describable(list(seen)))
    return {
        regex: ResolvedRegex(frozenset(name for name in each if name in allowed), topics.version, now_ms)
        for regex, each in matched.items()
    }
