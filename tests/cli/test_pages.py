"""Runs the commands of docs/inspector.md and docs/storage.md and compares their output.

python -m tests.cli.test_pages        writes the pages with what the commands print today
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ottla.cli import COMMANDS, build

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "fixtures" / "kafka" / "4.3.1"
PAGES = ("docs/inspector.md", "docs/storage.md")
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r'^\$ (?:echo "(?P<echo>[^"]*)" \| )?ottla (?P<words>.*?)(?: \| head -(?P<head>\d+))?$')


def answer(command: str) -> str:
    """Return the output of a command of a page."""
    match = COMMAND.match(command)
    assert match is not None, command
    result = CliRunner().invoke(build(list(COMMANDS)), match["words"].split(), input=(match["echo"] or "") + "\n")
    lines = result.output.replace(f"{FOLDER}/", "").splitlines()
    return "\n".join(line.rstrip() for line in (lines[: int(match["head"])] if match["head"] else lines))


def filled(text: str) -> str:
    """Return a page with the output of its commands."""

    def fill(block: re.Match[str]) -> str:
        commands = [line for line in block[1].splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"{command}\n{answer(command)}\n" for command in commands) + "```"

    return BLOCK.sub(fill, text)


@pytest.mark.parametrize("page", PAGES)
def test_page_shows_the_output_of_its_commands(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.setenv("COLUMNS", "120")
    text = (ROOT / page).read_text()
    assert filled(text) == text


if __name__ == "__main__":
    os.chdir(FOLDER)
    os.environ["COLUMNS"] = "120"
    for name in PAGES:
        (ROOT / name).write_text(filled((ROOT / name).read_text()))
