"""Requests of groups that name tens of thousands of things: each is looked at once, and answered."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k08_offset_commit as k08
from ottla.protocol.messages import k10_find_coordinator as k10
from ottla.protocol.messages import k11_join_group as k11
from ottla.protocol.messages import k14_sync_group as k14
from ottla.protocol.messages import k15_describe_groups as k15
from ottla.protocol.messages import k16_list_groups as k16
from ottla.protocol.messages import k42_delete_groups as k42
from ottla.protocol.messages import k68_consumer_group_heartbeat as k68
from ottla.protocol.messages import k69_consumer_group_describe as k69
from ottla.protocol.schema import Message
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

R = TypeVar("R", bound=Message)
MANY = 50_000
NAMES = [f"group-{number}" for number in range(MANY)]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalTalk]:
    talk = LocalTalk({"offsets.topic.num.partitions": "1"})
    talk.create("news", 3)
    talk.quietly(k10.FindCoordinatorRequest(coordinator_keys=["g"], key_type=0), k10.FindCoordinatorResponse)
    yield talk
    talk.close()


def commit(local: LocalTalk, group: str, topic: str, partitions: int, metadata: str = "") -> Counter[ErrorCode]:
    """Commit that many partitions of a topic, and count the answers."""
    expected = [
        k08.OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=metadata)
        for index in range(partitions)
    ]
    request = k08.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[k08.OffsetCommitRequestTopic(name=topic, partitions=expected)],
    )
    response = local.quietly(request, k08.OffsetCommitResponse, version=9)
    return Counter(
        ErrorCode(partition.error_code) for each_topic in response.topics for partition in each_topic.partitions
    )


def test_commit_of_many_unknown_partitions_fails(local: LocalTalk) -> None:
    assert commit(local, "g", "news", MANY) == {ErrorCode.NONE: 3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: MANY - 3}


def test_many_unknown_groups_are_described(local: LocalTalk) -> None:
    described = local.quietly(k15.DescribeGroupsRequest(groups=NAMES), k15.DescribeGroupsResponse)
    assert [group.group_id for group in described.groups] == NAMES
    consumers = local.quietly(k69.ConsumerGroupDescribeRequest(group_ids=NAMES), k69.ConsumerGroupDescribeResponse)
    assert {group.error_code for group in consumers.groups} == {ErrorCode.GROUP_ID_NOT_FOUND}
    deleted = local.quietly(k42.DeleteGroupsRequest(groups_names=NAMES), k42.DeleteGroupsResponse)
    assert {result.error_code for result in deleted.results} == {ErrorCode.GROUP_ID_NOT_FOUND}


def test_commit_too_large_for_a_batch_changes_nothing(local: LocalTalk) -> None:
    """One commit is one batch: what `max.message.bytes` does not let in is Kafka's UNKNOWN_SERVER_ERROR."""
    local.create("wide", 400)
    assert commit(local, "large", "wide", 400, "m" * 4_000) == {ErrorCode.UNKNOWN_SERVER_ERROR: 400}
    group = local.quietly(k15.DescribeGroupsRequest(groups=["large"]), k15.DescribeGroupsResponse).groups[0]
    assert (group.group_state, group.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)


def test_two_thousand_groups_start_at_once() -> None:
    """One member each: all are asked before the first is answered, and all are gone when their sessions end."""
    local = LocalTalk({"group.initial.rebalance.delay.ms": "3000", "offsets.topic.num.partitions": "3"})
    local.create("news", 3)
    local.quietly(k10.FindCoordinatorRequest(coordinator_keys=["g"], key_type=0), k10.FindCoordinatorResponse)
    names = NAMES[:2000]

    def all_at_once(request: Callable[[str], Message], response: type[R], version: int) -> dict[str, R]:
        waits = {name: local.start(request(name), response, version) for name in names}
        return {name: wait() for name, wait in waits.items()}

    joined = all_at_once(
        lambda name: k11.JoinGroupRequest(
            group_id=name,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[k11.JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        k11.JoinGroupResponse,
        3,
    )
    assert {(entry.error_code, entry.generation_id) for entry in joined.values()} == {(ErrorCode.NONE, 1)}
    synced = all_at_once(
        lambda name: k14.SyncGroupRequest(
            group_id=name,
            generation_id=1,
            member_id=joined[name].member_id,
            assignments=[k14.SyncGroupRequestAssignment(member_id=joined[name].member_id, assignment=name.encode())],
        ),
        k14.SyncGroupResponse,
        3,
    )
    assert all(value.assignment == name.encode() for name, value in synced.items())
    consumers = all_at_once(
        lambda name: k68.ConsumerGroupHeartbeatRequest(
            group_id=f"consumer-{name}",
            member_id="m",
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=["news"],
            topic_partitions=[],
        ),
        k68.ConsumerGroupHeartbeatResponse,
        1,
    )
    assert {
        len(consumer.assignment.topic_partitions[0].partitions)
        for consumer in consumers.values()
        if consumer.assignment
    } == {3}

    def states() -> Counter[tuple[str, str]]:
        groups = local.quietly(k16.ListGroupsRequest(), k16.ListGroupsResponse).groups
        return Counter((entry.group_type, entry.group_state) for entry in groups)

    assert states() == {("classic", "Stable"): 2000, ("consumer", "Stable"): 2000}
    local.world.clock.advance(60)
    assert states() == {("classic", "Empty"): 2000, ("consumer", "Empty"): 2000}
    local.close()
