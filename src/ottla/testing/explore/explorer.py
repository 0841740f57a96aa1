"""`explore()`: explores a function of a cluster, without pytest."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from ottla.testing.explore.options import explore_options
from ottla.testing.explore.runner import Runner, RunTimeoutError
from ottla.testing.explore.schedule import Schedule, parse_schedule
from ottla.testing.explore.strategy import Strategy, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from ottla.testing.cluster import Cluster
    from ottla.testing.explore.options import ExploreOptions
    from ottla.testing.explore.outcome import Outcome, Result


def explore(function: Callable[[Cluster], Any], *, cluster: Mapping[str, Any] | None = None, **options: Any) -> Result:
    """Run a function with every single fault at every point, and return what broke it.

        def order_arrives(cluster):
            send_order(cluster.bootstrap)
            assert [record.value for record in cluster.records("orders")] == [b"two books"]

        result = explore(order_arrives, cluster={"topics": ["orders"]}, budget="60s")
        assert result.ok, result

    The function takes a `Cluster` and raises if the application failed; a coroutine function is awaited. `cluster` are
    the arguments of `Cluster`. The other options are those of the marker `kafka_explore`: `faults`, `apis`,
    `combinations`, `seed`, `budget`, `late`, `run_timeout`, `checks`, `every_point`, `max_findings`.
    """
    chosen = explore_options(**options)
    arguments = dict(cluster or {})
    strategy = Strategy(_name(function), chosen, nodes=int(arguments.get("brokers", 1)))
    _drive(function, arguments, chosen, strategy.runs())
    return strategy.result


def replay_schedule(
    function: Callable[[Cluster], Any],
    schedule: Schedule | str,
    *,
    cluster: Mapping[str, Any] | None = None,
    repetitions: int = 1,
    **options: Any,
) -> Result:
    """Run a function with the faults of one schedule, such as a finding's."""
    chosen = explore_options(**options)
    parsed = parse_schedule(schedule) if isinstance(schedule, str) else schedule
    result: Result = _drive(function, dict(cluster or {}), chosen, replay(_name(function), parsed, repetitions))
    return result


def _drive(
    function: Callable[[Cluster], Any],
    arguments: dict[str, Any],
    options: ExploreOptions,
    runs: Generator[Schedule, Outcome, Any],
) -> Any:
    from ottla.testing.cluster import Cluster

    runner = Runner(lambda: Cluster(**arguments).start(), options)

    def call(running: Cluster) -> BaseException | None:
        try:
            with runner.deadline():
                if inspect.iscoroutinefunction(function):
                    asyncio.run(function(running))
                else:
                    function(running)
        except (Exception, RunTimeoutError) as error:
            return error
        return None

    try:
        return drive(runs, lambda schedule: runner.run(schedule, call))
    finally:
        runner.close()


def drive(runs: Generator[Schedule, Outcome, Any], run: Callable[[Schedule], Outcome]) -> Any:
    """Run the schedules that a generator yields, and return its result."""
    try:
        schedule = next(runs)
        while True:
            schedule = runs.send(run(schedule))
    except StopIteration as stop:
        return stop.value


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function)).rpartition(".<locals>.")[2]
