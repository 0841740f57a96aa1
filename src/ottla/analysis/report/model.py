"""The report of an analysis as plain data: verdict, findings with their evidence, tables, notes.

`text` and `html` render it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ottla.analysis.event import Event
    from ottla.analysis.inputs import Summary

MOST_EVIDENCE: Final = 60


@dataclass(slots=True)
class Step:
    """One line of a timeline."""

    time_ms: int | None
    lane: str
    event: str
    what: str
    where: str = ""


@dataclass(slots=True)
class Span:
    """A bar in a lane of the picture; `kind` is `owns`, `fault`, `waits` or `ok`."""

    lane: str
    label: str
    start_ms: int
    end_ms: int
    kind: str = "owns"


@dataclass(slots=True)
class Finding:
    """One fault: a title, facts (with the culprit), the probable cause, and the steps that led to it."""

    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    cause: str = ""
    steps: list[Step] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class Table:
    """A table of evidence with a title."""

    title: str
    columns: list[str]
    rows: list[list[Any]]


@dataclass(slots=True)
class Series:
    """One line of a chart: points of time and value."""

    label: str
    points: list[tuple[int, float]]


@dataclass(slots=True)
class Report:
    """The result of an analysis: `has_problem` if something is wrong, not `conclusive` if the input cannot tell."""

    analysis: str
    verdict: str
    has_problem: bool
    findings: list[Finding] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    inputs: list[Summary] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    series_title: str = ""
    conclusive: bool = True


def clock(time_ms: int | None) -> str:
    """Format a time in UTC for people."""
    if time_ms is None or time_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{time_ms % 1000:03d}"


def length(milliseconds: float) -> str:
    """Format a duration for people, in a unit that fits."""
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 120_000:
        return f"{milliseconds / 1000:.1f} s"
    if milliseconds < 7_200_000:
        return f"{milliseconds / 60_000:.1f} min"
    return f"{milliseconds / 3_600_000:.1f} h"


def several(count: int, one: str, many: str = "") -> str:
    """Return a count with the singular or plural of its noun."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def step(event: Event, lane: str | None = None) -> Step:
    """Return an event as a line of a timeline."""
    return Step(event.time_ms, lane or lane_of(event), event.event, describe(event), f"{event.file}@{event.position}")


def lane_of(event: Event) -> str:
    """Return the lane of an event: its member, client, transactional id or host."""
    return event.member or event.client or event.transactional_id or event.host or event.format


def describe(event: Event) -> str:
    """Describe an event in one line, by the columns it has."""
    words: list[str] = []
    if event.api:
        words.append(event.api)
    if event.state:
        words.append(event.state)
    if event.epoch is not None:
        words.append(f"epoch {event.epoch}")
    if event.topic is not None and event.partition is not None:
        words.append(f"{event.topic}-{event.partition}")
    if event.partitions is not None:
        words.append(_some(event.partitions))
    if event.pending:
        words.append("pending revocation " + _some(event.pending))
    if event.offset is not None:
        words.append(f"offset {event.offset}")
    if event.producer_id is not None:
        words.append(f"producer {event.producer_id}/{event.producer_epoch}")
    if event.error:
        words.append(event.error)
    if not words and event.client:
        words.append(event.client)
    if not words and event.text:
        words.append(event.text[:160])
    return ", ".join(words)


def _some(names: list[str]) -> str:
    if not names:
        return "nothing"
    return " ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
