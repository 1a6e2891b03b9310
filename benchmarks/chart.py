"""Draws lines as SVG on logarithmic scales, on which proportional growth is a straight line. Uses no library."""

import math
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

import msgspec

WIDTH: Final = 640
HEIGHT: Final = 400
LEFT: Final = 70
RIGHT: Final = 130
TOP: Final = 40
BOTTOM: Final = 50
COLORS: Final = ("#1b6ca8", "#c8553d", "#4f772d", "#6d597a")


class ChartLine(msgspec.Struct, frozen=True):
    name: str
    points: Sequence[tuple[float, float]]


def render_log_log_chart(title: str, lines: Sequence[ChartLine], *, x: str, y: str) -> str:
    """Return the chart as SVG. Each power of ten has a grid line; each line has its name at its end."""
    x_scale = _Scale([point[0] for line in lines for point in line.points], LEFT, WIDTH - RIGHT)
    y_scale = _Scale([point[1] for line in lines for point in line.points], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x)}</text>',
        f'<text x="{LEFT - 8}" y="{TOP - 8}" text-anchor="end">{escape(y)}</text>',
    ]
    for decade in x_scale.list_decades():
        position = x_scale.compute_position(decade)
        parts.append(f'<line x1="{position:.1f}" x2="{position:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{position:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{decade:,.10g}</text>')
    for decade in y_scale.list_decades():
        position = y_scale.compute_position(decade)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{position:.1f}" y2="{position:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{position + 4:.1f}" text-anchor="end">{decade:,.10g}</text>')
    for line, color in zip(lines, COLORS, strict=False):
        points = [
            (x_scale.compute_position(x_value), y_scale.compute_position(y_value)) for x_value, y_value in line.points
        ]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{color}"/>' for a, b in points]
        a, b = points[-1]
        parts.append(f'<text x="{a + 10:.1f}" y="{b + 4:.1f}" fill="{color}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


class _Scale:
    """A logarithmic scale from the power of ten below the smallest value to the one above the largest value."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self._min_exponent = math.floor(math.log10(min(values)))
        self._max_exponent = max(self._min_exponent + 1, math.ceil(math.log10(max(values)) - 1e-9))
        self._begin, self._end = begin, end

    def compute_position(self, value: float) -> float:
        fraction = (math.log10(value) - self._min_exponent) / (self._max_exponent - self._min_exponent)
        return self._begin + fraction * (self._end - self._begin)

    def list_decades(self) -> list[float]:
        return [10.0**power for power in range(self._min_exponent, self._max_exponent + 1)]
