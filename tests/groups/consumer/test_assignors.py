"""The server-side assignors: what must hold of every assignment, over random groups, and a few cases by hand."""

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
    same = all(each == topics[0] for each in topics)
    return GroupSpec(members, counts, SubscriptionType.HOMOGENEOUS if same else SubscriptionType.HETEROGENEOUS)


@st.composite
def groups(draw: st.DrawFn) -> GroupSpec:
    """Members with any subscriptions, and targets from an assignment of before that may not fit any more."""
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
    found: dict[tuple[Uuid, int], list[str]] = {}
    for member, partitions in assignment.items():
        for topic, indexes in partitions.items():
            for index in indexes:
                found.setdefault((topic, index), []).append(member)
    return found


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_that_somebody_wants_goes_to_one_who_wants_it(spec: GroupSpec, name: str) -> None:
    assignment = ASSIGNORS[name](spec)
    found = owners(assignment)
    wanted = {
        (topic, index)
        for member in spec.members.values()
        for topic in member.topics
        for index in range(spec.partition_counts[topic])
    }
    assert set(found) == wanted
    assert all(len(members) == 1 for members in found.values())
    assert all(topic in spec.members[members[0]].topics for (topic, _), members in found.items())


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_partitions_are_in_order_and_topics_without_any_are_left_out(spec: GroupSpec, name: str) -> None:
    for partitions in ASSIGNORS[name](spec).values():
        assert all(indexes == tuple(sorted(set(indexes))) and indexes for indexes in partitions.values())


def loads(assignment: Mapping[str, Partitions]) -> dict[str, int]:
    return {member: sum(map(len, partitions.values())) for member, partitions in assignment.items()}


@given(groups())
def test_uniform_cannot_be_made_more_even_by_moving_one_partition(spec: GroupSpec) -> None:
    assignment = assign_uniformly(spec)
    load = loads(assignment)
    for (topic, _), (owner,) in owners(assignment).items():
        for member, other in spec.members.items():
            if topic in other.topics:
                assert load[owner] - load[member] <= 1


@given(groups())
def test_uniform_moves_nothing_when_it_is_asked_again(spec: GroupSpec) -> None:
    once = assign_uniformly(spec)
    again = spec._replace(members={name: member._replace(target=once[name]) for name, member in spec.members.items()})
    assert assign_uniformly(again) == once


def test_uniform_moves_only_what_a_new_member_must_get() -> None:
    before = {"a": {T: (0, 1, 2)}, "b": {T: (3, 4, 5)}}
    members = {name: MemberSpec((T,), target) for name, target in before.items()}
    after = assign_uniformly(group({**members, "c": MemberSpec((T,), {})}, {T: 6}))
    assert after == {"a": {T: (0, 1)}, "b": {T: (3, 4)}, "c": {T: (2, 5)}}


def test_uniform_balances_over_topics_not_within_them() -> None:
    members = {name: MemberSpec((T, U), {}) for name in "abc"}
    assert loads(assign_uniformly(group(members, {T: 2, U: 1}))) == {"a": 1, "b": 1, "c": 1}


def test_uniform_gives_partitions_to_those_who_have_no_other_choice() -> None:
    members = {"a": MemberSpec((T, U), {}), "b": MemberSpec((T,), {})}
    assert assign_uniformly(group(members, {T: 2, U: 2})) == {"a": {U: (0, 1)}, "b": {T: (0, 1)}}


def test_uniform_takes_back_what_one_owned_when_others_can_have_it() -> None:
    members = {"a": MemberSpec((T, U), {T: (0, 1, 2), U: (0, 1, 2)}), "b": MemberSpec((T,), {})}
    assert assign_uniformly(group(members, {T: 3, U: 3})) == {"a": {U: (0, 1, 2)}, "b": {T: (0, 1, 2)}}


def test_range_lets_equal_partitions_of_topics_meet() -> None:
    members = {name: MemberSpec((T, U), {}) for name in "ba"}
    assert assign_ranges(group(members, {T: 3, U: 3})) == {
        "a": {T: (0, 1), U: (0, 1)},
        "b": {T: (2,), U: (2,)},
    }


def test_range_puts_static_members_first_and_in_the_order_of_their_instances() -> None:
    members = {
        "a": MemberSpec((T,), {}),
        "b": MemberSpec((T,), {}, "2"),
        "c": MemberSpec((T,), {}, "1"),
    }
    assert assign_ranges(group(members, {T: 3})) == {"c": {T: (0,)}, "b": {T: (1,)}, "a": {T: (2,)}}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_nobody_and_nothing(name: str) -> None:
    assert ASSIGNORS[name](GroupSpec({}, {}, SubscriptionType.HOMOGENEOUS)) == {}
    lone = {"a": MemberSpec((), {T: (0,)})}
    assert ASSIGNORS[name](group(lone, {})) == {"a": {}}
