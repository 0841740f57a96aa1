"""The timers of a consumer group's members: whoever is silent, or takes too long over its part, is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember
from ottla.groups.migration.downgrade import JOIN, REBALANCE, SESSION, SYNC, fence_members, member_timer
from ottla.groups.shard import Outcome

if TYPE_CHECKING:
    from ottla.groups.shard import Shard


def schedule_session_timeout(shard: Shard, group_id: str, member_id: str, timeout_ms: int | None = None) -> None:
    """A member is alive: its session begins anew."""
    shard.after(
        member_timer(SESSION, group_id, member_id),
        shard.settings.group(group_id).session_timeout_ms if timeout_ms is None else timeout_ms,
        lambda: _fence(shard, group_id, member_id, SESSION),
        retry=True,
    )


def schedule_rebalance_timeout(shard: Shard, group_id: str, member: ConsumerMember) -> None:
    """A member has this long to give back what it must."""
    member_id, epoch = member.member_id, member.member_epoch

    def expired() -> Outcome[None]:
        group = shard.groups.get(group_id)
        known = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        if isinstance(known, ConsumerMember) and known.member_epoch == epoch:
            return _fence(shard, group_id, member_id, REBALANCE)
        return Outcome(None)

    shard.after(member_timer(REBALANCE, group_id, member_id), member.rebalance_timeout_ms, expired, retry=True)


def schedule_join_timeout(shard: Shard, group_id: str, member: ConsumerMember) -> None:
    """A classic member that was told to join again has this long, counted from when it was first told."""
    shard.after_if_absent(
        member_timer(JOIN, group_id, member.member_id),
        member.rebalance_timeout_ms,
        lambda: _fence(shard, group_id, member.member_id, "join"),
        retry=True,
    )


def schedule_sync_timeout(shard: Shard, group_id: str, member_id: str, timeout_ms: int) -> None:
    """A classic member that has joined has this long to sync."""
    shard.after(
        member_timer(SYNC, group_id, member_id),
        timeout_ms,
        lambda: _fence(shard, group_id, member_id, "sync"),
        retry=True,
    )


def _fence(shard: Shard, group_id: str, member_id: str, what: str) -> Outcome[None]:
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup) or member_id not in group.members:
        return Outcome(None)
    if shard.events is not None:
        shard.events.timed_out(what, group, member_id)
    return fence_members(shard, group, [group.members[member_id]], None, f"{what} timeout")
