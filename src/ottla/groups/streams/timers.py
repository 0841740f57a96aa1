"""Timers and removal of a streams group's members: a member that exceeds its session or rebalance timeout is fenced."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ottla.groups.outcome import Outcome
from ottla.groups.streams import records
from ottla.groups.streams.group import StreamsGroup
from ottla.groups.timers import REBALANCE, SESSION, member_timer

if TYPE_CHECKING:
    from ottla.groups.shard import Shard
    from ottla.groups.streams.group import StreamsMember

R = TypeVar("R")


def schedule_session_timeout(shard: Shard, group_id: str, member_id: str) -> None:
    """Restart a member's session timer."""
    shard.after(
        member_timer(SESSION, group_id, member_id),
        shard.settings.group(group_id).streams_session_timeout_ms,
        partial(_fence, shard, group_id, member_id, SESSION),
        retry=True,
    )


def schedule_rebalance_timeout(shard: Shard, group_id: str, member: StreamsMember) -> None:
    """Start the timer within which a member must revoke its tasks; it has no effect in a later member epoch."""
    shard.after(
        member_timer(REBALANCE, group_id, member.member_id),
        member.rebalance_timeout_ms,
        partial(_fence, shard, group_id, member.member_id, REBALANCE, member.member_epoch),
        retry=True,
    )


def cancel_rebalance_timeout(shard: Shard, group_id: str, member_id: str) -> None:
    """Cancel the timer of a member without tasks to revoke."""
    shard.timers.cancel(member_timer(REBALANCE, group_id, member_id))


def _fence(shard: Shard, group_id: str, member_id: str, timeout: str, epoch: int | None = None) -> Outcome[None]:
    group = shard.groups.get(group_id)
    member = group.members.get(member_id) if isinstance(group, StreamsGroup) else None
    if not isinstance(group, StreamsGroup) or member is None or epoch not in (None, member.member_epoch):
        return Outcome(None)
    shard.events.timed_out(timeout, group, member_id)
    return remove_member(shard, group, member_id, None, f"{timeout} timeout")


def remove_member(shard: Shard, group: StreamsGroup, member_id: str, response: R, reason: str) -> Outcome[R]:
    """Evict a member and bump the group epoch; the next heartbeat of another member assigns its tasks."""
    group_id = group.group_id
    shard.events.leaving(group, [member_id], reason)
    written = [
        *records.member_tombstones(group_id, member_id),
        records.group_epoch(
            group_id,
            group.group_epoch + 1,
            group.metadata_hash,
            group.validated_topology_epoch,
            group.assignment_configs,
        ),
    ]
    return Outcome(response, written, on_appended=partial(shard.timers.cancel_member, group_id, member_id))
