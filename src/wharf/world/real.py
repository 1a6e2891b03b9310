"""The `World` of a real process: the clocks and the random numbers of the machine."""

import asyncio
import contextlib
import os
import secrets
import time
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, Final, TypeVar

T = TypeVar("T")

RANDOM_BITS_MASK: Final = ~(0xF << 76 | 0x3 << 62)
"""Selects the bits of a version 4 UUID that are random."""
VERSION_4_BITS: Final = 0x4 << 76 | 0x2 << 62
"""The fixed bits of a version 4 UUID: its version and variant."""


class RealWorld:
    """Implements `World` with the machine's clocks and the kernel's random numbers."""

    def __init__(self) -> None:
        self.random = Random(secrets.randbits(128))
        self._off_loop_threads: ThreadPoolExecutor | None = None

    # Direct references save a call: the limiter reads the time six times for each request.
    now_ns = staticmethod(time.time_ns)
    monotonic_s = staticmethod(time.monotonic)
    cpu_s = staticmethod(time.thread_time)

    async def run_off_loop(self, work: Callable[[], T]) -> T:
        """Run a function on the thread for long computations, one at a time, and return its result.

        A running function cannot be stopped. If the caller is cancelled, it is released when the function has ended, so
        that locks which the caller holds for the function stay locked as long.
        """
        if self._off_loop_threads is None:
            # One thread: several would compete with the event loop for the interpreter lock.
            self._off_loop_threads = ThreadPoolExecutor(1, thread_name_prefix="off-loop")
        started = self._off_loop_threads.submit(work)
        future = asyncio.wrap_future(started)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not started.cancel():
                await _wait_until_ended(future)
            raise

    def new_id(self) -> str:
        """Return a new UUID of version 4 as text. It is unique, but not secret."""
        # Bits of a pseudo-random generator suffice for an id and are much cheaper than those of the kernel. Formatting
        # the text here takes a third of the time of `uuid.UUID`.
        text = f"{self.random.getrandbits(128) & RANDOM_BITS_MASK | VERSION_4_BITS:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def new_secret(self) -> str:
        return str(uuid.UUID(bytes=os.urandom(16), version=4))

    def token_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def start_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(coroutine, name=name)


async def _wait_until_ended(future: asyncio.Future[Any]) -> None:
    """Wait until the future is done, also if the caller is cancelled again. Its result or exception is dropped."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    if not future.cancelled():
        future.exception()  # Read it, so that asyncio does not log it.
