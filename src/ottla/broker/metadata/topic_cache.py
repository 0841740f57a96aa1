"""Cache of encoded topic descriptions, for Metadata requests of all topics."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ottla.protocol.codec.wire import uvarint
from ottla.protocol.messages.k03_metadata import MetadataResponse, MetadataResponseTopic

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ottla.cluster.image import ImageChanges
    from ottla.protocol.schema import Uuid

FLEXIBLE = 9
KEPT_RESPONSES = 8


class TopicDescriptions:
    """Topics as Metadata shows them, encoded once per change, version and listener.

    The topics of a whole response are cached as well, until the next metadata change.
    """

    def __init__(self) -> None:
        self._topics: dict[Hashable, dict[Uuid, bytes]] = {}
        self._responses: OrderedDict[Hashable, tuple[int, int, bytes]] = OrderedDict()
        self.generation = 0
        """Grows with every change of the metadata."""

    def invalidate(self, changes: ImageChanges) -> None:
        """Drop the descriptions of changed topics, or all of them if brokers changed."""
        self.generation += 1
        if changes.brokers:
            self._topics.clear()
            return
        stale = {topic.id for topic in changes.deleted_topics} | {topic.id for topic, _, _, _ in changes.partitions}
        for encoded in self._topics.values():
            for topic_id in stale:
                encoded.pop(topic_id, None)

    def topics(self, view: Hashable) -> dict[Uuid, bytes]:
        """Return the encoded topics of a view (version, listener) by id, to read and to add to."""
        return self._topics.setdefault(view, {})

    def response(self, key: Hashable) -> tuple[int, bytes] | None:
        """Return the number of topics and their encoding for a view and a principal's rights, if still valid."""
        cached = self._responses.get(key)
        if cached is None or cached[0] != self.generation:
            return None
        return cached[1], cached[2]

    def keep_response(self, key: Hashable, generation: int, count: int, encoded: bytes) -> None:
        """Cache the topics of a response that was made from the metadata of a generation."""
        self._responses[key] = generation, count, encoded
        self._responses.move_to_end(key)
        while len(self._responses) > KEPT_RESPONSES:
            self._responses.popitem(last=False)


class EncodedMetadata:
    """A MetadataResponse with topics that are encoded already."""

    __slots__ = ("_count", "_head", "_topics")

    def __init__(self, head: MetadataResponse, count: int, topics: list[bytes]) -> None:
        self._head = head
        self._count = count
        self._topics = topics

    @property
    def throttle_time_ms(self) -> int:
        """Return the throttle time that quotas require."""
        return self._head.throttle_time_ms

    @throttle_time_ms.setter
    def throttle_time_ms(self, milliseconds: int) -> None:
        self._head.throttle_time_ms = milliseconds

    def encode_parts(self, version: int) -> list[Any]:
        """Encode the other fields and insert the encoded topics."""
        before, after = _around_topics(self._head, version)
        count = uvarint(self._count + 1) if version >= FLEXIBLE else self._count.to_bytes(4, "big")
        return [before + count, *self._topics, after]

    def decoded(self, version: int) -> MetadataResponse:
        """Return the same response as a message."""
        message: MetadataResponse = MetadataResponse.decode(b"".join(self.encode_parts(version)), version)
        return message


def encode_topics(topics: list[MetadataResponseTopic], version: int) -> bytes:
    """Encode at most 126 topics as elements of a response's array."""
    response = MetadataResponse()
    before, after = _around_topics(response, version)
    response.topics = topics
    return bytes(response.encode(version))[len(before) + _count_size(version) : -len(after) or None]


def _count_size(version: int) -> int:
    return 1 if version >= FLEXIBLE else 4


def _around_topics(head: MetadataResponse, version: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the array of topics in a response without topics."""
    body = bytes(head.encode(version))
    behind = (4 if 8 <= version <= 10 else 0) + (2 if version >= 13 else 0) + (1 if version >= FLEXIBLE else 0)
    end = len(body) - behind
    return body[: end - _count_size(version)], body[end:]
