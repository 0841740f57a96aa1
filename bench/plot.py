"""Draws a small line chart as SVG, for a page that must not need a plotting library."""

from __future__ import annotations

from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 360, 64, 48, 36, 20
COLOURS = ("#1f6f8b", "#c8553d", "#588157", "#6d597a")


def line_chart(title: str, across: str, up: str, lines: dict[str, list[tuple[float, float]]]) -> str:
    """Lines of points from zero, each with its name, on linear axes."""
    most_x = max(x for points in lines.values() for x, _ in points)
    most_y = max(y for points in lines.values() for _, y in points) * 1.1

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + x / most_x * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / most_y * (HEIGHT - TOP - BOTTOM),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        '     font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="14">{escape(title)}</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>',
        f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle"',
        f'      transform="rotate(-90 14 {HEIGHT / 2})">{escape(up)}</text>',
    ]
    for step in range(5):
        x, y = at(most_x * step / 4, most_y * step / 4)
        (left, bottom), (right, top) = at(0, 0), at(most_x, most_y)
        parts += [
            f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<line x1="{x:.1f}" y1="{bottom:.1f}" x2="{x:.1f}" y2="{top:.1f}" stroke="#eee"/>',
            f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{most_y * step / 4:.3g}</text>',
            f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{most_x * step / 4:.4g}</text>',
        ]
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (at(*p) for p in points)]
        parts.append(f'<text x="{LEFT + 12}" y="{TOP + 16 * (number + 1)}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])
