"""The topology of a streams group (KIP-1071), resolved against the topics that exist.

From the subtopologies that a member names follow the tasks, the partitions of the internal topics, which of those are
missing, and what is wrong. Nothing is kept here and nothing created. Where several things are wrong or missing, Kafka
goes by the order of its hash maps, and so does this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cluster.names import validate_topic_name
from ottla.cluster.registrations import INTERNAL_TOPICS
from ottla.hashing.java import hash_map_order
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import k88_streams_group_heartbeat as k88
from ottla.protocol.messages import k89_streams_group_describe as k89
from ottla.protocol.record_schemas import group as rec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ottla.groups.environment import Topics

_TOPICS_TOLD: Final = 3


class StatusCode(IntEnum):
    """What a heartbeat's answer tells of the group besides the assignment."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class TopologyStatus(NamedTuple):
    """Why a topology cannot be run yet; the member reads the detail."""

    code: StatusCode
    detail: str


class _TopicsUnfitError(Exception):
    """The topics that exist do not fit; the status says how."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = TopologyStatus(code, detail)


@dataclass(slots=True, frozen=True)
class StreamsTopology:
    """The topology as the group's record has it; subtopologies by id, in the order in which Kafka goes through them."""

    epoch: int
    subtopologies: Mapping[str, rec.Subtopology]
    _readers: Mapping[str, rec.Subtopology] = field(repr=False, compare=False)

    @classmethod
    def of_record(cls, value: rec.StreamsGroupTopologyValue) -> StreamsTopology:
        """Of the record that keeps it. Kafka has no name for the error of an id that is there twice."""
        by_id = {each.subtopology_id: each for each in value.subtopologies}
        if len(by_id) < len(value.subtopologies):
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        ordered = {each: by_id[each] for each in hash_map_order(by_id)}
        return cls(value.epoch, ordered, {name: each for each in ordered.values() for name in _read(each)})

    def required_topics(self) -> frozenset[str]:
        """The topics whose partitions decide: all but the sinks, which are a source of another subtopology."""
        return frozenset(self._required())

    def reads(self, topic: str) -> bool:
        """Whether some subtopology reads it."""
        return topic in self._readers

    def subtopology_of(self, topic: str) -> rec.Subtopology | None:
        """The subtopology that reads it; of several, the last."""
        return self._readers.get(topic)

    def _required(self) -> Iterable[str]:
        for each in self.subtopologies.values():
            yield from _read(each)
            yield from (topic.name for topic in each.state_changelog_topics)


def _read(subtopology: rec.Subtopology) -> list[str]:
    """The topics that its tasks read."""
    return [*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics)]


@dataclass(slots=True, frozen=True)
class InternalTopic:
    """A repartition or changelog topic as it must be; without a replication factor, the broker's default is meant."""

    name: str
    partition_count: int
    replication_factor: int | None
    configs: Mapping[str, str]


@dataclass(slots=True, frozen=True)
class ConfiguredSubtopology:
    """A subtopology with its numbers: a task for each partition of its widest source."""

    task_count: int
    source_topics: tuple[str, ...]
    repartition_source_topics: Mapping[str, InternalTopic]
    repartition_sink_topics: tuple[str, ...]
    state_changelog_topics: Mapping[str, InternalTopic]

    @property
    def is_stateful(self) -> bool:
        """Whether its tasks have state, and so standby tasks a use."""
        return bool(self.state_changelog_topics)


@dataclass(slots=True, frozen=True)
class ConfiguredTopology:
    """A topology resolved: its subtopologies in the order of their ids, if the topics fit; what is missing or wrong."""

    epoch: int
    metadata_hash: int
    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    topics_to_create: tuple[InternalTopic, ...]
    status: TopologyStatus | None

    @property
    def is_ready(self) -> bool:
        """Whether tasks can be assigned."""
        return self.status is None


# What a member sends


def named_topics(topology: k88.Topology) -> list[str]:
    """Every topic that it names, once: those that the member must be allowed to describe."""
    return list(
        dict.fromkeys(
            name
            for each in topology.subtopologies
            for name in (
                *each.source_topics,
                *each.repartition_sink_topics,
                *(topic.name for topic in each.repartition_source_topics),
                *(topic.name for topic in each.state_changelog_topics),
            )
        )
    )


def check_names(topology: k88.Topology) -> None:
    """Refuse Kafka's own topics and what cannot be a topic's name. Comes before the ACLs."""
    names = named_topics(topology)
    prohibited = [name for name in names if name in INTERNAL_TOPICS]
    if prohibited:
        told = ",".join(prohibited)
        raise _invalid(f"Use of Kafka internal topics {told} in a Kafka Streams topology is prohibited.")
    wrong = [name for name in names if not _is_topic_name(name)]
    if wrong:
        raise _invalid(f"Topic names {','.join(wrong)} are not valid topic names.")


def validate(topology: k88.Topology) -> None:
    """Refuse changelog topics with a partition count: it follows from the sources."""
    for each in topology.subtopologies:
        for topic in each.state_changelog_topics:
            if topic.partitions:
                raise _invalid(
                    f"Changelog topic {topic.name} must have an undefined partition count, "
                    f"but it is set to {topic.partitions}."
                )


def record_of(topology: k88.Topology) -> rec.StreamsGroupTopologyValue:
    """The record that keeps it."""
    return rec.StreamsGroupTopologyValue(
        epoch=topology.epoch,
        subtopologies=[
            rec.Subtopology(
                subtopology_id=each.subtopology_id,
                source_topics=each.source_topics,
                source_topic_regex=each.source_topic_regex,
                state_changelog_topics=[_topic_record(topic) for topic in each.state_changelog_topics],
                repartition_sink_topics=each.repartition_sink_topics,
                repartition_source_topics=[_topic_record(topic) for topic in each.repartition_source_topics],
                copartition_groups=[
                    rec.CopartitionGroup(
                        source_topics=group.source_topics,
                        source_topic_regex=group.source_topic_regex,
                        repartition_source_topics=group.repartition_source_topics,
                    )
                    for group in each.copartition_groups
                ],
            )
            for each in topology.subtopologies
        ],
    )


def _topic_record(topic: k88.TopicInfo) -> rec.StreamsGroupTopologyTopicInfo:
    return rec.StreamsGroupTopologyTopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=[rec.TopicConfig(key=each.key, value=each.value) for each in topic.topic_configs],
    )


def _is_topic_name(name: str) -> bool:
    try:
        validate_topic_name(name)
    except KafkaError:
        return False
    return True


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


# What becomes of it


def configure(topology: StreamsTopology, topics: Topics, metadata_hash: int) -> ConfiguredTopology:
    """Resolve a topology; KafkaError if no topics could make it run."""
    try:
        subtopologies, to_create = _Resolution(topology, topics).resolve()
    except _TopicsUnfitError as error:
        return ConfiguredTopology(topology.epoch, metadata_hash, None, (), error.status)
    status = None
    if to_create:
        told = _told(each.name for each in to_create)
        status = TopologyStatus(StatusCode.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {told}")
    return ConfiguredTopology(topology.epoch, metadata_hash, subtopologies, to_create, status)


class _Resolution:
    """The partition counts, of topics that exist and of those decided on."""

    def __init__(self, topology: StreamsTopology, topics: Topics) -> None:
        self._topology = topology
        self._subtopologies = list(topology.subtopologies.values())
        self._topics = topics
        self._decided: dict[str, int] = {}

    def resolve(self) -> tuple[dict[str, ConfiguredSubtopology], tuple[InternalTopic, ...]]:
        copartitioned = [names for each in self._subtopologies for names in _copartition_groups(each)]
        self._require_sources()
        self._decided.update(self._repartition_counts())
        self._copartition(copartitioned)
        self._decided.update(self._changelog_counts())
        found = {each.subtopology_id: self._configured(each) for each in self._subtopologies}
        subtopologies = dict(sorted(found.items()))
        return subtopologies, self._missing(subtopologies)

    def _existing(self, name: str) -> int | None:
        topic = self._topics.by_name(name)
        return None if topic is None else topic.partition_count

    def _count(self, name: str) -> int:
        """How many partitions a source or repartition topic has; a topic that exists has what it has."""
        existing = self._existing(name)
        return self._decided[name] if existing is None else existing

    def _require_sources(self) -> None:
        missing = {name for each in self._subtopologies for name in each.source_topics if self._existing(name) is None}
        if missing:
            raise _TopicsUnfitError(
                StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_told(sorted(missing))} are missing."
            )

    def _repartition_counts(self) -> dict[str, int]:
        """As the topology fixes them, or as wide as what the subtopology that writes there reads."""
        sources = [topic for each in self._subtopologies for topic in each.repartition_source_topics]
        counts = {topic.name: topic.partitions for topic in sources if topic.partitions}
        readers: dict[str, list[int]] = {}
        for place, each in enumerate(self._subtopologies):
            for topic in each.repartition_source_topics:
                readers.setdefault(topic.name, []).append(place)
        # Kafka goes through all subtopologies again and again; this goes to those of which something has become known,
        # in the same order, because which counts are known in that moment decides.
        due = [(0, place) for place in range(len(self._subtopologies))]
        settled: set[int] = set()
        while due:
            turn, place = heappop(due)
            if place in settled:
                continue
            each = self._subtopologies[place]
            read = [counts[topic.name] for topic in each.repartition_source_topics if topic.name in counts]
            read += [self._count(name) for name in each.source_topics]
            if not read:
                continue
            settled.add(place)
            count = max(read)
            for sink in each.repartition_sink_topics:
                if sink not in counts:
                    counts[sink] = count
                    for reader in readers.get(sink, ()):
                        heappush(due, (turn if reader > place else turn + 1, reader))
        if any(sink not in counts for each in self._subtopologies for sink in each.repartition_sink_topics):
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics. "
                "There may be loops in the topology that cannot be resolved."
            )
        if any(topic.name not in counts for topic in sources):
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics, because "
                "a repartition source topic is never used as a sink topic."
            )
        return counts

    def _copartition(self, groups: Iterable[Sequence[str]]) -> None:
        """Give the repartition topics of each copartition group the count of its other topics."""
        sources = [topic for each in self._subtopologies for topic in each.repartition_source_topics]
        fixed = {topic.name for topic in sources if topic.partitions}
        flexible = {topic.name for topic in sources if not topic.partitions}
        fixed_count: int | None = None
        for names in groups:
            if not names:
                continue
            internal = {name: self._count(name) for name in names if name in fixed or name in flexible}
            external = {name: self._count(name) for name in names if name not in internal}
            if external:
                count = _same_count(external, external)
            elif fixed:  # those of other groups too, as Kafka has it; no group changes them
                if fixed_count is None:
                    fixed_count = _same_count({name: self._count(name) for name in fixed}, internal)
                count = fixed_count
            else:
                count = max(internal.values())
            for name, own in internal.items():
                if name in fixed and own != count:
                    raise _TopicsUnfitError(
                        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                        f"Number of partitions [{own}] of repartition topic [{name}] "
                        f"doesn't match number of partitions [{count}] of the source topic.",
                    )
                self._decided[name] = count

    def _changelog_counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for each in self._subtopologies:
            read = self._read_counts(each)
            if not read:
                raise _invalid(f"No source topics found for subtopology {each.subtopology_id}")
            counts.update((topic.name, max(read)) for topic in each.state_changelog_topics)
        return counts

    def _read_counts(self, subtopology: rec.Subtopology) -> list[int]:
        return [self._count(name) for name in _read(subtopology)]

    def _configured(self, subtopology: rec.Subtopology) -> ConfiguredSubtopology:
        task_count = max(self._read_counts(subtopology))
        if task_count < 1:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return ConfiguredSubtopology(
            task_count,
            tuple(sorted(set(subtopology.source_topics))),
            self._internal_topics(subtopology.repartition_source_topics),
            tuple(sorted(set(subtopology.repartition_sink_topics))),
            self._internal_topics(subtopology.state_changelog_topics),
        )

    def _internal_topics(self, infos: Sequence[rec.StreamsGroupTopologyTopicInfo]) -> dict[str, InternalTopic]:
        found = {}
        for info in infos:
            count = info.partitions or self._decided[info.name]
            configs = {each.key: each.value for each in info.topic_configs}
            # What a client made up, or told twice: Kafka fails on it without a name for the error.
            if count < 1 or info.name in found or len(configs) < len(info.topic_configs):
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
            configs = {key: configs[key] for key in hash_map_order(configs)}
            found[info.name] = InternalTopic(info.name, count, info.replication_factor or None, configs)
        return {name: found[name] for name in hash_map_order(found)}

    def _missing(self, subtopologies: Mapping[str, ConfiguredSubtopology]) -> tuple[InternalTopic, ...]:
        """The internal topics to create; one that exists must be as wide as it has to be."""
        internal: dict[str, InternalTopic] = {}
        for each in subtopologies.values():
            internal.update(each.repartition_source_topics)
            internal.update(each.state_changelog_topics)
        order = hash_map_order(internal)
        for name in hash_map_order(dict.fromkeys(self._topology._required())):
            existing, expected = self._existing(name), internal.get(name)
            if existing is None or expected is None:
                continue
            if existing != expected.partition_count:
                raise _TopicsUnfitError(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Existing topic {name} has different number of partitions: "
                    f"expected {expected.partition_count}, found {existing}",
                )
            del internal[name]
        return tuple(internal[name] for name in order if name in internal)


def _copartition_groups(subtopology: rec.Subtopology) -> list[list[str]]:
    """The names in each group, where the subtopology has indexes; Kafka has no name for the error of a wrong one."""
    sources, repartition = subtopology.source_topics, subtopology.repartition_source_topics
    groups = []
    for group in subtopology.copartition_groups:
        if not all(0 <= index < len(sources) for index in group.source_topics) or not all(
            0 <= index < len(repartition) for index in group.repartition_source_topics
        ):
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        names = [sources[index] for index in group.source_topics]
        names += [repartition[index].name for index in group.repartition_source_topics]
        groups.append(hash_map_order(dict.fromkeys(names)))
    return groups


def _same_count(counts: Mapping[str, int], told: Mapping[str, int]) -> int:
    """The count that all have, or the refusal that tells of some."""
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}={count}" for name, count in sorted(told.items()))
        raise _TopicsUnfitError(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{listed}}}]",
        )
    return next(iter(counts.values()))


def _told(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - _TOPICS_TOLD} additional topics" if len(listed) > _TOPICS_TOLD else ""
    return ", ".join(listed[:_TOPICS_TOLD]) + more


# What others are told


def described(topology: StreamsTopology | ConfiguredTopology) -> k89.Topology:
    """For StreamsGroupDescribe: a topology that is ready with its numbers, any other as it was sent."""
    if isinstance(topology, ConfiguredTopology):
        subtopologies = [
            _described(
                subtopology_id,
                each.source_topics,
                each.repartition_sink_topics,
                map(_described_internal, each.repartition_source_topics.values()),
                map(_described_internal, each.state_changelog_topics.values()),
            )
            for subtopology_id, each in (topology.subtopologies or {}).items()
        ]
    else:
        subtopologies = [
            _described(
                subtopology_id,
                each.source_topics,
                each.repartition_sink_topics,
                map(_described_info, each.repartition_source_topics),
                map(_described_info, each.state_changelog_topics),
            )
            for subtopology_id, each in sorted(topology.subtopologies.items())
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
        topic_configs=[k89.KeyValue(key=each.key, value=each.value) for each in topic.topic_configs],
    )


def endpoint_partitions(
    tasks: Mapping[str, Sequence[int]], configured: ConfiguredTopology, topics: Topics
) -> list[k88.TopicPartition]:
    """The partitions that tasks read, for the members that route queries; of a narrow topic as many as it has."""
    found = []
    for subtopology_id, partitions in tasks.items():
        subtopology = (configured.subtopologies or {}).get(subtopology_id)
        read = () if subtopology is None else (*subtopology.source_topics, *subtopology.repartition_source_topics)
        for name in hash_map_order(dict.fromkeys(read)):
            topic = topics.by_name(name)
            if topic is not None:
                found.append(k88.TopicPartition(topic=name, partitions=sorted(partitions)[: topic.partition_count]))
    return found
