"""The outcome of runs: what one run did, and what an exploration concludes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.testing.explore.schedule import CLEAN, Schedule

if TYPE_CHECKING:
    from ottla.testing.explore.points import Visit

NOT_REACHED = "not reached"
CLIENT_LIBRARIES = frozenset({"confluent_kafka", "cimpl", "aiokafka", "kafka", "ottla"})


class RunVerdict(Enum):
    """The verdict on one run."""

    PASSED = "passed"
    REPORTED = "reported"
    """The client library reported the fault and the application raised it: it did not hide the failure."""
    FAILED = "failed"
    SKIPPED = "skipped"


class TimelineEntry(NamedTuple):
    """A request, a response or a fault of a run, for the report."""

    time_ms: int
    text: str
    api: str = ""
    client_id: str = ""
    fault: bool = False


@dataclass(slots=True)
class Outcome:
    """What one run did: its verdict, why, the points that it visited and the faults that happened."""

    verdict: RunVerdict
    message: str = ""
    violations: list[str] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    injected: frozenset[int] = frozenset()
    """Indexes of the schedule's faults that happened."""
    seconds: float = 0.0
    timeline: list[TimelineEntry] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether the application or a check failed."""
        return self.verdict is RunVerdict.FAILED


def judge(error: BaseException | None, schedule: Schedule) -> RunVerdict:
    """Return the verdict on a run that ended with this exception.

    An application that raises a client library's error for a fault that the library must report has not failed.
    """
    if error is None:
        return RunVerdict.PASSED
    return RunVerdict.REPORTED if schedule.reported and _reports(error, schedule) else RunVerdict.FAILED


def _reports(error: BaseException, schedule: Schedule) -> bool:
    """Return whether the exception, or one that it was raised from, is a client library's or names the fault."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if type(current).__module__.partition(".")[0] in CLIENT_LIBRARIES:
            return True
        text = str(current)
        if any(planned.fault.code is not None and planned.fault.code.name in text for planned in schedule.faults):
            return True
        current = current.__cause__ or current.__context__
    return False


@dataclass(slots=True)
class Finding:
    """A failure that the explorer found and shrank. `failures` of `runs` repetitions failed."""

    schedule: Schedule
    outcome: Outcome
    runs: int = 1
    failures: int = 1
    shrunk_from: Schedule = CLEAN

    @property
    def deterministic(self) -> bool:
        """Whether every repetition failed."""
        return self.failures == self.runs


@dataclass(slots=True)
class Result:
    """The result of an exploration: findings, and a table of what was explored."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    problem: str | None = None
    """Why the test was not explored."""
    runs: int = 0
    seconds: float = 0.0
    seed: int = 0
    points: int = 0
    kinds_of_points: int = 0
    left_out: int = 0
    """Schedules that the budget did not reach."""
    table: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """Number of runs by role, API, fault and verdict; the verdict is `not reached` if the fault did not happen."""
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the test was explored and no failure was found."""
        return not self.findings and self.problem is None

    def count(self, schedule: Schedule, outcome: Outcome) -> None:
        """Add the verdict on a run to the table, for each fault of its schedule."""
        for index, planned in enumerate(schedule.faults):
            verdict = outcome.verdict.value if index in outcome.injected else NOT_REACHED
            self.table[planned.point.role, planned.point.api, str(planned.fault), verdict] += 1

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "name": self.name,
            "ok": self.ok,
            "problem": self.problem,
            "runs": self.runs,
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "points": self.points,
            "kinds_of_points": self.kinds_of_points,
            "left_out": self.left_out,
            "notes": self.notes,
            "findings": [
                {
                    "schedule": str(finding.schedule),
                    "faults": [planned.describe() for planned in finding.schedule.faults],
                    "message": finding.outcome.message,
                    "violations": finding.outcome.violations,
                    "runs": finding.runs,
                    "failures": finding.failures,
                    "timeline": [entry._asdict() for entry in finding.outcome.timeline],
                }
                for finding in self.findings
            ],
            "table": [
                {"role": role, "api": api, "fault": fault, "verdict": verdict, "runs": runs}
                for (role, api, fault, verdict), runs in sorted(self.table.items())
            ],
        }
