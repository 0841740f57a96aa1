"""A report as one HTML file with a picture of the timeline in it: no script, no link to anywhere."""

from __future__ import annotations

from html import escape
from typing import Any, Final

from ottla.spark.analysis.report import Finding, Report, Series, Span, Step, Table, clock, length

LANE: Final = 26
LEFT: Final = 240
WIDTH: Final = 1100
LINES: Final = ("#4c78a8", "#d62728", "#59a14f", "#f2a93b", "#9467bd", "#17becf", "#8c564b", "#e377c2")
COLOURS: Final = {"owns": "#4c78a8", "fault": "#d62728", "waits": "#f2a93b", "ok": "#59a14f"}
MOST_LANES: Final = 40
MOST_MARKS: Final = 400
STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1150px; padding: 0 1em; color: #222; }
h1 { font-size: 1.3em; } h2 { font-size: 1.05em; margin-top: 2em; }
.found { color: #b3261e; } .fine { color: #2e7d32; }
table { border-collapse: collapse; margin: .5em 0; font-size: 13px; }
td, th { text-align: left; padding: 2px 10px 2px 0; border-bottom: 1px solid #e5e5e5; vertical-align: top; }
dt { font-weight: 600; float: left; clear: left; width: 11em; } dd { margin-left: 11.5em; }
svg { max-width: 100%; height: auto; background: #fafafa; border: 1px solid #e0e0e0; }
.note { color: #8a5a00; }
"""


def to_html(report: Report) -> str:
    """The whole page."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>ottla analyze {escape(report.analysis)}</title><style>{STYLE}</style></head><body>",
        f"<p>ottla analyze {escape(report.analysis)}</p>",
        f"<h1 class='{'found' if report.found else 'fine'}'>{escape(report.verdict)}</h1>",
    ]
    parts.append(picture(report))
    for number, finding in enumerate(report.findings, 1):
        parts += _finding(number, finding, own_picture=len(report.findings) > 1)
    parts += [_table(table) for table in report.tables]
    if report.steps:
        parts.append(_steps("Timeline", report.steps))
    rows = [
        [each.path, " ".join(each.formats), each.lines, each.events, each.unparsed, clock(each.first_ms),
         clock(each.last_ms)]
        for each in report.inputs if each.events
    ]  # fmt: skip
    if rows:
        parts.append(_table(Table("Read", ["input", "format", "lines", "events", "unparsed", "from", "to"], rows)))
    parts += [f"<p class='note'>note: {escape(note)}</p>" for note in report.notes]
    parts.append("</body></html>\n")
    return "\n".join(parts)


def picture(report: Report) -> str:
    """What the report shows over time; empty if there is nothing to draw."""
    spans = report.spans or [span for finding in report.findings[:10] for span in finding.spans]
    steps = report.steps or [step for finding in report.findings[:10] for step in finding.steps]
    drawn = to_svg(spans, steps) if spans else ""
    return drawn + (to_chart(report.series) if report.series else "")


def _finding(number: int, finding: Finding, *, own_picture: bool) -> list[str]:
    parts = [f"<h2>{number}. {escape(finding.title)}</h2>"]
    if finding.cause:
        parts.append(f"<p><b>probable cause:</b> {escape(finding.cause)}</p>")
    if own_picture and finding.spans:
        parts.append(to_svg(finding.spans, finding.steps))
    parts.append("<dl>")
    parts += [f"<dt>{escape(name)}</dt><dd>{escape(_shown(value))}</dd>" for name, value in finding.facts.items()]
    parts.append("</dl>")
    if finding.steps:
        parts.append(_steps("What led there", finding.steps))
    return parts


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join("-" if each is None else str(each) for each in value) or "-"
    return "-" if value is None else str(value)


def _steps(title: str, steps: list[Step]) -> str:
    rows = [[clock(each.time_ms), each.lane, each.event, each.what, each.where] for each in steps]
    return _table(Table(title, ["time", "who", "event", "what", "where"], rows))


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{'-' if value is None else escape(str(value))}</td>" for value in row) + "</tr>"
        for row in table.rows
    )
    return f"<h2>{escape(table.title)}</h2><table><tr>{head}</tr>{body}</table>"


def to_svg(spans: list[Span], steps: list[Step]) -> str:
    """Lanes with bars and marks over time."""
    lanes = list(dict.fromkeys(span.lane for span in spans))[:MOST_LANES]
    shown = [span for span in spans if span.lane in lanes]
    start = min(span.start_ms for span in shown)
    end = max(max(span.end_ms for span in shown), start + 1)
    height = LANE * len(lanes) + 50

    def x(time_ms: int) -> float:
        return LEFT + (time_ms - start) / (end - start) * (WIDTH - LEFT - 20)

    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' "
        f"role='img' font-family='system-ui, sans-serif' font-size='11'>"
    ]
    for place, lane in enumerate(lanes):
        y = 10 + place * LANE
        name = lane if len(lane) <= 38 else f"...{lane[-35:]}"
        parts.append(f"<text x='6' y='{y + 15}'>{escape(name)}<title>{escape(lane)}</title></text>")
        parts.append(f"<line x1='{LEFT}' x2='{WIDTH - 20}' y1='{y + 11}' y2='{y + 11}' stroke='#ddd'/>")
    for span in shown:
        y = 10 + lanes.index(span.lane) * LANE
        width = max(x(span.end_ms) - x(span.start_ms), 2)
        told = f"{span.label}: {clock(span.start_ms)} to {clock(span.end_ms)}, {length(span.end_ms - span.start_ms)}"
        parts.append(
            f"<rect x='{x(span.start_ms):.1f}' y='{y + 3}' width='{width:.1f}' height='16' rx='2' "
            f"fill='{COLOURS.get(span.kind, '#888')}' fill-opacity='0.8'><title>{escape(told)}</title></rect>"
        )
        if width > 7 * len(span.label) + 8:
            parts.append(f"<text x='{x(span.start_ms) + 4:.1f}' y='{y + 15}' fill='#fff'>{escape(span.label)}</text>")
    for step in [each for each in steps if each.time_ms is not None and start <= each.time_ms <= end][:MOST_MARKS]:
        if step.lane in lanes and step.time_ms is not None:
            y = 10 + lanes.index(step.lane) * LANE
            told = f"{clock(step.time_ms)} {step.event}: {step.what}"
            parts.append(
                f"<circle cx='{x(step.time_ms):.1f}' cy='{y + 11}' r='2.5' fill='#222'><title>{escape(told)}</title>"
                "</circle>"
            )
    bottom = height - 28
    for quarter in range(5):
        time_ms = start + (end - start) * quarter // 4
        anchor = "start" if quarter == 0 else "end" if quarter == 4 else "middle"
        parts.append(f"<line x1='{x(time_ms):.1f}' x2='{x(time_ms):.1f}' y1='6' y2='{bottom}' stroke='#eee'/>")
        label = clock(time_ms) if quarter == 0 else f"+{length(time_ms - start)}"
        parts.append(f"<text x='{x(time_ms):.1f}' y='{bottom + 16}' text-anchor='{anchor}'>{escape(label)}</text>")
    parts.append("</svg>")
    return "".join(parts)


def to_chart(series: list[Series]) -> str:
    """Lines over time, the first eight of them."""
    shown = [each for each in series if each.points][: len(LINES)]
    if not shown:
        return ""
    times = [time_ms for each in shown for time_ms, _ in each.points]
    start, end = min(times), max(max(times), min(times) + 1)
    top = max(max(value for each in shown for _, value in each.points), 1)
    left, height, foot = 80, 260, 60 + 16 * len(shown)

    def x(time_ms: int) -> float:
        return left + (time_ms - start) / (end - start) * (WIDTH - left - 20)

    def y(value: float) -> float:
        return 10 + (1 - value / top) * (height - 20)

    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height + foot}' width='{WIDTH}' "
        f"height='{height + foot}' role='img' font-family='system-ui, sans-serif' font-size='11'>"
    ]
    for quarter in range(5):
        value, time_ms = top * quarter / 4, start + (end - start) * quarter // 4
        anchor = "start" if quarter == 0 else "end" if quarter == 4 else "middle"
        parts.append(f"<line x1='{left}' x2='{WIDTH - 20}' y1='{y(value):.1f}' y2='{y(value):.1f}' stroke='#e5e5e5'/>")
        parts.append(f"<text x='{left - 6}' y='{y(value) + 4:.1f}' text-anchor='end'>{value:,.0f}</text>")
        label = clock(time_ms) if quarter == 0 else f"+{length(time_ms - start)}"
        parts.append(f"<text x='{x(time_ms):.1f}' y='{height + 8}' text-anchor='{anchor}'>{escape(label)}</text>")
    for place, each in enumerate(shown):
        path = " ".join(f"{x(time_ms):.1f},{y(value):.1f}" for time_ms, value in each.points)
        colour = LINES[place]
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.6'/>")
        at = height + 30 + 16 * place
        parts.append(f"<rect x='{left}' y='{at - 9}' width='14' height='4' fill='{colour}'/>")
        parts.append(f"<text x='{left + 20}' y='{at - 3}'>{escape(each.label)}</text>")
    parts.append("</svg>")
    return "".join(parts)
