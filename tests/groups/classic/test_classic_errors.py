"""Classic groups: one test per invalid request, with Kafka's error code."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from tests.groups.world import Member, World, answered, code, waits


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def member(world: World) -> Member:
    (only,) = world.stable_group("a")
    return only


def test_empty_group_id_is_invalid(world: World) -> None:
    assert code(world.join(group="")) == ErrorCode.INVALID_GROUP_ID
    assert code(world.sync("m", 1, group="")) == ErrorCode.INVALID_GROUP_ID
    assert code(world.heartbeat("m", 1, group="")) == ErrorCode.INVALID_GROUP_ID
    assert code(world.leave(("m", None), group="")) == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, 0, -1])
def test_session_timeout_out_of_bounds_is_invalid(world: World, session_ms: int) -> None:
    response = world.join("m", session_ms=session_ms)
    assert code(response) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert response.member_id == "m"


def test_unknown_member_id_fails(world: World, member: Member) -> None:
    assert code(world.join("nobody", group="new")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.join("nobody")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.sync("nobody", 1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.heartbeat("nobody", 1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.leave(("nobody", None)).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_unknown_group_fails(world: World) -> None:
    assert code(world.sync("m", 1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.heartbeat("m", 1)) == ErrorCode.UNKNOWN_MEMBER_ID
    left = world.leave(("m", None), ("", "i"))
    assert code(left) == ErrorCode.NONE
    assert [member.error_code for member in left.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2


def test_sync_with_empty_group_fails(world: World, member: Member) -> None:
    world.leave((member.id, None))
    assert code(world.sync(member.id, 2)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.heartbeat(member.id, 2)) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("generation", [0, 2, -1])
def test_other_generation_fails(world: World, member: Member, generation: int) -> None:
    assert code(world.sync(member.id, generation)) == ErrorCode.ILLEGAL_GENERATION
    assert code(world.heartbeat(member.id, generation)) == ErrorCode.ILLEGAL_GENERATION


def test_other_protocol_fails(world: World, member: Member) -> None:
    assert code(world.sync(member.id, 1, protocol="sticky")) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(world.sync(member.id, 1, protocol_type="connect")) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(world.sync(member.id, 1, protocol=None, protocol_type=None)) == ErrorCode.NONE


def test_join_without_a_shared_protocol_fails(world: World, member: Member) -> None:
    refused = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(world.join(protocols=[("sticky", b"")])) == refused
    assert code(world.join(protocol_type="connect")) == refused
    known = world.join(member.id, protocols=[("sticky", b"")])
    assert code(known) == refused
    assert known.member_id == member.id


def test_join_without_protocols_fails(world: World) -> None:
    assert code(world.join(protocols=[], group="new")) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(world.join(protocol_type="", group="other")) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_duplicate_protocol_counts_once(world: World) -> None:
    join = world.enter(protocols=[("range", b"1"), ("range", b"2")])
    world.advance(0)
    assert join.response.members[0].metadata == b"1"


def test_join_with_100000_protocols_stays_fast(world: World) -> None:
    """Each protocol is visited once; comparing all pairs would take minutes."""
    names = [f"protocol-{number}" for number in range(100_000)]
    first = world.enter(protocols=[(name, b"") for name in names])
    world.advance(0)
    strange = [(name.upper(), b"") for name in names]
    assert code(world.join(protocols=strange)) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    second = world.enter(protocols=[*strange, (names[-1], b"")], client="b")
    world.join(first.id, protocols=[(name, b"") for name in names])
    assert second.response.protocol_name == names[-1]


def test_group_with_1000_members_rebalances(world: World) -> None:
    members = world.stable_group(*(f"m-{number}" for number in range(1_000)))
    assert {member.assignment.response.assignment for member in members[1:]} == {
        f"m-{number}".encode() for number in range(1, 1_000)
    }
    world.leave(*((member.id, None) for member in members))
    assert world.group().state_name == "Empty"
    assert world.group().protocol_counts == {}


def test_sync_during_rebalance_fails(world: World, member: Member) -> None:
    world.enter(client="b")
    assert code(world.sync(member.id, 1)) == ErrorCode.REBALANCE_IN_PROGRESS


def test_unknown_instance_id_fails(world: World, member: Member) -> None:
    assert code(world.join(member.id, instance="i")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.sync(member.id, 1, instance="i")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.heartbeat(member.id, 1, instance="i")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.leave((member.id, "i")).members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_instance_id_of_another_member_is_fenced(world: World) -> None:
    join = world.join(instance="i")
    world.advance(0)
    assert code(join) == ErrorCode.NONE
    fenced = world.join("somebody", instance="i")
    assert code(fenced) == ErrorCode.FENCED_INSTANCE_ID
    assert fenced.protocol_name is None
    assert code(world.sync("somebody", 1, instance="i")) == ErrorCode.FENCED_INSTANCE_ID
    assert code(world.heartbeat("somebody", 1, instance="i")) == ErrorCode.FENCED_INSTANCE_ID
    assert world.leave(("somebody", "i")).members[0].error_code == ErrorCode.FENCED_INSTANCE_ID


def test_instance_id_with_a_dynamic_members_id_fails(world: World) -> None:
    sent_away = world.join()
    assert code(world.join(sent_away.member_id, instance="i")) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_join_of_a_leaving_member_fails(world: World) -> None:
    first, second = world.stable_group("a", "b")
    waiting = world.join(first.id)
    assert waits(waiting)
    world.leave((first.id, None))
    assert code(waiting) == ErrorCode.UNKNOWN_MEMBER_ID
    joins = [world.join(entry) for entry in (second.id,)]
    generation = answered(joins[0]).generation_id
    assert generation == 2


def test_sync_of_a_leaving_member_fails(world: World) -> None:
    first, second = world.stable_group("a", "b")
    joins = [world.join(first.id), world.join(second.id)]
    syncing = world.sync(second.id, answered(joins[0]).generation_id)
    world.leave((second.id, None))
    assert code(syncing) == ErrorCode.UNKNOWN_MEMBER_ID


def test_unloaded_partition_is_not_coordinator(world: World) -> None:
    world.coordinator.unload(0)
    assert code(world.join()) == ErrorCode.NOT_COORDINATOR
    assert code(world.sync("m", 1)) == ErrorCode.NOT_COORDINATOR
    assert code(world.heartbeat("m", 1)) == ErrorCode.NOT_COORDINATOR
    assert code(world.leave(("m", None))) == ErrorCode.NOT_COORDINATOR
    assert world.commit_code({("t", 0): 1}) == ErrorCode.NOT_COORDINATOR
    assert code(world.fetch(("t", 0))) == ErrorCode.NOT_COORDINATOR
    assert world.coordinator.delete_groups(["g"])[0].error_code == ErrorCode.NOT_COORDINATOR


def test_loading_partition_accepts_heartbeats_only(world: World) -> None:
    loading = world.coordinator.begin_loading(0)
    assert code(world.join()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert code(world.sync("m", 1)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert code(world.heartbeat("m", 1)) == ErrorCode.NONE
    assert world.commit_code({("t", 0): 1}) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert code(world.coordinator.list_groups([], [])) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    loading.mark_loaded()
    assert code(world.join()) == ErrorCode.MEMBER_ID_REQUIRED


def test_new_group_that_cannot_be_appended_is_discarded(world: World) -> None:
    world.configure(initial_rebalance_delay_ms=3_000)
    world.log.broken = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(world.join(version=3)) == ErrorCode.NOT_COORDINATOR
    assert world.group() is None
    world.log.broken = None
    world.advance(4_000)
    assert world.group() is None
    joined = world.join(version=3)
    world.advance(3_000)
    assert (code(joined), answered(joined).generation_id) == (ErrorCode.NONE, 1)


def test_new_group_that_is_not_durable_fails_all_its_joins(world: World) -> None:
    world.configure(initial_rebalance_delay_ms=3_000)
    world.log.slow = True
    joins = [world.join(version=3), world.join(version=3)]
    assert all(waits(join) for join in joins)
    world.log.sync(ErrorCode.KAFKA_STORAGE_ERROR)
    assert [code(join) for join in joins] == [ErrorCode.NOT_COORDINATOR] * 2
    world.advance(4_000)
    assert world.group() is None


def test_join_fails_once_with_the_error_of_an_earlier_write(world: World, member: Member) -> None:
    world.log.slow = True
    world.commit({("t", 0): 1}, member=member.id, generation=1)
    early = world.join(client="b", version=3)
    assert waits(early)
    world.log.sync(ErrorCode.KAFKA_STORAGE_ERROR)
    late = world.join(version=3)
    assert [code(join) for join in (early, late)] == [ErrorCode.NOT_COORDINATOR] * 2
    world.advance(600_000)
    world.coordinator.unload_all()
