"""One read for many callers.

A read serves every caller who asked before it began, and none who asked later: so its answer is never older than the
question. Callers who ask while one is under way share the next.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from wharf.cluster.engines.port import LogUnavailable
from wharf.world import World

T = TypeVar("T")


class SharedRead(Generic[T]):
    def __init__(self, world: World, read: Callable[[], Awaitable[T]], *, name: str) -> None:
        self._world = world
        self._read = read
        self._name = name
        # A future for each caller: one who gives up takes the answer from nobody, and nothing is cheaper to wake.
        self._asking: list[asyncio.Future[T]] = []
        self._reading: asyncio.Task[None] | None = None

    async def read(self) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asking.append(answer)
        if self._reading is None or self._reading.done():
            self._reading = self._world.start_task(self._read_while_asked(), name=self._name)
        return await answer

    async def _read_while_asked(self) -> None:
        served: list[asyncio.Future[T]] = []
        try:
            while self._asking:
                served, self._asking = self._asking, []
                try:
                    found = await self._read()
                except LogUnavailable as error:
                    _fail(served, error)
                else:
                    for answer in served:
                        if not answer.done():
                            answer.set_result(found)
        finally:
            # Ended from outside: whoever still waits is told.
            left, self._asking = [*served, *self._asking], []
            _fail(left, LogUnavailable(f"{self._name} was stopped"))

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


def _fail(asking: list[asyncio.Future[T]], error: LogUnavailable) -> None:
    for answer in asking:
        if not answer.done():
            answer.set_exception(LogUnavailable(*error.args))
