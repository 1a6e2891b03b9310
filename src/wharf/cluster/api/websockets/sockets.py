"""Websocket connections to callers, and rejection of their handshakes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from wharf.cluster.api.asgi import Message, Receive, Scope, Send
from wharf.cluster.api.connection import WEBSOCKET_EXTENSION, WebSocketConnection
from wharf.cluster.api.replies.sender import build_refusal_headers
from wharf.cluster.api.requests.request import Request
from wharf.contract.client.relay.port import RawHeaders
from wharf.contract.model.message_texts import format_message
from wharf.contract.model.refusal import Refusal
from wharf.contract.wire.errors import STATUS_BY_CODE

NORMAL_CLOSE_CODE: Final = 1000
GOING_AWAY_CODE: Final = 1001
POLICY_VIOLATION_CODE: Final = 1008
INTERNAL_ERROR_CODE: Final = 1011
LOST_CODES: Final = (1005, 1006)
"""What HTTP servers report if no close frame with a code has arrived."""
MAX_REASON_BYTES: Final = 120
"""Limits the reason of a close frame, which the websocket protocol limits to 123 bytes."""
HANDSHAKE_REPLY_EXTENSION: Final = "websocket.http.response"
NEEDS_TOKEN_KEY: Final = "wharf.needs_token"
"""The key in the ASGI scope that is set if a foreign web page opens the websocket: its first message must contain a token."""
STOPPING_TEXT: Final = "this server is stopping"


class CallerSocket:
    """A websocket connection to the caller, starting with its handshake."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, closing_event: asyncio.Event) -> None:
        self.closing_event = closing_event
        self.needs_token: bool = scope.get(NEEDS_TOKEN_KEY, False)
        """Whether the handler must refuse a caller without a token, although access control permits it."""
        self.source: str = (scope.get("client") or ("",))[0]
        """The caller's address; empty for other processes of this server."""
        self.path: str = scope.get("path", "")
        self._scope = scope
        self._receive = receive
        self._send = send
        self._sending = asyncio.Lock()
        self._connection: WebSocketConnection | None = (scope.get("extensions") or {}).get(WEBSOCKET_EXTENSION)
        self._disconnected_event = asyncio.Event()
        self.is_open = False
        self.is_lost = False
        """Whether the connection ended without a close frame of the caller, which may be frozen or unreachable."""

    async def accept(self) -> None:
        """Complete the handshake: the websocket is open after this."""
        await self._receive()  # The `websocket.connect` message.
        await self._send({"type": "websocket.accept"})
        self.is_open = True

    async def refuse(self, refusal: Refusal) -> None:
        """Reject the handshake with the refusal, or close the websocket with it if it is open already."""
        status, text = STATUS_BY_CODE[refusal.code], format_message(refusal.text)
        if self.is_open:
            await self.close(POLICY_VIOLATION_CODE if status < 500 else INTERNAL_ERROR_CODE, text)
            return
        await self._receive()
        await refuse_handshake(self._send, self._scope, status, build_refusal_headers(refusal), text.encode())

    async def wait_disconnected(self) -> None:
        """Wait until the caller has disconnected, also while messages of the caller wait to be received.

        Without the extension of the HTTP server that reports this, waits until the websocket is found closed by `send`.
        """
        await (self._disconnected_event if self._connection is None else self._connection.disconnected_event).wait()

    def stop_counting(self) -> None:
        """Stop counting the connection for the caller's address, because the caller is a registered node."""
        if self._connection is not None:
            self._connection.stop_counting()

    async def receive(self) -> str | bytes | None:
        """Return the next message, or `None` once the client has closed the websocket."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self.is_open = False
            self.is_lost = message.get("code") in LOST_CODES
            return None
        text: str | None = message.get("text")
        if text is not None:
            return text
        data: bytes = message["bytes"]
        return data

    async def send(self, message: str | bytes) -> None:
        """Send a message. Does nothing if the websocket is closed."""
        kind = "text" if isinstance(message, str) else "bytes"
        async with self._sending:  # Several tasks may send; messages must not interleave.
            if self.is_open:
                await self._send_message({"type": "websocket.send", kind: message})

    async def close(self, code: int, reason: str = "") -> None:
        """Close the websocket with a code and a reason, which is shortened to the allowed size.

        Does nothing if it is closed.
        """
        async with self._sending:
            if self.is_open:
                self.is_open = False
                await self._send_message({"type": "websocket.close", "code": code, "reason": _shorten_reason(reason)})

    async def close_at_once(self, code: int, reason: str = "") -> None:
        """Close the websocket and its connection without waiting for the caller, which may neither read nor answer.

        Without the extension of the HTTP server for this, the caller has the usual time to answer.
        """
        if self._connection is None:
            await self.close(code, reason)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(0):  # The caller gets the code and the reason if they can be sent now.
                await self.close(code, reason)
        self._connection.abort()

    async def _send_message(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:  # ASGI servers raise this when the caller has disconnected.
            self.is_open = False
            self._disconnected_event.set()


def _shorten_reason(reason: str) -> str:
    """Return the reason, shortened to the size limit of a close frame."""
    if len(reason.encode()) <= MAX_REASON_BYTES:
        return reason
    return reason.encode()[: MAX_REASON_BYTES - len("…".encode())].decode(errors="ignore") + "…"


WebSocketHandler = Callable[[Request, CallerSocket], Awaitable[None]]
"""Handles an authorized request until its websocket closes. Raises `Refusal`."""

WebSocketHandlers = Mapping[str, WebSocketHandler]


async def refuse_handshake(send: Send, scope: Scope, status: int, headers: RawHeaders, body: bytes) -> None:
    """Reject a websocket handshake with an HTTP reply. If the ASGI server cannot send one, close the websocket."""
    if HANDSHAKE_REPLY_EXTENSION not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1011, "reason": body.decode(errors="replace")[:100]})
        return
    reply_headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    length = (b"content-length", str(len(body)).encode())
    await send({"type": f"{HANDSHAKE_REPLY_EXTENSION}.start", "status": status, "headers": [*reply_headers, length]})
    await send({"type": f"{HANDSHAKE_REPLY_EXTENSION}.body", "body": body})
