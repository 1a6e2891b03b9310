"""What the HTTP port may offer beside ASGI, so that short answers and long waits cost less. Without it all works the same.

That a caller hangs up while it waits for its answer: told by the port where it can, else seen by receiving.
"""

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final, Protocol

from wharf.cluster.api.requests.body import Receive, wait_for_disconnect
from wharf.world import World

CONNECTION_EXTENSION: Final = "wharf.connection"

Headers = Sequence[tuple[bytes, bytes]]


class HttpConnection(Protocol):
    """The connection that a request came by, for as long as that request is not answered."""

    def try_write_reply(self, status: int, headers: Headers, body: bytes) -> bool:
        """The whole reply in one step. False: nothing was written; send it the long way."""
        ...

    def set_disconnect_callback(self, callback: Callable[[], None] | None) -> bool:
        """Call this when the caller hangs up; None: call nothing. False: that cannot be told; receive, and see."""
        ...


def take_connection(scope: MutableMapping[str, Any]) -> HttpConnection | None:
    """Taken out of the scope, which would otherwise hold on to itself through it."""
    extensions = scope.pop("extensions", None)
    connection: HttpConnection | None = extensions.get(CONNECTION_EXTENSION) if extensions else None
    return connection


class DisconnectWatcher:
    __slots__ = ("_connection", "_receive", "_task", "_world")

    def __init__(self, world: World, receive: Receive, connection: HttpConnection | None) -> None:
        self._world = world
        self._receive = receive
        self._connection = connection
        self._task: asyncio.Task[None] | None = None

    def start(self, callback: Callable[[], None]) -> None:
        """Call this when it happens, until `end`."""
        if self._connection is not None and self._connection.set_disconnect_callback(callback):
            return
        self._connection = None
        self._task = self._world.start_task(wait_for_disconnect(self._receive), name="caller")
        self._task.add_done_callback(lambda _: callback())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif self._connection is not None:
            self._connection.set_disconnect_callback(None)
