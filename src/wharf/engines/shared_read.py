"""One read for many callers.

A read serves every caller who asked before it began, and none who asked later: so its answer is never older than the
question. Callers who ask while one is under way share the next.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from wharf.engines.port import Unavailable
from wharf.world import World

T = TypeVar("T")


class SharedRead(Generic[T]):
    def __init__(self, world: World, read: Callable[[], Awaitable[T]], *, name: str) -> None:
        self._world = world
        self._read = read
        self._name = name
        self._next: asyncio.Future[T] | None = None
        self._reading: asyncio.Task[None] | None = None

    async def ask(self) -> T:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            if self._reading is None or self._reading.done():
                self._reading = self._world.start(self._read_while_asked(), name=self._name)
        # A caller that gives up must not take the answer from the others.
        return await asyncio.shield(self._next)

    async def _read_while_asked(self) -> None:
        asked: asyncio.Future[T] | None = None
        try:
            while self._next is not None:
                asked, self._next = self._next, None
                try:
                    asked.set_result(await self._read())
                except Unavailable as error:
                    _fail(asked, error)
        finally:
            # Ended from outside: whoever still waits is told.
            for waiting in (asked, self._next):
                if waiting is not None and not waiting.done():
                    _fail(waiting, Unavailable(f"{self._name} was stopped"))
            self._next = None

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


def _fail(waiting: asyncio.Future[T], error: Unavailable) -> None:
    waiting.set_exception(error)
    waiting.exception()  # Seen: it may be that every caller has given up.
