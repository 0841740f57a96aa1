"""docs/events.md: its tables are made from the table in ottla.events."""

from __future__ import annotations

from pathlib import Path

from ottla.events import ENVELOPE, FIELDS, KINDS

DOCS = Path(__file__).parents[1] / "docs" / "events.md"
BEGIN, END = "<!-- made by tools/generate_event_docs.py -->", "<!-- end of what is made -->"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def tables() -> str:
    lines = ["## In every event", "", "| field | |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in ENVELOPE.items()]
    lines += ["", "## Kinds", "", "| kind | meaning | always | sometimes |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {kind.meaning} | {_names(kind.always)} | {_names(kind.sometimes)} |"
        for name, kind in KINDS.items()
    ]
    lines += ["", "## Fields", "", "| field | |", "|---|---|"]
    lines += [f"| `{name}` | {FIELDS[name]} |" for name in sorted(FIELDS)]
    return "\n".join(lines)


def page(text: str) -> str:
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


if __name__ == "__main__":
    DOCS.write_text(page(DOCS.read_text()))
