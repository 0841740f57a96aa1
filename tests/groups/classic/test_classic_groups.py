"""Classic groups: members and coordinator from the first join to the last leave."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.record_schemas.group import GroupMetadataKey, GroupMetadataValue
from tests.groups.world import GROUP, World, answered, code, subscription, waits


@pytest.fixture
def world() -> World:
    return World()


def test_member_joins_leads_syncs_and_sends_heartbeats(world: World) -> None:
    sent_away = world.join(client="app")
    assert code(sent_away) == ErrorCode.MEMBER_ID_REQUIRED
    assert sent_away.member_id.startswith("app-")

    join = world.join(sent_away.member_id, client="app")
    assert waits(join)
    world.advance(0)
    joined = answered(join)
    assert joined.error_code == 0
    assert joined.generation_id == 1
    assert joined.protocol_name == "range"
    assert joined.protocol_type == "consumer"
    assert joined.leader == joined.member_id == sent_away.member_id
    assert [(member.member_id, member.metadata) for member in joined.members] == [(joined.member_id, b"m")]
    assert world.group().state_name == "CompletingRebalance"

    synced = world.sync(joined.member_id, 1, {joined.member_id: b"all"})
    assert synced.assignment == b"all"
    assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    assert world.group().state_name == "Stable"
    assert code(world.heartbeat(joined.member_id, 1)) == ErrorCode.NONE

    assert code(world.leave((joined.member_id, None))) == ErrorCode.NONE
    assert world.group().state_name == "Empty"
    assert world.group().generation_id == 2


def test_join_before_version_4_needs_no_member_id(world: World) -> None:
    join = world.join(version=3)
    world.advance(0)
    assert answered(join).generation_id == 1


def test_initial_rebalance_is_extended_while_members_join(world: World) -> None:
    world.configure(initial_rebalance_delay_ms=3_000)
    first = world.enter()
    world.advance(2_000)
    second = world.enter()
    world.advance(1_000)  # the delay of the first is over, but somebody came meanwhile
    assert waits(first.answer)
    world.advance(3_000)
    assert first.response.generation_id == second.response.generation_id == 1
    assert {member.member_id for member in first.response.members} == {first.id, second.id}
    assert second.response.members == []


def test_initial_rebalance_ends_at_the_rebalance_timeout(world: World) -> None:
    world.configure(initial_rebalance_delay_ms=3_000)
    first = world.enter(rebalance_ms=5_000)
    for _ in range(4):
        world.advance(1_500)
        world.enter(rebalance_ms=5_000)
    world.advance(500)
    assert first.response.generation_id == 1


def test_second_member_starts_a_rebalance(world: World) -> None:
    (first,) = world.stable_group("a")
    second = world.enter(client="b")
    assert code(world.heartbeat(first.id, 1)) == ErrorCode.REBALANCE_IN_PROGRESS
    again = world.join(first.id)
    assert answered(again).generation_id == second.response.generation_id == 2
    assert {member.member_id for member in answered(again).members} == {first.id, second.id}

    follower = world.sync(second.id, 2)
    assert waits(follower)
    leader = world.sync(first.id, 2, {first.id: b"1", second.id: b"2"})
    assert (answered(leader).assignment, answered(follower).assignment) == (b"1", b"2")


def test_member_that_the_leader_omits_gets_no_partitions(world: World) -> None:
    first, second = world.stable_group("a", "b")
    again = [world.join(second.id, protocols=[("range", b"new")]), world.join(first.id)]
    generation = answered(again[0]).generation_id
    leader = answered(again[0]).leader
    other = first.id if leader == second.id else second.id
    follower = world.sync(other, generation)
    world.sync(leader, generation, {leader: b"all"})
    assert answered(follower).assignment == b""


def test_unchanged_rejoin_of_a_follower_keeps_the_generation(world: World) -> None:
    _, follower = world.stable_group("a", "b")
    again = answered(world.join(follower.id))
    assert again.generation_id == follower.generation
    assert world.group().state_name == "Stable"


def test_rejoin_of_the_leader_starts_a_rebalance(world: World) -> None:
    leader, _ = world.stable_group("a", "b")
    assert waits(world.join(leader.id))
    assert world.group().state_name == "PreparingRebalance"


def test_changed_metadata_of_a_follower_starts_a_rebalance(world: World) -> None:
    _, follower = world.stable_group("a", "b")
    assert waits(world.join(follower.id, protocols=[("range", b"other")]))
    assert world.group().state_name == "PreparingRebalance"


def test_rejoin_while_completing_repeats_the_response_unless_changed(world: World) -> None:
    member = world.enter()
    world.advance(0)
    repeated = answered(world.join(member.id))
    assert repeated == member.response
    again = world.join(member.id, protocols=[("range", b"other")])
    assert answered(again).generation_id == 2


def test_rebalance_fails_waiting_syncs(world: World) -> None:
    first, second = world.stable_group("a", "b")
    joins = [world.join(first.id), world.join(second.id)]
    generation = answered(joins[0]).generation_id
    follower = world.sync(second.id, generation)
    world.enter(client="c")
    assert code(follower) == ErrorCode.REBALANCE_IN_PROGRESS


def test_protocol_with_most_votes_is_selected(world: World) -> None:
    wants = [
        [("sticky", b""), ("range", b""), ("roundrobin", b"")],
        [("roundrobin", b""), ("range", b"")],
        [("roundrobin", b""), ("range", b"")],
    ]
    joins = [world.enter(protocols=protocols) for protocols in wants]
    world.advance(0)
    assert {member.response.protocol_name for member in joins} == {"roundrobin"}


def test_member_that_misses_the_rebalance_timeout_is_evicted(world: World) -> None:
    first, second = world.stable_group("a", "b", rebalance_ms=30_000, session_ms=60_000)
    again = world.join(first.id, rebalance_ms=30_000)
    world.advance(29_999)
    assert waits(again)
    world.advance(1)
    assert answered(again).generation_id == 2
    assert [member.member_id for member in answered(again).members] == [first.id]
    assert code(world.heartbeat(second.id, 1)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_evicted_leader_is_replaced(world: World) -> None:
    leader, follower = world.stable_group("a", "b", rebalance_ms=30_000, session_ms=60_000)
    again = world.join(follower.id, protocols=[("range", b"x")], rebalance_ms=30_000, session_ms=60_000)
    world.advance(30_000)
    assert answered(again).leader == follower.id
    assert code(world.sync(leader.id, 2)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_does_not_sync_in_time_is_evicted(world: World) -> None:
    first, second = world.stable_group("a", "b", rebalance_ms=20_000, session_ms=60_000)
    joins = [world.join(member.id, rebalance_ms=20_000, session_ms=60_000) for member in (first, second)]
    assert answered(joins[0]).generation_id == 2
    world.sync(first.id, 2, {first.id: b"1", second.id: b"2"})
    world.advance(20_000)
    assert code(world.heartbeat(second.id, 2)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.heartbeat(first.id, 2)) == ErrorCode.REBALANCE_IN_PROGRESS


def test_member_is_evicted_at_its_session_timeout(world: World) -> None:
    first, second = world.stable_group("a", "b", session_ms=10_000)
    world.advance(6_000)
    world.heartbeat(first.id, first.generation)
    world.advance(4_000)
    assert code(world.heartbeat(second.id, second.generation)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.heartbeat(first.id, first.generation)) == ErrorCode.REBALANCE_IN_PROGRESS


def test_wall_clock_set_back_changes_no_timeout(world: World) -> None:
    first, _ = world.stable_group("a", "b")
    world.set_back(3_600_000)
    world.advance(9_000)
    world.heartbeat(first.id, 1)
    world.advance(1_001)
    assert list(world.group().members) == [first.id]
    joined = world.join(first.id)
    assert code(joined) == ErrorCode.NONE


def test_waiting_join_keeps_the_session_except_of_a_new_member(world: World) -> None:
    (first,) = world.stable_group("a", session_ms=1_800_000, rebalance_ms=1_800_000)
    new = world.enter(client="b", session_ms=10_000, rebalance_ms=1_800_000)
    world.advance(60_000)
    assert waits(new.answer)
    world.advance(240_000)
    assert code(new.answer) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.heartbeat(first.id, 1)) == ErrorCode.REBALANCE_IN_PROGRESS


def test_member_id_that_is_never_used_does_not_block_a_rebalance(world: World) -> None:
    (first,) = world.stable_group("a", session_ms=60_000)
    world.join(client="ghost", session_ms=10_000)
    again = world.join(first.id)
    assert waits(again)
    world.advance(10_000)
    assert answered(again).generation_id == 2


def test_pending_member_can_leave(world: World) -> None:
    (first,) = world.stable_group("a")
    ghost = world.join(client="ghost")
    again = world.join(first.id)
    assert code(world.leave((ghost.member_id, None))) == ErrorCode.NONE
    assert answered(again).generation_id == 2


def test_batched_leave_has_a_result_per_member(world: World) -> None:
    first, second = world.stable_group("a", "b")
    left = world.leave((first.id, None), ("nobody", None), (second.id, None))
    assert [ErrorCode(member.error_code) for member in left.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert world.group().state_name == "Empty"


def test_full_group_refuses_a_member(world: World) -> None:
    world.configure(max_size=1)
    world.stable_group("a")
    assert code(world.join(version=3)) == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_joins_beyond_max_size_are_refused(world: World) -> None:
    world.configure(max_size=1, initial_rebalance_delay_ms=3_000)
    first, second = world.join(version=3), world.join(version=3)
    assert code(second) == ErrorCode.GROUP_MAX_SIZE_REACHED
    world.advance(3_000)
    assert code(first) == ErrorCode.NONE


def test_cancelled_joins_leave_no_members_and_timers(world: World) -> None:
    """The coordinator does not see closed connections; session and rebalance timeouts evict their members."""
    world.configure(initial_rebalance_delay_ms=3_000)
    (leader,) = world.stable_group("a", delay_ms=3_000)
    for number in range(500):
        world.join(client=f"never-back-{number}")
        world.join(version=3).cancel()
        world.join(group=f"g-{number}", version=3).cancel()
    for _ in range(40):
        world.advance(8_000)
        joined = world.join(leader.id, session_ms=10_000)
        if waits(joined):
            joined.cancel()
    world.advance(600_000)
    shard = world.coordinator.shard(0)
    assert shard is not None
    assert all(group.is_empty and not group.pending_join for group in shard.groups.values())
    world.advance(600_000)
    assert (list(shard.groups), list(shard.timers._entries)) == ([], ["expire"])


# Static members (KIP-345)


def stable_static_group(world: World, rebalance_ms: int = 60_000) -> tuple[str, str]:
    """Return the member ids of a static leader and a static follower."""
    joins = [world.join(instance=name, rebalance_ms=rebalance_ms) for name in ("one", "two")]
    world.advance(1)
    ids = [answered(join).member_id for join in joins]
    world.sync(ids[1], 1, instance="two")
    world.sync(ids[0], 1, {ids[0]: b"1", ids[1]: b"2"}, instance="one")
    return ids[0], ids[1]


def test_static_member_returns_without_a_rebalance(world: World) -> None:
    leader, follower = stable_static_group(world)
    assert leader.startswith("one-")
    back = answered(world.join(instance="two"))
    assert back.error_code == 0
    assert back.generation_id == 1
    assert back.member_id not in (follower, "")
    assert not back.skip_assignment
    assert world.group().state_name == "Stable"
    assert world.sync(back.member_id, 1, instance="two").assignment == b"2"
    assert code(world.heartbeat(follower, 1, instance="two")) == ErrorCode.FENCED_INSTANCE_ID
    assert code(world.heartbeat(follower, 1)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_returning_static_leader_skips_the_assignment(world: World) -> None:
    leader, _ = stable_static_group(world)
    back = answered(world.join(instance="one"))
    assert back.skip_assignment
    assert back.leader == back.member_id
    assert len(back.members) == 2
    assert leader not in world.group().members


def test_returning_old_static_leader_receives_its_old_id_as_leader(world: World) -> None:
    leader, _ = stable_static_group(world)
    back = answered(world.join(instance="one", version=8))
    assert back.leader == leader
    assert back.members == []


def test_returning_static_member_with_other_protocol_rebalances(world: World) -> None:
    (only,) = [world.join(instance="one", protocols=[("range", b""), ("sticky", b"")])]
    world.advance(1)
    member = answered(only).member_id
    world.sync(member, 1, {member: b"1"}, instance="one")
    back = world.join(instance="one", protocols=[("sticky", b"")])
    assert answered(back).generation_id == 2
    assert answered(back).protocol_name == "sticky"


def test_duplicate_instance_id_fences_the_waiting_member(world: World) -> None:
    world.configure(initial_rebalance_delay_ms=3_000)
    first = world.join(instance="one")
    second = world.join(instance="one")
    assert code(first) == ErrorCode.FENCED_INSTANCE_ID
    world.advance(3_000)
    assert code(second) == ErrorCode.NONE


def test_static_member_leaves_by_its_instance_id(world: World) -> None:
    stable_static_group(world)
    left = world.leave(("", "two"), ("", "nobody"))
    assert [member.error_code for member in left.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert list(world.group().static_members) == ["one"]


def test_static_members_remain_until_their_session_timeout(world: World) -> None:
    leader, follower = stable_static_group(world, rebalance_ms=5_000)
    again = world.join(leader, instance="one", rebalance_ms=5_000)
    assert waits(again)
    world.advance(5_000)
    # The other one was late, and is still a member of the generation.
    assert {member.member_id for member in answered(again).members} == {leader, follower}


# The log


def test_creation_and_each_generation_write_one_record(world: World) -> None:
    (member,) = world.stable_group("a")
    world.leave((member.id, None))
    values = [record.value for record in world.records if isinstance(record.key, GroupMetadataKey)]
    assert all(isinstance(value, GroupMetadataValue) for value in values)
    described = [(value.generation, value.protocol, len(value.members)) for value in values if value is not None]
    assert described == [(0, None, 0), (1, "range", 1), (2, None, 0)]
    assert all(record.version == 3 for record in world.records)


def test_reload_keeps_members_generation_and_assignments(world: World) -> None:
    first, second = world.stable_group("a", "b")
    world.restart()
    group = world.group()
    assert group.state_name == "Stable"
    assert code(world.heartbeat(first.id, first.generation)) == ErrorCode.NONE
    assert world.sync(second.id, second.generation).assignment == b"b"
    world.advance(10_000)
    assert code(world.heartbeat(second.id, second.generation)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_reload_during_rebalance_restores_the_last_generation(world: World) -> None:
    first, second = world.stable_group("a", "b")
    waiting = world.join(first.id)
    world.restart()
    assert code(waiting) == ErrorCode.NOT_COORDINATOR
    joins = [world.join(first.id), world.join(second.id)]
    assert {answered(join).generation_id for join in joins} == {2}


def test_group_above_max_size_rebalances_after_reload(world: World) -> None:
    first, second = world.stable_group("a", "b")
    world.configure(max_size=1)
    world.restart()
    assert code(world.heartbeat(first.id, 1)) == ErrorCode.REBALANCE_IN_PROGRESS
    again = world.join(first.id)
    assert code(world.join(second.id)) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert waits(again) or answered(again).generation_id == 2


def test_assignment_is_not_sent_before_it_is_durable(world: World) -> None:
    member = world.enter()
    world.advance(0)
    world.log.slow = True
    synced = world.sync(member.id, 1, {member.id: b"all"})
    assert waits(synced)
    assert world.group().state_name == "CompletingRebalance"
    world.log.sync()
    assert answered(synced).assignment == b"all"
    assert world.group().state_name == "Stable"


def test_assignment_that_cannot_be_written_starts_a_rebalance(world: World) -> None:
    member = world.enter()
    world.advance(0)
    world.log.broken = ErrorCode.NOT_ENOUGH_REPLICAS
    synced = world.sync(member.id, 1, {member.id: b"all"})
    assert code(synced) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.group().state_name == "PreparingRebalance"


def test_static_member_that_cannot_be_written_keeps_its_old_id(world: World) -> None:
    _, follower = stable_static_group(world)
    world.log.broken = ErrorCode.KAFKA_STORAGE_ERROR
    assert code(world.join(instance="two")) == ErrorCode.NOT_COORDINATOR
    assert world.group().static_members["two"] == follower


def test_subscribed_topics_of_consumers_are_known(world: World) -> None:
    world.stable_group("a", protocols=[("range", subscription("t", "u"))])
    assert world.group().subscribed_topics == {"t", "u"}
    world.restart()
    assert world.group().subscribed_topics == {"t", "u"}


def test_malformed_subscription_leaves_topics_unknown(world: World) -> None:
    world.stable_group("a", protocols=[("range", b"\xff")])
    assert world.group().subscribed_topics is None
    assert world.group().is_subscribed_to("anything")


def test_partition_of_a_group_equals_kafkas() -> None:
    world = World(partitions=50)
    # Measured with Utils.abs(groupId.hashCode()) % 50 of Apache Kafka 4.3.1.
    known = {GROUP: 3, "my-group": 12, "console-consumer-80000": 9, "": 0, "polygenelubricants": 0, "Größe": 35}
    assert {group: world.coordinator.partition_for(group) for group in known} == known
