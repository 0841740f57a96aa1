"""Analyses of real logs: faults of Java and franz-go clients, franz-go's suite, the directory of a killed Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ottla.analysis.analyses import ANALYSES
from ottla.analysis.engine import find_pieces, run_here
from tests.analysis.verdicts import analyze, check_fenced, check_late_end, check_removed, check_stuck, check_zombie

from .client_faults import CLIENTS, played
from .test_franz_go import run_suite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop
SECONDS = 300  # a guard
HOUR_MS = 3_600_000


@pytest.mark.parametrize("client", CLIENTS)
def test_client_faults_are_found_in_every_input(client: str, tmp_path: Path) -> None:
    for scenario in ("late-end", "fenced", "slow-poll", "kicked", "stuck"):
        folder = tmp_path / scenario
        folder.mkdir()
        with played(client, scenario, folder) as inputs:
            if scenario == "slow-poll":
                check_removed(analyze("client-trace", inputs["client"], topic="orders", partition=0))
            elif scenario == "kicked":
                check_zombie(analyze("dual-assign", inputs["client"]))
            elif scenario == "stuck":
                for kind in ("ottla-events", "tap", "kafka-log"):
                    check_stuck(inputs[kind], kind)
            else:
                for kind in ("ottla-events", "tap", "client"):
                    report = analyze("txn-timeout", inputs[kind])
                    if scenario == "fenced":
                        check_fenced(report)
                    else:
                        check_late_end(report, client if kind == "client" else kind)


def test_kgo_suite_debug_log_shows_nothing_wrong(tmp_path: Path) -> None:
    run_suite(tmp_path, "-r", "2000", "--client-log", "debug", "-t", "TestGroupETL/(sticky|range)")
    log = tmp_path / "client.log"
    report = run_here(ANALYSES["dual-assign"], find_pieces([str(log)]), {})
    assert not report.has_problem, report.verdict
    (read,) = report.inputs
    assert read.lines > 1_000
    assert read.unparsed <= read.lines // 100, read.samples
    traces = run_here(ANALYSES["client-trace"], find_pieces([str(log)]), {"partition": 1})
    assert sum(row[2] for row in traces.tables[0].rows) > 10, "fetches are seen"


def test_killed_kafka_leaves_ongoing_transaction(
    apache_kafka_factory: Callable[..., ApacheKafka],
) -> None:
    kafka = apache_kafka_factory()
    kafka.start()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for made in admin.create_topics([NewTopic("bills", 2, 1)]).values():
        made.result(SECONDS)
    producers = {}
    for name in ("fine", "open"):
        settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": name, "log_level": 0}
        producer = Producer({**settings, "transaction.timeout.ms": 600_000})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("bills", f"{name} {partition}", partition=partition)
        assert producer.flush(SECONDS) == 0
        producers[name] = producer
    producers["fine"].commit_transaction(SECONDS)
    kafka.kill()

    txn_timeout = ANALYSES["txn-timeout"]
    pieces = find_pieces([str(kafka.log_dir)])
    report = run_here(txn_timeout, pieces, {})
    assert not report.has_problem, report.verdict
    assert report.verdict.endswith("open when the logs end")
    (table,) = report.tables
    states = {row[0]: row[2] for row in table.rows}
    # Kafka answers a commit when it is prepared: its markers may not have been there yet.
    assert states.pop("fine", "PrepareCommit") == "PrepareCommit"
    assert states == {"open": "Ongoing"}
    last = max(entry.last_ms or 0 for entry in report.inputs)
    later = run_here(txn_timeout, pieces, {"now_ms": last + HOUR_MS})
    (finding,) = [finding for finding in later.findings if finding.facts["transactional id"] == "open"]
    assert sorted(finding.facts["partitions"]) == ["bills-0", "bills-1"]
    assert "bills-0" in finding.facts["LSO held back"]
    assert finding.facts["culprit"] == "the coordinator"
