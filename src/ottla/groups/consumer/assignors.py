"""The server-side assignors of consumer groups (Kafka's UniformAssignor and RangeAssignor).

`uniform` spreads all partitions evenly and keeps as many as possible in place; `range` gives each member a contiguous
range of every topic, so that equal partitions of different topics meet. Neither considers racks, as in Kafka 4.3. Pure
and deterministic functions.
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
    """The input of an assignor for a member: subscribed topics and previous target assignment."""

    topics: tuple[Uuid, ...]
    target: Partitions
    instance_id: str | None = None


class GroupSpec(NamedTuple):
    """The input of an assignor: the members in order and the partition counts of their topics."""

    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[Uuid, int]
    subscription_type: SubscriptionType


def assign_uniformly(group: GroupSpec) -> dict[str, Partitions]:
    """Assign as evenly as the subscriptions allow; keep as many partitions as possible where they are."""
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
        capacity = quota + 1 if extra > 0 else quota
        has_extra = extra > 0
        kept: dict[Uuid, list[int]] = {}
        for topic_id, partitions in member.target.items():
            count = group.partition_counts.get(topic_id, 0)
            if topic_id not in assigned:
                continue
            kept_candidates = [index for index in partitions if index < count and index not in assigned[topic_id]]
            keep = kept_candidates[:capacity]
            if keep:
                kept[topic_id] = keep
                assigned[topic_id].update(keep)
                capacity -= len(keep)
        if capacity > 0 and has_extra and len(group.members) - position > extra:
            # Later members can take the extra partitions without moving any.
            capacity -= 1
            has_extra = False
        if capacity > 0:
            unfilled.append((member_id, capacity))
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
    for member_id, capacity in unfilled:
        for _, (topic_id, partition) in zip(range(capacity), free, strict=False):
            assignment[member_id].setdefault(topic_id, []).append(partition)
    return {member_id: _sorted(partitions) for member_id, partitions in assignment.items()}


def _sorted(partitions: Mapping[Uuid, Sequence[int]]) -> Partitions:
    return {topic_id: tuple(sorted(indexes)) for topic_id, indexes in partitions.items() if indexes}


class _Balance:
    """Assignment of different subscriptions: keep, fill the least loaded members, then rebalance."""

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
        """Return the target assignment of all members."""
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
        """Return the sort key of a topic: many partitions for few subscribers first, as they leave the least choice."""
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
        least_loaded = [(self._load[index], index) for index in self._subscribers[topic_id]]
        heapq.heapify(least_loaded)
        for partition, owner in enumerate(owners):
            if owner == -1:
                load, index = heapq.heappop(least_loaded)
                owners[partition] = index
                self._load[index] = load + 1
                heapq.heappush(least_loaded, (load + 1, index))

    def _even_out(self, topics: list[Uuid]) -> None:
        for _ in range(_MAX_BALANCE_PASSES):
            if not sum([self._even_out_topic(topic_id) for topic_id in topics]):
                return

    def _even_out_topic(self, topic_id: Uuid) -> int:
        """Move partitions of a topic from the most to the least loaded members; return the number of moves."""
        load = self._load
        subscribers = self._subscribers[topic_id]
        loads = [load[index] for index in subscribers]
        if max(loads) - min(loads) <= 1:
            return 0
        owners = self._owners[topic_id]
        owned: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            owned.setdefault(owner, []).append(partition)
        least_loaded = [(load[index], index) for index in subscribers]
        most_loaded = [(-load[index], -index) for index in owned]
        heapq.heapify(least_loaded)
        heapq.heapify(most_loaded)
        moved = 0
        while most_loaded:
            negative, minus = most_loaded[0]
            giver = -minus
            if -negative != load[giver] or not owned.get(giver):
                heapq.heappop(most_loaded)
                if owned.get(giver):
                    heapq.heappush(most_loaded, (-load[giver], minus))
                continue
            while least_loaded[0][0] != load[least_loaded[0][1]]:
                heapq.heapreplace(least_loaded, (load[least_loaded[0][1]], least_loaded[0][1]))
            taker = least_loaded[0][1]
            if load[giver] - load[taker] <= 1:
                break
            partition = owned[giver].pop()
            owners[partition] = taker
            owned.setdefault(taker, []).append(partition)
            load[giver] -= 1
            load[taker] += 1
            moved += 1
            heapq.heapreplace(least_loaded, (load[taker], taker))
            heapq.heappush(least_loaded, (load[giver], giver))
            heapq.heappush(most_loaded, (-load[taker], -taker))
        return moved


def assign_ranges(group: GroupSpec) -> dict[str, Partitions]:
    """Assign each subscribed member a contiguous range of every topic, in order of the member ids."""
    order = sorted(group.members, key=lambda member_id: _range_order(member_id, group.members[member_id]))
    members: dict[Uuid, int] = {}
    for member_id in order:
        for topic_id in group.members[member_id].topics:
            members[topic_id] = members.get(topic_id, 0) + 1
    next_partition = dict.fromkeys(members, 0)
    remainder = {topic_id: group.partition_counts[topic_id] % count for topic_id, count in members.items()}
    assignment: dict[str, Partitions] = {}
    for member_id in order:
        target: Partitions = {}
        for topic_id in group.members[member_id].topics:
            size = group.partition_counts[topic_id] // members[topic_id]
            if remainder[topic_id] > 0:
                remainder[topic_id] -= 1
                size += 1
            start = next_partition[topic_id]
            next_partition[topic_id] = start + size
            if size > 0:
                target[topic_id] = tuple(range(start, start + size))
        assignment[member_id] = target
    return {member_id: assignment[member_id] for member_id in group.members}


def _range_order(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    """Return the sort key of a member: static members first, by instance id, so that they keep their range."""
    return (member.instance_id is None, member.instance_id or member_id)


ASSIGNORS: dict[str, Callable[[GroupSpec], dict[str, Partitions]]] = {
    "uniform": assign_uniformly,
    "range": assign_ranges,
}
"""The assignors by name; `group.consumer.assignors` selects and orders those that a broker offers."""
