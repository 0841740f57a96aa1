"""The HTML report of explorations: one self-contained page with findings, timelines and tables."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from ottla.testing.control.report import format_time
from ottla.testing.explore.text_report import VERDICTS, runs_by_verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

ROW_HEIGHT, CLIENT_X, BROKER_X = 26, 170, 720
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5b6573; --line: #d8dde4; --paper: #ffffff; --tint: #f4f6f8;
  --bad: #b3261e; --good: #1a7f4b; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e5e9ef; --soft: #9aa5b3; --line: #333c48; --paper: #14181e;
  --tint: #1c222a; --bad: #ff8a80; --good: #63d29b; --warn: #f2bf63; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 72rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-top: 1px solid var(--line);
  padding-top: 1rem }
pre, code { font: 13px/1.45 ui-monospace, monospace } pre { background: var(--tint); padding: .8rem; overflow-x: auto;
  border-radius: 6px; white-space: pre-wrap }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line) }
td.n { text-align: right } .bad { color: var(--bad); font-weight: 600 } .good { color: var(--good) }
.note { color: var(--soft) } svg text { font: 12px ui-monospace, monospace; fill: var(--ink) }
svg { color: var(--soft) } svg .lane { stroke: var(--soft) } svg .arrow { stroke: var(--soft) }
svg .faulty { stroke: var(--bad); stroke-dasharray: 4 4; stroke-width: 2 }
svg .fault { fill: var(--bad); font-weight: 600 } svg .time { fill: var(--soft) }
.scroll { overflow-x: auto }
"""


def html_report(results: Sequence[dict[str, Any]]) -> str:
    """Return the page for results in the form of `Result.to_json`."""
    failed = sum(len(result["findings"]) for result in results)
    runs = sum(result["runs"] for result in results)
    tests = "1 explored test" if len(results) == 1 else f"{len(results)} explored tests"
    head = f"{failed} failure{'' if failed == 1 else 's'} in {tests}, {runs} runs"
    body = "".join(_result(result) for result in results)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Kafka fault exploration</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>Kafka fault exploration</h1>"
        f'<p class="{"bad" if failed else "good"}">{escape(head)}</p>{body}</body></html>'
    )


def _result(result: dict[str, Any]) -> str:
    parts = [f"<h2>{escape(result['name'])}</h2>"]
    if result["problem"]:
        parts.append(f'<p class="bad">Not explored: {escape(result["problem"])}</p>')
    else:
        left = f", {result['left_out']} schedules left out by the budget" if result["left_out"] else ""
        parts.append(
            f"<p>{result['runs']} runs in {result['seconds']:.1f} s; {result['points']} requests of "
            f"{result['kinds_of_points']} kinds in the clean run{left}.</p>"
        )
    parts += [f'<p class="note">{escape(note)}</p>' for note in dict.fromkeys(result["notes"])]
    parts += [_finding(finding) for finding in result["findings"]]
    if result["table"]:
        parts.append(_table(result["table"]))
    return "".join(parts)


def _finding(finding: dict[str, Any]) -> str:
    faults = "".join(f"<li>{escape(text)}</li>" for text in finding["faults"]) or "<li>no fault</li>"
    kind = "deterministic" if finding["failures"] == finding["runs"] else "flaky"
    checks = "".join(f'<p class="bad">{escape(text)}</p>' for text in finding["violations"])
    replay = finding.get("replay", "")
    again = f"<p>Run it again:</p><pre>{escape(replay)}</pre>" if replay else ""
    message = "" if finding["violations"] else f"<pre>{escape(finding['message'])}</pre>"
    return (
        f'<h3 class="bad">It fails when</h3><ul>{faults}</ul>'
        f"<p>{finding['failures']} of {finding['runs']} runs failed ({kind}).</p>"
        f"{message}{checks}{_timeline(finding['timeline'])}{again}"
    )


def _timeline(entries: Sequence[dict[str, Any]]) -> str:
    """Return a sequence diagram: requests go to the broker on the right, responses come back, faults are marked."""
    if not entries:
        return ""
    height = ROW_HEIGHT * (len(entries) + 2)
    shapes = [
        f'<line class="lane" x1="{x}" y1="{ROW_HEIGHT}" x2="{x}" y2="{height}"/><text x="{x}" y="14" '
        f'text-anchor="middle">{name}</text>'
        for x, name in ((CLIENT_X, "clients"), (BROKER_X, "broker"))
    ]
    for row, entry in enumerate(entries, 2):
        y = ROW_HEIGHT * row
        shapes.append(f'<text class="time" x="0" y="{y}">{format_time(entry["time_ms"])[11:]}</text>')
        shapes.append(_shape(entry, y))
    picture = "".join(shapes)
    return (
        '<details open><summary>Requests and responses around the fault</summary><div class="scroll">'
        f'<svg width="{BROKER_X + 420}" height="{height + 10}" role="img" aria-label="timeline">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>'
        f"{picture}</svg></div></details>"
    )


def _shape(entry: dict[str, Any], y: int) -> str:
    text = " ".join(entry["text"].split())
    if entry["fault"]:
        return (
            f'<line class="faulty" x1="{CLIENT_X}" y1="{y + 5}" x2="{BROKER_X}" y2="{y + 5}"/>'
            f'<text class="fault" x="{CLIENT_X + 8}" y="{y}">&#9889; {escape(text)}</text>'
        )
    head, colon, label = text.partition(": ")
    if not colon or not head.startswith("connection"):
        return f'<text x="{BROKER_X + 12}" y="{y}">{escape(text[:90])}</text>'
    connection = head.split()[1]
    start, end = (CLIENT_X, BROKER_X) if "->" in head else (BROKER_X, CLIENT_X)
    return (
        f'<line class="arrow" x1="{start}" y1="{y + 5}" x2="{end}" y2="{y + 5}" marker-end="url(#tip)"/>'
        f'<text x="{CLIENT_X + 12}" y="{y}">{escape(label[:70])}</text>'
        f'<text class="time" x="{CLIENT_X - 12}" y="{y}" text-anchor="end">#{escape(connection)}</text>'
    )


def _table(rows: Sequence[dict[str, Any]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("role", "API", "fault", *VERDICTS))
    lines = []
    for key, verdicts in runs_by_verdict(rows):
        cells = "".join(f"<td>{escape(value)}</td>" for value in key)
        for verdict in VERDICTS:
            mark = ' class="n bad"' if verdict == "failed" and verdicts[verdict] else ' class="n"'
            cells += f"<td{mark}>{verdicts[verdict] or ''}</td>"
        lines.append(f"<tr>{cells}</tr>")
    body = "".join(lines)
    return (
        f'<details><summary>What was explored</summary><div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
    )
