"""Upgrade: a classic group becomes a consumer group when a member of the consumer protocol joins it.

Its classic members keep their partitions and their protocol: the group is mixed from then on.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ottla.groups.classic import consumer_protocol
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.classic.membership import cancel_timers
from ottla.groups.consumer import records
from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember, PartitionEpochs
from ottla.groups.consumer.timers import schedule_session_timeout
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.messages.k11_join_group import JoinGroupResponse
from ottla.protocol.messages.k14_sync_group import SyncGroupResponse
from ottla.protocol.record_schemas.group import ClassicMemberMetadata, ClassicProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.groups.classic.group import ClassicMember, Protocols
    from ottla.groups.modern import Partitions
    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard


def replace_classic_group(
    shard: Shard, group_id: str, written: list[GroupRecord]
) -> tuple[ConsumerGroup, Callable[[], None] | None]:
    """Return the consumer group that a member joins under an id that no consumer group has yet.

    A classic group with members is upgraded; an empty one is deleted. The function that comes with the group is to be
    called when the records are appended.
    """
    group = shard.groups.get(group_id)
    if isinstance(group, ClassicGroup) and not group.is_empty:
        return _upgrade(shard, group, written), partial(_finish_upgrade, shard, group)
    if isinstance(group, ClassicGroup):
        written += group.tombstones()
    elif group is not None:
        shard.consumer_group(group_id)  # raises: share and streams groups are not converted
    return ConsumerGroup(group_id), None


def _upgrade(shard: Shard, group: ClassicGroup, written: list[GroupRecord]) -> ConsumerGroup:
    """Return a consumer group of the same members and append the records that create it."""
    _validate_upgrade(shard, group)
    for member in list(group.members.values()):
        group.complete_join(
            member, JoinGroupResponse(member_id=member.member_id, error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        )
        group.complete_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    try:
        consumer = _to_consumer(shard, group)
    except ProtocolError:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group.group_id} to consumer group because the embedded consumer protocol "
            "is malformed.",
        ) from None
    group_id = group.group_id
    written += group.tombstones()
    members = consumer.members.values()
    written += [records.member_subscription(group_id, member) for member in members]
    written.append(records.group_epoch(group_id, consumer.group_epoch, consumer.metadata_hash))
    written += [
        records.target_assignment(group_id, member_id, consumer.target(member_id)) for member_id in consumer.members
    ]
    written.append(
        records.target_assignment_epoch(group_id, consumer.assignment_epoch, consumer.assignment_timestamp_ms)
    )
    written += [records.current_assignment(group_id, member) for member in members]
    return consumer


def _finish_upgrade(shard: Shard, group: ClassicGroup) -> None:
    """Move the members' sessions to the consumer group.

    Only once the records are appended: after a failed upgrade the classic group keeps its timers.
    """
    cancel_timers(shard, group)
    for member_id, member in shard.consumer_group(group.group_id).members.items():
        if member.uses_classic_protocol:
            schedule_session_timeout(shard, group.group_id, member_id, member.classic_session_timeout_ms)


def _validate_upgrade(shard: Shard, group: ClassicGroup) -> None:
    settings = shard.settings.coordinator()
    reason = None
    if not settings.upgrade_enabled:
        reason = "online upgrade is disabled"
    elif not group.uses_consumer_protocol:
        reason = "the group does not use the consumer embedded protocol"
    elif len(group.members) > settings.consumer_max_size:
        reason = "the group size exceeds the consumer group maximum size"
    if reason is not None:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}.",
        )


def _to_consumer(shard: Shard, group: ClassicGroup) -> ConsumerGroup:
    consumer = ConsumerGroup(group.group_id)
    consumer.group_epoch = consumer.assignment_epoch = group.generation_id
    protocol = group.protocol_name
    if protocol is None or not group.all_support(protocol):
        # The group has had no generation, so that its members own nothing.
        protocol = group.select_protocol()
    for member in group.members.values():
        partitions = _assigned(shard, group, member)
        subscription = consumer_protocol.read_subscription(member.metadata(protocol))
        epochs: PartitionEpochs = {
            topic_id: dict.fromkeys(indexes, group.generation_id) for topic_id, indexes in partitions.items()
        }
        consumer.set_target(member.member_id, partitions)
        consumer.update_member(
            ConsumerMember(
                member.member_id,
                member_epoch=group.generation_id,
                previous_member_epoch=group.generation_id,
                instance_id=member.group_instance_id,
                rack_id=subscription.rack_id or None,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=frozenset(subscription.topics),
                assigned=epochs,
                classic_metadata=classic_metadata(member.session_timeout_ms, member.protocols),
            )
        )
    consumer.metadata_hash = shard.topic_hashes.of_topics(consumer.subscribed_topics)
    return consumer


def _assigned(shard: Shard, group: ClassicGroup, member: ClassicMember) -> Partitions:
    if not member.assignment:
        return {}
    assignment = consumer_protocol.read_assignment(member.assignment)
    if assignment.user_data:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group.group_id} to consumer group because an unsupported custom assignor "
            "is in use. Please refer to the documentation or switch to a default assignor before re-attempting the "
            "upgrade.",
        )
    partitions: Partitions = {}
    for assigned in assignment.assigned_partitions:
        topic = shard.topics.by_name(assigned.topic)
        if topic is not None:
            partitions[topic.id] = tuple(sorted(set(assigned.partitions)))
    return partitions


def classic_metadata(session_timeout_ms: int, protocols: Protocols) -> ClassicMemberMetadata:
    """Return what a consumer group stores of a classic member for a later downgrade."""
    return ClassicMemberMetadata(
        session_timeout_ms=session_timeout_ms,
        supported_protocols=[ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols],
    )
