"""Draws measured lines as SVG, on scales where what grows in proportion is a straight line of one slope. No library."""

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
COLOURS: Final = ("#1b6ca8", "#c8553d", "#4f772d", "#6d597a")


class ChartLine(msgspec.Struct, frozen=True):
    name: str
    points: Sequence[tuple[float, float]]


def render_log_log_chart(title: str, lines: Sequence[ChartLine], *, x: str, y: str) -> str:
    """Every decade has its mark; the names of lines stand at their ends."""
    across = _Scale([point[0] for line in lines for point in line.points], LEFT, WIDTH - RIGHT)
    up = _Scale([point[1] for line in lines for point in line.points], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x)}</text>',
        f'<text x="{LEFT - 8}" y="{TOP - 8}" text-anchor="end">{escape(y)}</text>',
    ]
    for decade in across.decades():
        at = across.at(decade)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{decade:,.10g}</text>')
    for decade in up.decades():
        at = up.at(decade)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{decade:,.10g}</text>')
    for line, colour in zip(lines, COLOURS, strict=False):
        places = [(across.at(each[0]), up.at(each[1])) for each in line.points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"/>' for a, b in places]
        a, b = places[-1]
        parts.append(f'<text x="{a + 10:.1f}" y="{b + 4:.1f}" fill="{colour}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


class _Scale:
    """From the decade below the least value to the one above the greatest."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self._least = math.floor(math.log10(min(values)))
        self._most = max(self._least + 1, math.ceil(math.log10(max(values)) - 1e-9))
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self._least) / (self._most - self._least)
        return self._begin + share * (self._end - self._begin)

    def decades(self) -> list[float]:
        return [10.0**power for power in range(self._least, self._most + 1)]
