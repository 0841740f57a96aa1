"""Run an analysis: read the inputs, sort the events of each key, apply the rule, and build the report.

Small inputs are read in this process, large ones (or any with a Spark master) by Spark. A rule sees the same events in
the same order either way.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.coverage import COVERAGE, can_answer, kind_names
from ottla.analysis.event import Event, order
from ottla.analysis.inputs import SUMMARY, InputError, Piece, Summary, find_pieces, read_piece
from ottla.analysis.report.model import Report, clock, length, several

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
Rule = Callable[[str, Iterable[Event], Row], Iterator[Row]]
SMALL: Final = 16 << 20
"""Inputs up to this many bytes are read in this process."""
SHUFFLED: Final = 128 << 20
"""Bytes of input per task after the shuffle; most of what is read is not shuffled."""
SHARED: Final = "~"
"""The key of events that concern every key, such as a coordinator that moves."""
USED: Final = "used"
"""The kind of the row that counts how many events were passed to a rule."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """One analysis: the events it uses, their key, the rule for one key, and the report on all of its rows."""

    name: str
    wants: frozenset[str]
    key: Callable[[Event, Row], str | None]
    rule: Rule
    conclude: Callable[[list[Row], Overview, Row], Report]
    evidence: frozenset[str] = frozenset()
    """Events out of `wants` that never change a verdict, so that the reader may skip most of them."""


@dataclass(slots=True)
class Overview:
    """What was read, input by input."""

    inputs: list[Summary] = field(default_factory=list)

    @property
    def last_ms(self) -> int | None:
        """The latest time in any input: "now" as far as the logs go."""
        return max((summary.last_ms for summary in self.inputs if summary.last_ms is not None), default=None)

    @property
    def parsed(self) -> int:
        """The number of events that a parser understood."""
        return sum(summary.events - summary.unparsed for summary in self.inputs)

    @property
    def kinds(self) -> set[str]:
        """The kinds of input that were recognised."""
        return {kind for summary in self.inputs for kind in summary.formats if kind}

    def notes(self, analysis: str) -> list[str]:
        """Return what the reader of a report must know about the inputs: skipped lines and files, wrong clocks."""
        notes = []
        unparsed = sum(summary.unparsed for summary in self.inputs)
        if unparsed:
            samples = [sample for summary in self.inputs for sample in summary.samples][:3]
            shown = "; ".join(repr(sample[:80]) for sample in samples)
            notes.append(f"{unparsed} lines match no known format and are kept as `unparsed` events, such as {shown}")
        for summary in self.inputs:
            unusable = {kind for kind in summary.formats if kind and not can_answer(analysis, kind)}
            if unusable and unusable == set(summary.formats) and any(can_answer(analysis, kind) for kind in self.kinds):
                notes.append(f"{summary.path} was not used: {analysis} cannot use this input ({kind_names(unusable)})")
            notes += _format_notes(summary)
        ranges = [
            summary for summary in self.inputs if summary.first_ms is not None and "kafka-log" not in summary.formats
        ]
        if len(ranges) > 1:
            late = max(ranges, key=lambda summary: summary.first_ms or 0)
            early = min(ranges, key=lambda summary: summary.last_ms or 0)
            if (late.first_ms or 0) > (early.last_ms or 0) + 60_000:
                notes.append(
                    f"{early.path} ends at {clock(early.last_ms)} and {late.path} begins at {clock(late.first_ms)}: "
                    f"they do not overlap, or their clocks differ"
                )
        return notes


def _format_notes(summary: Summary) -> Iterator[str]:
    if len(summary.formats) > 1:
        counts = sorted(summary.formats.items(), key=lambda item: -item[1])
        yield f"{summary.path} mixes formats: {', '.join(f'{count} {name}' for name, count in counts)}"
    if summary.jumps:
        often, most = several(summary.jumps, "time"), length(summary.worst_jump_ms)
        yield f"in {summary.path} a clock goes back {often}, by up to {most}: events around that may be out of order"
    if summary.skews:
        often, most = several(summary.skews, "time"), length(summary.worst_skew_ms)
        yield (
            f"in {summary.path} a line of one host is {often} older than the line of another host before it, by up to "
            f"{most}: their clocks differ, or several logs were merged; the order between hosts is uncertain"
        )


def finish(analysis: Analysis, rows: Iterable[Row], options: Row) -> Report:
    """Build the report from the rule's rows, or a report that says why the input cannot answer."""
    findings, overview, used = _sort_rows(rows)
    notes = overview.notes(analysis.name)
    problem = _unanswerable(analysis, overview, used, options)
    if problem is not None:
        return Report(analysis.name, problem, has_problem=False, conclusive=False, inputs=overview.inputs, notes=notes)
    report = analysis.conclude(findings, overview, options)
    report.inputs = overview.inputs
    report.notes = notes + report.notes
    return report


def _sort_rows(rows: Iterable[Row]) -> tuple[list[Row], Overview, int]:
    """Separate what a rule returned from the summaries of the inputs and the count of events it used."""
    findings: list[Row] = []
    summaries: dict[str, Summary] = {}
    used = 0
    for row in rows:
        if row.get("kind") == SUMMARY:
            summary = Summary.from_text(row["text"])
            summaries.setdefault(summary.path, Summary(summary.path)).add(summary)
        elif row.get("kind") == USED:
            used += row["events"]
        else:
            findings.append(row)
    return findings, Overview([summaries[path] for path in sorted(summaries)]), used


def _unanswerable(analysis: Analysis, overview: Overview, used: int, options: Row) -> str | None:
    """Return why the inputs cannot answer, or None if they can."""
    name = analysis.name
    if overview.parsed <= 0:
        return "there are no events in the input: it is empty, or in no known format"
    needed = kind_names(COVERAGE.get(name, ()))
    if overview.kinds and not any(can_answer(name, kind) for kind in overview.kinds):
        return f"{name} cannot use this input ({kind_names(overview.kinds)}): give it one of: {needed}"
    if not used:
        chosen = [f"{key.replace('_', ' ')} {options[key]}" for key in ("group", "topic", "transactional_id")
                  if options.get(key) is not None]  # fmt: skip
        about = f" about {' and '.join(chosen)}" if chosen else ""
        return f"{name} cannot answer: none of the {overview.parsed} events in the input is one it uses{about}"
    return None


def key_of(analysis: Analysis, event: Event, options: Row) -> str | None:
    """Return the key under which a rule sees an event, or None if it does not."""
    return SUMMARY if event.event == SUMMARY else analysis.key(event, options)


def run_here(
    analysis: Analysis, pieces: list[Piece], options: Row, progress: Callable[[int], None] | None = None
) -> Report:
    """Run an analysis in this process."""
    return evaluate(analysis, _read(analysis, pieces, progress), options)


def evaluate(analysis: Analysis, events: Iterable[Event], options: Row | None = None) -> Report:
    """Run an analysis over events in memory."""
    chosen = options or {}
    return finish(analysis, _apply(analysis, events, chosen), chosen)


def _apply(analysis: Analysis, events: Iterable[Event], options: Row) -> list[Row]:
    by_key: dict[str, list[Event]] = {}
    for event in events:
        key = key_of(analysis, event, options)
        if key is not None:
            by_key.setdefault(key, []).append(event)
    rows: list[Row] = []
    for key in sorted(by_key):
        rows += _apply_to_key(analysis, key, sorted(by_key[key], key=order), options)
    used = sum(len(events) for key, events in by_key.items() if key not in (SHARED, SUMMARY))
    return [*rows, {"kind": USED, "events": used}]


def _apply_to_key(analysis: Analysis, key: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    if key == SUMMARY:
        return ({"kind": SUMMARY, "text": event.text} for event in events)
    return analysis.rule(key, events, options)


def _read(analysis: Analysis, pieces: list[Piece], progress: Callable[[int], None] | None) -> Iterator[Event]:
    for piece in pieces:
        yield from read_piece(piece, analysis.wants, analysis.evidence)
        if progress is not None:
            progress(max(piece.end - piece.start, 1))


def run_in_spark(analysis: Analysis, spark: SparkSession, paths: list[str], options: Row) -> Report:
    """Run an analysis in Spark: one pass over the inputs, one shuffle of the events that the rule uses."""
    return finish(analysis, _apply_in_spark(analysis, spark, paths, options), options)


def collect(analysis: Analysis, spark: SparkSession, paths: list[str], options: Row) -> list[Row]:
    """Return the rows of a rule, for an analysis that continues from there; large inputs are read by Spark."""
    pieces = find_pieces(paths, topics=options.get("only_topics"))
    if total_size(pieces) <= SMALL:
        rows = _apply(analysis, _read(analysis, pieces, None), options)
    else:
        rows = list(_apply_in_spark(analysis, spark, paths, options))
    return _sort_rows(rows)[0]


def _apply_in_spark(analysis: Analysis, spark: SparkSession, paths: list[str], options: Row) -> Iterator[Row]:
    from ottla.analysis.spark_source import read_events

    events = read_events(spark, paths, analysis=analysis.name, options=options)
    size = total_size(find_pieces(paths, topics=options.get("only_topics")))
    tasks = max(spark.sparkContext.defaultParallelism, min(size // SHUFFLED, 2_000))
    by_key = events.where("key is not null").repartition(tasks, "key")
    in_order = by_key.sortWithinPartitions("key", "time_ms", "file", "position", "number")
    name, chosen = analysis.name, dict(options)

    def apply_to_task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # type: ignore[import-untyped]

        from ottla.analysis.analyses import ANALYSES
        from ottla.analysis.spark_source import keyed_events

        used = 0

        def count(key: str, pairs: Iterable[tuple[str, Event]]) -> Iterator[Event]:
            nonlocal used
            for _, event in pairs:
                used += key not in (SHARED, SUMMARY)
                yield event

        texts = []
        for key, pairs in itertools.groupby(keyed_events(batches), key=lambda pair: pair[0]):
            for row in _apply_to_key(ANALYSES[name], key, count(key, pairs), chosen):
                texts.append(json.dumps(row))
                if len(texts) == 1000:
                    yield pa.RecordBatch.from_pydict({"row": texts})
                    texts = []
        texts.append(json.dumps({"kind": USED, "events": used}))
        yield pa.RecordBatch.from_pydict({"row": pa.array(texts, pa.string())})

    return (json.loads(row.row) for row in in_order.mapInArrow(apply_to_task, "row string").collect())


def total_size(pieces: list[Piece]) -> int:
    """Return how many bytes the pieces hold."""
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
    "USED",
    "Analysis",
    "InputError",
    "Overview",
    "collect",
    "evaluate",
    "find_pieces",
    "run_here",
    "run_in_spark",
    "total_size",
]
