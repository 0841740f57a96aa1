"""Check the reports of analyses on the scenarios of `faulty_clients`, for any client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ottla.analysis.analyses import ANALYSES
from ottla.analysis.engine import find_pieces, run_here

if TYPE_CHECKING:
    from ottla.analysis.report.model import Finding, Report


def analyze(analysis: str, *paths: Path, **options: object) -> Report:
    """Run an analysis over files and folders."""
    return run_here(ANALYSES[analysis], find_pieces([str(path) for path in paths]), options)


def only_finding(report: Report) -> Finding:
    """Return the one finding of a report."""
    assert report.conclusive, report.verdict
    assert report.findings, report.verdict
    (finding,) = report.findings
    return finding


def check_late_end(report: Report, kind: str) -> None:
    """Check the report on `billing`, whose EndTxn came after its transaction timed out."""
    finding = only_finding(report)
    if kind == "kafka-log":
        assert "timed out" in finding.title
        assert "whether the client stopped or was late" in finding.cause, "it does not blame without evidence"
    elif kind in ("librdkafka", "kgo"):  # their logs do not hold the timeout
        assert "was refused with" in finding.title
        assert "timed out, or another instance" in finding.cause
    else:
        assert finding.title.startswith("app-0 timed out")
        assert "the client was late" in finding.cause
        assert "was refused with" in finding.cause
        assert finding.facts["culprit"] == "billing"
    assert "stopped:" not in finding.cause


def check_stuck(path: Path, kind: str) -> None:
    """Check the reports on `billing`, which left a transaction open that the coordinator does not abort."""
    before = analyze("txn-timeout", path)
    assert not before.has_problem, before.verdict
    last = max(summary.last_ms or 0 for summary in before.inputs)
    finding = only_finding(analyze("txn-timeout", path, now_ms=last + 3_600_000))
    assert {"orders-0", "orders-1"} <= set(finding.facts["partitions"])
    assert "orders-0" in finding.facts["LSO held back"]
    assert ("hangs in Ongoing" in finding.title) == (kind != "tap")


def check_fenced(report: Report) -> None:
    """Check the report on `old`, which `new` fenced."""
    finding = only_finding(report)
    assert "was fenced by" in finding.title
    assert Path(str(finding.facts["culprit"])).stem.startswith("new")
    assert "took over the transactional id" in finding.cause


def check_removed(report: Report) -> None:
    """Check the trace of `slow`, which was removed from its group because it polled too late."""
    assert {finding.title.partition(": ")[2].partition(" in ")[0] for finding in report.findings} == {
        "removed from the group"
    }, report.verdict
    assert {Path(str(finding.facts["client"])).stem.partition("#")[0] for finding in report.findings} == {"slow"}


def check_zombie(report: Report) -> None:
    """Check the report on `zombie`, which kept its partitions after `heir` got them."""
    assert {Path(str(finding.facts["culprit"])).stem.partition("#")[0] for finding in report.findings} == {"zombie"}, (
        report.verdict
    )
