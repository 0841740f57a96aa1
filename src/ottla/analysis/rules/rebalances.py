"""How often groups rebalance, how long each rebalance takes, and who caused it.

A rebalance begins with what makes the coordinator bump the epoch or leave `Stable`, and ends when the group is stable
again; the last member that joined, left or was put out before it began is its cause.
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
WORDS: Final = {"group.left": "left", "group.fenced": "was put out", "group.join": "joined"}
UNKNOWN: Final = "unknown"
BUMPED: Final = "Epoch"
"""A consumer group's epoch goes up with each rebalance, whether the last one is over or not."""
AWAY: Final = -2
"""The epoch of a static member that leaves and will come back (KIP-345)."""
SETTLED: Final = frozenset({"Stable", "Empty", "Dead"})
LONG_MS: Final = 60_000
MANY_PER_HOUR: Final = 30
FEWEST: Final = 6
STORM_MS: Final = 10 * 60_000
"""One member that causes so many in so short a time does not stay in its group."""


@dataclass(slots=True)
class _Rebalance:
    start_ms: int
    end_ms: int
    cause: str
    who: str
    epoch: int | None


@dataclass(slots=True)
class _Members:
    """Who is in the group. A member that comes back may have a new id: its client is the same, if only one has it."""

    clients: dict[str, str] = field(default_factory=dict)
    there: dict[str, set[str]] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)

    def see(self, event: Event) -> None:
        """Somebody joined or went."""
        member = event.member
        if not member:
            return
        if event.event == "group.join":
            if not event.client:
                return
            self.clients[member] = event.client
            there = self.there.setdefault(event.client, set())
            there.add(member)
            if len(there) > 1:
                self.shared.add(event.client)
        else:
            self.there.get(self.clients.get(member, ""), set()).discard(member)


@dataclass(slots=True)
class _Generations:
    """Who was in the generations of a classic group, of which a log has nothing but each one's members."""

    before: dict[str, str | None] = field(default_factory=dict)
    latest: dict[str, str | None] = field(default_factory=dict)
    held: _Rebalance | None = None

    def over(self, members: _Members) -> _Rebalance | None:
        """The last one, now that all its members are known, with who came or went."""
        held, self.held = self.held, None
        came = [name for name in self.latest if name not in self.before]
        went = [name for name in self.before if name not in self.latest]
        if held is not None and (came or went):
            held.who = (came or went)[0]
            held.cause = WORDS["group.join" if came else "group.left"]
        for name in went:
            members.see(Event(None, "group.left", member=name))
        for name in came:
            members.see(Event(None, "group.join", member=name, client=self.latest[name]))
        self.before, self.latest = self.latest, {}
        return held


def rule(group: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Walk through the events of one group."""
    begun: _Rebalance | None = None
    cause, who = UNKNOWN, UNKNOWN
    epoch: int | None = None
    moving = False
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
                if (done := generations.over(members)) is not None:
                    yield _row(group, done, members, over=True)
                if event.state == "Stable":
                    generations.held = _Rebalance(now, now, UNKNOWN, UNKNOWN, event.epoch)
            continue
        if event.event in WORDS:
            members.see(event)
            if event.event == "group.join" and event.api == "JoinGroup" and begun is not None:
                continue  # everybody joins again once it has begun
            reason = f" ({event.state})" if event.event == "group.fenced" and event.state else ""
            cause, who = WORDS[event.event] + reason, event.member or event.client or UNKNOWN
        elif event.event == "group.state" and event.state is not None:
            bumped = event.state == BUMPED
            if bumped and begun is not None:  # the group moves on before it has come to rest
                begun.end_ms = now if moving else begun.end_ms
                yield _row(group, begun, members, over=True)
                begun = None
            moved = event.epoch is not None and event.epoch != epoch
            if begun is None and (event.state not in SETTLED or moved) and event.state not in ("Empty", "Dead"):
                begun = _Rebalance(now, now, cause, who, event.epoch)
                cause, who = UNKNOWN, UNKNOWN
            epoch = event.epoch if event.epoch is not None else epoch
            if not bumped:
                moving = event.state not in SETTLED
            if begun is not None and event.state in SETTLED:
                begun.end_ms, begun.epoch = now, epoch
                yield _row(group, begun, members, over=True)
                begun = None
        elif event.event == "group.assigned" and event.epoch == AWAY:
            cause, who = "went away for a while", event.member or UNKNOWN
        elif event.event == "group.assigned" and begun is not None and event.epoch == begun.epoch:
            begun.end_ms = now
    if (done := generations.over(members)) is not None:
        yield _row(group, done, members, over=True)
    if begun is not None:
        if moving:
            begun.end_ms = last_ms
        yield _row(group, begun, members, over=not moving)
    yield {"kind": "shared", "group": group, "clients": sorted(members.shared)}


def _row(group: str, rebalance: _Rebalance, members: _Members, *, over: bool) -> Row:
    client = members.clients.get(rebalance.who)
    return {"kind": "rebalance", "group": group, "over": over, "client": client, **asdict(rebalance)}


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """Tables by group and by cause, and a finding for each group that rebalances too much or too long."""
    groups: dict[str, list[Row]] = {}
    shared = {row["group"]: row["clients"] for row in rows if row["kind"] == "shared"}
    for row in sorted((row for row in rows if row["kind"] == "rebalance"), key=lambda row: row["start_ms"]):
        if row["client"] and row["client"] not in shared.get(row["group"], []):
            row["who"] = row["client"]
        elif row["client"] and row["client"] not in row["who"]:
            row["who"] = f"{row['who']} ({row['client']})"
        groups.setdefault(row["group"], []).append(row)
    table: list[list[Any]] = []
    findings = []
    longest_ms = int(options.get("long_ms", LONG_MS))
    for group, found in sorted(groups.items()):
        lengths = sorted(row["end_ms"] - row["start_ms"] for row in found)
        reasons = Counter(row["cause"] for row in found)
        known = Counter(row["who"] for row in found if row["who"] != UNKNOWN)
        storm = _storm(found)
        who = storm or (known.most_common(1)[0][0] if known else UNKNOWN)
        times = known.get(who, len(found))
        cause = Counter(row["cause"] for row in found if row["who"] == who).most_common(1)[0][0]
        span_ms = max(found[-1]["end_ms"] - found[0]["start_ms"], 1)
        hourly = len(found) * 3_600_000 / max(span_ms, 3_600_000)
        middle = lengths[len(lengths) // 2]
        table.append(
            [group, len(found), length(middle), length(lengths[-1]), reasons.most_common(1)[0][0], f"{who} ({times})"]
        )
        unfinished = [row for row in found if not row["over"] and row["end_ms"] - row["start_ms"] > longest_ms]
        if lengths[-1] > longest_ms or hourly > MANY_PER_HOUR or unfinished or storm:
            took = length(lengths[-1])
            title = f"{group} rebalanced {len(found)} times in {length(span_ms)}, the longest took {took}"
            facts = {
                "group": group,
                "rebalances": len(found),
                "longest": took,
                "most often caused by": f"{who}, {times} times, mostly as it {cause}",
                "culprit": who,
            }
            why = f"most of them because a member {reasons.most_common(1)[0][0]}"
            if storm:
                why = f"{who} does not stay in the group: {times} of them began with it, mostly as it {cause}"
            finding = Finding(title, facts, why)
            finding.spans = [
                Span(row["who"], row["cause"], row["start_ms"], row["end_ms"], "fault") for row in found[:100]
            ]
            findings.append(finding)
    total = sum(len(found) for found in groups.values())
    if findings:
        said = (
            f"{len(findings)} of {several(len(groups), 'group')} rebalanced too often or too long: {findings[0].title}"
        )
    elif not groups:
        said = "no group's coordinator is in the input (a client does not know who caused a rebalance)"
    else:
        said = f"{several(total, 'rebalance')} in {several(len(groups), 'group')}, none of them long and not too many"
    columns = ["group", "rebalances", "median", "longest", "most often because a member", "who (times)"]
    report = Report("rebalances", said, bool(findings), findings, [Table("Groups", columns, table)])
    every = [
        [clock(row["start_ms"]), row["group"], row["epoch"], length(row["end_ms"] - row["start_ms"]),
         row["cause"], row["who"]]
        for found in groups.values() for row in found
    ]  # fmt: skip
    every.sort(key=lambda row: str(row[0]))
    report.tables.append(Table("Rebalances", ["began", "group", "epoch", "took", "cause", "who"], every[:500]))
    blamed = {(finding.facts["group"], finding.facts["culprit"]) for finding in findings}
    report.spans = [
        Span(
            f"{row['group']}: {row['who']}",
            row["cause"],
            row["start_ms"],
            row["end_ms"],
            "fault" if (row["group"], row["who"]) in blamed else "waits",
        )
        for found in groups.values()
        for row in found
    ][:400]
    return report


def _storm(found: list[Row]) -> str | None:
    """The member that alone caused many rebalances in a short time, if there is one."""
    begun: dict[str, list[int]] = {}
    for row in found:
        times = begun.setdefault(row["who"], [])
        times.append(row["start_ms"])
        if row["who"] != UNKNOWN and len(times) >= FEWEST and times[-1] - times[-FEWEST] < STORM_MS:
            return str(row["who"])
    return None


def _key(event: Event, options: Row) -> str | None:
    wanted = options.get("group")
    if event.side == CLIENT:
        return None
    return event.group if wanted is None or event.group == wanted else None


ANALYSIS: Final = Analysis("rebalances", WANTS, _key, rule, conclude)
