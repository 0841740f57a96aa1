"""Times and sizes as people write and read them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

_AGO = re.compile(r"-(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def now_ms() -> int:
    """Return the wall clock's time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def parse_time(text: str) -> int:
    """Return the milliseconds since 1970 of `1700000000000`, `2026-11-15T10:00:00Z`, `2026-11-15`, `now` or `-15m`.

    A time without a zone is UTC. Raise ValueError for anything else.
    """
    if text == "now":
        return now_ms()
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_ms() - int(float(ago[1]) * _MILLISECONDS[ago[2]])
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; write 2026-11-15T10:00:00Z, milliseconds since 1970, now, or -15m for 15 minutes "
            "ago"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def format_time(timestamp_ms: int) -> str | None:
    """Return a timestamp in ISO 8601, UTC; None for Kafka's -1, which means no timestamp."""
    if timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def format_duration(milliseconds: int) -> str:
    """Return a duration in the largest unit of which there is at least one."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds >= length:
            return f"{milliseconds / length:.1f} {unit}"
    return f"{milliseconds} ms"


def parse_size(text: str) -> int:
    """Return the bytes of `1048576`, `64k`, `128m`, `1GiB`; raise ValueError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write bytes, or a number with k, m, g or t, such as 128m")
    return int(match[1]) * _BYTES[match[2].lower()]


def format_size(count: int) -> str:
    """Return bytes in the largest unit of which there is at least one."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def format_count(count: int, noun: str) -> str:
    """Return a number with its noun in the right grammatical number."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
