"""Asks a cluster which partitions there are and which offsets they have, and cuts ranges of offsets into tasks.

Runs on the driver's side, for batch and streaming reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.offsets import EARLIEST, LATEST
from ottla.spark.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.client.client import Client, TopicInfo
    from ottla.spark.network.options import NetworkPlan
    from ottla.spark.offsets import Bound, Selection
    from ottla.spark.pushdown.filters import Limits

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, the end not included; `topic_id` is that of the topic they were counted in."""

    topic: str
    topic_id: str
    partition: int
    first_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """How many offsets."""
        return self.end_offset - self.first_offset


class NetworkTask(InputPartition):
    """What one task reads; nothing, where a read has no rows at all."""

    def __init__(self, wanted: OffsetRange | None) -> None:
        super().__init__(None)
        self.range = wanted


def find_topics(client: Client, selection: Selection, *, required: bool = True) -> dict[str, TopicInfo]:
    """The chosen topics by name, with fresh metadata; a topic or partition that was named must be there if required."""
    if selection.pattern is not None:
        chosen = [topic for topic in client.topics() if selection.topic(topic.name) and not topic.internal]
        return {topic.name: topic for topic in sorted(chosen, key=lambda each: each.name)}
    try:
        found = {topic.name: topic for topic in client.topics(selection.named)}
    except KafkaError:  # one of them; which, and what there is instead, is asked one by one
        found = {name: info for name in selection.named if (info := _find_topic(client, name, required)) is not None}
    for name, partitions in (selection.partitions or {}).items():
        for partition in partitions:
            if name in found and partition not in found[name].partitions:
                raise OptionError(f"there is no partition {name}-{partition}: it has {len(found[name].partitions)}")
    return found


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
            raise OptionError(f"{name!r} is no name of a topic: letters, digits, dots, _ and - only") from error
        raise


def chosen_partitions(topics: dict[str, TopicInfo], selection: Selection) -> dict[str, list[int]]:
    """The partitions to read, in order."""
    return {
        name: [number for number in sorted(info.partitions) if selection.partition(name, number)]
        for name, info in sorted(topics.items())
    }


def list_all(client: Client, partitions: dict[str, list[int]], time: int, *, committed: bool) -> dict[Place, int]:
    """The offset of each partition at a time, or at EARLIEST or LATEST; -1 where no record is that late."""
    return {
        (topic, number): offset
        for topic, numbers in partitions.items()
        if numbers
        for number, (offset, _) in client.list_offsets(topic, numbers, time, read_committed=committed).items()
    }


@dataclass(slots=True)
class Bounds:
    """The first and the end offset of each partition at one moment."""

    earliest: dict[Place, int]
    latest: dict[Place, int]

    @classmethod
    def ask(cls, client: Client, partitions: dict[str, list[int]], *, committed: bool) -> Bounds:
        """Ask for both; the end first, so that the beginning is never older than it."""
        latest = list_all(client, partitions, LATEST, committed=committed)
        return cls(list_all(client, partitions, EARLIEST, committed=committed), latest)


def resolve(
    client: Client,
    bound: Bound,
    bounds: Bounds,
    name: str,
    *,
    strict_times: bool,
    committed: bool,
) -> dict[Place, int]:
    """A bound as offsets of all partitions."""
    for place in bound.partitions:
        if place not in bounds.latest:
            raise OptionError(f"{name} names {place[0]}-{place[1]}, which is not among the partitions that are read")
    times: dict[int, dict[str, list[int]]] = {}
    found: dict[Place, int] = {}
    for place in bounds.latest:
        time = bound.time(*place)
        if time is not None:
            times.setdefault(time, {}).setdefault(place[0], []).append(place[1])
            continue
        offset = bound.offset(*place)
        earliest, latest = bounds.earliest[place], bounds.latest[place]
        if offset in (EARLIEST, LATEST):
            offset = earliest if offset == EARLIEST else latest
        elif not earliest <= offset <= latest:
            raise OptionError(
                f"{name} asks for offset {offset} of {place[0]}-{place[1]}, which has {earliest} to {latest}"
            )
        found[place] = offset
    for time, partitions in times.items():
        for place, offset in list_all(client, partitions, time, committed=committed).items():
            if offset < 0 and strict_times and name.startswith("starting"):
                raise OptionError(
                    f"{place[0]}-{place[1]} has no record at {time} ms or later; give an earlier startingTimestamp, or "
                    f"startingOffsetsByTimestampStrategy=latest to read nothing from it"
                )
            found[place] = bounds.latest[place] if offset < 0 else min(offset, bounds.latest[place])
    return found


def batch_ranges(client: Client, plan: NetworkPlan, limits: Limits) -> list[OffsetRange]:
    """What options and filters leave to a batch read."""
    topics = find_topics(client, plan.selection)
    committed = plan.settings.committed
    partitions = chosen_partitions(topics, plan.selection)
    bounds = Bounds.ask(client, partitions, committed=committed)
    starts = resolve(client, plan.start, bounds, "startingOffsets", strict_times=plan.strict_times, committed=committed)
    ends = resolve(client, plan.end, bounds, "endingOffsets", strict_times=False, committed=committed)
    wanted = {name: [n for n in numbers if limits.partition(name, n)] for name, numbers in partitions.items()}
    in_time: dict[Place, int] = {}
    # A negative time has a meaning of its own to a broker; and records without a time, whose is -1, come after it.
    if limits.earliest is not None and limits.earliest >= 0:
        in_time = list_all(client, wanted, limits.earliest, committed=committed)
    ranges = []
    for topic, numbers in wanted.items():
        for number in numbers:
            place = topic, number
            first = max(starts[place], limits.offsets[0])
            end = min(ends[place], limits.offsets[1] + 1)
            if in_time:
                first = end if in_time[place] < 0 else max(first, in_time[place])
            if first < end:
                ranges.append(OffsetRange(topic, str(topics[topic].id), number, first, end))
    return ranges


def split_ranges(ranges: Iterable[OffsetRange], *, least_tasks: int, largest: int) -> list[OffsetRange]:
    """Cut ranges so that there are about as many as wanted, the big ones into more parts, in a stable order."""
    whole = [each for each in ranges if each.size > 0]
    parts = dict.fromkeys(whole, 1)
    if largest:
        parts = {each: -(-each.size // largest) for each in whole}
    total = sum(each.size for each in whole)
    if sum(parts.values()) < least_tasks:
        parts = {each: max(parts[each], round(least_tasks * each.size / total)) for each in whole}
    found = []
    for each in whole:
        count = min(parts[each], each.size)
        borders = [each.first_offset + each.size * number // count for number in range(count + 1)]
        found += [
            OffsetRange(each.topic, each.topic_id, each.partition, start, end) for start, end in pairwise(borders)
        ]
    return found
