"""Lines of a history of `ottla.history` as events: kept as they are, for `anomalies` alone to read."""

from __future__ import annotations

import json
from typing import Final

from ottla.spark.analysis.event import CLIENT, Event

FORMAT: Final = "history"


def looks_like(line: str) -> bool:
    """Whether this is an operation of a history."""
    return line.startswith('{"') and '"process"' in line and ('"steps"' in line or '"assign"' in line)


def parse(line: str, base: Event) -> list[Event] | None:
    """The operation; None for what is none."""
    if not looks_like(line):
        return None
    try:
        fields = json.loads(line)
        process, status = str(fields["process"]), str(fields.get("status", "ok"))
        start = fields.get("start")
    except (ValueError, KeyError, TypeError):
        return None
    moment = int(start * 1000) if isinstance(start, int | float) else None
    return [
        base._replace(
            event="history", side=CLIENT, format=FORMAT, time_ms=moment, client=process, host=process, state=status
        )
    ]
