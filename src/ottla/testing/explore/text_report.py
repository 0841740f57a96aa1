"""The result of an exploration as text: the failure, its timeline, and a table of what was explored."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from ottla.testing.control.report import format_time
from ottla.testing.explore.strategy import NOT_REACHED

if TYPE_CHECKING:
    from ottla.testing.explore.outcome import Finding, Result

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


def result_text(result: Result) -> str:
    """Return one line about an exploration, its notes, and the table of what was explored."""
    lines = [summary(result), *(f"note: {note}" for note in dict.fromkeys(result.notes))]
    if result.table:
        lines += ["", *table_lines(result)]
    return "\n".join(lines)


def summary(result: Result) -> str:
    """Return one line: how much was explored and what was found."""
    if result.problem is not None:
        return f"{result.name}: not explored: {result.problem}"
    count = f"{len(result.findings)} failures" if len(result.findings) != 1 else "1 failure"
    left = f", {result.left_out} schedules left out" if result.left_out else ""
    return (
        f"{result.name}: {count}; {result.runs} runs in {result.seconds:.1f} s, "
        f"{result.points} points of {result.kinds_of_points} kinds{left}"
    )


def table_lines(result: Result) -> list[str]:
    """Return the table of role, API and fault with the number of runs by verdict."""
    rows: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for (role, api, fault, verdict), runs in result.table.items():
        rows[role, api, fault][verdict] += runs
    lines = [f"{'role':<12} {'API':<22} {'fault':<44} " + " ".join(f"{verdict:>11}" for verdict in VERDICTS)]
    for (role, api, fault), verdicts in sorted(rows.items()):
        counts = " ".join(f"{verdicts[verdict] or '':>11}" for verdict in VERDICTS)
        lines.append(f"{role:<12} {api:<22} {fault:<44} {counts}")
    return lines
