"""What the rest of the program may ask of the world."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class World(Protocol):
    """One clock, one source of chance, one maker of ids, one place where tasks begin."""

    random: Random

    def now_ns(self) -> int:
        """Wall-clock time, Unix nanoseconds. It may step; never measure a duration with it."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never steps. Only differences mean anything."""
        ...

    def new_id(self) -> str:
        """A new UUID, as text."""
        ...

    def new_secret(self) -> str:
        """A UUID that nobody can guess."""
        ...

    def token_bytes(self, count: int) -> bytes:
        """Bytes that nobody can guess."""
        ...

    def start_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Begin a task. The caller keeps it, waits for it or cancels it."""
        ...
