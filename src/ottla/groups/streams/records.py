"""The records of streams groups in `__consumer_offsets`: types 17 and 19 to 23."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.records import GroupRecord
from ottla.protocol.record_schemas import group as schemas

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ottla.groups.streams.assignor import TaskAssignment, Tasks
    from ottla.groups.streams.group import StreamsMember, TaskEpochs

StreamsKey = (
    schemas.StreamsGroupMemberMetadataKey
    | schemas.StreamsGroupMetadataKey
    | schemas.StreamsGroupTopologyKey
    | schemas.StreamsGroupTargetAssignmentMemberKey
    | schemas.StreamsGroupTargetAssignmentMetadataKey
    | schemas.StreamsGroupCurrentMemberAssignmentKey
)


def member_metadata(group_id: str, member: StreamsMember) -> GroupRecord:
    """Return the record of a member's identity and configuration."""
    endpoint = member.user_endpoint
    value = schemas.StreamsGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else schemas.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[schemas.KeyValue(key=key, value=tag) for key, tag in sorted(member.client_tags.items())],
    )
    return GroupRecord(schemas.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value)


def group_epoch(
    group_id: str, epoch: int, metadata_hash: int, validated_topology_epoch: int, configs: Mapping[str, str]
) -> GroupRecord:
    """Return the record of a group epoch with its metadata hash, topology epoch and assignment configs."""
    value = schemas.StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=metadata_hash,
        validated_topology_epoch=validated_topology_epoch,
        last_assignment_configs=[
            schemas.LastAssignmentConfig(key=key, value=config) for key, config in sorted(configs.items())
        ],
    )
    return GroupRecord(schemas.StreamsGroupMetadataKey(group_id=group_id), value)


def topology(group_id: str, value: schemas.StreamsGroupTopologyValue) -> GroupRecord:
    """Return the record of the group's topology."""
    return GroupRecord(schemas.StreamsGroupTopologyKey(group_id=group_id), value)


def target_assignment(group_id: str, member_id: str, target: TaskAssignment) -> GroupRecord:
    """Return the record of a member's target assignment."""
    active, standby, warmup = (
        [
            schemas.StreamsGroupTargetAssignmentMemberTaskIds(
                subtopology_id=subtopology_id, partitions=sorted(tasks[subtopology_id])
            )
            for subtopology_id in sorted(tasks)
        ]
        for tasks in target
    )
    value = schemas.StreamsGroupTargetAssignmentMemberValue(
        active_tasks=active, standby_tasks=standby, warmup_tasks=warmup
    )
    return GroupRecord(schemas.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def target_assignment_epoch(group_id: str, epoch: int, timestamp_ms: int) -> GroupRecord:
    """Return the record of the assignment epoch and the time of its computation."""
    value = schemas.StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return GroupRecord(schemas.StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def current_assignment(group_id: str, member: StreamsMember) -> GroupRecord:
    """Return the record of a member's current tasks and of those that it has yet to revoke."""
    assigned, pending = member.assigned, member.pending_revocation
    value = schemas.StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member.state.value,
        active_tasks=_with_epochs(assigned.active),
        standby_tasks=_task_ids(assigned.standby),
        warmup_tasks=_task_ids(assigned.warmup),
        active_tasks_pending_revocation=_with_epochs(pending.active),
        standby_tasks_pending_revocation=_task_ids(pending.standby),
        warmup_tasks_pending_revocation=_task_ids(pending.warmup),
    )
    return GroupRecord(
        schemas.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value
    )


def _with_epochs(tasks: TaskEpochs) -> list[schemas.StreamsGroupCurrentMemberAssignmentTaskIds]:
    return [
        schemas.StreamsGroupCurrentMemberAssignmentTaskIds(
            subtopology_id=subtopology_id,
            partitions=sorted(tasks[subtopology_id]),
            assignment_epochs=[epoch for _, epoch in sorted(tasks[subtopology_id].items())],
        )
        for subtopology_id in sorted(tasks)
    ]


def _task_ids(tasks: Tasks) -> list[schemas.StreamsGroupCurrentMemberAssignmentTaskIds]:
    return [
        schemas.StreamsGroupCurrentMemberAssignmentTaskIds(
            subtopology_id=subtopology_id, partitions=sorted(tasks[subtopology_id])
        )
        for subtopology_id in sorted(tasks)
    ]


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    """Return the tombstones that remove a member."""
    return [
        GroupRecord(schemas.StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        GroupRecord(schemas.StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        GroupRecord(schemas.StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(group_id: str, member_ids: Iterable[str]) -> list[GroupRecord]:
    """Return the tombstones that delete a group."""
    removals = [member_tombstones(group_id, member_id) for member_id in member_ids]
    return [
        *(current for current, _, _ in removals),
        *(target for _, target, _ in removals),
        GroupRecord(schemas.StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        *(metadata for _, _, metadata in removals),
        GroupRecord(schemas.StreamsGroupMetadataKey(group_id=group_id), None),
        GroupRecord(schemas.StreamsGroupTopologyKey(group_id=group_id), None),
    ]
