"""Charts of the last ten minutes, from the samples that nodes measure: use as a line, what is requested as a mark.

The samples come from nodes, so nothing about their type or size is taken for granted.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from wharf.web.rendering import format_count

HISTORY: Final = "10m"
"""The duration of a chart; nodes store no more."""
WIDTH: Final = 320
HEIGHT: Final = 64
MAX_SAMPLES: Final = 120
"""Limits the size of a chart. A node measures every ten seconds."""
HEADROOM: Final = 1.15
"""How much higher than its largest value a chart is."""


class Chart(msgspec.Struct, frozen=True):
    """A line over time, in the units of the picture."""

    title: str
    text: str
    """What the chart says in words: the newest and the largest value, and what is requested."""
    line: str
    area: str
    mark_y: int | None
    """The height of what is requested; `None` if it is unknown or outside of the chart."""
    width: int = WIDTH
    height: int = HEIGHT


def build_chart(
    title: str, history: object, key: str, *, unit: str, divisor: float = 1, requested: float = 0, full: float = 0
) -> Chart | None:
    """Return the chart of one value of the samples, or `None` if there are fewer than two.

    `divisor` converts the value to `unit`. `full`: the value at the upper edge; 0: a bit more than the largest value.
    """
    values = [value / divisor for value in _list_values(history, key)]
    if len(values) < 2:
        return None
    top = full or max(*values, requested, 1e-9) * HEADROOM
    step = WIDTH / (len(values) - 1)
    places = [f"{round(n * step)} {_place(value, top)}" for n, value in enumerate(values)]
    line = "M" + "L".join(places)
    parts = [f"{_format(values[-1])} {unit} now", f"at most {_format(max(values))} {unit}"]
    if requested:
        parts.append(f"{_format(requested)} {unit} requested")
    return Chart(
        title=title,
        text=", ".join(parts),
        line=line,
        area=f"{line}L{WIDTH} {HEIGHT}L0 {HEIGHT}z",
        mark_y=_place(requested, top) if 0 < requested <= top else None,
    )


def read_number(value: object) -> float:
    """Return a number that a node has sent; 0 for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else 0.0  # type: ignore[arg-type]


def read_map(value: object) -> Mapping[str, Any]:
    """Return an object that a node has sent; empty for anything else."""
    return value if isinstance(value, dict) else {}


def _list_values(history: object, key: str) -> Sequence[float]:
    """Return the newest values of the samples, oldest first."""
    samples = history if isinstance(history, list) else []
    return [max(0.0, read_number(read_map(sample).get(key))) for sample in samples[-MAX_SAMPLES:]]


def _place(value: float, top: float) -> int:
    return round(HEIGHT - min(1.0, value / top) * (HEIGHT - 2))


def _format(value: float) -> str:
    return format_count(round(value)) if value >= 10 else f"{value:.1f}"
