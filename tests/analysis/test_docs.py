"""The guide's commands say what the guide says, and its tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ottla.analysis.event import COLUMNS, EVENTS
from ottla.cli import build

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "debugging.md").read_text()
SCHEMA = (ROOT / "docs" / "events-schema.md").read_text()
COMMANDS = re.findall(r"(?m)^\$ ottla (analyze .*)\n(.*)$", GUIDE)


@pytest.mark.parametrize(("command", "answer"), COMMANDS)
def test_the_guide_is_right(command, answer, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(build(["analyze"]), command.split())
    assert result.output.splitlines()[0] == answer


def test_all_cases_are_run():
    assert len(COMMANDS) == 6


def test_the_schema_is_that_of_the_code():
    assert re.findall(r"(?m)^\| `([\w.]+)` \| (?:bigint|int|string|array<string>) \|", SCHEMA) == list(COLUMNS)
    assert re.findall(r"(?m)^\| `([\w.]+)` \| [^|]*\|$", SCHEMA.partition("## Events")[2]) == list(EVENTS)
    for name, meaning in EVENTS.items():
        assert f"| `{name}` | {meaning} |" in SCHEMA


def test_pictures_are_there():
    for name in re.findall(r"\]\((debugging/[\w-]+\.svg)\)", GUIDE):
        assert (ROOT / "docs" / name).read_text().startswith("<svg")
