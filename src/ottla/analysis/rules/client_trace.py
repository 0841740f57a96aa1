"""Trace what clients did with one partition: assignments, positions, fetches, commits, errors and gaps.

Uses what clients log themselves, and the requests that a broker or a tap recorded of them.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.engine import Analysis, Overview, Row
from ottla.analysis.event import CLIENT, Event, partition_name
from ottla.analysis.inputs import CLIENT_LOGS
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
        "group.assigned",
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
        "topic",
    }
)
ASSIGNMENTS: Final = frozenset({"group.added", "group.assigned", "group.released"})
MEMBERSHIP: Final = frozenset({"group.join", "group.left", "group.fenced"})
SILENCE_MS: Final = 30_000
MOST_STEPS: Final = 400
MOST_PROBLEMS: Final = 100
_FROM: Final = re.compile(r"^from (-?\d+)(?:, (\d+) records)?")


@dataclass(slots=True)
class _Trace:
    """What one client did with one partition."""

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

    def add_problem(self, what: str, event: Event, fact: str) -> None:
        """Record a fault with the event that shows it."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append({"what": what, "fact": fact, "step": asdict(step(event, self.client))})

    def add_step(self, event: Event, what: str | None = None) -> None:
        """Add a line to the timeline; consecutive fetches share one line."""
        last = self.steps[-1] if self.steps else None
        if event.event == "fetch" and event.error is None and last is not None and last.event == "fetch":
            last.what = f"{last.what.split(' and on to')[0]} and on to offset {event.offset}"
            return
        if len(self.steps) < MOST_STEPS:
            self.steps.append(step(event, self.client))
            if what:
                self.steps[-1].what = what

    def acquire(self, now: int) -> bool:
        """Begin to own the partition; return False if the client owned it already."""
        if self.owned_since is not None:
            return False
        self.owned_since = now
        self.next_offset = self.last_fetch_ms = None
        return True

    def release(self, now: int) -> None:
        """Cease to own the partition, so that the next fetch may begin at another offset."""
        if self.owned_since is not None:
            self.spans.append(Span(self.client, f"has {self.partition}", self.owned_since, now))
            self.owned_since = None
        self.next_offset = self.last_fetch_ms = None


def rule(client: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Trace one client through its events."""
    traces: dict[str, _Trace] = {}
    groups: set[str] = set()
    silence = int(options.get("silence_ms", SILENCE_MS))
    for event in events:
        now = event.time_ms or 0
        if event.group:
            groups.add(event.group)
        partitions = _partitions(event, options)
        for partition in partitions:
            trace = traces.setdefault(partition, _Trace(client, partition))
            trace.seen_ms = now
            _apply(trace, event, now, silence)
        if event.event == "group.assigned":
            for partition, trace in traces.items():
                if partition not in partitions and trace.owned_since is not None:
                    trace.release(now)
                    trace.add_step(event, f"no longer assigned {partition}")
        elif not _names_partitions(event):
            for trace in traces.values():
                _apply_to_all(trace, event, now, silence)
    if options.get("group") is not None and options["group"] not in groups:
        return  # requests do not name a group, so that its membership shows only now
    for partition in sorted(traces):
        trace = traces[partition]
        if trace.owned_since is not None:
            trace.release(trace.seen_ms)
        yield {"kind": "trace", **asdict(trace)}


def _names_partitions(event: Event) -> bool:
    return (event.topic is not None and event.partition is not None) or event.event in ASSIGNMENTS


def _partitions(event: Event, options: Row) -> list[str]:
    """Return the partitions that an event concerns, limited to the requested partition and topic."""
    names = [partition_name(event.topic, event.partition)] if event.topic and event.partition is not None else []
    if event.event in ASSIGNMENTS or (event.event == "response" and event.error and event.api == "Fetch"):
        names += event.partitions or []
    number, topic = options.get("partition"), options.get("topic")
    return [
        name
        for name in dict.fromkeys(names)
        if (number is None or name.rpartition("-")[2] == str(number))
        and (topic is None or name.rpartition("-")[0] == topic)
    ]


def _apply_to_all(trace: _Trace, event: Event, now: int, silence: int) -> None:
    """Apply an event of the client that names no partition."""
    name = event.event
    if name == "position":
        trace.next_offset = trace.last_fetch_ms = None
        trace.add_step(event, event.state)
    elif (name == "response" and event.api == "Fetch" and event.error is None) or name == "fetch":
        _check_silence(trace, event, now, silence)
    elif event.error or name in MEMBERSHIP or name == "txn.fenced":
        trace.add_step(event)
        trace.errors += event.error is not None
        trace.rebalances += name == "group.join"
        if name == "group.fenced":
            reason = event.state or event.error or "fenced"
            when = "while" if trace.owned_since is not None else "after"
            trace.add_problem("removed from the group", event, f"{reason}, {when} it owned {trace.partition}")
            trace.release(now)
        elif name == "group.left":
            trace.release(now)


def _apply(trace: _Trace, event: Event, now: int, silence: int) -> None:
    """Apply an event that names the partition."""
    name = event.event
    if event.error:
        trace.errors += 1
        trace.add_step(event)
        about = trace.partition
        if name == "response" and len(event.partitions or ()) > 1:
            about = f"one of {' '.join(event.partitions or ())}"
        trace.add_problem("error", event, f"{event.error} for {about}")
    elif name == "fetch":
        _fetched(trace, event, now, silence)
    elif name == "commit":
        _committed(trace, event)
    elif name == "position":
        exact = event.format == KGO and event.offset is not None and event.offset >= 0
        trace.next_offset = event.offset if exact else None  # other clients may seek afterwards without a log line
        trace.add_step(event, f"begins at offset {event.offset} ({event.state})" if event.state else None)
    elif name in ("group.added", "group.assigned"):
        if trace.acquire(now):
            trace.add_step(event, f"was assigned {trace.partition}")
    elif name == "group.released":
        trace.release(now)
        trace.add_step(event, f"gave up {trace.partition}" + (f" ({event.state})" if event.state else ""))
    elif name != "log":
        trace.add_step(event)


def _committed(trace: _Trace, event: Event) -> None:
    trace.commits += 1
    if event.offset is not None:
        stated = _FROM.match(event.state or "")
        before = int(stated[1]) if stated is not None else trace.last_commit
        if before is not None and event.offset < before:
            fact = f"the committed offset went back from {before} to {event.offset}"
            trace.add_problem("commit went back", event, fact)
        trace.last_commit = event.offset
    trace.add_step(event)


def _fetched(trace: _Trace, event: Event, now: int, silence: int) -> None:
    trace.fetches += 1
    _check_silence(trace, event, now, silence)
    trace.last_fetch_ms = now
    stated = _FROM.match(event.state or "")
    if stated is not None and event.offset is not None:
        start, count = int(stated[1]), stated[2]
        if trace.first_offset is None:
            trace.first_offset = start
        if trace.next_offset is not None and start != trace.next_offset:
            which = "skipped" if start > trace.next_offset else "read again"
            fact = f"its position in {trace.partition} was {trace.next_offset} and it continued at {start}"
            trace.add_problem(f"offsets were {which}", event, fact)
        if count is not None and event.offset - start > int(count) and start > 0:
            missing = event.offset - start - int(count)
            trace.add_step(
                event, f"{describe(event)}; {missing} offsets hold no record (markers, aborted or compacted)"
            )
    elif event.offset is not None:
        if trace.first_offset is None:
            trace.first_offset = event.offset
        if trace.next_offset is not None and event.offset < trace.next_offset:
            fact = f"its position in {trace.partition} was {trace.next_offset} and it went back to {event.offset}"
            trace.add_problem("offsets were read again", event, fact)
    trace.next_offset = event.offset
    if event.offset is not None:
        trace.reached = max(event.offset, trace.reached or 0)
    trace.add_step(event)


def _check_silence(trace: _Trace, event: Event, now: int, silence: int) -> None:
    """Report the time since the client's last fetch if it is too long, and begin to measure again."""
    if trace.last_fetch_ms is None:
        return
    if now - trace.last_fetch_ms > silence:
        trace.add_problem("silence", event, f"no fetch of {trace.partition} for {length(now - trace.last_fetch_ms)}")
    trace.last_fetch_ms = now


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """Report the traces by partition and client, and what is wrong in them."""
    traces = sorted(rows, key=lambda row: (row["partition"], row["client"]))
    findings = []
    table: list[list[Any]] = []
    for row in traces:
        table.append(
            [row["client"], row["partition"], row["fetches"], row["first_offset"],
             row["reached"], row["commits"], row["last_commit"], row["rebalances"], row["errors"], len(row["problems"])]
        )  # fmt: skip
        for problem in row["problems"]:
            shown = Step(**problem["step"])
            if shown.time_ms is not None:
                row["spans"].append(asdict(Span(row["client"], problem["what"], shown.time_ms, shown.time_ms, "fault")))
            before = [Step(**line) for line in row["steps"] if _is_shortly_before(line["time_ms"], shown.time_ms)][-20:]
            findings.append(
                Finding(
                    f"{row['client']}: {problem['what']} in {row['partition']} at {clock(shown.time_ms)}",
                    {"client": row["client"], "partition": row["partition"], "culprit": row["client"]},
                    problem["fact"],
                    [*before, shown],
                )
            )
    partition = f"{options['topic']}-" if options.get("topic") else "partition "
    partition += str(options.get("partition"))
    clients = several(len({row["client"] for row in traces}), "client")
    if not traces:
        return Report("client-trace", f"no client in the input uses {partition}", has_problem=False, conclusive=False)
    if findings:
        verdict = f"{several(len(findings), 'fault')} of {clients} with {partition}: {findings[0].title}"
    else:
        fetches = several(sum(row["fetches"] for row in traces), "fetch", "fetches")
        verdict = f"{clients} used {partition}: {fetches}, nothing wrong"
    columns = ["client", "partition", "fetches", "first", "last", "commits", "committed", "joins", "errors", "problems"]
    report = Report("client-trace", verdict, bool(findings), findings, [Table("Clients", columns, table)])
    for row in traces[:20]:
        report.steps += [Step(**line) for line in row["steps"]]
        report.spans += [Span(**span) for span in row["spans"]]
    report.steps.sort(key=lambda line: line.time_ms or 0)
    return report


def _is_shortly_before(time_ms: int | None, moment_ms: int | None) -> bool:
    return time_ms is not None and moment_ms is not None and 0 <= moment_ms - time_ms <= 60_000


def _key(event: Event, options: Row) -> str | None:
    """Return the client: the host of its log, or its client id where a broker or a tap recorded it."""
    group, since, until = options.get("group"), options.get("since_ms"), options.get("until_ms")
    if group is not None and event.group not in (None, group):
        return None
    if event.time_ms is not None and ((since is not None and event.time_ms < since)
                                      or (until is not None and event.time_ms > until)):  # fmt: skip
        return None
    if event.side == CLIENT:
        return event.host if event.format in CLIENT_LOGS else event.client
    if event.event in MEMBERSHIP or event.event in ASSIGNMENTS or (event.event == "response" and event.error):
        return event.client
    return None


ANALYSIS: Final = Analysis("client-trace", WANTS, _key, rule, conclude)
