"""Run every block of Python in docs/testing-guide.md."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from ottla.testing import Cluster

GUIDE = (Path(__file__).parents[2] / "docs" / "testing-guide.md").read_text()


def recipes() -> list[tuple[str, str]]:
    blocks = []
    for part in re.split(r"(?m)^## ", GUIDE)[1:]:
        title = part.splitlines()[0]
        blocks += [(title, block) for block in re.findall(r"(?ms)^```python\n(.*?)^```$", part)]
    return blocks


def test_guide_has_ten_recipes() -> None:
    numbered = [title for title, _ in recipes() if title[0].isdigit()]
    assert [title.split(".")[0] for title in numbered] == [str(number) for number in range(1, 11)]


@pytest.mark.parametrize(("title", "code"), recipes(), ids=[title for title, _ in recipes()])
def test_recipe(title: str, code: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(code, title, "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert tests
    for function in tests:
        marks = getattr(function, "pytestmark", [])
        options: dict[str, Any] = {}
        for mark in marks:
            if mark.name == "kafka":
                options.update(mark.kwargs)
        values = [mark.args for mark in marks if mark.name == "parametrize"] or [("", [None])]
        name, choices = values[0]
        for choice in choices:
            run(function, options, {name: choice} if name else {})


def run(function: Any, options: dict[str, Any], arguments: dict[str, Any]) -> None:
    with contextlib.ExitStack() as stack:
        if "kafka" in inspect.signature(function).parameters:
            arguments["kafka"] = stack.enter_context(Cluster(**options))
        result = function(**arguments)
        if inspect.iscoroutine(result):
            asyncio.run(result)
