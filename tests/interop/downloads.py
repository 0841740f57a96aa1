"""Downloads jars, modules and packages that a clean machine lacks; the only code of these tests with retries."""

from __future__ import annotations

import subprocess
import time
from typing import Any

ATTEMPTS = 4
SECONDS = 1200


def download(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command that fetches something, again after an error or a network that hangs; what it said at last."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            done = subprocess.run(
                command, **options, capture_output=True, text=True, errors="replace", check=False, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess(command, 124, "", f"{command[0]} had not ended after {SECONDS} s")
        if done.returncode == 0 or attempt == ATTEMPTS:
            break
        time.sleep(5 * attempt)
    return done
