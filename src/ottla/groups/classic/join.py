"""JoinGroup in a classic group, and the rebalance that it begins: who is in the next generation, and from when.

A join is answered when its generation begins: when all members have joined, or the rebalance timeout has passed.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from ottla.groups import records
from ottla.groups.classic.group import ClassicGroup, ClassicMember, ClassicState, Protocols
from ottla.groups.group_events import FULL, REPLACED
from ottla.groups.shard import Outcome, nothing, stored_error
from ottla.groups.streams import replay as streams_replay
from ottla.groups.streams.group import StreamsGroup
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.k14_sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.groups.consumer.group import ConsumerGroup
    from ottla.groups.environment import RequestContext
    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard
    from ottla.pending import Pending

FIRST_VERSION_WITH_KNOWN_MEMBER_ID = 4
FIRST_VERSION_WITH_SKIP_ASSIGNMENT = 9


def protocols_of(request: JoinGroupRequest) -> Protocols:
    """The request's protocols, each name once."""
    return tuple({protocol.name: protocol.metadata for protocol in reversed(request.protocols)}.items())[::-1]


def refusal(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    """A join that failed."""
    return JoinGroupResponse(member_id=member_id, error_code=code)


def join(
    shard: Shard,
    context: RequestContext,
    request: JoinGroupRequest,
    answer: Pending[JoinGroupResponse],
    before: Iterable[GroupRecord] = (),
) -> Outcome[None]:
    """A member joins; `before` are records that must be written first, of a group that the name had until now."""
    is_unknown = request.member_id == ""
    existing = shard.groups.get(request.group_id)
    if existing is None:
        if not is_unknown:
            answer.complete(refusal(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            return nothing()
        group = shard.new_classic_group(request.group_id)
    else:
        group = shard.classic_group(request.group_id)
    if not _accepts(shard, group, request.member_id):
        if shard.events is not None:
            shard.events.left(group, request.member_id, FULL)
        group.remove(request.member_id)
        shard.timers.cancel(heartbeat_timer(group, request.member_id))
        answer.complete(refusal(ErrorCode.GROUP_MAX_SIZE_REACHED))
        outcome = nothing()
    elif is_unknown:
        outcome = _join_new(shard, context, request, group, answer)
    else:
        outcome = _join_known(shard, context, request, group, answer)
    if existing is None and not outcome.records and outcome.on_durable is None:

        def stored(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                _forget(shard, group, stored_error(code))

        return Outcome(None, [*before, records.new_classic_group(group)], replay=False, on_durable=stored)
    return outcome


def _forget(shard: Shard, group: ClassicGroup, code: ErrorCode) -> None:
    """The log did not take a new group: it never was, and whoever waits in it is told so."""
    cancel_timers(shard, group)
    if shard.groups.get(group.group_id) is group:
        del shard.groups[group.group_id]
    group.transition_to(ClassicState.DEAD, shard.clock.now_ms())
    if shard.events is not None:
        shard.events.moved(group)
    for member in group.members.values():
        group.complete_join(member, refusal(code))
        group.complete_sync(member, SyncGroupResponse(error_code=code))


def join_instead_of(
    shard: Shard,
    context: RequestContext,
    request: JoinGroupRequest,
    answer: Pending[JoinGroupResponse],
    empty: ConsumerGroup | StreamsGroup,
) -> Outcome[None]:
    """A member joins under the name of a consumer or streams group that nobody is in: it becomes a classic group."""
    if request.member_id:
        answer.complete(refusal(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
        return nothing()
    del shard.groups[request.group_id]
    outcome = join(shard, context, request, answer, before=empty.tombstones())
    stored = outcome.on_durable

    def keep_or_restore(code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            shard.groups[request.group_id] = empty
        elif isinstance(empty, StreamsGroup):
            streams_replay.forget(shard, empty)
        if stored is not None:
            stored(code)

    outcome.on_durable = keep_or_restore
    return outcome


def _accepts(shard: Shard, group: ClassicGroup, member_id: str) -> bool:
    most = shard.settings.coordinator().max_size
    member = group.members.get(member_id)
    if group.state is ClassicState.PREPARING_REBALANCE:
        return (member is not None and member.awaiting_join is not None) or group.awaiting_join_count < most
    if group.state in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
        return member is not None or len(group.members) < most
    return True


# New members


def _join_new(
    shard: Shard,
    context: RequestContext,
    request: JoinGroupRequest,
    group: ClassicGroup,
    answer: Pending[JoinGroupResponse],
) -> Outcome[None]:
    if not group.supports_protocols(request.protocol_type, [protocol.name for protocol in request.protocols]):
        answer.complete(refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return nothing()
    instance_id = request.group_instance_id
    prefix = context.client_id if instance_id is None else instance_id
    member_id = f"{prefix}-{uuid.UUID(bytes=shard.random.uuid())}"
    if instance_id is not None:
        existing = group.static_members.get(instance_id)
        if existing is not None:
            return _replace_static(shard, context, request, group, existing, member_id, answer)
    elif context.version >= FIRST_VERSION_WITH_KNOWN_MEMBER_ID:
        # A member that goes before it hears its id would be waited for (KIP-394).
        group.pending_join[member_id] = None
        shard.after(
            heartbeat_timer(group, member_id),
            request.session_timeout_ms,
            lambda: expire_heartbeat(shard, group.group_id, member_id),
        )
        answer.complete(refusal(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        return nothing()
    return _add(shard, context, request, group, member_id, answer)


def _add(
    shard: Shard,
    context: RequestContext,
    request: JoinGroupRequest,
    group: ClassicGroup,
    member_id: str,
    answer: Pending[JoinGroupResponse],
) -> Outcome[None]:
    member = ClassicMember(
        member_id,
        request.group_instance_id,
        context.client_id,
        context.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        request.protocol_type,
        protocols_of(request),
        is_new=True,
    )
    if group.state is ClassicState.PREPARING_REBALANCE and group.previous_state is ClassicState.EMPTY:
        group.new_member_added = True
    group.add(member, answer)
    if shard.events is not None:
        shard.events.joined(group, member)
    # A new member cannot send heartbeats while its join waits, and its client may be gone.
    schedule_heartbeat(shard, group, member, shard.settings.coordinator().new_member_join_timeout_ms)
    return rebalance_or_complete_join(shard, group)


def _replace_static(
    shard: Shard,
    context: RequestContext,
    request: JoinGroupRequest,
    group: ClassicGroup,
    old_id: str,
    new_id: str,
    answer: Pending[JoinGroupResponse],
) -> Outcome[None]:
    instance_id = request.group_instance_id
    assert instance_id is not None
    old_leader = group.leader_id
    if shard.events is not None:
        shard.events.left(group, old_id, REPLACED)
    member = group.replace_static_member(instance_id, old_id, new_id)
    if shard.events is not None:
        shard.events.joined(group, member)
    schedule_heartbeat(shard, group, member)
    before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
    group.update(member, protocols_of(request), request.rebalance_timeout_ms, request.session_timeout_ms, answer)
    if group.state is ClassicState.COMPLETING_REBALANCE:
        return prepare_rebalance(shard, group)
    if group.state is ClassicState.PREPARING_REBALANCE:
        return maybe_complete_join(shard, group)
    assert group.state is ClassicState.STABLE
    if group.protocol_name != group.select_protocol():
        return rebalance_or_complete_join(shard, group)

    # Nothing that the others rely on has changed: the member takes up its old assignment without a rebalance.
    def stored(code: ErrorCode) -> None:
        if member.awaiting_join is not answer:
            return
        if code is not ErrorCode.NONE:
            group.update(member, *before, None)
            schedule_heartbeat(shard, group, group.replace_static_member(instance_id, new_id, old_id))
            failed = group.join_response("", with_members=False)
            failed.leader = old_leader or ""
            failed.error_code = stored_error(code)
            answer.complete(failed)
        elif context.version >= FIRST_VERSION_WITH_SKIP_ASSIGNMENT:
            leads = group.is_leader(new_id)
            group.complete_join(member, group.join_response(new_id, with_members=leads, skip_assignment=leads))
        else:
            # An older client that was told it leads would assign anew; it is told the leader's old id (KIP-345).
            response = group.join_response(new_id, with_members=False)
            response.leader = old_leader or ""
            group.complete_join(member, response)

    record = records.classic_group(group, group.assignments())
    return Outcome(None, [record], replay=False, on_durable=stored)


# Known members


def _join_known(
    shard: Shard,
    context: RequestContext,
    request: JoinGroupRequest,
    group: ClassicGroup,
    answer: Pending[JoinGroupResponse],
) -> Outcome[None]:
    member_id = request.member_id
    if not group.supports_protocols(request.protocol_type, [protocol.name for protocol in request.protocols]):
        answer.complete(refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
        return nothing()
    if member_id in group.pending_join:
        if request.group_instance_id is not None:
            # Only a member without an instance id is ever sent away to come back with a member id.
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return _add(shard, context, request, group, member_id, answer)
    try:
        group.validate_member(member_id, request.group_instance_id)
    except KafkaError as error:
        answer.complete(JoinGroupResponse(member_id=member_id, error_code=error.code, protocol_name=None))
        return nothing()
    member = group.members[member_id]
    protocols = protocols_of(request)
    if group.state is not ClassicState.PREPARING_REBALANCE and member.protocols == protocols:
        if group.state is ClassicState.COMPLETING_REBALANCE:
            # The answer to its first join was lost.
            answer.complete(group.join_response(member_id, with_members=group.is_leader(member_id)))
            return nothing()
        if not group.is_leader(member_id):
            answer.complete(group.join_response(member_id, with_members=False))
            return nothing()
    group.update(member, protocols, request.rebalance_timeout_ms, request.session_timeout_ms, answer)
    return rebalance_or_complete_join(shard, group)


# Rebalancing


def rebalance_or_complete_join(shard: Shard, group: ClassicGroup) -> Outcome[None]:
    """Begin a rebalance, or end the one that goes on if that was the last member it waited for."""
    if group.can_rebalance:
        return prepare_rebalance(shard, group)
    return maybe_complete_join(shard, group)


def prepare_rebalance(shard: Shard, group: ClassicGroup) -> Outcome[None]:
    """Ask all members to join again; the first rebalance of an empty group waits a while for more members."""
    if group.state is ClassicState.COMPLETING_REBALANCE:
        reset_assignments(shard, group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_sync.clear()
    shard.timers.cancel(sync_timer(group))
    is_initial = group.is_empty
    group.transition_to(ClassicState.PREPARING_REBALANCE, shard.clock.now_ms())
    if shard.events is not None:
        shard.events.moved(group)
    if is_initial:
        delay = shard.settings.coordinator().initial_rebalance_delay_ms
        remaining = max(group.rebalance_timeout_ms - delay, 0)
        _wait_for_more(shard, group.group_id, delay, remaining)
        return nothing()
    if group.has_all_joined:
        return complete_join(shard, group)
    shard.after(join_timer(group), group.rebalance_timeout_ms, lambda: _expire_join(shard, group.group_id))
    return nothing()


def _wait_for_more(shard: Shard, group_id: str, delay_ms: int, remaining_ms: int) -> None:
    def waited() -> Outcome[None]:
        group = _preparing(shard, group_id)
        if group is None:
            return nothing()
        if not group.new_member_added or remaining_ms == 0:
            return complete_join(shard, group)
        group.new_member_added = False
        next_delay = min(shard.settings.coordinator().initial_rebalance_delay_ms, remaining_ms)
        _wait_for_more(shard, group_id, next_delay, max(remaining_ms - delay_ms, 0))
        return nothing()

    shard.after(("join", group_id), delay_ms, waited)


def _expire_join(shard: Shard, group_id: str) -> Outcome[None]:
    group = _preparing(shard, group_id)
    if group is None:
        return nothing()
    if shard.events is not None:
        shard.events.timed_out("rebalance", group, timeout_ms=group.rebalance_timeout_ms)
    return complete_join(shard, group)


def _preparing(shard: Shard, group_id: str) -> ClassicGroup | None:
    """The group that a timer was set for, if it still is what it was then."""
    group = shard.groups.get(group_id)
    if isinstance(group, ClassicGroup) and group.state is ClassicState.PREPARING_REBALANCE:
        return group
    return None


def maybe_complete_join(shard: Shard, group: ClassicGroup) -> Outcome[None]:
    """End the joining if all are there, unless it is the first rebalance, which takes its time."""
    if (
        group.state is not ClassicState.PREPARING_REBALANCE
        or group.previous_state is ClassicState.EMPTY
        or not group.has_all_joined
    ):
        return nothing()
    return complete_join(shard, group)


def complete_join(shard: Shard, group: ClassicGroup) -> Outcome[None]:
    """Begin the next generation with those who have joined; static members may be late."""
    shard.timers.cancel(join_timer(group))
    for member in list(group.members.values()):
        if member.awaiting_join is None and not member.is_static:
            if shard.events is not None:
                shard.events.left(group, member.member_id, "rebalance timeout")
            group.remove(member.member_id)
            shard.timers.cancel(heartbeat_timer(group, member.member_id))
    if group.state is ClassicState.DEAD:
        return nothing()
    if not group.elect_joined_leader() and group.members:
        # Only static members are left and none of them came: they keep their places for another timeout.
        shard.after(join_timer(group), group.rebalance_timeout_ms, lambda: _expire_join(shard, group.group_id))
        return nothing()
    group.begin_generation(shard.clock.now_ms())
    if shard.events is not None:
        shard.events.moved(group)
    if group.is_empty:
        return Outcome(None, [records.classic_group(group, {})], replay=False)
    for member in list(group.members.values()):
        member_id = member.member_id
        group.complete_join(member, group.join_response(member_id, with_members=group.is_leader(member_id)))
        schedule_heartbeat(shard, group, member)
        member.is_new = False
        group.pending_sync[member_id] = None
    generation_id = group.generation_id
    shard.after(
        sync_timer(group),
        group.rebalance_timeout_ms,
        lambda: _expire_sync(shard, group.group_id, generation_id),
    )
    return nothing()


def _expire_sync(shard: Shard, group_id: str, generation_id: int) -> Outcome[None]:
    group = shard.groups.get(group_id)
    if not isinstance(group, ClassicGroup) or group.generation_id != generation_id:
        return nothing()
    if group.state not in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE) or not group.pending_sync:
        return nothing()
    if shard.events is not None:
        shard.events.timed_out("sync", group, timeout_ms=group.rebalance_timeout_ms)
    for member_id in list(group.pending_sync):
        if shard.events is not None:
            shard.events.left(group, member_id, "sync timeout")
        group.remove(member_id)
        shard.timers.cancel(heartbeat_timer(group, member_id))
    return prepare_rebalance(shard, group)


def reset_assignments(shard: Shard, group: ClassicGroup, code: ErrorCode) -> None:
    """The assignment that members wait for will not come."""
    for member in group.members.values():
        member.assignment = b""
    propagate_assignments(shard, group, code)


def propagate_assignments(shard: Shard, group: ClassicGroup, code: ErrorCode) -> None:
    """Answer all members that wait for their assignment."""
    succeeded = code is ErrorCode.NONE
    for member in list(group.members.values()):
        response = SyncGroupResponse(
            protocol_name=group.protocol_name if succeeded else None,
            protocol_type=group.protocol_type if succeeded else None,
            assignment=member.assignment,
            error_code=code,
        )
        if group.complete_sync(member, response):
            schedule_heartbeat(shard, group, member)


# Heartbeats and timers


def join_timer(group: ClassicGroup) -> tuple[str, str]:
    """The timer that ends the joining."""
    return ("join", group.group_id)


def sync_timer(group: ClassicGroup) -> tuple[str, str]:
    """The timer that ends the wait for members to ask for their assignment."""
    return ("sync", group.group_id)


def heartbeat_timer(group: ClassicGroup, member_id: str) -> tuple[str, str, str]:
    """The timer of a member's session."""
    return ("heartbeat", group.group_id, member_id)


def cancel_timers(shard: Shard, group: ClassicGroup) -> None:
    """The group is not a classic one any more."""
    for timer in (join_timer(group), sync_timer(group)):
        shard.timers.cancel(timer)
    for member_id in (*group.members, *group.pending_join):
        shard.timers.cancel(heartbeat_timer(group, member_id))


def schedule_heartbeat(shard: Shard, group: ClassicGroup, member: ClassicMember, timeout_ms: int | None = None) -> None:
    """A member is alive: its session begins anew."""
    group_id, member_id = group.group_id, member.member_id
    shard.after(
        heartbeat_timer(group, member_id),
        member.session_timeout_ms if timeout_ms is None else timeout_ms,
        lambda: expire_heartbeat(shard, group_id, member_id),
    )


def expire_heartbeat(shard: Shard, group_id: str, member_id: str) -> Outcome[None]:
    """Nothing was heard of a member for its session timeout."""
    group = shard.groups.get(group_id)
    if not isinstance(group, ClassicGroup) or group.state is ClassicState.DEAD:
        return nothing()
    if member_id in group.pending_join:
        group.remove(member_id)
        return _complete_if_all_joined(shard, group)
    member = group.members.get(member_id)
    if member is None or member.satisfies_heartbeat:
        return nothing()
    if shard.events is not None:
        shard.events.timed_out("session", group, member_id, member.session_timeout_ms)
        shard.events.left(group, member_id, "session timeout")
    group.complete_join(member, refusal(ErrorCode.UNKNOWN_MEMBER_ID))
    group.remove(member_id)
    if group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
        return rebalance_or_complete_join(shard, group)
    return _complete_if_all_joined(shard, group)


def _complete_if_all_joined(shard: Shard, group: ClassicGroup) -> Outcome[None]:
    if group.state is ClassicState.PREPARING_REBALANCE and group.has_all_joined:
        return complete_join(shard, group)
    return nothing()
