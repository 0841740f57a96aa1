"""The result of an exploration as text: the failure, its timeline, and a table of what was explored."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from ottla.testing.control.report import format_time
from ottla.testing.explore.outcome import NOT_REACHED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.testing.explore.outcome import Finding

VERDICTS = ("passed", "reported", "failed", NOT_REACHED)


def finding_text(finding: Finding, replay: str) -> str:
    """Return a finding: the faults in words, the failure, the requests around it, and how to run it again."""
    lines = ["The explorer found a failure:" if finding.schedule.faults else "The test fails now and then:"]
    lines += [f"  - {planned.describe()}" for planned in finding.schedule.faults] or ["  without any fault"]
    rate = f"{finding.failures} of {finding.runs} runs failed"
    lines.append(f"{rate}: deterministic" if finding.deterministic else f"{rate}: flaky")
    lines.append("")
    lines += finding.outcome.message.splitlines()
    lines += [f"check {violation}" for violation in finding.outcome.violations]
    lines += ["", "requests and responses around it:"]
    for entry in finding.outcome.timeline:
        mark = ">>>" if entry.fault else "   "
        lines.append(f"{mark} {format_time(entry.time_ms)[11:]} {entry.text}")
    lines += ["", f"run it again with {replay}"]
    return "\n".join(lines)


def result_text(result: dict[str, Any]) -> str:
    """Return one line about an exploration, its notes, and the table of what was explored."""
    lines = [summary(result), *(f"note: {note}" for note in dict.fromkeys(result["notes"]))]
    if result["table"]:
        lines += ["", *table_lines(result["table"])]
    return "\n".join(lines)


def summary(result: dict[str, Any]) -> str:
    """Return one line about a result in the form of `Result.to_json`: how much was explored and what was found."""
    if result["problem"] is not None:
        return f"{result['name']}: not explored: {result['problem']}"
    failures = len(result["findings"])
    left = f", {result['left_out']} schedules left out" if result["left_out"] else ""
    return (
        f"{result['name']}: {failures} failure{'' if failures == 1 else 's'}; {result['runs']} runs in "
        f"{result['seconds']:.1f} s, {result['points']} points of {result['kinds_of_points']} kinds{left}"
    )


def runs_by_verdict(table: Sequence[dict[str, Any]]) -> list[tuple[tuple[str, str, str], Counter[str]]]:
    """Return the number of runs by verdict for each role, API and fault, in their order."""
    rows: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for row in table:
        rows[row["role"], row["api"], row["fault"]][row["verdict"]] += row["runs"]
    return sorted(rows.items(), key=lambda item: item[0])


def table_lines(table: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table of role, API and fault with the number of runs by verdict."""
    lines = [f"{'role':<12} {'API':<22} {'fault':<44} " + " ".join(f"{verdict:>11}" for verdict in VERDICTS)]
    for (role, api, fault), verdicts in runs_by_verdict(table):
        counts = " ".join(f"{verdicts[verdict] or '':>11}" for verdict in VERDICTS)
        lines.append(f"{role:<12} {api:<22} {fault:<44} {counts}")
    return lines
