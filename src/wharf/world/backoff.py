"""Delays between repeated attempts. Every client of a server uses them; which failures to repeat is decided elsewhere.

Delays double, so that a server that is overloaded gets fewer requests. They are random, so that clients that failed
together do not return together.
"""

from random import Random
from typing import Final

MAX_DOUBLINGS: Final = 16
"""Limits the exponent, so that the number of failures never overflows a float."""
REQUESTED_SPREAD: Final = 0.5
"""By which part a delay that a server requested is extended at most. Many clients are refused in the same moment."""
MAX_REQUESTED_DELAY_S: Final = 60.0
"""The longest delay that a server may impose on a `Backoff`. Protects agents from a server that requests hours."""


def draw_delay_s(
    random: Random, attempt: int, *, min_s: float, max_s: float, requested_s: float | None = None
) -> float:
    """Return a random delay in seconds after failed attempt number `attempt`, counted from 1.

    It is between half of the limit and the limit, which is `min_s` at first and doubles up to `max_s`. It is never
    shorter than the server requested (`Retry-After`).
    """
    limit_s = min(max_s, min_s * 2.0 ** min(attempt - 1, MAX_DOUBLINGS))
    delay_s = random.uniform(limit_s / 2, limit_s)
    if not requested_s:
        return delay_s
    return max(delay_s, requested_s * random.uniform(1.0, 1.0 + REQUESTED_SPREAD))


class Backoff:
    """The delays of one repeated request: the first failure waits up to `min_s`, each further one longer, up to `max_s`."""

    def __init__(self, random: Random, *, min_s: float, max_s: float) -> None:
        self._random = random
        self._min_s = min_s
        self._max_s = max_s
        self._failures = 0

    def next_delay_s(self, requested_s: float | None = None) -> float:
        """Count a failure and return the delay before the next attempt.

        `requested_s` is the delay that the server requested, or `None`; at most `MAX_REQUESTED_DELAY_S` of it count.
        """
        self._failures += 1
        requested_s = None if requested_s is None else min(requested_s, MAX_REQUESTED_DELAY_S)
        return draw_delay_s(self._random, self._failures, min_s=self._min_s, max_s=self._max_s, requested_s=requested_s)

    def reset(self) -> None:
        """Start again with the shortest delay, because an attempt succeeded."""
        self._failures = 0
