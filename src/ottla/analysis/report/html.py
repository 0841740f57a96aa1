"""Render a report as one HTML file with a picture of its timeline, without scripts or links."""

from __future__ import annotations

from html import escape
from typing import Any, Final, NamedTuple

from ottla.analysis.report.model import Finding, Report, Series, Span, Step, Table, clock, length

LANE: Final = 40
LEFT: Final = 230
WIDTH: Final = 1100
LINES: Final = ("#4c78a8", "#d62728", "#59a14f", "#f2a93b", "#9467bd", "#17becf", "#8c564b", "#e377c2")
COLOURS: Final = {
    "owns": ("#4c78a8", "#fff"),
    "fault": ("#c62828", "#fff"),
    "waits": ("#f2b84b", "#222"),
    "ok": ("#4a8f45", "#fff"),
}
"""The colour of each kind of bar, and of the text on it."""
KINDS: Final = {"owns": "owns", "ok": "committed", "waits": "in progress, or aborted", "fault": "at fault"}
MARKS: Final = {"begins": "#2e7d32", "gets": "#1f4e79", "gives": "#8e44ad", "ends": "#c62828", "else": "#777"}
ORDER: Final = ("else", "begins", "gets", "gives", "ends")
"""The order in which marks are drawn: later ones cover earlier ones."""
WORDS: Final = {
    "begins": "joins, begins",
    "gets": "is assigned",
    "gives": "releases, leaves, ends",
    "ends": "is evicted, times out",
    "else": "other events",
}
EVENT_MARKS: Final = {
    "group.join": "begins",
    "txn.begin": "begins",
    "txn.init": "begins",
    "group.assigned": "gets",
    "group.added": "gets",
    "group.target": "gets",
    "group.released": "gives",
    "group.revoking": "gives",
    "group.left": "gives",
    "txn.end": "gives",
    "txn.marker": "gives",
    "group.fenced": "ends",
    "txn.timeout": "ends",
    "txn.fenced": "ends",
    "timeout": "ends",
}
UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))
MOST_LANES: Final = 40
MOST_MARKS: Final = 400
STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1150px; padding: 0 1em; color: #222; }
h1 { font-size: 1.3em; } h2 { font-size: 1.05em; margin-top: 2em; }
.found { color: #b3261e; } .fine { color: #2e7d32; }
table { border-collapse: collapse; margin: .5em 0; font-size: 13px; }
td, th { text-align: left; padding: 2px 10px 2px 0; border-bottom: 1px solid #e5e5e5; vertical-align: top; }
td:first-child { white-space: nowrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1.5em; } dt { font-weight: 600; } dd { margin: 0; }
svg { max-width: 100%; height: auto; background: #fafafa; border: 1px solid #e0e0e0; }
.note { color: #8a5a00; }
"""


def to_html(report: Report) -> str:
    """Return the page."""
    kind = "found" if report.has_problem else "fine" if report.conclusive else "note"
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>ottla analyze {escape(report.analysis)}</title><style>{STYLE}</style></head><body>",
        f"<p>ottla analyze {escape(report.analysis)}</p>",
        f"<h1 class='{kind}'>{escape(report.verdict)}</h1>",
    ]
    parts.append(picture(report))
    for number, finding in enumerate(report.findings, 1):
        parts += _finding(number, finding, own_picture=len(report.findings) > 1)
    parts += [_table(table) for table in report.tables]
    if report.steps:
        parts.append(_steps("Timeline", report.steps))
    rows = [
        [summary.path, " ".join(summary.formats), summary.lines, summary.events, summary.unparsed,
         clock(summary.first_ms), clock(summary.last_ms)]
        for summary in report.inputs if summary.events
    ]  # fmt: skip
    if rows:
        parts.append(_table(Table("Read", ["input", "format", "lines", "events", "unparsed", "from", "to"], rows)))
    parts += [f"<p class='note'>note: {escape(note)}</p>" for note in report.notes]
    parts.append("</body></html>\n")
    return "\n".join(parts)


def picture(report: Report) -> str:
    """Return the timeline and the chart of a report as SVG, or an empty string if it has neither."""
    return "".join(_pictures(report))


def _pictures(report: Report) -> list[str]:
    spans = report.spans or [span for finding in report.findings[:10] for span in finding.spans]
    steps = report.steps or [step for finding in report.findings[:10] for step in finding.steps]
    drawn = [to_svg(spans, steps) if spans else "", to_chart(report.series, report.series_title)]
    return [drawing for drawing in drawn if drawing]


def picture_file(report: Report) -> str:
    """Return one SVG file with all drawings; without any, one with the verdict as text."""
    drawings = _pictures(report)
    if not drawings:
        parts = _canvas(40)
        return "".join([*parts, f"<text x='12' y='25'>{escape(report.verdict)}</text></svg>"])
    heights = [int(drawing.partition("height='")[2].partition("'")[0]) for drawing in drawings]
    if len(drawings) == 1:
        return drawings[0]
    parts = _canvas(sum(heights))
    for number, drawing in enumerate(drawings):
        parts.append(drawing.replace("<svg ", f"<svg y='{sum(heights[:number])}' ", 1))
    return "".join([*parts, "</svg>"])


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
        return ", ".join("-" if item is None else str(item) for item in value) or "-"
    return "-" if value is None else str(value)


def _steps(title: str, steps: list[Step]) -> str:
    rows = [[clock(step.time_ms), step.lane, step.event, step.what, step.where] for step in steps]
    return _table(Table(title, ["time", "who", "event", "what", "where"], rows))


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{'-' if value is None else escape(str(value))}</td>" for value in row) + "</tr>"
        for row in table.rows
    )
    return f"<h2>{escape(table.title)}</h2><table><tr>{head}</tr>{body}</table>"


def to_svg(spans: list[Span], steps: list[Step]) -> str:
    """Draw lanes with bars over time, and a mark for every event below them."""
    lanes = list(dict.fromkeys(span.lane for span in spans))[:MOST_LANES]
    shown = [span for span in spans if span.lane in lanes]
    start = min(span.start_ms for span in shown)
    end = max(max(span.end_ms for span in shown), start + 1)
    marks = [step for step in steps if step.time_ms is not None and start <= step.time_ms <= end and step.lane in lanes]
    marks = sorted(marks[:MOST_MARKS], key=lambda step: ORDER.index(_mark(step)))
    bottom = 10 + LANE * len(lanes)
    left = min(LEFT, max(90, 20 + max(7 * len(_cut(lane)) for lane in lanes)))
    axis = _Axis(left, WIDTH - 24, start, end)
    parts = _canvas(bottom + 58)
    parts += axis.grid(6, bottom + 4)
    for index, lane in enumerate(lanes):
        y = 10 + index * LANE
        parts.append(f"<text x='8' y='{y + 15}'>{escape(_cut(lane))}<title>{escape(lane)}</title></text>")
        parts.append(f"<line x1='{left}' x2='{axis.right}' y1='{y + 27}' y2='{y + 27}' stroke='#ccc'/>")
    for span in shown:
        parts += _bar(span, axis, 10 + lanes.index(span.lane) * LANE)
    for step in marks:
        hint = f"{clock(step.time_ms)} {step.event}: {step.what}"
        x, y = axis.x(step.time_ms or 0), 10 + lanes.index(step.lane) * LANE
        parts.append(
            f"<rect x='{x - 1.5:.1f}' y='{y + 22}' width='3' height='10' fill='{MARKS[_mark(step)]}'>"
            f"<title>{escape(hint)}</title></rect>"
        )
    parts += _legend(left, bottom + 46, [span.kind for span in shown], [_mark(step) for step in marks])
    return "".join([*parts, "</svg>"])


class _Axis(NamedTuple):
    """The horizontal axis: times mapped to pixels."""

    left: int
    right: int
    start: int
    end: int

    def x(self, time_ms: int) -> float:
        return self.left + (time_ms - self.start) / (self.end - self.start) * (self.right - self.left)

    def grid(self, top: int, bottom: int) -> list[str]:
        """Return vertical lines at the quarters with their times, in one unit."""
        size, unit = next((size, unit) for size, unit in UNITS if self.end - self.start >= 2 * size or size == 1)
        parts = []
        for quarter in range(5):
            time_ms = self.start + (self.end - self.start) * quarter // 4
            x = self.x(time_ms)
            anchor = "start" if quarter == 0 else "end" if quarter == 4 else "middle"
            label = (
                clock(time_ms) if quarter == 0 else f"+{(time_ms - self.start) / size:.{0 if size == 1 else 1}f} {unit}"
            )
            parts.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{bottom}' stroke='#e2e2e2'/>")
            parts.append(f"<text x='{x:.1f}' y='{bottom + 15}' text-anchor='{anchor}'>{escape(label)}</text>")
        return parts


def _canvas(height: int) -> list[str]:
    return [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' "
        f"role='img' font-family='system-ui, sans-serif' font-size='12' fill='#222'>"
        f"<rect width='{WIDTH}' height='{height}' fill='#fafafa'/>"
    ]


def _cut(lane: str) -> str:
    return lane if len(lane) <= 30 else f"...{lane[-28:]}"


def _bar(span: Span, axis: _Axis, y: int) -> list[str]:
    """Return a bar, with its label inside if it fits."""
    x, width = axis.x(span.start_ms), max(axis.x(span.end_ms) - axis.x(span.start_ms), 3)
    hint = f"{span.label}: {clock(span.start_ms)} to {clock(span.end_ms)}, {length(span.end_ms - span.start_ms)}"
    colour, ink = COLOURS.get(span.kind, ("#888", "#fff"))
    parts = [
        f"<rect x='{x:.1f}' y='{y + 2}' width='{width:.1f}' height='17' rx='2' fill='{colour}'>"
        f"<title>{escape(hint)}</title></rect>"
    ]
    if width > 7 * len(span.label) + 8:
        parts.append(f"<text x='{x + 5:.1f}' y='{y + 15}' fill='{ink}'>{escape(span.label)}</text>")
    return parts


def _mark(step: Step) -> str:
    return EVENT_MARKS.get(step.event, "else")


def _legend(x: int, y: int, kinds: list[str], marks: list[str]) -> list[str]:
    """Return the meaning of the colours that the picture uses."""
    entries = [(COLOURS[kind][0], 14, words) for kind, words in KINDS.items() if kind in kinds]
    entries += [(colour, 3, WORDS[mark]) for mark, colour in MARKS.items() if mark in marks]
    parts = []
    for colour, width, words in entries:
        parts.append(f"<rect x='{x}' y='{y - 9}' width='{width}' height='10' fill='{colour}'/>")
        parts.append(f"<text x='{x + width + 5}' y='{y}' font-size='11'>{escape(words)}</text>")
        x += width + 24 + 6 * len(words)
    return parts


def to_chart(series: list[Series], title: str = "") -> str:
    """Draw lines over time, the first eight of them."""
    shown = [line for line in series if line.points][: len(LINES)]
    if not shown:
        return ""
    times = [time_ms for line in shown for time_ms, _ in line.points]
    start, end = min(times), max(max(times), min(times) + 1)
    top = max(max(value for line in shown for _, value in line.points), 1)
    left, height = 90, 250
    axis = _Axis(left, WIDTH - 24, start, end)

    def y(value: float) -> float:
        return 24 + (1 - value / top) * (height - 24)

    parts = _canvas(height + 34 + 18 * len(shown))
    parts += axis.grid(24, height)
    for quarter in range(5):
        value = top * quarter / 4
        parts.append(f"<line x1='{left}' x2='{axis.right}' y1='{y(value):.1f}' y2='{y(value):.1f}' stroke='#e2e2e2'/>")
        parts.append(f"<text x='{left - 6}' y='{y(value) + 4:.1f}' text-anchor='end'>{value:,.0f}</text>")
    if title:
        parts.append(f"<text x='{left}' y='14'>{escape(title)}</text>")
    for index, line in enumerate(shown):
        path = " ".join(f"{axis.x(time_ms):.1f},{y(value):.1f}" for time_ms, value in line.points)
        colour = LINES[index]
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.8'/>")
        baseline = height + 38 + 18 * index
        parts.append(f"<rect x='{left}' y='{baseline - 7}' width='14' height='4' fill='{colour}'/>")
        parts.append(f"<text x='{left + 20}' y='{baseline}'>{escape(line.label)}</text>")
    return "".join([*parts, "</svg>"])
