"""A few kills of a real process; `python -m tests.storage.killed` runs hundreds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_acknowledged_records_survive_kills() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.killed", "--kills", "6"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 kills" in done.stdout
