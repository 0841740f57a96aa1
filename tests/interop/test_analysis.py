"""The analyses over real logs: franz-go's suite at debug level against ottla, and Kafka's directory after a kill."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ottla.spark.analysis.engine import find_pieces, run_here
from ottla.spark.analysis.registry import ANALYSES

from .test_franz_go import three_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop
ROOT = Path(__file__).resolve().parents[2]
HOUR_MS = 3_600_000


def test_the_debug_log_of_the_kgo_suite_shows_nothing_wrong(tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed (Debian: apt-get install golang)")
    command = [sys.executable, str(ROOT / "tools" / "run_tests"), "-n", "1", "-r", "2000", "--client-log", "debug"]
    command += ["-t", "TestGroupETL/(sticky|range)", "--ports", three_ports(), "--timeout", "4m"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    finally:
        subprocess.run([*command[:2], "-k"], cwd=ROOT, capture_output=True, check=False)
    if "go mod download" in done.stderr and done.returncode != 0:
        pytest.skip(f"the suite cannot be had: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    log = tmp_path / "client.log"
    shutil.copy(ROOT / ".cache" / "kgo-logs" / "client.log", log)
    report = run_here(ANALYSES["dual-assign"], find_pieces([str(log)]), {})
    assert not report.found, report.verdict
    (read,) = report.inputs
    assert read.lines > 1_000
    assert read.unparsed <= read.lines // 100, read.samples
    lives = run_here(ANALYSES["client-trace"], find_pieces([str(log)]), {"partition": 1})
    assert sum(row[2] for row in lives.tables[0].rows) > 10, "fetches are seen"


def test_a_kafka_that_was_killed_in_the_middle_of_transactions(
    apache_kafka_factory: Callable[..., ApacheKafka],
) -> None:
    kafka = apache_kafka_factory()
    kafka.start()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for made in admin.create_topics([NewTopic("bills", 2, 1)]).values():
        made.result()
    producers = {}
    for name in ("fine", "open"):
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name})
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("bills", f"{name} {partition}", partition=partition)
        producer.flush()
        producers[name] = producer
    producers["fine"].commit_transaction(60)
    kafka.kill()

    txn_timeout = ANALYSES["txn-timeout"]
    pieces = find_pieces([str(kafka.log_dir)])
    report = run_here(txn_timeout, pieces, {})
    assert not report.found
    assert report.verdict.endswith("open when the logs end")
    (table,) = report.tables
    states = {row[0]: row[2] for row in table.rows}
    # Kafka answers a commit when it is prepared: its markers may not have been there yet.
    assert states.pop("fine", "PrepareCommit") == "PrepareCommit"
    assert states == {"open": "Ongoing"}
    last = max(each.last_ms or 0 for each in report.inputs)
    later = run_here(txn_timeout, pieces, {"now_ms": last + HOUR_MS})
    (finding,) = [each for each in later.findings if each.facts["transactional id"] == "open"]
    assert sorted(finding.facts["partitions"]) == ["bills-0", "bills-1"]
    assert "bills-0" in finding.facts["LSO held back"]
    assert finding.facts["culprit"] == "the coordinator"
