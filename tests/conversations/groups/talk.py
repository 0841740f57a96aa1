"""Members of groups made of single requests, for conversations that two brokers must answer alike.

Ids that a broker makes up are told apart by the order in which they appear. A request whose answer waits for others is
`sent` and `got` later; before anything is asked that depends on it, the group's state has to show it.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ottla.cluster.internal_topics import partition_for
from ottla.groups.records import decode_record
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k08_offset_commit as k08
from ottla.protocol.messages import k09_offset_fetch as k09
from ottla.protocol.messages import k11_join_group as k11
from ottla.protocol.messages import k12_heartbeat as k12
from ottla.protocol.messages import k13_leave_group as k13
from ottla.protocol.messages import k14_sync_group as k14
from ottla.protocol.messages import k15_describe_groups as k15
from ottla.protocol.messages import k44_incremental_alter_configs as k44
from ottla.protocol.messages import k68_consumer_group_heartbeat as k68
from ottla.protocol.messages import k69_consumer_group_describe as k69
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolSubscription
from ottla.protocol.record_schemas.group import ConsumerGroupMetadataValue, ConsumerGroupRegularExpressionValue
from ottla.protocol.schema import ZERO_UUID, Message, Uuid
from ottla.records.batch import iter_batches
from ottla.records.iterate import iter_records
from tests.conversations.conversation import LONG_MS, UNREAD, Conversation, escaped
from tests.conversations.side_by_side import Talk, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.conversations.local_talk import LocalTalk

R = TypeVar("R", bound=Message)
_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
Owned = dict[str, list[int]]
OFFSETS_PARTITIONS = 4
OLD = "{}, deleted".format
# One group in each partition of `__consumer_offsets`.
PROBES = [
    next(name for name in map("probe-{}".format, count()) if partition_for(name, OFFSETS_PARTITIONS) == partition)
    for partition in range(OFFSETS_PARTITIONS)
]


def subscription(*topics: str, data: bytes = b"") -> bytes:
    """What a consumer of the classic protocol wants to read."""
    return b"\0\1" + ConsumerProtocolSubscription(topics=list(topics), user_data=data).encode(1)


@dataclass
class Sent(Generic[R]):
    """A request whose answer is still to come."""

    label: str
    version: int
    wait: Callable[[], R]


class GroupTalk(Conversation):
    """One broker's half of a conversation about groups."""

    unordered = frozenset(
        {
            "members",
            "groups",
            "results",
            "topics",
            "topic_partitions",
            "assigned_partitions",
            "partitions_pending_revocation",
            "subscribed_topic_names",
        }
    )
    times = frozenset(
        {"commit_timestamp", "expire_timestamp", "current_state_timestamp", "timestamp", "assignment_timestamp"}
    )

    def __init__(
        self,
        talk: Talk | LocalTalk,
        logs: Callable[[], Iterable[bytes]],
        pause: Callable[[], None] = lambda: time.sleep(0.02),
    ) -> None:
        super().__init__(talk, pause)
        self._logs = logs
        self._members: dict[str, str] = {}
        self._epochs: dict[tuple[str, str], int] = {}
        self._topics: dict[Uuid, str] = {}
        self._settled = 0

    def begin(self) -> None:
        """Begin a conversation: members are counted from one again."""
        super().begin()
        self._members = {}

    def hold(self, name: str, conversation: Callable[[Self, str], None]) -> dict[str, Any]:
        """Have one conversation and return what was answered, and what it left in the log."""
        topic = name.replace("_", "-")
        self.create(topic, 4)
        self.begin()
        conversation(self, topic)
        self.until_written()
        self.note_records(topic)
        return {label: response for label, response in self.transcript.items() if response is not UNREAD}

    def create(self, name: str, partitions: int) -> None:
        """Make a topic that every coordinator knows of when it is asked next."""
        self.talk.create(name, partitions)
        self.learn_topics()
        self.settle()

    def learn_topics(self) -> None:
        """Know the ids of the topics that there are."""
        for topic in self.talk.quietly(MetadataRequest(topics=None), MetadataResponse).topics:
            self._topics[topic.topic_id] = topic.name or ""

    def topic_id(self, name: str) -> Uuid:
        """The id of a topic that was made; another one for a topic that was not."""
        result = [topic_id for topic_id, known in self._topics.items() if known == name]
        return result[-1] if result else Uuid(b"no such topic id")

    def topic_name(self, topic_id: Uuid) -> str:
        """The name under which an id is told."""
        return self._topics[topic_id]

    def remove(self, name: str) -> None:
        """Delete a topic, and wait until no coordinator knows it."""
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=LONG_MS)
        assert self.talk.quietly(request, DeleteTopicsResponse).responses[0].error_code == ErrorCode.NONE
        self.until_gone(name)
        self.settle()

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its id goes on under the name that OLD makes."""
        self.remove(name)
        self._topics[self.topic_id(name)] = OLD(name)

    # What brokers do on their own time

    def settle(self) -> None:
        """Wait until every coordinator goes by the topics and configs that the broker took so far.

        A broker takes changes in their order, some at once: the first change here may show in the midst of those that
        came with it, but the second one shows only after all of them.
        """
        for _ in range(2):
            self._settled += 1
            interval_ms = 5000 + self._settled
            change = k44.AlterableConfig(name="consumer.heartbeat.interval.ms", value=str(interval_ms))
            resource = k44.AlterConfigsResource(resource_type=32, resource_name=PROBES[0], configs=[change])
            request = k44.IncrementalAlterConfigsRequest(resources=[resource])
            response = self.talk.quietly(request, k44.IncrementalAlterConfigsResponse)
            assert response.responses[0].error_code == ErrorCode.NONE, response
            self.talk.wait_until(
                lambda interval_ms=interval_ms: self._probe(PROBES[0]) == interval_ms,  # type: ignore[misc]
                "a config is not obeyed",
            )

    def until_written(self) -> None:
        """Wait until every coordinator has written what it has to: it may answer a member before that."""
        for group in PROBES:
            self._probe(group)

    def _probe(self, group: str) -> int:
        """Join a group of one member and return its heartbeat interval."""
        request = k68.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=LONG_MS,
            subscribed_topic_names=["no-such-topic"],
            topic_partitions=[],
        )
        response = self.patiently(lambda: self.talk.quietly(request, k68.ConsumerGroupHeartbeatResponse))
        assert response.error_code == ErrorCode.NONE, response
        return response.heartbeat_interval_ms

    # Requests whose answers wait

    def send(self, request: Message, response: type[R], version: int | None = None) -> Sent[R]:
        """Ask on a connection of its own, and do not wait for the answer."""
        version = self.version_of(request) if version is None else version
        label = self.label(request, version)
        self.transcript[label] = UNREAD
        if not isinstance(self.talk, Talk):
            return Sent(label, version, self.talk.start(request, response, version))
        wire = Wire(self.talk.bootstrap)
        key = request.__schema__.api_key
        assert key is not None
        number = wire.send(request, version)

        def wait() -> Any:
            try:
                return wire.receive(key, version, number)
            finally:
                wire.close()

        return Sent(label, version, wait)

    def got(self, sent: Sent[R]) -> R:
        """The answer to a request that was sent, written down under the request's number."""
        response = sent.wait()
        self.transcript[sent.label] = self.tree(response, sent.version)
        return response

    # Classic members

    def join_request(
        self,
        group: str,
        member: str = "",
        *,
        instance: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        kind: str = "consumer",
        session_ms: int = LONG_MS,
        rebalance_ms: int = LONG_MS,
    ) -> k11.JoinGroupRequest:
        """JoinGroup."""
        chosen = {"range": subscription("news")} if protocols is None else protocols
        return k11.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=[k11.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in chosen.items()],
        )

    def join(self, group: str, member: str = "", *, version: int = 9, **options: Any) -> k11.JoinGroupResponse:
        """Join, and be answered at once."""
        return self.ask(self.join_request(group, member, **options), k11.JoinGroupResponse, version)

    def send_join(self, group: str, member: str = "", *, version: int = 9, **options: Any) -> Sent[Any]:
        """Join, and wait for the others."""
        return self.send(self.join_request(group, member, **options), k11.JoinGroupResponse, version)

    def enter(self, group: str, **options: Any) -> k11.JoinGroupResponse:
        """Join as the first member, with the second request that the broker asks for."""
        return self.join(group, self.join(group, **options).member_id, **options)

    def sync_request(
        self,
        group: str,
        member: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance: str | None = None,
        kind: str | None = "consumer",
        protocol: str | None = "range",
    ) -> k14.SyncGroupRequest:
        """SyncGroup."""
        return k14.SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            protocol_type=kind,
            protocol_name=protocol,
            assignments=[
                k14.SyncGroupRequestAssignment(member_id=name, assignment=data)
                for name, data in (assignments or {}).items()
            ],
        )

    def sync(self, group: str, member: str, generation: int, *rest: Any, version: int = 5, **options: Any) -> Any:
        """Sync, and be answered at once."""
        return self.ask(self.sync_request(group, member, generation, *rest, **options), k14.SyncGroupResponse, version)

    def send_sync(self, group: str, member: str, generation: int, *rest: Any, **options: Any) -> Sent[Any]:
        """Sync, and wait for the leader."""
        return self.send(self.sync_request(group, member, generation, *rest, **options), k14.SyncGroupResponse)

    def heartbeat(
        self, group: str, member: str, generation: int, *, instance: str | None = None, version: int = 4
    ) -> None:
        """Heartbeat."""
        request = k12.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
        request.group_instance_id = instance
        self.ask(request, k12.HeartbeatResponse, version)

    def leave(self, group: str, *members: tuple[str, str | None], version: int = 5) -> None:
        """LeaveGroup."""
        request = k13.LeaveGroupRequest(group_id=group)
        if version < 3:
            ((request.member_id, _),) = members
        else:
            request.members = [
                k13.MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in members
            ]
        self.ask(request, k13.LeaveGroupResponse, version)

    # Members of consumer groups

    def beat(
        self,
        group: str,
        member: str,
        by: int = 0,
        *,
        epoch: int | None = None,
        topics: Sequence[str] | None = None,
        regex: str | None = None,
        owned: Owned | None = None,
        instance: str | None = None,
        rack: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = -1,
        version: int = 1,
    ) -> k68.ConsumerGroupHeartbeatResponse:
        """ConsumerGroupHeartbeat, in the member's epoch (or off by some), or in any other."""
        request = k68.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=self.epoch(group, member) + by if epoch is None else epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=rebalance_ms,
            subscribed_topic_names=None if topics is None else list(topics),
            subscribed_topic_regex=regex,
            server_assignor=assignor,
        )
        if owned is not None:
            request.topic_partitions = [
                k68.TopicPartitions(topic_id=self.topic_id(name), partitions=indexes) for name, indexes in owned.items()
            ]
        response = self.ask(request, k68.ConsumerGroupHeartbeatResponse, version)
        if response.error_code == 0 and response.member_epoch > 0:
            self._epochs[group, response.member_id or member] = response.member_epoch
        return response

    def epoch(self, group: str, member: str) -> int:
        """The epoch that a member was last given."""
        return self._epochs.get((group, member), 1)

    def arrive(self, group: str, member: str, *topics: str, **options: Any) -> k68.ConsumerGroupHeartbeatResponse:
        """Join a consumer group."""
        settings = {"rebalance_ms": LONG_MS, "owned": {}, "topics": topics if "regex" not in options else None}
        return self.beat(group, member, epoch=0, **{**settings, **options})

    # Offsets

    def commit(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = "",
        retention_ms: int = -1,
        version: int = 9,
    ) -> None:
        """OffsetCommit."""
        request = k08.OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=generation, member_id=member, group_instance_id=instance
        )
        if version < 5:
            request.retention_time_ms = retention_ms
        for (name, index), offset in offsets.items():
            topic = k08.OffsetCommitRequestTopic(name=name)
            if version >= 10:
                topic.topic_id = self.topic_id(name)
            topic.partitions = [
                k08.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=metadata
                )
            ]
            request.topics.append(topic)
        self.ask(request, k08.OffsetCommitResponse, version)

    def fetch(
        self,
        group: str,
        topic_partitions: Sequence[tuple[str, int]] | None,
        *,
        member: str | None = None,
        epoch: int = -1,
        stable: bool = False,
        version: int = 9,
    ) -> None:
        """OffsetFetch; `places` None asks for all, `stable` for nothing that an open transaction may change."""
        if version < 8:
            request = k09.OffsetFetchRequest(group_id=group, topics=None if topic_partitions is None else [])
            for name, index in topic_partitions or ():
                request.topics.append(k09.OffsetFetchRequestTopic(name=name, partition_indexes=[index]))
        else:
            expected = self._wanted(group, topic_partitions, version)
            if version >= 9:
                expected.member_id, expected.member_epoch = member, epoch
            request = k09.OffsetFetchRequest(groups=[expected])
        request.require_stable = stable
        self.ask(request, k09.OffsetFetchResponse, version)

    def fetch_groups(
        self, groups: Mapping[str, Sequence[tuple[str, int]] | None], *, stable: bool, version: int
    ) -> None:
        """OffsetFetch of several groups at once."""
        expected = [self._wanted(group, topic_partitions, version) for group, topic_partitions in groups.items()]
        request = k09.OffsetFetchRequest(groups=expected, require_stable=stable)
        self.ask(request, k09.OffsetFetchResponse, version)

    def tree(self, value: Any, version: int, name: str = "") -> Any:
        """A message as a tree; the partitions of an answer to "all of them" come in the order of a hash map."""
        tree = super().tree(value, version, name)
        if isinstance(value, k09.OffsetFetchResponseTopic | k09.OffsetFetchResponseTopics):
            tree["partitions"] = sorted(tree["partitions"], key=itemgetter("partition_index"))
        return tree

    def _wanted(
        self, group: str, topic_partitions: Sequence[tuple[str, int]] | None, version: int
    ) -> k09.OffsetFetchRequestGroup:
        expected = k09.OffsetFetchRequestGroup(group_id=group, topics=None if topic_partitions is None else [])
        for name, index in topic_partitions or ():
            topic = k09.OffsetFetchRequestTopics(name=name, partition_indexes=[index])
            if version >= 10:
                topic.topic_id = self.topic_id(name)
            expected.topics.append(topic)
        return expected

    def fetch_many(self, groups: Sequence[str], topic_partition: tuple[str, int], *, version: int) -> None:
        """OffsetFetch of one partition, in several groups at once."""
        topic = k09.OffsetFetchRequestTopics(name=topic_partition[0], partition_indexes=[topic_partition[1]])
        if version >= 10:
            topic.topic_id = self.topic_id(topic_partition[0])
        expected = [k09.OffsetFetchRequestGroup(group_id=group, topics=[topic]) for group in groups]
        self.ask(k09.OffsetFetchRequest(groups=expected), k09.OffsetFetchResponse, version)

    # What happens meanwhile

    def offset(self, group: str, topic_partition: tuple[str, int]) -> int:
        """Return the committed offset of a partition, or -1."""
        topic = k09.OffsetFetchRequestTopics(name=topic_partition[0], partition_indexes=[topic_partition[1]])
        expected = k09.OffsetFetchRequestGroup(group_id=group, topics=[topic])
        response = self.patiently(
            lambda: self.talk.quietly(k09.OffsetFetchRequest(groups=[expected]), k09.OffsetFetchResponse, version=9)
        )
        return response.groups[0].topics[0].partitions[0].committed_offset

    def described(self, group: str) -> tuple[str, int]:
        """The state of a group, of either kind, and how many members it has."""
        result = self.patiently(
            lambda: self.talk.quietly(
                k69.ConsumerGroupDescribeRequest(group_ids=[group]), k69.ConsumerGroupDescribeResponse
            )
        ).groups[0]
        if result.error_code:
            result = self.patiently(
                lambda: self.talk.quietly(k15.DescribeGroupsRequest(groups=[group]), k15.DescribeGroupsResponse)
            ).groups[0]
        return result.group_state, len(result.members)

    def until(self, group: str, state: str, members: int | None = None) -> None:
        """Wait until a group is in a state, and has that many members."""

        def reached() -> bool:
            result, count = self.described(group)
            return result == state and members in (None, count)

        self.talk.wait_until(reached, f"{group} is not {state} with {members} members")

    def describe(self, *groups: str, version: int = 6) -> None:
        """DescribeGroups."""
        self.ask(k15.DescribeGroupsRequest(groups=list(groups)), k15.DescribeGroupsResponse, version)

    def describe_consumers(self, *groups: str, version: int = 1) -> None:
        """ConsumerGroupDescribe."""
        request = k69.ConsumerGroupDescribeRequest(group_ids=list(groups))
        self.ask(request, k69.ConsumerGroupDescribeResponse, version)

    def note_records(self, prefix: str) -> None:
        """Write down what the log of `__consumer_offsets` holds of groups whose names begin so."""
        for data in self._logs():
            for header in iter_batches(data):
                if header.is_control:
                    continue
                for record in iter_records(data, header):
                    self._note_record(prefix, record.key, record.value)

    def _note_record(self, prefix: str, key: bytes | None, value: bytes | None) -> None:
        decoded = decode_record(key, value)
        assert decoded is not None
        named = self.tree(decoded.key, 0)
        if isinstance(decoded.value, ConsumerGroupMetadataValue) and decoded.value.metadata_hash:
            decoded.value.metadata_hash = 1  # of topic ids, which are made up
        if isinstance(decoded.value, ConsumerGroupRegularExpressionValue):
            decoded.value.version = 1  # of the metadata, which each broker counts for itself
        group = named.pop("group" if "group" in named else "group_id")
        if not group.startswith(prefix):
            return
        heartbeat = "tombstone" if decoded.value is None else self.tree(decoded.value, decoded.version)
        name = type(decoded.key).__name__.removesuffix("Key")
        heartbeat = [f"{name} v{decoded.version}" if decoded.value is not None else name, named, heartbeat]
        records = self.transcript.setdefault(f"records of {group}", [])
        # What is written for each member of a group comes in the order of a hash map: told in the order of names.
        at = len(records)
        while (
            at and "member_id" in named and records[at - 1][0] == heartbeat[0] and str(records[at - 1][1]) > str(named)
        ):
            at -= 1
        records.insert(at, heartbeat)

    # How it is written down

    def leaf(self, value: Any, name: str) -> Any:
        """Ids by the order in which they appear, topics by name, bytes as text."""
        if isinstance(value, Uuid):
            return "zero" if value == ZERO_UUID else self._topics.get(value, "an unknown topic")
        if isinstance(value, bytes | bytearray | memoryview):
            return escaped(bytes(value))
        if name in ("member_id", "leader") and value:
            return self._member(value)
        if isinstance(value, str):
            for member, known in self._members.items():
                value = value.replace(member, known)
            for topic_id, topic in self._topics.items():
                value = value.replace(str(topic_id), f"<id of {topic}>")
        return value

    def _member(self, member: str) -> str:
        if member not in self._members:
            heartbeat, made_up = _UUID.subn("<uuid>", member)
            if not made_up and len(member) == 22:
                heartbeat, made_up = "<id>", 1
            if not self._names_ids:
                return heartbeat
            self._members[member] = f"{heartbeat} {len(self._members) + 1}" if made_up else member
        return self._members[member]
