"""ShareGroupHeartbeat (KIP-932): join, subscribe and leave (Kafka's shareGroupHeartbeat)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ottla.groups.group_events import LEFT
from ottla.groups.modern import JOIN_EPOCH, LEAVE_GROUP_EPOCH, MemberState, Partitions, Target
from ottla.groups.outcome import Outcome
from ottla.groups.share import records
from ottla.groups.share import state as share_state
from ottla.groups.share.assignor import ShareMemberSpec, assign
from ottla.groups.share.group import ShareGroup, ShareMember, subscription_type
from ottla.groups.timers import SESSION, member_timer
from ottla.hashing.java import hash_map_order
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k76_share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.groups.environment import RequestContext
    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard
    from ottla.protocol.uuids import Uuid

R = TypeVar("R")


def validate(request: ShareGroupHeartbeatRequest) -> None:
    """Raise for a request that is invalid in any group."""
    for text, name in ((request.member_id, "MemberId"), (request.group_id, "GroupId"), (request.rack_id, "RackId")):
        if text is not None and not text.strip():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        if not request.subscribed_topic_names:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")
    elif request.member_epoch < LEAVE_GROUP_EPOCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")


def heartbeat(
    shard: Shard, context: RequestContext, request: ShareGroupHeartbeatRequest
) -> Outcome[ShareGroupHeartbeatResponse]:
    """Add, update or remove a member, by the epoch that it sends."""
    if request.member_epoch == LEAVE_GROUP_EPOCH:
        return _leave(shard, request)
    group_id, member_id = request.group_id, request.member_id
    joins = request.member_epoch == JOIN_EPOCH
    group = share_group(shard, group_id, create=joins)
    _check_max_size(shard, group, member_id)
    member = group.members.get(member_id) or (ShareMember(member_id) if joins else group.member(member_id))
    _check_epoch(member, request.member_epoch)
    names = request.subscribed_topic_names
    updated = replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
        client_id=context.client_id,
        client_host=context.client_host,
    )
    written: list[GroupRecord] = []
    if updated != member or member_id not in group.members:
        written.append(records.member_subscription(group_id, updated))
    bump = updated.subscribed_topic_names != member.subscribed_topic_names or (
        group.assignment_epoch >= group.group_epoch and _initialized_but_unassigned(group)
    )
    epoch, topics = group.group_epoch, group.subscribed_topics
    if bump or group.metadata_expired():
        topics = group.topics_after(group.members.get(member_id), updated)
        metadata_hash = shard.topic_hashes.of_topics(topics)
        bump = bump or metadata_hash != group.metadata_hash
        if bump:
            epoch += 1
            written.append(records.group_epoch(group_id, epoch, metadata_hash))
        group.metadata_refreshed(epoch)
    target = _update_target(shard, group, epoch, updated, topics, written)
    updated = _reconcile(shard, group_id, updated, target, written, subscription_changed=bump)
    response = ShareGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=updated.member_epoch,
        heartbeat_interval_ms=shard.settings.group(group_id).share_heartbeat_interval_ms,
    )
    if joins or names is not None or member.assigned != updated.assigned:
        response.assignment = _assignment(updated.assigned)
    initializing = share_state.uninitialized(shard, group, topics)
    if initializing:
        written.append(share_state.initializing_record(group, initializing))

    def appended() -> None:
        schedule_session_timeout(shard, group_id, member_id)
        if initializing:
            share_state.initialize_later(shard, group_id, epoch, initializing)

    return Outcome(response, written, on_appended=appended)


def _assignment(assigned: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=list(partitions)) for topic_id, partitions in assigned.items()
        ]
    )


def share_group(shard: Shard, group_id: str, *, create: bool) -> ShareGroup:
    """Return the share group, or a new one with `create`; raise for a group of another type."""
    group = shard.groups.get(group_id)
    if isinstance(group, ShareGroup):
        return group
    if group is not None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
    if not create:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
    return ShareGroup(group_id)


def _check_max_size(shard: Shard, group: ShareGroup, member_id: str) -> None:
    max_size = shard.settings.coordinator().share_max_size
    if len(group.members) >= max_size and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f"The share group has reached its maximum capacity of {max_size} members."
        )


def _check_epoch(member: ShareMember, received: int) -> None:
    """Fence a member with another epoch, unless it has only missed the response with its current epoch."""
    if received in (JOIN_EPOCH, member.member_epoch):
        return
    epochs = f"({received}) than the one known by the group coordinator ({member.member_epoch})"
    rejoin = "The member must abandon all its partitions and rejoin."
    if received > member.member_epoch:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH, f"The share group member has a greater member epoch {epochs}. {rejoin}"
        )
    if received != member.previous_member_epoch:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The share group member has a smaller member epoch {epochs}, and it does not match the previous member "
            f"epoch ({member.previous_member_epoch}). {rejoin}",
        )


# Epochs and targets


def _initialized_but_unassigned(group: ShareGroup) -> bool:
    """Return whether partitions were initialized since the last target assignment."""
    if group.state_partitions is None or not group.members:
        return False
    assigned: dict[Uuid, set[int]] = {}
    for target in group.targets.values():
        for topic_id, partitions in target.items():
            assigned.setdefault(topic_id, set()).update(partitions)
    return any(
        topic.name in group.subscribed_topics and assigned.get(topic_id, set()) != set(topic.partitions)
        for topic_id, topic in group.state_partitions.initialized.items()
    )


def _update_target(
    shard: Shard,
    group: ShareGroup,
    epoch: int,
    updated: ShareMember,
    topics: Mapping[str, int],
    written: list[GroupRecord],
) -> Target:
    """Return the member's target; compute the whole target assignment if it is older than the group epoch."""
    member_id = updated.member_id
    interval = shard.settings.group(group.group_id).share_assignment_interval_ms
    if group.assignment_epoch >= epoch or group.assigned_within(interval, shard.clock.now_ms()):
        return Target(group.assignment_epoch, group.targets.get(member_id, {}))
    members = {**group.members, member_id: updated}
    ids = {name: topic.id for name in topics if (topic := shard.topics.by_name(name)) is not None}
    specs = {
        subscriber.member_id: ShareMemberSpec(
            tuple(ids[name] for name in hash_map_order(sorted(subscriber.subscribed_topic_names)) if name in ids),
            group.targets.get(subscriber.member_id, {}),
        )
        for subscriber in members.values()
    }
    initialized = group.state_partitions.initialized if group.state_partitions is not None else {}
    assignable = {
        topic_id: _existing_partitions(shard, topic_id, topic.partitions) for topic_id, topic in initialized.items()
    }
    targets = assign(specs, assignable, subscription_type(topics, len(members)))
    written.extend(
        records.target_assignment(group.group_id, assigned_id, targets.get(assigned_id, {}))
        for assigned_id in members
        if group.targets.get(assigned_id) != targets.get(assigned_id, {})
    )
    written.append(records.target_assignment_epoch(group.group_id, epoch, shard.clock.now_ms()))
    return Target(epoch, targets.get(member_id, {}))


def _existing_partitions(shard: Shard, topic_id: Uuid, partitions: frozenset[int]) -> list[int]:
    topic = shard.topics.by_id(topic_id)
    return [] if topic is None else sorted(index for index in partitions if index < topic.partition_count)


def _reconcile(
    shard: Shard,
    group_id: str,
    member: ShareMember,
    target: Target,
    written: list[GroupRecord],
    *,
    subscription_changed: bool,
) -> ShareMember:
    """Give a member its target at once: assignments overlap, so that no member has to revoke a partition first."""
    reached = member.member_epoch == target.epoch
    if reached and (member.state is MemberState.STABLE and not subscription_changed):
        return member
    assigned = {
        topic_id: partitions
        for topic_id, partitions in target.partitions.items()
        if (topic := shard.topics.by_id(topic_id)) is not None and topic.name in member.subscribed_topic_names
    }
    if reached:
        updated = replace(member, assigned=assigned) if subscription_changed else member
    else:
        updated = replace(
            member,
            state=MemberState.STABLE,
            member_epoch=target.epoch,
            previous_member_epoch=member.member_epoch,
            assigned=assigned,
        )
    if updated != member:
        written.append(records.current_assignment(group_id, updated))
    return updated


# Leaving and session timeouts


def _leave(shard: Shard, request: ShareGroupHeartbeatRequest) -> Outcome[ShareGroupHeartbeatResponse]:
    group = shard.share_group(request.group_id)
    response = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
    return _remove(shard, group, group.member(request.member_id), response, LEFT)


def schedule_session_timeout(shard: Shard, group_id: str, member_id: str) -> None:
    """Restart a member's session timer."""
    shard.after(
        member_timer(SESSION, group_id, member_id),
        shard.settings.group(group_id).share_session_timeout_ms,
        partial(_expire_session, shard, group_id, member_id),
        retry=True,
    )


def _expire_session(shard: Shard, group_id: str, member_id: str) -> Outcome[None]:
    group = shard.groups.get(group_id)
    if not isinstance(group, ShareGroup) or member_id not in group.members:
        return Outcome(None)
    shard.events.timed_out(SESSION, group, member_id)
    return _remove(shard, group, group.members[member_id], None, f"{SESSION} timeout")


def _remove(shard: Shard, group: ShareGroup, member: ShareMember, response: R, reason: str) -> Outcome[R]:
    """Evict a member: write its tombstones, bump the group epoch, and cancel its session timer."""
    group_id, member_id = group.group_id, member.member_id
    shard.events.leaving(group, [member_id], reason)
    metadata_hash = shard.topic_hashes.of_topics(group.topics_after(member, None))
    written = records.member_tombstones(group_id, member_id)
    written.append(records.group_epoch(group_id, group.group_epoch + 1, metadata_hash))
    return Outcome(
        response, written, on_appended=lambda: shard.timers.cancel(member_timer(SESSION, group_id, member_id))
    )
