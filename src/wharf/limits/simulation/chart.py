"""A simulation as a picture: what would have been admitted and refused over time, in SVG, readable without a script."""

import datetime
from typing import Final

from wharf.limits.simulation.replay import SimulationResult

WIDTH: Final = 960
HEIGHT: Final = 320
LEFT_MARGIN: Final = 60
TOP_MARGIN: Final = 50
BOTTOM_MARGIN: Final = 40
ADMITTED_COLOUR: Final = "#4f7cac"
REFUSED_COLOUR: Final = "#c8553d"


def render_svg(outcome: SimulationResult) -> str:
    most = max((admitted + refused for _, admitted, refused in outcome.timeline), default=0) or 1
    inner_width, inner_height = WIDTH - LEFT_MARGIN - 20, HEIGHT - TOP_MARGIN - BOTTOM_MARGIN
    columns = max(1, (outcome.ends_ms - outcome.begins_ms) // outcome.step_ms + 1)
    width = inner_width / columns
    base = TOP_MARGIN + inner_height
    first_ms = outcome.timeline[0][0] if outcome.timeline else 0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{outcome.refused:,} of {outcome.lines:,} requests would be refused</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT_MARGIN}" y="24" font-size="15">{outcome.refused:,} of {outcome.lines:,} requests would be refused</text>',
        _key(WIDTH - 210, ADMITTED_COLOUR, "admitted"),
        _key(WIDTH - 110, REFUSED_COLOUR, "refused"),
    ]
    for share in (0.5, 1.0):
        y = base - inner_height * share
        parts.append(f'<line x1="{LEFT_MARGIN}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT_MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{round(most * share):,}</text>')
    for at_ms, admitted, refused in outcome.timeline:
        x = LEFT_MARGIN + (at_ms - first_ms) // outcome.step_ms * width
        tall, over = admitted / most * inner_height, refused / most * inner_height
        said = f"{_say(at_ms)}: {admitted:,} admitted, {refused:,} refused"
        parts.append(f"<g><title>{said}</title>")
        parts.append(_bar(x, base - tall, width, tall, ADMITTED_COLOUR))
        if refused:
            parts.append(_bar(x, base - tall - over, width, over, REFUSED_COLOUR))
        parts.append("</g>")
    parts.append(f'<line x1="{LEFT_MARGIN}" x2="{WIDTH - 20}" y1="{base}" y2="{base}" stroke="#333"/>')
    parts.append(f'<text x="{LEFT_MARGIN}" y="{HEIGHT - 14}">{_say(outcome.begins_ms)}</text>')
    parts.append(f'<text x="{WIDTH - 20}" y="{HEIGHT - 14}" text-anchor="end">{_say(outcome.ends_ms)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(0.5, width - 0.5):.2f}" height="{height:.2f}" fill="{colour}"/>'


def _key(x: int, colour: str, name: str) -> str:
    return f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="24">{name}</text>'


def _say(moment_ms: int) -> str:
    if not moment_ms:
        return "-"
    return datetime.datetime.fromtimestamp(moment_ms / 1_000, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
