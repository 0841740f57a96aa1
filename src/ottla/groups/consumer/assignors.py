"""The server-side assignors of consumer groups: which member is to own which partition.

`uniform` spreads all partitions evenly and moves as few as it can; `range` gives each member a stretch of every topic,
so that equal partitions of different topics meet. Neither looks at racks: Kafka 4.3's do not. Pure functions, and the
same input gives the same answer.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from ottla.groups.modern import Partitions, SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ottla.protocol.uuids import Uuid

_MAX_BALANCE_PASSES = 16


class MemberSpec(NamedTuple):
    """What an assignor knows of a member: what it subscribes to, and what it was to own until now."""

    topics: tuple[Uuid, ...]
    target: Partitions
    instance_id: str | None = None


class GroupSpec(NamedTuple):
    """What an assignor knows of a group: its members in order, and how many partitions each of their topics has."""

    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[Uuid, int]
    subscription_type: SubscriptionType


def assign_uniformly(group: GroupSpec) -> dict[str, Partitions]:
    """As even as subscriptions allow, with as many partitions as possible where they were."""
    if not group.members:
        return {}
    if group.subscription_type is SubscriptionType.HOMOGENEOUS:
        return _assign_same_subscriptions(group)
    return _Balance(group).assign()


def _assign_same_subscriptions(group: GroupSpec) -> dict[str, Partitions]:
    topics = next(iter(group.members.values())).topics
    total = sum(group.partition_counts[topic_id] for topic_id in topics)
    quota, extra = divmod(total, len(group.members))
    assignment: dict[str, dict[Uuid, list[int]]] = {}
    assigned: dict[Uuid, set[int]] = {topic_id: set() for topic_id in topics}
    unfilled: list[tuple[str, int]] = []
    for position, (member_id, member) in enumerate(group.members.items()):
        room = quota + 1 if extra > 0 else quota
        has_extra = extra > 0
        kept: dict[Uuid, list[int]] = {}
        for topic_id, partitions in member.target.items():
            count = group.partition_counts.get(topic_id, 0)
            if topic_id not in assigned:
                continue
            mine = [each for each in partitions if each < count and each not in assigned[topic_id]]
            keep = mine[:room]
            if keep:
                kept[topic_id] = keep
                assigned[topic_id].update(keep)
                room -= len(keep)
        if room > 0 and has_extra and len(group.members) - position > extra:
            # Others can take the extra partitions without any being moved.
            room -= 1
            has_extra = False
        if room > 0:
            unfilled.append((member_id, room))
        if has_extra:
            extra -= 1
        assignment[member_id] = kept
    free = iter(
        [
            (topic_id, partition)
            for topic_id in topics
            for partition in range(group.partition_counts[topic_id])
            if partition not in assigned[topic_id]
        ]
    )
    for member_id, room in unfilled:
        for _, (topic_id, partition) in zip(range(room), free, strict=False):
            assignment[member_id].setdefault(topic_id, []).append(partition)
    return {member_id: _sorted(partitions) for member_id, partitions in assignment.items()}


def _sorted(partitions: Mapping[Uuid, Sequence[int]]) -> Partitions:
    return {topic_id: tuple(sorted(indexes)) for topic_id, indexes in partitions.items() if indexes}


class _Balance:
    """Different subscriptions: keep what may be kept, give what is left to who has least, then even out."""

    def __init__(self, group: GroupSpec) -> None:
        self._group = group
        self._ids = list(group.members)
        self._load = [0] * len(self._ids)
        self._subscribers: dict[Uuid, list[int]] = {}
        for index, member in enumerate(group.members.values()):
            for topic_id in member.topics:
                self._subscribers.setdefault(topic_id, []).append(index)
        self._owners: dict[Uuid, list[int]] = {
            topic_id: [-1] * group.partition_counts[topic_id] for topic_id in self._subscribers
        }

    def assign(self) -> dict[str, Partitions]:
        """The targets of all members."""
        self._keep()
        topics = sorted(self._subscribers, key=self._priority)
        for topic_id in topics:
            self._fill(topic_id)
        self._even_out([topic_id for topic_id in topics if len(self._subscribers[topic_id]) > 1])
        assignment: dict[str, dict[Uuid, list[int]]] = {member_id: {} for member_id in self._ids}
        for topic_id, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                assignment[self._ids[owner]].setdefault(topic_id, []).append(partition)
        return {member_id: _sorted(partitions) for member_id, partitions in assignment.items()}

    def _priority(self, topic_id: Uuid) -> tuple[float, int, Uuid]:
        """Topics with many partitions for few members first: they leave the least choice."""
        subscribers = len(self._subscribers[topic_id])
        return (-self._group.partition_counts[topic_id] / subscribers, subscribers, topic_id)

    def _keep(self) -> None:
        for index, member in enumerate(self._group.members.values()):
            subscribed = set(member.topics)
            for topic_id, partitions in member.target.items():
                if topic_id not in subscribed:
                    continue
                owners = self._owners[topic_id]
                for partition in partitions:
                    if partition < len(owners) and owners[partition] == -1:
                        owners[partition] = index
                        self._load[index] += 1

    def _fill(self, topic_id: Uuid) -> None:
        owners = self._owners[topic_id]
        least = [(self._load[index], index) for index in self._subscribers[topic_id]]
        heapq.heapify(least)
        for partition, owner in enumerate(owners):
            if owner == -1:
                load, index = heapq.heappop(least)
                owners[partition] = index
                self._load[index] = load + 1
                heapq.heappush(least, (load + 1, index))

    def _even_out(self, topics: list[Uuid]) -> None:
        for _ in range(_MAX_BALANCE_PASSES):
            if not sum([self._even_out_topic(topic_id) for topic_id in topics]):
                return

    def _even_out_topic(self, topic_id: Uuid) -> int:
        """Move partitions of a topic from who has most to who has least; return how many."""
        load = self._load
        subscribers = self._subscribers[topic_id]
        loads = [load[index] for index in subscribers]
        if max(loads) - min(loads) <= 1:
            return 0
        owners = self._owners[topic_id]
        owned: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            owned.setdefault(owner, []).append(partition)
        least = [(load[index], index) for index in subscribers]
        most = [(-load[index], -index) for index in owned]
        heapq.heapify(least)
        heapq.heapify(most)
        moved = 0
        while most:
            negative, minus = most[0]
            giver = -minus
            if -negative != load[giver] or not owned.get(giver):
                heapq.heappop(most)
                if owned.get(giver):
                    heapq.heappush(most, (-load[giver], minus))
                continue
            while least[0][0] != load[least[0][1]]:
                heapq.heapreplace(least, (load[least[0][1]], least[0][1]))
            taker = least[0][1]
            if load[giver] - load[taker] <= 1:
                break
            partition = owned[giver].pop()
            owners[partition] = taker
            owned.setdefault(taker, []).append(partition)
            load[giver] -= 1
            load[taker] += 1
            moved += 1
            heapq.heapreplace(least, (load[taker], taker))
            heapq.heappush(least, (load[giver], giver))
            heapq.heappush(most, (-load[taker], -taker))
        return moved


def assign_ranges(group: GroupSpec) -> dict[str, Partitions]:
    """A stretch of every topic for each member that subscribes to it, members in the order of their ids."""
    order = sorted(group.members, key=lambda member_id: _range_order(member_id, group.members[member_id]))
    members: dict[Uuid, int] = {}
    for member_id in order:
        for topic_id in group.members[member_id].topics:
            members[topic_id] = members.get(topic_id, 0) + 1
    next_partition = dict.fromkeys(members, 0)
    left = {topic_id: group.partition_counts[topic_id] % count for topic_id, count in members.items()}
    assignment: dict[str, Partitions] = {}
    for member_id in order:
        target: Partitions = {}
        for topic_id in group.members[member_id].topics:
            size = group.partition_counts[topic_id] // members[topic_id]
            if left[topic_id] > 0:
                left[topic_id] -= 1
                size += 1
            start = next_partition[topic_id]
            next_partition[topic_id] = start + size
            if size > 0:
                target[topic_id] = tuple(range(start, start + size))
        assignment[member_id] = target
    return {member_id: assignment[member_id] for member_id in group.members}


def _range_order(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    """Static members come first and by their instance id, so that they get the same stretch after a restart."""
    return (member.instance_id is None, member.instance_id or member_id)


ASSIGNORS: dict[str, Callable[[GroupSpec], dict[str, Partitions]]] = {
    "uniform": assign_uniformly,
    "range": assign_ranges,
}
"""The assignors by name; which of them a broker offers, and first, is `group.consumer.assignors`."""
