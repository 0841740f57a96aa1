"""Share groups: join, epochs, initialization of state, overlapping assignments, leave and deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ottla.groups.environment import RequestContext
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.k76_share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ottla.protocol.messages.k91_alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.k92_delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from ottla.protocol.record_schemas.group import ShareGroupStatePartitionMetadataKey
from ottla.shares.environment import SharePartitionKey
from tests.groups.world import GROUP, World

if TYPE_CHECKING:
    from ottla.protocol.messages.k16_list_groups import ListGroupsResponse
    from ottla.protocol.uuids import Uuid

CONTEXT = RequestContext(1, "client", "/127.0.0.1")


@pytest.fixture
def world() -> World:
    world = World()
    world.create_topic("t", 4)
    return world


def beat(
    world: World, member: str, epoch: int, topics: list[str] | None = None, group: str = GROUP, **more: Any
) -> ShareGroupHeartbeatResponse:
    response = world.coordinator.share_group_heartbeat(
        CONTEXT,
        ShareGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=topics, **more
        ),
    )
    world.clock.advance(0)
    return done(response)


def done(response: Any) -> Any:
    if isinstance(response, Pending):
        assert response.done
        return response.response
    return response


def assigned(response: ShareGroupHeartbeatResponse) -> dict[Uuid, list[int]] | None:
    if response.assignment is None:
        return None
    return {
        topic_partition.topic_id: topic_partition.partitions for topic_partition in response.assignment.topic_partitions
    }


def join(world: World, member: str, topics: list[str] | None = None) -> int:
    """Join and send heartbeats until the assignment no longer changes; return the member epoch."""
    epoch = beat(world, member, 0, topics or ["t"]).member_epoch
    world.advance(1_000)
    return beat(world, member, epoch).member_epoch


def topic_id(world: World, name: str = "t") -> Uuid:
    return world.topics.topics[name].id


def state_of(world: World) -> tuple[dict[str, list[int]], dict[str, list[int]], list[str]]:
    """Return the initializing, initialized and deleting partitions."""
    state = world.group().state_partitions
    return (
        {topic.name: sorted(topic.partitions) for topic in state.initializing.values()},
        {topic.name: sorted(topic.partitions) for topic in state.initialized.values()},
        list(state.deleting.values()),
    )


# Joining


def test_member_gets_partitions_once_initialized(world: World) -> None:
    first = beat(world, "m", 0, ["t"])
    assert (first.error_code, first.member_id, first.member_epoch) == (0, "m", 2)
    assert first.heartbeat_interval_ms == 5_000
    assert assigned(first) == {}
    assert state_of(world) == ({}, {"t": [0, 1, 2, 3]}, [])
    assert world.share_states.states[SharePartitionKey(GROUP, topic_id(world), 3)].state_epoch == 2
    world.advance(1_000)
    second = beat(world, "m", 2)
    assert second.member_epoch == 3
    assert assigned(second) == {topic_id(world): [0, 1, 2, 3]}
    assert assigned(beat(world, "m", 3)) is None


def test_target_is_kept_within_the_assignment_interval(world: World) -> None:
    beat(world, "m", 0, ["t"])
    early = beat(world, "m", 2)
    assert (early.member_epoch, assigned(early)) == (2, None)
    world.advance(1_000)
    assert assigned(beat(world, "m", 2)) == {topic_id(world): [0, 1, 2, 3]}


def test_members_share_partitions(world: World) -> None:
    world.create_topic("single", 1)
    for member in ("a", "b", "c"):
        join(world, member, ["single"])
    world.advance(1_000)
    for member in ("a", "b", "c"):
        result = assigned(beat(world, member, 0, ["single"]))
        assert result == {topic_id(world, "single"): [0]}


def test_new_partitions_are_initialized_and_assigned(world: World) -> None:
    epoch = join(world, "m")
    world.change_topic("t", 6)
    epoch = beat(world, "m", epoch).member_epoch
    assert state_of(world)[1] == {"t": [0, 1, 2, 3, 4, 5]}
    world.advance(1_000)
    assert assigned(beat(world, "m", epoch)) == {topic_id(world): [0, 1, 2, 3, 4, 5]}


def test_topic_created_later_is_assigned(world: World) -> None:
    epoch = beat(world, "m", 0, ["late"]).member_epoch
    assert world.group().state_partitions is None
    world.advance(1_000)
    late = world.create_topic("late", 2)
    epoch = beat(world, "m", epoch).member_epoch
    world.advance(1_000)
    assert assigned(beat(world, "m", epoch)) == {late: [0, 1]}


def test_failed_initialization_is_retried(world: World) -> None:
    world.share_states.broken = ErrorCode.COORDINATOR_NOT_AVAILABLE
    epoch = beat(world, "m", 0, ["t"]).member_epoch
    assert state_of(world) == ({}, {}, [])
    world.share_states.broken = ErrorCode.NONE
    epoch = beat(world, "m", epoch).member_epoch
    assert state_of(world)[1] == {"t": [0, 1, 2, 3]}


def test_changed_subscription_unassigns_at_once(world: World) -> None:
    world.create_topic("other", 1)
    epoch = join(world, "m")
    response = beat(world, "m", epoch, ["other"])
    assert assigned(response) == {}
    assert world.group().subscribed_topics == {"other": 1}


# Refusals


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"member": " "}, "MemberId can't be empty."),
        ({"group": ""}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"topics": []}, "SubscribedTopicNames must be set in first request."),
        ({"topics": None}, "SubscribedTopicNames must be set in first request."),
        ({"epoch": -2}, "MemberEpoch is invalid."),
    ],
)
def test_invalid_request_fails(world: World, more: dict[str, Any], words: str) -> None:
    response = beat(world, **{"member": "m", "epoch": 0, "topics": ["t"], **more})
    assert (response.error_code, response.error_message) == (ErrorCode.INVALID_REQUEST, words)


def test_other_epochs_are_fenced_except_the_previous_one(world: World) -> None:
    epoch = join(world, "m")
    assert beat(world, "m", epoch - 1).member_epoch == epoch
    assert beat(world, "m", epoch - 2).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    greater = beat(world, "m", epoch + 1)
    assert greater.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert "greater member epoch" in (greater.error_message or "")
    assert beat(world, "m", 0, ["t"]).error_code == 0


def test_unknown_group_and_member_fail(world: World) -> None:
    assert beat(world, "m", 5).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert beat(world, "m", -1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    join(world, "m")
    assert beat(world, "n", 5).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(world, "n", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_full_group_refuses_a_member(world: World) -> None:
    world.configure(share_max_size=1)
    join(world, "m")
    response = beat(world, "n", 0, ["t"])
    assert response.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert response.error_message == "The share group has reached its maximum capacity of 1 members."


def test_group_of_another_type_fails(world: World) -> None:
    join(world, "m")
    consumer = world.coordinator.consumer_group_heartbeat(
        CONTEXT,
        ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id="c",
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        ),
    )
    assert done(consumer).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert done(world.join(protocols=[("range", b"")])).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    commit = done(world.commit({("t", 0): 5}))
    assert commit.topics[0].partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


# Leaving


def test_leaving_members_partitions_are_reassigned(world: World) -> None:
    join(world, "a")
    join(world, "b")
    gone = beat(world, "a", -1)
    assert (gone.error_code, gone.member_epoch) == (0, -1)
    world.advance(1_000)
    assert assigned(beat(world, "b", 0, ["t"])) == {topic_id(world): [0, 1, 2, 3]}


def test_member_is_evicted_at_its_session_timeout(world: World) -> None:
    epoch = join(world, "m")
    world.advance(44_000)
    assert beat(world, "m", epoch).error_code == 0
    world.advance(46_000)
    assert world.group().members == {}
    assert beat(world, "m", epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# What a restart finds


def test_reload_keeps_the_group(world: World) -> None:
    epoch = join(world, "m")
    before = world.group()
    world.restart()
    after = world.group()
    for name in (
        "group_epoch",
        "metadata_hash",
        "assignment_epoch",
        "assignment_timestamp_ms",
        "members",
        "subscribed_topics",
        "targets",
    ):
        assert getattr(after, name) == getattr(before, name), name
    assert state_of(world) == ({}, {"t": [0, 1, 2, 3]}, [])
    assert beat(world, "m", epoch).error_code == 0
    world.advance(46_000)
    assert world.group().members == {}


def test_interrupted_initialization_is_retried_after_its_interval(world: World) -> None:
    response = world.coordinator.share_group_heartbeat(
        CONTEXT, ShareGroupHeartbeatRequest(group_id=GROUP, member_id="m", subscribed_topic_names=["t"])
    )
    epoch = done(response).member_epoch
    world.restart()  # before the share coordinator was asked
    world.clock.advance(0)
    assert state_of(world) == ({"t": [0, 1, 2, 3]}, {}, [])
    beat(world, "m", epoch)
    assert state_of(world) == ({"t": [0, 1, 2, 3]}, {}, [])
    world.advance(30_000)
    beat(world, "m", epoch)
    assert state_of(world) == ({}, {"t": [0, 1, 2, 3]}, [])


# Administration


def test_share_groups_are_listed_and_described(world: World) -> None:
    join(world, "m")
    listed: ListGroupsResponse = done(world.coordinator.list_groups([], ["Share"]))
    assert [(group.group_id, group.protocol_type, group.group_state, group.group_type) for group in listed.groups] == [
        (GROUP, "share", "Stable", "share")
    ]
    (described,) = done(world.coordinator.describe_share_groups([GROUP]))
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 3, 3)
    assert described.assignor_name == "simple"
    (member,) = described.members
    assert (member.client_id, member.client_host, member.subscribed_topic_names) == ("client", "/127.0.0.1", ["t"])
    assert member.assignment.topic_partitions[0].topic_name == "t"
    (missing,) = done(world.coordinator.describe_share_groups(["no"]))
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_empty_group_is_deleted_with_its_state(world: World) -> None:
    join(world, "m")
    assert done(world.coordinator.delete_groups([GROUP]))[0].error_code == ErrorCode.NON_EMPTY_GROUP
    beat(world, "m", -1)
    world.advance(30 * 24 * 3_600_000)
    assert world.group() is not None
    assert done(world.coordinator.delete_groups([GROUP]))[0].error_code == 0
    assert world.group() is None
    assert world.share_states.states == {}
    world.restart()
    assert world.group() is None


def test_failed_deletion_keeps_the_group_and_can_be_retried(world: World) -> None:
    join(world, "m")
    beat(world, "m", -1)
    world.share_states.broken = ErrorCode.NOT_COORDINATOR
    assert done(world.coordinator.delete_groups([GROUP]))[0].error_code == ErrorCode.NOT_COORDINATOR
    assert state_of(world) == ({}, {}, ["t"])
    world.share_states.broken = ErrorCode.NONE
    assert done(world.coordinator.delete_groups([GROUP]))[0].error_code == 0
    assert world.share_states.states == {}


def test_deleted_topic_is_removed_from_the_state(world: World) -> None:
    epoch = join(world, "m")
    world.delete_topic("t")
    assert state_of(world) == ({}, {}, [])
    world.advance(1_000)
    assert assigned(beat(world, "m", epoch)) == {}


def alter(world: World, offsets: dict[tuple[str, int], int]) -> Any:
    topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(
            AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=offset)
        )
    request = AlterShareGroupOffsetsRequest(
        group_id=GROUP,
        topics=[
            AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=topic) for name, topic in topics.items()
        ],
    )
    return done(world.coordinator.alter_share_group_offsets(request))


def test_start_offsets_of_empty_and_new_groups_are_altered(world: World) -> None:
    response = alter(world, {("t", 1): 25, ("t", 9): 1, ("no", 0): 1})
    assert response.error_code == 0
    codes = {
        (topic.topic_name, partition.partition_index): partition.error_code
        for topic in response.responses
        for partition in topic.partitions
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {("t", 1): 0, ("t", 9): unknown, ("no", 0): unknown}
    assert world.share_states.states[SharePartitionKey(GROUP, topic_id(world), 1)].start_offset == 25
    assert state_of(world) == ({}, {"t": [1]}, [])
    join(world, "m")
    assert alter(world, {("t", 1): 30}).error_code == ErrorCode.NON_EMPTY_GROUP
    assert state_of(world)[1] == {"t": [0, 1, 2, 3]}


def test_failed_alter_reports_each_partition(world: World) -> None:
    world.share_states.broken = ErrorCode.FENCED_STATE_EPOCH
    response = alter(world, {("t", 1): 25})
    assert response.responses[0].partitions[0].error_code == ErrorCode.FENCED_STATE_EPOCH


def delete_offsets(world: World, *topics: str) -> Any:
    request = DeleteShareGroupOffsetsRequest(
        group_id=GROUP, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    )
    return done(world.coordinator.delete_share_group_offsets(request))


def test_offsets_of_an_empty_group_are_deleted(world: World) -> None:
    world.create_topic("unread", 1)
    assert delete_offsets(world, "t").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    join(world, "m")
    assert delete_offsets(world, "t").error_code == ErrorCode.NON_EMPTY_GROUP
    beat(world, "m", -1)
    reply = delete_offsets(world, "t", "unread", "no")
    assert reply.error_code == 0
    assert {response.topic_name: response.error_code for response in reply.responses} == {
        "t": 0,
        "unread": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "no": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert state_of(world) == ({}, {}, [])
    assert world.share_states.states == {}


def test_failed_deletion_keeps_topics_in_deleting(world: World) -> None:
    join(world, "m")
    beat(world, "m", -1)
    world.share_states.broken = ErrorCode.COORDINATOR_NOT_AVAILABLE
    response = delete_offsets(world, "t")
    assert response.responses[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state_of(world) == ({}, {}, ["t"])
    world.share_states.broken = ErrorCode.NONE
    assert delete_offsets(world, "t").responses[0].error_code == 0
    assert state_of(world) == ({}, {}, [])


def test_every_response_waits_for_durability(world: World) -> None:
    join(world, "m")
    beat(world, "m", -1)
    world.log.slow = True
    response = world.coordinator.delete_groups([GROUP])
    assert isinstance(response, Pending)
    for _ in range(2):
        assert not response.done
        world.log.waiting.pop().complete(ErrorCode.NONE)
    assert done(response)[0].error_code == 0


def test_records_equal_kafkas(world: World) -> None:
    join(world, "m")
    numbers = [record.key.__schema__.api_key for record in world.records]
    assert numbers == [10, 11, 13, 12, 14, 15, 15, 11, 13, 12, 14]
    states = [record.value for record in world.records if isinstance(record.key, ShareGroupStatePartitionMetadataKey)]
    assert [len(state.initializing_topics) for state in states] == [1, 0]  # type: ignore[union-attr]
