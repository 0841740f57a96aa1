"""Consumer groups as an administrator sees them: which there are, their members, their offsets. No membership here."""

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

    from ottla.client.client import Client
    from ottla.protocol.messages.k08_offset_commit import OffsetCommitResponseTopic
    from ottla.protocol.messages.k47_offset_delete import OffsetDeleteResponseTopic
    from ottla.protocol.messages.k69_consumer_group_describe import DescribedGroup as ConsumerDescribed
    from ottla.protocol.messages.k77_share_group_describe import DescribedGroup as ShareDescribed
    from ottla.protocol.messages.k89_streams_group_describe import Assignment as StreamsAssignment
    from ottla.protocol.messages.k89_streams_group_describe import TaskIds

T = TypeVar("T")
Place = tuple[str, int]
_VERSION = Struct(">h")
_STATE_FILTERS = {"notready": "not_ready"}  # what Kafka shows as one word, its filter wants as two
# The coordinator is elsewhere, or not ready yet.
_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as a list shows it."""

    group: str
    type: str
    state: str
    protocol_type: str
    coordinator: int


@dataclass(slots=True)
class GroupMember:
    """A member and what it is to read."""

    member: str
    instance: str | None
    client_id: str
    host: str
    assigned: list[Place]
    target: list[Place] | None = None
    epoch: int | None = None
    subscribed: list[str] = field(default_factory=list)
    tasks: dict[str, list[str]] | None = None
    """Of a streams group: the tasks, as `subtopology_partition`, that it has as active and as standby ones."""


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
    """The groups of all brokers, by name."""
    found: list[GroupListing] = []
    client.refresh([])
    for node in sorted(client.brokers):
        version = client.node(node).best_version(16)
        request = ListGroupsRequest(
            states_filter=[_STATE_FILTERS.get(each.lower(), each) for each in states] if version >= 4 else [],
            types_filter=list(types) if version >= 5 else [],
        )
        answer = client.to_node(node, request, ListGroupsResponse)
        if answer.error_code:
            raise KafkaError(answer.error_code, f"groups of broker {node}")
        found += [
            GroupListing(each.group_id, each.group_type, each.group_state, each.protocol_type, node)
            for each in answer.groups
        ]
    return sorted(found, key=lambda each: each.group)


def describe_group(client: Client, group: str) -> GroupDescription:
    """One group with its members, whichever protocol they use; GROUP_ID_NOT_FOUND if there is none."""
    coordinator = client.coordinator(group)
    for key, ask in ((69, _describe_consumer), (77, _describe_share), (89, _describe_streams)):
        if key in client.node(coordinator).versions:
            try:
                return _with_coordinator(client, group, partial(ask, client, group))
            except KafkaError as error:
                if error.code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
                    raise
    return _with_coordinator(client, group, lambda node: _describe_classic(client, group, node))


def committed(client: Client, group: str) -> dict[Place, int]:
    """Every offset that a group has committed."""

    def ask(node: int) -> dict[Place, int]:
        version = min(client.node(node).best_version(9), 9)  # from 10 on topics have ids in place of names
        request = (
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
            if version >= 8
            else OffsetFetchRequest(group_id=group, topics=None)
        )
        answer = client.node(node).send(request, OffsetFetchResponse, version=version)
        code = answer.groups[0].error_code if version >= 8 else answer.error_code
        if code:
            raise KafkaError(code, f"offsets of group {group}")
        found: dict[Place, int] = {}
        for topic in answer.groups[0].topics if version >= 8 else answer.topics:
            for each in topic.partitions:
                if each.error_code:
                    raise KafkaError(each.error_code, f"offset of group {group} on {topic.name}-{each.partition_index}")
                if each.committed_offset >= 0:
                    found[topic.name, each.partition_index] = each.committed_offset
        return dict(sorted(found.items()))

    return _with_coordinator(client, group, ask)


def commit(client: Client, group: str, offsets: Mapping[Place, int]) -> None:
    """Set offsets of a group that has no active members."""

    def ask(node: int) -> None:
        request = OffsetCommitRequest(
            group_id=group,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=each, committed_offset=offsets[topic, each])
                        for each in partitions
                    ],
                )
                for topic, partitions in by_topic(offsets).items()
            ],
        )
        version = min(client.node(node).best_version(8), 9)
        answer = client.node(node).send(request, OffsetCommitResponse, version=version)
        _raise_first(group, answer.topics)

    _with_coordinator(client, group, ask)


def delete_offsets(client: Client, group: str, places: Iterable[Place]) -> None:
    """Forget offsets of a group on partitions that it does not read."""
    wanted = by_topic(places)

    def ask(node: int) -> None:
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=each) for each in partitions]
                )
                for topic, partitions in wanted.items()
            ],
        )
        answer = client.to_node(node, request, OffsetDeleteResponse)
        if answer.error_code:
            raise KafkaError(answer.error_code, f"group {group}")
        _raise_first(group, answer.topics)

    _with_coordinator(client, group, ask)


def delete_group(client: Client, group: str) -> None:
    """Delete a group that has no members, with its offsets."""

    def ask(node: int) -> None:
        answer = client.to_node(node, DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse)
        if answer.results[0].error_code:
            raise KafkaError(answer.results[0].error_code, f"group {group}")

    _with_coordinator(client, group, ask)


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    """Partitions by topic."""
    found: dict[str, list[int]] = {}
    for topic, partition in places:
        found.setdefault(topic, []).append(partition)
    return found


def share_lags(client: Client, group: str) -> dict[Place, tuple[int, int | None]]:
    """Where a share group begins in each partition that it has read from, and how far it is behind where known."""

    def ask(node: int) -> dict[Place, tuple[int, int | None]]:
        request = DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)]
        )
        found = client.to_node(node, request, DescribeShareGroupOffsetsResponse).groups[0]
        if found.error_code:
            raise KafkaError(found.error_code, found.error_message or f"offsets of group {group}")
        return {
            (topic.topic_name, each.partition_index): (each.start_offset, each.lag if each.lag >= 0 else None)
            for topic in found.topics
            for each in topic.partitions
            if not each.error_code and each.start_offset >= 0
        }

    return _with_coordinator(client, group, ask)


def alter_share_offsets(client: Client, group: str, offsets: Mapping[Place, int]) -> None:
    """Set where a share group without members begins; the group is made if there is none."""

    def ask(node: int) -> None:
        request = AlterShareGroupOffsetsRequest(
            group_id=group,
            topics=[
                AlterShareGroupOffsetsRequestTopic(
                    topic_name=topic,
                    partitions=[
                        AlterShareGroupOffsetsRequestPartition(partition_index=each, start_offset=offsets[topic, each])
                        for each in partitions
                    ],
                )
                for topic, partitions in by_topic(offsets).items()
            ],
        )
        answer = client.to_node(node, request, AlterShareGroupOffsetsResponse)
        if answer.error_code:
            raise KafkaError(answer.error_code, answer.error_message or f"group {group}")
        for topic in answer.responses:
            for each in topic.partitions:
                if each.error_code:
                    told = each.error_message or f"group {group} on {topic.topic_name}-{each.partition_index}"
                    raise KafkaError(each.error_code, told)

    _with_coordinator(client, group, ask)


def delete_share_offsets(client: Client, group: str, topics: Iterable[str]) -> None:
    """Forget where a share group without members begins in whole topics."""
    wanted = [DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]

    def ask(node: int) -> None:
        request = DeleteShareGroupOffsetsRequest(group_id=group, topics=wanted)
        answer = client.to_node(node, request, DeleteShareGroupOffsetsResponse)
        if answer.error_code:
            raise KafkaError(answer.error_code, answer.error_message or f"group {group}")
        for topic in answer.responses:
            if topic.error_code:
                raise KafkaError(topic.error_code, topic.error_message or f"group {group} on {topic.topic_name}")

    _with_coordinator(client, group, ask)


# Inside.


def _with_coordinator(client: Client, group: str, ask: Callable[[int], T]) -> T:
    """Ask the coordinator, and the new one if it has moved."""

    def attempt() -> T:
        try:
            return ask(client.coordinator(group))
        except KafkaError as error:
            if error.code in _MOVED:
                client.forget_coordinator(group, GROUP)
            raise

    return client.retrying(attempt)


def _raise_first(group: str, topics: Iterable[OffsetCommitResponseTopic | OffsetDeleteResponseTopic]) -> None:
    """Raise the first error that an answer has about a partition."""
    for topic in topics:
        for each in topic.partitions:
            if each.error_code:
                raise KafkaError(each.error_code, f"group {group} on {topic.name}-{each.partition_index}")


def _describe_share(client: Client, group: str, node: int) -> GroupDescription:
    found = client.to_node(node, ShareGroupDescribeRequest(group_ids=[group]), ShareGroupDescribeResponse).groups[0]
    if found.error_code:
        raise KafkaError(found.error_code, found.error_message or f"group {group}")
    members = [
        GroupMember(
            each.member_id,
            None,
            each.client_id,
            each.client_host,
            _places(each.assignment),
            None,
            each.member_epoch,
            list(each.subscribed_topic_names),
        )
        for each in found.members
    ]
    return _with_epochs(group, "share", node, found, members)


def _describe_streams(client: Client, group: str, node: int) -> GroupDescription:
    """The places of a member are the partitions of its active tasks' sources, of those topics that are there."""
    found = client.to_node(node, StreamsGroupDescribeRequest(group_ids=[group]), StreamsGroupDescribeResponse).groups[0]
    if found.error_code:
        raise KafkaError(found.error_code, found.error_message or f"group {group}")
    subtopologies = (found.topology.subtopologies or []) if found.topology is not None else []
    sources = {
        each.subtopology_id: [*each.source_topics, *(topic.name for topic in each.repartition_source_topics)]
        for each in subtopologies
    }
    there = {(each.name, index) for each in client.topics() for index in each.partitions}

    def places(assignment: StreamsAssignment) -> list[Place]:
        named = {
            (topic, index)
            for task in assignment.active_tasks
            for topic in sources.get(task.subtopology_id, ())
            for index in task.partitions
        }
        return sorted(named & there)

    members = [
        GroupMember(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            places(each.assignment),
            places(each.target_assignment),
            each.member_epoch,
            sorted({topic for topics in sources.values() for topic in topics}),
            {
                "active": _task_names(each.assignment.active_tasks),
                "standby": _task_names(each.assignment.standby_tasks),
                "warmup": _task_names(each.assignment.warmup_tasks),
            },
        )
        for each in found.members
    ]
    return GroupDescription(
        group, "streams", found.group_state, node, "", members, found.group_epoch, found.assignment_epoch
    )


def _task_names(tasks: Iterable[TaskIds]) -> list[str]:
    return [f"{each.subtopology_id}_{index}" for each in tasks for index in each.partitions]


def _describe_consumer(client: Client, group: str, node: int) -> GroupDescription:
    found = client.to_node(node, ConsumerGroupDescribeRequest(group_ids=[group]), ConsumerGroupDescribeResponse).groups[
        0
    ]
    if found.error_code:
        raise KafkaError(found.error_code, found.error_message or f"group {group}")
    members = [
        GroupMember(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            _places(each.assignment),
            _places(each.target_assignment),
            each.member_epoch,
            list(each.subscribed_topic_names) + ([each.subscribed_topic_regex] if each.subscribed_topic_regex else []),
        )
        for each in found.members
    ]
    return _with_epochs(group, "consumer", node, found, members)


def _with_epochs(
    group: str, kind: str, node: int, found: ConsumerDescribed | ShareDescribed, members: list[GroupMember]
) -> GroupDescription:
    return GroupDescription(
        group, kind, found.group_state, node, found.assignor_name, members, found.group_epoch, found.assignment_epoch
    )


def _describe_classic(client: Client, group: str, node: int) -> GroupDescription:
    found = client.to_node(node, DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse).groups[0]
    if found.error_code:
        raise KafkaError(found.error_code, found.error_message or f"group {group}")
    if found.group_state == "Dead":  # up to version 5 that is how a group is described that is not there
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group} not found.")
    members = [
        GroupMember(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            _classic_places(each.member_assignment) if found.protocol_type == "consumer" else [],
        )
        for each in found.members
    ]
    return GroupDescription(group, "classic", found.group_state, node, found.protocol_data, members)


def _places(assignment: Assignment | ShareAssignment) -> list[Place]:
    return sorted((each.topic_name, index) for each in assignment.topic_partitions for index in each.partitions)


def _classic_places(data: bytes) -> list[Place]:
    if len(data) < _VERSION.size:
        return []
    try:
        read, _ = ConsumerProtocolAssignment.decode_from(data, _VERSION.size, 0)
    except ProtocolError:  # not a consumer's; other clients put what they like there
        return []
    return sorted((each.topic, index) for each in read.assigned_partitions for index in each.partitions)
