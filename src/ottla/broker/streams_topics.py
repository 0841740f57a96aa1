"""Creates the internal topics of Kafka Streams applications when a heartbeat reports them missing.

The error of a failed creation is kept for a while: members are told, and the creation is not repeated before.
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
    """Creates internal topics and keeps the errors of those that failed."""

    __slots__ = ("_cluster", "_errors")

    def __init__(self, cluster: BrokerRuntime) -> None:
        self._cluster = cluster
        self._errors: dict[str, tuple[str, int]] = {}  # reason and expiry, the oldest first

    def create(self, topics: Sequence[InternalTopic], remember_ms: int) -> None:
        """Create the topics that did not fail recently, in one request as Kafka does."""
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
        """Return the errors of topics that failed recently."""
        now = self._cluster.world.clock.now_ms()
        found = {}
        for name in names:
            message, until_ms = self._errors.get(name, ("", 0))
            if until_ms > now:
                found[name] = message
        return found
