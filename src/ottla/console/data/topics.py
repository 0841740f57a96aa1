"""Topics with their sizes, records, partitions and producers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.client.client import EARLIEST, LATEST
from ottla.client.connection import ConnectionFailedError
from ottla.client.groups import list_groups
from ottla.client.leaders import elect_preferred, reassign
from ottla.console.data.offsets import committed_of_groups, list_offsets, total_lag
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ottla.client.client import Client, TopicInfo

GROUPS_WITH_RATES: Final = 500
"""Groups whose committed offsets are read to compute how fast topics are consumed."""


@dataclass(slots=True)
class TopicRow:
    """A topic in the list. None stands for what is not known."""

    info: TopicInfo
    bytes: int | None
    records: int | None = None
    written: int | None = None
    """The sum of the log end offsets: its growth is the rate of writing."""
    consumed: int | None = None
    """The sum of all groups' committed offsets: its growth is the rate of reading."""

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.info.name

    @property
    def replication(self) -> int:
        """The largest number of replicas of a partition."""
        return max((len(partition.replicas) for partition in self.info.partitions.values()), default=0)

    @property
    def under_replicated(self) -> int:
        """Partitions with fewer replicas in sync than assigned."""
        return sum(len(partition.in_sync) < len(partition.replicas) for partition in self.info.partitions.values())

    @property
    def offline(self) -> int:
        """Partitions without a leader."""
        return sum(partition.leader < 0 for partition in self.info.partitions.values())


@dataclass(slots=True)
class TopicList:
    """All topics of a cluster, with what could not be read."""

    rows: list[TopicRow]
    notes: list[str]


def list_topics(client: Client) -> TopicList:
    """Return all topics with their sizes on disk."""
    notes: list[str] = []
    infos = sorted(client.topics(), key=lambda info: info.name)
    sizes: dict[str, int] | None = {}
    try:
        sizes = topic_sizes(client)
    except (KafkaError, ConnectionFailedError) as error:
        sizes = None
        notes.append(f"Sizes are not known: {error}")
    rows = [TopicRow(info, None if sizes is None else sizes.get(info.name, 0)) for info in infos]
    return TopicList(rows, notes)


def topic_sizes(client: Client) -> dict[str, int]:
    """Return the bytes that each topic takes on all brokers."""
    sizes: dict[str, int] = {}
    for node in sorted(client.brokers):
        answer = client.to_node(node, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
        if answer.error_code:
            raise KafkaError(answer.error_code, f"log directories of broker {node}")
        for result in answer.results:
            for topic in result.topics:
                size = sum(partition.partition_size for partition in topic.partitions)
                sizes[topic.name] = sizes.get(topic.name, 0) + size
    return sizes


def add_counts(client: Client, rows: Iterable[TopicRow]) -> None:
    """Add the number of records, and what rates are computed from, to these topics."""
    rows = list(rows)
    client.refresh([])
    infos = [row.info for row in rows]
    starts, ends = list_offsets(client, infos, EARLIEST), list_offsets(client, infos, LATEST)
    consumed: dict[str, int] = {}
    try:
        listed = [group for group in list_groups(client) if group.type in ("", "classic", "consumer", "streams")]
        for offsets in committed_of_groups(client, listed[:GROUPS_WITH_RATES]).values():
            for (topic, _), offset in offsets.items():
                consumed[topic] = consumed.get(topic, 0) + offset
    except KafkaError:
        pass  # without the right to list groups, rates of reading are not known
    for row in rows:
        keys = [(row.name, index) for index in row.info.partitions]
        known = [key for key in keys if key in ends and key in starts]
        if len(known) < len(keys):
            continue
        row.written = sum(ends[key] for key in known)
        row.records = row.written - sum(starts[key] for key in known)
        row.consumed = consumed.get(row.name)


@dataclass(slots=True)
class PartitionRow:
    """A partition of a topic's page."""

    index: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    start: int | None
    end: int | None
    stable: int | None
    """The last stable offset: read_committed consumers read up to it."""
    bytes: int | None

    @property
    def records(self) -> int | None:
        """The offsets between start and end."""
        return None if self.start is None or self.end is None else self.end - self.start


@dataclass(slots=True)
class TopicDetails:
    """What a topic's page shows."""

    info: TopicInfo
    partitions: list[PartitionRow]
    nodes: list[int]

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.info.name

    @property
    def records(self) -> int | None:
        """The records of all partitions."""
        counts = [row.records for row in self.partitions]
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)

    @property
    def bytes(self) -> int | None:
        """The size of all replicas."""
        sizes = [row.bytes for row in self.partitions]
        return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)

    @property
    def replication(self) -> int:
        """The largest number of replicas of a partition."""
        return max((len(row.replicas) for row in self.partitions), default=0)


def describe_topic(client: Client, name: str) -> TopicDetails:
    """Return a topic with the offsets and sizes of its partitions."""
    info = client.topics([name])[0]
    starts, ends = list_offsets(client, [info], EARLIEST), list_offsets(client, [info], LATEST)
    stable = list_offsets(client, [info], LATEST, read_committed=True)
    sizes: dict[int, int] = {}
    try:
        for node in sorted(client.brokers):
            answer = client.to_node(node, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
            for result in answer.results:
                for topic in result.topics:
                    if topic.name == name:
                        for partition in topic.partitions:
                            index = partition.partition_index
                            sizes[index] = sizes.get(index, 0) + partition.partition_size
    except (KafkaError, ConnectionFailedError):
        sizes = {}
    rows = [
        PartitionRow(
            partition.index,
            partition.leader,
            partition.replicas,
            partition.in_sync,
            starts.get((name, partition.index)),
            ends.get((name, partition.index)),
            stable.get((name, partition.index)),
            sizes.get(partition.index),
        )
        for partition in info.partitions.values()
    ]
    return TopicDetails(info, rows, sorted(client.brokers))


def consumers_of(client: Client, topic: str) -> list[tuple[str, str, str, int, int]]:
    """Return group, type, state, number of partitions and lag of each group with offsets in a topic."""
    info = client.topics([topic])[0]
    listed = list_groups(client)
    groups = {group.group: group for group in listed if group.type != "share"}
    ends = list_offsets(client, [info], LATEST)
    rows = []
    for name, offsets in committed_of_groups(client, list(groups.values())[:GROUPS_WITH_RATES]).items():
        of_topic = {key: offset for key, offset in offsets.items() if key[0] == topic}
        if of_topic:
            group = groups[name]
            rows.append((name, group.type or "classic", group.state, len(of_topic), total_lag(of_topic, ends)))
    return sorted(rows)


def move_leader(client: Client, topic: str, partition: int, node: int) -> None:
    """Make a replica the preferred leader of a partition, and elect it."""
    info = client.topics([topic])[0].partitions.get(partition)
    if info is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {partition}")
    if node not in info.replicas:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"broker {node} has no replica of {topic}-{partition}; it is on {', '.join(map(str, info.replicas))}",
        )
    if info.replicas[0] != node:
        reassign(client, topic, partition, [node, *(replica for replica in info.replicas if replica != node)])
    elect_preferred(client, topic, [partition])


def elect_all(client: Client, topic: str) -> list[int]:
    """Elect the preferred leader of every partition; return the partitions that changed."""
    return elect_preferred(client, topic, client.topics([topic])[0].partitions)


def trim_offsets(details: TopicDetails, partition: int | None, offset: int) -> Mapping[int, int]:
    """Return the offset to delete before in each chosen partition; -1 means all records."""
    chosen = [row.index for row in details.partitions if partition is None or row.index == partition]
    return dict.fromkeys(chosen, offset)
