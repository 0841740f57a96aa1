"""A broker in virtual time for the tests of the group handlers, with the requests that groups need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.handlers.registry import apis
from ottla.protocol.api import response_class
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k08_offset_commit as k08
from ottla.protocol.messages import k09_offset_fetch as k09
from ottla.protocol.messages import k11_join_group as k11
from ottla.protocol.messages import k14_sync_group as k14
from ottla.protocol.messages import k68_consumer_group_heartbeat as k68
from ottla.protocol.messages import k76_share_group_heartbeat as k76
from ottla.protocol.uuids import ZERO_UUID, Uuid
from tests.conversations.local_talk import LocalTalk
from tests.groups.world import subscription

if TYPE_CHECKING:
    from ottla.protocol.schema import Message

GROUP = "g"
TOPIC = "t"
MEMBER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
UNKNOWN_ID = Uuid(b"an unknown topic")
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.share.assignment.interval.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}


def versions(key: int, first: int | None = None) -> list[int]:
    """Return the served versions of an API, from `first` on."""
    return [version for version in apis()[key].versions if first is None or version >= first]


class Deny:
    """An authorizer that denies every operation on some resource names."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def allowed(self, principal: object, host: str, operation: object, resource: object, name: str) -> bool:
        return name not in self._names


class GroupBroker(LocalTalk):
    """One node with the topic `t` of two partitions."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        super().__init__({**SETTINGS, **(settings or {})})
        self.create(TOPIC, 2)
        self.create("__consumer_offsets")
        self.create("__share_group_state")

    def ask(self, request: Message, version: int | None = None) -> Any:
        """Send a request, by default in the newest version; return the response."""
        key = request.__schema__.api_key
        assert key is not None
        return self.quietly(request, response_class(key), version=version)

    def deny(self, *names: str) -> None:
        """Deny every operation on some resource names from now on."""
        self.runtime.authorizer = Deny(*names)  # type: ignore[assignment]

    def advance(self, seconds: float) -> None:
        """Advance the virtual clock."""
        self.world.clock.advance(seconds)

    def topic_id(self, name: str = TOPIC) -> Uuid:
        """Return the id of a topic."""
        topic_id: Uuid = self.runtime.image.topic(name).id
        return topic_id

    # Classic groups

    def join(self, member_id: str = "", group: str = GROUP, version: int = 3, **fields: Any) -> Any:
        """Send JoinGroup, by default in a version that gives out no member id first; return the response."""
        return self.ask(join_request(member_id, group, **fields), version)

    def stable_member(self, group: str = GROUP) -> str:
        """Make a stable classic group with one member; return its id."""
        joined = self.join(group=group)
        assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 1)
        assignment = k14.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"assigned")
        request = k14.SyncGroupRequest(
            group_id=group, generation_id=1, member_id=joined.member_id, assignments=[assignment]
        )
        assert self.ask(request, 3).error_code == ErrorCode.NONE
        member_id: str = joined.member_id
        return member_id

    # Consumer and share groups

    def consumer_member(self, group: str = GROUP, *topics: str) -> Any:
        """Add a member to a consumer group; return the response."""
        request = k68.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=MEMBER_ID,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=list(topics or (TOPIC,)),
            topic_partitions=[],
        )
        return self.ask(request)

    def share_member(self, group: str = GROUP) -> Any:
        """Add a member to a share group; return the response."""
        request = k76.ShareGroupHeartbeatRequest(group_id=group, member_id=MEMBER_ID, subscribed_topic_names=[TOPIC])
        return self.ask(request)

    def leave_share_group(self, group: str = GROUP) -> None:
        """Remove the member of a share group."""
        request = k76.ShareGroupHeartbeatRequest(group_id=group, member_id=MEMBER_ID, member_epoch=-1)
        assert self.ask(request).error_code == ErrorCode.NONE

    # Offsets

    def commit(self, offset: int, *, group: str = GROUP, topic: str = TOPIC, partition: int = 0) -> ErrorCode:
        """Commit an offset without a member; return the error code."""
        request = commit_request({partition: offset}, group=group, topic=topic)
        return ErrorCode(self.ask(request, 9).topics[0].partitions[0].error_code)

    def committed(self, *, group: str = GROUP) -> dict[tuple[str, int], int]:
        """Return all committed offsets of a group."""
        request = k09.OffsetFetchRequest(groups=[k09.OffsetFetchRequestGroup(group_id=group, topics=None)])
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in self.ask(request, 9).groups[0].topics
            for partition in topic.partitions
        }


def join_request(member_id: str = "", group: str = GROUP, **fields: Any) -> k11.JoinGroupRequest:
    """Return a JoinGroup request of a consumer with long timeouts."""
    protocol = k11.JoinGroupRequestProtocol(name="range", metadata=subscription(TOPIC))
    return k11.JoinGroupRequest(
        **{
            "group_id": group,
            "session_timeout_ms": 600_000,
            "rebalance_timeout_ms": 600_000,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [protocol],
            **fields,
        }
    )


def commit_request(
    offsets: dict[int, int], *, group: str = GROUP, topic: str = TOPIC, topic_id: Uuid = ZERO_UUID, **fields: Any
) -> k08.OffsetCommitRequest:
    """Return an OffsetCommit request of a client that is not a member."""
    partitions = [
        k08.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index, offset in offsets.items()
    ]
    topics = [k08.OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=partitions)]
    return k08.OffsetCommitRequest(group_id=group, topics=topics, **fields)
