"""Random streams groups and topologies, for property tests and for the comparison with Kafka's classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.groups.streams.assignor import StreamsMemberSpec, TaskAssignment
from ottla.groups.streams.topology import ConfiguredSubtopology, InternalTopic
from ottla.protocol.record_schemas import group as rec
from ottla.protocol.uuids import Uuid
from tests.groups.world import MemoryTopic, MemoryTopics

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random


def existing(counts: Mapping[str, int]) -> MemoryTopics:
    """Return topics with these partition counts."""
    return MemoryTopics({name: MemoryTopic(Uuid(bytes(16)), name, count) for name, count in counts.items()})


def subtopology(tasks: int, *, stateful: bool = False) -> ConfiguredSubtopology:
    """Return a subtopology with a number of tasks."""
    changelog = InternalTopic("changelog", tasks, None, {})
    return ConfiguredSubtopology(tasks, ("source",), {}, (), {"changelog": changelog} if stateful else {})


def member(
    process: str,
    active: Mapping[str, tuple[int, ...]] | None = None,
    standby: Mapping[str, tuple[int, ...]] | None = None,
) -> StreamsMemberSpec:
    """Return a member of a process with its previous tasks."""
    return StreamsMemberSpec(process, None, None, {}, TaskAssignment(active or {}, standby or {}, {}))


@dataclass
class Group:
    """An input of the assignor."""

    members: dict[str, StreamsMemberSpec]
    subtopologies: dict[str, ConfiguredSubtopology]
    standbys: int


def random_group(random: Random) -> Group:
    """Return some processes with threads, tasks, and a previous assignment that may be stale or uneven."""
    names = [f"{random.choice(['', 'KSTREAM-', 'sub'])}{index}" for index in range(random.randint(1, 5))]
    subtopologies = {
        name: subtopology(random.choice([1, 2, 3, 5, 8, 13]), stateful=random.random() < 0.6) for name in sorted(names)
    }
    processes = [f"process-{random.randrange(10**6)}" for _ in range(random.randint(1, 8))]
    members = [
        f"{random.choice('abcxyz')}{random.randrange(10**9)}" for _ in range(random.choice([1, 2, 3, 4, 7, 14, 60]))
    ]
    held: dict[str, tuple[dict[str, list[int]], dict[str, list[int]]]] = {member: ({}, {}) for member in members}
    if random.random() < 0.75:
        for name, value in subtopologies.items():
            for partition in range(value.task_count + random.randint(0, 2)):
                owners = random.sample(members, min(len(members), random.randint(0, 3)))
                for position, owner in enumerate(owners):
                    held[owner][position > 0].setdefault(name, []).append(partition)
    specs = {
        key: member(
            random.choice(processes),
            {name: tuple(partitions) for name, partitions in active.items()},
            {name: tuple(partitions) for name, partitions in standby.items()},
        )
        for key, (active, standby) in held.items()
    }
    return Group(specs, subtopologies, random.choice([0, 1, 1, 2, 3]))


@dataclass
class Case:
    """A topology and the partition counts of the existing topics."""

    topology: rec.StreamsGroupTopologyValue
    topics: dict[str, int]


def random_topology(random: Random) -> Case:
    """Return a chain or web of subtopologies, mostly valid, with mostly fitting topics."""
    wrong = random.random() < 0.25
    width = random.choice([1, 2, 4])
    count = random.randint(1, 4)
    repartition = [f"app-r{index}-repartition" for index in range(random.randint(0, 4))]
    topics: dict[str, int] = {}
    subtopologies = []
    for index in range(count):
        sources = random.sample([f"in-{index}" for index in range(5)], random.randint(0 if repartition else 1, 2))
        for source in sources:
            if random.random() < 0.97:
                topics.setdefault(source, width if random.random() < 0.7 else random.choice([1, 2, 3, 4, 6]))
        read = random.sample(repartition, random.randint(0, min(2, len(repartition))))
        written = random.sample(repartition, random.randint(0, len(repartition)))
        infos = [_info(random, name, random.choice([0, 0, 0, width, 3])) for name in read]
        changelogs = [
            _info(random, f"app-s{index}-{number}-changelog", 0) for number in range(random.choice([0, 0, 1, 2, 5]))
        ]
        if wrong and random.random() < 0.3:
            infos += [_info(random, random.choice(repartition or ["app-r"]), random.choice([0, -1, 2]))]
        groups = []
        if random.random() < 0.6:
            groups.append(
                rec.CopartitionGroup(
                    source_topics=[index for index in range(len(sources)) if random.random() < 0.7],
                    repartition_source_topics=[index for index in range(len(infos)) if random.random() < 0.7],
                )
            )
        if wrong and random.random() < 0.1:
            groups.append(rec.CopartitionGroup(source_topics=[random.choice([-1, 7])]))
        subtopologies.append(
            rec.Subtopology(
                subtopology_id=str(index if not wrong or random.random() < 0.95 else 0),
                source_topics=sources,
                state_changelog_topics=changelogs,
                repartition_sink_topics=written,
                repartition_source_topics=infos,
                copartition_groups=groups,
            )
        )
        for info in (*infos, *changelogs):
            if random.random() < 0.4:
                topics.setdefault(info.name, width if random.random() < 0.9 else 3)
    return Case(rec.StreamsGroupTopologyValue(epoch=random.randint(0, 3), subtopologies=subtopologies), topics)


def _info(random: Random, name: str, partitions: int) -> rec.StreamsGroupTopologyTopicInfo:
    keys = random.sample(
        ["cleanup.policy", "retention.ms", "segment.bytes", "min.insync.replicas"], random.randint(0, 3)
    )
    if keys and random.random() < 0.02:
        keys.append(keys[0])
    return rec.StreamsGroupTopologyTopicInfo(
        name=name,
        partitions=partitions,
        replication_factor=random.choice([0, 0, 1, 3]),
        topic_configs=[rec.TopicConfig(key=key, value=str(random.randrange(100))) for key in keys],
    )
