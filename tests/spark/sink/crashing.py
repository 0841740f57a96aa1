"""An exactly-once sink that kills a process once, before or after a given step.

`crash` names the step. The crash creates the file `crash.flag`, so that the next run does not crash.
`crash.kill` is the id of the process to kill (the driver's JVM); by default the Python worker exits.
With `crash.partner`, the flag of another query in the same driver, the crash waits until that query crashes too.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from ottla.spark.sink.exactly_once import ExactlyOnceTask, ExactlyOnceWriter, TaskAttempt
from ottla.spark.sink.writer import SinkPlan

if TYPE_CHECKING:
    from collections.abc import Callable

# In the order of a batch. Steps of a task crash in task 0; "rows" crashes after the first row was sent.
TASK_STEPS = (
    "before fence",
    "after fence",
    "after look",
    "after first row",
    "after flush",
    "after record",
    "after commit",
)
# One task has committed, another one has not.
PARTLY = "other task after flush"
DRIVER_STEPS = ("driver before commit", "driver after commit")


class Crash:
    """The step at which to kill a process, and which process."""

    def __init__(self, options: dict[str, str]) -> None:
        self.step = options.get("crash", "")
        self.flag = options.get("crash.flag", "")
        self.batch = int(options.get("crash.batch", "1"))
        self.pid = int(options.get("crash.kill", "0"))
        self.partner = options.get("crash.partner", "")

    def reached(self, step: str, batch: int) -> None:
        """Kill the process if this is the chosen attempt and the flag does not exist yet."""
        if step != self.step or batch != self.batch or os.path.exists(self.flag):
            return
        with open(self.flag, "x"):
            pass
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
        elif self.attempt.task == 1:
            self._crash.reached(f"other task {step}", self.attempt.batch)

    def fence(self, producer: Any) -> None:
        self.reached("before fence")
        super().fence(producer)
        self.reached("after fence")

    def last_committed(self, client: Any) -> Any:
        committed = super().last_committed(client)
        self.reached("after look")
        return committed

    def send(self, producer: Any, row: Any) -> None:
        super().send(producer, row)
        self._sent += 1
        if self._sent == 1:
            if self._crash.step == "after first row":
                producer.flush()
            self.reached("after first row")

    def flush(self, producer: Any) -> None:
        super().flush(producer)
        if self._crash.step == PARTLY and self.attempt.task == 1 and self.attempt.batch == self._crash.batch:
            self._wait_for_the_other(producer)
        self.reached("after flush")

    def record(self, producer: Any, topic: str, written: Any) -> None:
        super().record(producer, topic, written)
        self.reached("after record")

    def commit(self, producer: Any) -> None:
        super().commit(producer)
        self.reached("after commit")

    def _wait_for_the_other(self, producer: Any) -> None:
        """Return when task 0 has committed this batch."""
        other = ExactlyOnceTask(self.plan, TaskAttempt(self.attempt.query, self.attempt.batch, 0))
        with self.plan.client() as client:
            while True:
                committed = other.last_committed(client)
                if committed is not None and committed.batch >= self.attempt.batch:
                    return


class CrashingWriter(ExactlyOnceWriter):
    """A writer that passes its crash to its tasks."""

    def __init__(self, plan: SinkPlan, crash: Crash) -> None:
        super().__init__(plan)
        self._crash = crash

    @property
    def task(self) -> Callable[[SinkPlan, TaskAttempt], ExactlyOnceTask]:  # type: ignore[override]
        return lambda plan, attempt: CrashingTask(plan, attempt, self._crash)

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self._crash.reached("driver before commit", batchId)
        super().commit(messages, batchId)
        self._crash.reached("driver after commit", batchId)


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
