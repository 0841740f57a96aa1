"""Creates the internal topics of Kafka Streams applications that a heartbeat reports as missing (KIP-1071).

The error of a failed creation is cached: members get it in their status, and the creation is not retried before it
expires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.k19_create_topics import CreatableTopic, CreatableTopicConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.broker.runtime import BrokerRuntime
    from ottla.groups.streams.topology import InternalTopic

_MOST_ERRORS: Final = 1_000


class StreamsTopics:
    """Creates internal topics and caches the errors of those that could not be created."""

    __slots__ = ("_errors", "_runtime")

    def __init__(self, runtime: BrokerRuntime) -> None:
        self._runtime = runtime
        self._errors: dict[str, tuple[str, int]] = {}  # message and expiry by topic; the oldest first

    def create(self, topics: Sequence[InternalTopic], error_ttl_ms: int) -> None:
        """Create topics without a cached error, in one request as Kafka does; cache the errors."""
        failed = self.errors(topic.name for topic in topics)
        requested = [
            CreatableTopic(
                name=topic.name,
                num_partitions=topic.partition_count,
                replication_factor=-1 if topic.replication_factor is None else topic.replication_factor,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()],
            )
            for topic in topics
            if topic.name not in failed
        ]
        try:
            errors = self._runtime.add_topics(requested)
        except KafkaError as error:
            errors = {topic.name: (error.code, error.message) for topic in requested}
        for name, (code, message) in errors.items():
            self._cache(name, message or error_text(code) or code.name, error_ttl_ms)

    def _cache(self, name: str, message: str, error_ttl_ms: int) -> None:
        self._errors.pop(name, None)
        while len(self._errors) >= _MOST_ERRORS:
            del self._errors[next(iter(self._errors))]
        self._errors[name] = (message, self._runtime.world.clock.now_ms() + error_ttl_ms)

    def errors(self, names: Iterable[str]) -> dict[str, str]:
        """Return the cached errors of topics by name."""
        now = self._runtime.world.clock.now_ms()
        cached = {}
        for name in names:
            message, expires_ms = self._errors.get(name, ("", 0))
            if expires_ms > now:
                cached[name] = message
        return cached
