"""List partitions and offsets of a cluster, and cut offset ranges into tasks, for batch and streaming reads.

Runs on the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.offsets import EARLIEST, LATEST, available_range
from ottla.spark.options import OptionError
from ottla.storage.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.client.client import Client, TopicInfo
    from ottla.spark.network.options import NetworkPlan
    from ottla.spark.offsets import Bound, Selection
    from ottla.spark.pushdown.filters import Limits


# A task costs about as much as reading 50,000 small records: partitions with few new records share one.
PACKED_OFFSETS: Final = 4096
PACKED_RANGES: Final = 32


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, the end excluded; `topic_id` is the id of the topic they belong to."""

    topic: str
    topic_id: str
    partition: int
    first_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.end_offset - self.first_offset


class NetworkTask(InputPartition):
    """The offset ranges of one Spark task; none for a read without rows."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


def find_topics(client: Client, selection: Selection, *, required: bool = True) -> dict[str, TopicInfo]:
    """Return the selected topics by name, with fresh metadata; if required, named topics must exist."""
    if selection.pattern is not None:
        chosen = [topic for topic in client.topics() if selection.topic(topic.name, internal=topic.internal)]
        return {topic.name: topic for topic in sorted(chosen, key=lambda topic: topic.name)}
    try:
        topics = {topic.name: topic for topic in client.topics(selection.named)}
    except KafkaError:  # find out which one fails
        topics = {name: info for name in selection.named if (info := _find_topic(client, name, required)) is not None}
    for name, partitions in (selection.partitions or {}).items():
        for partition in partitions:
            if name in topics and partition not in topics[name].partitions:
                raise OptionError(f"there is no partition {name}-{partition}: it has {len(topics[name].partitions)}")
    return topics


def _find_topic(client: Client, name: str, required: bool) -> TopicInfo | None:
    try:
        return client.topics([name])[0]
    except KafkaError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            if not required:
                return None
            there = ", ".join(sorted(topic.name for topic in client.topics() if not topic.internal)[:20]) or "none"
            raise OptionError(f"there is no topic {name}; there are {there}") from error
        if error.code is ErrorCode.INVALID_TOPIC_EXCEPTION:
            raise OptionError(f"{name!r} is no topic name: use letters, digits, dots, _ and -") from error
        raise


def chosen_partitions(topics: dict[str, TopicInfo], selection: Selection) -> dict[str, list[int]]:
    """Return the partitions to read, in order."""
    return {
        name: [number for number in sorted(info.partitions) if selection.partition(name, number)]
        for name, info in sorted(topics.items())
    }


def list_all(
    client: Client, partitions: dict[str, list[int]], time: int, *, committed: bool
) -> dict[TopicPartition, int]:
    """Return each partition's offset at a time, or at EARLIEST or LATEST; -1 if no record is that late."""
    listed = {topic: numbers for topic, numbers in partitions.items() if numbers}
    if not listed:
        return {}
    offsets = client.list_topic_offsets(listed, time, read_committed=committed)
    return {TopicPartition(*partition): offset for partition, (offset, _) in offsets.items()}


@dataclass(slots=True)
class Bounds:
    """The start and end offsets of partitions at one moment."""

    earliest: dict[TopicPartition, int]
    latest: dict[TopicPartition, int]

    @classmethod
    def ask(cls, client: Client, partitions: dict[str, list[int]], *, committed: bool) -> Bounds:
        """List both; the end first, so that the start is never older."""
        latest = list_all(client, partitions, LATEST, committed=committed)
        return cls(list_all(client, partitions, EARLIEST, committed=committed), latest)


def resolve(
    client: Client, bound: Bound, bounds: Bounds, name: str, *, strict_times: bool, committed: bool
) -> dict[TopicPartition, int]:
    """Resolve a bound to offsets of all partitions, which may lie outside their logs."""
    bound.check_partitions(name, bounds.latest)
    times: dict[int, dict[str, list[int]]] = {}
    offsets: dict[TopicPartition, int] = {}
    for partition in bounds.latest:
        time = bound.time(*partition)
        if time is not None:
            times.setdefault(time, {}).setdefault(partition.topic, []).append(partition.partition)
            continue
        offset = bound.offset(*partition)
        if offset in (EARLIEST, LATEST):
            offset = (bounds.earliest if offset == EARLIEST else bounds.latest)[partition]
        offsets[partition] = offset
    for time, partitions in times.items():
        for partition, offset in list_all(client, partitions, time, committed=committed).items():
            if offset < 0 and strict_times and name.startswith("starting"):
                raise OptionError(
                    f"{partition} has no record at {time} ms or later; give an earlier startingTimestamp, or "
                    f"startingOffsetsByTimestampStrategy=latest to read nothing from it"
                )
            latest = bounds.latest[partition]
            offsets[partition] = latest if offset < 0 else min(offset, latest)
    return offsets


def batch_ranges(client: Client, plan: NetworkPlan, limits: Limits) -> list[OffsetRange]:
    """Return the offset ranges that options and filters leave to a batch read."""
    topics = find_topics(client, plan.selection)
    committed = plan.settings.committed
    partitions = chosen_partitions(topics, plan.selection)
    bounds = Bounds.ask(client, partitions, committed=committed)
    starts = resolve(client, plan.start, bounds, "startingOffsets", strict_times=plan.strict_times, committed=committed)
    ends = resolve(client, plan.end, bounds, "endingOffsets", strict_times=False, committed=committed)
    matching = {name: [n for n in numbers if limits.partition(name, n)] for name, numbers in partitions.items()}
    in_time: dict[TopicPartition, int] = {}
    # Negative timestamps have special meanings in ListOffsets; and records without a timestamp have -1.
    if limits.earliest is not None and limits.earliest >= 0:
        in_time = list_all(client, matching, limits.earliest, committed=committed)
    ranges = []
    for topic, numbers in matching.items():
        for number in numbers:
            partition = TopicPartition(topic, number)
            first, end = available_range(
                "ottla",
                partition,
                starts[partition],
                ends[partition],
                (bounds.earliest[partition], bounds.latest[partition]),
                fail_on_data_loss=plan.settings.fail_on_data_loss,
            )
            first, end = max(first, limits.offsets[0]), min(end, limits.offsets[1] + 1)
            if in_time:
                first = end if in_time[partition] < 0 else max(first, in_time[partition])
            if first < end:
                ranges.append(OffsetRange(topic, str(topics[topic].id), number, first, end))
    return ranges


def plan_tasks(ranges: Iterable[OffsetRange], *, least_tasks: int, largest: int) -> list[NetworkTask]:
    """Return the tasks of ranges: large ranges cut, small ones packed together, in a stable order."""
    parts = split_ranges(ranges, least_tasks=least_tasks, largest=largest)
    limit = min(PACKED_OFFSETS, largest or PACKED_OFFSETS)
    if least_tasks:
        limit = min(limit, sum(part.size for part in parts) // least_tasks)
    packs: list[list[OffsetRange]] = []
    offsets = 0
    for part in parts:
        if not packs or offsets + part.size > limit or len(packs[-1]) == PACKED_RANGES:
            packs.append([])
            offsets = 0
        packs[-1].append(part)
        offsets += part.size
    return [NetworkTask(pack) for pack in packs]


def split_ranges(ranges: Iterable[OffsetRange], *, least_tasks: int, largest: int) -> list[OffsetRange]:
    """Cut ranges into about as many parts as requested, large ones into more, in a stable order."""
    whole = [offsets for offsets in ranges if offsets.size > 0]
    parts = dict.fromkeys(whole, 1)
    if largest:
        parts = {offsets: -(-offsets.size // largest) for offsets in whole}
    total = sum(offsets.size for offsets in whole)
    if sum(parts.values()) < least_tasks:
        parts = {offsets: max(parts[offsets], round(least_tasks * offsets.size / total)) for offsets in whole}
    split = []
    for offsets in whole:
        count = min(parts[offsets], offsets.size)
        borders = [offsets.first_offset + offsets.size * number // count for number in range(count + 1)]
        split += [replace(offsets, first_offset=start, end_offset=end) for start, end in pairwise(borders)]
    return split
