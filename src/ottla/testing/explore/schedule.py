"""Schedules: which faults happen at which points of a run. The text form replays one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.testing.explore.faults import parse_fault
from ottla.testing.explore.points import parse_point

if TYPE_CHECKING:
    from ottla.testing.explore.faults import Fault
    from ottla.testing.explore.points import Point

SEPARATOR = " + "


class PlannedFault(NamedTuple):
    """A fault at a point: `disconnect at Produce#1`."""

    fault: Fault
    point: Point

    def __str__(self) -> str:
        return f"{self.fault} at {self.point}"

    def describe(self) -> str:
        """Return the fault in words."""
        return self.fault.describe(self.point)


class Schedule(NamedTuple):
    """The faults of one run; without any it is a clean run."""

    faults: tuple[PlannedFault, ...] = ()

    def __str__(self) -> str:
        return SEPARATOR.join(map(str, self.faults)) or "no faults"

    @property
    def reported(self) -> bool:
        """Whether the application may have to raise: one of the faults is reported by client libraries."""
        return any(planned.fault.reported_at(planned.point) for planned in self.faults)


CLEAN = Schedule()


def parse_schedule(text: str) -> Schedule:
    """Return the schedule with this text form; ValueError if it is malformed.

    parse_schedule("response-lost at Produce[orders-0]#1 + disconnect at Metadata#2")
    """
    planned = []
    for part in text.split(SEPARATOR.strip()):
        fault, result, point = part.strip().partition(" at ")
        if not result:
            raise ValueError(f"{part.strip()!r} is not a fault at a point; write for example disconnect at Produce#1")
        planned.append(PlannedFault(parse_fault(fault.strip()), parse_point(point.strip())))
    return Schedule(tuple(planned))
