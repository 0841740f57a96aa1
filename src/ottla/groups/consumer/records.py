"""The records of consumer groups in `__consumer_offsets`: types 3 to 8 and 16 (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.records import GroupRecord
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
    TopicPartition,
)

if TYPE_CHECKING:
    from ottla.groups.consumer.group import ConsumerMember, PartitionEpochs, ResolvedRegex
    from ottla.groups.modern import Partitions


def member_subscription(group_id: str, member: ConsumerMember) -> GroupRecord:
    """Return the record of a member's identity and subscription."""
    value = ConsumerGroupMemberMetadataValue(
        rack_id=member.rack_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        server_assignor=member.server_assignor,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic_member_metadata=member.classic_metadata,
    )
    return GroupRecord(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value)


def member_subscription_tombstone(group_id: str, member_id: str) -> GroupRecord:
    """Return the tombstone of a member."""
    return GroupRecord(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None)


def subscription_metadata_tombstone(group_id: str) -> GroupRecord:
    """Return the tombstone of the topic metadata that Kafka 4.0 stored; Kafka 4.1 replaced it by a hash."""
    return GroupRecord(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    """Return the record of a group epoch and the metadata hash of its subscribed topics."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return GroupRecord(ConsumerGroupMetadataKey(group_id=group_id), value)


def group_epoch_tombstone(group_id: str) -> GroupRecord:
    """Return the tombstone of a consumer group."""
    return GroupRecord(ConsumerGroupMetadataKey(group_id=group_id), None)


def target_assignment(group_id: str, member_id: str, partitions: Partitions) -> GroupRecord:
    """Return the record of a member's target assignment."""
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=list(indexes)) for topic_id, indexes in partitions.items()
        ]
    )
    return GroupRecord(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def target_assignment_tombstone(group_id: str, member_id: str) -> GroupRecord:
    """Return the tombstone of a member's target assignment."""
    return GroupRecord(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)


def target_assignment_epoch(group_id: str, epoch: int, timestamp_ms: int) -> GroupRecord:
    """Return the record of the assignment epoch and the time of its computation."""
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return GroupRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_assignment_epoch_tombstone(group_id: str) -> GroupRecord:
    """Return the tombstone of the assignment epoch."""
    return GroupRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None)


def current_assignment(group_id: str, member: ConsumerMember) -> GroupRecord:
    """Return the record of a member's current assignment and of the partitions that it has yet to revoke."""
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member.state.value,
        assigned_partitions=_with_epochs(member.assigned),
        partitions_pending_revocation=_with_epochs(member.pending_revocation),
    )
    return GroupRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value)


def current_assignment_tombstone(group_id: str, member_id: str) -> GroupRecord:
    """Return the tombstone of a member's current assignment."""
    return GroupRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)


def regular_expression(group_id: str, regex: str, resolved: ResolvedRegex) -> GroupRecord:
    """Return the record of the topics that a regular expression matches."""
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return GroupRecord(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value)


def regular_expression_tombstone(group_id: str, regex: str) -> GroupRecord:
    """Return the tombstone of a regular expression."""
    return GroupRecord(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None)


def _with_epochs(assignment: PartitionEpochs) -> list[ConsumerGroupCurrentMemberAssignmentTopicPartitions]:
    return [
        ConsumerGroupCurrentMemberAssignmentTopicPartitions(
            topic_id=topic_id, partitions=list(epochs), assignment_epochs=list(epochs.values())
        )
        for topic_id, epochs in assignment.items()
    ]
