"""Reconciliation of a member with its target assignment, one heartbeat at a time (Kafka's CurrentAssignmentBuilder).

A member first revokes the partitions that are not in its target and acknowledges it; then it gets the partitions that
no other member owns any more. Pure functions that return the updated member.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ottla.groups.consumer.group import ConsumerMember, PartitionEpochs, with_epoch
from ottla.groups.modern import MemberState, Target
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ottla.groups.consumer.group import ResolvedRegex
    from ottla.groups.environment import Topics
    from ottla.protocol.messages.k68_consumer_group_heartbeat import TopicPartitions
    from ottla.protocol.uuids import Uuid


def reconcile(
    member: ConsumerMember,
    target: Target,
    *,
    owned: Sequence[TopicPartitions] | None,
    subscribed: Callable[[Uuid], bool],
    is_free: Callable[[Uuid, int], bool],
    subscription_changed: bool,
) -> ConsumerMember:
    """Return the member after its next step.

    `owned` are the partitions that the member reports; None, no report, counts as still owning all of them.
    """
    step = _Step(member, target, owned, subscribed, is_free)
    match member.state:
        case MemberState.STABLE:
            if member.member_epoch != target.epoch:
                return step.next_assignment(member.member_epoch)
            return step.revoke_unsubscribed() if subscription_changed else member
        case MemberState.UNREVOKED_PARTITIONS:
            if not step.still_owns(member.pending_revocation):
                return step.next_assignment(member.member_epoch)
            return step.revoke_unsubscribed() if subscription_changed else member
        case MemberState.UNRELEASED_PARTITIONS:
            return step.next_assignment(member.member_epoch)
        case MemberState.UNKNOWN:
            # A state that a newer version wrote: the member may only continue if it owns nothing.
            if owned is None or owned:
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in a unknown state. "
                    "The member must abandon all its partitions and rejoin.",
                )
            return step.next_assignment(target.epoch)


class _Step(NamedTuple):
    member: ConsumerMember
    target: Target
    owned: Sequence[TopicPartitions] | None
    subscribed: Callable[[Uuid], bool]
    is_free: Callable[[Uuid, int], bool]

    def still_owns(self, revoked: PartitionEpochs) -> bool:
        """Return whether the member has not yet acknowledged the revocation of all these partitions."""
        if self.owned is None:
            return True
        return any(
            partition in revoked.get(topic.topic_id, {}) for topic in self.owned for partition in topic.partitions
        )

    def next_assignment(self, member_epoch: int) -> ConsumerMember:
        """Move towards the target: revoke partitions, or else assign the unowned ones."""
        member, target = self.member, self.target
        kept: PartitionEpochs = {}
        revoked: PartitionEpochs = {}
        added: dict[Uuid, list[int]] = {}
        unreleased = False
        for topic_id in dict.fromkeys((*target.partitions, *member.assigned)):
            target_partitions = set(target.partitions.get(topic_id, ())) if self.subscribed(topic_id) else set()
            owned = member.assigned.get(topic_id, {})
            keep = {partition: epoch for partition, epoch in owned.items() if partition in target_partitions}
            revoke = {partition: epoch for partition, epoch in owned.items() if partition not in target_partitions}
            pending_revocation = member.pending_revocation.get(topic_id, {})
            add = []
            for partition in sorted(target_partitions):
                if partition in owned:
                    continue
                if self.is_free(topic_id, partition) or partition in pending_revocation:
                    add.append(partition)
                else:
                    unreleased = True
            if keep:
                kept[topic_id] = keep
            if revoke:
                revoked[topic_id] = revoke
            if add:
                added[topic_id] = add
        if revoked and self.still_owns(revoked):
            return replace(
                with_epoch(member, member_epoch),
                state=MemberState.UNREVOKED_PARTITIONS,
                assigned=kept,
                pending_revocation=revoked,
            )
        for topic_id, partitions in added.items():
            assigned = {**kept.get(topic_id, {}), **dict.fromkeys(partitions, target.epoch)}
            kept[topic_id] = dict(sorted(assigned.items()))
        return replace(
            with_epoch(member, target.epoch),
            state=MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE,
            assigned=kept,
            pending_revocation={},
        )

    def revoke_unsubscribed(self) -> ConsumerMember:
        """Revoke partitions of unsubscribed topics now; the target assignment follows when it is computed."""
        member = self.member
        kept: PartitionEpochs = {}
        revoked = dict(member.pending_revocation)
        for topic_id, partitions in member.assigned.items():
            if self.subscribed(topic_id):
                kept[topic_id] = partitions
            else:
                revoked[topic_id] = {**revoked.get(topic_id, {}), **partitions}
        if len(kept) == len(member.assigned):
            return member
        if revoked and self.still_owns(revoked):
            return replace(
                with_epoch(member, member.member_epoch),
                state=MemberState.UNREVOKED_PARTITIONS,
                assigned=kept,
                pending_revocation=revoked,
            )
        return replace(with_epoch(member, member.member_epoch), assigned=kept)


def subscribed_topic_ids(
    member: ConsumerMember, resolved: Mapping[str, ResolvedRegex], topics: Topics
) -> Callable[[Uuid], bool]:
    """Return a predicate: whether the member subscribes to a topic id, by name or regular expression."""
    names = member.subscribed_topic_names
    regex = member.regex
    if regex is not None and regex in resolved:
        names = names | resolved[regex].topics

    def subscribed(topic_id: Uuid) -> bool:
        topic = topics.by_id(topic_id)
        return topic is not None and topic.name in names

    return subscribed
