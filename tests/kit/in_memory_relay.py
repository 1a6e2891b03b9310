"""The relay in memory: a forwarded request is a direct call of another server's application.

Parts of a reply pass through a queue of length one, so a slow reader slows the sender, as over a socket.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from wharf.contract.client.relay.port import RelayReply, RelayRequest, remove_hop_by_hop_headers
from wharf.contract.client.transport import Unreachable

App = Callable[..., Any]


class InMemoryRelay:
    """A relay to one application, or to an unreachable server if `app` is None. `open_count` counts the requests in flight.

    `is_frozen`: the server accepts requests and never answers.
    """

    def __init__(self, app: App | None) -> None:
        self.app = app
        self.is_frozen = False
        self.open_count = 0
        self.sent: list[RelayRequest] = []

    @asynccontextmanager
    async def open(self, outgoing: RelayRequest) -> AsyncIterator[RelayReply]:
        """Send the request to the application, and yield its reply."""
        if self.app is None:
            raise Unreachable("no server at this address", is_sent=False)
        self.sent.append(outgoing)
        if self.is_frozen:
            await asyncio.Event().wait()
        call = _Call(outgoing)
        running = asyncio.get_running_loop().create_task(call.run(self.app), name="relayed request")
        self.open_count += 1
        parts = call.parts()
        try:
            start = await call.read_start(running)
            yield RelayReply(start["status"], remove_hop_by_hop_headers(start["headers"]), parts)
        finally:
            await parts.aclose()
            self.open_count -= 1
            call.disconnected.set()
            call.discard_parts()
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await asyncio.wait([running])
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def close(self) -> None:
        return


class _Call:
    """A forwarded request, and its reply as it arrives."""

    def __init__(self, outgoing: RelayRequest) -> None:
        self._outgoing = outgoing
        self.disconnected = asyncio.Event()
        self._start: asyncio.Future[MutableMapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)
        self._is_sent = False

    async def run(self, app: App) -> None:
        path, _, query = self._outgoing.target.partition(b"?")
        scope = {
            "type": "http",
            "method": self._outgoing.method,
            "path": path.decode(),
            "raw_path": path,
            "query_string": query,
            "headers": [(name.lower(), value) for name, value in remove_hop_by_hop_headers(self._outgoing.headers)],
            "client": ("127.0.0.1", 40_000),
        }
        await app(scope, self._receive, self._send)

    async def read_start(self, running: "asyncio.Task[None]") -> MutableMapping[str, Any]:
        waiting_for: list[asyncio.Future[Any]] = [running, self._start]
        await asyncio.wait(waiting_for, return_when=asyncio.FIRST_COMPLETED)
        if not self._start.done():
            running.result()
            raise Unreachable("the application ended without a reply", is_sent=True)
        return self._start.result()

    async def parts(self) -> AsyncGenerator[bytes, None]:
        while (part := await self._parts.get()) is not None:
            yield part

    def discard_parts(self) -> None:
        while not self._parts.empty():
            self._parts.get_nowait()

    async def _receive(self) -> MutableMapping[str, Any]:
        if not self._is_sent and self._outgoing.body is not None:
            part = await anext(aiter(self._outgoing.body), None)
            self._is_sent = part is None
            return {"type": "http.request", "body": part or b"", "more_body": not self._is_sent}
        if not self._is_sent:
            self._is_sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._start.set_result(message)
            return
        if self.disconnected.is_set():
            return
        if message.get("body"):
            await self._parts.put(message["body"])
        if not message.get("more_body"):
            await self._parts.put(None)
