"""The commands in docs/debugging.md give the answers shown there, and generated tables are current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.generate_event_docs import PAGES, page
from typer.testing import CliRunner

from ottla.cli import build

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "debugging.md").read_text()
COMMANDS = re.findall(r"(?m)^\$ ottla (analyze .*)\n(.*)$", GUIDE)


@pytest.mark.parametrize(("command", "answer"), COMMANDS)
def test_guide_shows_output_of_its_commands(command, answer, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(build(["analyze"]), command.split())
    assert result.output.splitlines()[0] == answer


def test_guide_names_every_command():
    assert len(COMMANDS) == 6


@pytest.mark.parametrize("name", PAGES)
def test_generated_tables_are_current(name):
    text = (ROOT / "docs" / name).read_text()
    assert page(name, text) == text, "run tools/generate_event_docs.py"


def test_guide_pictures_exist():
    for name in re.findall(r"\]\((debugging/[\w-]+\.svg)\)", GUIDE):
        assert (ROOT / "docs" / name).read_text().startswith("<svg")
