"""The assignor of streams groups: balanced, sticky, and no task twice in a process."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ottla.groups.streams.assignor import NO_TASKS, StreamsMemberSpec, TaskAssignment, assign
from tests.groups.streams.cases import member, random_group, subtopology

if TYPE_CHECKING:
    from random import Random

    from ottla.groups.streams.topology import ConfiguredSubtopology

Assigned = dict[str, TaskAssignment]
groups = st.randoms(use_true_random=False)


def given_again(
    group: Assigned, processes: dict[str, str], subtopologies: dict[str, ConfiguredSubtopology], standbys: int
) -> Assigned:
    """Assign again, with the previous assignment and new members."""
    members = {
        process_name: StreamsMemberSpec(process, None, None, {}, group.get(process_name, NO_TASKS))
        for process_name, process in processes.items()
    }
    return assign(members, subtopologies, standbys)


def active(assigned: Assigned) -> dict[str, dict[str, tuple[int, ...]]]:
    return {member_id: dict(tasks.active) for member_id, tasks in assigned.items()}


def test_no_members_give_no_assignment() -> None:
    assert assign({}, {"0": subtopology(3)}, 1) == {}


def test_one_member_gets_all_tasks() -> None:
    assignment = assign({"a": member("p")}, {"0": subtopology(2), "1": subtopology(3, stateful=True)}, 0)
    assert assignment == {"a": TaskAssignment({"0": (0, 1), "1": (0, 1, 2)}, {}, {})}


def test_threads_of_one_process_get_no_standby_tasks() -> None:
    assignment = assign({"a": member("p"), "b": member("p")}, {"0": subtopology(4, stateful=True)}, 1)
    assert sorted(len(tasks.active["0"]) for tasks in assignment.values()) == [2, 2]
    assert all(not tasks.standby for tasks in assignment.values())


def test_standby_tasks_go_to_other_processes() -> None:
    assignment = assign(
        {"a": member("p"), "b": member("q")}, {"0": subtopology(4, stateful=True), "1": subtopology(2)}, 1
    )
    assert assignment["a"].active["0"] == assignment["b"].standby["0"]
    assert assignment["b"].active["0"] == assignment["a"].standby["0"]
    assert "1" not in assignment["a"].standby
    assert "1" not in assignment["b"].standby


def test_new_member_gets_its_quota_and_others_keep_theirs() -> None:
    subtopologies = {"0": subtopology(6)}
    first = assign({"a": member("p"), "b": member("q")}, subtopologies, 0)
    then = given_again(first, {"a": "p", "b": "q", "c": "r"}, subtopologies, 0)
    assert sorted(len(tasks.active["0"]) for tasks in then.values()) == [2, 2, 2]
    for name in ("a", "b"):
        assert set(then[name].active["0"]) < set(first[name].active["0"])


def test_standby_becomes_active_when_its_owner_leaves() -> None:
    subtopologies = {"0": subtopology(3, stateful=True)}
    first = assign({"a": member("p"), "b": member("q"), "c": member("r")}, subtopologies, 1)
    (left,) = first["a"].active["0"]
    heir = next(name for name in ("b", "c") if left in first[name].standby.get("0", ()))
    then = given_again({name: first[name] for name in ("b", "c")}, {"b": "q", "c": "r"}, subtopologies, 1)
    assert left in then[heir].active["0"]


def test_tasks_missing_from_the_topology_are_dropped() -> None:
    assignment = assign({"a": member("p", {"0": (0, 7), "gone": (1,)}, {"gone": (0,)})}, {"0": subtopology(2)}, 1)
    assert active(assignment) == {"a": {"0": (0, 1)}}
    assert assignment["a"].standby == {}


@given(groups)
def test_every_task_is_active_once_with_enough_standbys(random: Random) -> None:
    group = random_group(random)
    assignment = assign(group.members, group.subtopologies, group.standbys)
    assert set(assignment) == set(group.members)
    runs, copies = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    in_process: dict[str, Counter[tuple[str, int]]] = {}
    for member_id, tasks in assignment.items():
        counted = in_process.setdefault(group.members[member_id].process_id, Counter())
        for kind, total in ((tasks.active, runs), (tasks.standby, copies)):
            for name, partitions in kind.items():
                assert list(partitions) == sorted(partitions)
                assert partitions
                total.update((name, partition) for partition in partitions)
                counted.update((name, partition) for partition in partitions)
        assert tasks.warmup == {}
    expected = {(name, index) for name, sub in group.subtopologies.items() for index in range(sub.task_count)}
    assert runs == Counter(expected)
    assert all(count == 1 for counted in in_process.values() for count in counted.values())
    requested_values = min(group.standbys, len(in_process) - 1)
    stateful = {(name, entry) for name, entry in expected if group.subtopologies[name].is_stateful}
    assert copies == Counter({task: requested_values for task in stateful if requested_values})


@given(groups)
def test_active_tasks_are_balanced(random: Random) -> None:
    group = random_group(random)
    members = {
        process_id: spec._replace(process_id=process_id, target=NO_TASKS) for process_id, spec in group.members.items()
    }
    counts = [sum(map(len, tasks.active.values())) for tasks in assign(members, group.subtopologies, 0).values()]
    assert max(counts) - min(counts) <= 1


@given(groups)
def test_repeated_assignment_is_stable(random: Random) -> None:
    group = random_group(random)
    members = {process_id: spec._replace(process_id=process_id) for process_id, spec in group.members.items()}
    processes = {member_id: spec.process_id for member_id, spec in members.items()}
    first = assign(members, group.subtopologies, 0)
    assert active(given_again(first, processes, group.subtopologies, 0)) == active(first)
