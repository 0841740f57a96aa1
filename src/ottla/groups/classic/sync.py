"""SyncGroup in a classic group: store the leader's assignment and hand it out (Kafka's classicGroupSync)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.classic import records
from ottla.groups.classic.group import ClassicGroup, ClassicState
from ottla.groups.classic.membership import (
    propagate_assignments,
    rebalance_or_complete_join,
    reset_assignments,
    sync_timer,
)
from ottla.groups.outcome import Outcome, client_error_code
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from ottla.groups.shard import Shard


def sync(shard: Shard, group: ClassicGroup, request: SyncGroupRequest) -> Outcome[SyncGroupResponse]:
    """Respond with the member's assignment, when the leader's request has brought it and it is durable."""
    error = _validate(group, request)
    if error is not ErrorCode.NONE:
        return Outcome(SyncGroupResponse(error_code=error))
    member = group.members[request.member_id]
    if group.state is ClassicState.PREPARING_REBALANCE:
        return Outcome(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    group.pending_sync.pop(member.member_id, None)
    if not group.pending_sync:
        shard.timers.cancel(sync_timer(group))
    if group.state is ClassicState.STABLE:
        return Outcome(
            SyncGroupResponse(
                protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
            )
        )
    response: Pending[SyncGroupResponse] = Pending()
    member.awaiting_sync = response
    if not group.is_leader(member.member_id):
        return Outcome(response)
    return _store_assignments(shard, group, request).with_response(response)


def _store_assignments(shard: Shard, group: ClassicGroup, request: SyncGroupRequest) -> Outcome[None]:
    """Write the leader's assignment; when it is durable, answer all members and transition to Stable."""
    received = {assignment.member_id: assignment.assignment for assignment in request.assignments}
    assignments = {member_id: received.get(member_id, b"") for member_id in group.members}
    generation_id = group.generation_id

    def stored(code: ErrorCode) -> None:
        if group.state is not ClassicState.COMPLETING_REBALANCE or group.generation_id != generation_id:
            return  # another rebalance has started
        if code is not ErrorCode.NONE:
            reset_assignments(shard, group, client_error_code(code))
            shard.execute(("rebalance", group.group_id), lambda: rebalance_or_complete_join(shard, group))
            return
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        propagate_assignments(shard, group, ErrorCode.NONE)
        group.transition_to(ClassicState.STABLE, shard.clock.now_ms())
        shard.events.assigned(group)
        shard.events.moved(group)

    return Outcome(None, [records.classic_group(group, assignments)], replay=False, on_durable=stored)


def _validate(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
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


def _differs(received: str | None, current: str | None) -> bool:
    return received is not None and current is not None and received != current
