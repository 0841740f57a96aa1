"""Explorations over the control API: a test in another language asks for the next schedule and reports its verdict."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ottla.testing.explore.injector import Injector
from ottla.testing.explore.options import explore_options
from ottla.testing.explore.outcome import Outcome, RunVerdict
from ottla.testing.explore.runner import PromiseChecker
from ottla.testing.explore.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from ottla.testing.control.controlled_cluster import ControlledCluster
    from ottla.testing.explore.schedule import Schedule


class ExplorationStateError(RuntimeError):
    """A request in the wrong order: `next` without a verdict on the run in progress, or a verdict without a run."""


class RemoteExploration:
    """An exploration whose runs another process makes."""

    def __init__(self, number: int, cluster: ControlledCluster, name: str, options: Mapping[str, Any]) -> None:
        self.number = number
        self._cluster = cluster
        self._options = explore_options(**options)
        self._strategy = Strategy(name, self._options, nodes=len(cluster.nodes()))
        self._promises = PromiseChecker(self._options)
        self._runs: Generator[Schedule, Outcome, None] = self._strategy.runs()
        self._next: Schedule | None = next(self._runs)
        self._run: Injector | None = None
        self._run_number = 0

    def next_run(self) -> dict[str, Any]:
        """Reset the cluster and arm the next schedule; `done` if there is none."""
        if self._run is not None:
            raise ExplorationStateError("a run is in progress; send its verdict first")
        if self._next is None:
            return {"exploration": self.number, "done": True, "run": self._run_number, "schedule": None, "faults": []}
        self._cluster.reset()
        self._run_number += 1
        schedule = self._next
        self._run = Injector(self._cluster, schedule, self._options.late_seconds)
        return {
            "exploration": self.number,
            "done": False,
            "run": self._run_number,
            "schedule": str(schedule),
            "faults": [planned.describe() for planned in schedule.faults],
        }

    def finish_run(self, *, passed: bool, message: str = "", reported: bool = False) -> dict[str, Any]:
        """Take the test's verdict on the run in progress; `reported` if the client library reported the fault."""
        if self._run is None:
            raise ExplorationStateError("no run is in progress; ask for the next one first")
        injector, self._run = self._run, None
        schedule = injector.schedule
        verdict = RunVerdict.PASSED if passed else RunVerdict.FAILED
        names = [planned.fault.code.name for planned in schedule.faults if planned.fault.code is not None]
        if not passed and schedule.reported and (reported or any(name in message for name in names)):
            verdict = RunVerdict.REPORTED
        outcome = self._promises.conclude(self._cluster, injector, verdict, message)
        try:
            self._next = self._runs.send(outcome)
        except StopIteration:
            self._next = None
        return {"verdict": outcome.verdict.value, "violations": outcome.violations}

    def result(self) -> dict[str, Any]:
        """Return the result so far."""
        return {"exploration": self.number, "done": self._next is None, **self._strategy.result.to_json()}


class RemoteExplorations:
    """The explorations of one cluster, by number. Only the last one can run: they share the cluster."""

    def __init__(self, cluster: ControlledCluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self._explorations: dict[int, RemoteExploration] = {}

    def start(self, name: str, options: Mapping[str, Any]) -> RemoteExploration:
        """Start an exploration; ValueError if an option is wrong."""
        exploration = RemoteExploration(next(self._numbers), self._cluster, name, options)
        self._explorations[exploration.number] = exploration
        return exploration

    def find(self, number: int) -> RemoteExploration:
        """Return an exploration; KeyError if there is none."""
        if number not in self._explorations:
            raise KeyError(f"there is no exploration {number}")
        return self._explorations[number]
