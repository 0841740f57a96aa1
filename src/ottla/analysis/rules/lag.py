"""Compute the lag of groups over time from `__consumer_offsets` and the partitions' logs.

The log end offset at a time is that of the last batch with an earlier timestamp; the lag at a commit is the log end
offset at that time minus the committed offset.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.engine import Analysis, Overview, Row
from ottla.analysis.event import Event, partition_name
from ottla.analysis.report.model import Finding, Report, Series, Span, Table, clock, length, several

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WANTS: Final = frozenset({"commit", "append"})
NOT_COMMITTED: Final = ("abort", "open")
"""The states of transactions whose offsets do not count."""
STALE_MS: Final = 5 * 60_000
MOST_POINTS: Final = 500


@dataclass(slots=True)
class _Reader:
    """One group's commits for one partition, and its lag over time."""

    group: str
    committed: int = -1
    first_ms: int = 0
    last_ms: int = 0
    commits: int = 0
    worst: int = 0
    worst_ms: int = 0
    went_back: int = 0
    behind_ms: int | None = None
    points: list[tuple[int, int]] = field(default_factory=list)

    def add_point(self, time_ms: int, lag: int) -> None:
        """Add a point to the chart; beyond `MOST_POINTS` every second point is dropped."""
        self.points.append((time_ms, lag))
        if len(self.points) > MOST_POINTS:
            del self.points[1:-1:2]
        if lag > self.worst:
            self.worst, self.worst_ms = lag, time_ms


def rule(partition: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Follow the appends to one partition and the commits for it."""
    readers: dict[str, _Reader] = {}
    end = end_ms = 0
    has_log = False
    only_group = options.get("group")
    for event in events:
        now = event.time_ms or 0
        if event.event == "append":
            has_log = True
            end, end_ms = max(end, event.offset or 0), now
            for reader in readers.values():
                if reader.behind_ms is None and end > reader.committed:
                    reader.behind_ms = now
                if not reader.points or now - reader.points[-1][0] >= 1000:
                    reader.add_point(now, max(0, end - reader.committed))
        elif event.group and event.state not in NOT_COMMITTED and only_group in (None, event.group):
            reader = readers.setdefault(event.group, _Reader(event.group, first_ms=now))
            reader.commits += 1
            offset = event.offset or 0
            reader.went_back += offset < reader.committed
            reader.committed, reader.last_ms = offset, now
            reader.behind_ms = now if offset < end else None
            reader.add_point(now, max(0, end - offset))
    for group in sorted(readers):
        lag = max(0, end - readers[group].committed)
        row = asdict(readers[group])
        yield {"kind": "reader", "partition": partition, "end": end, "end_ms": end_ms, "has_log": has_log,
               "lag": lag, **row}  # fmt: skip


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """Report the lag of each group and partition, largest first, with a finding for each group that is stuck."""
    stale = int(options.get("stale_ms", STALE_MS))
    most = options.get("max_lag")
    known = [row for row in rows if row["has_log"]]
    if not known:
        verdict = "no group of the input has committed an offset for a partition whose log is in the input"
        return Report("lag", verdict, has_problem=False, conclusive=False)
    known.sort(key=lambda row: (-row["lag"], row["group"], row["partition"]))
    table: list[list[Any]] = [
        [row["group"], row["partition"], row["committed"], row["end"], row["lag"], row["worst"],
         clock(row["worst_ms"] or None), row["commits"], clock(row["last_ms"])]
        for row in known
    ]  # fmt: skip
    findings = []
    for row in known:
        # Measured from when the group fell behind, not from its last commit: a record that has just come is not late.
        now = max(row["end_ms"], overview.last_ms or 0)
        silent = now - (row["behind_ms"] or now)
        stuck = row["lag"] > 0 and silent > stale
        if stuck or (most is not None and row["lag"] > most):
            facts = {
                "group": row["group"],
                "partition": row["partition"],
                "lag": row["lag"],
                "last commit": clock(row["last_ms"]),
                "log grew until": clock(row["end_ms"]),
                "culprit": row["group"],
            }
            cause = (
                f"the group has not committed for {length(silent)} while records wait"
                if stuck
                else f"the group commits, and its lag of {row['lag']} records exceeds {most}"
            )
            title = f"{row['group']} has a lag of {row['lag']} in {row['partition']}"
            finding = Finding(title, facts, cause)
            if stuck:
                lane = f"{row['group']} {row['partition']}"
                finding.spans = [Span(lane, "no commit", row["last_ms"], now, "fault")]
            findings.append(finding)
    groups = {row["group"] for row in known}
    total = sum(row["lag"] for row in known)
    if findings:
        verdict = f"{several(len(findings), 'partition')} with too much lag: {findings[0].title}"
    else:
        verdict = f"{several(len(groups), 'group')} with a lag of {several(total, 'record')} in "
        verdict += f"{several(len(known), 'partition')}, none of them stuck"
    columns = ["group", "partition", "committed", "end", "lag", "worst", "at", "commits", "last commit"]
    report = Report("lag", verdict, bool(findings), findings, [Table("Lag", columns, table)])
    report.series = [
        Series(f"{row['group']} {row['partition']}", [(time_ms, value) for time_ms, value in row["points"]])
        for row in sorted(known, key=lambda row: -row["worst"])[:8]
    ]
    report.series_title = "lag in records"
    without = len(rows) - len(known)
    if without:
        report.notes.append(f"{without} committed partitions have no log in the input, so their lag is unknown")
    return report


def _key(event: Event, options: Row) -> str | None:
    if event.topic is None or event.partition is None or event.format != "kafka-log":
        return None
    if options.get("topic") not in (None, event.topic):
        return None
    return partition_name(event.topic, event.partition)


ANALYSIS: Final = Analysis("lag", WANTS, _key, rule, conclude)
