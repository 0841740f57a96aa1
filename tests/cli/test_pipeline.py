"""What `ottla pipeline init` and `test` tell a program; neither needs Spark for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from ottla.cli import build

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
import pytest

def test_good(): pass
def test_bad(): assert 1 == 2
@pytest.mark.skip(reason="not today")
def test_later(): pass
"""


def run(*words: str) -> tuple[int, list[dict[str, Any]]]:
    """How `ottla pipeline` ends, and the objects that it prints."""
    result = CliRunner().invoke(build(["pipeline"]), ["pipeline", *words, "--json"])
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def test_what_is_made_and_how_its_tests_end(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    code, (made,) = run("init", str(folder))
    assert code == 0
    assert made["pipeline"] == str(folder)
    assert str(folder / "pipeline.py") in made["files"]
    for each in folder.glob("test_*.py"):
        each.unlink()
    assert run("test", str(folder)) == (1, [])
    (folder / "test_shop.py").write_text(TESTS)
    code, tests = run("test", str(folder))
    assert code == 1
    assert [(each["test"], each["result"]) for each in tests] == [
        ("test_shop::test_good", "passed"),
        ("test_shop::test_bad", "failed"),
        ("test_shop::test_later", "skipped"),
    ]
    assert [each["problem"] for each in tests][::2] == [None, "not today"]
