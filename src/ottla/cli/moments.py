"""Points in time as people write them on a command line."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

_AGO = re.compile(r"-(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def moment(text: str) -> int:
    """Milliseconds since 1970 of `1700000000000`, `2026-11-15T10:00:00Z`, `2026-11-15`, `now` or `-15m`.

    A time without a zone is UTC.
    """
    if text == "now":
        return time.time_ns() // 1_000_000
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return time.time_ns() // 1_000_000 - int(float(ago[1]) * _UNITS[ago[2]])
    if text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time; write milliseconds since 1970, 2026-11-15T10:00:00Z, now, or -15m for a while ago"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)
