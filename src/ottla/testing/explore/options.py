"""The options of an exploration, checked where a test writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.testing.control.run_history import Check
from ottla.testing.explore.faults import FaultSelection, check_apis

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_SEED = 1
LATE_SECONDS = 1.0
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|m|h)?\s*\Z")


@dataclass(frozen=True, slots=True)
class ExploreOptions:
    """What to explore, and for how long.

    - `faults` and `apis` choose faults and points; without them all are explored.
    - `combinations` is the number of random schedules of two to five faults after the single ones.
    - `budget_seconds` ends the exploration; the result says what was left out.
    - `late_seconds` is the delay of `response-late`: choose more than the client's request timeout.
    - `checks` are the promises that are checked after each run besides the test's own assertions.
    - `every_point` explores all points; otherwise points that behave alike are represented by three of them.
    - `shard` of `shards` explores every nth schedule, so that processes share the work.
    - `max_findings` ends the exploration after that many different failures.
    """

    faults: FaultSelection
    apis: frozenset[str] | None = None
    combinations: int = 0
    seed: int = DEFAULT_SEED
    budget_seconds: float | None = None
    late_seconds: float = LATE_SECONDS
    run_seconds: float | None = None
    checks: tuple[Check, ...] = tuple(Check)
    every_point: bool = False
    singles: bool = True
    shard: int = 0
    shards: int = 1
    max_findings: int = 3
    repetitions: int = 3


def explore_options(
    *,
    faults: Iterable[str] | None = None,
    apis: Iterable[str] | None = None,
    combinations: int = 0,
    seed: int = DEFAULT_SEED,
    budget: float | str | None = None,
    late: float | str = LATE_SECONDS,
    run_timeout: float | str | None = None,
    checks: Iterable[str] | None = None,
    every_point: bool = False,
    max_findings: int = 3,
) -> ExploreOptions:
    """Return checked options; ValueError names the valid values of the one that is wrong."""
    if isinstance(faults, str):
        faults = [faults]
    if not isinstance(combinations, int) or combinations < 0:
        raise ValueError(f"combinations must be 0 or more, not {combinations!r}")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"a seed is a whole number, not {seed!r}")
    if max_findings < 1:
        raise ValueError(f"max_findings must be 1 or more, not {max_findings!r}")
    return ExploreOptions(
        FaultSelection(faults),
        check_apis(apis),
        combinations,
        seed,
        None if budget is None else parse_seconds(budget),
        parse_seconds(late),
        None if run_timeout is None else parse_seconds(run_timeout),
        _checks(checks),
        every_point,
        max_findings=max_findings,
    )


def parse_seconds(duration: float | str) -> float:
    """Return a duration in seconds: a number, or text such as `60s`, `500ms`, `5min`."""
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        if duration > 0:
            return float(duration)
    elif isinstance(duration, str) and (match := _DURATION.match(duration)) and float(match[1]) > 0:
        return float(match[1]) * _UNITS[match[2] or "s"]
    raise ValueError(f"{duration!r} is not a duration; write seconds, or text such as 60s, 500ms, 5min")


def _checks(names: Iterable[str] | None) -> tuple[Check, ...]:
    if names is None:
        return tuple(Check)
    chosen = [names] if isinstance(names, str) else list(names)
    known = {check.value: check for check in Check}
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"there is no check {unknown[0]!r}; the checks are {', '.join(known)}")
    return tuple(known[name] for name in chosen)
