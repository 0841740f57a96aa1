"""The Python blocks of the section on Spark in docs/registry.md run in order, as one program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "registry.md"


def test_guide_examples_run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    section = GUIDE.read_text().partition("## Spark columns\n")[2].partition("\n## ")[0]
    namespace: dict[str, Any] = {}
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", section, re.S)), str(GUIDE), "exec"), namespace)
    assert namespace["spark"] is spark
    shown = re.findall(r"```\n(\+--.*?)```", section, re.S)
    assert [block.strip() for block in shown] == [capsys.readouterr().out.strip()]
