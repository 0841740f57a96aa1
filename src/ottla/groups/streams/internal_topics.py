"""Configuration of a topology for the topics that exist: tasks and internal topics (Kafka's InternalTopicManager).

Nothing is stored or created here. Where several things are missing or wrong, the result follows the order of Kafka's
hash maps.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from ottla.groups.streams.topology import (
    ConfiguredSubtopology,
    ConfiguredTopology,
    InternalTopic,
    StatusCode,
    StreamsTopology,
    TopologyStatus,
    invalid_topology,
    read_topics,
)
from ottla.hashing.java import hash_map_order
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ottla.groups.environment import Topics
    from ottla.protocol.record_schemas import group as rec

_MAX_LISTED_TOPICS: Final = 3


class _NotReadyError(Exception):
    """Raised when the existing topics do not fit the topology."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = TopologyStatus(code, detail)


def configure(topology: StreamsTopology, topics: Topics, metadata_hash: int) -> ConfiguredTopology:
    """Configure a topology; raise KafkaError if it is invalid for any topics (Kafka's InternalTopicManager)."""
    try:
        subtopologies, to_create = _Resolution(topology, topics).resolve()
    except _NotReadyError as error:
        return ConfiguredTopology(topology.epoch, metadata_hash, None, (), error.status)
    status = None
    if to_create:
        names = _first_names(topic.name for topic in to_create)
        status = TopologyStatus(StatusCode.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {names}")
    return ConfiguredTopology(topology.epoch, metadata_hash, subtopologies, to_create, status)


class _Resolution:
    """The partition counts of existing topics and of the internal topics that have been decided."""

    def __init__(self, topology: StreamsTopology, topics: Topics) -> None:
        self._topology = topology
        self._subtopologies = list(topology.subtopologies.values())
        self._topics = topics
        self._decided: dict[str, int] = {}

    def resolve(self) -> tuple[dict[str, ConfiguredSubtopology], tuple[InternalTopic, ...]]:
        copartitioned = [names for subtopology in self._subtopologies for names in _copartition_groups(subtopology)]
        self._require_sources()
        self._decided.update(self._repartition_counts())
        self._copartition(copartitioned)
        self._decided.update(self._changelog_counts())
        configured = {subtopology.subtopology_id: self._configured(subtopology) for subtopology in self._subtopologies}
        subtopologies = dict(sorted(configured.items()))
        return subtopologies, self._missing(subtopologies)

    def _existing(self, name: str) -> int | None:
        topic = self._topics.by_name(name)
        return None if topic is None else topic.partition_count

    def _count(self, name: str) -> int:
        """Return the partition count of a source or repartition topic; that of an existing topic wins."""
        existing = self._existing(name)
        return self._decided[name] if existing is None else existing

    def _require_sources(self) -> None:
        missing = {
            name
            for subtopology in self._subtopologies
            for name in subtopology.source_topics
            if self._existing(name) is None
        }
        if missing:
            raise _NotReadyError(
                StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_first_names(sorted(missing))} are missing."
            )

    def _repartition_counts(self) -> dict[str, int]:
        """Return the counts that the topology sets, or the widest source of the subtopology that writes the topic."""
        sources = [topic for subtopology in self._subtopologies for topic in subtopology.repartition_source_topics]
        counts = {topic.name: topic.partitions for topic in sources if topic.partitions}
        readers: dict[str, list[int]] = {}
        for index, subtopology in enumerate(self._subtopologies):
            for topic in subtopology.repartition_source_topics:
                readers.setdefault(topic.name, []).append(index)
        # Kafka repeats over all subtopologies. This visits those with a new input, in the same order, because the
        # result depends on the counts that are known at each visit.
        due = [(0, index) for index in range(len(self._subtopologies))]
        settled: set[int] = set()
        while due:
            turn, index = heappop(due)
            if index in settled:
                continue
            subtopology = self._subtopologies[index]
            repartition_sources = subtopology.repartition_source_topics
            read = [counts[topic.name] for topic in repartition_sources if topic.name in counts]
            read += [self._count(name) for name in subtopology.source_topics]
            if not read:
                continue
            settled.add(index)
            count = max(read)
            for sink in subtopology.repartition_sink_topics:
                if sink not in counts:
                    counts[sink] = count
                    for reader in readers.get(sink, ()):
                        heappush(due, (turn if reader > index else turn + 1, reader))
        if any(
            sink not in counts for subtopology in self._subtopologies for sink in subtopology.repartition_sink_topics
        ):
            raise invalid_topology(
                "Failed to compute number of partitions for all repartition topics. "
                "There may be loops in the topology that cannot be resolved."
            )
        if any(topic.name not in counts for topic in sources):
            raise invalid_topology(
                "Failed to compute number of partitions for all repartition topics, because "
                "a repartition source topic is never used as a sink topic."
            )
        return counts

    def _copartition(self, groups: Iterable[Sequence[str]]) -> None:
        """Give the repartition topics of each copartition group the partition count of its other topics."""
        sources = [topic for subtopology in self._subtopologies for topic in subtopology.repartition_source_topics]
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
            elif fixed:  # those of other groups too, as in Kafka; no group changes them
                if fixed_count is None:
                    fixed_count = _same_count({name: self._count(name) for name in fixed}, internal)
                count = fixed_count
            else:
                count = max(internal.values())
            for name, own in internal.items():
                if name in fixed and own != count:
                    raise _NotReadyError(
                        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                        f"Number of partitions [{own}] of repartition topic [{name}] "
                        f"doesn't match number of partitions [{count}] of the source topic.",
                    )
                self._decided[name] = count

    def _changelog_counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for subtopology in self._subtopologies:
            read = self._read_counts(subtopology)
            if not read:
                raise invalid_topology(f"No source topics found for subtopology {subtopology.subtopology_id}")
            counts.update((topic.name, max(read)) for topic in subtopology.state_changelog_topics)
        return counts

    def _read_counts(self, subtopology: rec.Subtopology) -> list[int]:
        return [self._count(name) for name in read_topics(subtopology)]

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
        internal = {}
        for info in infos:
            count = info.partitions or self._decided[info.name]
            configs = {config.key: config.value for config in info.topic_configs}
            # Values that only a broken client sends: Kafka fails without an error of its own.
            if count < 1 or info.name in internal or len(configs) < len(info.topic_configs):
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
            configs = {key: configs[key] for key in hash_map_order(configs)}
            internal[info.name] = InternalTopic(info.name, count, info.replication_factor or None, configs)
        return {name: internal[name] for name in hash_map_order(internal)}

    def _missing(self, subtopologies: Mapping[str, ConfiguredSubtopology]) -> tuple[InternalTopic, ...]:
        """Return the internal topics to create; raise if an existing one has the wrong partition count."""
        internal: dict[str, InternalTopic] = {}
        for subtopology in subtopologies.values():
            internal.update(subtopology.repartition_source_topics)
            internal.update(subtopology.state_changelog_topics)
        order = hash_map_order(internal)
        for name in hash_map_order(dict.fromkeys(self._topology._required())):
            existing, expected = self._existing(name), internal.get(name)
            if existing is None or expected is None:
                continue
            if existing != expected.partition_count:
                raise _NotReadyError(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Existing topic {name} has different number of partitions: "
                    f"expected {expected.partition_count}, found {existing}",
                )
            del internal[name]
        return tuple(internal[name] for name in order if name in internal)


def _copartition_groups(subtopology: rec.Subtopology) -> list[list[str]]:
    """Return the topic names of each copartition group; raise UNKNOWN_SERVER_ERROR for a wrong index."""
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


def _same_count(counts: Mapping[str, int], reported: Mapping[str, int]) -> int:
    """Return the common count; raise with the differing topics otherwise."""
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}={count}" for name, count in sorted(reported.items()))
        raise _NotReadyError(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{listed}}}]",
        )
    return next(iter(counts.values()))


def _first_names(names: Iterable[str]) -> str:
    """Return the first names and the number of the others."""
    listed = list(names)
    more = f" and {len(listed) - _MAX_LISTED_TOPICS} additional topics" if len(listed) > _MAX_LISTED_TOPICS else ""
    return ", ".join(listed[:_MAX_LISTED_TOPICS]) + more
