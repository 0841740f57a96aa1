"""Runs an analysis: reads the inputs, brings the events of each key together in order, and lets the rule look at them.

Small inputs are read in this process; large ones, or any with a Spark master, by Spark. The rule is the same and sees
the same events in the same order.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.event import Event, order
from ottla.analysis.inputs import SUMMARY, InputError, Piece, Summary, find_pieces, read_piece
from ottla.analysis.report.model import Report, clock, length, several

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
Rule = Callable[[str, Iterable[Event], Row], Iterator[Row]]
SMALL: Final = 16 << 20
SHUFFLED: Final = 128 << 20
"""So many bytes of input are one task after the shuffle: most of what is read is not shuffled."""
SHARED: Final = "~"
"""The key of events that concern everybody, such as a coordinator that moves."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """One question: which events it wants, what it brings together, the rule, and what it makes of what was found."""

    name: str
    wants: frozenset[str]
    key: Callable[[Event, Row], str | None]
    rule: Rule
    conclude: Callable[[list[Row], Overview, Row], Report]
    evidence: frozenset[str] = frozenset()
    """Those of the wanted events that decide nothing, and of which a few are enough."""


@dataclass(slots=True)
class Overview:
    """What was read."""

    inputs: list[Summary] = field(default_factory=list)

    @property
    def last_ms(self) -> int | None:
        """The last time in any input: the now of the logs."""
        return max((each.last_ms for each in self.inputs if each.last_ms is not None), default=None)

    @property
    def events(self) -> int:
        """How many events there are."""
        return sum(each.events for each in self.inputs)

    def notes(self) -> list[str]:
        """What a reader of the report has to know about the inputs."""
        notes = []
        unparsed = sum(each.unparsed for each in self.inputs)
        if unparsed:
            samples = [sample for each in self.inputs for sample in each.samples][:3]
            shown = "; ".join(repr(sample[:80]) for sample in samples)
            notes.append(f"{unparsed} lines were not understood and are kept as `unparsed` events, such as {shown}")
        for each in self.inputs:
            if len(each.formats) > 1:
                kinds = ", ".join(
                    f"{count} {name}" for name, count in sorted(each.formats.items(), key=lambda item: -item[1])
                )
                notes.append(f"{each.path} mixes formats: {kinds}")
            if each.jumps:
                often, most = several(each.jumps, "time"), length(each.worst_jump_ms)
                notes.append(
                    f"in {each.path} a clock goes back {often}, by up to {most}: the order of events around that is "
                    f"uncertain"
                )
            if each.skews:
                often, most = several(each.skews, "time"), length(each.worst_skew_ms)
                notes.append(
                    f"in {each.path} lines of one host stand {often} behind later ones of another, by up to {most}: "
                    f"their clocks differ, or several logs were put together; the order between hosts is uncertain"
                )
        ranges = [each for each in self.inputs if each.first_ms is not None and "kafka-log" not in each.formats]
        if len(ranges) > 1:
            late = max(ranges, key=lambda each: each.first_ms or 0)
            early = min(ranges, key=lambda each: each.last_ms or 0)
            if (late.first_ms or 0) > (early.last_ms or 0) + 60_000:
                notes.append(
                    f"{early.path} ends at {clock(early.last_ms)} and {late.path} begins at {clock(late.first_ms)}: "
                    f"they do not overlap, or their clocks differ"
                )
        return notes


def gather(rows: Iterable[Row]) -> tuple[list[Row], Overview]:
    """Part what a rule said from what was read."""
    found: list[Row] = []
    summaries: dict[str, Summary] = {}
    for row in rows:
        if row.get("kind") == SUMMARY:
            summary = Summary.from_text(row["text"])
            summaries.setdefault(summary.path, Summary(summary.path)).add(summary)
        else:
            found.append(row)
    return found, Overview([summaries[path] for path in sorted(summaries)])


def finish(analysis: Analysis, rows: Iterable[Row], options: Row) -> Report:
    """The report on what was found."""
    found, overview = gather(rows)
    understood = overview.events - sum(each.unparsed for each in overview.inputs)
    if understood <= 0:
        said = "there are no events in the input: it is empty, or holds nothing that is known"
        return Report(analysis.name, said, found=False, inputs=overview.inputs, notes=overview.notes())
    report = analysis.conclude(found, overview, options)
    report.inputs = overview.inputs
    report.notes = overview.notes() + report.notes
    if not sum(each.wanted for each in overview.inputs):
        report.notes.insert(0, f"nothing in the input tells of what {analysis.name} looks at")
    return report


def apply(analysis: Analysis, key: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """What the rule says of one key; summaries pass."""
    if key == SUMMARY:
        return ({"kind": SUMMARY, "text": event.text} for event in events)
    return analysis.rule(key, events, options)


def key_of(analysis: Analysis, event: Event, options: Row) -> str | None:
    """The key under which an event is looked at; None for one that is not."""
    return SUMMARY if event.event == SUMMARY else analysis.key(event, options)


def run_here(
    analysis: Analysis, pieces: list[Piece], options: Row, progress: Callable[[int], None] | None = None
) -> Report:
    """Run in this process."""
    return judge(analysis, _read(analysis, pieces, progress), options)


def judge(analysis: Analysis, events: Iterable[Event], options: Row | None = None) -> Report:
    """Run over events that are at hand."""
    chosen = options or {}
    return finish(analysis, _walk(analysis, events, chosen), chosen)


def _walk(analysis: Analysis, events: Iterable[Event], chosen: Row) -> list[Row]:
    keyed: dict[str, list[Event]] = {}
    for event in events:
        key = key_of(analysis, event, chosen)
        if key is not None:
            keyed.setdefault(key, []).append(event)
    rows: list[Row] = []
    for key in sorted(keyed):
        rows += apply(analysis, key, sorted(keyed[key], key=order), chosen)
    return rows


def _read(analysis: Analysis, pieces: list[Piece], progress: Callable[[int], None] | None) -> Iterator[Event]:
    for piece in pieces:
        yield from read_piece(piece, analysis.wants, analysis.evidence)
        if progress is not None:
            progress(max(piece.end - piece.start, 1))


def run_in_spark(analysis: Analysis, spark: SparkSession, paths: list[str], options: Row) -> Report:
    """Run in Spark: one pass over the inputs, one shuffle of the events that the rule wants."""
    return finish(analysis, _walk_in_spark(analysis, spark, paths, options), options)


def collect(analysis: Analysis, spark: SparkSession, paths: list[str], options: Row) -> list[Row]:
    """What a rule says, for an analysis that goes on from there: by Spark, if there is much to read."""
    pieces = find_pieces(paths, topics=options.get("only_topics"))
    if total_size(pieces) <= SMALL:
        rows = _walk(analysis, _read(analysis, pieces, None), options)
    else:
        rows = list(_walk_in_spark(analysis, spark, paths, options))
    return gather(rows)[0]


def _walk_in_spark(analysis: Analysis, spark: SparkSession, paths: list[str], options: Row) -> Iterator[Row]:
    from ottla.analysis.spark_source import read_events

    events = read_events(spark, paths, analysis=analysis.name, options=options)
    size = total_size(find_pieces(paths, topics=options.get("only_topics")))
    tasks = max(spark.sparkContext.defaultParallelism, min(size // SHUFFLED, 2_000))
    keyed = events.where("key is not null").repartition(tasks, "key")
    in_order = keyed.sortWithinPartitions("key", "time_ms", "file", "position", "number")
    name, chosen = analysis.name, dict(options)

    def walk(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # type: ignore[import-untyped]

        from ottla.analysis.analyses import ANALYSES
        from ottla.analysis.spark_source import rows_of

        found = ANALYSES[name]
        said = []
        for key, members in itertools.groupby(rows_of(batches), key=lambda pair: pair[0]):
            for row in apply(found, key, (event for _, event in members), chosen):
                said.append(json.dumps(row))
                if len(said) == 1000:
                    yield pa.RecordBatch.from_pydict({"row": said})
                    said = []
        yield pa.RecordBatch.from_pydict({"row": pa.array(said, pa.string())})

    return (json.loads(row.row) for row in in_order.mapInArrow(walk, "row string").collect())


def total_size(pieces: list[Piece]) -> int:
    """How many bytes there are to read."""
    import os

    size = 0
    for piece in pieces:
        if piece.end >= 0:
            size += piece.end - piece.start
        else:
            size += sum(entry.stat().st_size for entry in os.scandir(piece.path) if entry.name.endswith(".log"))
    return size


__all__ = [
    "SHARED",
    "SMALL",
    "Analysis",
    "InputError",
    "Overview",
    "collect",
    "find_pieces",
    "judge",
    "run_here",
    "run_in_spark",
    "total_size",
]
