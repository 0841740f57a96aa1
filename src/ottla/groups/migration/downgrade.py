"""Downgrade: a consumer group becomes a classic group when its last member of the consumer protocol is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.classic import consumer_protocol
from ottla.groups.classic.group import CONSUMER_PROTOCOL, ClassicGroup, ClassicMember, ClassicState
from ottla.groups.classic.membership import prepare_rebalance, schedule_session_timeout
from ottla.groups.classic.records import classic_group
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolAssignment, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember
    from ottla.groups.environment import Topics
    from ottla.groups.modern import Partitions
    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard


def may_downgrade_without(shard: Shard, group: ConsumerGroup, fenced: Sequence[ConsumerMember]) -> bool:
    """Return whether only classic members remain once these are fenced, and the migration policy allows a downgrade."""
    settings = shard.settings.coordinator()
    remaining = len(group.members) - len(fenced)
    classic_remaining = group.classic_member_count - sum(member.uses_classic_protocol for member in fenced)
    return classic_remaining == remaining and 0 < remaining <= settings.max_size and settings.downgrade_enabled


def may_downgrade_by_replacing(shard: Shard, group: ConsumerGroup, replaced: ConsumerMember | None) -> bool:
    """Return whether replacing this static member by a classic one leaves only classic members."""
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
    """Add the classic group's record to `written`; return what installs the group once the record is appended."""
    try:
        classic = _to_classic(shard, group, members, targets or group.targets)
    except ProtocolError as error:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot downgrade the classic group {group.group_id}: {error}."
        ) from None
    written.append(classic_group(classic, classic.assignments()))

    def install() -> None:
        shard.index_topics(group.group_id, group.subscribed_topics, ())
        for member_id in group.members:
            shard.timers.cancel_member(group.group_id, member_id)
        shard.groups[group.group_id] = classic
        shard.events.became_classic(group, classic)
        for member in classic.members.values():
            schedule_session_timeout(shard, classic, member)
        if rebalance:
            shard.execute(("rebalance", group.group_id), lambda: prepare_rebalance(shard, classic))

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
                tuple((protocol.name, protocol.metadata) for protocol in member.classic_metadata.supported_protocols),
            )
        )
    classic.protocol_name = classic.select_protocol()
    classic.subscribed_topics = classic.compute_subscribed_topics()
    for classic_member in classic.members.values():
        version = consumer_protocol.read_version(classic_member.metadata(classic.protocol_name))
        target = targets.get(classic_member.member_id, {})
        classic_member.assignment = classic_assignment(shard.topics, target, version)
    return classic


def classic_assignment(topics: Topics, partitions: Partitions, version: int) -> bytes:
    """Encode an assignment in the embedded consumer protocol; deleted topics are left out."""
    named = []
    for topic_id, indexes in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            named.append(TopicPartition(topic=topic.name, partitions=list(indexes)))
    return consumer_protocol.write_assignment(ConsumerProtocolAssignment(assigned_partitions=named), version)
