"""The order of runs: two clean ones, each single fault, random combinations; a failure is shrunk and repeated.

The strategy runs nothing itself: it yields schedules and receives outcomes, so that pytest, `explore()` and clients of
the control API can drive it.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from ottla.testing.explore.faults import Traits
from ottla.testing.explore.outcome import Finding, Outcome, Result, RunVerdict
from ottla.testing.explore.points import COORDINATOR, Point
from ottla.testing.explore.schedule import CLEAN, PlannedFault, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ottla.testing.explore.options import ExploreOptions
    from ottla.testing.explore.points import Visit

    Runs = Generator[Schedule, Outcome, None]

CLEAN_RUNS = 2
REPRESENTATIVES = 3
MAX_FAULTS = 5
EARLIER_TRIES = 4
_GROUP_APIS = frozenset({"JoinGroup", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "StreamsGroupHeartbeat"})


class Strategy:
    """The exploration of one test. `result` is complete when `runs()` ends."""

    def __init__(
        self, name: str, options: ExploreOptions, *, nodes: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.result = Result(name, seed=options.seed)
        self._options = options
        self._nodes = nodes
        self._clock = clock
        self._started = clock()
        self._signatures: set[str] = set()
        self._visits: list[Visit] = []

    def runs(self) -> Runs:
        """Yield the schedules to run; send the outcome of each."""
        clean = yield from self._clean_runs()
        if clean is not None:
            yield from self._explore(clean)
        self.result.seconds = self._clock() - self._started

    def _run(self, schedule: Schedule) -> Generator[Schedule, Outcome, Outcome]:
        outcome = yield schedule
        self.result.runs += 1
        return outcome

    def _clean_runs(self) -> Generator[Schedule, Outcome, list[Visit] | None]:
        """Run without faults; return the visited points, or None if the test cannot be explored."""
        visits: list[Visit] = []
        for number in range(CLEAN_RUNS):
            outcome = yield from self._run(CLEAN)
            if outcome.verdict is RunVerdict.SKIPPED:
                self.result.problem = f"skipped: {outcome.message}"
                return None
            if outcome.failed:
                again = "" if number == 0 else f" (clean run {number + 1} of {CLEAN_RUNS}; the first one passed)"
                self.result.problem = f"the test fails without a fault{again}: {outcome.message}"
                return None
            names = {visit.point.partition for visit in outcome.visits}
            if number and names != {visit.point.partition for visit in visits}:
                self.result.notes.append(
                    "the test uses other topics in each run, so points are counted without their partitions"
                )
                visits = _without_partitions(visits)
            elif not number:
                visits = outcome.visits
        if not visits:
            self.result.notes.append("the test sent no request to the cluster: there is no point at which to fail")
        self.result.points = len(visits)
        return visits

    def _explore(self, visits: list[Visit]) -> Runs:
        self._visits = visits
        pool = self._single_faults(visits)
        share = pool[self._options.shard :: self._options.shards]
        schedules = [Schedule((planned,)) for planned in share] if self._options.singles else []
        schedules += self._combinations(pool)
        for number, schedule in enumerate(schedules):
            if self._over():
                self.result.left_out = len(schedules) - number
                return
            outcome = yield from self._run(schedule)
            self.result.count(schedule, outcome)
            if outcome.failed:
                yield from self._shrink(schedule, outcome)

    def _over(self) -> bool:
        budget = self._options.budget_seconds
        if budget is not None and self._clock() - self._started >= budget:
            return True
        return len(self.result.findings) >= self._options.max_findings

    # What to run

    def _single_faults(self, visits: list[Visit]) -> list[PlannedFault]:
        """Return every fault at every point, new situations first."""
        apis = {visit.point.api for visit in visits}
        traits = Traits(
            self._nodes,
            groups=bool(apis & _GROUP_APIS),
            transactions="EndTxn" in apis or "AddPartitionsToTxn" in apis,
        )
        kinds: dict[tuple[str, str, str | None, str], list[Point]] = {}
        for visit in visits:
            if self._options.apis is None or visit.point.api in self._options.apis:
                kinds.setdefault(visit.kind, []).append(visit.point)
        self.result.kinds_of_points = len(kinds)
        ranked: list[list[PlannedFault]] = []
        for points in kinds.values():
            for rank, point in enumerate(points if self._options.every_point else _representatives(points)):
                while len(ranked) <= rank:
                    ranked.append([])
                ranked[rank] += [PlannedFault(fault, point) for fault in self._options.faults.faults_at(point, traits)]
        return [planned for group in ranked for planned in _interleave(group)]

    def _combinations(self, pool: list[PlannedFault]) -> list[Schedule]:
        """Return the random combinations of this shard; the seed decides them."""
        if len(pool) < 2:
            return []
        chooser = random.Random(self._options.seed)
        schedules = [
            Schedule(tuple(chooser.sample(pool, min(len(pool), chooser.randint(2, MAX_FAULTS)))))
            for _ in range(self._options.combinations)
        ]
        return schedules[self._options.shard :: self._options.shards]

    # What happened

    def _shrink(self, schedule: Schedule, outcome: Outcome) -> Runs:
        """Find the fewest faults at the earliest points that still fail, and repeat them."""
        if _signature(outcome) in self._signatures:
            return
        happened = Schedule(
            tuple(planned for index, planned in enumerate(schedule.faults) if index in outcome.injected)
        )
        best, best_outcome = schedule, outcome
        for candidate in _candidates(happened):
            if len(candidate.faults) >= len(best.faults):
                continue
            tried = yield from self._run(candidate)
            if tried.failed:
                best, best_outcome = candidate, tried
                break
        for index, planned in enumerate(best.faults):
            for point in self._earlier(planned.point):
                faults = list(best.faults)
                faults[index] = planned._replace(point=point)
                candidate = Schedule(tuple(faults))
                tried = yield from self._run(candidate)
                if tried.failed and len(tried.injected) == len(faults):
                    best, best_outcome = candidate, tried
                    break
        finding = Finding(best, best_outcome, shrunk_from=schedule)
        for _ in range(self._options.repetitions):
            repeated = yield from self._run(best)
            finding.runs += 1
            if repeated.failed:
                finding.failures += 1
                finding.outcome = repeated
        # The failure after shrinking may be one that is known already.
        signatures = {_signature(outcome), _signature(finding.outcome)}
        if not signatures & self._signatures:
            self.result.findings.append(finding)
        self._signatures |= signatures

    def _earlier(self, point: Point) -> list[Point]:
        """Return the first points of the same API and partition before this one."""
        return [
            Point(point.api, ordinal, point.partition) for ordinal in range(1, min(point.ordinal, EARLIER_TRIES + 1))
        ]


def replay(name: str, schedule: Schedule, repetitions: int) -> Generator[Schedule, Outcome, Result]:
    """Run one schedule again; return a result with a finding if it fails."""
    result = Result(name)
    finding: Finding | None = None
    for _ in range(repetitions):
        outcome = yield schedule
        result.runs += 1
        result.count(schedule, outcome)
        if len(outcome.injected) < len(schedule.faults):
            result.notes.append("a fault of the schedule did not happen: the test did not send that request")
        if outcome.failed and finding is None:
            finding = Finding(schedule, outcome, runs=0, failures=0)
            result.findings.append(finding)
        if finding is not None:
            finding.failures += outcome.failed
    if finding is not None:
        finding.runs = repetitions
    return result


def _representatives(points: Sequence[Point]) -> list[Point]:
    """Return the first, the last and the second of points that behave alike."""
    chosen = [points[0], points[-1], *points[1:2]]
    return list(dict.fromkeys(chosen))[:REPRESENTATIVES]


def _interleave(faults: list[PlannedFault]) -> list[PlannedFault]:
    """Return the faults so that the first ones differ in API and kind of fault."""
    by_api: dict[str, list[PlannedFault]] = {}
    order = {"Produce": 0, "Fetch": 2}
    for planned in faults:
        by_api.setdefault(planned.point.api, []).append(planned)
    queues = sorted(
        by_api.values(),
        key=lambda queue: order.get(queue[0].point.api, 1 if queue[0].point.role == COORDINATOR else 3),
    )
    mixed = []
    while any(queues):
        mixed += [queue.pop(0) for queue in queues if queue]
    return mixed


def _candidates(schedule: Schedule) -> list[Schedule]:
    """Return the smaller schedules to try: each fault alone, then all pairs, and so on."""
    from itertools import combinations

    return [
        Schedule(chosen) for size in range(len(schedule.faults)) for chosen in combinations(schedule.faults, size)
    ] + [schedule]


def _signature(outcome: Outcome) -> str:
    """Return what tells two failures apart: the first line of the message and the broken promises."""
    head = outcome.message.partition("\n")[0]
    kinds = sorted({violation.partition(":")[0] for violation in outcome.violations})
    return "|".join([head if not kinds else "", *kinds])


def _without_partitions(visits: list[Visit]) -> list[Visit]:
    counts: dict[str, int] = {}
    renamed = []
    for visit in visits:
        counts[visit.point.api] = counts.get(visit.point.api, 0) + 1
        renamed.append(visit._replace(point=Point(visit.point.api, counts[visit.point.api])))
    return renamed
