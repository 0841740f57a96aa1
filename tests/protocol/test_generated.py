"""Generated files are current."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ottla.protocol.api import APIS

ROOT = Path(__file__).resolve().parents[2]

# ApiVersions response of a broker listener of Apache Kafka 4.3.1; 71 and 72 need a telemetry receiver.
ADVERTISED = """
0 0-13, 1 4-18, 2 1-11, 3 0-13, 8 2-10, 9 1-10, 10 0-6, 11 0-9, 12 0-4, 13 0-5, 14 0-5, 15 0-6, 16 0-5, 17 0-1, 18 0-4,
19 2-7, 20 1-6, 21 0-2, 22 0-5, 23 2-4, 24 0-5, 25 0-4, 26 0-5, 27 1-2, 28 0-5, 29 1-3, 30 1-3, 31 1-3, 32 1-4, 33 0-2,
34 1-2, 35 1-5, 36 0-2, 37 0-3, 38 1-3, 39 1-2, 40 1-2, 41 1-3, 42 0-2, 43 0-2, 44 0-1, 45 0-1, 46 0-0, 47 0-0, 48 0-1,
49 0-1, 50 0-0, 51 0-0, 55 0-2, 57 0-2, 60 0-2, 61 0-0, 64 0-0, 65 0-0, 66 0-2, 68 0-1, 69 0-1, 71 0-0, 72 0-0, 74 0-1,
75 0-0, 76 1-1, 77 1-1, 78 1-2, 79 1-2, 80 0-1, 81 0-0, 83 0-0, 84 0-0, 85 0-1, 86 0-0, 87 0-1, 88 0-0, 89 0-0, 90 0-1,
91 0-0, 92 0-0
"""


def test_every_version_advertised_by_kafka_is_declared() -> None:
    advertised = {}
    for item in ADVERTISED.split(","):
        key, versions = item.split()
        low, high = versions.split("-")
        advertised[int(key)] = (int(low), int(high))
    advertised[0] = (3, 13)  # Kafka advertises Produce 0 to 2 for librdkafka's sake, and refuses them
    declared = {api.key: (api.min_version, api.max_stable_version) for api in APIS if "broker" in api.listeners}
    assert declared == advertised


def test_coverage_table_is_current() -> None:
    tool = ROOT / "tools" / "protocol_coverage.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True)
    assert done.stdout == "up to date\n", done.stdout + done.stderr
