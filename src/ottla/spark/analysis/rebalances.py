"""How often groups rebalance, how long each rebalance takes, and who caused it.

A rebalance begins with what makes the coordinator bump the epoch or leave `Stable`, and ends when the group is stable
again; the last member that joined, left or was put out before it began is its cause.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.analysis.engine import Analysis, Overview, Row
from ottla.spark.analysis.event import CLIENT, Event
from ottla.spark.analysis.report import Finding, Report, Span, Table, clock, length, step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WANTS: Final = frozenset({"group.state", "group.join", "group.left", "group.fenced", "group.assigned"})
SETTLED: Final = frozenset({"Stable", "Empty", "Dead"})
LONG_MS: Final = 60_000
MANY_PER_HOUR: Final = 30
FEWEST: Final = 6


@dataclass(slots=True)
class _Rebalance:
    start_ms: int
    end_ms: int
    cause: str
    who: str
    epoch: int | None


def rule(group: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Walk through the events of one group."""
    begun: _Rebalance | None = None
    cause, who = "unknown", "unknown"
    epoch: int | None = None
    last_ms = 0
    seen: list[Row] = []
    for event in events:
        now = event.time_ms or last_ms
        last_ms = now
        if event.event in ("group.left", "group.fenced", "group.join"):
            if event.event == "group.join" and event.api == "JoinGroup" and begun is not None:
                continue  # everybody joins again once it has begun
            what = {"group.left": "left", "group.fenced": "was put out", "group.join": "joined"}[event.event]
            reason = f" ({event.state})" if event.event == "group.fenced" and event.state else ""
            cause, who = what + reason, event.member or event.client or "unknown"
            if event.client and event.client not in who:
                who = f"{who} ({event.client})"
            if len(seen) < 200:
                seen.append(asdict(step(event)))
        elif event.event == "group.state" and event.state is not None:
            moved = event.epoch is not None and event.epoch != epoch
            if begun is None and (event.state not in SETTLED or moved) and event.state not in ("Empty", "Dead"):
                begun = _Rebalance(now, now, cause, who, event.epoch)
                cause, who = "unknown", "unknown"
            epoch = event.epoch if event.epoch is not None else epoch
            if begun is not None and event.state in SETTLED:
                begun.end_ms, begun.epoch = now, epoch
                yield {"kind": "rebalance", "group": group, "over": True, **asdict(begun)}
                begun = None
        elif event.event == "group.assigned" and begun is not None and event.state == "Stable":
            begun.end_ms = now
    if begun is not None:
        over = begun.end_ms > begun.start_ms
        begun.end_ms = max(begun.end_ms, last_ms) if not over else begun.end_ms
        yield {"kind": "rebalance", "group": group, "over": over, **asdict(begun)}


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """Tables by group and by cause, and a finding for each group that rebalances too much or too long."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["start_ms"]):
        groups.setdefault(row["group"], []).append(row)
    table: list[list[Any]] = []
    findings = []
    longest_ms = int(options.get("long_ms", LONG_MS))
    for group, found in sorted(groups.items()):
        lengths = sorted(row["end_ms"] - row["start_ms"] for row in found)
        causes = Counter((row["cause"], row["who"]) for row in found)
        reasons = Counter(row["cause"] for row in found)
        (cause, who), times = causes.most_common(1)[0]
        span_ms = max(found[-1]["end_ms"] - found[0]["start_ms"], 1)
        hourly = len(found) * 3_600_000 / max(span_ms, 3_600_000)
        middle = lengths[len(lengths) // 2]
        table.append(
            [group, len(found), length(middle), length(lengths[-1]), reasons.most_common(1)[0][0], f"{who} ({times})"]
        )
        unfinished = [row for row in found if not row["over"] and row["end_ms"] - row["start_ms"] > longest_ms]
        storms = _storm(found)
        if lengths[-1] > longest_ms or hourly > MANY_PER_HOUR or unfinished or storms:
            took = length(lengths[-1])
            title = f"{group} rebalanced {len(found)} times in {length(span_ms)}, the longest took {took}"
            facts = {
                "group": group,
                "rebalances": len(found),
                "longest": took,
                "most often caused by": f"{who}: {cause}, {times} times",
                "culprit": who,
            }
            finding = Finding(title, facts, f"most of them because a member {reasons.most_common(1)[0][0]}")
            finding.spans = [
                Span(row["who"], row["cause"], row["start_ms"], row["end_ms"], "fault") for row in found[:100]
            ]
            findings.append(finding)
    total = sum(len(found) for found in groups.values())
    if findings:
        said = f"{len(findings)} of {len(groups)} groups rebalance too often or too long: {findings[0].title}"
    else:
        said = f"{total} rebalances in {len(groups)} groups, none of them long and not too many"
    columns = ["group", "rebalances", "median", "longest", "most often because a member", "who (times)"]
    report = Report("rebalances", said, bool(findings), findings, [Table("Groups", columns, table)])
    every = [
        [clock(row["start_ms"]), row["group"], row["epoch"], length(row["end_ms"] - row["start_ms"]),
         row["cause"], row["who"]]
        for found in groups.values() for row in found
    ]  # fmt: skip
    every.sort(key=lambda row: str(row[0]))
    report.tables.append(Table("Rebalances", ["began", "group", "epoch", "took", "cause", "who"], every[:500]))
    report.spans = [
        Span(row["group"], f"{row['who']} {row['cause']}", row["start_ms"], row["end_ms"], "waits")
        for found in groups.values()
        for row in found
    ][:400]
    return report


def _storm(found: list[Row]) -> bool:
    """Whether one member alone caused many rebalances in a short time."""
    for index in range(FEWEST - 1, len(found)):
        window = found[index - FEWEST + 1 : index + 1]
        same = {row["who"] for row in window} - {"unknown"}
        if len(same) == 1 and window[-1]["start_ms"] - window[0]["start_ms"] < 10 * 60_000:
            return True
    return False


def _key(event: Event, options: Row) -> str | None:
    wanted = options.get("group")
    if event.side == CLIENT:
        return None
    return event.group if wanted is None or event.group == wanted else None


ANALYSIS: Final = Analysis("rebalances", WANTS, _key, rule, conclude)
