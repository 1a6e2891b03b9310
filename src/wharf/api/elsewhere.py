"""Requests for another region: passed on as they came, and answered as they are answered there.

Stands around the application and looks at nothing but the region. Everything passes: bodies of any size, blocking
queries, streams, refusals. Who hangs up here hangs up there.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import quote

from wharf.api.parameters import parse_query
from wharf.api.replying import headers_of
from wharf.api.together import until_first
from wharf.api.upgrades import PassedSocket
from wharf.client.exchange import Unreachable
from wharf.client.passage import Outgoing
from wharf.model.refusal import Code, Refusal
from wharf.server.server import Server
from wharf.wire.errors import STATUS_OF

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

NO_BODY: Final = frozenset((b"", b"0"))


class Elsewhere:
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
        if region in ("", self._server.identity.region) or region not in self._server.passing.regions:
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            outgoing = Outgoing("GET", target_of(scope), scope["headers"])
            await PassedSocket(self._server, scope, receive, send).pass_on(region, outgoing, self._closing)
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

        outgoing = Outgoing(scope["method"], target_of(scope), scope["headers"], caller.body_of(scope))
        relaying, _, closing = await until_first(
            world,
            passing_on=self._relay(region, outgoing, send_noting),
            caller=caller.listen(),
            closing=self._closing.wait(),
        )
        if not relaying.cancelled():
            relaying.result()
        elif not closing.cancelled() and not has_begun:
            await _say(send, Refusal(Code.UNAVAILABLE, "this server is stopping; ask another"))

    async def _relay(self, region: str, outgoing: Outgoing, send: Send) -> None:
        try:
            arrived = await self._server.passing.to_region(region, outgoing)
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
        if headers.get(b"content-length", b"") in NO_BODY and b"transfer-encoding" not in headers:
            self._parts = asyncio.Queue()  # Nobody takes what is empty.
            return None
        return self._body()

    async def _body(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None:
            if part:
                yield part


def target_of(scope: Scope) -> bytes:
    """Path and query as they came."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query: bytes = scope["query_string"]
    return path.partition(b"?")[0] + (b"?" + query if query else b"")


async def _say(send: Send, refusal: Refusal) -> None:
    body = refusal.text.encode()
    headers = [*headers_of(refusal), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": STATUS_OF[refusal.code], "headers": headers})
    await send({"type": "http.response.body", "body": body})
