"""Waiting for a state with a deadline. Tests let real time pass only here."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_S = 0.01
WITHIN_S = 60.0
"""Limit against hanging that only a failure reaches: the machine may be slow and shared."""


def wait_until(state: Callable[[], T | None], *, what: str, within_s: float = WITHIN_S) -> T:
    """Return the first answer of `state` that is true. Fails, naming `what`, when the deadline passes before."""
    deadline = time.monotonic() + within_s
    while not (answer := state()):
        assert time.monotonic() < deadline, f"after {within_s} s still not so: {what}"
        time.sleep(PAUSE_S)
    return answer


async def wait_on_loop_until(state: Callable[[], T | None], *, what: str, within_s: float = WITHIN_S) -> T:
    """Do the same as `wait_until` without blocking the event loop."""
    deadline = time.monotonic() + within_s
    while not (answer := state()):
        assert time.monotonic() < deadline, f"after {within_s} s still not so: {what}"
        await asyncio.sleep(PAUSE_S)
    return answer
