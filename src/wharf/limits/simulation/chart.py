"""Draws a simulation as a chart in SVG: how many requests would have been admitted and refused over time."""

import datetime
from typing import Final

from wharf.limits.simulation.replay import SimulationResult

WIDTH: Final = 960
HEIGHT: Final = 320
LEFT_MARGIN: Final = 60
RIGHT_MARGIN: Final = 20
TOP_MARGIN: Final = 50
BOTTOM_MARGIN: Final = 40
ADMITTED_COLOUR: Final = "#4f7cac"
REFUSED_COLOUR: Final = "#c8553d"


def render_svg(result: SimulationResult) -> str:
    """Return the chart as SVG: for each step of time a column of admitted requests, with the refused ones on top."""
    max_requests = max((admitted + refused for _, admitted, refused in result.timeline), default=0) or 1
    chart_width, chart_height = WIDTH - LEFT_MARGIN - RIGHT_MARGIN, HEIGHT - TOP_MARGIN - BOTTOM_MARGIN
    column_width = chart_width / max(1, (result.ends_ms - result.begins_ms) // result.step_ms + 1)
    bottom, right = TOP_MARGIN + chart_height, WIDTH - RIGHT_MARGIN
    first_ms = result.timeline[0][0] if result.timeline else 0
    title = f"{result.refused:,} of {result.lines:,} requests would be refused"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT_MARGIN}" y="24" font-size="15">{title}</text>',
        _draw_legend(WIDTH - 210, ADMITTED_COLOUR, "admitted"),
        _draw_legend(WIDTH - 110, REFUSED_COLOUR, "refused"),
    ]
    for fraction in (0.5, 1.0):
        y = bottom - chart_height * fraction
        parts.append(f'<line x1="{LEFT_MARGIN}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        label = f"{round(max_requests * fraction):,}"
        parts.append(f'<text x="{LEFT_MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for at_ms, admitted, refused in result.timeline:
        x = LEFT_MARGIN + (at_ms - first_ms) // result.step_ms * column_width
        admitted_height = admitted / max_requests * chart_height
        refused_height = refused / max_requests * chart_height
        tooltip = f"{_format_time(at_ms)}: {admitted:,} admitted, {refused:,} refused"
        parts.append(f"<g><title>{tooltip}</title>")
        parts.append(_draw_bar(x, bottom - admitted_height, column_width, admitted_height, ADMITTED_COLOUR))
        if refused:
            top = bottom - admitted_height - refused_height
            parts.append(_draw_bar(x, top, column_width, refused_height, REFUSED_COLOUR))
        parts.append("</g>")
    parts.append(f'<line x1="{LEFT_MARGIN}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="#333"/>')
    parts.append(f'<text x="{LEFT_MARGIN}" y="{HEIGHT - 14}">{_format_time(result.begins_ms)}</text>')
    parts.append(f'<text x="{right}" y="{HEIGHT - 14}" text-anchor="end">{_format_time(result.ends_ms)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _draw_bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    """Return a rectangle in SVG, half a unit narrower than `width`, so that neighbouring bars are separate."""
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(0.5, width - 0.5):.2f}" height="{height:.2f}" fill="{colour}"/>'


def _draw_legend(x: int, colour: str, name: str) -> str:
    """Return an entry of the legend in SVG: a coloured square and a name."""
    return f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="24">{name}</text>'


def _format_time(time_ms: int) -> str:
    """Return a time in Unix milliseconds as text in UTC; a dash for 0, the time of an empty log."""
    if not time_ms:
        return "-"
    return datetime.datetime.fromtimestamp(time_ms / 1_000, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
