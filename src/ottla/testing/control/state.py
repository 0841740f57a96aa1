"""Snapshots of a cluster's state: partitions, records, groups, transactions, sessions, connections.

The functions run on the cluster's event loop; the snapshots are plain values, safe on any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.groups.classic.group import ClassicGroup
from ottla.groups.consumer.group import ConsumerMember
from ottla.groups.group_events import classic_partitions
from ottla.groups.streams.group import StreamsGroup
from ottla.records.iterate import iter_all_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ottla.broker.partition import Partition
    from ottla.broker.runtime import BrokerRuntime
    from ottla.groups.consumer.group import ConsumerGroup
    from ottla.groups.shard import Group, Shard
    from ottla.groups.share.group import ShareGroup
    from ottla.protocol.schema import Uuid
    from ottla.server.server import NodeServer


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition: leader, replicas, ISR (`in_sync`) and offsets of its log."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record of a log; `timestamp` is in milliseconds, `producer_id` -1 without idempotence."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    producer_id: int
    transactional: bool


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member of a group. `assignment` and `pending_revocation` map topics (streams: subtopologies) to partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int
    assignment: Mapping[str, tuple[int, ...]]
    pending_revocation: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group. `epoch` is the generation of a classic group, else the group epoch; `offsets` are committed offsets."""

    group_id: str
    type: str
    state: str
    epoch: int
    coordinator: int
    members: tuple[MemberState, ...]
    offsets: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class TransactionState:
    """The transaction state of a transactional id; `state` is Kafka's name, such as `Ongoing`."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...]
    started_ms: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class SessionState:
    """A fetch session (KIP-227)."""

    node: int
    session_id: int
    epoch: int
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """A client's connection to a node; `unanswered` counts requests without a response."""

    node: int
    connection: int
    listener: str
    client: str
    client_id: str | None
    principal: str
    software: str
    unanswered: int


def find_partition(runtime: BrokerRuntime, topic: str, index: int) -> Partition:
    """Return the broker's partition; KeyError if it does not exist."""
    partition = runtime.partitions.get((topic, index))
    if partition is None:
        raise KeyError(f"there is no partition {topic}-{index}")
    return partition


def read_partition(runtime: BrokerRuntime, topic: str, index: int) -> PartitionState:
    """Return the state of one partition; KeyError if it does not exist."""
    partition = find_partition(runtime, topic, index)
    state, log = partition.state, partition.log
    return PartitionState(
        topic,
        index,
        state.leader,
        state.leader_epoch,
        state.replicas,
        state.isr,
        log.log_start_offset,
        log.high_watermark,
        log.last_stable_offset,
    )


def read_records(runtime: BrokerRuntime, topic: str, index: int) -> list[StoredRecord]:
    """Return all records of a partition, also of open and aborted transactions; control records are left out."""
    log = find_partition(runtime, topic, index).log
    stored: list[StoredRecord] = []
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        fetched = log.read(offset, 1 << 20, end)
        if fetched.records is None or not len(fetched):
            break
        with fetched.records as records:
            data = records.read_all()
        for header, record in iter_all_records(data, include_control=True):
            offset = header.next_offset
            if not header.is_control and record.offset >= log.log_start_offset:
                stored.append(StoredRecord(*record, header.producer_id, header.is_transactional))
    return stored


def read_groups(runtime: BrokerRuntime) -> list[GroupState]:
    """Return the groups of all coordinators."""
    return [
        GroupState(
            group_id,
            group.type,
            group.state_name,
            group.generation_id if isinstance(group, ClassicGroup) else group.group_epoch,
            node_id,
            tuple(_members(runtime, group)),
            {
                (topic, index): offset.offset
                for topic, offsets in shard.offsets.of_group(group_id).items()
                for index, offset in offsets.items()
            },
        )
        for node_id, shard in _shards(runtime)
        for group_id, group in shard.groups.items()
    ]


def _shards(runtime: BrokerRuntime) -> Iterator[tuple[int, Shard]]:
    for node_id, node in sorted(runtime.nodes.items()):
        for shard in node.groups.shards():
            yield node_id, shard


def _classic_members(group: ClassicGroup) -> Iterator[MemberState]:
    for member in group.members.values():
        yield MemberState(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host.lstrip("/"),
            group.generation_id,
            {topic: tuple(indexes) for topic, indexes in classic_partitions(group, member).items()},
        )


def _members(runtime: BrokerRuntime, group: Group) -> Iterator[MemberState]:
    if isinstance(group, ClassicGroup):
        return _classic_members(group)
    return _streams_members(group) if isinstance(group, StreamsGroup) else _modern_members(runtime, group)


def _streams_members(group: StreamsGroup) -> Iterator[MemberState]:
    for member in group.members.values():
        yield MemberState(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host.lstrip("/"),
            member.member_epoch,
            {subtopology: tuple(sorted(tasks)) for subtopology, tasks in member.assigned.active.items()},
            {subtopology: tuple(sorted(tasks)) for subtopology, tasks in member.pending_revocation.active.items()},
        )


def _modern_members(runtime: BrokerRuntime, group: ConsumerGroup | ShareGroup) -> Iterator[MemberState]:
    def named(partitions: Mapping[Uuid, Any]) -> dict[str, tuple[int, ...]]:
        topics = runtime.image.topics
        return {
            topics[topic_id].name if topic_id in topics else str(topic_id): tuple(sorted(indexes))
            for topic_id, indexes in partitions.items()
        }

    for member in group.members.values():
        yield MemberState(
            member.member_id,
            member.instance_id if isinstance(member, ConsumerMember) else None,
            member.client_id,
            member.client_host.lstrip("/"),
            member.member_epoch,
            named(member.assigned),
            named(member.pending_revocation) if isinstance(member, ConsumerMember) else {},
        )


def read_transactions(runtime: BrokerRuntime) -> list[TransactionState]:
    """Return the transactional ids of all coordinators."""
    states = []
    for node_id, node in sorted(runtime.nodes.items()):
        for transaction in node.transactions.transactions():
            record = transaction.record
            states.append(
                TransactionState(
                    transaction.transactional_id,
                    record.state.label,
                    record.producer_id,
                    record.producer_epoch,
                    record.timeout_ms,
                    tuple((partition.topic, partition.partition) for partition in record.partitions),
                    record.start_timestamp,
                    node_id,
                )
            )
    return states


def read_sessions(runtime: BrokerRuntime) -> list[SessionState]:
    """Return the fetch sessions of all nodes."""
    topics = runtime.image.topics
    return [
        SessionState(
            node_id,
            session.id,
            session.epoch,
            tuple(
                (
                    topics[partition.topic_id].name if partition.topic_id in topics else partition.topic,
                    partition.partition,
                )
                for partition in session.partitions.values()
            ),
        )
        for node_id, node in sorted(runtime.nodes.items())
        for session in node.fetch_sessions
    ]


def read_connections(servers: Mapping[int, NodeServer]) -> list[ConnectionState]:
    """Return the client connections of all nodes."""
    states = []
    for node_id, server in sorted(servers.items()):
        for connection in server.connections:
            session = connection.session
            if session is not None:
                states.append(
                    ConnectionState(
                        node_id,
                        session.id,
                        session.listener,
                        f"{session.host}:{session.port}",
                        session.client_id,
                        session.principal,
                        f"{session.software_name} {session.software_version}",
                        connection.unanswered,
                    )
                )
    return states
