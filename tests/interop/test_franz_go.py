"""franz-go's own kgo suite, once, at a bounded size: classic and KIP-848 groups, transactions, everything it has.

`tools/run_tests` runs it again and again, larger, under Go's race detector, with restarts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_ports

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 20_000
SECONDS = 600


def three_ports() -> str:
    return ",".join(map(str, free_ports(3)))


def test_the_whole_suite_passes() -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed (Debian: apt-get install golang)")
    command = [sys.executable, str(ROOT / "tools" / "run_tests"), "-n", "1", "-r", str(RECORDS)]
    command += ["--ports", three_ports(), "--timeout", "9m"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    finally:  # a server that a failure left for people to look at; nobody looks here
        subprocess.run([*command[:2], "-k"], cwd=ROOT, capture_output=True, check=False)
    if "go mod download" in done.stderr and done.returncode != 0:
        pytest.skip(f"the suite cannot be had: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    counted = re.search(r"iteration 1: (\d+) passed, 0 failed", done.stdout)
    assert counted is not None, done.stdout
    assert int(counted[1]) > 100
