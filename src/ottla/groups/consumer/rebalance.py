"""The steps of a consumer group's rebalance: bump the epoch, compute the target assignment, reconcile a member.

Used by the heartbeats of the consumer protocol and by classic members of a mixed group. Each step appends records and
changes no hard state.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.groups.consumer import records
from ottla.groups.consumer.assignors import ASSIGNORS, GroupSpec, MemberSpec
from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember, count_topics, subscription_type
from ottla.groups.consumer.reconciliation import reconcile, subscribed_topic_ids
from ottla.groups.consumer.timers import schedule_rebalance_timeout
from ottla.groups.modern import MemberState, SubscriptionType, Target
from ottla.groups.outcome import Outcome, no_change
from ottla.groups.subscriptions import resolve_regexes, validate_regex
from ottla.groups.timers import REBALANCE, member_timer
from ottla.hashing.java import hash_map_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ottla.groups.consumer.group import ResolvedRegex
    from ottla.groups.environment import RequestContext
    from ottla.groups.modern import Partitions
    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard
    from ottla.protocol.messages.k68_consumer_group_heartbeat import TopicPartitions
    from ottla.protocol.uuids import Uuid

REGEX_BATCH_REFRESH_MIN_INTERVAL_MS: Final = 10_000


# Subscriptions


def update_member(
    group: ConsumerGroup, member: ConsumerMember, updated: ConsumerMember, written: list[GroupRecord]
) -> bool:
    """Append the record of a changed member; return whether its subscribed names changed."""
    if updated == member:
        return False
    written.append(records.member_subscription(group.group_id, updated))
    return updated.subscribed_topic_names != member.subscribed_topic_names


class RegexUpdate(Enum):
    """The change of a member's regular expression."""

    UNCHANGED = 0
    CHANGED = 1
    CHANGED_AND_RESOLVED = 2


def update_regexes(
    shard: Shard,
    context: RequestContext,
    group: ConsumerGroup,
    member: ConsumerMember,
    updated: ConsumerMember,
    written: list[GroupRecord],
) -> RegexUpdate:
    """Update a member's regular expression; schedule the resolution of the group's expressions if it is due."""
    old, new = member.regex, updated.regex
    update = RegexUpdate.UNCHANGED
    due = False
    if member.subscribed_topic_regex != updated.subscribed_topic_regex:
        update = RegexUpdate.CHANGED
        if old is not None and group.subscribed_regexes.get(old) == 1:
            written.append(records.regular_expression_tombstone(group.group_id, old))
        if new is None:
            if old is not None:
                update = RegexUpdate.CHANGED_AND_RESOLVED
        elif new not in group.subscribed_regexes:
            validate_regex(new)
            due = True
        elif new in group.resolved_regexes:
            update = RegexUpdate.CHANGED_AND_RESOLVED
    if not due and not group.subscribed_regexes:
        return update
    timer = ("regex", group.group_id)
    if timer in shard.timers:
        return update
    now = shard.clock.now_ms()
    last = next(iter(group.resolved_regexes.values()), None)
    if last is not None and 0 <= now - last.timestamp_ms <= REGEX_BATCH_REFRESH_MIN_INTERVAL_MS:
        return update
    regexes = list(group.regexes_after(member, updated))
    interval = shard.settings.coordinator().consumer_regex_refresh_interval_ms
    due = (
        due
        or len(regexes) != len(group.resolved_regexes)
        or last is None
        or last.version < shard.newest_topic_version
        or now > last.timestamp_ms + interval
    )
    if due and regexes:
        # Outside of the request, because it visits every topic.
        shard.soon(timer, lambda: _resolve(shard, context, group.group_id, regexes))
    return update


def _resolve(shard: Shard, context: RequestContext, group_id: str, regexes: Sequence[str]) -> Outcome[None]:
    group = shard.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        return no_change()
    written: list[GroupRecord] = []
    counts = dict(group.subscribed_topics)
    bump = False
    for regex, resolved in resolve_regexes(regexes, shard.topics, context, shard.clock.now_ms()).items():
        if regex not in group.subscribed_regexes:
            continue
        before = group.resolved_regexes.get(regex)
        topics_before: Iterable[str] = before.topics if before is not None else frozenset()
        if topics_before != resolved.topics:
            bump = True
            count_topics(counts, topics_before, by_regex=-1)
            count_topics(counts, resolved.topics, by_regex=+1)
        written.append(records.regular_expression(group_id, regex, resolved))
    metadata_hash = shard.topic_hashes.of_topics(counts)
    if bump or metadata_hash != group.metadata_hash:
        epoch = group.group_epoch + 1
        written.append(records.group_epoch(group_id, epoch, metadata_hash))
        group.metadata_refreshed(epoch)
    return Outcome(None, written)


# Epochs and targets


class GroupEpoch(NamedTuple):
    """The group epoch once the records are written, and the type of its subscriptions."""

    epoch: int
    subscription_type: SubscriptionType


def update_epoch(
    shard: Shard,
    group: ConsumerGroup,
    member: ConsumerMember,
    updated: ConsumerMember,
    written: list[GroupRecord],
    *,
    bump: bool,
) -> GroupEpoch:
    """Bump the group epoch if a subscription or the metadata hash of the subscribed topics changed."""
    epoch = group.group_epoch
    if not bump and not group.metadata_expired():
        return GroupEpoch(epoch, group.subscription_type)
    topics = group.topics_after(member, updated)
    metadata_hash = shard.topic_hashes.of_topics(topics)
    count = len(group.members)
    is_known = updated.member_id in group.members or (
        updated.instance_id is not None and updated.instance_id in group.static_members
    )
    kind = subscription_type(group.regexes_after(member, updated), topics, count if is_known else count + 1)
    if bump or metadata_hash != group.metadata_hash:
        epoch += 1
        written.append(records.group_epoch(group.group_id, epoch, metadata_hash))
    group.metadata_refreshed(epoch)
    if group.has_subscription_metadata_record:
        written.append(records.subscription_metadata_tombstone(group.group_id))
    return GroupEpoch(epoch, kind)


def update_target(
    shard: Shard,
    group: ConsumerGroup,
    epoch: GroupEpoch,
    member: ConsumerMember,
    updated: ConsumerMember,
    written: list[GroupRecord],
) -> Target:
    """Return the member's target; compute the whole target assignment if it is older than the group epoch.

    Kafka's TargetAssignmentBuilder, at most once per assignment interval.
    """
    interval = shard.settings.group(group.group_id).assignment_interval_ms
    if group.assignment_epoch >= epoch.epoch or group.assigned_within(interval, shard.clock.now_ms()):
        return Target(group.assignment_epoch, group.target_of_instance(updated.member_id, updated.instance_id))
    name = group.preferred_assignor(member, updated)
    if name not in ASSIGNORS:
        name = shard.settings.coordinator().default_assignor
    previous = group.static_members.get(updated.instance_id) if updated.instance_id is not None else None
    replaced = previous if previous is not None and previous != updated.member_id else None
    spec = _group_spec(shard, group, updated, replaced, epoch.subscription_type)
    targets = ASSIGNORS[name](spec)
    for member_id in spec.members:
        target = targets.get(member_id, {})
        if group.targets.get(member_id) != target:
            written.append(records.target_assignment(group.group_id, member_id, target))
    written.append(records.target_assignment_epoch(group.group_id, epoch.epoch, shard.clock.now_ms()))
    return Target(epoch.epoch, targets.get(updated.member_id, {}))


def _group_spec(
    shard: Shard,
    group: ConsumerGroup,
    updated: ConsumerMember,
    replaced: str | None,
    kind: SubscriptionType,
) -> GroupSpec:
    subscriptions = _Subscriptions(shard, group.resolved_regexes)
    members: dict[str, MemberSpec] = {}
    for member_id, member in group.members.items():
        if member_id not in (replaced, updated.member_id):
            members[member_id] = subscriptions.spec(member, group.target(member_id))
    target = group.target(replaced if replaced is not None else updated.member_id)
    members[updated.member_id] = subscriptions.spec(updated, target)
    # In Kafka's order, so that both brokers assign the same partitions to the same members.
    in_order = {member_id: members[member_id] for member_id in hash_map_order(members)}
    return GroupSpec(in_order, subscriptions.partition_counts, kind)


class _Subscriptions:
    """Topic ids of subscriptions, looked up once for all members with the same one."""

    def __init__(self, shard: Shard, resolved: Mapping[str, ResolvedRegex]) -> None:
        self._topics = shard.topics
        self._resolved = resolved
        self._topic_ids: dict[tuple[frozenset[str], str | None], tuple[Uuid, ...]] = {}
        self.partition_counts: dict[Uuid, int] = {}

    def spec(self, member: ConsumerMember, target: Partitions) -> MemberSpec:
        subscription = (member.subscribed_topic_names, member.regex)
        topics = self._topic_ids.get(subscription)
        if topics is None:
            topics = self._topic_ids[subscription] = self._look_up(*subscription)
        return MemberSpec(topics, target, member.instance_id)

    def _look_up(self, names: frozenset[str], regex: str | None) -> tuple[Uuid, ...]:
        if regex is not None and regex in self._resolved:
            names = names | self._resolved[regex].topics
        ids = []
        for name in sorted(names):
            topic = self._topics.by_name(name)
            if topic is not None:
                self.partition_counts[topic.id] = topic.partition_count
                ids.append(topic.id)
        return tuple(ids)


# Reconciliation


def reconcile_member(
    shard: Shard,
    group: ConsumerGroup,
    member: ConsumerMember,
    target: Target,
    written: list[GroupRecord],
    *,
    owned: Sequence[TopicPartitions] | None,
    subscription_changed: bool,
) -> ConsumerMember:
    """Reconcile a member and start or cancel the timer of its revocation."""
    if not subscription_changed and member.is_reconciled_to(target.epoch):
        return member
    updated = reconcile(
        member,
        target,
        owned=owned,
        subscribed=subscribed_topic_ids(member, group.resolved_regexes, shard.topics),
        is_free=lambda topic_id, partition: group.partition_epoch(topic_id, partition) == -1,
        subscription_changed=subscription_changed,
    )
    if updated == member:
        return member
    written.append(records.current_assignment(group.group_id, updated))
    if not updated.uses_classic_protocol:
        if updated.state is MemberState.UNREVOKED_PARTITIONS:
            schedule_rebalance_timeout(shard, group.group_id, updated)
        else:
            shard.timers.cancel(member_timer(REBALANCE, group.group_id, updated.member_id))
    return updated
