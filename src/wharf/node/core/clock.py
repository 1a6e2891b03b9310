"""When something happens to a node, by both of its clocks, and the chance that decisions may use up."""

from collections.abc import Sequence
from typing import Final

import msgspec

SECOND_NS: Final = 1_000_000_000


class ClockReading(msgspec.Struct, frozen=True):
    """`wall_ns` is shown to people and may step; every duration is measured by `monotonic_s`, which does not."""

    wall_ns: int
    monotonic_s: float
    random_fraction: float = 0.0
    """From 0 up to 1, drawn anew for each event."""


def find_earliest(dues: Sequence[float | None]) -> float | None:
    """The first of these moments; None where nothing is due."""
    return min((due for due in dues if due is not None), default=None)
