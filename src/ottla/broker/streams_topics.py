"""The internal topics of Kafka Streams applications, which the broker creates when a heartbeat shows that they lack.

Why a topic could not be created is remembered for a while: it is told to the members, and not tried again before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.broker.cluster import Cluster
    from ottla.groups.streams_topology import InternalTopic

_MOST_ERRORS: Final = 1_000


class StreamsTopics:
    """Creates internal topics, and knows which it could not create."""

    __slots__ = ("_cluster", "_errors")

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._errors: dict[str, tuple[str, int]] = {}  # why, and until when that is remembered; the oldest first

    def create(self, topics: Sequence[InternalTopic], remember_ms: int) -> None:
        """Create those that did not fail just now."""
        failed = self.errors(topic.name for topic in topics)
        for topic in topics:
            if topic.name in failed:
                continue
            try:
                self._cluster.create_topic(
                    topic.name,
                    topic.partition_count,
                    -1 if topic.replication_factor is None else topic.replication_factor,
                    topic.configs,
                )
            except KafkaError as error:
                self._remember(topic.name, error.message or error_text(error.code) or error.code.name, remember_ms)

    def _remember(self, name: str, message: str, remember_ms: int) -> None:
        self._errors.pop(name, None)
        while len(self._errors) >= _MOST_ERRORS:
            del self._errors[next(iter(self._errors))]
        self._errors[name] = (message, self._cluster.world.clock.now_ms() + remember_ms)

    def errors(self, names: Iterable[str]) -> dict[str, str]:
        """Why topics could not be created, of those that failed not long ago."""
        now = self._cluster.world.clock.now_ms()
        found = {}
        for name in names:
            message, until_ms = self._errors.get(name, ("", 0))
            if until_ms > now:
                found[name] = message
        return found
