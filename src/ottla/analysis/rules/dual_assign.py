"""Find partitions that two members of a group owned at the same time, to the coordinator or to the clients.

To the coordinator, a member of a consumer group (KIP-848) owns its assigned partitions and those pending revocation. In
a classic group a partition must not occur twice in one generation, and must not be assigned to another member than the
one that joined that generation with it. A client owns what it was assigned until it releases it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.engine import SHARED, Analysis, Overview, Row
from ottla.analysis.event import CLIENT, Event
from ottla.analysis.report.model import Finding, Report, Span, Step, clock, length, step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WANTS: Final = frozenset(
    {
        "group.assigned",
        "group.added",
        "group.released",
        "group.revoking",
        "group.left",
        "group.fenced",
        "group.join",
        "group.heartbeat",
        "group.state",
        "group.target",
        "timeout",
        "topic",
    }
)
WIRE: Final = "tap"
BEFORE: Final = 400
LED_THERE: Final = 40
AFTERWARDS: Final = 15


@dataclass(slots=True)
class _Ownership:
    """Since when a member owns a partition, and in which epoch."""

    since_ms: int
    epoch: int | None
    pending: bool = False


@dataclass(slots=True)
class _Overlap:
    """Partitions that `first` owned (or only claimed when it joined the generation) when `second` got them."""

    partitions: list[str]
    first: str
    second: str
    start_ms: int
    first_hold: _Ownership
    second_hold: _Ownership
    claimed: bool
    steps: list[Step]
    after: int = 0
    end_ms: int | None = None
    zombie: bool = False


@dataclass(slots=True)
class _View:
    """The owners of partitions as one side shows them, for one group protocol.

    `witnessed` marks a view of clients or of the wire: a member without further events counts as gone.
    """

    side: str
    protocol: str | None
    witnessed: bool
    owners: dict[str, dict[str, _Ownership]] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=dict)
    claims: dict[str, tuple[str, int]] = field(default_factory=dict)
    open: list[_Overlap] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    def acquire(self, member: str, partition: str, hold: _Ownership) -> list[tuple[str, _Ownership, bool]]:
        """Add a member to the owners of a partition; return the other owners."""
        holders = self.owners.setdefault(partition, {})
        if self.protocol == "classic" and self.side != CLIENT:
            for other in [name for name, held in holders.items() if (held.epoch or 0) < (hold.epoch or 0)]:
                self.release(other, partition)
        known = holders.get(member)
        if known is not None:
            known.epoch, known.pending = hold.epoch, hold.pending
            return []
        others = [(name, held, False) for name, held in holders.items()]
        claim = self.claims.get(partition)
        if claim is not None and claim[0] != member and claim[1] == hold.epoch and not others:
            others.append((claim[0], _Ownership(hold.since_ms, claim[1]), True))
        self.owners.setdefault(partition, {})[member] = hold
        self.members.setdefault(member, set()).add(partition)
        return others

    def release(self, member: str, partition: str) -> None:
        """Remove a member from the owners of a partition."""
        holders = self.owners.get(partition, {})
        holders.pop(member, None)
        if not holders:
            self.owners.pop(partition, None)
        self.members.get(member, set()).discard(partition)


def rule(group: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Find overlaps in the events of one group; the shared key holds deletions of topics."""
    if group == SHARED:
        yield from ({"kind": "topic", "topic": event.topic, "time_ms": event.time_ms or 0} for event in events)
        return
    views: dict[tuple[str, str | None, bool], _View] = {}
    recent: deque[Event] = deque(maxlen=BEFORE)
    for event in events:
        recent.append(event)
        witnessed = event.side == CLIENT or event.format == WIRE
        view_key = (event.side, event.protocol, witnessed)
        view = views.setdefault(view_key, _View(*view_key))
        owner = _owner(event)
        now = event.time_ms or 0
        if owner:
            view.seen[owner] = max(now, view.seen.get(owner, now))
        for overlap in view.open:
            if overlap.after < AFTERWARDS and owner in (overlap.first, overlap.second):
                overlap.after += 1
                overlap.steps.append(step(event, owner))
        yield from _apply(group, view, event, owner, now, recent)
    for view in views.values():
        for overlap in view.open:
            if view.witnessed:
                end = min(view.seen.get(overlap.first, 0), view.seen.get(overlap.second, 0))
                overlap.end_ms = max(end, overlap.start_ms)
            yield from _row(group, view, overlap)


def _owner(event: Event) -> str:
    return (event.host if event.side == CLIENT else event.member) or ""


def _apply(group: str, view: _View, event: Event, owner: str, now: int, recent: deque[Event]) -> Iterator[Row]:
    name = event.event
    if name == "group.assigned":
        if view.protocol == "consumer":
            view.claims.clear()
        owned = dict.fromkeys(event.partitions or [], False)
        owned |= dict.fromkeys(event.pending or [], True)
        released = view.members.get(owner, set()) - owned.keys()
        yield from _release(group, view, owner, released, now)
        _acquire(view, owner, owned, event, now, recent)
    elif name == "group.added":
        _acquire(view, owner, dict.fromkeys(event.partitions or [], False), event, now, recent)
    elif name == "group.released":
        yield from _release(group, view, owner, set(event.partitions or []), now)
    elif name in ("group.left", "group.fenced"):
        yield from _release(group, view, owner, set(view.members.get(owner, ())), now, fenced=name == "group.fenced")
    elif name == "group.join" and event.partitions and event.epoch is not None:
        for partition in event.partitions:
            view.claims[partition] = (owner, event.epoch)
    elif name == "group.state" and view.side != CLIENT and event.state in ("Dead", "Empty"):
        for member in list(view.members):
            yield from _release(group, view, member, set(view.members[member]), now)
        view.claims.clear()


def _acquire(view: _View, owner: str, owned: dict[str, bool], event: Event, now: int, recent: deque[Event]) -> None:
    overlaps: dict[tuple[str, bool], _Overlap] = {}
    for partition, pending in owned.items():
        hold = _Ownership(now, event.epoch, pending)
        for other, held, claimed in view.acquire(owner, partition, hold):
            overlap = overlaps.get((other, claimed))
            if overlap is None:
                led = [step(near) for near in recent if _owner(near) in (owner, other) or not _owner(near)]
                holds = (replace(held), replace(hold))
                overlap = _Overlap([], other, owner, now, *holds, claimed, led[-LED_THERE:])
                overlaps[other, claimed] = overlap
                view.open.append(overlap)
            overlap.partitions.append(partition)


def _release(
    group: str, view: _View, owner: str, partitions: set[str], now: int, *, fenced: bool = False
) -> Iterator[Row]:
    for partition in partitions:
        view.release(owner, partition)
    for overlap in list(view.open):
        if owner in (overlap.first, overlap.second) and partitions.intersection(overlap.partitions):
            overlap.end_ms = now
            overlap.zombie = view.witnessed and fenced and owner == overlap.first
            if view.witnessed and owner == overlap.second:
                overlap.end_ms = min(now, max(view.seen.get(overlap.first, now), overlap.start_ms))
            view.open.remove(overlap)
            yield from _row(group, view, overlap)


def _row(group: str, view: _View, overlap: _Overlap) -> Iterator[Row]:
    if overlap.end_ms is not None and overlap.end_ms <= overlap.start_ms and not overlap.claimed:
        return  # one change of the coordinator, written as several records
    yield {"kind": "overlap", "group": group, "side": view.side, "protocol": view.protocol, **asdict(overlap)}


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """Report the overlaps in the order in which they began."""
    slack = int(options.get("slack_ms", 0))
    findings: list[Finding] = []
    clocks_jump = any(summary.jumps or summary.skews for summary in overview.inputs)
    deleted = _deletions(row for row in rows if row["kind"] == "topic")
    overlaps = [row for row in rows if row["kind"] == "overlap" and _without_deleted(row, deleted)]
    for row in sorted(overlaps, key=lambda row: (row["start_ms"], row["group"], row["second"])):
        end = row["end_ms"] if row["end_ms"] is not None else overview.last_ms
        lasted = (end or row["start_ms"]) - row["start_ms"]
        if row["side"] == CLIENT and lasted <= slack:
            continue
        findings.append(_finding(row, end, lasted))
    if not findings:
        verdict = "no partition had two owners at the same time"
    else:
        groups = {finding.facts["group"] for finding in findings}
        partitions = {(finding.facts["group"], name) for finding in findings for name in finding.facts["partitions"]}
        verdict = (
            f"{len(partitions)} partition{'s' if len(partitions) > 1 else ''} of "
            f"{'group ' + next(iter(groups)) if len(groups) == 1 else f'{len(groups)} groups'} had two owners at the "
            f"same time: {findings[0].title}"
        )
    report = Report("dual-assign", verdict, bool(findings), findings)
    if findings and clocks_jump:
        report.notes.append("clocks jump in these logs, so that an overlap across hosts may be an error of the clocks")
    return report


def _deletions(rows: Iterable[Row]) -> dict[str, list[int]]:
    """Return the times at which each topic was deleted."""
    times: dict[str, list[int]] = {}
    for row in rows:
        times.setdefault(row["topic"] or "", []).append(row["time_ms"])
    return times


def _without_deleted(row: Row, deleted: dict[str, list[int]]) -> bool:
    """Drop partitions whose topic was deleted after the first owner got them; return whether any is left."""
    since, start = row["first_hold"]["since_ms"], row["start_ms"]
    row["partitions"] = [
        name
        for name in row["partitions"]
        if not any(since <= time_ms <= start for time_ms in deleted.get(name.rpartition("-")[0], ()))
    ]
    return bool(row["partitions"])


def _finding(row: Row, end: int | None, lasted: int) -> Finding:
    partitions = row["partitions"]
    first, second = row["first"], row["second"]
    shown = " ".join(partitions[:3]) + (f" and {len(partitions) - 3} more" if len(partitions) > 3 else "")
    kind = f"{row['protocol'] or ''} group".strip()
    facts: dict[str, Any] = {
        "group": row["group"],
        "protocol": row["protocol"],
        "partitions": partitions,
        "members": [first, second],
        "epochs": [row["first_hold"]["epoch"], row["second_hold"]["epoch"]],
        "seen by": "the coordinator" if row["side"] != CLIENT else "the clients",
        "from": clock(row["start_ms"]),
        "until": clock(row["end_ms"]) if row["end_ms"] is not None else f"the end of the logs ({clock(end)})",
        "lasted": length(lasted),
        "culprit": _culprit(row),
    }
    finding = Finding(
        f"{shown} belonged to {first} and {second} for {length(lasted)}"
        if lasted
        else f"{shown} was assigned to {second} while {first} owned it",
        facts,
        _cause(row, kind),
        [Step(**line) for line in row["steps"]],
    )
    stop = end or row["start_ms"]
    finding.spans = [
        Span(first, f"owns {shown}", min(row["first_hold"]["since_ms"], row["start_ms"]), stop, "owns"),
        Span(second, f"owns {shown}", row["start_ms"], stop, "owns"),
        Span("both", f"two owners of {shown}", row["start_ms"], stop, "fault"),
    ]
    return finding


def _culprit(row: Row) -> str:
    if row["side"] == CLIENT or row["zombie"]:
        return str(row["first"])
    if row["claimed"] or row["protocol"] == "classic":  # the leader of a classic group computes the assignment
        return "the assignor of the group's leader"
    return "the coordinator"


def _cause(row: Row, kind: str) -> str:
    first, second = row["first"], row["second"]
    epoch = row["second_hold"]["epoch"]
    if row["zombie"]:
        return f"{first} was evicted from the group and was a zombie until its next heartbeat"
    if row["side"] == CLIENT:
        return f"{first} kept its partitions after {second} had got them: it did not release them in time"
    if row["claimed"]:
        return (
            f"generation {epoch} assigned to {second} what {first} joined that generation with: a cooperative assignor "
            f"must leave it unassigned for one generation"
        )
    if row["first_hold"]["pending"]:
        return f"the coordinator assigned it to {second} in epoch {epoch} while the revocation by {first} was pending"
    if kind.startswith("classic"):
        return f"the leader's assignment of generation {epoch} holds it twice"
    return f"the coordinator assigned it to {second} in epoch {epoch} without a revocation by {first}"


def _key(event: Event, options: Row) -> str | None:
    group = options.get("group")
    if event.event == "topic":
        return SHARED if event.state == "deleted" else None
    return event.group if group is None or event.group == group else None


ANALYSIS: Final = Analysis("dual-assign", WANTS, _key, rule, conclude, evidence=frozenset({"group.heartbeat"}))
