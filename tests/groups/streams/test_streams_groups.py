"""Streams groups: join with a topology, task movement, timeouts, topic changes and deletion."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.groups.settings import GroupSettings
from ottla.groups.streams.assignor import NO_TASKS, TaskAssignment
from ottla.groups.streams.group import OwnedTasks, StreamsMember, StreamsMemberState, TaskOwners
from ottla.groups.streams.reconciliation import TaskTarget, reconcile
from ottla.groups.streams.topology import StatusCode
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.k88_streams_group_heartbeat import Endpoint
from tests.groups.streams.members import (
    CONTEXT,
    StreamsClient,
    first,
    joining,
    repartitioned,
    send,
    settle,
    statuses,
    tasks_of,
    topology,
)
from tests.groups.world import GROUP, World, answered, code


@pytest.fixture
def world() -> World:
    world = World()
    world.create_topic("t", 4)
    return world


def at_once(world: World, **settings: int) -> None:
    """Assign without delays and intervals."""
    world.settings.default_group = GroupSettings(
        streams_initial_rebalance_delay_ms=0, streams_assignment_interval_ms=0, **settings
    )


def stable(world: World, *names: str, **options: Any) -> list[StreamsClient]:
    members = [StreamsClient(world, name, **options) for name in names]
    for member in members:
        member.join()
    settle(*members)
    return members


def described(world: World, group: str = GROUP) -> Any:
    return answered(world.coordinator.describe_streams_groups([group]))[0]


# Joining


def test_first_assignment_is_delayed(world: World) -> None:
    joined = first(world)
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "m", 1)
    assert joined.heartbeat_interval_ms == 5_000
    assert (tasks_of(joined.active_tasks), joined.standby_tasks, joined.warmup_tasks) == ({}, [], [])
    assert statuses(joined) == [StatusCode.ASSIGNMENT_DELAYED]
    assert joined.status is not None
    assert joined.status[0].status_detail == "Assignment delayed due to the configured initial rebalance delay."
    assert described(world).group_state == "Assigning"
    world.advance(5_000)
    second = send(world, "m", 1)
    assert (second.member_epoch, tasks_of(second.active_tasks)) == (2, {"0": [0, 1, 2, 3]})
    assert second.status == []
    assert send(world, "m", 2).active_tasks is None
    assert described(world).group_state == "Stable"


def test_delayed_assignment_is_computed_without_a_heartbeat(world: World) -> None:
    first(world, "a")
    first(world, "b")
    world.advance(3_000)
    assert world.group().assignment_epoch == world.group().group_epoch == 3
    tasks = [tasks_of(send(world, member, 1).active_tasks) or {} for member in ("a", "b")]
    assert sorted(task for entry in tasks for task in entry["0"]) == [0, 1, 2, 3]
    assert [len(task["0"]) for task in tasks] == [2, 2]


def test_failed_delayed_assignment_is_done_by_the_next_heartbeat(world: World) -> None:
    first(world, "a")
    first(world, "b")
    world.log.broken = ErrorCode.MESSAGE_TOO_LARGE
    world.advance(3_000)
    refused = send(world, "a", 1)
    assert refused.error_code == ErrorCode.UNKNOWN_SERVER_ERROR, "no longer delayed"
    world.log.broken = None
    assert len((tasks_of(send(world, "a", 1).active_tasks) or {})["0"]) == 2


def test_without_delay_the_first_response_has_tasks(world: World) -> None:
    at_once(world)
    joined = first(world)
    assert (joined.member_epoch, tasks_of(joined.active_tasks), joined.status) == (2, {"0": [0, 1, 2, 3]}, [])


def test_target_is_kept_within_the_assignment_interval(world: World) -> None:
    world.settings.default_group = GroupSettings(streams_initial_rebalance_delay_ms=0)
    first(world, "a")
    early = first(world, "b")
    assert (early.member_epoch, tasks_of(early.active_tasks)) == (2, {})
    assert early.status is not None
    assert early.status[0].status_detail == "Assignment delayed due to the configured assignment interval."
    world.advance(1_000)
    assert send(world, "b", 2).member_epoch == 3


def test_rejoin_returns_the_tasks(world: World) -> None:
    (member,) = stable(world, "m")
    again = member.join()
    assert (again.member_epoch, tasks_of(again.active_tasks)) == (2, {"0": [0, 1, 2, 3]})


def test_changed_member_bumps_the_epoch(world: World) -> None:
    at_once(world)
    first(world)
    assert send(world, "m", 2, rack_id="r").member_epoch == 3
    assert send(world, "m", 3).member_epoch == 3


# Tasks that move


def test_task_moves_after_its_revocation(world: World) -> None:
    at_once(world)
    a, b = StreamsClient(world, "a"), StreamsClient(world, "b")
    a.join()
    b.join()
    assert (b.epoch, b.active) == (3, {})
    assert world.group().members["b"].state is StreamsMemberState.UNRELEASED_TASKS
    held = dict(a.active)
    sender = a.keep_alive()
    assert (sender.member_epoch, a.active) == (2, {"0": [0, 1]})
    assert world.group().members["a"].state is StreamsMemberState.UNREVOKED_TASKS
    b.beat()
    assert b.active == {}
    # It says that it still has them, and then that it does not.
    a.active = held
    a.beat()
    b.beat()
    assert b.active == {}
    a.active = {"0": [0, 1]}
    a.beat()
    assert a.epoch == 3
    b.beat()
    assert b.active == {"0": [2, 3]}
    assert described(world).group_state == "Stable"


def test_leaving_members_tasks_are_reassigned(world: World) -> None:
    a, b = stable(world, "a", "b")
    left = a.leave()
    assert (left.error_code, left.member_id, left.member_epoch, left.status) == (0, "a", -1, [])
    settle(b)
    assert b.active == {"0": [0, 1, 2, 3]}


def test_member_with_very_many_tasks_stays_fast() -> None:
    """Each task is visited once; a quadratic search would take minutes."""
    many = 150_000
    has = StreamsMember("m", member_epoch=1, assigned=OwnedTasks({"0": dict.fromkeys(range(many), 1)}, {}, {}))
    owners = TaskOwners()
    owners.add(has.assigned, has.process_id)
    target = TaskTarget(2, TaskAssignment({"0": tuple(range(1, many + 1))}, {}, {}))
    giving = reconcile(has, target, None, owners)
    assert giving.pending_revocation.active == {"0": {0: 1}}
    owners = TaskOwners()
    owners.add(giving.assigned, giving.process_id)
    done = reconcile(giving, target, NO_TASKS, owners)
    assert done.is_reconciled_to(2)
    assert done.assigned.active == {"0": {**dict.fromkeys(range(1, many), 1), many: 2}}


def test_heartbeat_in_previous_epoch_gets_the_lost_response(world: World) -> None:
    (member,) = stable(world, "m")
    world.change_topic("t", 5)
    before = member.epoch
    send(world, "m", before)
    again = send(world, "m", before, active_tasks=[], standby_tasks=[], warmup_tasks=[])
    assert (again.error_code, again.member_epoch) == (0, before + 1)


def test_standby_tasks_are_on_another_process(world: World) -> None:
    at_once(world, streams_num_standby_replicas=1)
    world.create_topic("g-store-changelog", 4)
    runs = topology("t", changelogs=("g-store-changelog",))
    a, b = stable(world, "a", "b", runs=runs)
    assert (a.active, a.standby) == ({"0": [0, 1]}, {"0": [2, 3]})
    assert (b.active, b.standby) == ({"0": [2, 3]}, {"0": [0, 1]})
    b.leave()
    settle(a)
    assert (a.active, a.standby) == ({"0": [0, 1, 2, 3]}, {})


def test_changed_standby_replicas_bump_the_epoch(world: World) -> None:
    at_once(world)
    world.create_topic("g-store-changelog", 4)
    a, b = stable(world, "a", "b", runs=topology("t", changelogs=("g-store-changelog",)))
    assert (a.standby, b.standby) == ({}, {})
    at_once(world, streams_num_standby_replicas=1)
    settle(a, b)
    assert (a.standby, b.standby) == ({"0": [2, 3]}, {"0": [0, 1]})


# Timeouts


def test_member_is_fenced_at_its_session_timeout(world: World) -> None:
    a, b = stable(world, "a", "b")
    for _ in range(3):
        world.advance(15_000)
        b.beat()
    assert list(world.group().members) == ["b"]
    assert a.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    settle(b)
    assert b.active == {"0": [0, 1, 2, 3]}


def test_member_that_does_not_revoke_in_time_is_fenced(world: World) -> None:
    at_once(world)
    a, b = StreamsClient(world, "a"), StreamsClient(world, "b")
    a.join()
    b.join()
    for _ in range(7):
        a.keep_alive()
        world.advance(10_000)
        b.beat()
    assert list(world.group().members) == ["b"]


def test_reload_during_rebalance_keeps_the_group(world: World) -> None:
    at_once(world)
    a, b = StreamsClient(world, "a"), StreamsClient(world, "b")
    a.join()
    b.join()
    a.keep_alive()
    world.restart()
    assert world.group().members["a"].state is StreamsMemberState.UNREVOKED_TASKS
    b.beat()
    assert b.active == {}
    a.beat()
    b.beat()
    assert (a.active, b.active) == ({"0": [0, 1]}, {"0": [2, 3]})
    world.restart()
    world.advance(46_000)
    assert world.group().is_empty


def test_rebalance_timeout_restarts_after_reload(world: World) -> None:
    at_once(world)
    a, b = StreamsClient(world, "a"), StreamsClient(world, "b")
    a.join()
    b.join()
    a.keep_alive()
    world.restart()
    for _ in range(7):
        a.keep_alive()
        world.advance(10_000)
    assert "a" not in world.group().members


# Topologies and topics


def test_missing_source_topics_are_reported_until_created(world: World) -> None:
    at_once(world)
    joined = first(world, topology=topology("not-there"))
    assert (tasks_of(joined.active_tasks), statuses(joined)) == ({}, [StatusCode.MISSING_SOURCE_TOPICS])
    assert described(world).group_state == "NotReady"
    world.create_topic("not-there", 2)
    result = send(world, "m", joined.member_epoch)
    assert (tasks_of(result.active_tasks), result.status) == ({"0": [0, 1]}, [])


def test_missing_internal_topics_are_returned_for_creation(world: World) -> None:
    at_once(world)
    request = joining(topology=repartitioned("t", "g-between-repartition", 3))
    beat: Any = world.coordinator.streams_group_heartbeat(CONTEXT, request)
    assert statuses(beat.response) == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert [(topic.name, topic.partition_count) for topic in beat.topics_to_create] == [("g-between-repartition", 3)]
    world.create_topic("g-between-repartition", 3)
    result = send(world, "m", beat.response.member_epoch)
    assert tasks_of(result.active_tasks) == {"0": [0, 1, 2, 3], "1": [0, 1, 2]}


def test_internal_topic_with_wrong_partition_count_is_reported(world: World) -> None:
    world.create_topic("g-store-changelog", 3)
    joined = first(world, topology=topology("t", changelogs=("g-store-changelog",)))
    assert StatusCode.INCORRECTLY_PARTITIONED_TOPICS in statuses(joined)


def test_new_partitions_add_tasks(world: World) -> None:
    (member,) = stable(world, "m")
    world.change_topic("t", 6)
    settle(member)
    assert member.active == {"0": [0, 1, 2, 3, 4, 5]}


def test_deleted_source_topic_removes_its_tasks(world: World) -> None:
    (member,) = stable(world, "m")
    world.delete_topic("t")
    response = member.beat()
    assert statuses(response) == [StatusCode.MISSING_SOURCE_TOPICS]
    settle(member)
    assert member.active == {}


def test_stale_topology_is_reported(world: World) -> None:
    stable(world, "a", runs=topology("t", epoch=3))
    late = first(world, "b", topology=topology("other", epoch=2))
    assert StatusCode.STALE_TOPOLOGY in statuses(late)
    assert late.status is not None
    assert late.status[0].status_detail == "The member's topology epoch 2 is behind the group's topology epoch 3."


def test_shutdown_request_is_sent_to_all_members(world: World) -> None:
    a, b = stable(world, "a", "b")
    sender = a.beat(shutdown_application=True)
    assert statuses(sender) == [StatusCode.SHUTDOWN_APPLICATION]
    response = b.beat()
    assert response.status is not None
    assert response.status[0].status_detail == (
        "Streams group member a encountered a fatal error and requested a shutdown for the entire application."
    )
    a.leave()
    b.leave()
    again = StreamsClient(world, "c")
    assert statuses(again.join()) == [StatusCode.ASSIGNMENT_DELAYED]


def test_leaving_member_may_request_a_shutdown(world: World) -> None:
    a, b = stable(world, "a", "b")
    a.leave(shutdown_application=True)
    assert StatusCode.SHUTDOWN_APPLICATION in statuses(b.beat())


def test_endpoints_have_the_partitions_of_their_tasks(world: World) -> None:
    at_once(world)
    a = StreamsClient(world, "a", endpoint=Endpoint(host="one", port=1))
    b = StreamsClient(world, "b", endpoint=Endpoint(host="two", port=2))
    a.join()
    b.join()
    settle(a, b)
    response = send(world, "b", b.epoch, endpoint_information_epoch=-1)
    assert response.partitions_by_user_endpoint is not None
    assert {
        (endpoint.user_endpoint.host, endpoint.user_endpoint.port): [
            (partition.topic, partition.partitions) for partition in endpoint.active_partitions
        ]
        for endpoint in response.partitions_by_user_endpoint
    } == {("one", 1): [("t", [0, 1])], ("two", 2): [("t", [2, 3])]}
    same = send(world, "b", b.epoch, endpoint_information_epoch=response.endpoint_information_epoch)
    assert same.partitions_by_user_endpoint is None


def test_deleted_topics_are_left_out_of_endpoints(world: World) -> None:
    at_once(world)
    a = StreamsClient(world, "a", endpoint=Endpoint(host="one", port=1))
    b = StreamsClient(world, "b")
    a.join()
    b.join()
    settle(a, b)
    world.delete_topic("t")
    response = send(world, "b", b.epoch, endpoint_information_epoch=-1)
    assert StatusCode.MISSING_SOURCE_TOPICS in statuses(response)
    assert response.partitions_by_user_endpoint is not None
    assert [endpoint.active_partitions for endpoint in response.partitions_by_user_endpoint] == [[]]


# Offsets


def test_commit_requires_the_member_epoch(world: World) -> None:
    a, b = stable(world, "a", "b")
    assert world.commit_code({("t", 0): 5}, member="a", generation=a.epoch) is ErrorCode.NONE
    assert world.commit_code({("t", 0): 6}) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit_code({("t", 0): 6}, member="x", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit_code({("t", 0): 6}, member="a", generation=a.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert world.commit_code({("t", 0): 6}, member="a", generation=a.epoch, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert world.offsets(("t", 0), member="b", epoch=b.epoch) == [5]
    assert world.fetch(("t", 0), member="b", epoch=b.epoch - 1).error_code == ErrorCode.STALE_MEMBER_EPOCH
    assert world.fetch(("t", 0), member="x", epoch=1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.offsets(("t", 0)) == [5]


def test_commit_in_older_epoch_needs_an_older_assignment_epoch(world: World) -> None:
    at_once(world)
    a, b = StreamsClient(world, "a"), StreamsClient(world, "b")
    a.join()
    old = a.epoch
    b.join()
    a.beat()
    a.beat()
    b.beat()
    assert a.epoch > old
    assert world.commit_code({("t", 0): 5}, member="a", generation=old) is ErrorCode.NONE
    assert world.commit_code({("t", 3): 5}, member="a", generation=old) is ErrorCode.STALE_MEMBER_EPOCH
    assert world.commit_code({("t", 3): 5}, member="b", generation=old) is ErrorCode.STALE_MEMBER_EPOCH
    assert world.commit_code({("else", 0): 5}, member="a", generation=old) is ErrorCode.STALE_MEMBER_EPOCH


def txn_commit(world: World, member: str, epoch: int) -> ErrorCode:
    request = TxnOffsetCommitRequest(
        group_id=GROUP,
        producer_id=1,
        member_id=member,
        generation_id=epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t", partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)]
            )
        ],
    )
    response: Any = answered(world.coordinator.commit_transactional_offsets(CONTEXT, request))
    return ErrorCode(response.topics[0].partitions[0].error_code)


def test_transactional_commit_requires_the_member_epoch(world: World) -> None:
    (member,) = stable(world, "m")
    assert txn_commit(world, "m", member.epoch + 1) is ErrorCode.ILLEGAL_GENERATION
    assert txn_commit(world, "x", member.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert txn_commit(world, "m", member.epoch) is ErrorCode.NONE
    world.coordinator.complete_transaction(0, 1, committed=True)
    assert world.offsets(("t", 0)) == [7]


def delete_offset(world: World, topic: str) -> ErrorCode:
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=[OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])],
    )
    response: Any = answered(world.coordinator.delete_offsets(CONTEXT, request))
    return ErrorCode(response.topics[0].partitions[0].error_code)


def test_offsets_of_source_topics_do_not_expire(world: World) -> None:
    (member,) = stable(world, "m")
    world.commit({("t", 0): 5, ("u", 0): 5}, member="m", generation=member.epoch)
    assert delete_offset(world, "t") is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete_offset(world, "u") is ErrorCode.NONE
    assert world.offsets(("t", 0), ("u", 0)) == [5, -1]
    member.leave()
    assert delete_offset(world, "t") is ErrorCode.NONE


def test_empty_group_expires_with_its_offsets(world: World) -> None:
    (member,) = stable(world, "m")
    world.commit({("t", 0): 5}, member="m", generation=member.epoch)
    for _ in range(8 * 24):
        world.advance(30_000)
        member.beat()
    assert world.offsets(("t", 0)) == [5]
    member.leave()
    world.advance(8 * 24 * 3_600_000)
    assert world.group() is None


# The group


def test_group_is_listed_and_deleted_when_empty(world: World) -> None:
    (member,) = stable(world, "m")
    listed: Any = answered(world.coordinator.list_groups([], ["streams"]))
    assert [(group.group_id, group.protocol_type, group.group_state, group.group_type) for group in listed.groups] == [
        (GROUP, "streams", "Stable", "streams")
    ]
    assert not answered(world.coordinator.list_groups([], ["consumer"])).groups
    assert answered(world.coordinator.delete_groups([GROUP]))[0].error_code == ErrorCode.NON_EMPTY_GROUP
    world.commit({("t", 0): 5}, member="m", generation=member.epoch)
    member.leave()
    assert answered(world.coordinator.delete_groups([GROUP]))[0].error_code == ErrorCode.NONE
    assert world.group() is None
    world.restart()
    assert world.group() is None
    assert world.offsets(("t", 0)) == [-1]


def test_not_ready_group_is_listed_by_state_filter(world: World) -> None:
    first(world, topology=topology("not-there"))
    assert len(answered(world.coordinator.list_groups(["Not_Ready"], [])).groups) == 1
    assert len(answered(world.coordinator.list_groups(["NotReady"], [])).groups) == 0


def test_description_has_topology_and_tasks(world: World) -> None:
    world.create_topic("g-store-changelog", 4)
    runs = topology("t", epoch=0, changelogs=("g-store-changelog",))
    stable(world, "m", runs=runs, process="p", endpoint=Endpoint(host="h", port=9))
    group = described(world)
    assert (group.group_epoch, group.assignment_epoch, group.group_state) == (2, 2, "Stable")
    assert group.topology.subtopologies[0].source_topics == ["t"]
    assert group.topology.subtopologies[0].state_changelog_topics[0].partitions == 4
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.process_id, member.topology_epoch) == ("m", 2, "p", 0)
    assert (member.user_endpoint.host, member.user_endpoint.port, member.is_classic) == ("h", 9, False)
    assert tasks_of(member.assignment.active_tasks) == tasks_of(member.target_assignment.active_tasks)
    assert tasks_of(member.assignment.active_tasks) == {"0": [0, 1, 2, 3]}
    world.restart()
    # Until a heartbeat resolves it again, it is shown as it was sent.
    assert described(world).topology.subtopologies[0].state_changelog_topics[0].partitions == 0


def test_requests_of_other_protocols_fail(world: World) -> None:
    stable(world, "m")
    assert answered(world.coordinator.describe_consumer_groups([GROUP]))[0].error_message == (
        f"Group {GROUP} is not a consumer group."
    )
    assert answered(world.coordinator.describe_share_groups([GROUP]))[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert answered(world.coordinator.describe_groups(CONTEXT, [GROUP]))[0].group_state == "Dead"
    assert world.consumer_heartbeat("c", 0, topics=["t"], owned={}, rebalance_ms=1).error_code == (
        ErrorCode.GROUP_ID_NOT_FOUND
    )
    assert code(world.join()) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(world.sync("m", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.heartbeat("m", 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_description_of_unknown_group_fails(world: World) -> None:
    missing = described(world)
    assert (missing.error_code, missing.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, f"Group {GROUP} not found.")
    world.consumer_heartbeat("c", 0, topics=["t"], owned={}, rebalance_ms=1)
    assert described(world).error_message == f"Group {GROUP} is not a streams group."


# Other kinds of groups


def test_empty_classic_group_becomes_a_streams_group(world: World) -> None:
    (member,) = world.stable_group("a")
    assert world.commit_code({("t", 0): 5}, member=member.id, generation=member.generation) is ErrorCode.NONE
    world.leave((member.id, None))
    at_once(world)
    joined = first(world)
    assert (joined.error_code, tasks_of(joined.active_tasks)) == (0, {"0": [0, 1, 2, 3]})
    assert world.group().type == "streams"
    assert world.offsets(("t", 0)) == [5]
    world.restart()
    assert (world.group().type, world.offsets(("t", 0))) == ("streams", [5])


def test_classic_group_with_members_is_kept(world: World) -> None:
    world.stable_group("a")
    assert first(world).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_empty_streams_group_becomes_a_classic_group(world: World) -> None:
    (member,) = stable(world, "m")
    world.commit({("t", 0): 5}, member="m", generation=member.epoch)
    member.leave()
    joined = world.enter()
    world.advance(1)
    assert joined.response.error_code == ErrorCode.NONE
    world.sync(joined.id, joined.response.generation_id, {joined.id: b""})
    assert (world.group().type, world.offsets(("t", 0))) == ("classic", [5])
    world.restart()
    assert (world.group().type, world.offsets(("t", 0))) == ("classic", [5])


def test_empty_streams_group_refuses_consumer_members(world: World) -> None:
    (member,) = stable(world, "m")
    member.leave()
    response = world.consumer_heartbeat("c", 0, topics=["t"], owned={}, rebalance_ms=1)
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND


# Writing


def test_heartbeat_that_cannot_be_written_changes_nothing(world: World) -> None:
    at_once(world)
    world.log.broken = ErrorCode.NOT_ENOUGH_REPLICAS
    assert first(world).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.group() is None
    world.log.broken = None
    assert first(world).error_code == ErrorCode.NONE
    world.log.broken = ErrorCode.NOT_ENOUGH_REPLICAS
    world.change_topic("t", 5)
    assert send(world, "m", 2).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.log.broken = None
    assert tasks_of(send(world, "m", 2).active_tasks) == {"0": [0, 1, 2, 3, 4]}


def test_response_waits_for_durability(world: World) -> None:
    world.log.slow = True
    response = world.coordinator.streams_group_heartbeat(CONTEXT, joining())
    assert isinstance(response, Pending)
    assert not response.done
    world.log.sync()
    assert response.response.response.member_epoch == 1
