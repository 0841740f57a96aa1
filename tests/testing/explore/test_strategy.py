"""The strategy without a cluster: a simulated test decides how each schedule ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.testing.explore.explorer import drive
from ottla.testing.explore.options import explore_options
from ottla.testing.explore.outcome import Outcome, RunVerdict
from ottla.testing.explore.points import Point, Visit
from ottla.testing.explore.schedule import Schedule, parse_schedule
from ottla.testing.explore.strategy import Strategy, replay

if TYPE_CHECKING:
    from collections.abc import Callable

PRODUCES = [Visit(Point("Produce", ordinal, "orders-0"), "acks -1", 0, "shop", 1) for ordinal in range(1, 7)]
FETCHES = [Visit(Point("Fetch", ordinal), "session", 0, "shop", 1) for ordinal in range(1, 4)]


def explore_simulated(fails: Callable[[Schedule], bool], **options: Any) -> tuple[Strategy, list[Schedule]]:
    strategy = Strategy("test", explore_options(**options))
    schedules: list[Schedule] = []

    def run(schedule: Schedule) -> Outcome:
        schedules.append(schedule)
        verdict = RunVerdict.FAILED if fails(schedule) else RunVerdict.PASSED
        injected = frozenset(range(len(schedule.faults)))
        return Outcome(
            verdict, "AssertionError: lost" if verdict is RunVerdict.FAILED else "", [], PRODUCES + FETCHES, injected
        )

    drive(strategy.runs(), run)
    return strategy, schedules


def test_test_that_fails_without_faults_is_not_explored() -> None:
    strategy, schedules = explore_simulated(lambda schedule: True)
    assert len(schedules) == 1
    assert strategy.result.problem == "the test fails without a fault: AssertionError: lost"
    assert not strategy.result.ok


def test_every_listed_fault_runs_at_first_last_and_second_point_of_a_kind() -> None:
    strategy, schedules = explore_simulated(lambda schedule: False, faults=["disconnect"])
    assert strategy.result.ok
    assert [str(schedule) for schedule in schedules[2:]] == [
        "disconnect at Produce[orders-0]#1",
        "disconnect at Fetch#1",
        "disconnect at Produce[orders-0]#6",
        "disconnect at Fetch#3",
        "disconnect at Produce[orders-0]#2",
        "disconnect at Fetch#2",
    ]


def test_every_point_explores_points_that_behave_alike() -> None:
    _, schedules = explore_simulated(lambda schedule: False, faults=["disconnect"], every_point=True)
    assert len(schedules) == 2 + len(PRODUCES) + len(FETCHES)


def test_apis_limit_the_points() -> None:
    _, schedules = explore_simulated(lambda schedule: False, faults=["disconnect"], apis=["Fetch"])
    assert {schedule.faults[0].point.api for schedule in schedules[2:]} == {"Fetch"}


def test_failure_is_moved_to_the_earliest_point_and_repeated() -> None:
    def fails(schedule: Schedule) -> bool:
        return any(planned.point.api == "Produce" and planned.point.ordinal >= 3 for planned in schedule.faults)

    strategy, _ = explore_simulated(fails, faults=["disconnect"])
    (finding,) = strategy.result.findings
    assert str(finding.schedule) == "disconnect at Produce[orders-0]#3"
    assert (finding.failures, finding.runs, finding.deterministic) == (4, 4, True)


def test_combination_is_reduced_to_the_fault_that_fails() -> None:
    def fails(schedule: Schedule) -> bool:
        return (len(schedule.faults) > 1 and any(planned.point.api == "Produce" for planned in schedule.faults)) or (
            len(schedule.faults) == 1 and str(schedule) == "throttled at Produce[orders-0]#1"
        )

    strategy, _ = explore_simulated(fails, faults=["throttled"], combinations=20, seed=3, apis=["Produce"])
    assert str(strategy.result.findings[0].schedule) == "throttled at Produce[orders-0]#1"


def test_same_failure_is_found_once() -> None:
    strategy, _ = explore_simulated(lambda schedule: bool(schedule.faults), faults=["disconnect", "throttled"])
    assert len(strategy.result.findings) == 1
    assert strategy.result.table["producer", "Produce", "throttled", "failed"] >= 1


def test_flaky_failure_reports_its_rate() -> None:
    seen: list[str] = []

    def fails(schedule: Schedule) -> bool:
        if not schedule.faults:
            return False
        seen.append(str(schedule))
        return len(seen) in (1, 3)

    strategy, _ = explore_simulated(fails, faults=["disconnect"], apis=["Fetch"])
    (finding,) = strategy.result.findings
    assert (finding.failures, finding.runs, finding.deterministic) == (2, 4, False)


def test_shards_share_the_schedules() -> None:
    import dataclasses

    runs: list[set[str]] = []
    for shard in (0, 1):
        options = dataclasses.replace(explore_options(faults=["disconnect"]), shard=shard, shards=2)
        strategy = Strategy("test", options)
        mine: set[str] = set()

        def run(schedule: Schedule, mine: set[str] = mine) -> Outcome:
            mine.add(str(schedule))
            return Outcome(RunVerdict.PASSED, visits=PRODUCES + FETCHES, injected=frozenset({0}))

        drive(strategy.runs(), run)
        runs.append(mine - {"no faults"})
    assert not runs[0] & runs[1]
    assert len(runs[0] | runs[1]) == 6


def test_same_seed_gives_the_same_combinations() -> None:
    def combinations(seed: int) -> list[str]:
        _, schedules = explore_simulated(lambda schedule: False, faults=["disconnect"], combinations=5, seed=seed)
        return [str(schedule) for schedule in schedules if len(schedule.faults) > 1]

    assert combinations(7) == combinations(7)
    assert combinations(7) != combinations(8)


def test_budget_leaves_out_the_rest_and_counts_it() -> None:
    now = iter(float(number) for number in range(1000))
    strategy = Strategy("test", explore_options(faults=["disconnect"], budget="2s"), clock=lambda: next(now))
    drive(strategy.runs(), lambda _: Outcome(RunVerdict.PASSED, visits=PRODUCES, injected=frozenset({0})))
    assert strategy.result.left_out == 2


def test_fault_that_is_not_reached_is_counted_as_such() -> None:
    strategy = Strategy("test", explore_options(faults=["disconnect"], apis=["Fetch"]))
    drive(strategy.runs(), lambda _: Outcome(RunVerdict.PASSED, visits=FETCHES))
    assert strategy.result.table == {("consumer", "Fetch", "disconnect", "not reached"): 3}


def test_replay_of_a_schedule_that_is_not_reached_says_so() -> None:
    runs = replay("test", parse_schedule("disconnect at Fetch#9"), 1)
    result = drive(runs, lambda _: Outcome(RunVerdict.PASSED))
    assert result.notes == ["a fault of the schedule did not happen: the test did not send that request"]
