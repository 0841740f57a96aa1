"""Online upgrade and downgrade of groups, and classic members of consumer groups."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.groups.classic.consumer_protocol import read_assignment, write_assignment
from ottla.protocol.errors import ErrorCode
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolAssignment, TopicPartition
from ottla.protocol.record_schemas.group import GroupMetadataKey
from tests.groups.world import GROUP, Consumer, Owned, World, answered, code, subscription, waits


@pytest.fixture
def world() -> World:
    made = World()
    made.create_topic("t", 4)
    return made


def assignment(owned: Owned, **more: Any) -> bytes:
    named = [TopicPartition(topic=name, partitions=sorted(partitions)) for name, partitions in owned.items()]
    return write_assignment(ConsumerProtocolAssignment(assigned_partitions=named, **more), 3)


def read(data: bytes) -> Owned:
    return {
        assigned_partition.topic: set(assigned_partition.partitions)
        for assigned_partition in read_assignment(data).assigned_partitions
    }


class Classic:
    """A cooperative classic consumer, which reports its owned partitions when it joins."""

    def __init__(self, world: World, *topics: str, instance: str | None = None) -> None:
        self.world = world
        self.topics = topics
        self.instance = instance
        self.id = ""
        self.generation = -1
        self.owned: Owned = {}

    def join(self) -> Any:
        response = self.world.join(self.id, instance=self.instance, protocols=self._protocols())
        if not waits(response) and code(response) == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = response.member_id
            response = self.world.join(self.id, instance=self.instance, protocols=self._protocols())
        return response

    def joined(self, response: Any) -> None:
        made = answered(response)
        assert made.error_code == ErrorCode.NONE, ErrorCode(made.error_code)
        self.id, self.generation = made.member_id, made.generation_id

    def sync(self, assignments: dict[str, bytes] | None = None) -> Any:
        response = self.world.sync(self.id, self.generation, assignments, instance=self.instance)
        if not waits(response) and code(response) == ErrorCode.NONE:
            self.owned = read(answered(response).assignment)
        return response

    def rejoin(self) -> None:
        """Join again and sync, which in a consumer group takes no waiting."""
        self.joined(self.join())
        assert code(self.sync()) == ErrorCode.NONE

    def beat(self) -> ErrorCode:
        return code(self.world.heartbeat(self.id, self.generation, instance=self.instance))

    def _protocols(self) -> list[tuple[str, bytes]]:
        owned = [TopicPartition(topic=name, partitions=sorted(value)) for name, value in self.owned.items()]
        return [("range", subscription(*self.topics, owned_partitions=owned, generation_id=self.generation))]


def classic_group(world: World, count: int = 1) -> list[Classic]:
    """Return a stable classic group that owns all partitions of t."""
    members = [Classic(world, "t") for _ in range(count)]
    joins = [member.join() for member in members]
    world.advance(1)
    for member, join in zip(members, joins, strict=True):
        member.joined(join)
    share = 4 // count
    assignments = {
        member.id: assignment({"t": set(range(index * share, (index + 1) * share))})
        for index, member in enumerate(members)
    }
    syncs = [member.sync() for member in members[1:]]
    members[0].sync(assignments)
    for member, sync in zip(members[1:], syncs, strict=True):
        member.owned = read(answered(sync).assignment)
    return members


def test_first_consumer_member_upgrades_a_classic_group(world: World) -> None:
    (old,) = classic_group(world)
    new = Consumer(world, "new", "t")
    assert code(new.join()) == ErrorCode.NONE
    group = world.group()
    assert group.type == "consumer"
    assert group.members[old.id].assigned[world.topics.topics["t"].id].keys() == {0, 1, 2, 3}
    assert (new.epoch, new.owned) == (2, {})

    # The old member is told to join again; it says what it keeps, and the new one gets the rest.
    assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    old.rejoin()
    assert (old.generation, old.owned) == (1, {"t": {0, 1}})
    assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    old.rejoin()
    assert (old.generation, old.owned) == (2, {"t": {0, 1}})
    assert old.beat() == ErrorCode.NONE
    new.beat()
    assert new.owned == {"t": {2, 3}}
    assert group.state_name == "Stable"


def test_upgrade_fails_waiting_joins_and_syncs(world: World) -> None:
    first, second = classic_group(world, 2)
    join = first.join()
    assert waits(join)
    Consumer(world, "new", "t").join()
    assert code(join) == ErrorCode.REBALANCE_IN_PROGRESS
    assert second.beat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_failed_upgrade_keeps_the_classic_timers(world: World) -> None:
    first, second = classic_group(world, 2)
    waiting = first.join()
    assert code(world.consumer_heartbeat("new", 0, regex="(", owned={}, rebalance_ms=1_000)) == (
        ErrorCode.INVALID_REGULAR_EXPRESSION
    )
    assert code(waiting) == ErrorCode.REBALANCE_IN_PROGRESS
    world.configure(consumer_max_size=2)
    assert code(Consumer(world, "new", "t").join()) == ErrorCode.GROUP_MAX_SIZE_REACHED
    world.configure(consumer_max_size=3)
    world.log.broken = ErrorCode.NOT_ENOUGH_REPLICAS
    assert code(Consumer(world, "new", "t").join()) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.log.broken = None
    waiting = first.join()
    assert waits(waiting)
    # The second member is silent: its session ends as if nothing had happened, and the first goes on alone.
    assert second.id in world.group().members
    world.advance(10_001)
    assert (code(waiting), list(world.group().members)) == (ErrorCode.NONE, [first.id])


def test_upgrade_survives_reload(world: World) -> None:
    (old,) = classic_group(world)
    new = Consumer(world, "new", "t")
    new.join()
    world.restart()
    assert world.group().type == "consumer"
    old.rejoin()
    old.rejoin()
    new.beat()
    assert (old.owned, new.owned) == ({"t": {0, 1}}, {"t": {2, 3}})


def test_empty_classic_group_is_replaced_by_a_consumer_group(world: World) -> None:
    (old,) = classic_group(world)
    world.commit({("t", 0): 7}, member=old.id, generation=1)
    world.leave((old.id, None))
    new = Consumer(world, "new", "t")
    new.join()
    assert new.owned == {"t": {0, 1, 2, 3}}
    assert world.offsets(("t", 0)) == [7]
    world.restart()
    assert (world.group().type, list(world.group().members)) == ("consumer", ["new"])
    assert world.offsets(("t", 0)) == [7]


def test_empty_consumer_group_is_replaced_by_a_classic_group(world: World) -> None:
    new = Consumer(world, "new", "t")
    new.join()
    new.leave()
    assert code(world.join("somebody")) == ErrorCode.UNKNOWN_MEMBER_ID
    classic_group(world)
    assert world.group().type == "classic"
    world.restart()
    assert (world.group().type, world.group().state_name) == ("classic", "Stable")


def test_empty_group_is_restored_if_its_tombstones_fail(world: World) -> None:
    new = Consumer(world, "new", "t")
    new.join()
    new.leave()
    world.log.broken = ErrorCode.NOT_ENOUGH_REPLICAS
    world.join()
    assert world.group().type == "consumer"


def test_last_consumer_member_that_leaves_downgrades_the_group(world: World) -> None:
    (old,) = classic_group(world)
    new = Consumer(world, "new", "t")
    new.join()
    old.rejoin()
    old.rejoin()
    new.beat()
    new.leave()
    group = world.group()
    assert (group.type, group.state_name, group.generation_id) == ("classic", "PreparingRebalance", 2)
    assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    old.joined(old.join())
    assert old.generation == 3
    assert code(old.sync({old.id: assignment({"t": {0, 1, 2, 3}})})) == ErrorCode.NONE
    assert old.owned == {"t": {0, 1, 2, 3}}


def test_downgrade_survives_reload(world: World) -> None:
    (old,) = classic_group(world)
    new = Consumer(world, "new", "t")
    new.join()
    new.leave()
    last = {repr(record.key): record for record in world.records}
    living = [record for record in last.values() if record.value is not None]
    assert [type(record.key) for record in living] == [GroupMetadataKey]
    world.restart()
    assert (world.group().type, list(world.group().members)) == ("classic", [old.id])


def test_fenced_last_consumer_member_downgrades_the_group(world: World) -> None:
    classic_group(world)
    new = Consumer(world, "new", "t")
    new.join()
    for member in world.group().members.values():
        assert member.member_id == "new" or member.uses_classic_protocol
    old = next(member_id for member_id in world.group().members if member_id != "new")
    for _ in range(5):
        world.advance(9_000)
        world.heartbeat(old, 1)
    assert world.group().type == "classic"


def test_classic_successor_of_the_last_consumer_member_downgrades(world: World) -> None:
    new = Consumer(world, "new", "t", instance="i")
    new.join()
    old = Classic(world, "t", instance="i")
    old.joined(old.join())
    group = world.group()
    assert (group.type, group.state_name) == ("classic", "Stable")
    assert list(group.members) == [old.id]
    assert old.generation == group.generation_id
    assert code(old.sync()) == ErrorCode.NONE
    assert old.owned == {"t": {0, 1, 2, 3}}
    world.restart()
    assert (world.group().type, list(world.group().members)) == ("classic", [old.id])


def test_consumer_successor_of_a_static_classic_member_upgrades(world: World) -> None:
    old = Classic(world, "t", instance="i")
    join = old.join()
    world.advance(1)
    old.joined(join)
    old.sync({old.id: assignment({"t": {0, 1, 2, 3}})})
    new = Consumer(world, "new", "t", instance="i")
    assert code(new.join()) == ErrorCode.NONE
    assert new.owned == {"t": {0, 1, 2, 3}}
    assert list(world.group().members) == ["new"]
    assert world.group().classic_member_count == 0


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_migration_policy_forbids_upgrade(world: World, policy: str) -> None:
    classic_group(world)
    world.configure(consumer_migration_policy=policy)
    refused = world.consumer_heartbeat("new", 0, topics=["t"], owned={}, rebalance_ms=1_000)
    assert code(refused) == ErrorCode.GROUP_ID_NOT_FOUND
    assert refused.error_message == (
        "Cannot upgrade classic group g to consumer group because online upgrade is disabled."
    )
    assert world.group().type == "classic"


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_migration_policy_forbids_downgrade(world: World, policy: str) -> None:
    classic_group(world)
    new = Consumer(world, "new", "t")
    new.join()
    world.configure(consumer_migration_policy=policy)
    new.leave()
    assert world.group().type == "consumer"


def test_group_above_consumer_max_size_is_not_upgraded(world: World) -> None:
    classic_group(world, 2)
    world.configure(consumer_max_size=1)
    refused = world.consumer_heartbeat("new", 0, topics=["t"], owned={}, rebalance_ms=1_000)
    assert code(refused) == ErrorCode.GROUP_ID_NOT_FOUND


def test_group_with_custom_assignor_is_not_upgraded(world: World) -> None:
    old = Classic(world, "t")
    join = old.join()
    world.advance(1)
    old.joined(join)
    old.sync({old.id: assignment({"t": {0}}, user_data=b"mine")})
    refused = world.consumer_heartbeat("new", 0, topics=["t"], owned={}, rebalance_ms=1_000)
    assert code(refused) == ErrorCode.GROUP_ID_NOT_FOUND
    assert "unsupported custom assignor" in refused.error_message


@pytest.mark.parametrize("bad", [b"\xff", b"\x00\x01", b"\x00\x00\x7f\xff\xff\xff"])
def test_group_of_another_protocol_type_is_not_upgraded(world: World, bad: bytes) -> None:
    world.stable_group("a", protocols=[("range", bad)])
    refused = world.consumer_heartbeat("new", 0, topics=["t"], owned={}, rebalance_ms=1_000)
    assert code(refused) == ErrorCode.GROUP_ID_NOT_FOUND


def test_group_with_duplicate_assignment_is_not_upgraded(world: World) -> None:
    first, second = classic_group(world, 2)
    joins = [first.join(), second.join()]
    for member, join in zip((first, second), joins, strict=True):
        member.joined(join)
    second.sync()
    both = assignment({"t": {0}})
    first.sync({first.id: both, second.id: both})
    refused = world.consumer_heartbeat("new", 0, topics=["t"], owned={}, rebalance_ms=1_000)
    assert code(refused) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.group().type == "classic"


# Classic members of a consumer group


@pytest.fixture
def mixed(world: World) -> tuple[Consumer, Classic]:
    """Return a stable group with a consumer and a classic member."""
    new = Consumer(world, "new", "t")
    new.join()
    old = Classic(world, "t")
    old.joined(old.join())
    old.sync()
    new.settle()
    assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    old.rejoin()
    assert (new.owned, old.owned) == ({"t": {0, 1}}, {"t": {2, 3}})
    assert world.group().state_name == "Stable"
    return new, old


def test_classic_member_does_not_rejoin_for_unreleased_partitions(world: World) -> None:
    new = Consumer(world, "new", "t")
    new.join()
    old = Classic(world, "t")
    old.joined(old.join())
    assert code(old.sync()) == ErrorCode.NONE
    assert old.owned == {}
    assert old.beat() == ErrorCode.NONE  # it would join in vain: the other has not let go yet
    new.settle()
    assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_classic_member_leaves(world: World, mixed: tuple[Consumer, Classic]) -> None:
    new, old = mixed
    left = world.leave((old.id, None), ("nobody", None), ("", "i"))
    assert [member.error_code for member in left.members] == [0, *[ErrorCode.UNKNOWN_MEMBER_ID] * 2]
    new.beat()
    assert new.owned == {"t": {0, 1, 2, 3}}


def test_leave_group_removes_consumer_members(world: World, mixed: tuple[Consumer, Classic]) -> None:
    new, _ = mixed
    assert world.leave((new.id, None)).members[0].error_code == 0
    assert world.group().type == "classic"


def test_classic_member_is_fenced_at_its_session_timeout(world: World, mixed: tuple[Consumer, Classic]) -> None:
    new, old = mixed
    world.advance(10_000)
    assert old.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    new.beat()
    assert new.owned == {"t": {0, 1, 2, 3}}


def test_classic_member_that_does_not_rejoin_is_fenced(world: World, mixed: tuple[Consumer, Classic]) -> None:
    new, old = mixed
    world.create_topic("u", 1)
    new.beat(topics=["t", "u"])
    for _ in range(10):
        assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
        new.keep_alive()
        world.advance(6_000)
    assert old.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_classic_member_that_does_not_sync_is_fenced(world: World, mixed: tuple[Consumer, Classic]) -> None:
    new, old = mixed
    old.joined(old.join())
    for _ in range(10):
        assert old.beat() == ErrorCode.NONE
        new.keep_alive()
        world.advance(6_000)
    assert old.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_invalid_requests_of_classic_members_fail(world: World, mixed: tuple[Consumer, Classic]) -> None:
    new, old = mixed
    generation = old.generation
    assert code(world.heartbeat(old.id, generation + 1)) == ErrorCode.ILLEGAL_GENERATION
    assert code(world.heartbeat("nobody", generation)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.heartbeat(old.id, generation, instance="i")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.heartbeat(new.id, new.epoch)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.sync(old.id, generation + 1)) == ErrorCode.ILLEGAL_GENERATION
    assert code(world.sync("nobody", generation)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.sync(new.id, new.epoch)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(world.sync(old.id, generation, protocol="sticky")) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(world.sync(old.id, generation, protocol_type="connect")) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_sync_after_a_new_assignment_epoch_rebalances(world: World, mixed: tuple[Consumer, Classic]) -> None:
    new, old = mixed
    world.create_topic("u", 1)
    new.beat(topics=["t", "u"])
    assert code(old.sync()) == ErrorCode.REBALANCE_IN_PROGRESS


def test_invalid_joins_of_classic_members_fail(world: World, mixed: tuple[Consumer, Classic]) -> None:
    assert code(world.join(protocol_type="connect")) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(world.join(protocols=[])) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(world.join(protocols=[("sticky", subscription("t"))])) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(world.join("m", protocols=[("range", b"\xff")])) == ErrorCode.UNKNOWN_SERVER_ERROR
    unknown = world.join("m", instance="i", protocols=[("range", subscription("t"))])
    assert code(unknown) == ErrorCode.UNKNOWN_MEMBER_ID
    world.configure(consumer_max_size=2)
    assert code(world.join(protocols=[("range", subscription("t"))])) == ErrorCode.GROUP_MAX_SIZE_REACHED
    world.configure(consumer_migration_policy="disabled", consumer_max_size=9)
    assert code(world.join(protocols=[("range", subscription("t"))])) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_classic_member_commits_in_its_generation(world: World, mixed: tuple[Consumer, Classic]) -> None:
    _, old = mixed
    t2 = {("t", 2): 5}
    assert world.commit_code(t2, member=old.id, generation=old.generation, version=5, ids=True) == ErrorCode.NONE
    newer = world.commit_code(t2, member=old.id, generation=old.generation + 1, version=5, ids=True)
    assert newer == ErrorCode.ILLEGAL_GENERATION
    assert code(world.fetch(("t", 2), member=old.id, epoch=old.generation + 1)) == ErrorCode.ILLEGAL_GENERATION


def test_description_shows_the_member_type(world: World, mixed: tuple[Consumer, Classic]) -> None:
    (shown,) = answered(world.coordinator.describe_consumer_groups([GROUP]))
    assert [member.member_type for member in shown.members] == [1, 0]
