"""Count the rebalances of groups, how long each took, and which member caused it.

A rebalance begins when the coordinator bumps the epoch or leaves `Stable`, and ends when the group is stable again; its
cause is the last member that joined, left or was evicted before. `__consumer_offsets` holds only the result of a
classic group's rebalance: its duration is unknown.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.engine import Analysis, Overview, Row
from ottla.analysis.event import CLIENT, Event
from ottla.analysis.report.model import Finding, Report, Span, Table, clock, length, several

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WANTS: Final = frozenset({"group.state", "group.join", "group.left", "group.fenced", "group.assigned"})
LOG: Final = "kafka-log"
CAUSES: Final = {"group.left": "left", "group.fenced": "was evicted", "group.join": "joined"}
UNKNOWN: Final = "unknown"
BUMPED: Final = "Epoch"
"""The state of an epoch bump: each rebalance of a consumer group has one, whether the last one has ended or not."""
AWAY: Final = -2
"""The epoch of a static member that leaves temporarily (KIP-345)."""
SETTLED: Final = frozenset({"Stable", "Empty", "Dead"})
LONG_MS: Final = 60_000
MANY_PER_HOUR: Final = 30
FEWEST: Final = 6
STORM_MS: Final = 10 * 60_000
"""One member that causes `FEWEST` rebalances within this time does not stay in its group."""


@dataclass(slots=True)
class _Rebalance:
    """One rebalance; `end_ms` is None where the input does not hold its end."""

    start_ms: int
    end_ms: int | None
    cause: str
    member: str
    epoch: int | None


@dataclass(slots=True)
class _Members:
    """The members of a group. A classic member that comes back has a new id: it is known by its client id if unique."""

    clients: dict[str, str] = field(default_factory=dict)
    present: dict[str, set[str]] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)

    def update(self, event: Event) -> None:
        """Add or remove a member."""
        member = event.member
        if not member:
            return
        if event.event == "group.join":
            if not event.client:
                return
            self.clients[member] = event.client
            present = self.present.setdefault(event.client, set())
            present.add(member)
            if len(present) > 1:
                self.shared.add(event.client)
        else:
            self.present.get(self.clients.get(member, ""), set()).discard(member)


@dataclass(slots=True)
class _Generations:
    """The members of consecutive generations of a classic group, which is all that `__consumer_offsets` holds."""

    before: dict[str, str | None] = field(default_factory=dict)
    latest: dict[str, str | None] = field(default_factory=dict)
    pending: _Rebalance | None = None

    def complete(self, members: _Members) -> _Rebalance | None:
        """Return the last generation's rebalance, now that all its members are known, with the member that changed."""
        rebalance, self.pending = self.pending, None
        joined = [name for name in self.latest if name not in self.before]
        left = [name for name in self.before if name not in self.latest]
        if rebalance is not None and (joined or left):
            rebalance.member = (joined or left)[0]
            rebalance.cause = CAUSES["group.join" if joined else "group.left"]
        for name in left:
            members.update(Event(None, "group.left", member=name))
        for name in joined:
            members.update(Event(None, "group.join", member=name, client=self.latest[name]))
        self.before, self.latest = self.latest, {}
        return rebalance


def rule(group: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Find the rebalances in the events of one group."""
    current: _Rebalance | None = None
    cause, member = UNKNOWN, UNKNOWN
    epoch: int | None = None
    rebalancing = False
    last_ms = 0
    members = _Members()
    generations = _Generations()
    for event in events:
        now = event.time_ms or last_ms
        last_ms = now
        if event.format == LOG and event.protocol == "classic":
            if event.event == "group.assigned":
                generations.latest[event.member or UNKNOWN] = event.client
            elif event.event == "group.state":
                if (done := generations.complete(members)) is not None:
                    yield _row(group, done, members, over=True)
                if event.state == "Stable":
                    generations.pending = _Rebalance(now, None, UNKNOWN, UNKNOWN, event.epoch)
            continue
        if event.event in CAUSES:
            members.update(event)
            if event.event == "group.join" and event.api == "JoinGroup" and current is not None:
                continue  # every member joins again once a rebalance has begun
            reason = f" ({event.state})" if event.event == "group.fenced" and event.state else ""
            cause, member = CAUSES[event.event] + reason, event.member or event.client or UNKNOWN
        elif event.event == "group.state" and event.state is not None:
            bumped = event.state == BUMPED
            if bumped and current is not None:  # the next epoch bump came before the group was stable
                current.end_ms = now if rebalancing else current.end_ms
                yield _row(group, current, members, over=True)
                current = None
            changed = event.epoch is not None and event.epoch != epoch
            if current is None and (event.state not in SETTLED or changed) and event.state not in ("Empty", "Dead"):
                current = _Rebalance(now, now, cause, member, event.epoch)
                cause, member = UNKNOWN, UNKNOWN
            epoch = event.epoch if event.epoch is not None else epoch
            if not bumped:
                rebalancing = event.state not in SETTLED
            if current is not None and event.state in SETTLED:
                current.end_ms, current.epoch = now, epoch
                yield _row(group, current, members, over=True)
                current = None
        elif event.event == "group.assigned" and event.epoch == AWAY:
            cause, member = "left temporarily", event.member or UNKNOWN
        elif event.event == "group.assigned" and current is not None and event.epoch == current.epoch:
            current.end_ms = now
    if (done := generations.complete(members)) is not None:
        yield _row(group, done, members, over=True)
    if current is not None:
        if rebalancing:
            current.end_ms = last_ms
        yield _row(group, current, members, over=not rebalancing)
    yield {"kind": "shared", "group": group, "clients": sorted(members.shared)}


def _row(group: str, rebalance: _Rebalance, members: _Members, *, over: bool) -> Row:
    client = members.clients.get(rebalance.member)
    return {"kind": "rebalance", "group": group, "over": over, "client": client, **asdict(rebalance)}


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """Report each group's rebalances and causes, with a finding for a group that rebalances too often or too long."""
    groups = _by_group(rows)
    if not groups:
        return Report("rebalances", "no group of the input rebalances", has_problem=False, conclusive=False)
    long_ms = int(options.get("long_ms", LONG_MS))
    table: list[list[Any]] = []
    findings = []
    for group, rebalances in sorted(groups.items()):
        table.append(_group_row(group, rebalances))
        finding = _finding(group, rebalances, long_ms)
        if finding is not None:
            findings.append(finding)
    total = sum(len(rebalances) for rebalances in groups.values())
    if findings:
        verdict = (
            f"{len(findings)} of {several(len(groups), 'group')} rebalanced too often or too long: {findings[0].title}"
        )
    else:
        verdict = f"{several(total, 'rebalance')} in {several(len(groups), 'group')}, none too long and not too many"
    columns = ["group", "rebalances", "median", "longest", "because a member", "members (times)"]
    report = Report("rebalances", verdict, bool(findings), findings, [Table("Groups", columns, table)])
    every = [
        [clock(row["start_ms"]), row["group"], row["epoch"], _duration(row), row["cause"], row["member"]]
        for rebalances in groups.values()
        for row in rebalances
    ]
    every.sort(key=lambda line: str(line[0]))
    report.tables.append(Table("Rebalances", ["began", "group", "epoch", "took", "cause", "member"], every[:500]))
    if any(row["end_ms"] is None for rebalances in groups.values() for row in rebalances):
        report.notes.append("a log directory does not hold how long a classic group's rebalance took")
    blamed = {(finding.facts["group"], finding.facts["culprit"]) for finding in findings}
    report.spans = [
        Span(
            f"{row['group']}: {row['member']}",
            row["cause"],
            row["start_ms"],
            row["start_ms"] if row["end_ms"] is None else row["end_ms"],
            "fault" if (row["group"], row["member"]) in blamed else "waits",
        )
        for rebalances in groups.values()
        for row in rebalances
    ][:400]
    return report


def _by_group(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the rebalances of each group in order, with members named by their client id where that is unique."""
    groups: dict[str, list[Row]] = {}
    shared = {row["group"]: row["clients"] for row in rows if row["kind"] == "shared"}
    for row in sorted((row for row in rows if row["kind"] == "rebalance"), key=lambda row: row["start_ms"]):
        if row["client"] and row["client"] not in shared.get(row["group"], []):
            row["member"] = row["client"]
        elif row["client"] and row["client"] not in row["member"]:
            row["member"] = f"{row['member']} ({row['client']})"
        groups.setdefault(row["group"], []).append(row)
    return groups


def _durations(rebalances: list[Row]) -> list[int]:
    return sorted(row["end_ms"] - row["start_ms"] for row in rebalances if row["end_ms"] is not None)


def _duration(row: Row) -> str | None:
    return None if row["end_ms"] is None else length(row["end_ms"] - row["start_ms"])


def _group_row(group: str, rebalances: list[Row]) -> list[Any]:
    durations = _durations(rebalances)
    return [
        group,
        len(rebalances),
        length(durations[len(durations) // 2]) if durations else None,
        length(durations[-1]) if durations else None,
        counted(Counter(row["cause"] for row in rebalances)),
        counted(Counter(row["member"] for row in rebalances)),
    ]


def counted(counter: Counter[str], most: int = 3) -> str:
    """List the most common values with their counts, ties in order of name: `joined (3), left (3)`."""
    ranked = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{value} ({count})" for value, count in ranked[:most])
    return listed + (f" and {len(ranked) - most} more" if len(ranked) > most else "")


def _finding(group: str, rebalances: list[Row], long_ms: int) -> Finding | None:
    durations = _durations(rebalances)
    longest = durations[-1] if durations else None
    last = rebalances[-1]
    span_ms = max((last["end_ms"] or last["start_ms"]) - rebalances[0]["start_ms"], 1)
    hourly = len(rebalances) * 3_600_000 / max(span_ms, 3_600_000)
    storm = _unsteady_member(rebalances)
    if not (storm or hourly > MANY_PER_HOUR or (longest is not None and longest > long_ms)):
        return None
    members = Counter(row["member"] for row in rebalances if row["member"] != UNKNOWN)
    reasons = Counter(row["cause"] for row in rebalances)
    culprit = storm or _most_common(members) or UNKNOWN
    took = f", the longest took {length(longest)}" if longest is not None else ""
    title = f"{group} rebalanced {len(rebalances)} times in {length(span_ms)}{took}"
    facts = {
        "group": group,
        "rebalances": len(rebalances),
        "longest": None if longest is None else length(longest),
        "caused by": counted(members) or UNKNOWN,
        "because a member": counted(reasons),
        "culprit": culprit,
    }
    why = f"rebalances began because a member {counted(reasons)}"
    if storm:
        of_member = Counter(row["cause"] for row in rebalances if row["member"] == storm)
        why = f"{storm} does not stay in the group: it began {members[storm]} of them, as it {counted(of_member)}"
    finding = Finding(title, facts, why)
    finding.spans = [
        Span(row["member"], row["cause"], row["start_ms"], row["end_ms"] or row["start_ms"], "fault")
        for row in rebalances[:100]
    ]
    return finding


def _most_common(counter: Counter[str]) -> str | None:
    """Return the most common value, or None if there is none or several are equally common."""
    ranked = counter.most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        return None
    return ranked[0][0]


def _unsteady_member(rebalances: list[Row]) -> str | None:
    """Return the member that alone caused many rebalances in a short time, if there is one."""
    begun: dict[str, list[int]] = {}
    for row in rebalances:
        times = begun.setdefault(row["member"], [])
        times.append(row["start_ms"])
        if row["member"] != UNKNOWN and len(times) >= FEWEST and times[-1] - times[-FEWEST] < STORM_MS:
            return str(row["member"])
    return None


def _key(event: Event, options: Row) -> str | None:
    group = options.get("group")
    if event.side == CLIENT:
        return None
    return event.group if group is None or event.group == group else None


ANALYSIS: Final = Analysis("rebalances", WANTS, _key, rule, conclude)
