"""Tests whose time is virtual: what waits takes none, and the same seed gives the same run."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from simulation.loop import SimulatedLoop

P = ParamSpec("P")
T = TypeVar("T")

SEED = 7
LOOK_S = 0.005


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run the test on the simulated loop. A task that is left behind, or an exception that nobody took, fails it."""

    @wraps(test)
    def run(*args: P.args, **options: P.kwargs) -> None:
        loop = SimulatedLoop(SEED)
        try:
            loop.run_until_complete(test(*args, **options))
        except BaseException:
            loop.abandon()  # What a failed test leaves behind says nothing more, in no other test either.
            raise
        loop.close()

    return run


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def pass_time(seconds: float) -> None:
    """Let virtual time go on: it costs none. Refused on a real loop."""
    assert isinstance(asyncio.get_running_loop(), SimulatedLoop), "time passes by itself only where it is virtual"
    await asyncio.sleep(seconds)


async def until(state: Callable[[], T | None], *, what: str, within_s: float = 30.0) -> T:
    """The first answer of `state` that is true. Fails, naming `what`, when the virtual deadline passes before."""
    deadline_s = now_s() + within_s
    while not (answer := state()):
        assert now_s() < deadline_s, f"after {within_s} s still not so: {what}"
        await pass_time(LOOK_S)
    return answer


async def seen(
    look: Callable[[], Coroutine[Any, Any, T]], wanted: Callable[[T], object], *, what: str, within_s: float = 30.0
) -> T:
    """The first thing that `look` finds and that is as wanted."""
    deadline_s = now_s() + within_s
    while not wanted(found := await look()):
        assert now_s() < deadline_s, f"after {within_s} s still not so: {what}; last seen: {found}"
        await pass_time(LOOK_S)
    return found
