"""Run the example project's own test suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHOP = Path(__file__).parents[2] / "examples" / "shop"


def test_shop_example() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "ottla.testing.pytest_plugin", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=SHOP, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout
