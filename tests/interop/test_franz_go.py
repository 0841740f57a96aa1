"""franz-go's kgo test suite against ottla, once, at a bounded size.

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
# The suite has limits of three to thirty seconds of its own, which are not about the broker.
PATIENCE = 20


def run_suite(logs: Path, *options: str) -> str:
    """Run the suite once with a server and logs of its own; what it printed, or why the test is left out or fails."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed (Debian: apt-get install golang)")
    tool = [sys.executable, str(ROOT / "tools" / "run_tests"), "--logs", str(logs)]
    command = [*tool, "-n", "1", "--ports", ",".join(map(str, free_ports(3))), "--patience", str(PATIENCE), *options]
    try:
        done = subprocess.run(
            [*command, "--timeout", "50m"], cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False
        )
    finally:  # after a failure the suite leaves its server running
        subprocess.run([*tool, "-k"], cwd=ROOT, capture_output=True, check=False)
    if "go mod download" in done.stderr and done.returncode != 0:
        pytest.skip(f"the suite cannot be had: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{what_failed(logs)}"
    return done.stdout


def what_failed(logs: Path) -> str:
    """What the suite said of its failures, and the ends of both logs."""
    texts = {name: log.read_text(errors="replace") if (log := logs / name).exists() else "" for name in LOGS}
    messages = [
        line for line in texts["client.log"].splitlines() if re.search(r"_test\.go:\d+: |--- FAIL|^panic", line)
    ]
    ends = [f"{name} ends with\n{text[-3000:]}" for name, text in texts.items()]
    return "\n".join([*messages[-100:], *ends])


LOGS = ("client.log", "server.log")


def test_kgo_suite_passes(tmp_path: Path) -> None:
    printed = run_suite(tmp_path, "-r", str(RECORDS))
    counted = re.search(r"iteration 1: (\d+) passed, 0 failed", printed)
    assert counted is not None, printed
    assert int(counted[1]) > 100
