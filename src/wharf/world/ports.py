"""The `World` protocol: clocks, randomness, ids and task creation, as the rest of the program sees them."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class World(Protocol):
    """The clocks, the random numbers, the ids and the tasks of one process."""

    random: Random

    def now_ns(self) -> int:
        """Return the wall-clock time in Unix nanoseconds. It may jump, so never measure a duration with it."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds of a clock that never jumps. Only differences between two readings are meaningful."""
        ...

    def cpu_s(self) -> float:
        """Return the CPU seconds that the current thread has used. Only differences are meaningful."""
        ...

    async def run_off_loop(self, work: Callable[[], T]) -> T:
        """Run a function on the thread for long computations, one at a time, and return its result.

        The function must not change anything that the event loop uses.
        """
        ...

    def new_id(self) -> str:
        """Return a new UUID as text. It is unique, but not secret."""
        ...

    def new_secret(self) -> str:
        """Return a new UUID that cannot be guessed, as text."""
        ...

    def token_bytes(self, count: int) -> bytes:
        """Return `count` random bytes that cannot be guessed."""
        ...

    def start_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start an asyncio task. The caller must hold a reference to it, and await or cancel it."""
        ...
