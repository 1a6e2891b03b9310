"""The time of an event, by both clocks of the node, and the random number that decisions may use."""

from collections.abc import Sequence

import msgspec


class ClockReading(msgspec.Struct, frozen=True):
    """The wall clock, the monotonic clock and a random number, read once for one event.

    `wall_ns` is shown to users and may jump. Durations are measured with `monotonic_s`, which never jumps.
    """

    wall_ns: int  # nanoseconds since 1970
    monotonic_s: float
    random_fraction: float = 0.0
    """At least 0 and below 1, drawn again for each event."""


def find_earliest(deadlines: Sequence[float | None]) -> float | None:
    """Return the earliest of the deadlines; `None` if there is none. `None` in the list means no deadline."""
    return min((deadline for deadline in deadlines if deadline is not None), default=None)
