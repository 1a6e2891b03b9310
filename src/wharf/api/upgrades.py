"""Websockets: passed on to another region message by message, or answered as the same request without an upgrade would be.

No endpoint of this process speaks over one yet. Whoever tries hears, as the reply to the handshake, what is in the way.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final

from wharf.api.replying import TEXT, headers_of
from wharf.api.together import until_first
from wharf.client.passage import Outgoing, RawHeaders
from wharf.client.sockets import NORMAL, Socket, SocketRefused, may_be_said
from wharf.model.refusal import Refusal
from wharf.server.server import Server
from wharf.wire.errors import STATUS_OF

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

REPLY: Final = "websocket.http.response"
GOING_AWAY: Final = 1001
NO_SOCKET_HERE: Final = b"nothing here speaks over a websocket: ask without an upgrade"


async def answer_as_request(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """The handshake's reply is that of the plain request; where that would be a success, that there is no socket here."""
    await receive()
    reply: list[Message] = []

    async def no_body() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def take(message: Message) -> None:
        reply.append(message)

    await app({**scope, "type": "http", "method": "GET", "scheme": "http"}, no_body, take)
    start, *parts = reply
    if start["status"] < 300:
        await refuse(send, scope, 400, [TEXT], NO_SOCKET_HERE)
        return
    body = b"".join(part.get("body", b"") for part in parts)
    await refuse(send, scope, start["status"], start["headers"], body)


async def refuse(send: Send, scope: Scope, status: int, headers: RawHeaders, body: bytes) -> None:
    if REPLY not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1011, "reason": body.decode(errors="replace")[:100]})
        return
    told = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    length = (b"content-length", str(len(body)).encode())
    await send({"type": f"{REPLY}.start", "status": status, "headers": [*told, length]})
    await send({"type": f"{REPLY}.body", "body": body})


class PassedSocket:
    """One websocket on its way to another region."""

    def __init__(self, server: Server, scope: Scope, receive: Receive, send: Send) -> None:
        self._server = server
        self._scope = scope
        self._receive = receive
        self._send = send

    async def pass_on(self, region: str, outgoing: Outgoing, closing: asyncio.Event) -> None:
        await self._receive()  # That somebody wants to connect.
        subprotocols = self._scope.get("subprotocols") or ()
        try:
            async with self._server.passing.socket_to_region(region, outgoing, subprotocols=subprotocols) as there:
                await self._send({"type": "websocket.accept", "subprotocol": there.subprotocol})
                await self._relay(there, closing)
        except SocketRefused as refused:
            await refuse(self._send, self._scope, refused.status, refused.headers, refused.body)
        except Refusal as refusal:
            await refuse(self._send, self._scope, STATUS_OF[refusal.code], headers_of(refusal), refusal.text.encode())

    async def _relay(self, there: Socket, closing: asyncio.Event) -> None:
        """Until one of the ends closes, or this server does."""
        *_, stopping = await until_first(
            self._server.world,
            taking_there=self._take_there(there),
            bringing_back=self._bring_back(there),
            closing=closing.wait(),
        )
        if not stopping.cancelled():
            with suppress(OSError):  # Who has gone already need not be told.
                await self._send({"type": "websocket.close", "code": GOING_AWAY, "reason": "this server is stopping"})
            await there.close(GOING_AWAY)

    async def _take_there(self, there: Socket) -> None:
        while (message := await self._receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            await there.send(text if text is not None else message["bytes"])
        await there.close(may_be_said(message.get("code") or NORMAL))

    async def _bring_back(self, there: Socket) -> None:
        while (message := await there.receive()) is not None:
            kind = "text" if isinstance(message, str) else "bytes"
            await self._send({"type": "websocket.send", kind: message})
        await self._send({"type": "websocket.close", "code": there.close_code, "reason": there.close_reason})
