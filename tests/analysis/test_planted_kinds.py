"""The other analyses on worlds with one fault, and on a hundred of the same kind without: the culprit, or nothing.

As in `test_planted`, OTTLA_ANALYSIS_FIRST_SEED chooses other seeds than those of every run. `exactly-once` and `diff`
are Spark jobs: theirs are in tests/spark.
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


def test_groups_that_keep_still_do_not_rebalance_too_often():
    for seed in HEALTHY:
        with event_log() as lines:
            group = SteadyGroup(seed, MODES[seed % 2])
            group.run()
        for events in (parsed(lines), group_log(group)):
            report = evaluate(REBALANCES, events)
            assert not report.found, f"seed {seed}: {report.verdict}"
            assert report.tables[0].rows[0][1] > 1, "there are some"


def test_a_member_that_flaps_is_the_cause():
    for seed in PLANTED:
        with event_log() as lines:
            group = SteadyGroup(seed, MODES[seed % 2], flaps=True)
            group.run()
        for events in (parsed(lines), group_log(group)):
            (finding,) = evaluate(REBALANCES, events).findings
            assert finding.facts["culprit"].split()[0] == group.culprit, f"seed {seed}"
            assert "does not stay in the group" in finding.cause


def test_nothing_is_wrong_in_the_lives_of_healthy_clients():
    for seed in HEALTHY:
        report = evaluate(TRACE, Clients(seed).run())
        assert not report.found, f"seed {seed}: {report.verdict}"


@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_in_a_clients_life_is_found_there(fault):
    for seed in PLANTED[:10]:
        clients = Clients(seed, fault)
        events = clients.run()
        assert clients.planted is not None
        report = evaluate(TRACE, events, {"topic": "orders", "partition": clients.planted.partition})
        found = {(finding.title.partition(": ")[2].partition(" in ")[0], finding.facts["culprit"])
                 for finding in report.findings}  # fmt: skip
        assert found == {(FAULTS[fault], clients.planted.client)}, f"seed {seed}: {report.verdict}"


def test_groups_that_follow_are_not_stuck():
    for seed in HEALTHY:
        events, _ = readers(seed)
        report = evaluate(LAG, events)
        assert not report.found, f"seed {seed}: {report.verdict}"


def test_a_group_that_stands_still_is_found():
    for seed in PLANTED:
        events, planted = readers(seed, stuck=True)
        assert planted is not None
        (finding,) = evaluate(LAG, events).findings
        assert finding.facts["culprit"] == planted.group, f"seed {seed}"
        assert finding.facts["partition"] == f"orders-{planted.partition}"


def test_keys_without_a_favourite_do_not_skew():
    for seed in HEALTHY:
        events, _ = keyed(seed)
        report = evaluate(HOT, events)
        assert not report.found, f"seed {seed}: {report.verdict}"


def test_the_partition_of_a_favourite_key_is_hot():
    for seed in PLANTED:
        events, planted = keyed(seed, skewed=True)
        report = evaluate(HOT, events)
        assert {finding.facts["culprit"] for finding in report.findings} == {planted}, f"seed {seed}"


def test_histories_of_a_correct_log_have_no_anomaly(tmp_path):
    path = tmp_path / "history.jsonl"
    for seed in HEALTHY:
        path.write_text("".join(write_history(Histories(seed, 200).history)))
        report = run_here(ANOMALIES, find_pieces([str(path)]), {"everything_read": True})
        assert not report.found, f"seed {seed}: {report.verdict}"


@pytest.mark.parametrize("kind", AnomalyKind)
def test_an_anomaly_in_a_large_history_is_found_where_it_is(kind, tmp_path):
    path = tmp_path / "history.jsonl"
    for seed in PLANTED[:3]:
        world = Histories(seed, 1_500)
        partition = world.plant(kind)
        path.write_text("".join(write_history(world.history)))
        report = run_here(ANOMALIES, find_pieces([str(path)]), {})
        found = {(finding.facts["anomaly"], finding.facts["partition"]) for finding in report.findings}
        assert (kind.value, partition) in found, f"seed {seed}: {report.verdict}"
        assert {where for _, where in found} == {partition}, f"seed {seed}: {report.verdict}"
