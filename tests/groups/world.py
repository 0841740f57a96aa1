"""A group coordinator without a broker: logs in lists, topics in a dict, virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.groups.coordinator import GroupCoordinator
from ottla.groups.environment import Appended, DeletedTopic, RequestContext
from ottla.groups.records import GroupRecord, decode_record
from ottla.groups.settings import CoordinatorSettings, GroupSettings
from ottla.pending import Pending, completed_with
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.k09_offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest
from ottla.protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.messages.k68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolSubscription
from ottla.protocol.uuids import Uuid
from ottla.records.batch import read_header, stamp_offset
from ottla.records.iterate import iter_all_records
from ottla.shares.environment import SharePartitionKey, ShareState
from ottla.world.clock import VirtualClock
from ottla.world.random import SeededRandom

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

R = TypeVar("R")
GROUP = "g"
Owned = dict[str, set[int]]


class MemoryLog:
    """`__consumer_offsets` as lists of batches; with `slow`, batches become durable when `sync` is called."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.next_offset: dict[int, int] = {}
        self.slow = False
        self.broken: ErrorCode | None = None
        self.waiting: list[Pending[ErrorCode]] = []

    def append(self, partition: int, batch: bytearray) -> Appended:
        if self.broken is not None:
            raise KafkaError(self.broken)
        offset = self.next_offset.get(partition, 0)
        stamp_offset(batch, 0, offset, 0)
        self.next_offset[partition] = offset + read_header(batch).last_offset_delta + 1
        self.batches.setdefault(partition, []).append(bytes(batch))
        if not self.slow:
            return Appended(offset, None)
        durable: Pending[ErrorCode] = Pending()
        self.waiting.append(durable)
        return Appended(offset, durable)

    def sync(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Make all appended batches durable, or fail them with an error."""
        waiting, self.waiting = self.waiting, []
        for durable in waiting:
            durable.complete(code)

    def records(self, partition: int) -> list[GroupRecord]:
        decoded_records = []
        for batch in self.batches.get(partition, []):
            for _, record in iter_all_records(batch):
                decoded = decode_record(record.key, record.value)
                assert decoded is not None
                decoded_records.append(decoded)
        return decoded_records


@dataclass
class MemoryTopic:
    id: Uuid
    name: str
    partition_count: int
    rack_names: tuple[str, ...] = ()

    def racks(self, partition: int) -> Sequence[str]:
        return self.rack_names


@dataclass
class MemoryTopics:
    topics: dict[str, MemoryTopic] = field(default_factory=dict)
    version: int = 0

    def by_name(self, name: str) -> MemoryTopic | None:
        return self.topics.get(name)

    def by_id(self, topic_id: Uuid) -> MemoryTopic | None:
        return next((topic for topic in self.topics.values() if topic.id == topic_id), None)

    def names(self) -> list[str]:
        return sorted(self.topics)


@dataclass
class MemorySettings:
    broker: CoordinatorSettings = field(default_factory=lambda: CoordinatorSettings(initial_rebalance_delay_ms=0))
    groups: dict[str, GroupSettings] = field(default_factory=dict)
    default_group: GroupSettings = field(default_factory=lambda: GroupSettings(assignment_interval_ms=0))

    def coordinator(self) -> CoordinatorSettings:
        return self.broker

    def group(self, group_id: str) -> GroupSettings:
        return self.groups.get(group_id, self.default_group)


def subscription(*topics: str, version: int = 3, **more: Any) -> bytes:
    """Return the subscription of a consumer in the embedded protocol."""
    body = ConsumerProtocolSubscription(topics=list(topics), **more).encode(version)
    return version.to_bytes(2) + body


class MemoryShareStates:
    """The state of share partitions in a dictionary; with `broken`, every change fails."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, ShareState] = {}
        self.broken: ErrorCode = ErrorCode.NONE

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Pending[ErrorCode]:
        if not self.broken:
            self.states[key] = ShareState(ErrorCode.NONE, state_epoch, -1, start_offset)
        return completed_with(self.broken)

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[ShareState]:
        return self.summary(key)

    def write(self, key: SharePartitionKey, *change: Any) -> Pending[ErrorCode]:
        raise AssertionError("groups change nothing in what was read")

    def summary(self, key: SharePartitionKey) -> Pending[ShareState]:
        return completed_with(self.states.get(key, ShareState(ErrorCode.NONE)))

    def delete(self, key: SharePartitionKey) -> Pending[ErrorCode]:
        if not self.broken:
            self.states.pop(key, None)
        return completed_with(self.broken)


class World:
    """One node that leads all partitions of `__consumer_offsets`, and requests to it."""

    def __init__(self, seed: int = 0, partitions: int = 1) -> None:
        self.clock = VirtualClock()
        self.random = SeededRandom(seed)
        self.log = MemoryLog()
        self.topics = MemoryTopics()
        self.settings = MemorySettings()
        self.partitions = partitions
        self.share_states = MemoryShareStates()
        self.coordinator = self.new_coordinator()
        for partition in range(partitions):
            self.coordinator.load(partition, [])

    def new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            clock=self.clock,
            random=self.random,
            log=self.log,
            topics=self.topics,
            settings=self.settings,
            partition_count=lambda: self.partitions,
            share_states=self.share_states,
        )

    def restart(self) -> None:
        """Stop the node and load its logs into another one."""
        self.coordinator.unload_all()
        self.log.waiting.clear()
        self.coordinator = self.new_coordinator()
        for partition in range(self.partitions):
            self.coordinator.load(partition, self.log.batches.get(partition, []))

    def check_log(self, state: Callable[[Any], Any]) -> None:
        """Assert that a replay of the log gives the groups' live state."""
        other = self.new_coordinator()
        other.load(0, self.log.batches.get(0, []))
        live, read = self.coordinator.shard(0), other.shard(0)
        assert live is not None
        assert read is not None
        assert state(live.groups) == state(read.groups)
        assert live.groups_by_topic == read.groups_by_topic
        other.unload_all()

    def configure(self, **settings: Any) -> None:
        self.settings.broker = replace(self.settings.broker, **settings)

    def advance(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1_000)

    def now_ms(self) -> int:
        """Return the monotonic time in milliseconds, as clients measure it."""
        return round(self.clock.monotonic() * 1_000)

    def set_back(self, milliseconds: int) -> None:
        """Set the wall clock back; the monotonic time continues."""
        self.clock._start_ms -= milliseconds

    @property
    def records(self) -> list[GroupRecord]:
        return [record for partition in range(self.partitions) for record in self.log.records(partition)]

    def group(self, group_id: str = GROUP) -> Any:
        shard = self.coordinator.shard(self.coordinator.partition_for(group_id))
        assert shard is not None
        return shard.groups.get(group_id)

    # Topics

    def create_topic(self, name: str, partitions: int = 1, racks: tuple[str, ...] = ()) -> Uuid:
        topic_id = Uuid(self.random.uuid())
        self.topics.topics[name] = MemoryTopic(topic_id, name, partitions, racks)
        self.topics.version += 1
        self.coordinator.topics_changed(created=[name])
        return topic_id

    def change_topic(self, name: str, partitions: int, racks: tuple[str, ...] = ()) -> None:
        topic = self.topics.topics[name]
        self.topics.topics[name] = MemoryTopic(topic.id, name, partitions, racks)
        self.topics.version += 1
        self.coordinator.topics_changed(changed=[name])

    def delete_topic(self, name: str) -> None:
        topic = self.topics.topics.pop(name)
        self.topics.version += 1
        self.coordinator.topics_changed(deleted=[DeletedTopic(topic.id, topic.name)])

    # Requests

    def join(
        self,
        member_id: str = "",
        *,
        group: str = GROUP,
        version: int = 9,
        instance: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"m"),),
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        client: str = "client",
    ) -> Any:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
        )
        return self.coordinator.join_group(RequestContext(version, client, "/127.0.0.1"), request)

    def enter(self, **options: Any) -> Any:
        """Join as a new member, with the second join that MEMBER_ID_REQUIRED demands."""
        sent_away = self.join(**options)
        assert sent_away.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return Member(sent_away.member_id, self.join(sent_away.member_id, **options))

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = GROUP,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
    ) -> Any:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in (assignments or {}).items()
            ],
        )
        return self.coordinator.sync_group(RequestContext(5), request)

    def heartbeat(self, member_id: str, generation: int, *, group: str = GROUP, instance: str | None = None) -> Any:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return self.coordinator.heartbeat(RequestContext(4), request)

    def leave(self, *members: tuple[str, str | None], group: str = GROUP) -> Any:
        request = LeaveGroupRequest(
            group_id=group,
            members=[MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in members],
        )
        return self.coordinator.leave_group(RequestContext(5), request)

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        group: str = GROUP,
        version: int = 9,
        metadata: str | None = "",
        retention_ms: int = -1,
        ids: bool = False,
    ) -> Any:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
        )
        for (name, partition), offset in offsets.items():
            topic = OffsetCommitRequestTopic(name=name)
            if ids:
                topic.topic_id = self.topics.topics[name].id
            topic.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            )
            request.topics.append(topic)
        return self.coordinator.commit_offsets(RequestContext(version), request)

    def commit_code(self, offsets: dict[tuple[str, int], int], **options: Any) -> ErrorCode:
        """Commit offsets; return the error of the first partition."""
        return ErrorCode(self.commit(offsets, **options).topics[0].partitions[0].error_code)

    def fetch(
        self,
        *partitions: tuple[str, int],
        group: str = GROUP,
        everything: bool = False,
        require_stable: bool = False,
        member: str | None = None,
        epoch: int = -1,
        ids: bool = False,
        version: int = 9,
    ) -> Any:
        request = OffsetFetchRequestGroup(group_id=group, member_id=member, member_epoch=epoch)
        request.topics = None if everything else []
        for name, partition in partitions:
            topic = OffsetFetchRequestTopics(name=name, partition_indexes=[partition])
            if ids:
                topic.topic_id = self.topics.topics[name].id
            assert request.topics is not None
            request.topics.append(topic)
        return self.coordinator.fetch_offsets(RequestContext(version), request, require_stable=require_stable)

    def offsets(self, *partitions: tuple[str, int], **options: Any) -> list[int]:
        """Return the committed offsets of partitions, -1 where there is none."""
        response = self.fetch(*partitions, **options)
        return [partition.committed_offset for topic in response.topics for partition in topic.partitions]

    def consumer_heartbeat(
        self,
        member_id: str,
        epoch: int,
        *,
        group: str = GROUP,
        topics: Sequence[str] | None = None,
        regex: str | None = None,
        owned: Owned | None = None,
        instance: str | None = None,
        rack: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = -1,
        version: int = 1,
        client: str = "client",
    ) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=rebalance_ms,
            subscribed_topic_names=None if topics is None else list(topics),
            subscribed_topic_regex=regex,
            server_assignor=assignor,
        )
        if owned is not None:
            request.topic_partitions = [
                TopicPartitions(topic_id=self.topics.topics[name].id, partitions=sorted(partitions))
                for name, partitions in owned.items()
            ]
        return self.coordinator.consumer_group_heartbeat(RequestContext(version, client, "/127.0.0.1"), request)

    def owned(self, response: Any) -> Owned | None:
        """Return the assignment of a heartbeat response by topic name; None if it has none."""
        if response.assignment is None:
            return None
        names = {topic.id: topic.name for topic in self.topics.topics.values()}
        return {names[topic.topic_id]: set(topic.partitions) for topic in response.assignment.topic_partitions}

    # Whole groups

    def stable_group(self, *names: str, group: str = GROUP, delay_ms: int = 1, **options: Any) -> list[Member]:
        """Return the members of a stable classic group; each is assigned its own name."""
        members = [self.enter(group=group, client=name, **options) for name in names]
        self.advance(delay_ms)
        leader = next(member for member in members if member.response.members)
        generation = leader.response.generation_id
        assignments = {member.id: name.encode() for member, name in zip(members, names, strict=True)}
        for member in sorted(members, key=lambda member: member is leader):
            member.generation = generation
            member.assignment = self.sync(member.id, generation, assignments if member is leader else None, group=group)
        return members


@dataclass
class Member:
    """A classic member with the state of its client."""

    id: str
    answer: Any
    generation: int = -1
    assignment: Any = None

    @property
    def response(self) -> Any:
        """Return the response to the member's join; it must be complete."""
        return answered(self.answer)


def answered(response: R | Pending[R]) -> R:
    """Return a response; it must be complete."""
    if isinstance(response, Pending):
        assert response.done, "still waiting"
        return response.response
    return response


def waits(response: object) -> bool:
    """Return whether a response is still pending."""
    return isinstance(response, Pending) and not response.done


def code(response: Any) -> ErrorCode:
    """Return the error of a response; it must be complete."""
    return ErrorCode(answered(response).error_code)


class Consumer:
    """A member of a consumer group with the state of its client; each method sends one heartbeat."""

    def __init__(self, world: World, member_id: str, *topics: str, group: str = GROUP, **options: Any) -> None:
        self.world = world
        self.id = member_id
        self.group = group
        self.epoch = 0
        self.owned: Owned = {}
        self.instance = options.get("instance")
        self._options: dict[str, Any] = {"rebalance_ms": 60_000, **options}
        if topics or "regex" not in options:
            self._options["topics"] = topics

    def join(self) -> Any:
        """Join or rejoin with epoch 0."""
        self.epoch, self.owned = 0, {}
        return self._send(owned={}, **self._options)

    def beat(self, **changes: Any) -> Any:
        """Send a heartbeat that reports the owned partitions."""
        return self._send(owned=self.owned, instance=self.instance, **changes)

    def keep_alive(self) -> Any:
        """Send a heartbeat that reports nothing."""
        return self._send(instance=self.instance)

    def leave(self, epoch: int = -1) -> Any:
        """Leave the group."""
        return self.world.consumer_heartbeat(self.id, epoch, group=self.group, instance=self.instance)

    def settle(self, beats: int = 3) -> None:
        """Send heartbeats until the assignment no longer changes."""
        for _ in range(beats):
            self.beat()

    def _send(self, **fields: Any) -> Any:
        response = answered(self.world.consumer_heartbeat(self.id, self.epoch, group=self.group, **fields))
        if response.error_code == ErrorCode.NONE:
            self.epoch = response.member_epoch
            owned = self.world.owned(response)
            if owned is not None:
                self.owned = owned
        return response
