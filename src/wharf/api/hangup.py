"""That a caller hangs up while it waits for its answer: told by the port where it can, else seen by receiving."""

import asyncio
from collections.abc import Callable

from wharf.api.bodies import Receive, until_gone
from wharf.api.connection import Connection
from wharf.world import World


class Hangup:
    __slots__ = ("_connection", "_receive", "_task", "_world")

    def __init__(self, world: World, receive: Receive, connection: Connection | None) -> None:
        self._world = world
        self._receive = receive
        self._connection = connection
        self._task: asyncio.Task[None] | None = None

    def tell(self, call: Callable[[], None]) -> None:
        """Call this when it happens, until `end`."""
        if self._connection is not None and self._connection.on_gone(call):
            return
        self._connection = None
        self._task = self._world.start(until_gone(self._receive), name="caller")
        self._task.add_done_callback(lambda _: call())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif self._connection is not None:
            self._connection.on_gone(None)
