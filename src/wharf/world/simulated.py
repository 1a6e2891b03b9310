"""A world out of a seed: the same clock readings, the same chance, the same ids, every time."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, TypeVar

T = TypeVar("T")

START_TIME_NS: Final = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z: simulated clusters are born at a round hour.


class SimulatedWorld:
    """`elapsed_s` gives virtual seconds since the start, usually the virtual event loop's `time`.

    `clock_offset_ns` is this member's error of the wall clock; a simulation steps it to see who relied on it.
    """

    def __init__(self, seed: int, elapsed_s: Callable[[], float] = lambda: 0.0, *, member: str = "") -> None:
        self.random = Random(f"{seed}/{member}")
        self.clock_offset_ns = 0
        self.boot_time_s = 0.0
        """When its machine was booted: from there on the monotonic clock counts."""
        self._elapsed_s = elapsed_s

    def now_ns(self) -> int:
        return START_TIME_NS + round(self._elapsed_s() * 1_000_000_000) + self.clock_offset_ns

    def monotonic_s(self) -> float:
        return self._elapsed_s() - self.boot_time_s

    def new_id(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def new_secret(self) -> str:
        return self.new_id()

    def token_bytes(self, count: int) -> bytes:
        return self.random.randbytes(count)

    def start_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(coroutine, name=name)
