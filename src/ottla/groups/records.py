"""The records of `__consumer_offsets`: what they are made from, and their bytes.

A record is a key and a value, or a key alone that deletes what it names. What replaying one does is in `replay` and
`consumer_replay`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas import group as schemas
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
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    TopicPartition,
)
from ottla.protocol.schema import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.groups.classic.group import ClassicGroup
    from ottla.groups.consumer.group import ConsumerMember, PartitionEpochs, ResolvedRegex
    from ottla.groups.modern import Partitions
    from ottla.groups.offsets.store import OffsetAndMetadata

_INT16: Final = struct.Struct(">h")
_GROUP_METADATA_VERSION: Final = 3

Key: TypeAlias = Message
Value: TypeAlias = Message


class GroupRecord(NamedTuple):
    """One record: a key, and a value in a version, or none to delete."""

    key: Key
    value: Value | None
    version: int = 0

    def encode(self) -> tuple[bytes, bytes | None]:
        """The bytes of key and value: the type's number before the key, the version's before the value."""
        number = self.key.__schema__.api_key
        assert number is not None
        key = _INT16.pack(number) + self.key.encode(0)
        if self.value is None:
            return key, None
        return key, _INT16.pack(self.version) + self.value.encode(self.version)


def _types() -> dict[int, tuple[type[Message], type[Message]]]:
    found: dict[int, list[type[Message]]] = {}
    for name in sorted(vars(schemas)):
        cls = getattr(schemas, name)
        if isinstance(cls, type) and issubclass(cls, Message) and cls.__schema__.kind.startswith("coordinator-"):
            number = cls.__schema__.api_key
            assert number is not None
            found.setdefault(number, []).append(cls)
    return {
        number: (
            next(cls for cls in classes if cls.__schema__.kind == "coordinator-key"),
            next(cls for cls in classes if cls.__schema__.kind == "coordinator-value"),
        )
        for number, classes in found.items()
    }


_TYPES: Final = _types()


def decode_record(key: bytes | None, value: bytes | None) -> GroupRecord | None:
    """Read a record of the log; None for a type that a later Kafka wrote, which is passed over as Kafka does."""
    if key is None or len(key) < 2:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record of __consumer_offsets has no key")
    types = _TYPES.get(_INT16.unpack_from(key)[0])
    if types is None:
        return None
    key_type, value_type = types
    decoded_key = key_type.decode(key, 0, 2)
    if value is None:
        return GroupRecord(decoded_key, None)
    if len(value) < 2:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record of __consumer_offsets has a value without a version")
    version = _INT16.unpack_from(value)[0]
    if version not in value_type.__schema__.versions:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"{value_type.__name__} has no version {version} that this broker can read"
        )
    return GroupRecord(decoded_key, value_type.decode(value, version, 2), version)


# Classic groups and offsets


def classic_group(group: ClassicGroup, assignments: Mapping[str, bytes]) -> GroupRecord:
    """A classic group with its members, in its present generation."""
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol_name),
            assignment=assignments[member.member_id],
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol=group.protocol_name,
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        leader=group.leader_id,
        current_state_timestamp=group.state_timestamp_ms,
        members=members,
    )
    return GroupRecord(GroupMetadataKey(group=group.group_id), value, _GROUP_METADATA_VERSION)


def new_classic_group(group: ClassicGroup) -> GroupRecord:
    """A classic group that has been named but has no generation yet."""
    value = GroupMetadataValue(
        protocol=None,
        protocol_type="",
        generation=0,
        leader=None,
        current_state_timestamp=group.state_timestamp_ms,
        members=[],
    )
    return GroupRecord(GroupMetadataKey(group=group.group_id), value, _GROUP_METADATA_VERSION)


def classic_group_tombstone(group_id: str) -> GroupRecord:
    """The end of a classic group."""
    return GroupRecord(GroupMetadataKey(group=group_id), None)


def offset_commit(group_id: str, topic: str, partition: int, offset: OffsetAndMetadata) -> GroupRecord:
    """A committed offset; only version 1 can hold a time of expiry of its own."""
    value = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
        expire_timestamp=offset.expire_timestamp_ms,
        topic_id=offset.topic_id,
    )
    version = 4 if offset.expire_timestamp_ms == -1 else 1
    return GroupRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), value, version)


def offset_tombstone(group_id: str, topic: str, partition: int) -> GroupRecord:
    """The end of a committed offset."""
    return GroupRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)


# Consumer groups (KIP-848)


def member_subscription(group_id: str, member: ConsumerMember) -> GroupRecord:
    """What a member is and wants to read."""
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
    """The end of a member."""
    return GroupRecord(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None)


def subscription_metadata_tombstone(group_id: str) -> GroupRecord:
    """Removes the record that Kafka 4.0 kept of a group's topics; since 4.1 a hash in the epoch does its work."""
    return GroupRecord(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    """A group's epoch, with the hash of the topics that it was bumped for."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return GroupRecord(ConsumerGroupMetadataKey(group_id=group_id), value)


def group_epoch_tombstone(group_id: str) -> GroupRecord:
    """The end of a consumer group."""
    return GroupRecord(ConsumerGroupMetadataKey(group_id=group_id), None)


def target_assignment(group_id: str, member_id: str, partitions: Partitions) -> GroupRecord:
    """What a member is to own."""
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=list(indexes)) for topic_id, indexes in partitions.items()
        ]
    )
    return GroupRecord(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def target_assignment_tombstone(group_id: str, member_id: str) -> GroupRecord:
    """The end of a member's target."""
    return GroupRecord(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)


def target_assignment_epoch(group_id: str, epoch: int, timestamp_ms: int) -> GroupRecord:
    """The epoch that the targets are for, and when they were computed."""
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return GroupRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_assignment_epoch_tombstone(group_id: str) -> GroupRecord:
    """The end of all targets."""
    return GroupRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None)


def current_assignment(group_id: str, member: ConsumerMember) -> GroupRecord:
    """What a member owns, and what it has yet to give back."""
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member.state.value,
        assigned_partitions=_with_epochs(member.assigned),
        partitions_pending_revocation=_with_epochs(member.pending_revocation),
    )
    return GroupRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value)


def current_assignment_tombstone(group_id: str, member_id: str) -> GroupRecord:
    """A member owns nothing any more."""
    return GroupRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)


def regular_expression(group_id: str, regex: str, resolved: ResolvedRegex) -> GroupRecord:
    """The topics that a regular expression matched."""
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return GroupRecord(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value)


def regular_expression_tombstone(group_id: str, regex: str) -> GroupRecord:
    """Nobody uses a regular expression any more."""
    return GroupRecord(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None)


def _with_epochs(assignment: PartitionEpochs) -> list[ConsumerGroupCurrentMemberAssignmentTopicPartitions]:
    return [
        ConsumerGroupCurrentMemberAssignmentTopicPartitions(
            topic_id=topic_id, partitions=list(epochs), assignment_epochs=list(epochs.values())
        )
        for topic_id, epochs in assignment.items()
    ]
