"""How far groups are behind, over time, from the offsets topic and the partitions' logs alone.

A log's end at a time is that of the last batch with an earlier timestamp; the lag at a commit is what was there then
and was not committed.
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
UNDONE: Final = ("abort", "open")
"""How a transaction stands whose offsets do not count."""
STALE_MS: Final = 5 * 60_000
MOST_POINTS: Final = 500


@dataclass(slots=True)
class _Reader:
    """One group's way through one partition."""

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

    def at(self, time_ms: int, lag: int) -> None:
        """A point of its line; when there are too many, every other one goes."""
        self.points.append((time_ms, lag))
        if len(self.points) > MOST_POINTS:
            del self.points[1:-1:2]
        if lag > self.worst:
            self.worst, self.worst_ms = lag, time_ms


def rule(partition: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Walk through the appends to one partition and the commits for it."""
    readers: dict[str, _Reader] = {}
    end = end_ms = 0
    has_log = False
    wanted = options.get("group")
    for event in events:
        now = event.time_ms or 0
        if event.event == "append":
            has_log = True
            end, end_ms = max(end, event.offset or 0), now
            for reader in readers.values():
                if reader.behind_ms is None and end > reader.committed:
                    reader.behind_ms = now
                if not reader.points or now - reader.points[-1][0] >= 1000:
                    reader.at(now, max(0, end - reader.committed))
        elif event.group and event.state not in UNDONE and (wanted is None or event.group == wanted):
            reader = readers.setdefault(event.group, _Reader(event.group, first_ms=now))
            reader.commits += 1
            offset = event.offset or 0
            reader.went_back += offset < reader.committed
            reader.committed, reader.last_ms = offset, now
            reader.behind_ms = now if offset < end else None
            reader.at(now, max(0, end - offset))
    for group in sorted(readers):
        lag = max(0, end - readers[group].committed)
        row = asdict(readers[group])
        yield {"kind": "reader", "partition": partition, "end": end, "end_ms": end_ms, "has_log": has_log,
               "lag": lag, **row}  # fmt: skip


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """The lag of each group and partition, worst first, and who does not move."""
    stale = int(options.get("stale_ms", STALE_MS))
    most = options.get("max_lag")
    known = [row for row in rows if row["has_log"]]
    known.sort(key=lambda row: (-row["lag"], row["group"], row["partition"]))
    table: list[list[Any]] = [
        [row["group"], row["partition"], row["committed"], row["end"], row["lag"], row["worst"],
         clock(row["worst_ms"] or None), row["commits"], clock(row["last_ms"])]
        for row in known
    ]  # fmt: skip
    findings = []
    for row in known:
        # A record that has just come is not late, however long ago the commit before it was.
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
                else f"the group commits, and is {row['lag']} records behind, more than {most}"
            )
            title = f"{row['group']} is {row['lag']} behind in {row['partition']}"
            finding = Finding(title, facts, cause)
            if stuck:
                lane = f"{row['group']} {row['partition']}"
                finding.spans = [Span(lane, "no commit", row["last_ms"], now, "fault")]
            findings.append(finding)
    groups = {row["group"] for row in known}
    total = sum(row["lag"] for row in known)
    if findings:
        said = f"{several(len(findings), 'partition is not read as it', 'partitions are not read as they')} "
        said += f"should be: {findings[0].title}"
    elif known:
        said = f"{several(len(groups), 'group is', 'groups are')} {several(total, 'record')} behind in "
        said += f"{several(len(known), 'partition')}, and all move on"
    else:
        said = "no group has committed an offset for a partition whose log is here"
    columns = ["group", "partition", "committed", "end", "lag", "worst", "at", "commits", "last commit"]
    report = Report("lag", said, bool(findings), findings, [Table("Lag", columns, table)])
    report.series = [
        Series(f"{row['group']} {row['partition']}", [(time_ms, value) for time_ms, value in row["points"]])
        for row in sorted(known, key=lambda row: -row["worst"])[:8]
    ]
    report.series_of = "records behind"
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
