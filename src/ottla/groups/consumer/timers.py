"""Timers of a consumer group's members: members that exceed their session or rebalance timeout are fenced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.consumer.fencing import fence_members
from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember
from ottla.groups.outcome import Outcome, no_change
from ottla.groups.timers import JOIN, REBALANCE, SESSION, SYNC, member_timer

if TYPE_CHECKING:
    from ottla.groups.shard import Shard


def schedule_session_timeout(shard: Shard, group_id: str, member_id: str, timeout_ms: int | None = None) -> None:
    """Restart a member's session timer, with the group's session timeout unless another one is given."""
    shard.after(
        member_timer(SESSION, group_id, member_id),
        shard.settings.group(group_id).session_timeout_ms if timeout_ms is None else timeout_ms,
        lambda: _fence(shard, group_id, member_id, SESSION),
        retry=True,
    )


def schedule_rebalance_timeout(shard: Shard, group_id: str, member: ConsumerMember) -> None:
    """Start the timer within which a member must revoke its partitions."""
    member_id, epoch = member.member_id, member.member_epoch

    def expired() -> Outcome[None]:
        group = shard.groups.get(group_id)
        current = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        if isinstance(current, ConsumerMember) and current.member_epoch == epoch:
            return _fence(shard, group_id, member_id, REBALANCE)
        return no_change()

    shard.after(member_timer(REBALANCE, group_id, member_id), member.rebalance_timeout_ms, expired, retry=True)


def schedule_join_timeout(shard: Shard, group_id: str, member: ConsumerMember) -> None:
    """Start the timer within which a classic member must rejoin, unless it runs already."""
    shard.after_if_absent(
        member_timer(JOIN, group_id, member.member_id),
        member.rebalance_timeout_ms,
        lambda: _fence(shard, group_id, member.member_id, "join"),
        retry=True,
    )


def schedule_sync_timeout(shard: Shard, group_id: str, member_id: str, timeout_ms: int) -> None:
    """Start the timer within which a classic member must sync after its join."""
    shard.after(
        member_timer(SYNC, group_id, member_id),
        timeout_ms,
        lambda: _fence(shard, group_id, member_id, "sync"),
        retry=True,
    )


def _fence(shard: Shard, group_id: str, member_id: str, timeout: str) -> Outcome[None]:
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup) or member_id not in group.members:
        return no_change()
    shard.events.timed_out(timeout, group, member_id)
    return fence_members(shard, group, [group.members[member_id]], None, f"{timeout} timeout")
