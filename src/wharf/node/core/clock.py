"""The time of an event, by both clocks of the node, and the random number that decisions may use."""

from collections.abc import Sequence

import msgspec


class ClockReading(msgspec.Struct, frozen=True):
    """Both clocks of the node at one event.

    `wall_ns` is shown to users and may jump. Durations are measured with `monotonic_s`, which never jumps.
    """

    wall_ns: int
    monotonic_s: float
    random_fraction: float = 0.0
    """At least 0 and below 1, drawn again for each event."""


def find_earliest(deadlines: Sequence[float | None]) -> float | None:
    """Return the earliest of the deadlines; `None` if there is none."""
    return min((deadline for deadline in deadlines if deadline is not None), default=None)
