"""Find the transactions that wrote an output topic, and the offsets of its input that were committed with them.

Uses the markers in the output's partitions and `__consumer_offsets` of a log directory. A commit and the records of one
transaction have the same producer id and lie between the same two markers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.engine import Analysis, Overview, Row, collect
from ottla.analysis.parse.log_directory import GROUPS
from ottla.analysis.report.model import Finding, Report, Span, Step, Table, clock, several

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from ottla.analysis.event import Event

WANTS: Final = frozenset({"commit", "txn.marker"})
INPUT, OUTPUT = "input ", "output "
SAMPLE: Final = 50
MOST: Final = 2_000


@dataclass(slots=True)
class _Group:
    """One group's commits for one partition of the input."""

    group: str
    partition: int
    inside: int = 0
    aborted: int = 0
    outside: int = 0
    offset: int = -1
    first_outside_ms: int | None = None
    outside_offset: int | None = None
    commits: list[Row] = field(default_factory=list)
    producers: dict[int, None] = field(default_factory=dict)

    def add(self, event: Event, commit: Row, keep: int) -> bool:
        """Add a commit; return whether it counts: it is outside a transaction, or its transaction committed."""
        if event.producer_id is None:
            self.outside += 1
            if self.first_outside_ms is None:
                self.first_outside_ms, self.outside_offset = event.time_ms, event.offset
        else:
            if len(self.producers) < MOST:
                self.producers[event.producer_id] = None
            if event.state != "commit":
                self.aborted += event.state == "abort"
                return False
            self.inside += 1
            if len(self.commits) < keep:
                self.commits.append(commit)
        self.offset = event.offset or 0
        return True

    def row(self) -> Row:
        """Return this as a row of the rule."""
        return {"kind": "group", **asdict(self), "producers": list(self.producers)}


def rule(key: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Follow the commits for a partition of the input, or the markers in a partition of the output."""
    side, _, number = key.rpartition(" ")
    if side == INPUT.strip():
        yield from _commits(int(number), events, options)
    else:
        yield from _ends(int(number), events, options)


def _commits(partition: int, events: Iterable[Event], options: Row) -> Iterator[Row]:
    producers = set(options.get("producers", ()))
    missing: list[int] = sorted(options.get("missing", {}).get(str(partition), ()))
    groups: dict[str, _Group] = {}
    passed: dict[tuple[str, int], Row] = {}
    for event in events:
        name, offset = event.group or "", event.offset or 0
        group = groups.setdefault(name, _Group(name, partition))
        commit = {"time_ms": event.time_ms or 0, "producer": event.producer_id, "epoch": event.producer_epoch,
                  "offset": offset, "group": name, "partition": partition}  # fmt: skip
        if not group.add(event, commit, MOST if event.producer_id in producers else SAMPLE):
            continue
        for missing_offset in missing:
            if missing_offset < offset and (name, missing_offset) not in passed:
                passed[name, missing_offset] = {"kind": "passed", "missing": missing_offset, **commit}
    yield from (group.row() for group in groups.values())
    yield from passed.values()


def _ends(partition: int, events: Iterable[Event], options: Row) -> Iterator[Row]:
    questions = {(offset, producer) for offset, producer in options.get("copies", {}).get(str(partition), ())}
    last: dict[int, int] = {}
    ends: list[Row] = []
    counts = {"commit": 0, "abort": 0}
    for event in events:
        producer, first, now = event.producer_id or 0, event.offset or 0, event.time_ms or 0
        counts[event.state or "abort"] += 1
        end = {"partition": partition, "producer": producer, "epoch": event.producer_epoch, "first": first,
               "marker": event.position, "began_ms": now - (event.duration_ms or 0), "time_ms": now,
               "since_ms": last.get(producer, -1), "state": event.state}  # fmt: skip
        last[producer] = now
        copies = [pair for pair in questions if pair[1] == producer and first <= pair[0] < event.position]
        for offset, _ in copies:
            yield {"kind": "copy", "offset": offset, **end}
        if len(ends) < SAMPLE:
            ends.append(end)
    yield {"kind": "output", "partition": partition, "ends": ends, "producers": list(last)[:MOST], **counts}


def _key(event: Event, options: Row) -> str | None:
    if event.event == "commit":
        return f"{INPUT}{event.partition}" if event.topic == options["input"] else None
    return f"{OUTPUT}{event.partition}" if event.topic == options["output"] else None


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """Report the transactions alone, without the records."""
    proof = Proof(options["input"], options["output"], rows)
    return Report("exactly-once", proof.summary(), bool(proof.outside()), proof.outside(), proof.tables())


ANALYSIS: Final = Analysis("exactly-once-proof", WANTS, _key, rule, conclude)


class Proof:
    """The rows of the rule, indexed by record and by producer."""

    def __init__(self, source: str, result: str, rows: list[Row], group: str | None = None) -> None:
        self._source, self._result = source, result
        groups = [row for row in rows if row["kind"] == "group"]
        self._outputs = [row for row in rows if row["kind"] == "output"]
        writers = {producer for row in self._outputs for producer in row["producers"]}
        self._ours = {row["group"] for row in groups if writers.intersection(row["producers"])}
        if group is not None:
            self._ours = {group}
        self._groups = [row for row in groups if row["group"] in self._ours]
        self._others = sorted({row["group"] for row in groups} - self._ours)
        self._copies = {(row["partition"], row["offset"]): row for row in rows if row["kind"] == "copy"}
        self._passed = {
            (row["partition"], row["missing"]): row
            for row in sorted((row for row in rows if row["kind"] == "passed"), key=lambda row: -row["time_ms"])
            if row["group"] in self._ours
        }  # fmt: skip
        self._commits: dict[int, list[Row]] = {}
        for row in self._groups:
            for commit in row["commits"]:
                self._commits.setdefault(commit["producer"], []).append(commit)

    @classmethod
    def read(cls, spark: SparkSession, path: str, source: str, result: str, group: str | None, questions: Row) -> Proof:
        """Read the transactions of a log directory; `questions` are the copies and missing records to explain."""
        options = {"input": source, "output": result, "only_topics": [GROUPS, result], **questions}
        return cls(source, result, collect(ANALYSIS, spark, [path], options), group)

    def summary(self) -> str:
        """Return how many transactions committed and aborted, in a sentence."""
        committed = sum(row["commit"] for row in self._outputs)
        aborted = sum(row["abort"] for row in self._outputs)
        inside = sum(row["inside"] for row in self._groups)
        return (
            f"{several(committed, 'transaction')} committed and {aborted} aborted in partitions of {self._result}; "
            f"{several(inside, 'offset')} of {self._source} committed with them"
        )

    def committed_with(self, end: Row) -> list[Row]:
        """Return the commits of the transaction that ended with this marker."""
        between = [
            commit
            for commit in self._commits.get(end["producer"], [])
            if end["since_ms"] <= commit["time_ms"] <= end["time_ms"]
        ]
        latest = max((commit["time_ms"] for commit in between), default=0)
        return [commit for commit in between if commit["time_ms"] == latest]

    def transaction(self, partition: int, offset: int) -> str:
        """Describe the transaction that wrote a record of the output; return an empty string if it is unknown."""
        end = self._copies.get((partition, offset))
        if end is None:
            return ""
        return f"transaction that ended at {clock(end['time_ms'])} ({self._result}-{partition} offset " \
               f"{end['marker']}), {self._with(end)}"  # fmt: skip

    def _with(self, end: Row) -> str:
        commits = self.committed_with(end)
        if not commits:
            return f"no offset of {self._source} with it"
        listed = ", ".join(f"{self._source}-{commit['partition']} to {commit['offset']}" for commit in commits)
        return f"with {listed} for {commits[0]['group']}"

    def passed(self, partition: int, offset: int) -> Row | None:
        """Return the commit by which the application passed a record of its input, or None."""
        return self._passed.get((partition, offset))

    def outside(self) -> list[Finding]:
        """Return a finding for each group that commits within transactions and also outside them."""
        findings = []
        for name in sorted(self._ours):
            rows = [row for row in self._groups if row["group"] == name and row["outside"]]
            if not rows:
                continue
            count = sum(row["outside"] for row in rows)
            first = min(rows, key=lambda row: row["first_outside_ms"] or 0)
            commit = f"{self._source}-{first['partition']} to {first['outside_offset']}"
            facts: dict[str, Any] = {
                "group": name,
                "partitions": [f"{self._source}-{row['partition']}" for row in rows],
                "outside transactions": count,
                "inside transactions": sum(row["inside"] for row in self._groups if row["group"] == name),
                "first": f"{commit} at {clock(first['first_outside_ms'])}",
                "culprit": f"group {name}",
            }
            title = f"{name} committed {several(count, 'offset')} of {self._source} outside its transactions"
            cause = (
                "input and output are not committed together then: a crash between the two loses or repeats records "
                "(offsets reset by an operator look the same)"
            )
            findings.append(Finding(title, facts, cause, [Step(first["first_outside_ms"], name, "commit", commit)]))
        return findings

    def tables(self) -> list[Table]:
        """Return tables of the groups' commits and of the transactions."""
        tables = []
        if self._groups:
            columns = ["group", "partition", "in transactions", "aborted", "outside", "offset"]
            rows = [
                [row["group"], f"{self._source}-{row['partition']}", row["inside"], row["aborted"], row["outside"],
                 row["offset"]]
                for row in sorted(self._groups, key=lambda row: (row["group"], row["partition"]))
            ]  # fmt: skip
            tables.append(Table(f"Offsets of {self._source} committed by the writers' groups", columns, rows))
        ends = sorted((end for row in self._outputs for end in row["ends"]), key=lambda end: end["time_ms"])
        if ends:
            columns = ["ended", "producer", "epoch", "how", "partition", "offsets", "committed with it"]
            shown = [
                [clock(end["time_ms"]), end["producer"], end["epoch"], end["state"],
                 f"{self._result}-{end['partition']}", f"{end['first']} to {end['marker']}",
                 self._with(end) if end["state"] == "commit" else "-"]
                for end in ends[:SAMPLE]
            ]  # fmt: skip
            total = sum(row["commit"] + row["abort"] for row in self._outputs)
            title = "Transactions" if total <= len(shown) else f"Transactions, {len(shown)} of {total}"
            tables.append(Table(title, columns, shown))
        return tables

    def spans(self) -> list[Span]:
        """Return the transactions over time, one lane per producer, and commits outside of them."""
        ends = sorted((end for row in self._outputs for end in row["ends"]), key=lambda end: end["time_ms"])[:SAMPLE]
        spans = [
            Span(
                f"producer {end['producer']}",
                f"{self._result}-{end['partition']} {end['first']} to {end['marker']}",
                end["began_ms"],
                end["time_ms"],
                "ok" if end["state"] == "commit" else "waits",
            )
            for end in ends
        ]
        for finding in self.outside()[:SAMPLE]:
            for step in finding.steps:
                time_ms = step.time_ms or 0
                spans.append(Span(step.lane, f"{step.what} outside a transaction", time_ms, time_ms, "fault"))
        return spans

    def notes(self) -> list[str]:
        """Return a note if no group committed the input in a transaction."""
        if self._groups or not any(row["commit"] for row in self._outputs):
            return []
        others = f" ({', '.join(self._others[:5])} committed them outside)" if self._others else ""
        return [f"no group committed offsets of {self._source} in a transaction{others}: nothing ties them together"]
