"""franz-go's client and admin package against ottla, used as rpk uses them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ottla.testing import Cluster

from .go_programs import build_program

pytestmark = pytest.mark.interop


def test_admin_requests_of_rpk_work() -> None:
    program = build_program(Path(__file__).resolve().parent / "go")
    with Cluster(3, topics=["there:4"]) as cluster:
        done = subprocess.run(
            [str(program), cluster.bootstrap.split(",")[0], "from-go", "go-group"],
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    parsed = json.loads(done.stdout)
    assert parsed["topics"] == {"there": 4, "from-go": 2}
    assert parsed["values"] == [f"0-{number}" for number in range(10)]
    assert parsed["group"] == {"state": "Stable", "members": 1}
    assert parsed["transactions"] == {"go-from-go": "Ongoing"}
    assert parsed["configs"] == {"cleanup.policy": "delete"}
    assert sorted(parsed["brokers"]) == [1, 2, 3]
    assert [start for start, _ in parsed["offsets"].values()] == [0, 0]
