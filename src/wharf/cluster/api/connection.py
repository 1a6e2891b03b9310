"""Optional ASGI extensions of the HTTP server that make short replies and long waits cheaper, and disconnect detection.

Without the extensions the API works the same: it sends replies as ASGI messages and detects disconnects by receiving.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from wharf.cluster.api.asgi import Receive, Scope
from wharf.cluster.api.requests.body import wait_for_disconnect
from wharf.world import World

CONNECTION_EXTENSION: Final = "wharf.connection"
WEBSOCKET_EXTENSION: Final = "wharf.websocket"

Headers = Sequence[tuple[bytes, bytes]]


class HttpConnection(Protocol):
    """The connection of a request, as an optional extension of the ASGI server. Valid until the reply is sent."""

    def try_write_reply(self, status: int, headers: Headers, body: bytes) -> bool:
        """Write the whole reply at once and return true.

        Return false if nothing was written: then send ASGI messages.
        """
        ...

    def set_disconnect_callback(self, callback: Callable[[], None] | None) -> bool:
        """Set the function to call when the client disconnects; `None` removes it. Return whether that is possible.

        If not, a disconnect is detected only by receiving ASGI messages.
        """
        ...


class WebSocketConnection(Protocol):
    """The connection of a websocket, as an optional extension of the ASGI server."""

    disconnected_event: asyncio.Event
    """Set when the connection has ended, also while messages of the client wait to be received."""

    def stop_counting(self) -> None:
        """Stop counting the connection for its client address, because its client is a registered node."""
        ...

    def abort(self) -> None:
        """Drop the connection at once."""
        ...


def take_connection(scope: Scope) -> HttpConnection | None:
    """Return the connection extension of the ASGI scope, or `None` if the HTTP server offers none.

    Removes all extensions from the scope, because the connection would form a reference cycle with it.
    """
    extensions = scope.pop("extensions", None)
    connection: HttpConnection | None = extensions.get(CONNECTION_EXTENSION) if extensions else None
    return connection


class DisconnectWatcher:
    """Reports when the caller disconnects, by the connection's callback or else by receiving ASGI messages."""

    __slots__ = ("_connection", "_receive", "_task", "_world")

    def __init__(self, world: World, receive: Receive, connection: HttpConnection | None) -> None:
        self._world = world
        self._receive = receive
        self._connection = connection
        self._task: asyncio.Task[None] | None = None

    def start(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the client disconnects, until `stop` is called."""
        if self._connection is not None and self._connection.set_disconnect_callback(callback):
            return
        self._connection = None
        self._task = self._world.start_task(wait_for_disconnect(self._receive), name="caller")
        self._task.add_done_callback(lambda _: callback())

    def stop(self) -> None:
        """Stop watching. The callback is not called any more."""
        if self._task is not None:
            self._task.cancel()
        elif self._connection is not None:
            self._connection.set_disconnect_callback(None)
