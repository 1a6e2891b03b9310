"""The websocket transport in memory: a direct call of a server's application."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.relay.websockets import CLOSE_NORMAL, HandshakeRefused, WebSocket
from wharf.contract.client.transport import Unreachable

App = Callable[..., Any]


class InMemorySockets:
    """Websockets to one application, or to an unreachable server if `app` is None. `is_frozen`: handshakes hang."""

    def __init__(self, app: App | None) -> None:
        self.app = app
        self.is_frozen = False
        self.open: list[_InMemoryWebSocket] = []

    @asynccontextmanager
    async def open_socket(
        self, outgoing: RelayRequest, *, subprotocols: Sequence[str] = ()
    ) -> AsyncIterator[WebSocket]:
        """Open a websocket at the application. Raises `HandshakeRefused` if it rejects the handshake."""
        if self.app is None:
            raise Unreachable("no server at this address", is_sent=False)
        if self.is_frozen:
            await asyncio.Event().wait()
        websocket = _InMemoryWebSocket(self.app, outgoing, subprotocols)
        await websocket.shake_hands()
        self.open.append(websocket)
        try:
            yield websocket
        finally:
            self.open.remove(websocket)
            await websocket.disconnect()


class _InMemoryWebSocket:
    """A websocket whose other end is an application in this process."""

    def __init__(self, app: App, outgoing: RelayRequest, subprotocols: Sequence[str]) -> None:
        path, _, query = outgoing.target.partition(b"?")
        scope: dict[str, Any] = {
            "type": "websocket", "path": path.decode(), "raw_path": path, "query_string": query,
            "headers": [*outgoing.headers], "subprotocols": [*subprotocols], "scheme": "ws",
            "extensions": {"websocket.http.response": {}}, "client": None, "server": None,
        }  # fmt: skip
        self.subprotocol: str | None = None
        self.close_code = CLOSE_NORMAL
        self.close_reason = ""
        self._caller_messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._app_messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._caller_messages.put_nowait({"type": "websocket.connect"})
        self._running = asyncio.get_running_loop().create_task(
            app(scope, self._caller_messages.get, self._app_messages.put)
        )

    async def shake_hands(self) -> None:
        first = await self._app_messages.get()
        if first["type"] == "websocket.accept":
            self.subprotocol = first.get("subprotocol")
            return
        body = await self._app_messages.get()
        await self._running
        raise HandshakeRefused(first["status"], first["headers"], body["body"])

    async def receive(self) -> str | bytes | None:
        message = await self._app_messages.get()
        if message["type"] == "websocket.close":
            self.close_code = message["code"]
            self.close_reason = message.get("reason", "")
            return None
        text: str | None = message.get("text")
        data: bytes | None = message.get("bytes")
        return text if text is not None else data

    async def send(self, message: str | bytes) -> None:
        self._caller_messages.put_nowait(
            {"type": "websocket.receive", "text" if isinstance(message, str) else "bytes": message}
        )

    async def close(self, code: int) -> None:
        self._caller_messages.put_nowait({"type": "websocket.disconnect", "code": code})

    def abort(self) -> None:
        self.cut()

    def cut(self) -> None:
        """Break the connection without a close message from either end."""
        self._caller_messages.put_nowait({"type": "websocket.disconnect", "code": 1006})
        self._app_messages.put_nowait({"type": "websocket.close", "code": 1006})

    async def disconnect(self) -> None:
        await self.close(CLOSE_NORMAL)
        await asyncio.wait([self._running], timeout=5)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
