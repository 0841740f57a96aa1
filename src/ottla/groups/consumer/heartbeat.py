"""ConsumerGroupHeartbeat (KIP-848): join, subscribe, acknowledge revocations and leave."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.groups.consumer import records
from ottla.groups.consumer.fencing import fence_members, member_tombstones
from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember, PartitionEpochs
from ottla.groups.consumer.rebalance import (
    RegexUpdate,
    reconcile_member,
    update_epoch,
    update_member,
    update_regexes,
    update_target,
)
from ottla.groups.consumer.timers import schedule_session_timeout
from ottla.groups.migration.upgrade import replace_classic_group
from ottla.groups.modern import JOIN_EPOCH, LEAVE_GROUP_EPOCH, LEAVE_GROUP_STATIC_EPOCH
from ottla.groups.outcome import Outcome
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.uuids import Uuid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.groups.environment import RequestContext
    from ottla.groups.records import GroupRecord
    from ottla.groups.settings import CoordinatorSettings
    from ottla.groups.shard import Shard

FIRST_VERSION_WITH_CLIENT_MEMBER_ID = 1


def validate(request: ConsumerGroupHeartbeatRequest, version: int, settings: CoordinatorSettings) -> None:
    """Raise for a request that is invalid in any group."""
    epoch = request.member_epoch
    needs_member_id = version >= FIRST_VERSION_WITH_CLIENT_MEMBER_ID or epoch > 0 or epoch == LEAVE_GROUP_EPOCH
    if needs_member_id and not request.member_id.strip():
        raise _invalid("MemberId can't be empty.")
    if not request.group_id.strip():
        raise _invalid("GroupId can't be empty.")
    if request.instance_id is not None and not request.instance_id.strip():
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise _invalid("RackId can't be empty.")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == LEAVE_GROUP_STATIC_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_GROUP_STATIC_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in settings.consumer_assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(settings.consumer_assignors)}.",
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def heartbeat(
    shard: Shard, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Outcome[ConsumerGroupHeartbeatResponse]:
    """Add, reconcile or remove a member, by the epoch that it sends."""
    if request.member_epoch in (LEAVE_GROUP_EPOCH, LEAVE_GROUP_STATIC_EPOCH):
        return _leave(shard, request)
    written: list[GroupRecord] = []
    joins = request.member_epoch == JOIN_EPOCH
    on_appended = None
    if joins and not isinstance(shard.groups.get(request.group_id), ConsumerGroup):
        group, on_appended = replace_classic_group(shard, request.group_id, written)
    else:
        group = _existing_group(shard, request.group_id)
    check_max_size(shard, group, request.member_id)
    member_id = request.member_id or str(Uuid(shard.random.uuid()))
    member = _member(group, member_id, request, written)
    updated = _updated(member, context, request)
    names_changed = update_member(group, member, updated, written)
    regex = update_regexes(shard, context, group, member, updated, written)
    bump = names_changed or regex is RegexUpdate.CHANGED_AND_RESOLVED
    epoch = update_epoch(shard, group, member, updated, written, bump=bump)
    target = update_target(shard, group, epoch, member, updated, written)
    updated = reconcile_member(
        shard,
        group,
        updated,
        target,
        written,
        owned=request.topic_partitions,
        subscription_changed=names_changed or regex is not RegexUpdate.UNCHANGED,
    )
    schedule_session_timeout(shard, request.group_id, member_id)
    response = ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=updated.member_epoch,
        heartbeat_interval_ms=shard.settings.group(request.group_id).heartbeat_interval_ms,
    )
    is_full_request = (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )
    if joins or is_full_request or member.assigned != updated.assigned:
        response.assignment = _assignment(updated.assigned)
    return Outcome(response, written, on_appended=on_appended)


def _assignment(assigned: PartitionEpochs) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=list(partitions)) for topic_id, partitions in assigned.items()
        ]
    )


def _existing_group(shard: Shard, group_id: str) -> ConsumerGroup:
    if group_id not in shard.groups:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
    return shard.consumer_group(group_id)


def check_max_size(shard: Shard, group: ConsumerGroup, member_id: str) -> None:
    """Raise GROUP_MAX_SIZE_REACHED for a new member of a full group."""
    max_size = shard.settings.coordinator().consumer_max_size
    if len(group.members) >= max_size and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {max_size} members.",
        )


def _updated(member: ConsumerMember, context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    """Return the member with the fields that the request sets."""
    names = request.subscribed_topic_names
    regex = request.subscribed_topic_regex
    timeout = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        server_assignor=member.server_assignor if request.server_assignor is None else request.server_assignor,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        client_id=context.client_id,
        client_host=context.client_host,
        classic_metadata=None,
    )


# The member of a request


def _member(
    group: ConsumerGroup, member_id: str, request: ConsumerGroupHeartbeatRequest, written: list[GroupRecord]
) -> ConsumerMember:
    joins = request.member_epoch == JOIN_EPOCH
    if request.instance_id is None:
        member = group.members.get(member_id) or (ConsumerMember(member_id) if joins else group.member(member_id))
        _check_epoch(member, request.member_epoch, request.topic_partitions)
        return member
    existing = group.static_member(request.instance_id)
    if joins:
        return join_static(group, member_id, request.instance_id, existing, written, classic=False)
    check_static(group, existing, member_id, request.instance_id)
    assert existing is not None
    _check_epoch(existing, request.member_epoch, request.topic_partitions)
    return existing


def join_static(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str,
    existing: ConsumerMember | None,
    written: list[GroupRecord],
    *,
    classic: bool,
) -> ConsumerMember:
    """Return the joining static member: a new one, or the successor of the member that released the instance id."""
    if existing is None:
        return group.members.get(member_id) or ConsumerMember(member_id)
    if not classic and not existing.uses_classic_protocol and existing.member_epoch != LEAVE_GROUP_STATIC_EPOCH:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
            f"is owned by {existing.member_id} member.",
        )
    member = replace(existing, member_id=member_id, member_epoch=0, previous_member_epoch=0)
    group_id = group.group_id
    written += member_tombstones(group_id, existing.member_id)
    written += [
        records.member_subscription(group_id, member),
        records.target_assignment(group_id, member_id, group.target(existing.member_id)),
        records.current_assignment(group_id, member),
    ]
    return member


def check_static(group: ConsumerGroup, existing: ConsumerMember | None, member_id: str, instance_id: str) -> None:
    """Raise UNKNOWN_MEMBER_ID for an unknown instance id, FENCED_INSTANCE_ID if another member has it."""
    if existing is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if existing.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {existing.member_id}.",
        )


def _check_epoch(member: ConsumerMember, received: int, owned: Sequence[TopicPartitions] | None) -> None:
    """Fence a member with another epoch, unless it has only missed the response with its current epoch."""
    if received == JOIN_EPOCH or received == member.member_epoch:
        return
    if received > member.member_epoch:
        relation = "greater"
    elif received == member.previous_member_epoch and _is_subset(owned, member.assigned):
        return
    else:
        relation = "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({received}) than the one known by the group "
        f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_subset(owned: Sequence[TopicPartitions] | None, assigned: PartitionEpochs) -> bool:
    return owned is not None and all(
        topic.topic_id in assigned and all(partition in assigned[topic.topic_id] for partition in topic.partitions)
        for topic in owned
    )


# Leaving


def _leave(shard: Shard, request: ConsumerGroupHeartbeatRequest) -> Outcome[ConsumerGroupHeartbeatResponse]:
    group = shard.consumer_group(request.group_id)
    response = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
    if request.instance_id is None:
        return fence_members(shard, group, [group.member(request.member_id)], response)
    member = group.static_member(request.instance_id)
    check_static(group, member, request.member_id, request.instance_id)
    assert member is not None
    if request.member_epoch == LEAVE_GROUP_EPOCH:
        return fence_members(shard, group, [member], response)
    # A static member that leaves temporarily keeps its partitions until its session expires.
    away = replace(
        member,
        member_epoch=LEAVE_GROUP_STATIC_EPOCH,
        pending_revocation={},
        assigned={topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in member.assigned.items()},
    )
    return Outcome(response, [records.current_assignment(group.group_id, away)])
