"""Replay of the records of consumer groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember, PartitionEpochs, ResolvedRegex
from ottla.groups.modern import MemberState
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.group import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentTopicPartitions,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard


def replay(shard: Shard, record: GroupRecord) -> None:
    """Apply a record of a consumer group; other record types are ignored."""
    key, value = record.key, record.value
    match key:
        case ConsumerGroupMemberMetadataKey():
            _subscription(shard, key, cast("ConsumerGroupMemberMetadataValue | None", value))
        case ConsumerGroupMetadataKey():
            _epoch(shard, key, cast("ConsumerGroupMetadataValue | None", value))
        case ConsumerGroupPartitionMetadataKey():
            group = _group(shard, key.group_id, create=value is not None)
            if group is not None:
                group.has_subscription_metadata_record = value is not None
        case ConsumerGroupTargetAssignmentMemberKey():
            _target(shard, key, cast("ConsumerGroupTargetAssignmentMemberValue | None", value))
        case ConsumerGroupTargetAssignmentMetadataKey():
            _target_epoch(shard, key, cast("ConsumerGroupTargetAssignmentMetadataValue | None", value))
        case ConsumerGroupCurrentMemberAssignmentKey():
            _current(shard, key, cast("ConsumerGroupCurrentMemberAssignmentValue | None", value))
        case ConsumerGroupRegularExpressionKey():
            _regex(shard, key, cast("ConsumerGroupRegularExpressionValue | None", value))


def _group(shard: Shard, group_id: str, *, create: bool) -> ConsumerGroup | None:
    group = shard.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if group is None and not create:
        return None
    if shard.may_create_group(group_id):
        created = ConsumerGroup(group_id)
        shard.groups[group_id] = created
        return created
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Group {group_id} is not a consumer group")


def _subscription(
    shard: Shard, key: ConsumerGroupMemberMetadataKey, value: ConsumerGroupMemberMetadataValue | None
) -> None:
    group = _group(shard, key.group_id, create=value is not None)
    if group is None:
        return
    before = list(group.subscribed_topics)
    if value is None:
        group.remove_member(key.member_id)
    else:
        old = group.members.get(key.member_id) or ConsumerMember(key.member_id)
        group.update_member(
            replace(
                old,
                instance_id=value.instance_id,
                rack_id=value.rack_id,
                client_id=value.client_id,
                client_host=value.client_host,
                subscribed_topic_names=frozenset(value.subscribed_topic_names),
                subscribed_topic_regex=value.subscribed_topic_regex,
                rebalance_timeout_ms=value.rebalance_timeout_ms,
                server_assignor=value.server_assignor,
                classic_metadata=value.classic_member_metadata,
            )
        )
    shard.index_topics(group.group_id, before, group.subscribed_topics)


def _epoch(shard: Shard, key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue | None) -> None:
    group = _group(shard, key.group_id, create=value is not None)
    if group is None:
        return
    if value is None:
        shard.index_topics(group.group_id, group.subscribed_topics, ())
        del shard.groups[key.group_id]
        return
    group.group_epoch = value.epoch
    group.metadata_hash = value.metadata_hash


def _target(
    shard: Shard,
    key: ConsumerGroupTargetAssignmentMemberKey,
    value: ConsumerGroupTargetAssignmentMemberValue | None,
) -> None:
    group = _group(shard, key.group_id, create=value is not None)
    if group is None:
        return
    if value is None:
        group.remove_target(key.member_id)
    else:
        group.set_target(
            key.member_id, {topic.topic_id: tuple(sorted(topic.partitions)) for topic in value.topic_partitions}
        )


def _target_epoch(
    shard: Shard,
    key: ConsumerGroupTargetAssignmentMetadataKey,
    value: ConsumerGroupTargetAssignmentMetadataValue | None,
) -> None:
    group = _group(shard, key.group_id, create=value is not None)
    if group is None:
        return
    group.replay_assignment(value)


def _current(
    shard: Shard,
    key: ConsumerGroupCurrentMemberAssignmentKey,
    value: ConsumerGroupCurrentMemberAssignmentValue | None,
) -> None:
    group = _group(shard, key.group_id, create=value is not None)
    if group is None:
        return
    old = group.members.get(key.member_id)
    if value is None:
        if old is not None:
            group.update_member(
                replace(old, member_epoch=-1, previous_member_epoch=-1, assigned={}, pending_revocation={})
            )
        return
    group.update_member(
        replace(
            old or ConsumerMember(key.member_id),
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=_state(value.state),
            assigned=_with_epochs(value.assigned_partitions, value.member_epoch),
            pending_revocation=_with_epochs(value.partitions_pending_revocation, value.member_epoch),
        )
    )


def _state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:
        return MemberState.UNKNOWN


def _with_epochs(
    topics: Sequence[ConsumerGroupCurrentMemberAssignmentTopicPartitions], member_epoch: int
) -> PartitionEpochs:
    assignment: PartitionEpochs = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            # Kafka before 4.3 wrote no assignment epochs.
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        assignment[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return assignment


def _regex(
    shard: Shard, key: ConsumerGroupRegularExpressionKey, value: ConsumerGroupRegularExpressionValue | None
) -> None:
    group = _group(shard, key.group_id, create=value is not None)
    if group is None:
        return
    before = list(group.subscribed_topics)
    resolved = None
    if value is not None:
        resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
    group.set_resolved_regex(key.regular_expression, resolved)
    shard.index_topics(group.group_id, before, group.subscribed_topics)
