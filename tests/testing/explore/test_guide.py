"""Runs the code of docs/explorer.md, in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

pytest_plugins = ["pytester"]
PAGE = Path(__file__).parents[3] / "docs" / "explorer.md"


def test_guide_finds_the_bug_and_passes_after_the_correction(pytester: pytest.Pytester) -> None:
    blocks = re.findall(r"```python\n# ([\w.]+)(, corrected)?\n(.*?)```", PAGE.read_text(), re.S)
    names = [name for name, _, _ in blocks]
    assert names == ["shop.py", "test_shop.py", "shop.py", "test_marker.py", "explore_shop.py"]
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    sources = [source for _, _, source in blocks]
    (pytester.path / "shop.py").write_text(sources[0])
    (pytester.path / "test_shop.py").write_text(sources[1])

    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    replay = "--kafka-replay=response-lost at Produce[orders-0]#1"
    found = pytester.runpytest_subprocess("-p", "no:cacheprovider", replay)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["the test passed, but duplicate: key null, value 'two books' in orders-0 *"])

    (pytester.path / "shop.py").write_text(sources[2])
    (pytester.path / "test_marker.py").write_text(sources[3])
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "test_marker.py").assert_outcomes(passed=1)
    (pytester.path / "explore_shop.py").write_text(sources[4])
    output = pytester.runpython("explore_shop.py")
    assert output.ret == 0
    output.stdout.fnmatch_lines(["* runs, * requests"])
