"""One client's life for a partition: what it was given, where it began, what it read, committed, lost and missed."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.engine import Analysis, Overview, Row
from ottla.analysis.event import CLIENT, Event, partition_name
from ottla.analysis.parse.kgo import FORMAT as KGO
from ottla.analysis.report.model import Finding, Report, Span, Step, Table, clock, describe, length, several, step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WANTS: Final = frozenset(
    {
        "fetch",
        "position",
        "commit",
        "produce",
        "group.added",
        "group.released",
        "group.join",
        "group.left",
        "group.fenced",
        "group.state",
        "txn.end",
        "txn.fenced",
        "txn.init",
        "log",
        "response",
    }
)
SILENCE_MS: Final = 30_000
MOST_STEPS: Final = 400
MOST_PROBLEMS: Final = 100
_FROM: Final = re.compile(r"^from (-?\d+)(?:, (\d+) records)?")


@dataclass(slots=True)
class _Life:
    """What a client did with one partition."""

    client: str
    partition: str
    fetches: int = 0
    commits: int = 0
    rebalances: int = 0
    errors: int = 0
    first_offset: int | None = None
    next_offset: int | None = None
    reached: int | None = None
    last_fetch_ms: int | None = None
    last_commit: int | None = None
    owned_since: int | None = None
    seen_ms: int = 0
    steps: list[Step] = field(default_factory=list)
    problems: list[Row] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def problem(self, what: str, event: Event, fact: str) -> None:
        """Something that should not be."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append({"what": what, "fact": fact, "step": asdict(step(event, self.client))})

    def note(self, event: Event, what: str | None = None) -> None:
        """A line of the life; fetches that follow each other are one line."""
        last = self.steps[-1] if self.steps else None
        if event.event == "fetch" and event.error is None and last is not None and last.event == "fetch":
            last.what = f"{last.what.split(' and on to')[0]} and on to offset {event.offset}"
            return
        if len(self.steps) < MOST_STEPS:
            self.steps.append(step(event, self.client))
            if what:
                self.steps[-1].what = what

    def begin(self, now: int) -> None:
        """It is the client's from here on."""
        if self.owned_since is None:
            self.owned_since = now

    def end(self, now: int) -> None:
        """It is not any more; the next fetch need not follow the last one."""
        if self.owned_since is not None:
            self.spans.append(Span(self.client, f"has {self.partition}", self.owned_since, now))
            self.owned_since = None
        self.next_offset = self.last_fetch_ms = None


def rule(client: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Walk through what one client wrote."""
    wanted, topic = options.get("partition"), options.get("topic")
    silence = int(options.get("silence_ms", SILENCE_MS))
    lives: dict[str, _Life] = {}
    for event in events:
        now = event.time_ms or 0
        places = [partition_name(event.topic, event.partition)] if event.topic and event.partition is not None else []
        if event.event in ("group.added", "group.released"):
            places += event.partitions or []
        for place in dict.fromkeys(places):
            name, _, number = place.rpartition("-")
            if (wanted is not None and number != str(wanted)) or (topic is not None and name != topic):
                continue
            life = lives.setdefault(place, _Life(client, place))
            life.seen_ms = now
            _live(life, event, now, silence)
        if not places and event.event == "position":
            for life in lives.values():
                life.next_offset = life.last_fetch_ms = None
                life.note(event, event.state)
        elif not places and event.event == "response" and event.api == "Fetch" and event.error is None:
            for life in lives.values():
                _quiet(life, event, now, silence)
        elif not places and (event.error or event.event in ("group.join", "group.left", "group.fenced", "txn.fenced")):
            for life in lives.values():
                life.note(event)
                life.errors += event.error is not None
                if event.event == "group.join":
                    life.rebalances += 1
    for place in sorted(lives):
        life = lives[place]
        if life.owned_since is not None:
            life.end(life.seen_ms)
        yield {"kind": "life", **asdict(life)}


def _live(life: _Life, event: Event, now: int, silence: int) -> None:
    name = event.event
    if event.error:
        life.errors += 1
        life.note(event)
        life.problem("error", event, f"{event.error} for {life.partition}")
        return
    if name == "log":
        return
    if name == "fetch":
        _fetched(life, event, now, silence)
    elif name == "commit":
        life.commits += 1
        if event.offset is not None:
            said = _FROM.match(event.state or "")
            before = int(said[1]) if said is not None else life.last_commit
            if before is not None and event.offset < before:
                fact = f"the committed offset went back from {before} to {event.offset}"
                life.problem("commit went back", event, fact)
            life.last_commit = event.offset
        life.note(event)
    elif name == "position":
        exact = event.format == KGO and event.offset is not None and event.offset >= 0
        life.next_offset = event.offset if exact else None  # others may seek after that, and do not say so
        life.note(event, f"begins at offset {event.offset} ({event.state})" if event.state else None)
    elif name == "group.added":
        life.begin(now)
        life.note(event, f"was given {life.partition}")
    elif name == "group.released":
        life.end(now)
        life.note(event, f"gave up {life.partition}" + (f" ({event.state})" if event.state else ""))
    else:
        life.note(event)


def _fetched(life: _Life, event: Event, now: int, silence: int) -> None:
    life.fetches += 1
    _quiet(life, event, now, silence)
    life.last_fetch_ms = now
    said = _FROM.match(event.state or "")
    if said is not None and event.offset is not None:
        start, count = int(said[1]), said[2]
        if life.first_offset is None:
            life.first_offset = start
        if life.next_offset is not None and start != life.next_offset:
            which = "skipped" if start > life.next_offset else "read again"
            fact = f"it was at offset {life.next_offset} of {life.partition} and went on at {start}"
            life.problem(f"offsets were {which}", event, fact)
        if count is not None and event.offset - start > int(count) and start > 0:
            missing = event.offset - start - int(count)
            life.note(event, f"{describe(event)}; {missing} offsets hold no record (markers, aborted or compacted)")
    elif event.offset is not None:
        if life.first_offset is None:
            life.first_offset = event.offset
        if life.next_offset is not None and event.offset < life.next_offset:
            fact = f"it was at offset {life.next_offset} of {life.partition} and went back to {event.offset}"
            life.problem("offsets were read again", event, fact)
    life.next_offset = event.offset
    if event.offset is not None:
        life.reached = max(event.offset, life.reached or 0)
    life.note(event)


def _quiet(life: _Life, event: Event, now: int, silence: int) -> None:
    """It asks for records again, whether there are any or not: how long has it not asked?"""
    if life.last_fetch_ms is None:
        return
    if now - life.last_fetch_ms > silence:
        life.problem("silence", event, f"no fetch of {life.partition} for {length(now - life.last_fetch_ms)}")
    life.last_fetch_ms = now


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """The lives, and what was wrong in them."""
    lives = sorted(rows, key=lambda row: (row["partition"], row["client"]))
    findings = []
    table: list[list[Any]] = []
    for row in lives:
        table.append(
            [row["client"], row["partition"], row["fetches"], row["first_offset"],
             row["reached"], row["commits"], row["last_commit"], row["rebalances"], row["errors"], len(row["problems"])]
        )  # fmt: skip
        for problem in row["problems"]:
            at = Step(**problem["step"])
            if at.time_ms is not None:
                row["spans"].append(asdict(Span(row["client"], problem["what"], at.time_ms, at.time_ms, "fault")))
            near = [Step(**each) for each in row["steps"] if _near(each["time_ms"], at.time_ms)][-20:]
            findings.append(
                Finding(
                    f"{row['client']}: {problem['what']} in {row['partition']} at {clock(at.time_ms)}",
                    {"client": row["client"], "partition": row["partition"], "culprit": row["client"]},
                    problem["fact"],
                    [*near, at],
                )
            )
    which = f"{options['topic']}-" if options.get("topic") else "partition "
    if not lives:
        said = f"no client touched {which}{options.get('partition')} in these logs"
    elif findings:
        said = f"{several(len(findings), 'thing is', 'things are')} wrong in {several(len(lives), 'life', 'lives')}: "
        said += findings[0].title
    else:
        fetches = sum(row["fetches"] for row in lives)
        said = f"{several(len(lives), 'life', 'lives')} with {which}{options.get('partition')}, "
        said += f"{several(fetches, 'fetch', 'fetches')}, and nothing wrong"
    columns = ["client", "partition", "fetches", "first", "last", "commits", "committed", "joins", "errors", "problems"]
    report = Report("client-trace", said, bool(findings), findings, [Table("Lives", columns, table)])
    for row in lives[:20]:
        report.steps += [Step(**each) for each in row["steps"]]
        report.spans += [Span(**each) for each in row["spans"]]
    report.steps.sort(key=lambda each: each.time_ms or 0)
    return report


def _near(time_ms: int | None, at: int | None) -> bool:
    return time_ms is not None and at is not None and 0 <= at - time_ms <= 60_000


def _key(event: Event, options: Row) -> str | None:
    if event.side != CLIENT:
        return None
    group, since, until = options.get("group"), options.get("since_ms"), options.get("until_ms")
    if group is not None and event.group != group:
        return None
    if event.time_ms is not None:
        if since is not None and event.time_ms < since:
            return None
        if until is not None and event.time_ms > until:
            return None
    return event.host


ANALYSIS: Final = Analysis("client-trace", WANTS, _key, rule, conclude)
