"""The steps of a streams group's rebalance: configure the topology, bump the epoch, assign tasks, reconcile a member.

Each step appends records and changes no hard state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.groups.outcome import Outcome
from ottla.groups.streams import records
from ottla.groups.streams.assignor import NO_TASKS, StreamsMemberSpec, assign
from ottla.groups.streams.group import StreamsGroup, StreamsMember, StreamsMemberState, initial_rebalance_timer
from ottla.groups.streams.internal_topics import configure
from ottla.groups.streams.reconciliation import TaskTarget, reconcile
from ottla.groups.streams.timers import cancel_rebalance_timeout, schedule_rebalance_timeout
from ottla.groups.streams.topology import ConfiguredTopology, StatusCode, StreamsTopology, TopologyStatus
from ottla.hashing.java import timeline_map_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard
    from ottla.groups.streams.assignor import TaskAssignment

STANDBY_REPLICAS: Final = "num.standby.replicas"
NOT_VALIDATED: Final = -1


# Epochs


class GroupEpoch(NamedTuple):
    """The group epoch once the records are written, and the topology and configs that it was bumped for."""

    epoch: int
    configured: ConfiguredTopology
    configs: Mapping[str, str]


def resolve_topology(shard: Shard, group: StreamsGroup, topology: StreamsTopology) -> ConfiguredTopology:
    """Return the topology configured for the existing topics; the previous result if these have not changed."""
    configured = group.configured
    if configured is not None and group.topology is not None and not group.metadata_expired():
        return configured
    metadata_hash = shard.topic_hashes.of_topics(topology.required_topics())
    if configured is None or group.topology is None or metadata_hash != group.metadata_hash:
        return configure(topology, shard.topics, metadata_hash)
    return configured


def update_epoch(
    shard: Shard, group: StreamsGroup, configured: ConfiguredTopology, written: list[GroupRecord], *, bump: bool
) -> GroupEpoch:
    """Bump the group epoch if a member, a topic, the readiness of the topology or a config changed."""
    configs = {STANDBY_REPLICAS: str(shard.settings.group(group.group_id).streams_num_standby_replicas)}
    validated = configured.epoch if configured.is_ready else NOT_VALIDATED
    bump = (
        bump
        or configured.metadata_hash != group.metadata_hash
        or validated != group.validated_topology_epoch
        or configs != group.assignment_configs
    )
    epoch = group.group_epoch + bump
    if bump:
        written.append(records.group_epoch(group.group_id, epoch, configured.metadata_hash, validated, configs))
    return GroupEpoch(epoch, configured, configs)


# Target assignments


def delay_first_assignment(shard: Shard, group: StreamsGroup) -> None:
    """Delay the first assignment of a new group by `streams.initial.rebalance.delay.ms`, so that others can join."""
    delay_ms = shard.settings.group(group.group_id).streams_initial_rebalance_delay_ms
    if delay_ms > 0 and group.is_empty:
        timer = initial_rebalance_timer(group.group_id)
        shard.after_if_absent(timer, delay_ms, lambda: _assign_after_delay(shard, group.group_id))


def _assign_after_delay(shard: Shard, group_id: str) -> Outcome[None]:
    group = shard.groups.get(group_id)
    if not isinstance(group, StreamsGroup) or group.is_empty or group.configured is None:
        # Without members, or before the topology is configured again, the next heartbeat assigns.
        return Outcome(None)
    written: list[GroupRecord] = []
    epoch = GroupEpoch(group.group_epoch, group.configured, group.assignment_configs)
    update_target(shard, group, epoch, None, written)
    return Outcome(None, written)


def update_target(
    shard: Shard, group: StreamsGroup, epoch: GroupEpoch, updated: StreamsMember | None, written: list[GroupRecord]
) -> tuple[TaskTarget, TopologyStatus | None]:
    """Return the member's target, and why it is delayed.

    The target assignment of the whole group is computed if it is older than the group epoch.
    """
    group_id = group.group_id
    last = group.target(updated.member_id) if updated is not None else NO_TASKS
    if initial_rebalance_timer(group_id) in shard.timers:
        return TaskTarget(group.assignment_epoch, NO_TASKS), _delayed("initial rebalance delay")
    if group.assignment_epoch >= epoch.epoch:
        return TaskTarget(group.assignment_epoch, last), None
    now = shard.clock.now_ms()
    if group.assigned_within(shard.settings.group(group_id).streams_assignment_interval_ms, now):
        return TaskTarget(group.assignment_epoch, last), _delayed("assignment interval")
    targets = _targets(group, epoch, updated)
    written += [
        records.target_assignment(group_id, member_id, target)
        for member_id, target in targets.items()
        if group.targets.get(member_id) != target
    ]
    written.append(records.target_assignment_epoch(group_id, epoch.epoch, now))
    return TaskTarget(epoch.epoch, targets[updated.member_id] if updated is not None else NO_TASKS), None


def _delayed(reason: str) -> TopologyStatus:
    return TopologyStatus(StatusCode.ASSIGNMENT_DELAYED, f"Assignment delayed due to the configured {reason}.")


def _targets(group: StreamsGroup, epoch: GroupEpoch, updated: StreamsMember | None) -> dict[str, TaskAssignment]:
    members = {member_id: group.members[member_id] for member_id in timeline_map_order(group.members)}
    if updated is not None:
        members[updated.member_id] = updated
    subtopologies = epoch.configured.subtopologies
    if not epoch.configured.is_ready or subtopologies is None:
        return dict.fromkeys(members, NO_TASKS)
    specs = {
        member.member_id: StreamsMemberSpec(
            member.process_id,
            member.instance_id,
            member.rack_id,
            member.client_tags,
            group.target(member.member_id),
        )
        for member in members.values()
    }
    return assign(specs, subtopologies, int(epoch.configs.get(STANDBY_REPLICAS, "0")))


# Reconciliation


def reconcile_member(
    shard: Shard,
    group: StreamsGroup,
    member: StreamsMember,
    target: TaskTarget,
    owned: TaskAssignment | None,
    written: list[GroupRecord],
) -> tuple[StreamsMember, Callable[[], None] | None]:
    """Reconcile a member; return the timer change to make once the records are appended."""
    if member.is_reconciled_to(target.epoch):
        return member, None
    updated = reconcile(member, target, owned, group.owners)
    if updated == member:
        return member, None
    written.append(records.current_assignment(group.group_id, updated))
    if updated.state is StreamsMemberState.UNREVOKED_TASKS:
        return updated, lambda: schedule_rebalance_timeout(shard, group.group_id, updated)
    return updated, lambda: cancel_rebalance_timeout(shard, group.group_id, updated.member_id)
