"""The topology of a streams group (KIP-1071): as a member sends it, as the record stores it, and as it is described.

`internal_topics` configures it for the topics that exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from ottla.cluster.internal_topics import INTERNAL_TOPICS
from ottla.cluster.topic_names import validate_topic_name
from ottla.hashing.java import hash_map_order
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import k88_streams_group_heartbeat as k88
from ottla.protocol.messages import k89_streams_group_describe as k89
from ottla.protocol.record_schemas import group as rec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ottla.groups.environment import Topics


class StatusCode(IntEnum):
    """The status codes of a StreamsGroupHeartbeat response (Kafka's StreamsGroupHeartbeatResponse.Status)."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class TopologyStatus(NamedTuple):
    """The reason why a topology is not ready, with a text for the member."""

    code: StatusCode
    detail: str


@dataclass(slots=True, frozen=True)
class StreamsTopology:
    """The topology of the group's record; subtopologies by id in Kafka's order."""

    epoch: int
    subtopologies: Mapping[str, rec.Subtopology]
    _readers: Mapping[str, rec.Subtopology] = field(repr=False, compare=False)

    @classmethod
    def from_record(cls, value: rec.StreamsGroupTopologyValue) -> StreamsTopology:
        """Return the topology of a record; raise UNKNOWN_SERVER_ERROR for a duplicate id, as Kafka does."""
        by_id = {subtopology.subtopology_id: subtopology for subtopology in value.subtopologies}
        if len(by_id) < len(value.subtopologies):
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        ordered = {name: by_id[name] for name in hash_map_order(by_id)}
        readers = {name: subtopology for subtopology in ordered.values() for name in read_topics(subtopology)}
        return cls(value.epoch, ordered, readers)

    def required_topics(self) -> frozenset[str]:
        """Return the topics whose partitions matter: all except sinks, which are sources of other subtopologies."""
        return frozenset(self._required())

    def reads(self, topic: str) -> bool:
        """Return whether a subtopology reads the topic."""
        return topic in self._readers

    def subtopology_of(self, topic: str) -> rec.Subtopology | None:
        """Return the subtopology that reads the topic; the last one if there are several."""
        return self._readers.get(topic)

    def _required(self) -> Iterable[str]:
        for subtopology in self.subtopologies.values():
            yield from read_topics(subtopology)
            yield from (topic.name for topic in subtopology.state_changelog_topics)


def read_topics(subtopology: rec.Subtopology) -> list[str]:
    """Return the topics that the tasks of a subtopology read."""
    return [*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics)]


@dataclass(slots=True, frozen=True)
class InternalTopic:
    """A repartition or changelog topic as it must be; without a replication factor the broker's default applies."""

    name: str
    partition_count: int
    replication_factor: int | None
    configs: Mapping[str, str]


@dataclass(slots=True, frozen=True)
class ConfiguredSubtopology:
    """A subtopology with its number of tasks: one per partition of its widest source topic."""

    task_count: int
    source_topics: tuple[str, ...]
    repartition_source_topics: Mapping[str, InternalTopic]
    repartition_sink_topics: tuple[str, ...]
    state_changelog_topics: Mapping[str, InternalTopic]

    @property
    def is_stateful(self) -> bool:
        """Whether the tasks have state, so that standby tasks make sense."""
        return bool(self.state_changelog_topics)


@dataclass(slots=True, frozen=True)
class ConfiguredTopology:
    """A topology configured for the existing topics: subtopologies in order of their ids, and what is missing."""

    epoch: int
    metadata_hash: int
    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    topics_to_create: tuple[InternalTopic, ...]
    status: TopologyStatus | None

    @property
    def is_ready(self) -> bool:
        """Whether tasks can be assigned."""
        return self.status is None


# The topology of a request


def named_topics(topology: k88.Topology) -> list[str]:
    """Return all topics of a topology, which the member must be allowed to describe."""
    return list(
        dict.fromkeys(
            name
            for subtopology in topology.subtopologies
            for name in (
                *subtopology.source_topics,
                *subtopology.repartition_sink_topics,
                *(topic.name for topic in subtopology.repartition_source_topics),
                *(topic.name for topic in subtopology.state_changelog_topics),
            )
        )
    )


def check_names(topology: k88.Topology) -> None:
    """Raise for internal and invalid topic names; checked before the ACLs."""
    names = named_topics(topology)
    prohibited = [name for name in names if name in INTERNAL_TOPICS]
    if prohibited:
        listed = ",".join(prohibited)
        raise invalid_topology(f"Use of Kafka internal topics {listed} in a Kafka Streams topology is prohibited.")
    wrong = [name for name in names if not _is_topic_name(name)]
    if wrong:
        raise invalid_topology(f"Topic names {','.join(wrong)} are not valid topic names.")


def validate(topology: k88.Topology) -> None:
    """Raise for changelog topics with a partition count, which follows from the sources."""
    for subtopology in topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
            if topic.partitions:
                raise invalid_topology(
                    f"Changelog topic {topic.name} must have an undefined partition count, "
                    f"but it is set to {topic.partitions}."
                )


def to_record(topology: k88.Topology) -> rec.StreamsGroupTopologyValue:
    """Return the record of a topology."""
    return rec.StreamsGroupTopologyValue(
        epoch=topology.epoch,
        subtopologies=[
            rec.Subtopology(
                subtopology_id=subtopology.subtopology_id,
                source_topics=subtopology.source_topics,
                source_topic_regex=subtopology.source_topic_regex,
                state_changelog_topics=[_topic_record(topic) for topic in subtopology.state_changelog_topics],
                repartition_sink_topics=subtopology.repartition_sink_topics,
                repartition_source_topics=[_topic_record(topic) for topic in subtopology.repartition_source_topics],
                copartition_groups=[
                    rec.CopartitionGroup(
                        source_topics=group.source_topics,
                        source_topic_regex=group.source_topic_regex,
                        repartition_source_topics=group.repartition_source_topics,
                    )
                    for group in subtopology.copartition_groups
                ],
            )
            for subtopology in topology.subtopologies
        ],
    )


def _topic_record(topic: k88.TopicInfo) -> rec.StreamsGroupTopologyTopicInfo:
    return rec.StreamsGroupTopologyTopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=[rec.TopicConfig(key=config.key, value=config.value) for config in topic.topic_configs],
    )


def _is_topic_name(name: str) -> bool:
    try:
        validate_topic_name(name)
    except KafkaError:
        return False
    return True


def invalid_topology(message: str) -> KafkaError:
    """Return STREAMS_INVALID_TOPOLOGY with a message."""
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


# Responses


def described(topology: StreamsTopology | ConfiguredTopology) -> k89.Topology:
    """Return the topology for StreamsGroupDescribe: with partition counts if it is ready, else as it was sent."""
    if isinstance(topology, ConfiguredTopology):
        subtopologies = [
            _described(
                subtopology_id,
                subtopology.source_topics,
                subtopology.repartition_sink_topics,
                map(_described_internal, subtopology.repartition_source_topics.values()),
                map(_described_internal, subtopology.state_changelog_topics.values()),
            )
            for subtopology_id, subtopology in (topology.subtopologies or {}).items()
        ]
    else:
        subtopologies = [
            _described(
                subtopology_id,
                subtopology.source_topics,
                subtopology.repartition_sink_topics,
                map(_described_info, subtopology.repartition_source_topics),
                map(_described_info, subtopology.state_changelog_topics),
            )
            for subtopology_id, subtopology in sorted(topology.subtopologies.items())
        ]
    return k89.Topology(epoch=topology.epoch, subtopologies=subtopologies)


def _described(
    subtopology_id: str,
    sources: Iterable[str],
    sinks: Iterable[str],
    repartition: Iterable[k89.TopicInfo],
    changelogs: Iterable[k89.TopicInfo],
) -> k89.Subtopology:
    return k89.Subtopology(
        subtopology_id=subtopology_id,
        source_topics=sorted(sources),
        repartition_sink_topics=sorted(sinks),
        repartition_source_topics=sorted(repartition, key=lambda topic: topic.name),
        state_changelog_topics=sorted(changelogs, key=lambda topic: topic.name),
    )


def _described_internal(topic: InternalTopic) -> k89.TopicInfo:
    return k89.TopicInfo(
        name=topic.name,
        partitions=topic.partition_count,
        replication_factor=topic.replication_factor or 0,
        topic_configs=[k89.KeyValue(key=key, value=value) for key, value in topic.configs.items()],
    )


def _described_info(topic: rec.StreamsGroupTopologyTopicInfo) -> k89.TopicInfo:
    return k89.TopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=[k89.KeyValue(key=config.key, value=config.value) for config in topic.topic_configs],
    )


def endpoint_partitions(
    tasks: Mapping[str, Sequence[int]], configured: ConfiguredTopology, topics: Topics
) -> list[k88.TopicPartition]:
    """Return the partitions that tasks read, for interactive queries; at most as many as each topic has."""
    read_partitions = []
    for subtopology_id, partitions in tasks.items():
        subtopology = (configured.subtopologies or {}).get(subtopology_id)
        read = () if subtopology is None else (*subtopology.source_topics, *subtopology.repartition_source_topics)
        for name in hash_map_order(dict.fromkeys(read)):
            topic = topics.by_name(name)
            if topic is not None:
                existing = sorted(partitions)[: topic.partition_count]
                read_partitions.append(k88.TopicPartition(topic=name, partitions=existing))
    return read_partitions
