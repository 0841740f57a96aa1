"""An exactly-once sink that kills a process once, or pauses, before or after a given step.

`crash` names the step. The crash creates the file `crash.flag`, so that the next run does not crash.
`crash.kill` is the id of the process to kill (the driver's JVM); by default the Python process of the step exits.
With `crash.pause`, the process sleeps for that many seconds and then continues.
With `crash.partner`, the flag of another query in the same driver, the crash waits until that query crashes too.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from ottla.spark.sink.commit import BatchCommit
from ottla.spark.sink.exactly_once import ExactlyOnceWriter, make_commit
from ottla.spark.sink.task import ExactlyOnceTask, TaskAttempt
from ottla.spark.sink.writer import SinkPlan

if TYPE_CHECKING:
    from collections.abc import Callable

# In the order of a batch. Steps of a task crash in task 0.
TASK_STEPS = ("after look", "after open", "after first row", "after flush")
DRIVER_STEPS = (
    "before fence",
    "after fence",
    "after read",
    "after check",
    "before decision",
    "after decision",
    "after first end",
    "after commit",
)


class Crash:
    """The step at which to kill a process, and which process."""

    def __init__(self, options: dict[str, str]) -> None:
        self.step = options.get("crash", "")
        self.flag = options.get("crash.flag", "")
        self.batch = int(options.get("crash.batch", "1"))
        self.pid = int(options.get("crash.kill", "0"))
        self.pause = float(options.get("crash.pause", "0"))
        self.partner = options.get("crash.partner", "")

    def reached(self, step: str, batch: int) -> None:
        """Kill the process if this is the chosen attempt and the flag does not exist yet; batch -1 is any batch."""
        if step != self.step or self.batch not in (batch, -1) or os.path.exists(self.flag):
            return
        with open(self.flag, "x"):
            pass
        if self.pause:
            time.sleep(self.pause)
            return
        while self.partner and not os.path.exists(self.partner) and _runs(self.pid):
            time.sleep(0.02)
        if self.pid and _runs(self.pid):
            os.kill(self.pid, signal.SIGKILL)
        os._exit(9)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class CrashingTask(ExactlyOnceTask):
    """A task that kills a process at one step."""

    def __init__(self, plan: SinkPlan, attempt: TaskAttempt, crash: Crash) -> None:
        super().__init__(plan, attempt)
        self._crash = crash
        self._sent = 0

    def reached(self, step: str) -> None:
        if self.attempt.task == 0:
            self._crash.reached(step, self.attempt.batch)

    def is_decided(self, client: Any) -> bool:
        decided = super().is_decided(client)
        self.reached("after look")
        return decided

    def fence(self, producer: Any) -> None:
        super().fence(producer)
        self.reached("after open")

    def send(self, producer: Any, row: Any) -> None:
        super().send(producer, row)
        self._sent += 1
        if self._sent == 1:
            if self._crash.step == "after first row":
                producer.flush()
            self.reached("after first row")

    def flush(self, producer: Any) -> None:
        super().flush(producer)
        self.reached("after flush")


class CrashingCommit(BatchCommit):
    """A commit that kills a process at one step."""

    crash: Crash
    batch: int

    def commit(self, batch: int, results: Any) -> Any:
        self.batch = batch
        self.reached("before fence")
        decision = super().commit(batch, results)
        self.reached("after commit")
        return decision

    def reached(self, step: str) -> None:
        self.crash.reached(step, self.batch)

    def fence(self, client: Any) -> Any:
        producer = super().fence(client)
        self.reached("after fence")
        return producer

    def read(self, client: Any) -> Any:
        decision = super().read(client)
        self.reached("after read")
        return decision

    def check(self, client: Any, results: Any) -> Any:
        dead = super().check(client, results)
        self.reached("after check")
        return dead

    def record(self, client: Any, producer: Any, decision: Any, aborted: Any = (), found: Any = None) -> None:
        commit = producer.commit

        def crash_first() -> None:
            self.reached("before decision")
            commit()

        producer.commit = crash_first
        super().record(client, producer, decision, aborted, found)
        producer.commit = commit
        self.reached("after decision")

    def end(self, client: Any, transactions: Any) -> Any:
        if self.crash.step == "after first end" and len(transactions) > 1:
            left = super().end(client, transactions[:1])
            self.reached("after first end")
            return left + super().end(client, transactions[1:])
        return super().end(client, transactions)


class CrashingWriter(ExactlyOnceWriter):
    """A writer that passes its crash to its tasks and its commits."""

    def __init__(self, plan: SinkPlan, crash: Crash) -> None:
        super().__init__(plan)
        self._crash = crash

    @property
    def task(self) -> Callable[[SinkPlan, TaskAttempt], ExactlyOnceTask]:  # type: ignore[override]
        return lambda plan, attempt: CrashingTask(plan, attempt, self._crash)

    def _batch_commit(self, attempt: TaskAttempt) -> BatchCommit:
        commit = make_commit(self.plan, attempt.query, attempt.run, CrashingCommit)
        assert isinstance(commit, CrashingCommit)
        commit.crash = self._crash
        commit.batch = attempt.batch
        return commit


class CrashingSink(DataSource):
    """Format "ottla-crashing"."""

    @classmethod
    def name(cls) -> str:
        return "ottla-crashing"

    def streamWriter(self, schema: Any, overwrite: bool) -> CrashingWriter:  # noqa: N802
        mine = {name: value for name, value in self.options.items() if name.startswith("crash")}
        others = {name: value for name, value in self.options.items() if not name.startswith("crash")}
        plan = SinkPlan.parse(others, schema)
        plan.check_target()
        return CrashingWriter(plan, Crash(mine))


def register_crashing(spark: Any) -> None:
    """Register the format; its classes are pickled by value, because workers cannot import the tests."""
    import sys

    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(CrashingSink)
