"""The records of share groups in `__consumer_offsets`: types 10 to 15."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.records import GroupRecord
from ottla.protocol.record_schemas.group import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentTopicPartitions,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataTopicInfo,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicPartition,
    TopicPartitionsInfo,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ottla.groups.modern import Partitions
    from ottla.groups.share.group import InitializedTopic, ShareMember, StatePartitions
    from ottla.protocol.uuids import Uuid


def member_subscription(group_id: str, member: ShareMember) -> GroupRecord:
    """Return the record of a member's identity and subscription."""
    value = ShareGroupMemberMetadataValue(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
    )
    return GroupRecord(ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value)


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    """Return the record of a group epoch and the metadata hash of its subscribed topics."""
    value = ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return GroupRecord(ShareGroupMetadataKey(group_id=group_id), value)


def target_assignment(group_id: str, member_id: str, partitions: Partitions) -> GroupRecord:
    """Return the record of a member's target assignment."""
    value = ShareGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=list(indexes)) for topic_id, indexes in partitions.items()
        ]
    )
    return GroupRecord(ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def target_assignment_epoch(group_id: str, epoch: int, timestamp_ms: int) -> GroupRecord:
    """Return the record of the assignment epoch and the time of its computation."""
    value = ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return GroupRecord(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def current_assignment(group_id: str, member: ShareMember) -> GroupRecord:
    """Return the record of a member's current assignment."""
    value = ShareGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member.state.value,
        assigned_partitions=[
            ShareGroupCurrentMemberAssignmentTopicPartitions(topic_id=topic_id, partitions=list(indexes))
            for topic_id, indexes in member.assigned.items()
        ],
    )
    return GroupRecord(ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value)


def state_partitions(group_id: str, state: StatePartitions) -> GroupRecord:
    """Return the record of the group's share-partition state."""
    value = ShareGroupStatePartitionMetadataValue(
        initializing_topics=_topics(state.initializing),
        initialized_topics=_topics(state.initialized),
        deleting_topics=[
            ShareGroupStatePartitionMetadataTopicInfo(topic_id=topic_id, topic_name=name)
            for topic_id, name in state.deleting.items()
        ],
    )
    return GroupRecord(ShareGroupStatePartitionMetadataKey(group_id=group_id), value)


def _topics(topics: Mapping[Uuid, InitializedTopic]) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions))
        for topic_id, topic in topics.items()
    ]


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    """Return the tombstones that remove a member."""
    return [
        GroupRecord(ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        GroupRecord(ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        GroupRecord(ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(group_id: str, member_ids: Iterable[str]) -> list[GroupRecord]:
    """Return the tombstones that delete a group."""
    ids = list(member_ids)
    return [
        *(
            GroupRecord(ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)
            for member_id in ids
        ),
        *(
            GroupRecord(ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)
            for member_id in ids
        ),
        GroupRecord(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        *(GroupRecord(ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None) for member_id in ids),
        GroupRecord(ShareGroupStatePartitionMetadataKey(group_id=group_id), None),
        GroupRecord(ShareGroupMetadataKey(group_id=group_id), None),
    ]
