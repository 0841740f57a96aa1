"""The fault explorer: runs a test again and again with Kafka's failures, and shrinks the failure that breaks it.

Names are imported on first use, because the pytest plugin reads the options of this package in every run of pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.testing.explore.explorer import explore, replay_schedule
    from ottla.testing.explore.faults import FAULTS, UnknownFaultError
    from ottla.testing.explore.outcome import Finding, Outcome, Result, RunVerdict
    from ottla.testing.explore.schedule import PlannedFault, Schedule, parse_schedule

_MODULES = {
    "FAULTS": "faults",
    "Finding": "outcome",
    "Outcome": "outcome",
    "PlannedFault": "schedule",
    "Result": "outcome",
    "RunVerdict": "outcome",
    "Schedule": "schedule",
    "UnknownFaultError": "faults",
    "explore": "explorer",
    "parse_schedule": "schedule",
    "replay_schedule": "explorer",
}

__all__ = [
    "FAULTS",
    "Finding",
    "Outcome",
    "PlannedFault",
    "Result",
    "RunVerdict",
    "Schedule",
    "UnknownFaultError",
    "explore",
    "parse_schedule",
    "replay_schedule",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
