"""Lists, describes, changes and deletes groups of every type. It never joins one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, TypeVar

from ottla.client.client import GROUP
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from ottla.protocol.messages.k15_describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.k16_list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.k42_delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from ottla.protocol.messages.k69_consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from ottla.protocol.messages.k77_share_group_describe import Assignment as ShareAssignment
from ottla.protocol.messages.k77_share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from ottla.protocol.messages.k89_streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from ottla.protocol.messages.k90_describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from ottla.protocol.messages.k91_alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from ottla.protocol.messages.k92_delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
)
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolAssignment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ottla.client.client import Client, TopicPartition
    from ottla.protocol.messages.k08_offset_commit import OffsetCommitResponseTopic
    from ottla.protocol.messages.k47_offset_delete import OffsetDeleteResponseTopic
    from ottla.protocol.messages.k69_consumer_group_describe import DescribedGroup as ConsumerDescribed
    from ottla.protocol.messages.k77_share_group_describe import DescribedGroup as ShareDescribed
    from ottla.protocol.messages.k89_streams_group_describe import Assignment as StreamsAssignment
    from ottla.protocol.messages.k89_streams_group_describe import TaskIds

T = TypeVar("T")
_VERSION = Struct(">h")
_STATE_FILTERS = {"notready": "not_ready"}  # Kafka's filter spells this state differently from its responses
_COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as ListGroups describes it."""

    group: str
    type: str
    state: str
    protocol_type: str
    coordinator: int


@dataclass(slots=True)
class GroupMember:
    """A member and its assignment."""

    member: str
    instance: str | None
    client_id: str
    host: str
    assigned: list[TopicPartition]
    target: list[TopicPartition] | None = None
    epoch: int | None = None
    subscribed: list[str] = field(default_factory=list)
    tasks: dict[str, list[str]] | None = None
    """In a streams group: active, standby and warm-up tasks, each as `subtopology_partition`."""


@dataclass(slots=True)
class GroupDescription:
    """A group with its members."""

    group: str
    type: str
    state: str
    coordinator: int
    assignor: str
    members: list[GroupMember]
    epoch: int | None = None
    assignment_epoch: int | None = None


def list_groups(client: Client, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
    """Return the groups of all brokers, sorted by name; raise KafkaError if a broker cannot filter."""
    groups: list[GroupListing] = []
    client.refresh([])
    for node in sorted(client.brokers):
        version = client.node(node).best_version(16)
        if states and version < 4:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"broker {node} cannot filter groups by state")
        if types and version < 5:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"broker {node} cannot filter groups by type")
        request = ListGroupsRequest(
            states_filter=[_STATE_FILTERS.get(state.lower(), state) for state in states], types_filter=list(types)
        )
        response = client.to_node(node, request, ListGroupsResponse)
        if response.error_code:
            raise KafkaError(response.error_code, f"groups of broker {node}")
        groups += [
            GroupListing(group.group_id, group.group_type, group.group_state, group.protocol_type, node)
            for group in response.groups
        ]
    return sorted(groups, key=lambda group: group.group)


def describe_group(client: Client, group: str) -> GroupDescription:
    """Return a group of any type with its members; raise GROUP_ID_NOT_FOUND if there is none."""
    coordinator = client.coordinator(group)
    for key, describe in ((69, _describe_consumer), (77, _describe_share), (89, _describe_streams)):
        if key in client.node(coordinator).versions:
            try:
                return _with_coordinator(client, group, partial(describe, client, group))
            except KafkaError as error:
                if error.code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
                    raise
    return _with_coordinator(client, group, lambda node: _describe_classic(client, group, node))


def committed(client: Client, group: str) -> dict[TopicPartition, int]:
    """Return every committed offset of a group."""

    def send(node: int) -> dict[TopicPartition, int]:
        version = min(client.node(node).best_version(9), 9)  # version 10 has topic ids instead of names
        request = (
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
            if version >= 8
            else OffsetFetchRequest(group_id=group, topics=None)
        )
        response = client.node(node).send(request, OffsetFetchResponse, version=version)
        code = response.groups[0].error_code if version >= 8 else response.error_code
        if code:
            raise KafkaError(code, f"offsets of group {group}")
        offsets: dict[TopicPartition, int] = {}
        for topic in response.groups[0].topics if version >= 8 else response.topics:
            for partition in topic.partitions:
                where = f"{topic.name}-{partition.partition_index}"
                if partition.error_code:
                    raise KafkaError(partition.error_code, f"offset of group {group} on {where}")
                if partition.committed_offset >= 0:
                    offsets[topic.name, partition.partition_index] = partition.committed_offset
        return dict(sorted(offsets.items()))

    return _with_coordinator(client, group, send)


def commit(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group without active members."""

    def send(node: int) -> None:
        request = OffsetCommitRequest(
            group_id=group,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=index, committed_offset=offsets[topic, index])
                        for index in partitions
                    ],
                )
                for topic, partitions in by_topic(offsets).items()
            ],
        )
        version = min(client.node(node).best_version(8), 9)
        response = client.node(node).send(request, OffsetCommitResponse, version=version)
        _raise_first(group, response.topics)

    _with_coordinator(client, group, send)


def delete_offsets(client: Client, group: str, partitions: Iterable[TopicPartition]) -> None:
    """Delete a group's offsets on partitions of topics that its members do not subscribe to."""
    by_name = by_topic(partitions)

    def send(node: int) -> None:
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
                )
                for topic, indexes in by_name.items()
            ],
        )
        response = client.to_node(node, request, OffsetDeleteResponse)
        if response.error_code:
            raise KafkaError(response.error_code, f"group {group}")
        _raise_first(group, response.topics)

    _with_coordinator(client, group, send)


def delete_group(client: Client, group: str) -> None:
    """Delete a group without members, and its offsets."""

    def send(node: int) -> None:
        response = client.to_node(node, DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse)
        if response.results[0].error_code:
            raise KafkaError(response.results[0].error_code, f"group {group}")

    _with_coordinator(client, group, send)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return partition numbers by topic."""
    indexes: dict[str, list[int]] = {}
    for topic, index in partitions:
        indexes.setdefault(topic, []).append(index)
    return indexes


def share_lags(client: Client, group: str) -> dict[TopicPartition, tuple[int, int | None]]:
    """Return a share group's start offset in each initialized partition, and its lag; None where it is not known."""

    def send(node: int) -> dict[TopicPartition, tuple[int, int | None]]:
        request = DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)]
        )
        described = client.to_node(node, request, DescribeShareGroupOffsetsResponse).groups[0]
        if described.error_code:
            raise KafkaError(described.error_code, described.error_message or f"offsets of group {group}")
        lags: dict[TopicPartition, tuple[int, int | None]] = {}
        for topic in described.topics:
            for partition in topic.partitions:
                where = f"{topic.topic_name}-{partition.partition_index}"
                if partition.error_code:
                    raise KafkaError(
                        partition.error_code, partition.error_message or f"offset of group {group} on {where}"
                    )
                if partition.start_offset >= 0:
                    lag = partition.lag if partition.lag >= 0 else None
                    lags[topic.topic_name, partition.partition_index] = (partition.start_offset, lag)
        return lags

    return _with_coordinator(client, group, send)


def alter_share_offsets(client: Client, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set start offsets of a share group without members; a group that does not exist is created."""

    def send(node: int) -> None:
        request = AlterShareGroupOffsetsRequest(
            group_id=group,
            topics=[
                AlterShareGroupOffsetsRequestTopic(
                    topic_name=topic,
                    partitions=[
                        AlterShareGroupOffsetsRequestPartition(
                            partition_index=index, start_offset=offsets[topic, index]
                        )
                        for index in partitions
                    ],
                )
                for topic, partitions in by_topic(offsets).items()
            ],
        )
        response = client.to_node(node, request, AlterShareGroupOffsetsResponse)
        if response.error_code:
            raise KafkaError(response.error_code, response.error_message or f"group {group}")
        for topic in response.responses:
            for partition in topic.partitions:
                if partition.error_code:
                    where = f"group {group} on {topic.topic_name}-{partition.partition_index}"
                    raise KafkaError(partition.error_code, partition.error_message or where)

    _with_coordinator(client, group, send)


def delete_share_offsets(client: Client, group: str, topics: Iterable[str]) -> None:
    """Delete the start offsets of a share group without members on whole topics."""
    requested = [DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]

    def send(node: int) -> None:
        request = DeleteShareGroupOffsetsRequest(group_id=group, topics=requested)
        response = client.to_node(node, request, DeleteShareGroupOffsetsResponse)
        if response.error_code:
            raise KafkaError(response.error_code, response.error_message or f"group {group}")
        for topic in response.responses:
            if topic.error_code:
                raise KafkaError(topic.error_code, topic.error_message or f"group {group} on {topic.topic_name}")

    _with_coordinator(client, group, send)


def _with_coordinator(client: Client, group: str, send: Callable[[int], T]) -> T:
    """Send to the group's coordinator; find it again and retry if it has moved."""

    def attempt() -> T:
        try:
            return send(client.coordinator(group))
        except KafkaError as error:
            if error.code in _COORDINATOR_MOVED:
                client.forget_coordinator(group, GROUP)
            raise

    return client.retrying(attempt)


def _raise_first(group: str, topics: Iterable[OffsetCommitResponseTopic | OffsetDeleteResponseTopic]) -> None:
    """Raise the first error of a partition."""
    for topic in topics:
        for partition in topic.partitions:
            if partition.error_code:
                raise KafkaError(partition.error_code, f"group {group} on {topic.name}-{partition.partition_index}")


def _describe_share(client: Client, group: str, node: int) -> GroupDescription:
    described = client.to_node(node, ShareGroupDescribeRequest(group_ids=[group]), ShareGroupDescribeResponse).groups[0]
    if described.error_code:
        raise KafkaError(described.error_code, described.error_message or f"group {group}")
    members = [
        GroupMember(
            member.member_id,
            None,
            member.client_id,
            member.client_host,
            _assignment(member.assignment),
            None,
            member.member_epoch,
            list(member.subscribed_topic_names),
        )
        for member in described.members
    ]
    return _with_epochs(group, "share", node, described, members)


def _describe_streams(client: Client, group: str, node: int) -> GroupDescription:
    """Describe a streams group; a member's assignment is the existing source partitions of its active tasks."""
    described = client.to_node(
        node, StreamsGroupDescribeRequest(group_ids=[group]), StreamsGroupDescribeResponse
    ).groups[0]
    if described.error_code:
        raise KafkaError(described.error_code, described.error_message or f"group {group}")
    subtopologies = (described.topology.subtopologies or []) if described.topology is not None else []
    sources = {
        part.subtopology_id: [*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]
        for part in subtopologies
    }
    existing = {(topic.name, index) for topic in client.topics() for index in topic.partitions}

    def partitions(assignment: StreamsAssignment) -> list[TopicPartition]:
        named = {
            (topic, index)
            for task in assignment.active_tasks
            for topic in sources.get(task.subtopology_id, ())
            for index in task.partitions
        }
        return sorted(named & existing)

    members = [
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            partitions(member.assignment),
            partitions(member.target_assignment),
            member.member_epoch,
            sorted({topic for topics in sources.values() for topic in topics}),
            {
                "active": _task_names(member.assignment.active_tasks),
                "standby": _task_names(member.assignment.standby_tasks),
                "warmup": _task_names(member.assignment.warmup_tasks),
            },
        )
        for member in described.members
    ]
    return GroupDescription(
        group, "streams", described.group_state, node, "", members, described.group_epoch, described.assignment_epoch
    )


def _task_names(tasks: Iterable[TaskIds]) -> list[str]:
    return [f"{task.subtopology_id}_{index}" for task in tasks for index in task.partitions]


def _describe_consumer(client: Client, group: str, node: int) -> GroupDescription:
    described = client.to_node(
        node, ConsumerGroupDescribeRequest(group_ids=[group]), ConsumerGroupDescribeResponse
    ).groups[0]
    if described.error_code:
        raise KafkaError(described.error_code, described.error_message or f"group {group}")
    members = [
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _assignment(member.assignment),
            _assignment(member.target_assignment),
            member.member_epoch,
            list(member.subscribed_topic_names)
            + ([member.subscribed_topic_regex] if member.subscribed_topic_regex else []),
        )
        for member in described.members
    ]
    return _with_epochs(group, "consumer", node, described, members)


def _with_epochs(
    group: str, kind: str, node: int, described: ConsumerDescribed | ShareDescribed, members: list[GroupMember]
) -> GroupDescription:
    return GroupDescription(
        group,
        kind,
        described.group_state,
        node,
        described.assignor_name,
        members,
        described.group_epoch,
        described.assignment_epoch,
    )


def _describe_classic(client: Client, group: str, node: int) -> GroupDescription:
    described = client.to_node(node, DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse).groups[0]
    if described.error_code:
        raise KafkaError(described.error_code, described.error_message or f"group {group}")
    if described.group_state == "Dead":  # how versions up to 5 describe a group that does not exist
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group} not found.")
    members = [
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            _classic_assignment(member.member_assignment) if described.protocol_type == "consumer" else [],
        )
        for member in described.members
    ]
    return GroupDescription(group, "classic", described.group_state, node, described.protocol_data, members)


def _assignment(assignment: Assignment | ShareAssignment) -> list[TopicPartition]:
    return sorted((topic.topic_name, index) for topic in assignment.topic_partitions for index in topic.partitions)


def _classic_assignment(data: bytes) -> list[TopicPartition]:
    if len(data) < _VERSION.size:
        return []
    try:
        assignment, _ = ConsumerProtocolAssignment.decode_from(data, _VERSION.size, 0)
    except ProtocolError:  # other clients may store their own format there
        return []
    return sorted((topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions)
