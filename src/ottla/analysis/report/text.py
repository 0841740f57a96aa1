"""Print a report on a terminal: the verdict, then the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.report.model import MOST_EVIDENCE, Finding, Report, Step, clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

MOST_FINDINGS: Final = 20
MOST_ROWS: Final = 100


def print_report(report: Report, console: Console) -> None:
    """Print a report; long lists are truncated."""
    from rich.markup import escape

    colour = "bold red" if report.has_problem else "bold green" if report.conclusive else "bold yellow"
    console.print(f"[{colour}]{escape(report.verdict)}[/]")
    for number, finding in enumerate(report.findings[:MOST_FINDINGS], 1):
        console.print()
        _finding(number, finding, console)
    if len(report.findings) > MOST_FINDINGS:
        console.print(f"\n... and {len(report.findings) - MOST_FINDINGS} more (--json or --html show all)")
    for table in report.tables:
        console.print()
        _table(table.title, table.columns, table.rows[:MOST_ROWS], console)
        if len(table.rows) > MOST_ROWS:
            console.print(f"... and {len(table.rows) - MOST_ROWS} more rows")
    if report.steps:
        console.print()
        _steps("Timeline", report.steps, console)
    _inputs(report, console)
    for note in report.notes:
        console.print(f"[yellow]note:[/] {escape(note)}")


def _finding(number: int, finding: Finding, console: Console) -> None:
    from rich.markup import escape

    console.print(f"[bold]{number}. {escape(finding.title)}[/]")
    if finding.cause:
        console.print(f"   [bold]probable cause:[/] {escape(finding.cause)}")
    for name, value in finding.facts.items():
        console.print(f"   {escape(name)}: {escape(_shown(value))}")
    if finding.steps:
        _steps("Steps", finding.steps, console)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        words = ["-" if item is None else str(item) for item in value]
        return ", ".join(words[:12]) + (f" and {len(words) - 12} more" if len(words) > 12 else "") or "-"
    return "-" if value is None else str(value)


def _steps(title: str, steps: list[Step], console: Console) -> None:
    shown = steps[-MOST_EVIDENCE:]
    rows = [[clock(step.time_ms), step.lane, step.event, step.what, step.where] for step in shown]
    _table(title, ["time", "who", "event", "what", "where"], rows, console)
    if len(steps) > len(shown):
        console.print(f"(the last {len(shown)} of {len(steps)} steps)")


def _table(title: str, columns: list[str], rows: Sequence[Sequence[Any]], console: Console) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        is_numeric = all(isinstance(row[index], int | float) or row[index] is None for row in rows) and bool(rows)
        table.add_column(column, justify="right" if is_numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*["-" if value is None else escape(str(value)) for value in row])
    console.print(table)


def _inputs(report: Report, console: Console) -> None:
    summaries = [summary for summary in report.inputs if summary.events]
    if not summaries:
        return
    console.print()
    rows = [
        [summary.path, " ".join(summary.formats), summary.lines, summary.events, summary.unparsed,
         clock(summary.first_ms), clock(summary.last_ms)]
        for summary in summaries[:20]
    ]  # fmt: skip
    _table("Read", ["input", "format", "lines", "events", "unparsed", "from", "to"], rows, console)
    if len(summaries) > 20:
        console.print(f"... and {len(summaries) - 20} more")
