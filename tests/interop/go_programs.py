"""Builds the Go programs of the interop tests, once per change of their source."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from .downloads import download

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "go"


def build_program(folder: Path) -> Path:
    """The compiled program of a folder; the test is skipped where there is no Go or its modules cannot be had."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed (Debian: apt-get install golang)")
    source = b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())
    binary = CACHE / f"{folder.name}-{hashlib.sha256(source).hexdigest()[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            fetched = download(["go", "mod", "download"], cwd=folder)
            if fetched.returncode != 0:
                pytest.skip(f"the Go modules cannot be had: {fetched.stderr.strip()[-200:]}")
            part = binary.with_suffix(".part")
            built = subprocess.run(["go", "build", "-o", str(part), "."], cwd=folder, capture_output=True, text=True)
            assert built.returncode == 0, built.stdout + built.stderr
            part.rename(binary)
    return binary
