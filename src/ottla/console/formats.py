"""Numbers, times and names as the pages show them: the filters of the templates."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ottla.printable import printable
from ottla.quantities import format_duration, format_size, format_time

if TYPE_CHECKING:
    from collections.abc import Callable

UNKNOWN: Final = "\u2013"


def size(count: int | None) -> str:
    """Return bytes with a unit; a dash for None."""
    return UNKNOWN if count is None else format_size(count)


def count(number: int | None) -> str:
    """Return a number with separators of thousands; a dash for None."""
    return UNKNOWN if number is None else f"{number:,}"


def rate(number: float | None) -> str:
    """Return a number per second; a dash for None."""
    if number is None:
        return UNKNOWN
    if number >= 100_000:
        return f"{number / 1000:,.0f}k/s"
    return f"{number:,.0f}/s" if number >= 10 or number == 0 else f"{number:.1f}/s"


def timestamp(milliseconds: int | None) -> str:
    """Return a time in UTC, to the millisecond; a dash for None and for Kafka's -1."""
    shown = None if milliseconds is None else format_time(milliseconds)
    return UNKNOWN if shown is None else shown.replace("T", " ").removesuffix("Z")


def duration(milliseconds: float | None) -> str:
    """Return a duration with a unit; a dash for None."""
    return UNKNOWN if milliseconds is None else format_duration(int(milliseconds))


def age(milliseconds: int | None) -> str:
    """Return how long ago a time was."""
    if milliseconds is None or milliseconds < 0:
        return UNKNOWN
    return format_duration(max(0, int(time.time() * 1000) - milliseconds))


def plural(number: int, noun: str, plural_noun: str = "") -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun if number == 1 else plural_noun or noun + 's'}"


def in_path(text: str) -> str:
    """Return a text for a part of a path or a query."""
    return quote(text, safe="")


def visible(text: str | None) -> str:
    """Return a text whose control and direction characters are escaped."""
    return "" if text is None else printable(text, keep="\n\t")


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "size": size,
    "count": count,
    "rate": rate,
    "timestamp": timestamp,
    "duration": duration,
    "age": age,
    "plural": plural,
    "in_path": in_path,
    "visible": visible,
}
