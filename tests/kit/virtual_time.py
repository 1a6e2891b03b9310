"""Tests in virtual time: waiting takes no real time, and the same seed gives the same run."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from simulation.loop import SimulatedLoop

P = ParamSpec("P")
T = TypeVar("T")

SEED = 7
POLL_INTERVAL_S = 0.005


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run the test on the simulated loop. Leftover tasks and unhandled exceptions fail it."""

    @wraps(test)
    def run(*args: P.args, **options: P.kwargs) -> None:
        loop = SimulatedLoop(SEED)
        try:
            loop.run_until_complete(test(*args, **options))
        except BaseException:
            loop.abandon()  # Leftovers of a failed test must not fail other tests.
            raise
        loop.close()

    return run


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def pass_time(seconds: float) -> None:
    """Advance virtual time. Raises AssertionError on a real loop."""
    assert isinstance(asyncio.get_running_loop(), SimulatedLoop), "pass_time needs the simulated loop"
    await asyncio.sleep(seconds)


async def until(state: Callable[[], T | None], *, what: str, within_s: float = 30.0) -> T:
    """Return the first true value of `state`. Fails with `what` if the virtual deadline passes first."""
    deadline_s = now_s() + within_s
    while not (answer := state()):
        assert now_s() < deadline_s, f"not reached within {within_s} s: {what}"
        await pass_time(POLL_INTERVAL_S)
    return answer


async def until_read(
    read: Callable[[], Coroutine[Any, Any, T]], is_expected: Callable[[T], object], *, what: str, within_s: float = 30.0
) -> T:
    """Return the first value of `read` that `is_expected` accepts. Fails with `what` at the virtual deadline."""
    deadline_s = now_s() + within_s
    while not is_expected(found := await read()):
        assert now_s() < deadline_s, f"not reached within {within_s} s: {what}; last read: {found}"
        await pass_time(POLL_INTERVAL_S)
    return found
