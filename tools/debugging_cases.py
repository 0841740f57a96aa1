"""Writes the logs that docs/debugging.md is about, from seeded simulations, and has `ottla analyze` draw the pictures.

    python tools/debugging_cases.py

The broken coordinator is one on purpose: tests/analysis breaks one rule of a healthy one at a known moment.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
CASES = ROOT / "docs" / "debugging"


def main() -> None:
    from tests.analysis.worlds import BrokenGroup, SteadyGroup, event_log, stopped_client

    CASES.mkdir(exist_ok=True)
    with event_log() as lines:
        BrokenGroup(6, after_steps=30).run()
    (CASES / "two-owners.jsonl").write_text("".join(lines))
    with event_log() as lines:
        stopped_client(2)
    (CASES / "timed-out.jsonl").write_text("".join(lines))
    with event_log() as lines:
        SteadyGroup(3, "classic", flaps=True).run()
    (CASES / "flapping.jsonl").write_text("".join(lines))
    for words in (
        "rebalances docs/debugging/flapping.jsonl --html docs/debugging/flapping.svg",
        "dual-assign docs/debugging/two-owners.jsonl --html docs/debugging/two-owners.svg",
        "txn-timeout docs/debugging/timed-out.jsonl --html docs/debugging/timed-out.svg",
        "txn-timeout tests/fixtures/kafka/4.3.1/data --now 2026-11-15T12:00:00 --html docs/debugging/open.svg",
        "client-trace tests/fixtures/analysis/kgo.log -p 2 --topic 22bd11 --html docs/debugging/client.svg",
    ):
        command = [sys.executable, "-m", "ottla", "analyze", *words.split()]
        subprocess.run(command, cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
