"""Requests for another region: passed on as they came, and answered as they are answered there.

Stands around the application and looks at nothing but the region. Everything passes: bodies of any size, blocking
queries, streams, refusals. Who hangs up here hangs up there.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from wharf.cluster.api.replies.sender import build_refusal_headers
from wharf.cluster.api.requests.parameters import parse_query
from wharf.cluster.api.websockets.handshake import GOING_AWAY_CODE, Receive, Scope, Send, refuse_handshake
from wharf.cluster.server.server import Server
from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.relay.websockets import CLOSE_NORMAL, HandshakeRefused, WebSocket, to_sendable_close_code
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.errors import STATUS_BY_CODE
from wharf.world.tasks import run_until_first


class RelayedSocket:
    """One websocket on its way to another region."""

    def __init__(self, server: Server, scope: Scope, receive: Receive, send: Send) -> None:
        self._server = server
        self._scope = scope
        self._receive = receive
        self._send = send

    async def relay(self, region: str, outgoing: RelayRequest, closing_event: asyncio.Event) -> None:
        await self._receive()  # That somebody wants to connect.
        subprotocols = self._scope.get("subprotocols") or ()
        try:
            async with self._server.relay.open_socket_to_region(region, outgoing, subprotocols=subprotocols) as there:
                await self._send({"type": "websocket.accept", "subprotocol": there.subprotocol})
                await self._relay(there, closing_event)
        except HandshakeRefused as refused:
            await refuse_handshake(self._send, self._scope, refused.status, refused.headers, refused.body)
        except Refusal as refusal:
            await refuse_handshake(
                self._send,
                self._scope,
                STATUS_BY_CODE[refusal.code],
                build_refusal_headers(refusal),
                refusal.text.encode(),
            )

    async def _relay(self, there: WebSocket, closing: asyncio.Event) -> None:
        """Until one of the ends closes, or this server does."""
        *_, stopping = await run_until_first(
            self._server.world,
            taking_there=self._take_there(there),
            bringing_back=self._bring_back(there),
            closing=closing.wait(),
        )
        if not stopping.cancelled():
            with suppress(OSError):  # Who has gone already need not be told.
                await self._send(
                    {"type": "websocket.close", "code": GOING_AWAY_CODE, "reason": "this server is stopping"}
                )
            await there.close(GOING_AWAY_CODE)

    async def _take_there(self, there: WebSocket) -> None:
        while (message := await self._receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            await there.send(text if text is not None else message["bytes"])
        await there.close(to_sendable_close_code(message.get("code") or CLOSE_NORMAL))

    async def _bring_back(self, there: WebSocket) -> None:
        while (message := await there.receive()) is not None:
            kind = "text" if isinstance(message, str) else "bytes"
            await self._send({"type": "websocket.send", kind: message})
        await self._send({"type": "websocket.close", "code": there.close_code, "reason": there.close_reason})


log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

EMPTY_CONTENT_LENGTHS: Final = frozenset((b"", b"0"))


class RegionRelay:
    def __init__(self, app: App, server: Server) -> None:
        self._app = app
        self._server = server
        self._closing = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Most requests name no region, and must not pay for those that do.
        if scope["type"] == "lifespan" or b"region=" not in scope["query_string"]:
            await self._app(scope, receive, send)
            return
        region = parse_query(scope["query_string"]).get("region", "")
        if region in ("", self._server.identity.region) or region not in self._server.relay.region_names:
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            outgoing = RelayRequest("GET", get_request_target(scope), scope["headers"])
            await RelayedSocket(self._server, scope, receive, send).relay(region, outgoing, self._closing)
        else:
            await self._pass_on(region, scope, receive, send)

    def close(self) -> None:
        """This server stops: whoever waits for another region asks another server."""
        self._closing.set()

    async def _pass_on(self, region: str, scope: Scope, receive: Receive, send: Send) -> None:
        world, caller = self._server.world, _Caller(receive)
        has_begun = False

        async def send_noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        outgoing = RelayRequest(scope["method"], get_request_target(scope), scope["headers"], caller.body_of(scope))
        relaying, _, closing = await run_until_first(
            world,
            passing_on=self._relay(region, outgoing, send_noting),
            caller=caller.listen(),
            closing=self._closing.wait(),
        )
        if not relaying.cancelled():
            relaying.result()
        elif not closing.cancelled() and not has_begun:
            await _say(send, Refusal(RefusalCode.UNAVAILABLE, "this server is stopping; ask another"))

    async def _relay(self, region: str, outgoing: RelayRequest, send: Send) -> None:
        try:
            arrived = await self._server.relay.send_to_region(region, outgoing)
        except Refusal as refusal:
            await _say(send, refusal)
            return
        try:
            await send({"type": "http.response.start", "status": arrived.status, "headers": list(arrived.headers)})
            async for part in arrived:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except Unreachable as error:
            # Without an end to its body the caller knows that the reply is not whole.
            log.warning("a reply of region %s broke off", region, extra={"why": str(error)})
        finally:
            await arrived.aclose()


class _Caller:
    """The one reader of what the caller sends: its body, part by part as it is taken, and that it hangs up."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)

    async def listen(self) -> None:
        """Until the caller hangs up."""
        is_over = False
        while (message := await self._receive())["type"] != "http.disconnect":
            if is_over:
                continue
            await self._parts.put(message.get("body", b""))
            is_over = not message.get("more_body")
            if is_over:
                await self._parts.put(None)

    def body_of(self, scope: Scope) -> AsyncIterator[bytes] | None:
        headers = dict(scope["headers"])
        if headers.get(b"content-length", b"") in EMPTY_CONTENT_LENGTHS and b"transfer-encoding" not in headers:
            self._parts = asyncio.Queue()  # Nobody takes what is empty.
            return None
        return self._body()

    async def _body(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None:
            if part:
                yield part


def get_request_target(scope: Scope) -> bytes:
    """Path and query as they came."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query: bytes = scope["query_string"]
    return path.partition(b"?")[0] + (b"?" + query if query else b"")


async def _say(send: Send, refusal: Refusal) -> None:
    body = refusal.text.encode()
    headers = [*build_refusal_headers(refusal), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": STATUS_BY_CODE[refusal.code], "headers": headers})
    await send({"type": "http.response.body", "body": body})
