"""Waiting for a state with a deadline. Tests let real time pass only here."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_S = 0.01
WITHIN_S = 60.0
"""The default time limit. Only a hanging test reaches it, even on a slow machine."""


def wait_until(state: Callable[[], T | None], *, what: str, within_s: float = WITHIN_S) -> T:
    """Return the first true value of `state`. Fails with `what` if the deadline passes first."""
    deadline = time.monotonic() + within_s
    while not (answer := state()):
        assert time.monotonic() < deadline, f"not reached within {within_s} s: {what}"
        time.sleep(PAUSE_S)
    return answer


async def wait_on_loop_until(state: Callable[[], T | None], *, what: str, within_s: float = WITHIN_S) -> T:
    """Do the same as `wait_until` without blocking the event loop."""
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
