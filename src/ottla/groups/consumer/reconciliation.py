"""How a member of a consumer group gets from what it owns to what it is to own (KIP-848), one heartbeat at a time.

First it gives back what is not in its target, and says so; then it gets what is free; a partition is free only when its
last owner has said that it let go. Pure functions: a member goes in, the member as it is next comes out.
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
    """The member's next step.

    `owned` is what the member says it owns, or None if it says nothing, which counts as still owning all of it.
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
            # A state that a later version wrote: only a member that owns nothing can go on from there.
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
        """Whether the member has not yet said that it let go of all of these."""
        if self.owned is None:
            return True
        return any(
            partition in revoked.get(topic.topic_id, {}) for topic in self.owned for partition in topic.partitions
        )

    def next_assignment(self, member_epoch: int) -> ConsumerMember:
        """Go on towards the target: revoke, or else take what is free."""
        member, target = self.member, self.target
        kept: PartitionEpochs = {}
        revoked: PartitionEpochs = {}
        wanted: dict[Uuid, list[int]] = {}
        unreleased = False
        for topic_id in dict.fromkeys((*target.partitions, *member.assigned)):
            to_own = set(target.partitions.get(topic_id, ())) if self.subscribed(topic_id) else set()
            has = member.assigned.get(topic_id, {})
            keep = {partition: epoch for partition, epoch in has.items() if partition in to_own}
            give_back = {partition: epoch for partition, epoch in has.items() if partition not in to_own}
            giving_back = member.pending_revocation.get(topic_id, {})
            take = []
            for partition in sorted(to_own):
                if partition in has:
                    continue
                if self.is_free(topic_id, partition) or partition in giving_back:
                    take.append(partition)
                else:
                    unreleased = True
            if keep:
                kept[topic_id] = keep
            if give_back:
                revoked[topic_id] = give_back
            if take:
                wanted[topic_id] = take
        if revoked and self.still_owns(revoked):
            return replace(
                with_epoch(member, member_epoch),
                state=MemberState.UNREVOKED_PARTITIONS,
                assigned=kept,
                pending_revocation=revoked,
            )
        for topic_id, partitions in wanted.items():
            taken = {**kept.get(topic_id, {}), **dict.fromkeys(partitions, target.epoch)}
            kept[topic_id] = dict(sorted(taken.items()))
        return replace(
            with_epoch(member, target.epoch),
            state=MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE,
            assigned=kept,
            pending_revocation={},
        )

    def revoke_unsubscribed(self) -> ConsumerMember:
        """Give back at once what the member no longer subscribes to; the target follows when it is computed."""
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
    """Whether a member subscribes to the topic with an id, by name or by regular expression."""
    names = member.subscribed_topic_names
    regex = member.regex
    if regex is not None and regex in resolved:
        names = names | resolved[regex].topics

    def subscribed(topic_id: Uuid) -> bool:
        topic = topics.by_id(topic_id)
        return topic is not None and topic.name in names

    return subscribed
