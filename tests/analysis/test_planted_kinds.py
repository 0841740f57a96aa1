"""The other analyses on simulations with one planted fault, and on a hundred without.

OTTLA_ANALYSIS_FIRST_SEED selects other seeds. `exactly-once` and `diff` are Spark jobs, tested in tests/spark.
"""

from __future__ import annotations

import pytest

from ottla.analysis.analyses import ANALYSES
from ottla.analysis.engine import evaluate, find_pieces, run_here
from ottla.history import AnomalyKind, write_history
from tests.analysis.clients import FAULTS, Clients
from tests.analysis.directories import keyed, readers
from tests.analysis.histories import Histories
from tests.analysis.test_planted import FIRST
from tests.analysis.worlds import SteadyGroup, event_log, group_log, parsed
from tests.groups.simulation import MODES

HEALTHY = range(FIRST, FIRST + 100)
PLANTED = range(FIRST, FIRST + 20)
REBALANCES, TRACE = ANALYSES["rebalances"], ANALYSES["client-trace"]
LAG, HOT, ANOMALIES = ANALYSES["lag"], ANALYSES["hot-partitions"], ANALYSES["anomalies"]


def test_steady_groups_have_no_finding():
    for seed in HEALTHY:
        with event_log() as lines:
            group = SteadyGroup(seed, MODES[seed % 2])
            group.run()
        for events in (parsed(lines), group_log(group)):
            report = evaluate(REBALANCES, events)
            assert not report.has_problem, f"seed {seed}: {report.verdict}"
            assert report.tables[0].rows[0][1] > 1, "there are some"


def test_flapping_member_is_the_cause():
    for seed in PLANTED:
        with event_log() as lines:
            group = SteadyGroup(seed, MODES[seed % 2], flaps=True)
            group.run()
        for events in (parsed(lines), group_log(group)):
            (finding,) = evaluate(REBALANCES, events).findings
            assert finding.facts["culprit"].split()[0] == group.culprit, f"seed {seed}"
            assert "does not stay in the group" in finding.cause


def test_healthy_clients_have_no_finding():
    for seed in HEALTHY:
        report = evaluate(TRACE, Clients(seed).run())
        assert not report.has_problem, f"seed {seed}: {report.verdict}"


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_client_fault_is_found_with_its_client(fault):
    for seed in PLANTED[:10]:
        clients = Clients(seed, fault)
        events = clients.run()
        assert clients.planted is not None
        report = evaluate(TRACE, events, {"topic": "orders", "partition": clients.planted.partition})
        reported = {(finding.title.partition(": ")[2].partition(" in ")[0], finding.facts["culprit"])
                 for finding in report.findings}  # fmt: skip
        assert reported == {(FAULTS[fault], clients.planted.client)}, f"seed {seed}: {report.verdict}"


def test_keeping_up_groups_have_no_finding():
    for seed in HEALTHY:
        events, _ = readers(seed)
        report = evaluate(LAG, events)
        assert not report.has_problem, f"seed {seed}: {report.verdict}"


def test_stuck_group_is_found():
    for seed in PLANTED:
        events, planted = readers(seed, stuck=True)
        assert planted is not None
        (finding,) = evaluate(LAG, events).findings
        assert finding.facts["culprit"] == planted.group, f"seed {seed}"
        assert finding.facts["partition"] == f"orders-{planted.partition}"


def test_evenly_spread_keys_are_not_skewed():
    for seed in HEALTHY:
        events, _ = keyed(seed)
        report = evaluate(HOT, events)
        assert not report.has_problem, f"seed {seed}: {report.verdict}"


def test_partition_of_a_frequent_key_is_hot():
    for seed in PLANTED:
        events, planted = keyed(seed, skewed=True)
        report = evaluate(HOT, events)
        assert {finding.facts["culprit"] for finding in report.findings} == {planted}, f"seed {seed}"


def test_correct_histories_have_no_anomaly(tmp_path):
    path = tmp_path / "history.jsonl"
    for seed in HEALTHY:
        path.write_text("".join(write_history(Histories(seed, 200).history)))
        report = run_here(ANOMALIES, find_pieces([str(path)]), {"everything_read": True})
        assert not report.has_problem, f"seed {seed}: {report.verdict}"


@pytest.mark.parametrize("kind", AnomalyKind)
def test_planted_anomaly_is_found_in_its_partition(kind, tmp_path):
    path = tmp_path / "history.jsonl"
    for seed in PLANTED[:3]:
        world = Histories(seed, 1_500)
        partition = world.plant(kind)
        path.write_text("".join(write_history(world.history)))
        report = run_here(ANOMALIES, find_pieces([str(path)]), {})
        reported = {(finding.facts["anomaly"], finding.facts["partition"]) for finding in report.findings}
        assert (kind.value, partition) in reported, f"seed {seed}: {report.verdict}"
        assert {where for _, where in reported} == {partition}, f"seed {seed}: {report.verdict}"
