"""`kafka_regressions.json`: schedules that once broke a test, kept in the repository and run with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ottla.testing.explore.schedule import Schedule, parse_schedule

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class RegressionFileError(ValueError):
    """The file is malformed; the message tells where."""


def read_regressions(path: Path) -> dict[str, list[Schedule]]:
    """Return the schedules of each test, by its id; empty if the file does not exist."""
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, dict) or not all(isinstance(texts, list) for texts in stored.values()):
            raise ValueError("write an object from test ids to lists of schedules")
        return {test: [parse_schedule(text) for text in texts] for test, texts in stored.items()}
    except ValueError as error:
        raise RegressionFileError(f"{path}: {error}") from None


def add_regressions(path: Path, test: str, schedules: Iterable[Schedule]) -> None:
    """Add schedules of a test to the file, each once."""
    known = read_regressions(path)
    texts = {name: [str(schedule) for schedule in kept] for name, kept in known.items()}
    kept = texts.setdefault(test, [])
    kept += [text for schedule in schedules if (text := str(schedule)) not in kept]
    path.write_text(json.dumps(texts, indent=2, sort_keys=True) + "\n", encoding="utf-8")
