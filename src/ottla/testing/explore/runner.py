"""Runs a test against one cluster again and again: resets it, injects the schedule, judges the run."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import signal
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from ottla.testing.control.run_history import Check
from ottla.testing.explore.injector import Injector
from ottla.testing.explore.outcome import Outcome, RunVerdict, judge

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator

    from ottla.testing.cluster import Cluster
    from ottla.testing.control.controlled_cluster import ControlledCluster
    from ottla.testing.control.run_history import RecordContent
    from ottla.testing.explore.options import ExploreOptions
    from ottla.testing.explore.schedule import Schedule

MIN_RUN_SECONDS = 15.0
CLEAN_RUN_FACTOR = 10
MESSAGE_CHARACTERS = 2_000
CLOSING_SECONDS = 0.2


class RunTimeoutError(BaseException):
    """A run took too long. Not an Exception, so that an application that catches those does not catch it."""


class PromiseChecker:
    """Checks after each run what no Kafka application should break; clean runs show what the application sends."""

    def __init__(self, options: ExploreOptions) -> None:
        self._options = options
        self._sent: Counter[RecordContent] | None = None
        self.clean_seconds = 0.0
        """The duration of the longest clean run."""

    def conclude(self, cluster: ControlledCluster, injector: Injector, verdict: RunVerdict, message: str) -> Outcome:
        """End a run: stop injecting, check the promises if the test passed, and add the timeline of a failure."""
        seconds = time.monotonic() - injector.started
        injector.remove()
        outcome = Outcome(
            verdict,
            message,
            visits=injector.visits,
            injected=frozenset(injector.injected),
            seconds=seconds,
        )
        if outcome.verdict is RunVerdict.PASSED:
            self._check(cluster, injector.schedule, outcome)
        if outcome.failed:
            outcome.timeline = injector.timeline()
        return outcome

    def _check(self, cluster: ControlledCluster, schedule: Schedule, outcome: Outcome) -> None:
        """Fail a run whose test passed although a promise was broken."""
        history = cluster.history()
        checks = list(self._options.checks)
        if not schedule.faults:
            sent = history.contents()
            self._sent = sent if self._sent is None else self._sent | sent
            self.clean_seconds = max(self.clean_seconds, outcome.seconds)
            checks = [check for check in checks if check is not Check.DUPLICATE]
        outcome.violations = [str(violation) for violation in history.violations(checks=checks, sent=self._sent)]
        if outcome.violations:
            outcome.verdict = RunVerdict.FAILED
            outcome.message = f"the test passed, but {outcome.violations[0]}"


class Runner:
    """One test and its cluster. The cluster is reset between runs; it is replaced if a client stays connected."""

    def __init__(self, start_cluster: Callable[[], Cluster], options: ExploreOptions) -> None:
        self._start_cluster = start_cluster
        self._options = options
        self._cluster: Cluster | None = None
        self._promises = PromiseChecker(options)

    def cluster(self) -> Cluster:
        """Return the cluster of the next run, reset to the state after its start."""
        if self._cluster is None:
            self._cluster = self._start_cluster()
        return self._cluster

    def close(self) -> None:
        """Stop the cluster."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def run(self, schedule: Schedule, call: Callable[[Cluster], BaseException | None]) -> Outcome:
        """Run the test with the faults of a schedule. `call` runs it and returns the exception that it raised."""
        cluster = self.cluster()
        injector = Injector(cluster, schedule, self._options.late_seconds)
        error = call(cluster)
        verdict = RunVerdict.SKIPPED if type(error).__name__ == "Skipped" else judge(error, schedule)
        outcome = self._promises.conclude(cluster, injector, verdict, "" if error is None else _message(error))
        if error is not None:
            traceback.clear_frames(error.__traceback__)
        del error
        self._prepare(cluster)
        return outcome

    def _prepare(self, cluster: Cluster) -> None:
        """Reset the cluster for the next run, or replace it if a client of this run is still connected."""
        if cluster.connections():
            gc.collect()
            end = time.monotonic() + CLOSING_SECONDS
            while (connected := cluster.connections()) and time.monotonic() < end:
                time.sleep(0.005)
            if connected:
                self.close()
                return
        cluster.reset()

    @contextlib.contextmanager
    def deadline(self) -> Iterator[None]:
        """Raise RunTimeoutError in the body if it takes much longer than the clean runs."""
        seconds = self._options.run_seconds or max(MIN_RUN_SECONDS, CLEAN_RUN_FACTOR * self._promises.clean_seconds)
        with interrupt_after(seconds):
            yield


@contextlib.contextmanager
def interrupt_after(seconds: float) -> Iterator[None]:
    """Raise RunTimeoutError in this thread after some seconds, also while it waits, where signals allow that."""

    def expired(*_: Any) -> None:
        raise RunTimeoutError(f"the test did not end within {seconds:g} s")

    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        previous = signal.signal(signal.SIGALRM, expired)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        return
    thread_id = threading.get_ident()
    timer = threading.Timer(
        seconds,
        lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread_id), ctypes.py_object(RunTimeoutError)
        ),
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _message(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    location = f"\n  at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return text[:MESSAGE_CHARACTERS] + location
