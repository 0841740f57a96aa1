"""Members that are removed from a consumer group, and a consumer group that becomes a classic one by that.

A mixed group is one of the new protocol for as long as one member of the new protocol is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from ottla.groups import records
from ottla.groups.classic import consumer_protocol
from ottla.groups.classic import join as classic_join
from ottla.groups.classic.group import CONSUMER_PROTOCOL, ClassicGroup, ClassicMember, ClassicState
from ottla.groups.consumer import replay as consumer_replay
from ottla.groups.group_events import LEFT
from ottla.groups.shard import Outcome
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolAssignment, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember, Partitions
    from ottla.groups.environment import Topics
    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard

R = TypeVar("R")

SESSION: Final = "session"
REBALANCE: Final = "rebalance"
JOIN: Final = "consumer-join"
SYNC: Final = "consumer-sync"


def member_timer(kind: str, group_id: str, member_id: str) -> tuple[str, str, str]:
    """The name of one of a member's timers."""
    return (kind, group_id, member_id)


def cancel_timers(shard: Shard, group_id: str, member_id: str) -> None:
    """A member is gone."""
    for kind in (SESSION, REBALANCE, JOIN, SYNC):
        shard.timers.cancel(member_timer(kind, group_id, member_id))


# Removing members


def fence_members(
    shard: Shard, group: ConsumerGroup, members: Sequence[ConsumerMember], response: R, reason: str = LEFT
) -> Outcome[R]:
    """Remove members; if only classic ones stay, the group becomes a classic group."""
    if not members:
        return Outcome(response)
    if shard.events is not None:
        shard.events.leaving(group, (member.member_id for member in members), reason)
    if _may_downgrade_without(shard, group, members):
        gone = {member.member_id for member in members}
        stay = [member for member in group.members.values() if member.member_id not in gone]
        written = group.tombstones()
        install = downgrade(shard, group, stay, written, rebalance=True)
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
            cancel_timers(shard, group_id, member.member_id)

    return Outcome(response, written, on_appended=removed)


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    """What removes a member."""
    return [
        records.current_assignment_tombstone(group_id, member_id),
        records.target_assignment_tombstone(group_id, member_id),
        records.member_subscription_tombstone(group_id, member_id),
    ]


def _regexes_without(group: ConsumerGroup, members: Sequence[ConsumerMember]) -> list[str]:
    """The regular expressions that nobody uses once these members are gone."""
    counts: dict[str, int] = {}
    for member in members:
        if member.regex is not None:
            counts[member.regex] = counts.get(member.regex, 0) + 1
    return [regex for regex, count in counts.items() if group.subscribed_regexes.get(regex) == count]


# Consumer group to classic group


def _may_downgrade_without(shard: Shard, group: ConsumerGroup, gone: Sequence[ConsumerMember]) -> bool:
    settings = shard.settings.coordinator()
    left = len(group.members) - len(gone)
    classic_left = group.classic_member_count - sum(member.uses_classic_protocol for member in gone)
    return classic_left == left and 0 < left <= settings.max_size and settings.downgrade_enabled


def may_downgrade_by_replacing(shard: Shard, group: ConsumerGroup, replaced: ConsumerMember | None) -> bool:
    """Whether a classic member that takes the place of this static one leaves only classic members."""
    settings = shard.settings.coordinator()
    return (
        replaced is not None
        and not replaced.uses_classic_protocol
        and group.classic_member_count == len(group.members) - 1
        and len(group.members) <= settings.max_size
        and settings.downgrade_enabled
    )


def downgrade(
    shard: Shard,
    group: ConsumerGroup,
    members: Sequence[ConsumerMember],
    written: list[GroupRecord],
    *,
    rebalance: bool,
    targets: dict[str, Partitions] | None = None,
) -> Callable[[], None]:
    """Write the group down as a classic one of these members; what this returns puts it in the old one's place."""
    try:
        classic = _to_classic(shard, group, members, targets or group.targets)
    except ProtocolError as error:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot downgrade the classic group {group.group_id}: {error}."
        ) from None
    written.append(records.classic_group(classic, classic.assignments()))

    def install() -> None:
        consumer_replay.forget_topics(shard, group)
        for member_id in group.members:
            cancel_timers(shard, group.group_id, member_id)
        shard.groups[group.group_id] = classic
        if shard.events is not None:
            shard.events.became_classic(group, classic)
        for member in classic.members.values():
            classic_join.schedule_heartbeat(shard, classic, member)
        if rebalance:
            classic_join.prepare_rebalance(shard, classic)

    return install


def _to_classic(
    shard: Shard, group: ConsumerGroup, members: Sequence[ConsumerMember], targets: dict[str, Partitions]
) -> ClassicGroup:
    classic = ClassicGroup(
        group.group_id,
        shard.clock.now_ms(),
        state=ClassicState.STABLE,
        generation_id=group.group_epoch,
        protocol_type=CONSUMER_PROTOCOL,
    )
    for member in members:
        assert member.classic_metadata is not None
        classic.add(
            ClassicMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic_session_timeout_ms,
                CONSUMER_PROTOCOL,
                tuple((each.name, each.metadata) for each in member.classic_metadata.supported_protocols),
            )
        )
    classic.protocol_name = classic.select_protocol()
    classic.subscribed_topics = classic.compute_subscribed_topics()
    for each in classic.members.values():
        version = consumer_protocol.version_of(each.metadata(classic.protocol_name))
        each.assignment = classic_assignment(shard.topics, targets.get(each.member_id, {}), version)
    return classic


def classic_assignment(topics: Topics, partitions: Partitions, version: int) -> bytes:
    """An assignment as a classic consumer reads it; topics that are no more are left out."""
    named = []
    for topic_id, indexes in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            named.append(TopicPartition(topic=topic.name, partitions=list(indexes)))
    return consumer_protocol.write_assignment(ConsumerProtocolAssignment(assigned_partitions=named), version)
