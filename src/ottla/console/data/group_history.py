"""The past of a group from `__consumer_offsets`: committed offsets over time, and who was a member when.

The topic is compacted, so that the past is as long as the broker keeps segments uncleaned; recent hours usually are.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.client.reading import RecordReader, bounds
from ottla.cluster.internal_topics import GROUP_METADATA_TOPIC, partition_for
from ottla.console.data.offsets import list_offsets
from ottla.protocol.errors import ProtocolError
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolAssignment
from ottla.protocol.record_schemas.group import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
)
from ottla.protocol.record_values import decode_offsets_key, decode_offsets_value

if TYPE_CHECKING:
    from ottla.client.client import Client, TopicPartition

RECORDS_READ: Final = 50_000
"""Offsets of the group's partition that are read, from its end."""
POINTS: Final = 40
LANES: Final = 40


@dataclass(slots=True)
class Span:
    """A time in which a member had one assignment: ms, `end` None if it lasts."""

    start: int
    end: int | None
    epoch: int
    partitions: int


@dataclass(slots=True)
class Lane:
    """A member and its assignments over time."""

    member: str
    client: str
    spans: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class GroupHistory:
    """What the log of a group tells of its past."""

    since: int
    """The time of the first record that was read, in ms."""
    commits: dict[TopicPartition, list[tuple[int, int]]]
    """Time and committed offset."""
    lanes: list[Lane]
    rebalances: list[tuple[int, int]]
    """Time and generation or epoch of each rebalance."""
    complete: bool
    """Whether the log was read from its start."""


def read_group_history(client: Client, group: str) -> GroupHistory:
    """Read the end of the group's partition of `__consumer_offsets`."""
    info = client.topics([GROUP_METADATA_TOPIC])[0]
    partition = partition_for(group, len(info.partitions))
    bound = bounds(client, GROUP_METADATA_TOPIC, [partition])[partition]
    start = max(bound.start, bound.end - RECORDS_READ)
    builder = _Builder(group)
    reader = RecordReader(
        client, GROUP_METADATA_TOPIC, {partition: start}, until={partition: bound.end}, max_bytes=8 * 1024 * 1024
    )
    first = 0
    for read in reader:
        first = first or read.record.timestamp
        if read.record.key is not None:
            builder.add(read.record.timestamp, read.record.key, read.record.value)
    lanes = sorted(builder.lanes.values(), key=lambda lane: lane.spans[0].start if lane.spans else 0)
    return GroupHistory(
        first or int(time.time() * 1000),
        {key: list(points) for key, points in builder.commits.items()},
        [lane for lane in lanes if lane.spans][-LANES:],
        builder.rebalances,
        start == bound.start,
    )


class _Builder:
    """Collects the records of one group."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.commits: dict[TopicPartition, deque[tuple[int, int]]] = {}
        self.lanes: dict[str, Lane] = {}
        self.rebalances: list[tuple[int, int]] = []
        self._names: dict[str, str] = {}

    def add(self, when: int, raw_key: bytes, raw_value: bytes | None) -> None:
        """Take a record, if it is of the group."""
        try:
            key = decode_offsets_key(raw_key)
            value = None if raw_value is None else decode_offsets_value(key, raw_value)
        except ProtocolError:
            return
        if isinstance(key, OffsetCommitKey):
            if key.group == self._group and isinstance(value, OffsetCommitValue):
                points = self.commits.setdefault((key.topic, key.partition), deque(maxlen=2000))
                points.append((value.commit_timestamp if value.commit_timestamp > 0 else when, value.offset))
        elif isinstance(key, GroupMetadataKey):
            if key.group == self._group:
                self._classic(when, value if isinstance(value, GroupMetadataValue) else None)
        elif isinstance(key, ConsumerGroupMemberMetadataKey | ShareGroupMemberMetadataKey):
            if key.group_id == self._group and isinstance(
                value, ConsumerGroupMemberMetadataValue | ShareGroupMemberMetadataValue
            ):
                self._names[key.member_id] = value.client_id
        elif (
            isinstance(key, ConsumerGroupCurrentMemberAssignmentKey | ShareGroupCurrentMemberAssignmentKey)
            and key.group_id == self._group
        ):
            if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue | ShareGroupCurrentMemberAssignmentValue):
                count = sum(len(topic.partitions) for topic in value.assigned_partitions)
                self._span(key.member_id, self._names.get(key.member_id, ""), when, value.member_epoch, count)
                if not self.rebalances or self.rebalances[-1][1] < value.member_epoch:
                    self.rebalances.append((when, value.member_epoch))
            else:
                self._end(key.member_id, when)

    def _classic(self, when: int, value: GroupMetadataValue | None) -> None:
        members = {} if value is None else {member.member_id: member for member in value.members}
        for member_id in list(self.lanes):
            if member_id not in members:
                self._end(member_id, when)
        if value is None:
            return
        if not self.rebalances or self.rebalances[-1][1] != value.generation:
            self.rebalances.append((when, value.generation))
        for member in value.members:
            count = _assigned(member.assignment)
            self._span(member.member_id, member.client_id, when, value.generation, count)

    def _span(self, member: str, client: str, when: int, epoch: int, partitions: int) -> None:
        lane = self.lanes.setdefault(member, Lane(member, client))
        last = lane.spans[-1] if lane.spans else None
        if last is not None and last.end is None:
            if (last.epoch, last.partitions) == (epoch, partitions):
                return
            last.end = when
        lane.spans.append(Span(when, None, epoch, partitions))

    def _end(self, member: str, when: int) -> None:
        lane = self.lanes.get(member)
        if lane is not None and lane.spans and lane.spans[-1].end is None:
            lane.spans[-1].end = when


def _assigned(data: bytes) -> int:
    """Return the number of partitions of a consumer's assignment; 0 for other formats."""
    try:
        assignment, _ = ConsumerProtocolAssignment.decode_from(data, 2, 0)
    except ProtocolError:
        return 0
    return sum(len(topic.partitions) for topic in assignment.assigned_partitions)


def lag_over_time(client: Client, past: GroupHistory, now_ms: int) -> list[tuple[int, int]]:
    """Return time and total lag at points of the past: log ends by timestamp, less the offsets committed by then."""
    if not past.commits:
        return []
    topics = {topic.name: topic for topic in client.topics()}
    infos = [topics[name] for name in sorted({topic for topic, _ in past.commits}) if name in topics]
    first = min(points[0][0] for points in past.commits.values())
    start = max(first, now_ms - 3_600_000)
    if now_ms - start < 5000:
        return []
    step = (now_ms - start) // POINTS
    result = []
    latest = list_offsets(client, infos, -1)
    for number in range(POINTS):
        when = start + number * step
        ends = list_offsets(client, infos, when)
        lag = 0
        for key, points in past.commits.items():
            end = ends.get(key, -1)
            end = latest.get(key, 0) if end < 0 else end  # nothing was written since
            offset = next((offset for time_ms, offset in reversed(points) if time_ms <= when), None)
            if offset is not None:
                lag += max(0, end - offset)
        result.append((when, lag))
    return result
