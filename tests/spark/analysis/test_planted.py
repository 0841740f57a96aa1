"""`exactly-once`, `diff` and `anomalies` on Spark: a hundred healthy runs in one job, and some with a fault among them.

Each run of an application has its own partitions, group and producer in one log directory, and each copied topic is a
run, so that one job checks all of them; a finding names its run.
"""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest

from ottla.analysis.compare import diff, exactly_once
from ottla.analysis.compare.topics import TopicLocation
from ottla.analysis.rules import anomalies
from ottla.history import AnomalyKind, write_history
from tests.analysis.directories import EXACTLY_ONCE_FAULTS, Broken, Writer, application
from tests.analysis.histories import Histories
from tests.analysis.test_planted import FIRST

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("spark")
RUNS = 100


def audit(spark, path: Path, faults: dict[int, str]):
    """Return the report on a hundred runs, some of them faulty, and the planted faults by run."""
    writer = Writer(path)
    broken = {number: application(writer, number, FIRST + number, faults.get(number)) for number in range(RUNS)}
    writer.close()
    report = exactly_once.run(spark, TopicLocation(str(path), "orders"), TopicLocation(str(path), "bills"))
    return report, {number: fault for number, fault in broken.items() if fault is not None}


def test_healthy_applications_are_exactly_once(spark, tmp_path):
    report, broken = audit(spark, tmp_path / "logs", {})
    assert not broken
    assert not report.has_problem, report.verdict
    assert "exactly once" in report.verdict
    (offsets,) = [table for table in report.tables if table.title.startswith("Offsets of orders")]
    assert len(offsets.rows) == RUNS
    assert sum(row[2] for row in offsets.rows) > 3 * RUNS
    assert not any(row[4] for row in offsets.rows), "none outside"
    (transactions,) = [table for table in report.tables if table.title.startswith("Transactions")]
    for row in transactions.rows:
        _, producer, _, how, partition, _, proof = row
        number = int(partition.removeprefix("bills-"))
        assert producer == 1_000 + number
        if how == "commit":
            assert proof.startswith(f"with orders-{number} to ")
            assert proof.endswith(f"for billing-{number}")


def test_faulty_applications_are_found_among_healthy_ones(spark, tmp_path):
    chance = random.Random(FIRST)
    faults = {
        number: EXACTLY_ONCE_FAULTS[position % 3] for position, number in enumerate(chance.sample(range(RUNS), 9))
    }
    report, broken = audit(spark, tmp_path / "logs", faults)
    assert broken.keys() == faults.keys()
    by_id: dict[str, Broken] = {record_id: run for run in broken.values() for record_id in run.ids}
    outside = {run.culprit for run in broken.values() if run.fault in ("lost", "outside")}
    assert {
        finding.facts["culprit"] for finding in report.findings if "outside transactions" in finding.facts
    } == outside
    with_id = [finding for finding in report.findings if "id" in finding.facts]
    assert {finding.facts["id"] for finding in with_id} == by_id.keys()
    for finding in with_id:
        planted = by_id[finding.facts["id"]]
        assert finding.facts["culprit"] == planted.culprit
        if planted.fault == "duplicate":
            assert finding.facts["found"] == 2
            assert all("in the transaction that ended at" in step.what for step in finding.steps)
            assert all(f"for billing-{planted.ids[0][3:].partition('-')[0]}" in step.what for step in finding.steps)
        else:
            assert "outside a transaction" in finding.cause
            assert "was aborted" in finding.cause


def copies(path: Path, changes: dict[int, str]) -> None:
    """Write two directories of a hundred topics; in some, the second has an extra, missing or changed record."""
    for side in ("a", "b"):
        writer = Writer(path / side)
        for number in range(RUNS):
            chance = random.Random(FIRST + number)
            keys = [f"k{chance.randrange(1_000)}" for _ in range(20 + chance.randrange(20))]
            at = chance.randrange(1, len(keys) - 1)
            change = changes.get(number) if side == "b" else None
            tail = keys[at:]
            writer.write(f"topic-{number}", 0, keys[:at])
            if change == "different":
                writer.write(f"topic-{number}", 0, tail[:1], value="another value of")
                tail = tail[1:]
            elif change == "only in A":
                tail = tail[:-1]
            elif change == "only in B":
                tail = [*tail, "one more"]
            if tail:
                writer.write(f"topic-{number}", 0, tail)
        writer.close()


def test_equal_copies_have_no_difference(spark, tmp_path):
    copies(tmp_path, {})
    report = diff.run(spark, TopicLocation(str(tmp_path / "a")), TopicLocation(str(tmp_path / "b")))
    assert not report.has_problem, report.verdict
    assert len(report.tables[0].rows) == RUNS


def test_changed_missing_or_extra_record_is_found_at_its_offset(spark, tmp_path):
    chance = random.Random(FIRST)
    kinds = ("different", "only in A", "only in B")
    changes = {number: kinds[position % 3] for position, number in enumerate(chance.sample(range(RUNS), 9))}
    copies(tmp_path, changes)
    report = diff.run(spark, TopicLocation(str(tmp_path / "a")), TopicLocation(str(tmp_path / "b")))
    rows = {row[0]: dict(zip(report.tables[0].columns[3:], row[3:], strict=True)) for row in report.tables[0].rows}
    reported = {int(name.removeprefix("topic-")): {what: count for what, count in row.items() if count}
             for name, row in rows.items()}  # fmt: skip
    assert {number: row for number, row in reported.items() if row} == {
        number: {what: 1} for number, what in changes.items()
    }
    assert len(report.findings) == len(changes)


def test_every_anomaly_is_found_in_large_history(spark, tmp_path):
    path = tmp_path / "history.jsonl"
    planted = set()
    with path.open("w") as file:
        for number, kind in enumerate(AnomalyKind):
            world = Histories(FIRST + number, 1_000)
            partition = world.plant(kind)
            planted.add((kind.value, f"{number}-{partition}"))
            text = "".join(write_history(world.history))
            for name in (*world.names, "sent-0"):
                text = text.replace(f'"{name}"', f'"{number}-{name}"')
            file.write(text.replace('"process": "', f'"process": "{number}-'))
        for number in range(100, 120):
            text = "".join(write_history(Histories(FIRST + number, 200).history))
            file.write(text.replace('"orders-', f'"{number}-orders-').replace('"process": "', f'"process": "{number}-'))
    report = anomalies.run_in_spark(spark, [str(path)], {})
    reported = {(finding.facts["anomaly"], finding.facts["partition"]) for finding in report.findings}
    assert planted <= reported
    assert {partition for _, partition in reported} == {partition for _, partition in planted}


def test_copied_directory_has_no_difference(spark, tmp_path):
    writer = Writer(tmp_path / "a")
    writer.write("t", 0, ["a", "b"])
    writer.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert not diff.run(
        spark, TopicLocation(str(tmp_path / "a"), "t"), TopicLocation(str(tmp_path / "b"), "t")
    ).has_problem
