"""Classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup (Kafka's ...ToConsumerGroup).

The member epoch is the generation. A join reports the owned partitions and reconciles the member; it never waits for
other members.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.groups.classic import consumer_protocol
from ottla.groups.classic.group import CONSUMER_PROTOCOL
from ottla.groups.classic.join import FIRST_VERSION_WITH_MEMBER_ID_REQUIRED, distinct_protocols
from ottla.groups.classic.membership import join_error
from ottla.groups.consumer.fencing import fence_members
from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember
from ottla.groups.consumer.heartbeat import check_max_size, check_static, join_static
from ottla.groups.consumer.rebalance import (
    RegexUpdate,
    reconcile_member,
    update_epoch,
    update_member,
    update_regexes,
    update_target,
)
from ottla.groups.consumer.timers import schedule_join_timeout, schedule_session_timeout, schedule_sync_timeout
from ottla.groups.migration.downgrade import classic_assignment, downgrade, may_downgrade_by_replacing
from ottla.groups.migration.upgrade import classic_metadata
from ottla.groups.modern import MemberState, Target
from ottla.groups.outcome import Outcome
from ottla.groups.timers import JOIN, SYNC, member_timer
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.k13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from ottla.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.protocol.messages.k68_consumer_group_heartbeat import TopicPartitions
from ottla.protocol.uuids import Uuid

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.groups.environment import RequestContext, Topics
    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard
    from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolSubscription


def join(
    shard: Shard, context: RequestContext, group: ConsumerGroup, request: JoinGroupRequest
) -> Outcome[JoinGroupResponse]:
    """Add a classic member to a consumer group, or reconcile it with the partitions that it reports as owned."""
    if shard.settings.coordinator().consumer_migration_policy == "disabled":
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    is_unknown = request.member_id == ""
    member_id = request.member_id or str(Uuid(shard.random.uuid()))
    check_max_size(shard, group, member_id)
    _check_protocols(group, request)
    instance_id = request.group_instance_id
    if is_unknown and instance_id is None and context.version >= FIRST_VERSION_WITH_MEMBER_ID_REQUIRED:
        return Outcome(join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    subscription = _subscription(request)
    written: list[GroupRecord] = []
    existing = group.static_member(instance_id)
    member = _joining(group, member_id, instance_id, existing, written, is_unknown=is_unknown)
    downgrades = may_downgrade_by_replacing(shard, group, existing)
    updated = _updated(member, context, request, subscription)
    names_changed = update_member(group, member, updated, written)
    regex = update_regexes(shard, context, group, member, updated, written)
    bump = names_changed or regex is not RegexUpdate.UNCHANGED
    epoch = update_epoch(shard, group, member, updated, written, bump=bump)
    if downgrades:
        target = Target(group.assignment_epoch, group.target_of_instance(member_id, instance_id))
    else:
        target = update_target(shard, group, epoch, member, updated, written)
    stale = downgrades and group.assignment_epoch < epoch.epoch
    if not stale:
        updated = reconcile_member(
            shard,
            group,
            updated,
            target,
            written,
            owned=_owned(shard.topics, subscription),
            subscription_changed=bump,
        )
    response = JoinGroupResponse(
        member_id=member_id,
        generation_id=updated.member_epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=request.protocols[0].name,
    )

    def stored(code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            return
        shard.timers.cancel(member_timer(JOIN, group.group_id, member_id))
        if not downgrades:
            schedule_session_timeout(shard, group.group_id, member_id, request.session_timeout_ms)
            schedule_sync_timeout(shard, group.group_id, member_id, request.rebalance_timeout_ms)

    if not downgrades:
        return Outcome(response, written, on_durable=stored)
    assert existing is not None
    install = _downgrade(shard, group, existing, updated, written, stale=stale)
    return Outcome(response, written, replay=False, on_appended=install, on_durable=stored)


def _check_protocols(group: ConsumerGroup, request: JoinGroupRequest) -> None:
    names = [protocol.name for protocol in request.protocols]
    shared = any(group.classic_protocols.get(name, 0) == group.classic_member_count for name in names)
    if request.protocol_type != CONSUMER_PROTOCOL or not shared:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _subscription(request: JoinGroupRequest) -> ConsumerProtocolSubscription:
    try:
        return consumer_protocol.read_subscription(request.protocols[0].metadata)
    except ProtocolError:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) from None


def _joining(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    existing: ConsumerMember | None,
    written: list[GroupRecord],
    *,
    is_unknown: bool,
) -> ConsumerMember:
    if instance_id is None:
        return group.members.get(member_id) or ConsumerMember(member_id)
    if is_unknown:
        return join_static(group, member_id, instance_id, existing, written, classic=True)
    check_static(group, existing, member_id, instance_id)
    assert existing is not None
    return existing


def _updated(
    member: ConsumerMember,
    context: RequestContext,
    request: JoinGroupRequest,
    subscription: ConsumerProtocolSubscription,
) -> ConsumerMember:
    timeout = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        subscribed_topic_names=frozenset(subscription.topics),
        subscribed_topic_regex="",
        client_id=context.client_id,
        client_host=context.client_host,
        classic_metadata=classic_metadata(request.session_timeout_ms, distinct_protocols(request)),
    )


def _owned(topics: Topics, subscription: ConsumerProtocolSubscription) -> list[TopicPartitions]:
    owned = []
    for named in subscription.owned_partitions:
        topic = topics.by_name(named.topic)
        if topic is not None:
            owned.append(TopicPartitions(topic_id=topic.id, partitions=named.partitions))
    return owned


def _downgrade(
    shard: Shard,
    group: ConsumerGroup,
    replaced: ConsumerMember,
    joining: ConsumerMember,
    written: list[GroupRecord],
    *,
    stale: bool,
) -> Callable[[], None]:
    """Downgrade the group because a classic member replaces its last member of the consumer protocol."""
    members = [member for member in group.members.values() if member is not replaced]
    written += group.tombstones_for(
        joining.member_id if member_id == replaced.member_id else member_id for member_id in group.members
    )
    targets = {**group.targets, joining.member_id: group.target(replaced.member_id)}
    return downgrade(shard, group, [*members, joining], written, rebalance=stale, targets=targets)


# SyncGroup, Heartbeat and LeaveGroup


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is None:
        member = group.member(member_id)
    else:
        existing = group.static_member(instance_id)
        if existing is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member with instance id {instance_id} is not a member of group {group.group_id}.",
            )
        check_static(group, existing, member_id, instance_id)
        member = existing
    if not member.uses_classic_protocol:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member.member_id} does not use the classic protocol.")
    return member


def _check_generation(member: ConsumerMember, generation_id: int) -> None:
    if member.member_epoch != generation_id:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request generation id {generation_id} is not equal to the member epoch {member.member_epoch} of "
            f"member {member.member_id}.",
        )


def sync(shard: Shard, group: ConsumerGroup, request: SyncGroupRequest) -> Outcome[SyncGroupResponse]:
    """Respond with the partitions that a classic member owns."""
    member = _classic_member(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    assert member.classic_metadata is not None
    protocol = member.classic_metadata.supported_protocols[0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol_name not in (None, protocol.name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.assignment_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        schedule_join_timeout(shard, group.group_id, member)
        raise KafkaError(
            ErrorCode.REBALANCE_IN_PROGRESS,
            f"A new rebalance is triggered in group {group.group_id} and member {member.member_id} should rejoin to "
            "catch up.",
        )

    def stored(code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            return
        shard.timers.cancel(member_timer(SYNC, group.group_id, member.member_id))
        schedule_session_timeout(shard, group.group_id, member.member_id, member.classic_session_timeout_ms)

    partitions = {topic_id: tuple(epochs) for topic_id, epochs in member.assigned.items()}
    version = consumer_protocol.read_version(protocol.metadata)
    response = SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=classic_assignment(shard.topics, partitions, version),
    )
    return Outcome(response, on_durable=stored)


def heartbeat(shard: Shard, group: ConsumerGroup, request: HeartbeatRequest) -> Outcome[HeartbeatResponse]:
    """Reset a classic member's session timer; respond REBALANCE_IN_PROGRESS if it must rejoin to be reconciled."""
    member = _classic_member(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    schedule_session_timeout(shard, group.group_id, member.member_id, member.classic_session_timeout_ms)
    if (
        member.member_epoch < group.assignment_epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_partitions(group, member))
    ):
        schedule_join_timeout(shard, group.group_id, member)
        return Outcome(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    return Outcome(HeartbeatResponse())


def _waits_for_partitions(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return whether another member still owns a partition of this one's target, so that a rejoin changes nothing."""
    return any(
        partition not in member.assigned.get(topic_id, {}) and group.partition_epoch(topic_id, partition) != -1
        for topic_id, partitions in group.target(member.member_id).items()
        for partition in partitions
    )


def leave(shard: Shard, group: ConsumerGroup, request: LeaveGroupRequest) -> Outcome[LeaveGroupResponse]:
    """Fence members, each with its own error code; administrators remove members of either protocol this way."""
    responses: list[MemberResponse] = []
    leaving: dict[str, ConsumerMember] = {}
    for identity in request.members:
        response = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
        responses.append(response)
        try:
            if identity.group_instance_id is None:
                member = group.member(identity.member_id)
            else:
                existing = group.static_member(identity.group_instance_id)
                member_id = identity.member_id or (existing.member_id if existing is not None else "")
                check_static(group, existing, member_id, identity.group_instance_id)
                assert existing is not None
                member = existing
        except KafkaError as error:
            response.error_code = error.code
            continue
        leaving[member.member_id] = member
    return fence_members(shard, group, list(leaving.values()), LeaveGroupResponse(members=responses))
