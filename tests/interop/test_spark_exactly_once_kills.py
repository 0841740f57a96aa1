"""The exactly-once sink with its processes and brokers killed at random, by seed, while its input changes.

By hand the programs run for as long as you like: `python -m tests.interop.sink_kills --kills 100` with Spark, and
`python -m tests.spark.sink.killed_drivers --kills 100` without.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop
ROOT = Path(__file__).parents[2]


def run(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=3600
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.mark.usefixtures("kafka_jvm")
def test_queries_with_changing_input_write_once_on_both_brokers() -> None:
    out = run("tests.interop.sink_kills", "--kills", "6", "--seed", "11")
    assert out.count("none twice, none missing") == 4, out


def test_killed_and_paused_drivers_write_once() -> None:
    assert "each once" in run("tests.spark.sink.killed_drivers", "--kills", "20", "--seed", "11")
