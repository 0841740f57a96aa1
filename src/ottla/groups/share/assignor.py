"""The assignor of share groups (Kafka's SimpleAssignor), which assigns a partition to several members.

Each partition gets equally many members and each member equally many partitions; assigned partitions stay in place as
far as that allows. Members and partitions are visited in the order of Kafka's hash maps.
"""

from __future__ import annotations

import struct
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ottla.groups.modern import Partitions, SubscriptionType
from ottla.hashing.java import hash_map_order, hash_order

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ottla.protocol.uuids import Uuid

K = TypeVar("K")
_HALVES: Final = struct.Struct(">QQ")


class ShareMemberSpec(NamedTuple):
    """The input of the assignor for a member: subscribed topics and previous target assignment."""

    topics: tuple[Uuid, ...]
    target: Partitions


def assign(
    members: Mapping[str, ShareMemberSpec],
    assignable: Mapping[Uuid, Collection[int]],
    subscription_type: SubscriptionType,
) -> dict[str, Partitions]:
    """Return the target assignment of all members, out of the initialized partitions."""
    if not members or not any(member.topics for member in members.values()):
        return {}
    ids = hash_map_order(members)
    if subscription_type is SubscriptionType.HOMOGENEOUS:
        topics = members[ids[0]].topics
        old = {
            member_id: [
                (topic_id, partition)
                for topic_id in hash_order(members[member_id].target, _topic_hash)
                if topic_id in topics
                for partition in members[member_id].target[topic_id]
            ]
            for member_id in ids
        }
        targets = [(topic_id, index) for topic_id in topics for index in sorted(assignable.get(topic_id, ()))]
        shared = _share(old, ids, targets, _partition_order)
        return {member_id: _partitions(pairs) for member_id, pairs in shared.items()}
    # Different subscriptions: partition topic is assigned separately to its subscribers.
    result: dict[str, dict[Uuid, tuple[int, ...]]] = {member_id: dict(members[member_id].target) for member_id in ids}
    for topic_id in dict.fromkeys(topic_id for member_id in ids for topic_id in members[member_id].topics):
        held = {member_id: members[member_id].target.get(topic_id, ()) for member_id in ids}
        subscribers = [member_id for member_id in ids if topic_id in members[member_id].topics]
        indexes = sorted(assignable.get(topic_id, ()))
        for member_id, partitions in _share(held, subscribers, indexes, _number_order).items():
            if partitions:
                result[member_id][topic_id] = tuple(sorted(partitions))
            else:
                result[member_id].pop(topic_id, None)
    return dict(result)


def _share(
    old: Mapping[str, Iterable[K]],
    subscribers: Sequence[str],
    targets: Sequence[K],
    order: Callable[[Iterable[K], int], list[K]],
) -> dict[str, dict[K, None]]:
    """Distribute partitions over subscribers; `old` has the previous assignment of all members, in order."""
    sharing = ceil(len(subscribers) / len(targets)) if targets else 0
    precise = sharing * len(targets) / len(subscribers)
    desired = {
        member_id: ceil(precise * (index + 1)) - ceil(precise * index) for index, member_id in enumerate(subscribers)
    }
    owned = {member_id: dict.fromkeys(partitions) for member_id, partitions in old.items()}
    for member_id, partitions in owned.items():
        too_many = len(partitions) - desired.get(member_id, 0)
        for partition in order(partitions, 16)[: max(too_many, 0)]:
            del partitions[partition]
    holders: dict[K, list[str]] = {partition: [] for partitions in old.values() for partition in partitions}
    for member_id, partitions in owned.items():
        for partition in partitions:
            holders[partition].append(member_id)
    capacity = int((len(targets) + 1) / 0.75 + 1)
    for partition in order(reversed(holders), capacity):  # computeIfAbsent puts a key before those of the same bucket
        for member_id in holders[partition][: max(len(holders[partition]) - sharing, 0)]:
            del owned[member_id][partition]
            holders[partition].remove(member_id)
    for partition in targets:
        holders.setdefault(partition, [])
    unfilled = [member_id for member_id in subscribers if len(owned[member_id]) < desired[member_id]]
    position, progress = 0, False
    for partition in order(reversed(holders), capacity):
        missing = sharing - len(holders[partition])
        while missing > 0:
            if position == len(unfilled):
                if not progress or not unfilled:
                    break  # no member with capacity can take this partition: accept a slight imbalance
                position, progress = 0, False
            member_id = unfilled[position]
            position += 1
            if member_id not in holders[partition]:
                owned[member_id][partition] = None
                missing -= 1
                progress = True
                if len(owned[member_id]) >= desired[member_id]:
                    position -= 1
                    del unfilled[position]
    return owned


def _partitions(pairs: Iterable[tuple[Uuid, int]]) -> Partitions:
    by_topic: dict[Uuid, list[int]] = {}
    for topic_id, partition in sorted(pairs):
        by_topic.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(indexes) for topic_id, indexes in by_topic.items()}


def _number_order(keys: Iterable[int], capacity: int) -> list[int]:
    return hash_order(keys, lambda key: key, capacity)


def _partition_order(keys: Iterable[tuple[Uuid, int]], capacity: int) -> list[tuple[Uuid, int]]:
    return hash_order(keys, _partition_hash, capacity)


def _partition_hash(key: tuple[Uuid, int]) -> int:
    """Return the hash code of Kafka's TopicIdPartition."""
    topic_id, partition = key
    return 31 * _topic_hash(topic_id) + partition


def _topic_hash(topic_id: Uuid) -> int:
    high, low = _HALVES.unpack(topic_id)
    mixed: int = high ^ low
    return (mixed >> 32) ^ (mixed & 0xFFFFFFFF)
