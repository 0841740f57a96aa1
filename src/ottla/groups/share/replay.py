"""Replay of the records of share groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ottla.groups.modern import LEAVE_GROUP_EPOCH, MemberState
from ottla.groups.share.group import InitializedTopic, ShareGroup, ShareMember, StatePartitions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.group import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicPartitionsInfo,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard
    from ottla.protocol.uuids import Uuid

ShareKey = (
    ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupCurrentMemberAssignmentKey
    | ShareGroupStatePartitionMetadataKey
)


def replay(shard: Shard, key: ShareKey, record: GroupRecord) -> None:
    """Apply a record of a share group; tombstones of unknown groups change nothing."""
    value = record.value
    group = _group(shard, key.group_id, create=value is not None)
    if group is None:
        return
    match key:
        case ShareGroupMemberMetadataKey():
            _subscription(shard, group, key.member_id, cast("ShareGroupMemberMetadataValue | None", value))
        case ShareGroupMetadataKey():
            _epoch(shard, group, cast("ShareGroupMetadataValue | None", value))
        case ShareGroupTargetAssignmentMemberKey():
            _target(group, key.member_id, cast("ShareGroupTargetAssignmentMemberValue | None", value))
        case ShareGroupTargetAssignmentMetadataKey():
            group.replay_assignment(cast("ShareGroupTargetAssignmentMetadataValue | None", value))
        case ShareGroupCurrentMemberAssignmentKey():
            _current(group, key.member_id, cast("ShareGroupCurrentMemberAssignmentValue | None", value))
        case ShareGroupStatePartitionMetadataKey():
            state = cast("ShareGroupStatePartitionMetadataValue | None", value)
            group.state_partitions = None if state is None else _state_partitions(state, shard.clock.now_ms())


def _group(shard: Shard, group_id: str, *, create: bool) -> ShareGroup | None:
    group = shard.groups.get(group_id)
    if isinstance(group, ShareGroup):
        return group
    if group is not None:
        if not create:
            return None
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Group {group_id} is not a share group")
    if not create:
        return None
    created = shard.groups[group_id] = ShareGroup(group_id)
    return created


def _subscription(shard: Shard, group: ShareGroup, member_id: str, value: ShareGroupMemberMetadataValue | None) -> None:
    before = list(group.subscribed_topics)
    if value is None:
        group.remove_member(member_id)
    else:
        group.update_member(
            replace(
                group.members.get(member_id) or ShareMember(member_id),
                rack_id=value.rack_id,
                client_id=value.client_id,
                client_host=value.client_host,
                subscribed_topic_names=frozenset(value.subscribed_topic_names),
            )
        )
    shard.index_topics(group.group_id, before, group.subscribed_topics)


def _epoch(shard: Shard, group: ShareGroup, value: ShareGroupMetadataValue | None) -> None:
    if value is None:
        shard.index_topics(group.group_id, group.subscribed_topics, ())
        del shard.groups[group.group_id]
        return
    group.group_epoch = value.epoch
    group.metadata_hash = value.metadata_hash


def _target(group: ShareGroup, member_id: str, value: ShareGroupTargetAssignmentMemberValue | None) -> None:
    if value is None:
        group.targets.pop(member_id, None)
    else:
        group.targets[member_id] = {topic.topic_id: tuple(sorted(topic.partitions)) for topic in value.topic_partitions}


def _current(group: ShareGroup, member_id: str, value: ShareGroupCurrentMemberAssignmentValue | None) -> None:
    member = group.members.get(member_id)
    if value is None:
        if member is not None:
            gone = replace(member, member_epoch=LEAVE_GROUP_EPOCH, previous_member_epoch=LEAVE_GROUP_EPOCH, assigned={})
            group.update_member(gone)
        return
    states = {state.value for state in MemberState}
    group.update_member(
        replace(
            member or ShareMember(member_id),
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if value.state in states else MemberState.UNKNOWN,
            assigned={topic.topic_id: tuple(sorted(topic.partitions)) for topic in value.assigned_partitions},
        )
    )


def _state_partitions(value: ShareGroupStatePartitionMetadataValue, now_ms: int) -> StatePartitions:
    return StatePartitions(
        _topics(value.initializing_topics, now_ms),
        _topics(value.initialized_topics, now_ms),
        {topic.topic_id: topic.topic_name for topic in value.deleting_topics},
    )


def _topics(topics: Iterable[TopicPartitionsInfo], now_ms: int) -> dict[Uuid, InitializedTopic]:
    return {topic.topic_id: InitializedTopic(topic.topic_name, frozenset(topic.partitions), now_ms) for topic in topics}
