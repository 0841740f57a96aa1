"""ListGroups and the APIs that describe groups of each type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.classic.group import ClassicGroup, ClassicMember, ClassicState
from ottla.groups.share.group import ASSIGNOR
from ottla.groups.streams import topology as streams_topology
from ottla.groups.streams.group import StreamsState
from ottla.hashing.java import hash_map_order
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import k77_share_group_describe as k77
from ottla.protocol.messages import k89_streams_group_describe as k89
from ottla.protocol.messages.k15_describe_groups import DescribedGroup, DescribedGroupMember
from ottla.protocol.messages.k16_list_groups import ListedGroup
from ottla.protocol.messages.k69_consumer_group_describe import Assignment, Member, TopicPartitions
from ottla.protocol.messages.k69_consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from ottla.protocol.messages.k77_share_group_describe import DescribedGroup as DescribedShareGroup
from ottla.protocol.messages.k89_streams_group_describe import DescribedGroup as DescribedStreamsGroup

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence, Set

    from ottla.groups.consumer.group import ConsumerMember
    from ottla.groups.environment import Topics
    from ottla.groups.shard import Shard
    from ottla.groups.streams.assignor import TaskAssignment
    from ottla.groups.streams.group import OwnedTasks, StreamsMember
    from ottla.protocol.uuids import Uuid

FIRST_DESCRIBE_VERSION_WITH_NOT_FOUND = 6


def list_groups(shard: Shard, state_filter: Set[str], type_filter: Set[str]) -> list[ListedGroup]:
    """Return the groups of a shard, filtered by state and type in small letters; an empty filter matches all."""
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state_name,
            group_type=group.type,
        )
        for group in shard.groups.values()
        if (not state_filter or _filter_name(group.state_name) in state_filter)
        and (not type_filter or group.type in type_filter)
    ]


def _filter_name(state: str) -> str:
    """Return the name that a state filter uses: NotReady is written with an underscore."""
    return "not_ready" if state == StreamsState.NOT_READY.value else state.lower()


def describe_group(shard: Shard, group_id: str, version: int) -> DescribedGroup:
    """Describe a classic group; a group that does not exist is Dead."""
    try:
        group = shard.classic_group(group_id)
    except KafkaError as error:
        if version < FIRST_DESCRIBE_VERSION_WITH_NOT_FOUND:
            return DescribedGroup(group_id=group_id, group_state=ClassicState.DEAD.value)
        return DescribedGroup(
            group_id=group_id,
            group_state=ClassicState.DEAD.value,
            error_code=error.code,
            error_message=error.message,
        )
    stable = group.state is ClassicState.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=[_classic_member(group, member, stable=stable) for member in group.members.values()],
    )


def _classic_member(group: ClassicGroup, member: ClassicMember, *, stable: bool) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if stable else b"",
        member_assignment=member.assignment,
    )


def describe_consumer_group(shard: Shard, group_id: str) -> DescribedConsumerGroup:
    """Describe a consumer group with the current and target assignment of its members."""
    try:
        group = shard.consumer_group(group_id)
    except KafkaError as error:
        return DescribedConsumerGroup(group_id=group_id, error_code=error.code, error_message=error.message)
    return DescribedConsumerGroup(
        group_id=group_id,
        assignor_name=group.preferred_assignor() or shard.settings.coordinator().default_assignor,
        group_epoch=group.group_epoch,
        group_state=group.state_name,
        assignment_epoch=group.assignment_epoch,
        members=[
            _consumer_member(shard.topics, member, group.target(member.member_id).items())
            for member in group.members.values()
        ],
    )


def _consumer_member(topics: Topics, member: ConsumerMember, target: Iterable[tuple[Uuid, Sequence[int]]]) -> Member:
    owned: dict[Uuid, list[int]] = {}
    for assignment in (member.assigned, member.pending_revocation):
        for topic_id, partitions in assignment.items():
            owned.setdefault(topic_id, []).extend(partitions)
    return Member(
        member_epoch=member.member_epoch,
        member_id=member.member_id,
        assignment=_named_assignment(topics, owned.items()),
        target_assignment=_named_assignment(topics, target),
        client_host=member.client_host,
        client_id=member.client_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        member_type=0 if member.uses_classic_protocol else 1,
    )


def _named_assignment(topics: Topics, assignment: Iterable[tuple[Uuid, Sequence[int]]]) -> Assignment:
    """Return an assignment with topic names; deleted topics are left out."""
    topic_partitions = []
    for topic_id, partitions in assignment:
        topic = topics.by_id(topic_id)
        if topic is not None:
            topic_partitions.append(
                TopicPartitions(topic_id=topic.id, topic_name=topic.name, partitions=list(partitions))
            )
    return Assignment(topic_partitions=topic_partitions)


def describe_share_group(shard: Shard, group_id: str) -> DescribedShareGroup:
    """Describe a share group with the assignment of its members."""
    try:
        group = shard.share_group(group_id)
    except KafkaError as error:
        return DescribedShareGroup(group_id=group_id, error_code=error.code, error_message=error.message)
    return DescribedShareGroup(
        group_id=group_id,
        assignor_name=ASSIGNOR,
        group_epoch=group.group_epoch,
        group_state=group.state_name,
        assignment_epoch=group.assignment_epoch,
        members=[
            k77.Member(
                member_id=member.member_id,
                member_epoch=member.member_epoch,
                rack_id=member.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.subscribed_topic_names),
                assignment=k77.Assignment(
                    topic_partitions=[
                        k77.TopicPartitions(
                            topic_id=topic.topic_id, topic_name=topic.topic_name, partitions=topic.partitions
                        )
                        for topic in _named_assignment(shard.topics, member.assigned.items()).topic_partitions
                    ]
                ),
            )
            for member in group.members.values()
        ],
    )


def describe_streams_group(shard: Shard, group_id: str) -> DescribedStreamsGroup:
    """Describe a streams group with its topology and the current and target tasks of its members."""
    try:
        group = shard.streams_group(group_id)
    except KafkaError as error:
        return DescribedStreamsGroup(group_id=group_id, error_code=error.code, error_message=error.message)
    topology = group.configured if group.configured is not None and group.configured.is_ready else group.topology
    return DescribedStreamsGroup(
        group_id=group_id,
        group_epoch=group.group_epoch,
        group_state=group.state_name,
        assignment_epoch=group.assignment_epoch,
        topology=None if topology is None else streams_topology.described(topology),
        members=[_streams_member(member, group.target(member.member_id)) for member in group.members.values()],
    )


def _streams_member(member: StreamsMember, target: TaskAssignment) -> k89.Member:
    endpoint = member.user_endpoint
    return k89.Member(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else k89.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[
            k89.KeyValue(key=key, value=member.client_tags[key]) for key in hash_map_order(sorted(member.client_tags))
        ],
        assignment=_described_assignment(member.assigned),
        target_assignment=_described_assignment(target),
    )


def _described_assignment(tasks: OwnedTasks | TaskAssignment) -> k89.Assignment:
    return k89.Assignment(
        active_tasks=_described_tasks(tasks.active),
        standby_tasks=_described_tasks(tasks.standby),
        warmup_tasks=_described_tasks(tasks.warmup),
    )


def _described_tasks(tasks: Mapping[str, Collection[int]]) -> list[k89.TaskIds]:
    return [
        k89.TaskIds(subtopology_id=subtopology_id, partitions=sorted(tasks[subtopology_id]))
        for subtopology_id in sorted(tasks)
    ]


def describe_errors(group_ids: Iterable[str], code: ErrorCode) -> list[DescribedGroup]:
    """Return an error for each group."""
    return [DescribedGroup(group_id=group_id, error_code=code) for group_id in group_ids]
