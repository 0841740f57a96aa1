"""SyncGroup, Heartbeat and LeaveGroup in a classic group: taking up an assignment, staying, and going."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups import records
from ottla.groups.classic.group import ClassicGroup, ClassicState
from ottla.groups.classic.join import (
    heartbeat_timer,
    maybe_complete_join,
    propagate_assignments,
    rebalance_or_complete_join,
    refusal,
    reset_assignments,
    schedule_heartbeat,
    sync_timer,
)
from ottla.groups.group_events import LEFT
from ottla.groups.shard import Outcome, nothing, stored_error
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.k13_leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from ottla.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from ottla.groups.shard import Shard
    from ottla.pending import Pending


def sync(
    shard: Shard, group: ClassicGroup, request: SyncGroupRequest, answer: Pending[SyncGroupResponse]
) -> Outcome[None]:
    """A member asks for its assignment; the leader's request brings that of all."""
    refused = _validate_sync(group, request)
    if refused is not ErrorCode.NONE:
        answer.complete(SyncGroupResponse(error_code=refused))
        return nothing()
    member = group.members[request.member_id]
    if group.state is ClassicState.PREPARING_REBALANCE:
        answer.complete(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        return nothing()
    _has_synced(shard, group, member.member_id)
    if group.state is ClassicState.STABLE:
        answer.complete(
            SyncGroupResponse(
                protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
            )
        )
        return nothing()
    member.awaiting_sync = answer
    if not group.is_leader(member.member_id):
        return nothing()
    given = {assignment.member_id: assignment.assignment for assignment in request.assignments}
    assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
    generation_id = group.generation_id

    def stored(code: ErrorCode) -> None:
        if group.state is not ClassicState.COMPLETING_REBALANCE or group.generation_id != generation_id:
            return  # the next rebalance has begun meanwhile
        if code is not ErrorCode.NONE:
            reset_assignments(shard, group, stored_error(code))
            rebalance_or_complete_join(shard, group)
            return
        for each in group.members.values():
            each.assignment = assignments.get(each.member_id, b"")
        propagate_assignments(shard, group, ErrorCode.NONE)
        group.transition_to(ClassicState.STABLE, shard.clock.now_ms())
        if shard.events is not None:
            shard.events.assigned(group)
            shard.events.moved(group)

    return Outcome(None, [records.classic_group(group, assignments)], replay=False, on_durable=stored)


def _validate_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    if group.state is ClassicState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    try:
        group.validate_member(request.member_id, request.group_instance_id)
    except KafkaError as error:
        return error.code
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _differs(said: str | None, is_: str | None) -> bool:
    return said is not None and is_ is not None and said != is_


def _has_synced(shard: Shard, group: ClassicGroup, member_id: str) -> None:
    group.pending_sync.pop(member_id, None)
    if not group.pending_sync:
        shard.timers.cancel(sync_timer(group))


def heartbeat(shard: Shard, group: ClassicGroup, request: HeartbeatRequest) -> Outcome[HeartbeatResponse]:
    """A member is alive; it learns here that it has to join again."""
    if group.state is ClassicState.DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    group.validate_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if group.is_empty:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    schedule_heartbeat(shard, group, group.members[request.member_id])
    if group.state is ClassicState.PREPARING_REBALANCE:
        return Outcome(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    return Outcome(HeartbeatResponse())


def leave(shard: Shard, group: ClassicGroup, request: LeaveGroupRequest) -> Outcome[LeaveGroupResponse]:
    """Members go, by member id or by instance id; each is answered for itself."""
    if group.state is ClassicState.DEAD:
        return Outcome(LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    answers = [_leave(shard, group, identity) for identity in request.members]
    outcome = nothing()
    if any(answer.error_code == ErrorCode.NONE for answer in answers):
        if group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
            outcome = rebalance_or_complete_join(shard, group)
        elif group.state is ClassicState.PREPARING_REBALANCE:
            outcome = maybe_complete_join(shard, group)
    return Outcome(LeaveGroupResponse(members=answers), outcome.records, replay=False, on_durable=outcome.on_durable)


def _leave(shard: Shard, group: ClassicGroup, identity: MemberIdentity) -> MemberResponse:
    answer = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
    member_id = identity.member_id
    if member_id == "":
        known = group.static_members.get(identity.group_instance_id or "")
        if identity.group_instance_id is None or known is None:
            answer.error_code = ErrorCode.UNKNOWN_MEMBER_ID
            return answer
        member_id = known
    elif member_id in group.pending_join:
        group.remove(member_id)
        shard.timers.cancel(heartbeat_timer(group, member_id))
        return answer
    else:
        try:
            group.validate_member(member_id, identity.group_instance_id)
        except KafkaError as error:
            answer.error_code = error.code
            return answer
    shard.timers.cancel(heartbeat_timer(group, member_id))
    if shard.events is not None:
        shard.events.left(group, member_id, LEFT)
    group.complete_join(group.members[member_id], refusal(ErrorCode.UNKNOWN_MEMBER_ID))
    group.remove(member_id)
    return answer
