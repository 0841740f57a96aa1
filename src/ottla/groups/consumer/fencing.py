"""Fence members of a consumer group: remove them, and downgrade the group if only classic members remain."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ottla.groups.consumer import records
from ottla.groups.group_events import LEFT
from ottla.groups.migration.downgrade import downgrade, may_downgrade_without
from ottla.groups.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember
    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard

R = TypeVar("R")


def fence_members(
    shard: Shard, group: ConsumerGroup, members: Sequence[ConsumerMember], response: R, reason: str = LEFT
) -> Outcome[R]:
    """Evict members and bump the group epoch; downgrade the group if only classic members remain.

    Kafka's GroupMetadataManager.consumerGroupFenceMembers.
    """
    if not members:
        return Outcome(response)
    shard.events.leaving(group, (member.member_id for member in members), reason)
    if may_downgrade_without(shard, group, members):
        fenced = {member.member_id for member in members}
        remaining = [member for member in group.members.values() if member.member_id not in fenced]
        written = group.tombstones()
        install = downgrade(shard, group, remaining, written, rebalance=True)
        return Outcome(response, written, replay=False, on_appended=install)
    group_id = group.group_id
    written = []
    for member in members:
        written += member_tombstones(group_id, member.member_id)
    regexes = _regexes_without(group, members)
    written += [records.regular_expression_tombstone(group_id, regex) for regex in regexes]
    metadata_hash = shard.topic_hashes.of_topics(group.topics_without(members, regexes))
    written.append(records.group_epoch(group_id, group.group_epoch + 1, metadata_hash))

    def removed() -> None:
        for member in members:
            shard.timers.cancel_member(group_id, member.member_id)

    return Outcome(response, written, on_appended=removed)


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    """Return the tombstones that remove a member."""
    return [
        records.current_assignment_tombstone(group_id, member_id),
        records.target_assignment_tombstone(group_id, member_id),
        records.member_subscription_tombstone(group_id, member_id),
    ]


def _regexes_without(group: ConsumerGroup, members: Sequence[ConsumerMember]) -> list[str]:
    """Return the regular expressions that no other member subscribes to."""
    counts: dict[str, int] = {}
    for member in members:
        if member.regex is not None:
            counts[member.regex] = counts.get(member.regex, 0) + 1
    return [regex for regex, count in counts.items() if group.subscribed_regexes.get(regex) == count]
