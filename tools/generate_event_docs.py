"""Generate the tables of docs/events.md, docs/events-schema.md and docs/debugging.md from the code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ottla.analysis.coverage import coverage_table
from ottla.analysis.event import COLUMNS, EVENTS
from ottla.events import ENVELOPE, FIELDS, KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- made by tools/generate_event_docs.py -->", "<!-- end of what is made -->"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def event_log_tables() -> list[str]:
    """Return the fields and kinds of the event log."""
    lines = ["## In every event", "", "| field | |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in ENVELOPE.items()]
    lines += ["", "## Kinds", "", "| kind | meaning | always | sometimes |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {kind.meaning} | {_names(kind.always)} | {_names(kind.sometimes)} |"
        for name, kind in KINDS.items()
    ]
    lines += ["", "## Fields", "", "| field | |", "|---|---|"]
    lines += [f"| `{name}` | {FIELDS[name]} |" for name in sorted(FIELDS)]
    return lines


def analysis_tables() -> list[str]:
    """Return the columns and events of the analysis table."""
    lines = ["## Columns", "", "| column | type | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {kind} | {meaning} |" for name, (kind, meaning) in COLUMNS.items()]
    lines += ["", "## Events", "", "| event | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in EVENTS.items()]
    return lines


PAGES: dict[str, Callable[[], list[str]]] = {
    "events.md": event_log_tables,
    "events-schema.md": analysis_tables,
    "debugging.md": coverage_table,
}


def page(name: str, text: str) -> str:
    """Return a page with its generated part replaced."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    tables = "\n".join(PAGES[name]())
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


if __name__ == "__main__":
    for name in PAGES:
        path = DOCS / name
        path.write_text(page(name, path.read_text()))
