"""StreamsGroupHeartbeat (KIP-1071): join with a topology, report tasks, request a shutdown and leave."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.groups.group_events import LEFT
from ottla.groups.modern import JOIN_EPOCH, LEAVE_GROUP_EPOCH, LEAVE_GROUP_STATIC_EPOCH
from ottla.groups.outcome import Outcome
from ottla.groups.streams import records
from ottla.groups.streams import topology as streams_topology
from ottla.groups.streams.assignor import TaskAssignment
from ottla.groups.streams.group import Endpoint, StreamsGroup, StreamsMember
from ottla.groups.streams.rebalance import (
    delay_first_assignment,
    reconcile_member,
    resolve_topology,
    update_epoch,
    update_target,
)
from ottla.groups.streams.timers import remove_member, schedule_session_timeout
from ottla.groups.streams.topology import StatusCode, StreamsTopology, TopologyStatus
from ottla.hashing.java import hash_map_order
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k88_streams_group_heartbeat import Endpoint as SentEndpoint
from ottla.protocol.messages.k88_streams_group_heartbeat import (
    EndpointToPartitions,
    Status,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ottla.groups.environment import RequestContext
    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard
    from ottla.groups.streams.topology import ConfiguredTopology, InternalTopic

V = TypeVar("V")


class StreamsHeartbeat(NamedTuple):
    """The response to a heartbeat, and the internal topics that the application lacks."""

    response: StreamsGroupHeartbeatResponse
    topics_to_create: tuple[InternalTopic, ...] = ()


def error_heartbeat(code: ErrorCode, message: str | None) -> StreamsHeartbeat:
    """Return the response to a heartbeat that failed."""
    return StreamsHeartbeat(StreamsGroupHeartbeatResponse(error_code=code, error_message=message))


# Validation


def validate(request: StreamsGroupHeartbeatRequest) -> None:
    """Raise for a request that is invalid in any group, or that uses what Kafka does not support yet."""
    _check_supported(request)
    for text, name in (
        (request.member_id, "MemberId"),
        (request.group_id, "GroupId"),
        (request.rack_id, "RackId"),
    ):
        if text is not None and not text.strip():
            raise _invalid(f"{name} can't be empty.")
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    epoch = request.member_epoch
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        for owned, name in zip(tasks, ("ActiveTasks", "StandbyTasks", "WarmupTasks"), strict=True):
            if owned is None or owned:
                raise _invalid(f"{name} must be empty when (re-)joining.")
        if request.topology is None:
            raise _invalid("Topology must be non-null when (re-)joining.")
        streams_topology.validate(request.topology)
    elif epoch == LEAVE_GROUP_STATIC_EPOCH:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_GROUP_STATIC_EPOCH:
        raise _invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    if any(owned is None for owned in tasks) and any(owned is not None for owned in tasks):
        raise _invalid("If one task-type is non-null, all must be non-null.")
    if epoch != JOIN_EPOCH and request.topology is not None:
        raise _invalid("Topology can only be provided when (re-)joining.")


def _check_supported(request: StreamsGroupHeartbeatRequest) -> None:
    if request.instance_id is not None:
        raise _invalid("Static membership is not yet supported.")
    if request.task_offsets is not None:
        raise _invalid("TaskOffsets are not supported yet.")
    if request.task_end_offsets is not None:
        raise _invalid("TaskEndOffsets are not supported yet.")
    if request.warmup_tasks:
        raise _invalid("WarmupTasks are not supported yet.")
    if request.topology is not None and any(
        subtopology.source_topic_regex for subtopology in request.topology.subtopologies
    ):
        raise _invalid("Regular expressions for source topics are not supported yet.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


# The heartbeat


def heartbeat(
    shard: Shard, context: RequestContext, request: StreamsGroupHeartbeatRequest
) -> Outcome[StreamsHeartbeat]:
    """Add, reconcile or remove a member, by the epoch that it sends."""
    if request.member_epoch == LEAVE_GROUP_EPOCH:
        return _leave(shard, request)
    group_id, member_id = request.group_id, request.member_id
    joins = request.member_epoch == JOIN_EPOCH
    written: list[GroupRecord] = []
    group = _group_to_join(shard, group_id, written) if joins else _existing_group(shard, group_id)
    member = group.members.get(member_id) or (StreamsMember(member_id) if joins else group.member(member_id))
    _check_epoch(member, request)
    updated = _updated(member, context, request)
    if updated != member:
        written.append(records.member_metadata(group_id, updated))
    topology = _topology(group, request, written)
    configured = resolve_topology(shard, group, topology)
    _check_tasks(configured, request)
    epoch = update_epoch(shard, group, configured, written, bump=updated != member)
    delay_first_assignment(shard, group)
    target, delay = update_target(shard, group, epoch, updated, written)
    owned = None if updated.is_reconciled_to(target.epoch) else _owned(request)
    updated, set_timer = reconcile_member(shard, group, updated, target, owned, written)
    response = StreamsGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=updated.member_epoch,
        heartbeat_interval_ms=shard.settings.group(group_id).streams_heartbeat_interval_ms,
    )
    endpoint_epoch = group.endpoint_epoch
    if joins or member.assigned != updated.assigned:
        response.active_tasks = _task_ids(updated.assigned.active)
        response.standby_tasks = _task_ids(updated.assigned.standby)
        response.warmup_tasks = _task_ids(updated.assigned.warmup)
        endpoint_epoch += updated.user_endpoint is not None
    if endpoint_epoch != request.endpoint_information_epoch:
        response.partitions_by_user_endpoint = _endpoints(shard, group, updated, configured)
    if group_id in shard.groups:
        # Kafka loses the endpoint epoch of the request that creates a group.
        response.endpoint_information_epoch = endpoint_epoch
    shutdown_by = group.shutdown_requested_by or (member_id if request.shutdown_application else None)
    response.status = _statuses(group, updated, delay, configured, shutdown_by)

    def appended() -> None:
        group.configured = configured
        group.metadata_refreshed(epoch.epoch)
        group.endpoint_epoch = endpoint_epoch
        group.shutdown_requested_by = shutdown_by
        schedule_session_timeout(shard, group_id, member_id)
        if set_timer is not None:
            set_timer()

    return Outcome(StreamsHeartbeat(response, configured.topics_to_create), written, on_appended=appended)


def _group_to_join(shard: Shard, group_id: str, written: list[GroupRecord]) -> StreamsGroup:
    """Return the group that a member joins: an existing one, or a new one that may replace an empty classic group."""
    empty = shard.empty_classic_group(group_id)
    if empty is not None:
        written += empty.tombstones()
    if empty is not None or group_id not in shard.groups:
        return StreamsGroup(group_id)
    group = _existing_group(shard, group_id)
    max_size = shard.settings.coordinator().streams_max_size
    if len(group.members) >= max_size:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The streams group has reached its maximum capacity of {max_size} members.",
        )
    return group


def _existing_group(shard: Shard, group_id: str) -> StreamsGroup:
    if group_id not in shard.groups:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
    return shard.streams_group(group_id)


def _check_epoch(member: StreamsMember, request: StreamsGroupHeartbeatRequest) -> None:
    """Fence a member with another epoch, unless it has only missed the response with its current epoch."""
    received = request.member_epoch
    if received in (JOIN_EPOCH, member.member_epoch):
        return
    relation = "greater" if received > member.member_epoch else "smaller"
    if relation == "smaller" and received == member.previous_member_epoch and _has_only_assigned(member, request):
        return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {relation} member epoch ({received}) than the one known by the group "
        f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _has_only_assigned(member: StreamsMember, request: StreamsGroupHeartbeatRequest) -> bool:
    owned = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    assigned: tuple[Mapping[str, Collection[int]], ...] = member.assigned
    return all(
        tasks is not None
        and all(
            task_ids.subtopology_id in current and set(task_ids.partitions).issubset(current[task_ids.subtopology_id])
            for task_ids in tasks
        )
        for tasks, current in zip(owned, assigned, strict=True)
    )


def _updated(member: StreamsMember, context: RequestContext, request: StreamsGroupHeartbeatRequest) -> StreamsMember:
    """Return the member with the fields that the request sets."""
    timeout, endpoint, tags = request.rebalance_timeout_ms, request.user_endpoint, request.client_tags
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        topology_epoch=member.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=member.process_id if request.process_id is None else request.process_id,
        user_endpoint=member.user_endpoint if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        client_tags=member.client_tags if tags is None else _by_unique_key(tags, {tag.key: tag.value for tag in tags}),
        client_id=context.client_id,
        client_host=context.client_host,
    )


def _topology(
    group: StreamsGroup, request: StreamsGroupHeartbeatRequest, written: list[GroupRecord]
) -> StreamsTopology:
    """Return the group's topology: that of the first member; a different one is error_heartbeat."""
    current = group.topology
    if request.topology is None:
        if current is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "The topology is null and the group topology is also null."
            )
        return current
    record = streams_topology.to_record(request.topology)
    sent = StreamsTopology.from_record(record)
    if current is None:
        written.append(records.topology(group.group_id, record))
        return sent
    if current.epoch <= sent.epoch and current != sent:
        raise _invalid("Topology updates are not supported yet.")
    return current


def _check_tasks(configured: ConfiguredTopology, request: StreamsGroupHeartbeatRequest) -> None:
    """Raise for tasks that the configured topology does not have."""
    if not configured.is_ready or configured.subtopologies is None:
        return
    for task_ids in (*(request.active_tasks or ()), *(request.standby_tasks or ()), *(request.warmup_tasks or ())):
        subtopology = configured.subtopologies.get(task_ids.subtopology_id)
        if subtopology is None:
            raise _invalid(f"Subtopology {task_ids.subtopology_id} does not exist in the topology.")
        for task in task_ids.partitions:
            if not 0 <= task < subtopology.task_count:
                raise _invalid(
                    f"Task {task} for subtopology {task_ids.subtopology_id} is invalid. "
                    f"Number of tasks for this subtopology: {subtopology.task_count}"
                )


def _owned(request: StreamsGroupHeartbeatRequest) -> TaskAssignment | None:
    if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
        return None
    return TaskAssignment(*map(_tasks, (request.active_tasks, request.standby_tasks, request.warmup_tasks)))


def _tasks(tasks: Sequence[TaskIds]) -> dict[str, tuple[int, ...]]:
    return _by_unique_key(tasks, {task_ids.subtopology_id: tuple(sorted(task_ids.partitions)) for task_ids in tasks})


def _by_unique_key(items: Sequence[object], by_key: dict[str, V]) -> dict[str, V]:
    """Return the items by key; raise UNKNOWN_SERVER_ERROR for duplicates, for which Kafka has no other error."""
    if len(by_key) < len(items):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    return by_key


# The response


def _task_ids(tasks: Mapping[str, Collection[int]]) -> list[TaskIds]:
    return [TaskIds(subtopology_id=name, partitions=sorted(tasks[name])) for name in hash_map_order(sorted(tasks))]


def _endpoints(
    shard: Shard, group: StreamsGroup, updated: StreamsMember, configured: ConfiguredTopology
) -> list[EndpointToPartitions]:
    """Return the partitions that each endpoint serves to interactive queries."""
    others = [member for member in group.members.values() if member.member_id != updated.member_id]
    return [
        EndpointToPartitions(
            user_endpoint=SentEndpoint(host=member.user_endpoint.host, port=member.user_endpoint.port),
            active_partitions=streams_topology.endpoint_partitions(
                {name: sorted(tasks) for name, tasks in member.assigned.active.items()}, configured, shard.topics
            ),
            standby_partitions=streams_topology.endpoint_partitions(member.assigned.standby, configured, shard.topics),
        )
        for member in (*others, updated)
        if member.user_endpoint is not None
    ]


def _statuses(
    group: StreamsGroup,
    member: StreamsMember,
    delay: TopologyStatus | None,
    configured: ConfiguredTopology,
    shutdown_by: str | None,
) -> list[Status]:
    """Return the statuses of the group for the member, in Kafka's order."""
    statuses: list[TopologyStatus | None] = []
    if group.topology is not None and member.topology_epoch < group.topology.epoch:
        statuses.append(
            TopologyStatus(
                StatusCode.STALE_TOPOLOGY,
                f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
                f"{group.topology.epoch}.",
            )
        )
    statuses += [delay, configured.status]
    if shutdown_by is not None:
        statuses.append(
            TopologyStatus(
                StatusCode.SHUTDOWN_APPLICATION,
                f"Streams group member {shutdown_by} encountered a fatal error and requested a shutdown for the "
                "entire application.",
            )
        )
    return [Status(status_code=status.code, status_detail=status.detail) for status in statuses if status is not None]


# Leaving


def _leave(shard: Shard, request: StreamsGroupHeartbeatRequest) -> Outcome[StreamsHeartbeat]:
    group = shard.streams_group(request.group_id)
    response = StreamsGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
    if request.shutdown_application:
        group.request_shutdown(request.member_id)
    group.member(request.member_id)
    return remove_member(shard, group, request.member_id, StreamsHeartbeat(response), LEFT)
