"""The server-side assignors: properties over random groups, and some cases by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.groups.consumer.assignors import ASSIGNORS, GroupSpec, MemberSpec, assign_ranges, assign_uniformly
from ottla.groups.modern import Partitions, SubscriptionType
from ottla.protocol.uuids import Uuid

if TYPE_CHECKING:
    from collections.abc import Mapping

T, U, V = (Uuid(bytes([number]) * 16) for number in (1, 2, 3))


def group(members: Mapping[str, MemberSpec], counts: Mapping[Uuid, int]) -> GroupSpec:
    topics = [set(member.topics) for member in members.values()]
    same = all(topic == topics[0] for topic in topics)
    return GroupSpec(members, counts, SubscriptionType.HOMOGENEOUS if same else SubscriptionType.HETEROGENEOUS)


@st.composite
def groups(draw: st.DrawFn) -> GroupSpec:
    """Return members with random subscriptions and previous targets that may be stale."""
    counts = {topic: draw(st.integers(1, 12)) for topic in (T, U, V)}
    names = [f"m{index}" for index in range(draw(st.integers(1, 7)))]
    before = group({name: MemberSpec(draw(subscriptions), {}) for name in names}, counts)
    targets = ASSIGNORS[draw(st.sampled_from(sorted(ASSIGNORS)))](before)
    later = {topic: count + draw(st.integers(0, 3)) for topic, count in counts.items()}
    kept = [name for name in names if draw(st.integers(0, 4)) > 0]
    joined = [f"n{index}" for index in range(draw(st.integers(0, 3)))]
    members = {
        name: MemberSpec(
            before.members[name].topics if name in before.members and draw(st.booleans()) else draw(subscriptions),
            targets.get(name, {}),
            draw(st.sampled_from([None, f"i{name}"])),
        )
        for name in [*kept, *joined]
    }
    return group(members, later)


subscriptions = st.lists(st.sampled_from([T, U, V]), unique=True).map(lambda topics: tuple(sorted(topics)))


def owners(assignment: Mapping[str, Partitions]) -> dict[tuple[Uuid, int], list[str]]:
    owners: dict[tuple[Uuid, int], list[str]] = {}
    for member, partitions in assignment.items():
        for topic, indexes in partitions.items():
            for index in indexes:
                owners.setdefault((topic, index), []).append(member)
    return owners


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_every_subscribed_partition_goes_to_one_subscriber(spec: GroupSpec, name: str) -> None:
    assignment = ASSIGNORS[name](spec)
    result = owners(assignment)
    expected = {
        (topic, index)
        for member in spec.members.values()
        for topic in member.topics
        for index in range(spec.partition_counts[topic])
    }
    assert set(result) == expected
    assert all(len(members) == 1 for members in result.values())
    assert all(topic in spec.members[members[0]].topics for (topic, _), members in result.items())


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_partitions_are_sorted_and_empty_topics_omitted(spec: GroupSpec, name: str) -> None:
    for partitions in ASSIGNORS[name](spec).values():
        assert all(indexes == tuple(sorted(set(indexes))) and indexes for indexes in partitions.values())


def loads(assignment: Mapping[str, Partitions]) -> dict[str, int]:
    return {member: sum(map(len, partitions.values())) for member, partitions in assignment.items()}


@given(groups())
def test_uniform_is_balanced(spec: GroupSpec) -> None:
    assignment = assign_uniformly(spec)
    load = loads(assignment)
    for (topic, _), (owner,) in owners(assignment).items():
        for member, other in spec.members.items():
            if topic in other.topics:
                assert load[owner] - load[member] <= 1


@given(groups())
def test_uniform_is_stable_when_repeated(spec: GroupSpec) -> None:
    once = assign_uniformly(spec)
    again = spec._replace(members={name: member._replace(target=once[name]) for name, member in spec.members.items()})
    assert assign_uniformly(again) == once


def test_uniform_moves_only_partitions_of_a_new_member() -> None:
    before = {"a": {T: (0, 1, 2)}, "b": {T: (3, 4, 5)}}
    members = {name: MemberSpec((T,), target) for name, target in before.items()}
    after = assign_uniformly(group({**members, "c": MemberSpec((T,), {})}, {T: 6}))
    assert after == {"a": {T: (0, 1)}, "b": {T: (3, 4)}, "c": {T: (2, 5)}}


def test_uniform_balances_over_all_topics() -> None:
    members = {name: MemberSpec((T, U), {}) for name in "abc"}
    assert loads(assign_uniformly(group(members, {T: 2, U: 1}))) == {"a": 1, "b": 1, "c": 1}


def test_uniform_prefers_members_with_fewer_topics() -> None:
    members = {"a": MemberSpec((T, U), {}), "b": MemberSpec((T,), {})}
    assert assign_uniformly(group(members, {T: 2, U: 2})) == {"a": {U: (0, 1)}, "b": {T: (0, 1)}}


def test_uniform_moves_partitions_to_balance_subscriptions() -> None:
    members = {"a": MemberSpec((T, U), {T: (0, 1, 2), U: (0, 1, 2)}), "b": MemberSpec((T,), {})}
    assert assign_uniformly(group(members, {T: 3, U: 3})) == {"a": {U: (0, 1, 2)}, "b": {T: (0, 1, 2)}}


def test_range_assigns_equal_partitions_of_topics_together() -> None:
    members = {name: MemberSpec((T, U), {}) for name in "ba"}
    assert assign_ranges(group(members, {T: 3, U: 3})) == {
        "a": {T: (0, 1), U: (0, 1)},
        "b": {T: (2,), U: (2,)},
    }


def test_range_orders_static_members_first_by_instance_id() -> None:
    members = {
        "a": MemberSpec((T,), {}),
        "b": MemberSpec((T,), {}, "2"),
        "c": MemberSpec((T,), {}, "1"),
    }
    assert assign_ranges(group(members, {T: 3})) == {"c": {T: (0,)}, "b": {T: (1,)}, "a": {T: (2,)}}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_no_members_or_topics_give_no_assignment(name: str) -> None:
    assert ASSIGNORS[name](GroupSpec({}, {}, SubscriptionType.HOMOGENEOUS)) == {}
    lone = {"a": MemberSpec((), {T: (0,)})}
    assert ASSIGNORS[name](group(lone, {})) == {"a": {}}
