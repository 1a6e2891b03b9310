"""Relaying of requests and websockets for another region, unchanged in both directions.

The relay wraps the application and reads nothing but the `region` parameter. It forwards bodies of any size, blocking
queries, streams and refusals. If the caller disconnects, the connection to the other region is closed too.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, suppress
from typing import Final
from urllib.parse import quote

from wharf.cluster.api.asgi import App, HeaderList, Message, Receive, Scope, Send
from wharf.cluster.api.relay.region_slots import RegionSlots
from wharf.cluster.api.replies.cors import build_cors_headers, build_preflight_headers, list_cors_methods
from wharf.cluster.api.replies.sender import build_extra_headers, build_refusal_headers
from wharf.cluster.api.requests.body import wait_for_disconnect
from wharf.cluster.api.requests.parameters import parse_query
from wharf.cluster.api.websockets.sockets import GOING_AWAY_CODE, MAX_REASON_BYTES, STOPPING_TEXT, refuse_handshake
from wharf.cluster.server.region_replies import InvalidRegionReply
from wharf.cluster.server.server import Server
from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.relay.websockets import (
    CLOSE_INTERNAL_ERROR,
    CLOSE_NORMAL,
    HandshakeRefused,
    WebSocket,
    to_sendable_close_code,
)
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.message_texts import format_message
from wharf.contract.model.refusal import Overloaded, Refusal, RefusalCode
from wharf.contract.wire.credentials import read_credentials
from wharf.contract.wire.errors import STATUS_BY_CODE
from wharf.world.log_limit import LogLimit
from wharf.world.tasks import run_until_first

log = logging.getLogger(__name__)

BAD_GATEWAY_STATUS: Final = 502
EMPTY_CONTENT_LENGTHS: Final = frozenset((b"", b"0"))


class RegionRelay:
    """ASGI middleware that relays requests for other regions.

    `app` handles requests for this region and unknown regions.
    """

    def __init__(
        self,
        app: App,
        server: Server,
        slots: RegionSlots,
        *,
        extra_headers: Mapping[str, str] | None = None,
        is_nomad_compatible: bool = False,
    ) -> None:
        """`slots` also count the requests that `app` relays.

        `extra_headers` are added to every relayed reply, as to all replies of this server."""
        self._is_nomad_compatible = is_nomad_compatible
        self._extra_headers = build_extra_headers(extra_headers or {})
        self._app = app
        self._server = server
        self._closing = asyncio.Event()
        self._incomplete_replies = LogLimit(server.world)
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Most requests name no region: skip parsing their query.
        if scope["type"] == "lifespan" or b"region=" not in scope["query_string"]:
            await self._app(scope, receive, send)
            return
        region = parse_query(scope["query_string"]).get("region", "")
        is_own = region in ("", self._server.identity.region)
        if is_own or region not in self._server.relay.region_names or not self._has_clear_credentials(scope):
            await self._app(scope, receive, send)  # Refuses requests whose credentials contradict each other.
            return
        with ExitStack() as exit_stack:
            try:
                exit_stack.enter_context(self._slots.hold(region, scope))
            except Overloaded as refusal:
                await self._refuse(refusal, scope, receive, send)
                return
            await self._relay(region, scope, receive, send)

    async def _relay(self, region: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay a request or a websocket to the region until it ends."""
        if scope["type"] == "websocket":
            request = RelayRequest("GET", get_request_target(scope), scope["headers"])
            await RelayedSocket(self._server, scope, receive, send).relay(region, request, self._closing)
        else:
            await self._relay_request(region, scope, receive, send)

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or the handshake of a websocket before anything of it is relayed."""
        if scope["type"] != "websocket":
            await _send_refusal(send, refusal)
            return
        await receive()  # The `websocket.connect` message.
        body = format_message(refusal.text).encode()
        await refuse_handshake(send, scope, STATUS_BY_CODE[refusal.code], build_refusal_headers(refusal), body)

    def close(self) -> None:
        """End all relayed requests because this server stops."""
        self._closing.set()

    def _has_clear_credentials(self, scope: Scope) -> bool:
        """Return whether all servers read the same credentials from the headers."""
        try:
            read_credentials(scope["headers"], is_nomad_compatible=self._is_nomad_compatible)
        except Refusal:
            return False
        return True

    async def _relay_request(self, region: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay the request until its reply is complete, the client disconnects, or this server stops.

        If this server stops before the reply has begun, the client gets a refusal.
        """
        caller = _CallerReceiver(receive)
        has_begun = False

        async def send_reply(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        request = RelayRequest(scope["method"], get_request_target(scope), scope["headers"], caller.open_body(scope))
        relaying, _, closing = await run_until_first(
            self._server.world,
            relaying=self._relay_reply(region, request, send_reply, self._build_own_headers(scope)),
            caller=caller.receive_all(),
            closing=self._closing.wait(),
        )
        if not relaying.cancelled():
            relaying.result()
        elif not closing.cancelled() and not has_begun:
            await _send_refusal(send, Refusal(RefusalCode.UNAVAILABLE, f"{STOPPING_TEXT}: use another server"))

    def _build_own_headers(self, scope: Scope) -> HeaderList:
        """Return the headers that this server's configuration adds, and its permissions for pages of other origins."""
        path = get_request_target(scope).partition(b"?")[0].decode("latin-1")
        methods = list_cors_methods(path)
        if not methods:
            return self._extra_headers
        headers = dict(scope["headers"])
        is_preflight = scope["method"] == "OPTIONS"
        cors_headers = build_preflight_headers(headers, methods) if is_preflight else build_cors_headers(headers)
        return [*self._extra_headers, *cors_headers]

    async def _relay_reply(self, region: str, request: RelayRequest, send: Send, own_headers: HeaderList) -> None:
        """Send the request to the region, and each part of its reply to the client as it arrives.

        `own_headers` are added to the reply.
        """
        try:
            reply = await self._server.relay.send_to_region(region, request)
        except Refusal as refusal:
            await _send_refusal(send, refusal)
            return
        headers = [*reply.headers, *own_headers]
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            async for part in reply:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except Unreachable as error:
            # The body stays without its end, so the caller knows that the reply is incomplete.
            left_out = self._incomplete_replies.count_event(region)
            if left_out is not None:
                log.warning(
                    "relayed reply incomplete region=%s earlier_replies=%d", region, left_out, extra={"why": str(error)}
                )
        finally:
            await reply.aclose()


class RelayedSocket:
    """One websocket that is relayed to another region."""

    def __init__(self, server: Server, scope: Scope, receive: Receive, send: Send) -> None:
        self._server = server
        self._scope = scope
        self._receive = receive
        self._send = send

    async def relay(self, region: str, request: RelayRequest, closing_event: asyncio.Event) -> None:
        """Open the websocket at the other region, accept the client's, and relay messages until one side closes.

        Also ends when `closing_event` is set. If the other region refuses, the client's handshake is rejected.
        """
        await self._receive()  # The `websocket.connect` message.
        subprotocols = self._scope.get("subprotocols") or ()
        try:
            async with self._server.relay.open_socket_to_region(region, request, subprotocols=subprotocols) as remote:
                await self._send({"type": "websocket.accept", "subprotocol": remote.subprotocol})
                await self._relay_messages(remote, closing_event)
        except Unreachable as error:  # Only after the handshake: the server of the region does not reply any more.
            with suppress(OSError):  # The caller may have disconnected already.
                await self._send(
                    {"type": "websocket.close", "code": CLOSE_INTERNAL_ERROR, "reason": str(error)[:MAX_REASON_BYTES]}
                )
        except HandshakeRefused as error:
            await refuse_handshake(self._send, self._scope, error.status, error.headers, error.body)
        except Refusal as refusal:
            await refuse_handshake(
                self._send,
                self._scope,
                BAD_GATEWAY_STATUS if isinstance(refusal, InvalidRegionReply) else STATUS_BY_CODE[refusal.code],
                build_refusal_headers(refusal),
                format_message(refusal.text).encode(),
            )

    async def _relay_messages(self, remote: WebSocket, closing_event: asyncio.Event) -> None:
        """Relay messages until one side closes the websocket, or this server stops."""
        *_, closing = await run_until_first(
            self._server.world,
            to_remote=self._relay_to_remote(remote),
            to_caller=self._relay_to_caller(remote),
            closing=closing_event.wait(),
        )
        if not closing.cancelled():
            with suppress(OSError):  # The caller may have disconnected already.
                await self._send({"type": "websocket.close", "code": GOING_AWAY_CODE, "reason": STOPPING_TEXT})
            await remote.close(GOING_AWAY_CODE)

    async def _relay_to_remote(self, remote: WebSocket) -> None:
        """Relay messages of the client until it disconnects, then close the websocket to the other region."""
        while (message := await self._receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            await remote.send(text if text is not None else message["bytes"])
        await remote.close(to_sendable_close_code(message.get("code") or CLOSE_NORMAL))

    async def _relay_to_caller(self, remote: WebSocket) -> None:
        """Relay messages of the other region until it closes the websocket, then close that of the client."""
        while (message := await remote.receive()) is not None:
            kind = "text" if isinstance(message, str) else "bytes"
            await self._send({"type": "websocket.send", kind: message})
        await self._send({"type": "websocket.close", "code": remote.close_code, "reason": remote.close_reason})


class _CallerReceiver:
    """Receives the ASGI messages of the client: the parts of its body, and its disconnect.

    At most one part waits in memory.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)

    async def receive_all(self) -> None:
        """Queue the parts of the body, then wait until the client disconnects."""
        while (message := await self._receive())["type"] != "http.disconnect":
            await self._parts.put(message.get("body", b""))
            if not message.get("more_body"):
                await self._parts.put(None)
                await wait_for_disconnect(self._receive)
                return

    def open_body(self, scope: Scope) -> AsyncIterator[bytes] | None:
        """Return the parts of the body as they arrive, or `None` if the request has none."""
        headers = dict(scope["headers"])
        if headers.get(b"content-length", b"") in EMPTY_CONTENT_LENGTHS and b"transfer-encoding" not in headers:
            self._parts = asyncio.Queue(maxsize=2)  # Nothing reads the only part, which is empty, and the end.
            return None
        return self._iterate_body()

    async def _iterate_body(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None:
            if part:
                yield part


def get_request_target(scope: Scope) -> bytes:
    """Return path and query of the ASGI scope as received, still percent-encoded."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query: bytes = scope["query_string"]
    return path.partition(b"?")[0] + (b"?" + query if query else b"")


async def _send_refusal(send: Send, refusal: Refusal) -> None:
    """Send the refusal to the client as a whole HTTP reply."""
    body = format_message(refusal.text).encode()
    headers = [*build_refusal_headers(refusal), (b"content-length", str(len(body)).encode())]
    status = BAD_GATEWAY_STATUS if isinstance(refusal, InvalidRegionReply) else STATUS_BY_CODE[refusal.code]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
