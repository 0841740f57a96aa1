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
        each: StreamsMemberSpec(process, None, None, {}, group.get(each, NO_TASKS))
        for each, process in processes.items()
    }
    return assign(members, subtopologies, standbys)


def active(assigned: Assigned) -> dict[str, dict[str, tuple[int, ...]]]:
    return {member_id: dict(tasks.active) for member_id, tasks in assigned.items()}


def test_no_members_give_no_assignment() -> None:
    assert assign({}, {"0": subtopology(3)}, 1) == {}


def test_one_member_gets_all_tasks() -> None:
    found = assign({"a": member("p")}, {"0": subtopology(2), "1": subtopology(3, stateful=True)}, 0)
    assert found == {"a": TaskAssignment({"0": (0, 1), "1": (0, 1, 2)}, {}, {})}


def test_threads_of_one_process_get_no_standby_tasks() -> None:
    found = assign({"a": member("p"), "b": member("p")}, {"0": subtopology(4, stateful=True)}, 1)
    assert sorted(len(tasks.active["0"]) for tasks in found.values()) == [2, 2]
    assert all(not tasks.standby for tasks in found.values())


def test_standby_tasks_go_to_other_processes() -> None:
    found = assign({"a": member("p"), "b": member("q")}, {"0": subtopology(4, stateful=True), "1": subtopology(2)}, 1)
    assert found["a"].active["0"] == found["b"].standby["0"]
    assert found["b"].active["0"] == found["a"].standby["0"]
    assert "1" not in found["a"].standby
    assert "1" not in found["b"].standby


def test_new_member_gets_its_quota_and_others_keep_theirs() -> None:
    subtopologies = {"0": subtopology(6)}
    first = assign({"a": member("p"), "b": member("q")}, subtopologies, 0)
    then = given_again(first, {"a": "p", "b": "q", "c": "r"}, subtopologies, 0)
    assert sorted(len(tasks.active["0"]) for tasks in then.values()) == [2, 2, 2]
    for each in ("a", "b"):
        assert set(then[each].active["0"]) < set(first[each].active["0"])


def test_standby_becomes_active_when_its_owner_leaves() -> None:
    subtopologies = {"0": subtopology(3, stateful=True)}
    first = assign({"a": member("p"), "b": member("q"), "c": member("r")}, subtopologies, 1)
    (left,) = first["a"].active["0"]
    heir = next(each for each in ("b", "c") if left in first[each].standby.get("0", ()))
    then = given_again({each: first[each] for each in ("b", "c")}, {"b": "q", "c": "r"}, subtopologies, 1)
    assert left in then[heir].active["0"]


def test_tasks_missing_from_the_topology_are_dropped() -> None:
    found = assign({"a": member("p", {"0": (0, 7), "gone": (1,)}, {"gone": (0,)})}, {"0": subtopology(2)}, 1)
    assert active(found) == {"a": {"0": (0, 1)}}
    assert found["a"].standby == {}


@given(groups)
def test_every_task_is_active_once_with_enough_standbys(random: Random) -> None:
    group = random_group(random)
    found = assign(group.members, group.subtopologies, group.standbys)
    assert set(found) == set(group.members)
    runs, copies = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    in_process: dict[str, Counter[tuple[str, int]]] = {}
    for member_id, tasks in found.items():
        counted = in_process.setdefault(group.members[member_id].process_id, Counter())
        for kind, total in ((tasks.active, runs), (tasks.standby, copies)):
            for name, partitions in kind.items():
                assert list(partitions) == sorted(partitions)
                assert partitions
                total.update((name, each) for each in partitions)
                counted.update((name, each) for each in partitions)
        assert tasks.warmup == {}
    expected = {(name, each) for name, sub in group.subtopologies.items() for each in range(sub.task_count)}
    assert runs == Counter(expected)
    assert all(count == 1 for counted in in_process.values() for count in counted.values())
    wanted = min(group.standbys, len(in_process) - 1)
    stateful = {(name, each) for name, each in expected if group.subtopologies[name].is_stateful}
    assert copies == Counter({task: wanted for task in stateful if wanted})


@given(groups)
def test_active_tasks_are_balanced(random: Random) -> None:
    group = random_group(random)
    members = {each: spec._replace(process_id=each, target=NO_TASKS) for each, spec in group.members.items()}
    counts = [sum(map(len, tasks.active.values())) for tasks in assign(members, group.subtopologies, 0).values()]
    assert max(counts) - min(counts) <= 1


@given(groups)
def test_repeated_assignment_is_stable(random: Random) -> None:
    group = random_group(random)
    members = {each: spec._replace(process_id=each) for each, spec in group.members.items()}
    processes = {each: spec.process_id for each, spec in members.items()}
    first = assign(members, group.subtopologies, 0)
    assert active(given_again(first, processes, group.subtopologies, 0)) == active(first)
