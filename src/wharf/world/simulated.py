"""The `World` of a simulated process: a seed determines its clock readings, random numbers and ids."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, TypeVar

T = TypeVar("T")

START_TIME_NS: Final = 1_767_225_600_000_000_000
"""When every simulation starts: 2026-01-01T00:00:00Z."""


class SimulatedWorld:
    """Implements `World` without reading the machine.

    `elapsed_s` returns the virtual seconds since the start; usually it is the `time` of the virtual event loop.
    `clock_offset_ns` is the error of this member's wall clock. A simulation changes it to find code that relies on the
    clock being right.
    """

    def __init__(self, seed: int, elapsed_s: Callable[[], float] = lambda: 0.0, *, member: str = "") -> None:
        self.random = Random(f"{seed}/{member}")
        self.clock_offset_ns = 0
        self.boot_time_s = 0.0
        """The virtual time at which this member's machine was booted. The monotonic clock starts at 0 then."""
        self._elapsed_s = elapsed_s

    def now_ns(self) -> int:
        return START_TIME_NS + round(self._elapsed_s() * 1_000_000_000) + self.clock_offset_ns

    def monotonic_s(self) -> float:
        return self._elapsed_s() - self.boot_time_s

    def cpu_s(self) -> float:
        """Return 0: a simulation must not depend on the speed of the machine."""
        return 0.0

    async def run_off_loop(self, work: Callable[[], T]) -> T:
        """Run the function at once: a simulation has one thread."""
        return work()

    def new_id(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def new_secret(self) -> str:
        return self.new_id()

    def token_bytes(self, count: int) -> bytes:
        return self.random.randbytes(count)

    def start_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(coroutine, name=name)
