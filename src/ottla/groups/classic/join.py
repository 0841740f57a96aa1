"""JoinGroup in a classic group: new, returning and static members (Kafka's classicGroupJoin).

The response waits until the generation begins, which `membership` decides.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.groups.classic import records
from ottla.groups.classic.group import ClassicGroup, ClassicMember, ClassicState, Protocols
from ottla.groups.classic.membership import (
    cancel_timers,
    join_error,
    maybe_complete_join,
    prepare_rebalance,
    rebalance_or_complete_join,
    schedule_session_timeout,
    schedule_session_timeout_of_id,
    session_timer,
)
from ottla.groups.group_events import FULL, REPLACED
from ottla.groups.outcome import Outcome, client_error_code
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.k14_sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.groups.environment import RequestContext
    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard

FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4
FIRST_VERSION_WITH_SKIP_ASSIGNMENT = 9


def distinct_protocols(request: JoinGroupRequest) -> Protocols:
    """Return the request's protocols in order, each name once with its first metadata."""
    return tuple({protocol.name: protocol.metadata for protocol in reversed(request.protocols)}.items())[::-1]


def join(
    shard: Shard, context: RequestContext, request: JoinGroupRequest, before: Iterable[GroupRecord] = ()
) -> Outcome[JoinGroupResponse]:
    """Add or update a member; respond when its generation begins.

    `before` are the tombstones of a group of another type that this classic group replaces.
    """
    is_unknown = request.member_id == ""
    existing = shard.groups.get(request.group_id)
    if existing is None:
        if not is_unknown:
            return Outcome(join_error(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
        group = shard.new_classic_group(request.group_id)
    else:
        group = shard.classic_group(request.group_id)
    if not _accepts(shard, group, request.member_id):
        shard.events.left(group, request.member_id, FULL)
        group.remove(request.member_id)
        shard.timers.cancel(session_timer(group, request.member_id))
        outcome = Outcome(join_error(ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif is_unknown:
        outcome = _join_new(shard, context, request, group)
    else:
        outcome = _join_known(shard, context, request, group)
    if existing is None and not outcome.records and outcome.on_durable is None:

        def stored(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                _discard(shard, group, client_error_code(code))

        return replace(outcome, records=[*before, records.new_classic_group(group)], replay=False, on_durable=stored)
    return outcome


def _discard(shard: Shard, group: ClassicGroup, code: ErrorCode) -> None:
    """Remove a new group whose record could not be written, and fail its waiting members."""
    cancel_timers(shard, group)
    if shard.groups.get(group.group_id) is group:
        del shard.groups[group.group_id]
    group.transition_to(ClassicState.DEAD, shard.clock.now_ms())
    shard.events.moved(group)
    for member in group.members.values():
        group.complete_join(member, join_error(code))
        group.complete_sync(member, SyncGroupResponse(error_code=code))


def _accepts(shard: Shard, group: ClassicGroup, member_id: str) -> bool:
    """Return whether `group.max.size` admits the member."""
    max_size = shard.settings.coordinator().max_size
    member = group.members.get(member_id)
    if group.state is ClassicState.PREPARING_REBALANCE:
        return (member is not None and member.awaiting_join is not None) or group.awaiting_join_count < max_size
    if group.state in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
        return member is not None or len(group.members) < max_size
    return True


# Members without a member id


def _join_new(
    shard: Shard, context: RequestContext, request: JoinGroupRequest, group: ClassicGroup
) -> Outcome[JoinGroupResponse]:
    if not group.supports_protocols(request.protocol_type, [protocol.name for protocol in request.protocols]):
        return Outcome(join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    instance_id = request.group_instance_id
    prefix = context.client_id if instance_id is None else instance_id
    member_id = f"{prefix}-{uuid.UUID(bytes=shard.random.uuid())}"
    if instance_id is not None:
        replaced_id = group.static_members.get(instance_id)
        if replaced_id is not None:
            return _replace_static(shard, context, request, group, replaced_id, member_id)
    elif context.version >= FIRST_VERSION_WITH_MEMBER_ID_REQUIRED:
        # The client joins again with this id, so that a rebalance never waits for a client that gave up (KIP-394).
        group.pending_join[member_id] = None
        schedule_session_timeout_of_id(shard, group, member_id, request.session_timeout_ms)
        return Outcome(join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    return _add(shard, context, request, group, member_id)


def _add(
    shard: Shard, context: RequestContext, request: JoinGroupRequest, group: ClassicGroup, member_id: str
) -> Outcome[JoinGroupResponse]:
    member = ClassicMember(
        member_id,
        request.group_instance_id,
        context.client_id,
        context.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        request.protocol_type,
        distinct_protocols(request),
        is_new=True,
    )
    if group.state is ClassicState.PREPARING_REBALANCE and group.previous_state is ClassicState.EMPTY:
        group.new_member_added = True
    response: Pending[JoinGroupResponse] = Pending()
    group.add(member, response)
    shard.events.joined(group, member)
    # A new member cannot send heartbeats while its join waits, and its client may be gone.
    schedule_session_timeout(shard, group, member, shard.settings.coordinator().new_member_join_timeout_ms)
    return rebalance_or_complete_join(shard, group).with_response(response)


def _replace_static(
    shard: Shard,
    context: RequestContext,
    request: JoinGroupRequest,
    group: ClassicGroup,
    old_id: str,
    new_id: str,
) -> Outcome[JoinGroupResponse]:
    """Replace a static member that returns with a new member id; without a rebalance if its protocols allow it."""
    instance_id = request.group_instance_id
    assert instance_id is not None
    old_leader = group.leader_id
    shard.events.left(group, old_id, REPLACED)
    member = group.replace_static_member(instance_id, old_id, new_id)
    shard.events.joined(group, member)
    schedule_session_timeout(shard, group, member)
    previous = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
    response: Pending[JoinGroupResponse] = Pending()
    group.update(
        member, distinct_protocols(request), request.rebalance_timeout_ms, request.session_timeout_ms, response
    )
    if group.state is ClassicState.COMPLETING_REBALANCE:
        return prepare_rebalance(shard, group).with_response(response)
    if group.state is ClassicState.PREPARING_REBALANCE:
        return maybe_complete_join(shard, group).with_response(response)
    assert group.state is ClassicState.STABLE
    if group.protocol_name != group.select_protocol():
        return rebalance_or_complete_join(shard, group).with_response(response)

    def stored(code: ErrorCode) -> None:
        if member.awaiting_join is not response:
            return
        if code is not ErrorCode.NONE:
            group.update(member, *previous, None)
            schedule_session_timeout(shard, group, group.replace_static_member(instance_id, new_id, old_id))
        elif context.version >= FIRST_VERSION_WITH_SKIP_ASSIGNMENT:
            leads = group.is_leader(new_id)
            group.complete_join(member, group.join_response(new_id, with_members=leads, skip_assignment=leads))
        else:
            # A client that cannot skip the assignment receives the leader's old id, so that it does not assign
            # (KIP-345).
            joined = group.join_response(new_id, with_members=False)
            joined.leader = old_leader or ""
            group.complete_join(member, joined)

    def not_stored(code: ErrorCode, _: str | None) -> JoinGroupResponse:
        error = group.join_response("", with_members=False)
        error.leader = old_leader or ""
        error.error_code = code
        return error

    # Nothing that other members depend on has changed: the member takes its old assignment without a rebalance.
    record = records.classic_group(group, group.assignments())
    return Outcome(response, [record], replay=False, on_durable=stored, on_error=not_stored)


# Members with a member id


def _join_known(
    shard: Shard, context: RequestContext, request: JoinGroupRequest, group: ClassicGroup
) -> Outcome[JoinGroupResponse]:
    member_id = request.member_id
    if not group.supports_protocols(request.protocol_type, [protocol.name for protocol in request.protocols]):
        return Outcome(join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
    if member_id in group.pending_join:
        if request.group_instance_id is not None:
            # MEMBER_ID_REQUIRED is sent to dynamic members only.
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return _add(shard, context, request, group, member_id)
    try:
        group.validate_member(member_id, request.group_instance_id)
    except KafkaError as error:
        return Outcome(JoinGroupResponse(member_id=member_id, error_code=error.code, protocol_name=None))
    member = group.members[member_id]
    protocols = distinct_protocols(request)
    if group.state is not ClassicState.PREPARING_REBALANCE and member.protocols == protocols:
        leads = group.is_leader(member_id)
        if group.state is ClassicState.COMPLETING_REBALANCE:
            # The client retries because it has not received the response to its first join.
            return Outcome(group.join_response(member_id, with_members=leads))
        if not leads:
            return Outcome(group.join_response(member_id, with_members=False))
    response: Pending[JoinGroupResponse] = Pending()
    group.update(member, protocols, request.rebalance_timeout_ms, request.session_timeout_ms, response)
    return rebalance_or_complete_join(shard, group).with_response(response)
