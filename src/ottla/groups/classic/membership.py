"""Membership of a classic group: sessions, evictions, Heartbeat, LeaveGroup, and the rebalances that these trigger.

A generation begins when all members have joined or the rebalance timeout has passed. Kafka's GroupMetadataManager:
prepareRebalance, completeClassicGroupJoin, expireClassicGroupMemberHeartbeat, classicGroupLeave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.classic import records
from ottla.groups.classic.group import ClassicGroup, ClassicMember, ClassicState
from ottla.groups.group_events import LEFT
from ottla.groups.outcome import Outcome, no_change
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k11_join_group import JoinGroupResponse
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.k13_leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from ottla.protocol.messages.k14_sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from ottla.groups.shard import Shard


def join_error(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    """Return the response to a JoinGroup request that failed."""
    return JoinGroupResponse(member_id=member_id, error_code=code)


# Heartbeat and LeaveGroup


def heartbeat(shard: Shard, group: ClassicGroup, request: HeartbeatRequest) -> Outcome[HeartbeatResponse]:
    """Reset the member's session timer; respond REBALANCE_IN_PROGRESS if it must rejoin."""
    if group.state is ClassicState.DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    group.validate_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if group.is_empty:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    schedule_session_timeout(shard, group, group.members[request.member_id])
    if group.state is ClassicState.PREPARING_REBALANCE:
        return Outcome(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    return Outcome(HeartbeatResponse())


def leave(shard: Shard, group: ClassicGroup, request: LeaveGroupRequest) -> Outcome[LeaveGroupResponse]:
    """Remove members by member id or instance id, each with its own error code, and rebalance."""
    if group.state is ClassicState.DEAD:
        return Outcome(LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    members = [_leave(shard, group, identity) for identity in request.members]
    outcome = no_change()
    if any(member.error_code == ErrorCode.NONE for member in members):
        if group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
            outcome = rebalance_or_complete_join(shard, group)
        elif group.state is ClassicState.PREPARING_REBALANCE:
            outcome = maybe_complete_join(shard, group)
    return outcome.with_response(LeaveGroupResponse(members=members))


def _leave(shard: Shard, group: ClassicGroup, identity: MemberIdentity) -> MemberResponse:
    """Evict the member that LeaveGroup names by its id or its group instance id; return its part of the response."""
    response = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
    member_id = identity.member_id
    if member_id == "":
        static_id = group.static_members.get(identity.group_instance_id or "")
        if identity.group_instance_id is None or static_id is None:
            response.error_code = ErrorCode.UNKNOWN_MEMBER_ID
            return response
        member_id = static_id
    elif member_id in group.pending_join:
        group.remove(member_id)
        shard.timers.cancel(session_timer(group, member_id))
        return response
    else:
        try:
            group.validate_member(member_id, identity.group_instance_id)
        except KafkaError as error:
            response.error_code = error.code
            return response
    _evict(shard, group, member_id, LEFT)
    return response


def _evict(shard: Shard, group: ClassicGroup, member_id: str, reason: str) -> None:
    """Remove a member, end its session, and fail its waiting join with UNKNOWN_MEMBER_ID."""
    shard.timers.cancel(session_timer(group, member_id))
    shard.events.left(group, member_id, reason)
    member = group.members.get(member_id)
    if member is not None:
        group.complete_join(member, join_error(ErrorCode.UNKNOWN_MEMBER_ID))
    group.remove(member_id)


# Sessions


def session_timer(group: ClassicGroup, member_id: str) -> tuple[str, str, str]:
    """Return the name of the timer that ends a member's session."""
    return ("heartbeat", group.group_id, member_id)


def schedule_session_timeout(
    shard: Shard, group: ClassicGroup, member: ClassicMember, timeout_ms: int | None = None
) -> None:
    """Restart a member's session timer, with its session timeout unless another one is given."""
    schedule_session_timeout_of_id(
        shard, group, member.member_id, member.session_timeout_ms if timeout_ms is None else timeout_ms
    )


def schedule_session_timeout_of_id(shard: Shard, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
    """Restart the session timer of a member id, which may not have joined yet."""
    group_id = group.group_id
    shard.after(session_timer(group, member_id), timeout_ms, lambda: _expire_session(shard, group_id, member_id))


def _expire_session(shard: Shard, group_id: str, member_id: str) -> Outcome[None]:
    """Evict a member that sent no heartbeat within its session timeout, and rebalance."""
    group = shard.groups.get(group_id)
    if not isinstance(group, ClassicGroup) or group.state is ClassicState.DEAD:
        return no_change()
    if member_id in group.pending_join:
        group.remove(member_id)
        return _complete_if_all_joined(shard, group)
    member = group.members.get(member_id)
    if member is None or member.satisfies_heartbeat:
        return no_change()
    shard.events.timed_out("session", group, member_id, member.session_timeout_ms)
    _evict(shard, group, member_id, "session timeout")
    if group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
        return rebalance_or_complete_join(shard, group)
    return _complete_if_all_joined(shard, group)


def _complete_if_all_joined(shard: Shard, group: ClassicGroup) -> Outcome[None]:
    if group.state is ClassicState.PREPARING_REBALANCE and group.has_all_joined:
        return complete_join(shard, group)
    return no_change()


# Rebalance


def join_timer(group: ClassicGroup) -> tuple[str, str]:
    """Return the name of the timer that ends the join phase."""
    return ("join", group.group_id)


def sync_timer(group: ClassicGroup) -> tuple[str, str]:
    """Return the name of the timer that evicts members that do not sync."""
    return ("sync", group.group_id)


def cancel_timers(shard: Shard, group: ClassicGroup) -> None:
    """Cancel all timers of a group that is no longer a classic group."""
    for timer in (join_timer(group), sync_timer(group)):
        shard.timers.cancel(timer)
    for member_id in (*group.members, *group.pending_join):
        shard.timers.cancel(session_timer(group, member_id))


def rebalance_or_complete_join(shard: Shard, group: ClassicGroup) -> Outcome[None]:
    """Start a rebalance, or complete the current one if all members have joined."""
    if group.can_rebalance:
        return prepare_rebalance(shard, group)
    return maybe_complete_join(shard, group)


def prepare_rebalance(shard: Shard, group: ClassicGroup) -> Outcome[None]:
    """Transition to PreparingRebalance; an empty group first waits for `group.initial.rebalance.delay.ms`."""
    if group.state is ClassicState.COMPLETING_REBALANCE:
        reset_assignments(shard, group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_sync.clear()
    shard.timers.cancel(sync_timer(group))
    is_initial = group.is_empty
    group.transition_to(ClassicState.PREPARING_REBALANCE, shard.clock.now_ms())
    shard.events.moved(group)
    if is_initial:
        delay = shard.settings.coordinator().initial_rebalance_delay_ms
        remaining = max(group.rebalance_timeout_ms - delay, 0)
        _delay_initial_rebalance(shard, group.group_id, delay, remaining)
        return no_change()
    if group.has_all_joined:
        return complete_join(shard, group)
    shard.after(join_timer(group), group.rebalance_timeout_ms, lambda: _expire_join(shard, group.group_id))
    return no_change()


def _delay_initial_rebalance(shard: Shard, group_id: str, delay_ms: int, remaining_ms: int) -> None:
    """Complete the first join after a delay, extended while new members join (Kafka's tryCompleteInitialRebalance)."""

    def expired() -> Outcome[None]:
        group = _preparing_group(shard, group_id)
        if group is None:
            return no_change()
        if not group.new_member_added or remaining_ms == 0:
            return complete_join(shard, group)
        group.new_member_added = False
        next_delay = min(shard.settings.coordinator().initial_rebalance_delay_ms, remaining_ms)
        _delay_initial_rebalance(shard, group_id, next_delay, max(remaining_ms - delay_ms, 0))
        return no_change()

    shard.after(("join", group_id), delay_ms, expired)


def _expire_join(shard: Shard, group_id: str) -> Outcome[None]:
    """End the join phase at the rebalance timeout."""
    group = _preparing_group(shard, group_id)
    if group is None:
        return no_change()
    shard.events.timed_out("rebalance", group, timeout_ms=group.rebalance_timeout_ms)
    return complete_join(shard, group)


def _preparing_group(shard: Shard, group_id: str) -> ClassicGroup | None:
    """Return the group if it is still a classic group in PreparingRebalance."""
    group = shard.groups.get(group_id)
    if isinstance(group, ClassicGroup) and group.state is ClassicState.PREPARING_REBALANCE:
        return group
    return None


def maybe_complete_join(shard: Shard, group: ClassicGroup) -> Outcome[None]:
    """Complete the join phase if all members have joined; the initial rebalance ends by its timer only."""
    if (
        group.state is not ClassicState.PREPARING_REBALANCE
        or group.previous_state is ClassicState.EMPTY
        or not group.has_all_joined
    ):
        return no_change()
    return complete_join(shard, group)


def complete_join(shard: Shard, group: ClassicGroup) -> Outcome[None]:
    """Evict dynamic members that did not rejoin, begin the next generation, and answer all joins."""
    shard.timers.cancel(join_timer(group))
    for member in list(group.members.values()):
        if member.awaiting_join is None and not member.is_static:
            _evict(shard, group, member.member_id, "rebalance timeout")
    if group.state is ClassicState.DEAD:
        return no_change()
    if not group.elect_joined_leader() and group.members:
        # Only static members are left and none has rejoined: they remain members for another rebalance timeout.
        shard.after(join_timer(group), group.rebalance_timeout_ms, lambda: _expire_join(shard, group.group_id))
        return no_change()
    group.begin_generation(shard.clock.now_ms())
    shard.events.moved(group)
    if group.is_empty:
        return Outcome(None, [records.classic_group(group, {})], replay=False)
    for member in list(group.members.values()):
        member_id = member.member_id
        group.complete_join(member, group.join_response(member_id, with_members=group.is_leader(member_id)))
        schedule_session_timeout(shard, group, member)
        member.is_new = False
        group.pending_sync[member_id] = None
    generation_id = group.generation_id
    shard.after(
        sync_timer(group),
        group.rebalance_timeout_ms,
        lambda: _expire_sync(shard, group.group_id, generation_id),
    )
    return no_change()


def _expire_sync(shard: Shard, group_id: str, generation_id: int) -> Outcome[None]:
    """Evict members that did not sync within the rebalance timeout, and rebalance (Kafka's expirePendingSync)."""
    group = shard.groups.get(group_id)
    if not isinstance(group, ClassicGroup) or group.generation_id != generation_id:
        return no_change()
    if group.state not in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE) or not group.pending_sync:
        return no_change()
    shard.events.timed_out("sync", group, timeout_ms=group.rebalance_timeout_ms)
    for member_id in list(group.pending_sync):
        _evict(shard, group, member_id, "sync timeout")
    return prepare_rebalance(shard, group)


def reset_assignments(shard: Shard, group: ClassicGroup, code: ErrorCode) -> None:
    """Clear all assignments and fail every waiting sync."""
    for member in group.members.values():
        member.assignment = b""
    propagate_assignments(shard, group, code)


def propagate_assignments(shard: Shard, group: ClassicGroup, code: ErrorCode) -> None:
    """Answer every waiting sync with the member's assignment or an error, and restart the members' sessions."""
    succeeded = code is ErrorCode.NONE
    for member in list(group.members.values()):
        response = SyncGroupResponse(
            protocol_name=group.protocol_name if succeeded else None,
            protocol_type=group.protocol_type if succeeded else None,
            assignment=member.assignment,
            error_code=code,
        )
        if group.complete_sync(member, response):
            schedule_session_timeout(shard, group, member)
