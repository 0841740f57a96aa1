"""Which transactions wrote an output topic, and which offsets of its input were committed with them.

From the markers in the output's partitions and from `__consumer_offsets` of a log directory. A commit and the records
of one transaction have the same producer id, and lie between the same two ends of its transactions.
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

    def take(self, event: Event, commit: Row, keep: int) -> bool:
        """One more; whether it counts."""
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
        """For others to read."""
        return {"kind": "group", **asdict(self), "producers": list(self.producers)}


def rule(key: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Walk through the commits for a partition of the input, or the ends of transactions in one of the output."""
    side, _, number = key.rpartition(" ")
    if side == INPUT.strip():
        yield from _commits(int(number), events, options)
    else:
        yield from _ends(int(number), events, options)


def _commits(partition: int, events: Iterable[Event], options: Row) -> Iterator[Row]:
    wanted = set(options.get("producers", ()))
    missing: list[int] = sorted(options.get("missing", {}).get(str(partition), ()))
    groups: dict[str, _Group] = {}
    passed: dict[tuple[str, int], Row] = {}
    for event in events:
        name, offset = event.group or "", event.offset or 0
        group = groups.setdefault(name, _Group(name, partition))
        commit = {"time_ms": event.time_ms or 0, "producer": event.producer_id, "epoch": event.producer_epoch,
                  "offset": offset, "group": name, "partition": partition}  # fmt: skip
        if not group.take(event, commit, MOST if event.producer_id in wanted else SAMPLE):
            continue
        for each in missing:
            if each < offset and (name, each) not in passed:
                passed[name, each] = {"kind": "passed", "missing": each, **commit}
    yield from (group.row() for group in groups.values())
    yield from passed.values()


def _ends(partition: int, events: Iterable[Event], options: Row) -> Iterator[Row]:
    asked = {(offset, producer) for offset, producer in options.get("copies", {}).get(str(partition), ())}
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
        copies = [pair for pair in asked if pair[1] == producer and first <= pair[0] < event.position]
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
    """The proof alone, without the records."""
    proof = Proof(options["input"], options["output"], rows)
    return Report("exactly-once", proof.summary(), bool(proof.outside()), proof.outside(), proof.tables())


ANALYSIS: Final = Analysis("exactly-once-proof", WANTS, _key, rule, conclude)


class Proof:
    """What the rule said, to be asked about records."""

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
        """Look for the proof in a log directory; `questions` are the copies and missing records to explain."""
        options = {"input": source, "output": result, "only_topics": [GROUPS, result], **questions}
        return cls(source, result, collect(ANALYSIS, spark, [path], options), group)

    def summary(self) -> str:
        """In a sentence what the transactions are."""
        committed = sum(row["commit"] for row in self._outputs)
        aborted = sum(row["abort"] for row in self._outputs)
        inside = sum(row["inside"] for row in self._groups)
        return (
            f"{several(committed, 'transaction')} committed and {aborted} aborted in partitions of {self._result}; "
            f"{several(inside, 'offset')} of {self._source} committed with them"
        )

    def committed_with(self, end: Row) -> list[Row]:
        """The offsets that were committed in the transaction that ended so."""
        between = [
            each
            for each in self._commits.get(end["producer"], [])
            if end["since_ms"] <= each["time_ms"] <= end["time_ms"]
        ]
        latest = max((each["time_ms"] for each in between), default=0)
        return [each for each in between if each["time_ms"] == latest]

    def transaction(self, partition: int, offset: int) -> str:
        """Which transaction a record of the output was written in, in words; empty where nothing is known."""
        end = self._copies.get((partition, offset))
        if end is None:
            return ""
        return f"transaction that ended at {clock(end['time_ms'])} ({self._result}-{partition} offset " \
               f"{end['marker']}), {self._with(end)}"  # fmt: skip

    def _with(self, end: Row) -> str:
        commits = self.committed_with(end)
        if not commits:
            return f"no offset of {self._source} with it"
        listed = ", ".join(f"{self._source}-{each['partition']} to {each['offset']}" for each in commits)
        return f"with {listed} for {commits[0]['group']}"

    def passed(self, partition: int, offset: int) -> Row | None:
        """The commit by which an application went past a record of its input."""
        return self._passed.get((partition, offset))

    def outside(self) -> list[Finding]:
        """Groups that commit within transactions, and sometimes not."""
        findings = []
        for name in sorted(self._ours):
            rows = [row for row in self._groups if row["group"] == name and row["outside"]]
            if not rows:
                continue
            count = sum(row["outside"] for row in rows)
            first = min(rows, key=lambda row: row["first_outside_ms"] or 0)
            at = f"{self._source}-{first['partition']} to {first['outside_offset']}"
            facts: dict[str, Any] = {
                "group": name,
                "partitions": [f"{self._source}-{row['partition']}" for row in rows],
                "outside transactions": count,
                "inside transactions": sum(row["inside"] for row in self._groups if row["group"] == name),
                "first": f"{at} at {clock(first['first_outside_ms'])}",
                "culprit": f"group {name}",
            }
            title = f"{name} committed {several(count, 'offset')} of {self._source} outside its transactions"
            cause = (
                "what was read and what was written do not end together then: a crash between loses or repeats records "
                "(offsets that somebody reset by hand look the same)"
            )
            findings.append(Finding(title, facts, cause, [Step(first["first_outside_ms"], name, "commit", at)]))
        return findings

    def tables(self) -> list[Table]:
        """Who committed what with which transaction."""
        tables = []
        if self._groups:
            columns = ["group", "partition", "in transactions", "aborted", "outside", "offset"]
            rows = [
                [row["group"], f"{self._source}-{row['partition']}", row["inside"], row["aborted"], row["outside"],
                 row["offset"]]
                for row in sorted(self._groups, key=lambda row: (row["group"], row["partition"]))
            ]  # fmt: skip
            tables.append(Table(f"Offsets of {self._source} committed by those who wrote", columns, rows))
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
        """The transactions over time, one lane for each producer, and commits outside of them."""
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
            for each in finding.steps:
                at = each.time_ms or 0
                spans.append(Span(each.lane, f"{each.what} outside a transaction", at, at, "fault"))
        return spans

    def notes(self) -> list[str]:
        """What else to know."""
        if self._groups or not any(row["commit"] for row in self._outputs):
            return []
        others = f" ({', '.join(self._others[:5])} committed them outside)" if self._others else ""
        return [f"no group committed offsets of {self._source} in a transaction{others}: nothing ties them together"]
