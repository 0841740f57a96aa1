"""The internal topics of Kafka Streams applications, which the broker creates when a heartbeat shows that they lack.

Why a topic could not be created is remembered for a while: it is told to the members, and not tried again before.
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
    """Creates internal topics, and knows which it could not create."""

    __slots__ = ("_cluster", "_errors")

    def __init__(self, cluster: BrokerRuntime) -> None:
        self._cluster = cluster
        self._errors: dict[str, tuple[str, int]] = {}  # why, and until when that is remembered; the oldest first

    def create(self, topics: Sequence[InternalTopic], remember_ms: int) -> None:
        """Create those that did not fail just now, in one request as Kafka does, which may be too much for one."""
        failed = self.errors(topic.name for topic in topics)
        wanted = [
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
            errors = self._cluster.add_topics(wanted)
        except KafkaError as error:
            errors = {topic.name: (error.code, error.message) for topic in wanted}
        for name, (code, message) in errors.items():
            self._remember(name, message or error_text(code) or code.name, remember_ms)

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
