"""SIGKILL during registrations: nothing acknowledged is lost, no id is given to two schemas."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .kills import run

if TYPE_CHECKING:
    from pathlib import Path


def test_registrations_survive_kills(tmp_path: Path) -> None:
    counts = run(int(os.environ.get("OTTLA_REGISTRY_KILLS", "3")), str(tmp_path / "data"))
    assert counts["acknowledged"] > 0
