"""Each analysis on faults that real clients made, from every kind of input that can answer.

librdkafka and aiokafka run here; Java and franz-go were recorded (tests/fixtures/analysis), and tests/interop runs them
again. The last tests hold the table of `coverage` to its word: every pair answers, or exits with 2.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ottla.analysis.analyses import ANALYSES
from ottla.analysis.coverage import COVERAGE, INPUT_KINDS
from ottla.cli import build
from ottla.history import write_history
from tests.analysis.faulty_clients import (
    NEVER,
    LibrdkafkaConsumer,
    LibrdkafkaProducer,
    assigned_twice,
    behind,
    behind_with_aiokafka,
    fenced,
    kicked,
    late_end,
    late_end_of_aiokafka,
    patient_librdkafka,
    read_aborted,
    rewound,
    skewed,
    skewed_by_aiokafka,
    slow_polls,
    stderr_to,
    stuck,
    watch,
)
from tests.analysis.histories import Histories
from tests.analysis.verdicts import (
    analyze,
    check_fenced,
    check_late_end,
    check_removed,
    check_stuck,
    check_zombie,
    only_finding,
)

FIXTURES = Path(__file__).parent.parent / "fixtures"
RECORDED = FIXTURES / "analysis"
HOUR_MS = 3_600_000
Inputs = dict[str, Path]

SCENARIOS = {
    "late end": lambda run: late_end(run, LibrdkafkaProducer),
    "late end of aiokafka": lambda run: asyncio.run(late_end_of_aiokafka(run)),
    "fenced": lambda run: fenced(run, LibrdkafkaProducer),
    "slow polls": lambda run: slow_polls(run, LibrdkafkaConsumer, 7),
    "kicked": lambda run: kicked(run, patient_librdkafka),
    "rewound": rewound,
    "assigned twice": lambda run: asyncio.run(assigned_twice(run)),
    "behind": behind,
    "behind with aiokafka": lambda run: asyncio.run(behind_with_aiokafka(run)),
    "skewed": skewed,
    "skewed by aiokafka": lambda run: asyncio.run(skewed_by_aiokafka(run)),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the inputs that a scenario leaves, run when first requested."""
    kept: dict[str, Inputs] = {}

    def record(scenario: str) -> Inputs:
        if scenario not in kept:
            folder = tmp_path_factory.mktemp("watched")
            with stderr_to(folder / "client.log"), watch(folder) as run:
                SCENARIOS[scenario](run)
            kept[scenario] = {**run.inputs, "librdkafka": folder / "client.log"}
        return kept[scenario]

    return record


@pytest.mark.parametrize("kind", ["ottla-events", "tap", "kafka-log", "librdkafka"])
def test_late_end_txn_is_not_blamed_on_a_stopped_client(recorded, kind):
    check_late_end(analyze("txn-timeout", recorded("late end")[kind]), kind)


@pytest.mark.parametrize("kind", ["ottla-events", "tap", "kafka-log"])
def test_late_end_txn_of_aiokafka_is_found(recorded, kind):
    check_late_end(analyze("txn-timeout", recorded("late end of aiokafka")[kind]), kind)


@pytest.mark.parametrize("kind", ["ottla-events", "tap", "librdkafka"])
def test_fenced_producer_is_found_with_its_successor(recorded, kind):
    check_fenced(analyze("txn-timeout", recorded("fenced")[kind]))


def test_fenced_producer_is_invisible_in_a_log_directory(recorded):
    report = analyze("txn-timeout", recorded("fenced")["kafka-log"])
    assert report.verdict == "no transaction timed out or hung", "it claims nothing about fencing"


@pytest.mark.parametrize("kind", ["ottla-events", "tap", "kafka-log"])
def test_stuck_last_stable_offset_is_found(tmp_path, kind):
    with watch(tmp_path, **{name.replace(".", "_"): value for name, value in NEVER.items()}) as run:
        client = stuck(run, LibrdkafkaProducer)
        before = analyze("txn-timeout", run.inputs["kafka-log"])
    assert not before.has_problem, before.verdict
    assert before.verdict.endswith("1 was open when the logs end")
    del client
    last = max(summary.last_ms or 0 for summary in before.inputs)
    finding = only_finding(analyze("txn-timeout", run.inputs[kind], now_ms=last + HOUR_MS))
    assert {"orders-0", "orders-1"} <= set(finding.facts["partitions"])
    assert "orders-0" in finding.facts["LSO held back"]
    assert ("hangs in Ongoing" in finding.title) == (kind != "tap")


@pytest.mark.parametrize("kind", ["ottla-events", "kafka-log"])
def test_member_with_slow_polls_causes_rebalances(recorded, kind):
    finding = only_finding(analyze("rebalances", recorded("slow polls")[kind]))
    assert finding.facts["culprit"] == "slow"
    assert "slow does not stay in the group" in finding.cause
    assert ("the longest took" in finding.title) == (kind == "ottla-events"), "a directory holds no durations"


def test_slow_polls_show_in_client_log(recorded):
    report = analyze("client-trace", recorded("slow polls")["librdkafka"], topic="orders", partition=0)
    check_removed(report)
    assert "max.poll.interval.ms exceeded, while it owned orders-0" in {finding.cause for finding in report.findings}


@pytest.mark.parametrize("kind", ["ottla-events", "tap", "librdkafka"])
def test_rewound_reads_and_commits_are_traced(recorded, kind):
    report = analyze("client-trace", recorded("rewound")[kind], topic="orders", partition=1)
    faults = {finding.title.partition(": ")[2].partition(" in ")[0] for finding in report.findings}
    # librdkafka does not log the offsets that it commits.
    assert faults == {"offsets were read again"} | (set() if kind == "librdkafka" else {"commit went back"})
    assert {str(finding.facts["culprit"]).partition("#")[0] for finding in report.findings} == {"again"}


@pytest.mark.parametrize("kind", ["ottla-events", "tap", "kafka-log"])
def test_partition_assigned_twice_by_leader_is_found(recorded, kind):
    report = analyze("dual-assign", recorded("assigned twice")[kind])
    assert report.has_problem, report.verdict
    assert {tuple(finding.facts["partitions"]) for finding in report.findings} == {("orders-0",)}
    assert {finding.facts["culprit"] for finding in report.findings} == {"the assignor of the group's leader"}


def test_zombie_is_found_in_client_logs(recorded):
    inputs = recorded("kicked")
    check_zombie(analyze("dual-assign", inputs["librdkafka"]))
    for kind in ("ottla-events", "kafka-log"):
        assert not analyze("dual-assign", inputs[kind]).has_problem, (
            "to the coordinator, the zombie was no member any more"
        )


@pytest.mark.parametrize("scenario", ["behind", "behind with aiokafka"])
def test_group_that_falls_behind_is_found(recorded, scenario):
    directory = recorded(scenario)["kafka-log"]
    report = analyze("lag", directory, max_lag=5)
    assert {finding.facts["partition"]: finding.facts["lag"] for finding in report.findings} == {
        "orders-0": 9,
        "orders-1": 9,
    }
    assert {finding.facts["culprit"] for finding in report.findings} == {"g"}
    assert not analyze("lag", directory, max_lag=10).has_problem


@pytest.mark.parametrize("scenario", ["skewed", "skewed by aiokafka"])
def test_key_that_fills_one_partition_is_found(recorded, scenario):
    report = analyze("hot-partitions", recorded(scenario)["kafka-log"], factor=1.5)
    (culprit,) = {finding.facts["culprit"] for finding in report.findings}
    records = next(finding.facts["records"] for finding in report.findings if "records" in finding.facts)
    assert culprit in {"orders-0", "orders-1"}
    assert records > 120


def test_aborted_read_of_librdkafka_is_found(tmp_path):
    with watch(tmp_path) as run:
        history = read_aborted(run)
    path = tmp_path / "history.jsonl"
    path.write_text("".join(write_history(history)))
    report = analyze("anomalies", path)
    assert report.has_problem, report.verdict
    assert "aborted read" in report.findings[0].title


# Java and franz-go, recorded


@pytest.mark.parametrize("kind", ["ottla-events", "tap", "client"])
@pytest.mark.parametrize("client", ["java", "kgo"])
def test_recorded_late_end_txn_is_found(client, kind):
    check_late_end(analyze("txn-timeout", recording(client, "late-end", kind)), client if kind == "client" else kind)


@pytest.mark.parametrize("kind", ["ottla-events", "tap", "client"])
@pytest.mark.parametrize("client", ["java", "kgo"])
def test_recorded_fenced_producer_is_found(client, kind):
    check_fenced(analyze("txn-timeout", recording(client, "fenced", kind)))


@pytest.mark.parametrize("client", ["java", "kgo"])
def test_recorded_slow_poll_shows_in_client_log(client):
    check_removed(analyze("client-trace", recording(client, "slow-poll", "client"), topic="orders", partition=0))


@pytest.mark.parametrize("client", ["java", "kgo"])
def test_recorded_zombie_is_found_in_client_logs(client):
    check_zombie(analyze("dual-assign", recording(client, "kicked", "client")))


@pytest.mark.parametrize("kind", ["ottla-events", "tap"])
@pytest.mark.parametrize("client", ["java", "kgo"])
def test_recorded_stuck_last_stable_offset_is_found(client, kind):
    check_stuck(recording(client, "stuck", kind), kind)


def recording(client: str, scenario: str, kind: str) -> Path:
    folder = RECORDED / client / scenario
    return folder / {"ottla-events": "events.jsonl", "tap": "capture.jsonl", "client": "clients"}[kind]


# The table


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Inputs:
    """One input of each kind that is a file or a folder."""
    history = tmp_path_factory.mktemp("history") / "history.jsonl"
    history.write_text("".join(write_history(Histories(1, 60).history)))
    return {
        "ottla-events": RECORDED / "kgo" / "slow-poll" / "events.jsonl",
        "tap": RECORDED / "kgo" / "slow-poll" / "capture.jsonl",
        "kafka-log": FIXTURES / "kafka" / "4.3.1" / "data",
        "librdkafka": RECORDED / "librdkafka.log",
        "java": RECORDED / "java.log",
        "kgo": RECORDED / "kgo.log",
        "history": history,
    }


EVENT_ANALYSES = [name for name in COVERAGE if name in ANALYSES]


@pytest.mark.parametrize("kind", [kind for kind in INPUT_KINDS if kind != "cluster"])
@pytest.mark.parametrize("analysis", EVENT_ANALYSES)
def test_unsupported_input_exits_2_and_names_supported_kinds(samples, analysis, kind):
    if kind in COVERAGE[analysis]:
        pytest.skip("it can answer")
    words = [analysis, str(samples[kind]), *(["-p", "0"] if analysis == "client-trace" else [])]
    result = CliRunner().invoke(build(["analyze"]), ["analyze", *words])
    assert result.exit_code == 2, result.output
    first = result.output.partition("Read")[0].replace("\n", " ")
    assert f"{analysis} cannot use this input ({INPUT_KINDS[kind]}): give it one of: " in first
    assert all(INPUT_KINDS[needed] in first for needed in COVERAGE[analysis])


def test_coverage_table_has_every_analysis():
    assert {name for name in ANALYSES if name != "exactly-once-proof"} | {"exactly-once", "diff"} == set(COVERAGE)
    assert {kind for responses in COVERAGE.values() for kind in responses} == set(INPUT_KINDS)


def test_unsupported_input_is_named_beside_supported_one(samples):
    report = analyze("lag", samples["kafka-log"], samples["kgo"])
    assert report.conclusive
    assert any("kgo.log was not used: lag cannot use this input (franz-go log)" in note for note in report.notes)
