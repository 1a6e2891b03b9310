"""Waiting for a state with a deadline. Tests let real time pass only here."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_S = 0.01
MAX_PAUSE_S = 0.1
PAUSE_SHARE = 0.05
"""The length of a pause in relation to the time waited so far: a check delays its test by a twentieth at most."""
WITHIN_S = 60.0
"""The default time limit. Only a hanging test reaches it, even on a slow machine."""


def wait_until(state: Callable[[], T | None], *, what: str, within_s: float = WITHIN_S) -> T:
    """Return the first true value of `state`. Fails with `what` if the deadline passes first.

    Most states are those of other processes: each check is a request or a search of /proc, so pauses grow.
    """
    began = time.monotonic()
    while not (answer := state()):
        waited_s = time.monotonic() - began
        assert waited_s < within_s, f"not reached within {within_s} s: {what}"
        time.sleep(compute_pause_s(waited_s))
    return answer


def compute_pause_s(waited_s: float) -> float:
    """Return the pause before the next check, by the time waited so far."""
    return min(max(waited_s * PAUSE_SHARE, PAUSE_S), MAX_PAUSE_S)


async def wait_on_loop_until(state: Callable[[], T | None], *, what: str, within_s: float = WITHIN_S) -> T:
    """Do the same as `wait_until` without blocking the event loop. Pauses do not grow, because states are those of this process."""
    deadline = time.monotonic() + within_s
    while not (answer := state()):
        assert time.monotonic() < deadline, f"not reached within {within_s} s: {what}"
        await asyncio.sleep(PAUSE_S)
    return answer


def once_a_second(state: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function that calls `state` at most once a second, because the call is work for servers."""
    next_call_s = 0.0

    def call() -> bool:
        nonlocal next_call_s
        if time.monotonic() < next_call_s:
            return False
        result = state()
        next_call_s = time.monotonic() + 1.0
        return result

    return call
