"""ListGroups, DescribeGroups and DeleteGroups in the coordinator."""

from __future__ import annotations

import pytest

from ottla.groups.environment import RequestContext
from ottla.protocol.errors import ErrorCode
from tests.groups.world import World, answered, waits


@pytest.fixture
def world() -> World:
    return World(partitions=4)


def listed(world: World, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[tuple[str, str, str, str]]:
    response = answered(world.coordinator.list_groups(states, types))
    return sorted(
        (group.group_id, group.protocol_type, group.group_state, group.group_type) for group in response.groups
    )


def test_groups_are_listed_and_filtered_by_state_and_type(world: World) -> None:
    world.stable_group("a", group="living")
    world.commit({("t", 0): 1}, group="simple")
    assert listed(world) == [("living", "consumer", "Stable", "classic"), ("simple", "", "Empty", "classic")]
    assert [group[0] for group in listed(world, states=("sTable ",))] == ["living"]
    assert [group[0] for group in listed(world, types=("Classic",))] == ["living", "simple"]
    assert listed(world, types=("consumer",)) == []
    assert listed(world, states=("nonsense",)) == []


def test_stable_group_is_described_with_metadata_and_assignments(world: World) -> None:
    (member,) = world.stable_group("a", protocols=[("range", b"meta")])
    (described,) = answered(world.coordinator.describe_groups(RequestContext(6), ["g"]))
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    (shown,) = described.members
    assert (shown.member_id, shown.client_id, shown.client_host) == (member.id, "a", "/127.0.0.1")
    assert (shown.member_metadata, shown.member_assignment) == (b"meta", b"a")


def test_rebalancing_group_is_described_without_metadata(world: World) -> None:
    world.stable_group("a")
    world.enter(client="b")
    (described,) = answered(world.coordinator.describe_groups(RequestContext(6), ["g"]))
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert [member.member_metadata for member in described.members] == [b"", b""]


def test_unknown_group_is_dead_and_an_error_from_version_6(world: World) -> None:
    (old,) = answered(world.coordinator.describe_groups(RequestContext(5), ["nobody"]))
    assert (old.group_state, old.error_code) == ("Dead", 0)
    (new,) = answered(world.coordinator.describe_groups(RequestContext(6), ["nobody"]))
    assert (new.group_state, new.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert new.error_message == "Group nobody not found."


def test_empty_groups_are_deleted_with_their_offsets(world: World) -> None:
    world.stable_group("a", group="living")
    world.commit({("t", 0): 1, ("t", 1): 2}, group="simple")
    results = answered(world.coordinator.delete_groups(["living", "simple", "nobody"]))
    assert [(result.group_id, ErrorCode(result.error_code)) for result in results] == [
        ("living", ErrorCode.NON_EMPTY_GROUP),
        ("simple", ErrorCode.NONE),
        ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert world.offsets(group="simple", everything=True) == []
    world.restart()
    assert [group[0] for group in listed(world)] == ["living"]


def test_deletion_responds_when_durable(world: World) -> None:
    world.commit({("t", 0): 1}, group="simple")
    world.log.slow = True
    deleting = world.coordinator.delete_groups(["simple", "nobody"])
    assert waits(deleting)
    world.log.sync()
    assert [result.error_code for result in answered(deleting)] == [0, ErrorCode.GROUP_ID_NOT_FOUND]
