"""Find skewed topics: one partition holds much more than the average, in bytes or in records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.engine import Analysis, Overview, Row
from ottla.analysis.report.model import Finding, Report, Series, Table, several

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ottla.analysis.event import Event

WANTS: Final = frozenset({"append"})
FACTOR: Final = 2.0
FEWEST_RECORDS: Final = 100
MOST_POINTS: Final = 300


def rule(topic: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Add up what was appended to each partition of a topic."""
    partitions: dict[int, list[int]] = {}
    rates: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        records, size = (int(word) for word in (event.text or "0 0").split())
        total = partitions.setdefault(event.partition or 0, [0, 0])
        total[0] += records
        total[1] += size
        points = rates.setdefault(event.partition or 0, [])
        points.append((event.time_ms or 0, total[1]))
        if len(points) > MOST_POINTS:
            del points[1:-1:2]
    yield {"kind": "topic", "topic": topic, "partitions": {str(key): value for key, value in partitions.items()},
           "points": {str(key): value for key, value in rates.items()}}  # fmt: skip


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """Report each topic's largest partition against the average, with a finding for each that is skewed."""
    if not rows:
        return Report("hot-partitions", "the input holds no topic with records", has_problem=False, conclusive=False)
    factor = float(options.get("factor", FACTOR))
    findings, table, series = [], [], []
    for row in sorted(rows, key=lambda row: row["topic"]):
        partitions: dict[str, list[int]] = row["partitions"]
        count = len(partitions)
        for column, unit in ((0, "records"), (1, "bytes")):
            amounts = {int(name): values[column] for name, values in partitions.items()}
            total = sum(amounts.values())
            mean = total / count
            hottest = max(amounts, key=lambda number: (amounts[number], -number))
            ratio = amounts[hottest] / mean if mean else 0.0
            cells: list[Any] = [row["topic"], unit, count, total, round(mean), hottest, amounts[hottest],
                                f"{ratio:.1f}"]  # fmt: skip
            table.append(cells)
            records = sum(values[0] for values in partitions.values())
            if count > 1 and ratio >= factor and records >= FEWEST_RECORDS:
                name = f"{row['topic']}-{hottest}"
                share = amounts[hottest] / total
                findings.append(
                    Finding(
                        f"{name} has {share:.0%} of the topic's {unit}, {ratio:.1f} times the average",
                        {"topic": row["topic"], "partition": hottest, unit: amounts[hottest], "culprit": name},
                        f"{count} partitions hold {total} {unit}: {_largest(amounts)}",
                    )
                )
                if unit == "bytes":
                    series += [
                        Series(f"{row['topic']}-{number}", [(time_ms, float(value)) for time_ms, value in points])
                        for number, points in row["points"].items()
                    ]
    if findings:
        skewed = len({finding.facts["topic"] for finding in findings})
        verdict = f"{several(skewed, 'topic is', 'topics are')} skewed: {findings[0].title}"
    else:
        verdict = f"none of {len(rows)} topics has a partition with {factor:g} times the average"
    columns = ["topic", "unit", "partitions", "total", "average", "hottest", "has", "times the average"]
    report = Report("hot-partitions", verdict, bool(findings), findings, [Table("Topics", columns, table)])
    report.series, report.series_title = series[:8], "bytes written so far"
    return report


def _largest(amounts: dict[int, int]) -> str:
    largest = sorted(amounts.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{number}: {amount}" for number, amount in largest[:5])
    return shown + (f" and {len(largest) - 5} more" if len(largest) > 5 else "")


def _key(event: Event, options: Row) -> str | None:
    if event.topic is None or (event.topic.startswith("__") and not options.get("internal")):
        return None
    return event.topic if options.get("topic") in (None, event.topic) else None


ANALYSIS: Final = Analysis("hot-partitions", WANTS, _key, rule, conclude)
