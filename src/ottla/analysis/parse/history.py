"""Parse lines of a history of `ottla.history`: each operation becomes one event with the line as its text."""

from __future__ import annotations

from typing import Final

from ottla.analysis.event import CLIENT, Event
from ottla.history import read_history

FORMAT: Final = "history"


def looks_like(line: str) -> bool:
    """Return whether a line is an operation of a history."""
    return line.startswith('{"') and '"process"' in line and ('"steps"' in line or '"assign"' in line)


def parse(line: str, base: Event) -> list[Event] | None:
    """Return the operation as an event, or None if the line is none."""
    if not looks_like(line):
        return None
    try:
        (operation,) = read_history([line])
        moment = None if operation.start is None else int(operation.start * 1000)
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    process, status = str(operation.process), str(operation.status)
    return [
        base._replace(
            event="history", side=CLIENT, format=FORMAT, time_ms=moment, client=process, host=process, state=status
        )
    ]
