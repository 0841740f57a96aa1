"""dual-assign and txn-timeout on simulations with one planted fault, and on a hundred without.

OTTLA_ANALYSIS_FIRST_SEED selects other seeds.
"""

from __future__ import annotations

import os

import pytest

from ottla.analysis.analyses import ANALYSES
from ottla.analysis.engine import evaluate
from tests.analysis.worlds import (
    BrokenGroup,
    BrokenLeader,
    counted_timeouts,
    event_log,
    forgotten_marker,
    group_log,
    healthy_group,
    healthy_transactions,
    parsed,
    stalled_coordinator,
    stopped_client,
    transaction_log,
)
from tests.transactions.test_simulation import Simulation as Transactions

FIRST = int(os.environ.get("OTTLA_ANALYSIS_FIRST_SEED", "310000"))
DUAL, TIMEOUT = ANALYSES["dual-assign"], ANALYSES["txn-timeout"]
QUICK = {"grace_ms": 2_000}


def blames(report, group: BrokenGroup) -> bool:
    """Return whether a finding names the receiver of the planted assignment, or its partitions if it left at once."""
    receivers = {member for _, member, _ in group.given_away}
    numbers = {str(partition) for _, _, partition in group.given_away}
    return any(
        finding.facts["members"][1] in receivers
        or numbers & {name.rpartition("-")[2] for name in finding.facts["partitions"]}
        for finding in report.findings
    )


@pytest.mark.parametrize("first", range(FIRST, FIRST + 100, 25))
def test_healthy_groups_have_no_two_owners(first):
    for seed in range(first, first + 25):
        report = evaluate(DUAL, healthy_group(seed))
        assert not report.has_problem, f"seed {seed}: {report.verdict}"


def test_premature_assignment_is_found_with_its_members():
    planted = 0
    for seed in range(FIRST, FIRST + 20):
        group = BrokenGroup(seed, after_steps=30)
        group.run()
        report = evaluate(DUAL, group_log(group))
        assert report.has_problem == bool(group.given_away), f"seed {seed}: {report.verdict}"
        if group.given_away:
            planted += 1
            finding = report.findings[0]
            assert blames(report, group), f"seed {seed}: {report.verdict}"
            assert finding.facts["culprit"] == "the coordinator"
            assert finding.steps
            assert {step.lane for step in finding.steps} & set(finding.facts["members"])
    assert planted > 10


def test_leader_assigning_twice_is_found_with_both_members():
    planted = 0
    for seed in range(FIRST, FIRST + 20):
        with event_log() as lines:
            group = BrokenLeader(seed)
            group.run()
        for events in (parsed(lines), group_log(group)):
            report = evaluate(DUAL, events)
            assert report.has_problem == (group.given_twice is not None), f"seed {seed}: {report.verdict}"
            if group.given_twice is not None:
                planted += 1
                (finding,) = report.findings
                partition, members = group.given_twice
                assert finding.facts["partitions"] == [partition]
                assert set(finding.facts["members"]) == members
                assert finding.facts["culprit"] == "the assignor of the group's leader"
    assert planted > 20


@pytest.mark.parametrize("first", range(FIRST, FIRST + 100, 50))
def test_healthy_transactions_have_no_finding(first):
    for seed in range(first, first + 50):
        report = evaluate(TIMEOUT, healthy_transactions(seed), QUICK)
        assert not report.has_problem, f"seed {seed}: {report.verdict}"


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 5))
def test_stalled_coordinator_is_found(seed):
    events, left, now_ms = stalled_coordinator(seed)
    report = evaluate(TIMEOUT, events, {**QUICK, "now_ms": now_ms})
    assert {finding.facts["transactional id"] for finding in report.findings} == left
    assert report.findings[0].facts["culprit"] == "the coordinator"
    assert "stalled" in report.findings[0].cause


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 5))
def test_stopped_client_is_found(seed):
    events, left = stopped_client(seed)
    report = evaluate(TIMEOUT, events, QUICK)
    assert {finding.facts["transactional id"] for finding in report.findings} == left
    assert "client" in report.findings[0].facts["culprit"]
    assert "timed out" in report.verdict


@pytest.mark.parametrize("lied", [True, False])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + 4))
def test_missing_marker_is_found_with_its_partition(seed, lied):
    events, forgotten = forgotten_marker(seed, lied=lied)
    ((producer_id, position),) = forgotten
    report = evaluate(TIMEOUT, events, QUICK)
    (finding,) = report.findings
    assert finding.facts["producer id"] == producer_id
    assert finding.facts["markers missing in"] == [position]
    assert finding.facts["culprit"] == "the coordinator"
    assert "marker" in finding.cause


def test_timeouts_are_found_under_random_faults():
    found_more = 0
    for seed in range(FIRST, FIRST + 30):
        with counted_timeouts() as given_up:
            simulation = Transactions(seed, newer=seed % 3 != 0)
            simulation.run()
        report = evaluate(TIMEOUT, transaction_log(simulation), QUICK)
        reported = {finding.facts["transactional id"] for finding in report.findings}
        assert set(given_up) <= reported, f"seed {seed}"
        # From its states alone, one that its client aborted too late looks as if the coordinator had.
        found_more += len(reported - set(given_up))
    assert found_more <= 3


def test_event_log_and_records_agree_on_groups():
    planted = 0
    for seed in range(FIRST, FIRST + 30):
        with event_log() as lines:
            healthy_group(seed)
        report = evaluate(DUAL, parsed(lines))
        assert not report.has_problem, f"seed {seed}: {report.verdict}"
        with event_log() as lines:
            group = BrokenGroup(seed, after_steps=30)
            group.run()
        report = evaluate(DUAL, parsed(lines))
        assert report.has_problem == bool(group.given_away), f"seed {seed}: {report.verdict}"
        if group.given_away:
            planted += 1
            assert blames(report, group), f"seed {seed}: {report.verdict}"
            assert any(step.event == "group.target" for step in report.findings[0].steps)
    assert planted > 5


def test_event_log_and_records_agree_on_transactions():
    for seed in range(FIRST, FIRST + 5):
        with event_log() as lines:
            healthy_transactions(seed)
        assert not evaluate(TIMEOUT, parsed(lines), QUICK).has_problem
        with event_log() as lines:
            _, left = stopped_client(seed)
        report = evaluate(TIMEOUT, parsed(lines), QUICK)
        assert {finding.facts["transactional id"] for finding in report.findings} == left
        assert "client stopped" in report.findings[0].cause
        with event_log() as lines:
            _, left, now_ms = stalled_coordinator(seed)
        report = evaluate(TIMEOUT, parsed(lines), {**QUICK, "now_ms": now_ms})
        assert {finding.facts["transactional id"] for finding in report.findings} == left
        assert "stalled" in report.findings[0].cause


def test_rebalances_are_counted_with_their_cause():
    for seed in range(FIRST, FIRST + 5):
        with event_log() as lines:
            healthy_group(seed)
        events = parsed(lines)
        joined = {name for event in events if event.event == "group.join" for name in (event.member, event.client)}
        report = evaluate(ANALYSES["rebalances"], events)
        (groups, every) = report.tables
        assert groups.rows[0][1] == len(every.rows) > 0
        assert {str(row[5]).split(" ")[0] for row in every.rows} - {"unknown"} <= joined
