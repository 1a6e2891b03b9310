"""The client's transport in memory: a request is a direct call of the ASGI application."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from wharf.cluster.api.app import Api
from wharf.contract.client import ClientReply, ClientRequest, Unreachable


class InMemoryTransport:
    """A transport to one API. `sent` records (method, path, body) of each request.

    `is_away` simulates an unreachable server. A write whose path begins with `lost_path` makes the server unreachable.
    """

    def __init__(self, api: Api) -> None:
        self.api = api
        self.is_away = False
        self.lost_path = ""
        self.sent: list[tuple[str, str, bytes]] = []
        self.replies: list[ClientReply] = []

    async def send(self, request: ClientRequest) -> ClientReply:
        if self.lost_path and request.method != "GET" and request.path.startswith(self.lost_path):
            self.is_away = True
        if self.is_away:
            raise Unreachable("no server at this address", is_sent=False)
        method, path, body = request.method, request.path, request.body
        self.sent.append((method, path, body))
        try:
            async with asyncio.timeout(request.timeout_s):
                query = urlencode(request.query)
                reply = await send_raw(self.api, method, path, query=query, headers=request.headers, body=body)
        except TimeoutError as error:
            raise Unreachable(f"no reply within {request.timeout_s} s", is_sent=True) from error
        self.replies.append(reply)
        return reply

    async def open(self, request: ClientRequest) -> "InMemoryStream":
        if self.is_away:
            raise Unreachable("no server at this address", is_sent=False)
        self.sent.append((request.method, request.path, request.body))
        stream = InMemoryStream(self.api, request)
        await stream.read_start()
        return stream

    async def close(self) -> None:
        return


class InMemoryStream:
    """A streamed reply. The application runs concurrently with the reader until either ends."""

    def __init__(self, api: Api, request: ClientRequest) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.disconnected = asyncio.Event()
        self._within_s = request.timeout_s  # For the head, then for each chunk.
        self._request = request
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._is_read = False
        scope = build_scope(request.method, request.path, query=urlencode(request.query), headers=request.headers)
        self._task = asyncio.get_running_loop().create_task(self._run(api, scope), name=f"stream {request.path}")

    async def _run(self, api: Api, scope: dict[str, Any]) -> None:
        try:
            await api(scope, self._receive, self._messages.put)
        finally:
            self._messages.put_nowait(None)

    async def _receive(self) -> Any:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def _message(self) -> Any:
        try:
            async with asyncio.timeout(self._within_s):
                return await self._messages.get()
        except TimeoutError as error:
            raise Unreachable(f"no message within {self._within_s} s", is_sent=True) from error

    async def read_start(self) -> None:
        message = await self._message()
        assert message is not None, "the application ended without a reply"
        self._within_s = self._request.chunk_timeout_s or self._within_s
        self.status = message["status"]
        self.headers = {name.decode(): value.decode() for name, value in message["headers"]}

    async def read_chunk(self) -> bytes:
        while (message := await self._message()) is not None:
            if message["body"]:
                chunk: bytes = message["body"]
                return chunk
            if not message.get("more_body", False):
                return b""
        return b""

    def break_connection(self) -> None:
        """Break the connection in the middle of the reply."""
        self.disconnected.set()

    async def close(self) -> None:
        self.disconnected.set()
        await asyncio.gather(self._task, return_exceptions=True)


async def send_raw(
    api: Api,
    method: str,
    path: str,
    *,
    query: str = "",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    disconnected: asyncio.Event | None = None,
) -> ClientReply:
    """Send one raw request and return its reply. Setting `disconnected` simulates a disconnect of the caller."""
    sent: list[Any] = []
    disconnected = disconnected or asyncio.Event()
    is_read = False

    async def receive() -> Any:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await api(build_scope(method, path, query=query, headers=headers or {}), receive, send)
    start, *parts = sent
    body_sent = b"".join(part["body"] for part in parts)
    return ClientReply(start["status"], {n.decode(): v.decode() for n, v in start["headers"]}, body_sent)


def build_scope(method: str, path: str, *, query: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the ASGI scope of a request."""
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 40_000),
    }
