"""Websocket connections to callers. They are routed and authorized like other requests.

A caller without access gets the refusal of a plain request, before the handshake completes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from wharf.cluster.api.replies.sender import build_refusal_headers
from wharf.cluster.api.websockets.handshake import refuse_handshake
from wharf.contract.model.refusal import Refusal
from wharf.contract.wire.errors import STATUS_BY_CODE

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

NORMAL_CLOSE_CODE: Final = 1000
GOING_AWAY_CODE: Final = 1001
POLICY_VIOLATION_CODE: Final = 1008
INTERNAL_ERROR_CODE: Final = 1011
MAX_REASON_BYTES: Final = 120


class CallerSocket:
    """A websocket connection to the caller, starting with its handshake."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, closing_event: asyncio.Event) -> None:
        self.closing_event = closing_event
        self._scope = scope
        self._receive = receive
        self._send = send
        self._sending = asyncio.Lock()
        self.is_open = False

    async def accept(self) -> None:
        await self._receive()  # The `websocket.connect` message.
        await self._send({"type": "websocket.accept"})
        self.is_open = True

    async def refuse(self, refusal: Refusal) -> None:
        """Reject the handshake, or close an open connection, with the refusal."""
        if self.is_open:
            await self.close(
                POLICY_VIOLATION_CODE if STATUS_BY_CODE[refusal.code] < 500 else INTERNAL_ERROR_CODE, refusal.text
            )
            return
        await self._receive()
        await refuse_handshake(
            self._send, self._scope, STATUS_BY_CODE[refusal.code], build_refusal_headers(refusal), refusal.text.encode()
        )

    async def receive(self) -> str | bytes | None:
        """Return the next message, or `None` once the caller has closed."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self.is_open = False
            return None
        text: str | None = message.get("text")
        if text is not None:
            return text
        data: bytes = message["bytes"]
        return data

    async def send(self, message: str | bytes) -> None:
        """Send a message. Does nothing if the caller has closed."""
        kind = "text" if isinstance(message, str) else "bytes"
        async with self._sending:  # Several tasks may send; messages must not interleave.
            if self.is_open:
                await self._send_message({"type": "websocket.send", kind: message})

    async def close(self, code: int, reason: str = "") -> None:
        async with self._sending:
            if self.is_open:
                self.is_open = False
                await self._send_message({"type": "websocket.close", "code": code, "reason": _shorten_reason(reason)})

    async def _send_message(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:  # ASGI servers raise this when the caller has disconnected.
            self.is_open = False


def _shorten_reason(reason: str) -> str:
    """Return the reason, shortened to the size limit of a close frame."""
    if len(reason.encode()) <= MAX_REASON_BYTES:
        return reason
    return reason.encode()[: MAX_REASON_BYTES - len("…".encode())].decode(errors="ignore") + "…"


WebSocketHandler = Callable[[Any, CallerSocket], Awaitable[None]]
"""Handles an authorized request until its websocket closes. Raises `Refusal`."""

WebSocketHandlers = Mapping[str, WebSocketHandler]
