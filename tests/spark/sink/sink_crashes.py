"""Crash an exactly-once write at its n-th request, without Spark, against any broker.

`python -m tests.spark.sink.sink_crashes BOOTSTRAP [--cases N] [--seed N]` runs random cases against a running
broker; `all_cases` lists every request of a batch times every accident. No batch is reproducible: each attempt
writes other rows, with another number of tasks, and of every batch the rows of one attempt must be there, once.
"""

from __future__ import annotations

import argparse
import random
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from ottla.client.client import Client
from ottla.client.connection import BrokerConnection
from ottla.client.transactions import fence
from ottla.spark.sink.bookkeeping import open_transactions
from ottla.spark.sink.exactly_once import make_commit
from ottla.spark.sink.task import ExactlyOnceTask, TaskAttempt
from ottla.spark.sink.writer import SinkPlan
from tests.spark.consume import consume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 4
REQUESTS = 60  # more than a batch of three tasks sends
SCHEMA = StructType().add("key", StringType()).add("value", StringType())


class Killed(BaseException):
    """The process is dead: every further request raises this too."""


@dataclass(frozen=True)
class Accident:
    """What happens at a request of batch 1, and before it runs again."""

    request: int
    after: bool
    """After the broker has handled it; otherwise before it is sent."""
    zombie: bool = False
    """The process is not killed, but stands still while another one runs the batch, and then continues."""
    expire: bool = False
    """The broker aborts every open transaction of the query meanwhile."""
    again: int | None = None
    """The process that runs the batch again is killed at this request, and a third one runs it."""


@dataclass
class Sink:
    """One query on one topic."""

    bootstrap: str
    topic: str
    expire: Callable[[str], None]
    query: str = field(default_factory=lambda: str(uuid.uuid4()))
    options: dict[str, str] = field(default_factory=dict)

    @property
    def plan(self) -> SinkPlan:
        given = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.topic, "exactlyOnce": "true"}
        return SinkPlan.parse({**given, **self.options}, SCHEMA)

    def task(self, batch: int, task: int, run: str, rows: int = ROWS, attempt: int = 0) -> Any:
        keys = [f"{self.query}/{batch}/{run}/{task}/{number}" for number in range(rows)]
        batches = iter([pa.RecordBatch.from_pydict({"key": keys, "value": keys})])
        return ExactlyOnceTask(self.plan, TaskAttempt(self.query, batch, task, attempt, run)).run(batches)

    def write(self, batch: int, tasks: int, run: str) -> None:
        """Run a batch as a driver does: tasks, then the commit. A run writes `tasks * ROWS` rows per batch."""
        results = [self.task(batch, task, run) for task in range(tasks)]
        make_commit(self.plan, self.query, run).commit(batch, results)

    def expire_all(self) -> None:
        with Client(self.bootstrap, timeout=60) as client:
            for name in open_transactions(client, self.query):
                self.expire(name)


@contextmanager
def interrupted(number: int, after: bool, action: Callable[[], None]) -> Iterator[list[str]]:
    """Call `action` around the n-th request, in this thread; the list has the names of all requests."""
    original = BrokerConnection.send
    names: list[str] = []
    busy = False
    dead: list[Killed] = []

    def call() -> None:
        nonlocal busy
        busy = True
        try:
            action()
        except Killed as killed:
            dead.append(killed)
            raise
        finally:
            busy = False

    def send(self: Any, request: Any, *arguments: Any, **named: Any) -> Any:
        if busy:
            return original(self, request, *arguments, **named)
        if dead:
            raise dead[0]
        names.append(type(request).__name__.removesuffix("Request"))
        mine = len(names) - 1 == number
        if mine and not after:
            call()
        response = original(self, request, *arguments, **named)
        if mine and after:
            call()
        return response

    BrokerConnection.send = send  # type: ignore[method-assign]
    try:
        yield names
    finally:
        BrokerConnection.send = original  # type: ignore[method-assign]


def kill() -> None:
    raise Killed


def run_case(sink: Sink, accident: Accident) -> str:
    """Write three batches, the second one with an accident; return the request at which it happened."""
    sink.write(0, 2, "first")
    runs = iter(["second", "third"])

    def recover() -> None:
        if accident.expire:
            sink.expire_all()
        if accident.again is not None:
            with interrupted(accident.again, accident.after, kill), suppress(Killed):
                sink.write(1, 1, next(runs))
            if accident.expire:
                sink.expire_all()
        sink.write(1, 2, next(runs))

    with interrupted(accident.request, accident.after, recover if accident.zombie else kill) as names:
        try:
            sink.write(1, 3, "first")
        except Killed:
            pass
        except Exception as error:  # a zombie may fail in any way, but must not write
            if not accident.zombie:
                raise AssertionError from error
    if accident.request >= len(names):
        return ""
    if not accident.zombie:
        recover()
    sink.write(2, 3, "last")
    return names[accident.request]


def _tasks(batch: str, run: str, accident: Accident) -> int:
    """Return how many tasks a run has in a batch."""
    if batch == "0":
        return 2
    if run in ("first", "last"):
        return 3
    return 1 if run == "second" and accident.again is not None else 2


def check(bootstrap: str, topic: str, sinks: dict[str, Accident]) -> None:
    """Of every batch the rows of one run are there, once; nothing else is visible."""
    batches: dict[tuple[str, str], Counter[str]] = {}
    for seen in consume(bootstrap, topic):
        query, batch, _, _, _ = (seen.key or b"").decode().split("/")
        assert seen.key == seen.value
        batches.setdefault((query, batch), Counter())[(seen.key or b"").decode()] += 1
    for query, accident in sinks.items():
        for batch in ("0", "1", "2"):
            rows = batches.get((query, batch), Counter())
            runs = {key.split("/")[2] for key in rows}
            label = f"query {query} batch {batch}: {accident}"
            assert len(runs) == 1, f"{label} has rows of runs {sorted(runs)}"
            assert set(rows.values()) == {1}, f"{label} has rows twice: {rows}"
            tasks = {key.split("/")[3] for key in rows}
            expected = _tasks(batch, runs.pop(), accident)
            assert len(tasks) == expected, f"{label} has tasks {sorted(tasks)} instead of {expected}"
            assert len(rows) == ROWS * len(tasks), f"{label} lost rows: {sorted(rows)}"


def all_cases(requests: int = REQUESTS) -> list[Accident]:
    """Every request of a batch, before and after it, killed or paused, with and without aborted transactions."""
    return [
        Accident(request, after, zombie, expire)
        for request in range(requests)
        for after in (False, True)
        for zombie in (False, True)
        for expire in (False, True)
    ]


def random_case(chance: random.Random) -> Accident:
    """An accident, in a third of the cases followed by a second one."""
    again = chance.randrange(REQUESTS // 2) if chance.random() < 0.33 else None
    after, zombie, expire = (chance.random() < 0.5 for _ in range(3))
    return Accident(chance.randrange(REQUESTS), after, zombie, expire, again)


def run_cases(
    bootstrap: str, topic: str, cases: list[Accident], expire: Callable[[str], None], options: dict[str, str]
) -> Counter[str]:
    """Run cases and check them all at the end; return how many accidents happened at each kind of request."""
    sinks: dict[str, Accident] = {}
    happened: Counter[str] = Counter()
    for accident in cases:
        sink = Sink(bootstrap, topic, expire, options=options)
        try:
            name = run_case(sink, accident)
        except BaseException as error:
            error.add_note(f"query {sink.query}: {accident}")
            raise
        if name:
            sinks[sink.query] = accident
            happened[name] += 1
        else:
            sink.write(2, 3, "last")
            sinks[sink.query] = accident
    check(bootstrap, topic, sinks)
    return happened


def fence_of(bootstrap: str) -> Callable[[str], None]:
    """Abort a transaction as a zombie task does, which also bumps the epoch: works on any broker."""

    def expire(name: str) -> None:
        with Client(bootstrap, timeout=60) as client:
            fence(client, name)

    return expire


def main() -> None:
    from ottla.client.topics import create_topic

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    topic = f"crashes-{uuid.uuid4().hex[:8]}"
    with Client(given.bootstrap, timeout=60) as client:
        create_topic(client, topic, partitions=2, replication_factor=1)
    chance = random.Random(given.seed)
    cases = [random_case(chance) for _ in range(given.cases)]
    happened = run_cases(given.bootstrap, topic, cases, fence_of(given.bootstrap), {})
    print(f"{sum(happened.values())} accidents on {topic}: {dict(happened.most_common())}")


if __name__ == "__main__":
    main()
