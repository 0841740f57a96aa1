"""A report for people at a terminal: the verdict, then the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.report.model import MOST_EVIDENCE, Finding, Report, Step, clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

MOST_FINDINGS: Final = 20
MOST_ROWS: Final = 100


def print_report(report: Report, console: Console) -> None:
    """Print all of it, long lists cut short."""
    from rich.markup import escape

    colour = "bold red" if report.found else "bold green" if report.answered else "bold yellow"
    console.print(f"[{colour}]{escape(report.verdict)}[/]")
    for number, finding in enumerate(report.findings[:MOST_FINDINGS], 1):
        console.print()
        _finding(number, finding, console)
    if len(report.findings) > MOST_FINDINGS:
        console.print(f"\n... and {len(report.findings) - MOST_FINDINGS} more (all of them: --json or --html)")
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
        _steps("What led there", finding.steps, console)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        words = ["-" if each is None else str(each) for each in value]
        return ", ".join(words[:12]) + (f" and {len(words) - 12} more" if len(words) > 12 else "") or "-"
    return "-" if value is None else str(value)


def _steps(title: str, steps: list[Step], console: Console) -> None:
    shown = steps[-MOST_EVIDENCE:]
    rows = [[clock(each.time_ms), each.lane, each.event, each.what, each.where] for each in shown]
    _table(title, ["time", "who", "event", "what", "where"], rows, console)
    if len(steps) > len(shown):
        console.print(f"(the last {len(shown)} of {len(steps)} steps)")


def _table(title: str, columns: list[str], rows: Sequence[Sequence[Any]], console: Console) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for place, column in enumerate(columns):
        numbers = all(isinstance(row[place], int | float) or row[place] is None for row in rows) and bool(rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*["-" if value is None else escape(str(value)) for value in row])
    console.print(table)


def _inputs(report: Report, console: Console) -> None:
    read = [each for each in report.inputs if each.events]
    if not read:
        return
    console.print()
    rows = [
        [each.path, " ".join(each.formats), each.lines, each.events, each.unparsed, clock(each.first_ms),
         clock(each.last_ms)]
        for each in read[:20]
    ]  # fmt: skip
    _table("Read", ["input", "format", "lines", "events", "unparsed", "from", "to"], rows, console)
    if len(read) > 20:
        console.print(f"... and {len(read) - 20} more")
