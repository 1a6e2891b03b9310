"""One read that serves many callers.

A read serves every caller that asked before it began, so its result is never older than the call. Callers that ask
during a read share the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from wharf.cluster.engines.port import LogUnavailable
from wharf.world import World
from wharf.world.tasks import cancel_tasks

T = TypeVar("T")


class SharedRead(Generic[T]):
    """Merges concurrent reads of one value."""

    def __init__(self, world: World, read: Callable[[], Awaitable[T]], *, name: str) -> None:
        self._world = world
        self._read = read
        self._name = name
        # One future for each caller, so that a cancelled caller does not cancel the others.
        self._waiters: list[asyncio.Future[T]] = []
        self._read_task: asyncio.Task[None] | None = None

    async def read(self) -> T:
        """Return the value of a read that began after this call. Raises `LogUnavailable`."""
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self._read_task is None or self._read_task.done():
            self._read_task = self._world.start_task(self._read_until_idle(), name=self._name)
        return await waiter

    async def _read_until_idle(self) -> None:
        """Read until no caller waits."""
        served: list[asyncio.Future[T]] = []
        try:
            while self._waiters:
                served, self._waiters = self._waiters, []
                try:
                    value = await self._read()
                except LogUnavailable as error:
                    _fail(served, error)
                else:
                    for waiter in served:
                        if not waiter.done():
                            waiter.set_result(value)
        finally:
            # The task was cancelled: fail the callers that still wait.
            remaining, self._waiters = [*served, *self._waiters], []
            _fail(remaining, LogUnavailable(f"{self._name} was stopped"))

    async def stop(self) -> None:
        if self._read_task is not None:
            await cancel_tasks(self._read_task)


def _fail(waiters: list[asyncio.Future[T]], error: LogUnavailable) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(LogUnavailable(*error.args))
