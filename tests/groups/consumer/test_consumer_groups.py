"""Consumer groups (KIP-848): members and coordinator from the first heartbeat to the last."""

from __future__ import annotations

import pytest

from ottla.groups.environment import RequestContext
from ottla.groups.settings import GroupSettings
from ottla.protocol.errors import ErrorCode
from ottla.protocol.record_schemas.group import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from tests.groups.world import GROUP, Consumer, World, answered, code, waits


@pytest.fixture
def world() -> World:
    made = World()
    made.create_topic("t", 4)
    return made


def described(world: World, group: str = GROUP) -> tuple[str, int, int]:
    """Return state, group epoch and assignment epoch."""
    (shown,) = answered(world.coordinator.describe_consumer_groups([group]))
    return shown.group_state, shown.group_epoch, shown.assignment_epoch


def test_first_member_gets_all_partitions(world: World) -> None:
    a = Consumer(world, "a", "t")
    joined = a.join()
    assert (joined.member_id, joined.member_epoch, joined.heartbeat_interval_ms) == ("a", 2, 5_000)
    assert a.owned == {"t": {0, 1, 2, 3}}
    assert described(world) == ("Stable", 2, 2)
    again = a.beat()
    assert (again.member_epoch, again.assignment) == (2, None)


def test_records_of_the_first_heartbeat_equal_kafkas(world: World) -> None:
    Consumer(world, "a", "t").join()
    assert [type(record.key) for record in world.records] == [
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupMetadataKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupCurrentMemberAssignmentKey,
    ]


def test_second_member_gets_partitions_after_their_revocation(world: World) -> None:
    a, b = Consumer(world, "a", "t"), Consumer(world, "b", "t")
    a.join()
    assert b.join().member_epoch == 3
    assert b.owned == {}
    # The first is told to give back two, and stays in its epoch until it says that it did.
    response = a.keep_alive()
    assert (response.member_epoch, a.owned) == (2, {"t": {0, 1}})
    assert described(world) == ("Reconciling", 3, 3)
    assert b.beat().assignment is None
    assert a.keep_alive().member_epoch == 2  # nothing was said of what is owned, so nothing counts as given back
    assert a.beat().member_epoch == 3
    assert b.beat().member_epoch == 3
    assert b.owned == {"t": {2, 3}}
    assert described(world) == ("Stable", 3, 3)


def test_partition_revoked_and_assigned_again_stays(world: World) -> None:
    a, b = Consumer(world, "a", "t"), Consumer(world, "b", "t")
    a.join()
    b.join()
    a.keep_alive()
    b.leave()
    a.beat()
    assert (a.epoch, a.owned) == (4, {"t": {0, 1, 2, 3}})


def test_heartbeat_in_previous_epoch_gets_the_lost_response(world: World) -> None:
    a = Consumer(world, "a", "t")
    a.join()
    b = Consumer(world, "b", "t")
    b.join()
    a.beat()
    a.beat()
    assert a.epoch == 3
    # It did not hear of epoch 3, and says what it owned before.
    repeated = world.consumer_heartbeat("a", 2, owned={"t": {0, 1}})
    assert (repeated.error_code, repeated.member_epoch) == (0, 3)
    fenced = world.consumer_heartbeat("a", 2, owned={"t": {0, 1, 2}})
    assert code(fenced) == ErrorCode.FENCED_MEMBER_EPOCH


def test_rejoin_returns_the_assignment(world: World) -> None:
    a = Consumer(world, "a", "t")
    a.join()
    again = a.join()
    assert (again.error_code, again.member_epoch) == (0, 2)
    assert a.owned == {"t": {0, 1, 2, 3}}


def test_full_request_gets_the_assignment(world: World) -> None:
    a = Consumer(world, "a", "t")
    a.join()
    full = a.beat(topics=["t"], rebalance_ms=60_000)
    assert world.owned(full) == {"t": {0, 1, 2, 3}}


def test_leaving_member_frees_its_partitions(world: World) -> None:
    a, b = Consumer(world, "a", "t"), Consumer(world, "b", "t")
    a.join()
    b.join()
    a.keep_alive()
    a.beat()
    b.beat()
    left = a.leave()
    assert (left.error_code, left.member_epoch) == (0, -1)
    b.beat()
    assert b.owned == {"t": {0, 1, 2, 3}}
    b.leave()
    assert described(world) == ("Empty", 5, 4)


def test_changed_subscription_revokes_at_once(world: World) -> None:
    world.create_topic("u", 2)
    a = Consumer(world, "a", "t")
    a.join()
    changed = a.beat(topics=["t", "u"])
    assert changed.member_epoch == 3
    assert a.owned == {"t": {0, 1, 2, 3}, "u": {0, 1}}
    a.beat(topics=["u"])
    assert (a.epoch, a.owned) == (3, {"u": {0, 1}})
    a.beat()
    assert a.epoch == 4


def test_unsubscribed_topic_is_revoked_before_the_new_target(world: World) -> None:
    world.settings.default_group = GroupSettings(assignment_interval_ms=10_000)
    world.create_topic("u", 1)
    a = Consumer(world, "a", "t", "u")
    a.join()
    a.beat(topics=["u"])
    assert a.owned == {"u": {0}}
    assert described(world) == ("Assigning", 3, 2)
    a.beat()
    world.advance(10_000)
    a.beat()
    assert described(world) == ("Stable", 3, 3)


def test_target_is_computed_once_per_assignment_interval(world: World) -> None:
    world.settings.default_group = GroupSettings(assignment_interval_ms=1_000)
    members = [Consumer(world, name, "t") for name in "abcd"]
    for member in members:
        member.join()
    assert described(world)[1:] == (5, 2)
    assert [member.epoch for member in members] == [2, 2, 2, 2]
    world.advance(1_000)
    for _ in range(3):
        for member in members:
            member.beat()
    assert described(world) == ("Stable", 5, 5)
    assert all(len(member.owned["t"]) == 1 for member in members)


def test_new_partitions_are_assigned(world: World) -> None:
    a = Consumer(world, "a", "t")
    a.join()
    world.change_topic("t", 6)
    a.beat()
    assert (a.epoch, a.owned) == (3, {"t": {0, 1, 2, 3, 4, 5}})


def test_topic_created_later_is_assigned(world: World) -> None:
    a = Consumer(world, "a", "t", "later")
    a.join()
    world.create_topic("later", 1)
    a.beat()
    assert a.owned == {"t": {0, 1, 2, 3}, "later": {0}}


def test_deleted_topic_is_unassigned(world: World) -> None:
    world.create_topic("u", 1)
    a = Consumer(world, "a", "t", "u")
    a.join()
    gone = world.topics.topics["u"].id
    world.delete_topic("u")
    response = world.consumer_heartbeat("a", a.epoch)
    assert [topic_partition.topic_id for topic_partition in response.assignment.topic_partitions] == [
        world.topics.topics["t"].id
    ]
    assert gone not in response.assignment.topic_partitions


def test_topic_recreated_during_reconciliation_is_assigned(world: World) -> None:
    a, b = Consumer(world, "a", "t"), Consumer(world, "b", "t")
    a.join()
    b.join()
    a.beat()
    given_up = a.owned
    assert len(given_up["t"]) == 2
    world.delete_topic("t")
    world.create_topic("t", 4)
    # What the first one keeps, and what it has not yet said to have given up, is of a topic that is no more.
    for _ in range(3):
        a.keep_alive()
        b.beat()
    assert (a.owned, b.owned) == (given_up, {"t": {2, 3}})
    a.owned = {}
    for member in (a, b, a, b):
        member.beat()
    assert (a.owned, b.owned) == ({"t": {0, 1}}, {"t": {2, 3}})
    assert described(world)[0] == "Stable"


def test_changed_racks_bump_the_epoch(world: World) -> None:
    a = Consumer(world, "a", "t", rack="r1")
    a.join()
    world.change_topic("t", 4, racks=("r1", "r2"))
    a.beat()
    assert described(world)[1] == 3


def test_metadata_hash_is_computed_only_when_topics_change(world: World) -> None:
    a = Consumer(world, "a", "t")
    a.join()
    written = len(world.records)
    for _ in range(5):
        world.advance(5_000)
        a.beat()
    assert len(world.records) == written


def test_member_is_fenced_at_its_session_timeout(world: World) -> None:
    a, b = Consumer(world, "a", "t"), Consumer(world, "b", "t")
    a.join()
    b.join()
    world.advance(44_999)
    b.beat()
    world.advance(1)
    assert code(a.beat()) == ErrorCode.UNKNOWN_MEMBER_ID
    b.beat()
    assert b.owned == {"t": {0, 1, 2, 3}}


def test_group_config_overrides_the_session_timeout(world: World) -> None:
    world.settings.groups[GROUP] = GroupSettings(session_timeout_ms=50_000, heartbeat_interval_ms=7_000)
    a = Consumer(world, "a", "t")
    assert a.join().heartbeat_interval_ms == 7_000
    world.advance(49_999)
    assert code(a.beat()) == ErrorCode.NONE


def test_member_that_does_not_revoke_in_time_is_fenced(world: World) -> None:
    a, b = Consumer(world, "a", "t", rebalance_ms=30_000), Consumer(world, "b", "t")
    a.join()
    b.join()
    a.keep_alive()
    for _ in range(3):
        world.advance(9_999)
        assert code(a.keep_alive()) == ErrorCode.NONE
    world.advance(9_999)
    assert code(a.keep_alive()) == ErrorCode.UNKNOWN_MEMBER_ID
    b.beat()
    assert b.owned == {"t": {0, 1, 2, 3}}


def test_preferred_assignor_is_used(world: World) -> None:
    a = Consumer(world, "a", "t", assignor="range")
    a.join()
    (shown,) = answered(world.coordinator.describe_consumer_groups([GROUP]))
    assert shown.assignor_name == "range"
    b, c = Consumer(world, "b", "t", assignor="uniform"), Consumer(world, "c", "t", assignor="uniform")
    b.join()
    c.join()
    (shown,) = answered(world.coordinator.describe_consumer_groups([GROUP]))
    assert shown.assignor_name == "uniform"


def test_version_0_generates_the_member_id(world: World) -> None:
    joined = world.consumer_heartbeat("", 0, topics=["t"], owned={}, rebalance_ms=1_000, version=0)
    assert len(joined.member_id) == 22
    assert world.group().members[joined.member_id].member_epoch == 2


# Static members


def test_static_member_that_leaves_temporarily_keeps_its_partitions(world: World) -> None:
    a, b = Consumer(world, "a", "t", instance="i"), Consumer(world, "b", "t")
    a.join()
    b.join()
    a.settle()
    b.settle()
    left = a.leave(epoch=-2)
    assert (left.error_code, left.member_epoch) == (0, -2)
    b.beat()
    assert b.owned == {"t": {2, 3}}
    back = Consumer(world, "a2", "t", instance="i")
    assert code(back.join()) == ErrorCode.NONE
    assert back.owned == {"t": {0, 1}}
    assert described(world)[0] == "Stable"
    assert list(world.group().members) == ["b", "a2"]


def test_static_member_that_does_not_return_is_fenced(world: World) -> None:
    a = Consumer(world, "a", "t", instance="i")
    a.join()
    a.leave(epoch=-2)
    world.advance(45_000)
    assert world.group().is_empty


def test_returning_static_member_with_new_subscription_bumps_epoch(world: World) -> None:
    world.create_topic("u", 1)
    a = Consumer(world, "a", "t", instance="i")
    a.join()
    a.leave(epoch=-2)
    back = Consumer(world, "b", "u", instance="i")
    back.join()
    back.settle()
    assert back.owned == {"u": {0}}


# Regular expressions


def test_regex_matches_whole_names_of_present_and_later_topics(world: World) -> None:
    world.create_topic("tt", 1)
    world.create_topic("other", 1)
    a = Consumer(world, "a", regex="t+")
    assert a.join().member_epoch == 1
    assert a.owned == {}
    world.advance(1)
    a.beat()
    assert a.owned == {"t": {0, 1, 2, 3}, "tt": {0}}
    world.create_topic("ttt", 1)
    a.beat()
    world.advance(10_001)  # resolved again at most every ten seconds
    a.beat()
    world.advance(1)
    a.beat()
    assert a.owned == {"t": {0, 1, 2, 3}, "tt": {0}, "ttt": {0}}


def test_regex_matches_only_describable_topics(world: World) -> None:
    world.create_topic("tt", 1)
    context = RequestContext(1, describable=lambda names: [name for name in names if name != "tt"])
    from ottla.protocol.messages.k68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id="a", rebalance_timeout_ms=1_000, subscribed_topic_regex="t.*", topic_partitions=[]
    )
    world.coordinator.consumer_group_heartbeat(context, request)
    world.advance(1)
    assert world.owned(world.consumer_heartbeat("a", 1)) == {"t": {0, 1, 2, 3}}


def test_members_share_a_resolved_regex(world: World) -> None:
    a, b = Consumer(world, "a", regex="t"), Consumer(world, "b", regex="t")
    a.join()
    world.advance(1)
    a.beat()
    b.join()
    for member in (a, b, a, b):
        member.beat()
    assert (a.owned, b.owned) == ({"t": {0, 1}}, {"t": {2, 3}})
    assert len(world.group().resolved_regexes) == 1
    a.leave()
    b.leave()
    assert world.group().resolved_regexes == {}


def test_names_and_regex_are_combined(world: World) -> None:
    world.create_topic("u", 1)
    a = Consumer(world, "a", "u", regex="t")
    a.join()
    world.advance(1)
    a.beat()
    assert a.owned == {"u": {0}, "t": {0, 1, 2, 3}}
    a.beat(regex="")
    a.beat()
    assert a.owned == {"u": {0}}
    assert world.group().resolved_regexes == {}


def test_regexes_are_resolved_at_most_every_ten_seconds(world: World) -> None:
    world.create_topic("u", 1)
    a, b = Consumer(world, "a", regex="t"), Consumer(world, "b", regex="u")
    a.join()
    world.advance(1)
    a.beat()
    b.join()
    for _ in range(4):
        world.advance(2_499)
        for member in (a, b):
            member.beat()
        assert b.owned == {}, "its expression is not resolved yet"
    world.advance(10)
    b.beat()
    world.advance(1)
    b.beat()
    assert (a.owned, b.owned) == ({"t": {0, 1, 2, 3}}, {"u": {0}})


def test_regexes_are_resolved_again_after_the_refresh_interval(world: World) -> None:
    a = Consumer(world, "a", regex="t")
    a.join()
    world.advance(1)
    a.beat()
    before = world.group().resolved_regexes["t"].timestamp_ms
    for _ in range(21):
        world.advance(30_000)
        a.beat()
    assert world.group().resolved_regexes["t"].timestamp_ms > before


# Offsets


def test_commit_requires_the_member_epoch(world: World) -> None:
    a = Consumer(world, "a", "t")
    a.join()
    t0 = {("t", 0): 1}
    assert world.commit_code(t0, member="a", generation=2, ids=True) == ErrorCode.NONE
    assert world.commit_code(t0, member="a", generation=3, ids=True) == ErrorCode.STALE_MEMBER_EPOCH
    assert world.commit_code(t0, member="x", generation=2, ids=True) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit_code(t0, member="a", generation=2, ids=True, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert world.commit_code(t0) == ErrorCode.UNKNOWN_MEMBER_ID
    a.leave()
    assert world.commit_code(t0) == ErrorCode.NONE


def test_commit_in_older_epoch_needs_an_older_assignment_epoch(world: World) -> None:
    a, b = Consumer(world, "a", "t"), Consumer(world, "b", "t")
    a.join()
    b.join()
    a.keep_alive()
    a.beat()
    assert a.epoch == 3
    old = {"member": "a", "generation": 2, "ids": True}
    assert world.commit_code({("t", 0): 1}, **old) == ErrorCode.NONE
    assert world.commit_code({("t", 3): 1}, **old) == ErrorCode.STALE_MEMBER_EPOCH
    b.beat()
    late = world.commit_code({("t", 2): 1}, member="b", generation=2, ids=True)
    assert late == ErrorCode.STALE_MEMBER_EPOCH


def test_fetch_requires_the_member_epoch(world: World) -> None:
    Consumer(world, "a", "t").join()
    world.commit({("t", 0): 7}, member="a", generation=2, ids=True)
    assert world.offsets(("t", 0), member="a", epoch=2) == [7]
    assert world.offsets(("t", 0)) == [7]
    assert code(world.fetch(("t", 0), member="a", epoch=1)) == ErrorCode.STALE_MEMBER_EPOCH
    assert code(world.fetch(("t", 0), member="x", epoch=2)) == ErrorCode.UNKNOWN_MEMBER_ID


# The log


def test_reload_keeps_members_epochs_and_assignments(world: World) -> None:
    a, b = Consumer(world, "a", "t"), Consumer(world, "b", "t")
    a.join()
    b.join()
    a.keep_alive()
    world.restart()
    a.beat()
    b.beat()
    assert (a.owned, b.owned) == ({"t": {0, 1}}, {"t": {2, 3}})
    assert described(world) == ("Stable", 3, 3)


def test_timeouts_restart_after_reload(world: World) -> None:
    a, b = Consumer(world, "a", "t", rebalance_ms=10_000), Consumer(world, "b", "t")
    a.join()
    b.join()
    a.keep_alive()
    world.restart()
    world.advance(10_000)
    assert code(a.keep_alive()) == ErrorCode.UNKNOWN_MEMBER_ID
    world.advance(35_000)
    assert code(b.keep_alive()) == ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeat_responds_when_durable(world: World) -> None:
    world.log.slow = True
    joined = world.consumer_heartbeat("a", 0, topics=["t"], owned={}, rebalance_ms=1_000)
    assert waits(joined)
    other = world.consumer_heartbeat("a", 2)
    assert waits(other)
    world.log.sync()
    assert answered(joined).member_epoch == answered(other).member_epoch == 2


def test_heartbeat_that_cannot_be_written_changes_nothing(world: World) -> None:
    world.log.broken = ErrorCode.NOT_ENOUGH_REPLICAS
    failed = world.consumer_heartbeat("a", 0, topics=["t"], owned={}, rebalance_ms=1_000)
    assert code(failed) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.group() is None


def test_empty_group_is_deleted_with_all_its_records(world: World) -> None:
    a = Consumer(world, "a", "t")
    a.join()
    (busy,) = answered(world.coordinator.delete_groups([GROUP]))
    assert busy.error_code == ErrorCode.NON_EMPTY_GROUP
    a.leave()
    (done,) = answered(world.coordinator.delete_groups([GROUP]))
    assert done.error_code == ErrorCode.NONE
    last = {repr(record.key): record.value for record in world.records}
    assert set(last.values()) == {None}
    world.restart()
    assert world.group() is None


def test_group_is_described_with_current_and_target_assignment(world: World) -> None:
    a = Consumer(world, "a", "t", rack="r", instance="i", client="app")
    a.join()
    Consumer(world, "b", "t").join()
    (shown,) = answered(world.coordinator.describe_consumer_groups([GROUP]))
    member = shown.members[0]
    assert (member.member_id, member.client_id, member.client_host) == ("a", "app", "/127.0.0.1")
    assert (member.rack_id, member.instance_id, member.member_type) == ("r", "i", 1)
    assert [
        (topic_partition.topic_name, topic_partition.partitions)
        for topic_partition in member.assignment.topic_partitions
    ] == [("t", [0, 1, 2, 3])]
    assert [
        (topic_partition.topic_name, topic_partition.partitions)
        for topic_partition in member.target_assignment.topic_partitions
    ] == [("t", [0, 1])]
    (classic,) = answered(world.coordinator.describe_groups(RequestContext(6), [GROUP]))
    assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert classic.error_message == "Group g is not a classic group."


# A wall clock that is set back


def test_clock_set_back_delays_no_assignment_and_no_regex(world: World) -> None:
    world.settings.default_group = GroupSettings(assignment_interval_ms=1_000)
    a, b = Consumer(world, "a", "t"), Consumer(world, "b", regex="u.*")
    a.join()
    b.join()
    world.advance(1)
    world.set_back(3_600_000)
    world.create_topic("u2", 1)
    for _ in range(4):
        for member in (a, b):
            member.beat()
        world.advance(1_000)
    assert a.owned == {"t": {0, 1, 2, 3}}
    assert b.owned == {"u2": {0}}
    assert described(world)[0] == "Stable"


def test_clock_set_back_extends_no_session(world: World) -> None:
    a = Consumer(world, "a", "t")
    a.join()
    world.set_back(3_600_000)
    world.advance(45_001)
    assert world.group().members == {}
