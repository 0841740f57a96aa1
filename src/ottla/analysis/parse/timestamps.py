"""Parse the times that log frameworks write into milliseconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_DATED: Final = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?"
)
_CLOCK: Final = re.compile(r"(?<![\d:])(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
DAY: Final = 86_400_000


@lru_cache(maxsize=64)
def _day(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp()) * 1000


def milliseconds(text: str, written_ms: int | None) -> int | None:
    """Return the first time in a text; a time of day is taken as the last one before the file was written."""
    dated = _DATED.search(text)
    try:
        if dated is not None:
            year, month, day, hours, minutes, seconds, fraction, zone = dated.groups()
            moment = _day(int(year), int(month), int(day)) + _of_day(hours, minutes, seconds, fraction)
            return moment - _zone(zone)
        clock = _CLOCK.search(text)
        if clock is None:
            return None
        of_day = _of_day(*clock.groups())
    except ValueError:
        return None
    if written_ms is None:
        return of_day
    moment = written_ms - written_ms % DAY + of_day
    return moment if moment <= written_ms + 60_000 else moment - DAY


def _of_day(hours: str, minutes: str, seconds: str, fraction: str | None) -> int:
    part = int((fraction or "0").ljust(3, "0")[:3])
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1000 + part


def _zone(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "")
    size = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return int(size.total_seconds() * 1000) * (-1 if zone[0] == "-" else 1)
