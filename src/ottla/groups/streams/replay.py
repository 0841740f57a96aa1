"""Replay of the records of streams groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ottla.groups.streams.assignor import TaskAssignment, Tasks
from ottla.groups.streams.group import (
    NOTHING_OWNED,
    Endpoint,
    OwnedTasks,
    StreamsGroup,
    StreamsMember,
    StreamsMemberState,
    TaskEpochs,
    initial_rebalance_timer,
)
from ottla.groups.streams.topology import StreamsTopology
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.group import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentTaskIds,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberTaskIds,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard
    from ottla.groups.streams.records import StreamsKey

LEFT_EPOCH = -1


def replay(shard: Shard, key: StreamsKey, record: GroupRecord) -> None:
    """Apply a record of a streams group; tombstones of unknown groups change nothing."""
    value = record.value
    group = _group(shard, key.group_id, create=value is not None)
    if group is None:
        return
    match key:
        case StreamsGroupMemberMetadataKey():
            _member(group, key.member_id, cast("StreamsGroupMemberMetadataValue | None", value))
        case StreamsGroupMetadataKey():
            _epoch(shard, group, cast("StreamsGroupMetadataValue | None", value))
        case StreamsGroupTopologyKey():
            _topology(shard, group, cast("StreamsGroupTopologyValue | None", value))
        case StreamsGroupTargetAssignmentMemberKey():
            _target(group, key.member_id, cast("StreamsGroupTargetAssignmentMemberValue | None", value))
        case StreamsGroupTargetAssignmentMetadataKey():
            group.replay_assignment(cast("StreamsGroupTargetAssignmentMetadataValue | None", value))
        case StreamsGroupCurrentMemberAssignmentKey():
            _current(group, key.member_id, cast("StreamsGroupCurrentMemberAssignmentValue | None", value))


def _group(shard: Shard, group_id: str, *, create: bool) -> StreamsGroup | None:
    group = shard.groups.get(group_id)
    if isinstance(group, StreamsGroup):
        return group
    if not create:
        return None
    if shard.may_create_group(group_id):
        created = shard.groups[group_id] = StreamsGroup(group_id)
        return created
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Group {group_id} is not a streams group")


def _member(group: StreamsGroup, member_id: str, value: StreamsGroupMemberMetadataValue | None) -> None:
    if value is None:
        group.remove_member(member_id)
        return
    endpoint = value.user_endpoint
    group.update_member(
        replace(
            group.members.get(member_id) or StreamsMember(member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            user_endpoint=None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
            client_tags={tag.key: tag.value for tag in value.client_tags},
        )
    )


def _epoch(shard: Shard, group: StreamsGroup, value: StreamsGroupMetadataValue | None) -> None:
    if value is None:
        drop_dependents(shard, group)
        del shard.groups[group.group_id]
        return
    group.group_epoch = value.epoch
    group.metadata_hash = value.metadata_hash
    group.validated_topology_epoch = value.validated_topology_epoch
    group.assignment_configs = {config.key: config.value for config in value.last_assignment_configs or ()}


def drop_dependents(shard: Shard, group: StreamsGroup) -> None:
    """Drop what depends on a deleted group: its topic index and the timer of its first assignment."""
    _topology(shard, group, None)
    shard.timers.cancel(initial_rebalance_timer(group.group_id))


def _topology(shard: Shard, group: StreamsGroup, value: StreamsGroupTopologyValue | None) -> None:
    old = group.topology
    new = group.topology = None if value is None else StreamsTopology.from_record(value)
    shard.index_topics(
        group.group_id,
        () if old is None else sorted(old.required_topics()),
        () if new is None else sorted(new.required_topics()),
    )


def _target(group: StreamsGroup, member_id: str, value: StreamsGroupTargetAssignmentMemberValue | None) -> None:
    if value is None:
        group.targets.pop(member_id, None)
    else:
        group.targets[member_id] = TaskAssignment(
            _tasks(value.active_tasks), _tasks(value.standby_tasks), _tasks(value.warmup_tasks)
        )


def _current(group: StreamsGroup, member_id: str, value: StreamsGroupCurrentMemberAssignmentValue | None) -> None:
    member = group.members.get(member_id)
    if value is None:
        if member is not None:
            group.update_member(
                replace(
                    member,
                    member_epoch=LEFT_EPOCH,
                    previous_member_epoch=LEFT_EPOCH,
                    assigned=NOTHING_OWNED,
                    pending_revocation=NOTHING_OWNED,
                )
            )
        return
    states = {state.value for state in StreamsMemberState}
    group.update_member(
        replace(
            member or StreamsMember(member_id),
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=StreamsMemberState(value.state) if value.state in states else StreamsMemberState.UNKNOWN,
            assigned=OwnedTasks(
                _with_epochs(value.active_tasks, value.member_epoch),
                _tasks(value.standby_tasks),
                _tasks(value.warmup_tasks),
            ),
            pending_revocation=OwnedTasks(
                _with_epochs(value.active_tasks_pending_revocation, value.member_epoch),
                _tasks(value.standby_tasks_pending_revocation),
                _tasks(value.warmup_tasks_pending_revocation),
            ),
        )
    )


def _tasks(
    tasks: Iterable[StreamsGroupTargetAssignmentMemberTaskIds | StreamsGroupCurrentMemberAssignmentTaskIds],
) -> Tasks:
    return {task_ids.subtopology_id: tuple(sorted(task_ids.partitions)) for task_ids in tasks}


def _with_epochs(tasks: Iterable[StreamsGroupCurrentMemberAssignmentTaskIds], member_epoch: int) -> TaskEpochs:
    assignment: TaskEpochs = {}
    for task_ids in tasks:
        epochs = task_ids.assignment_epochs
        if epochs is None or len(epochs) != len(task_ids.partitions):
            # Kafka before 4.3 wrote no assignment epochs.
            epochs = [member_epoch] * len(task_ids.partitions)
        assignment[task_ids.subtopology_id] = dict(zip(task_ids.partitions, epochs, strict=True))
    return assignment
