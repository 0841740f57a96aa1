"""docs/kfake-scenarios.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "kfake-scenarios.md").read_text()


def test_every_counterpart_exists() -> None:
    references = re.findall(r"\b(tests/[\w/]+\.py)(?:::(\w+))?", PAGE)
    assert len(references) > 60
    for path, name in references:
        file = ROOT / path
        assert file.exists(), path
        if name:
            assert re.search(rf"(?m)^(async )?def {name}\(", file.read_text()), f"{path}::{name}"


def test_scenarios_are_listed_once_and_counted() -> None:
    rows = re.findall(r"(?m)^\| ((?:Test|Fuzz)\w+(?:, \w+)*) \| (.*) \|$", PAGE)
    names = [name for row, _ in rows for name in row.split(", ")]
    assert len(names) == len(set(names))
    away = sum(len(row.split(", ")) for row, cell in rows if cell.startswith("does not apply"))
    assert f"{len(names)} tests of kfake" in PAGE
    assert f"{len(names) - away} have a counterpart, {away} do not apply" in PAGE
