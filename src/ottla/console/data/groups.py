"""Groups of all types: lags, members, offsets to reset to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.client.client import EARLIEST, LATEST
from ottla.client.groups import (
    alter_share_offsets,
    commit,
    committed,
    describe_group,
    list_groups,
    share_lags,
)
from ottla.client.reading import offsets_at
from ottla.console.data.offsets import committed_of_groups, list_offsets, total_lag
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.client.client import Client, TopicPartition
    from ottla.client.groups import GroupDescription, GroupListing, GroupMember

IDLE: Final = frozenset({"Empty", "Dead", "NotReady"})
TARGETS: Final = (
    ("earliest", "earliest"),
    ("latest", "latest"),
    ("offset", "offset"),
    ("time", "time"),
    ("shift", "shift by"),
)


@dataclass(slots=True)
class PartitionLag:
    """A partition that a group reads."""

    topic: str
    partition: int
    offset: int | None
    end: int | None
    lag: int | None
    member: GroupMember | None


@dataclass(slots=True)
class GroupDetails:
    """A group with its lags."""

    group: GroupDescription
    lags: list[PartitionLag]

    @property
    def lag(self) -> int | None:
        """The lag of all partitions of which it is known."""
        known = [row.lag for row in self.lags if row.lag is not None]
        return sum(known) if known or not self.lags else None

    @property
    def topics(self) -> list[str]:
        """The topics that the group reads."""
        return sorted({row.topic for row in self.lags})

    @property
    def idle(self) -> bool:
        """Whether the group has no members, so that its offsets can be reset."""
        return self.group.state in IDLE and not self.group.members


def lags_of_groups(client: Client, groups: Sequence[GroupListing]) -> dict[str, int | None]:
    """Return the lag of each group; None where it is not known."""
    lags: dict[str, int | None] = {group.group: None for group in groups}
    shares = [group for group in groups if group.type == "share"]
    others = [group for group in groups if group.type != "share"]
    committed_offsets = committed_of_groups(client, others)
    names = sorted({topic for offsets in committed_offsets.values() for topic, _ in offsets})
    existing = {topic.name: topic for topic in client.topics()} if names else {}
    ends = list_offsets(client, [existing[name] for name in names if name in existing], LATEST)
    for name, offsets in committed_offsets.items():
        if offsets:
            lags[name] = total_lag(offsets, ends)
    for group in shares:
        try:
            known = [lag for _, lag in share_lags(client, group.group).values() if lag is not None]
        except KafkaError:
            continue
        lags[group.group] = sum(known) if known else None
    return lags


def group_details(client: Client, name: str) -> GroupDetails:
    """Return a group with the lag of each partition that it has an offset of or is assigned."""
    group = describe_group(client, name)
    shared = share_lags(client, name) if group.type == "share" else {}
    offsets = {key: start for key, (start, _) in shared.items()} if group.type == "share" else committed(client, name)
    owners = {key: member for member in group.members for key in member.assigned}
    keys = sorted({*offsets, *owners})
    existing = {topic.name: topic for topic in client.topics()} if keys else {}
    ends = list_offsets(client, [existing[name] for name in {topic for topic, _ in keys} if name in existing], LATEST)
    lags = []
    for key in keys:
        offset, end = offsets.get(key), ends.get(key)
        lag = shared[key][1] if key in shared else None if offset is None or end is None else max(0, end - offset)
        lags.append(PartitionLag(key[0], key[1], offset, end, lag, owners.get(key)))
    return GroupDetails(group, lags)


def all_groups(client: Client) -> list[GroupListing]:
    """Return all groups of the cluster."""
    return list_groups(client)


@dataclass(slots=True)
class OffsetChange:
    """A line of the preview of a reset."""

    topic: str
    partition: int
    old: int | None
    new: int
    end: int | None

    @property
    def difference(self) -> int | None:
        """How far the offset moves; None if the group had none."""
        return None if self.old is None else self.new - self.old


def preview_reset(
    client: Client, name: str, topics: Sequence[str], target: str, value: int, partitions: Sequence[int] = ()
) -> list[OffsetChange]:
    """Return what a reset changes, within the bounds of each partition; it changes nothing yet."""
    details = group_details(client, name)
    if details.group.members:
        raise KafkaError(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {name} is {details.group.state} with {len(details.group.members)} members; stop them first",
        )
    current = {(row.topic, row.partition): row.offset for row in details.lags}
    changes = []
    for topic in topics or details.topics:
        info = client.topics([topic])[0]
        indexes = [index for index in info.partitions if not partitions or index in partitions]
        starts, ends = list_offsets(client, [info], EARLIEST), list_offsets(client, [info], LATEST)
        at_time = offsets_at(client, topic, indexes, value) if target == "time" else {}
        for index in indexes:
            key = topic, index
            if key not in starts or key not in ends:
                continue
            old = current.get(key)
            wished = {
                "earliest": starts[key],
                "latest": ends[key],
                "offset": value,
                "time": at_time.get(index, ends[key]),
                "shift": (old if old is not None else starts[key]) + value,
            }[target]
            changes.append(OffsetChange(topic, index, old, min(max(wished, starts[key]), ends[key]), ends[key]))
    return changes


def apply_reset(client: Client, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Move a group without members to these offsets."""
    if describe_group(client, name).type == "share":
        alter_share_offsets(client, name, offsets)
    else:
        commit(client, name, offsets)
