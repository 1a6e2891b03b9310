"""Rejection of websocket handshakes, with the reply that the same request without an upgrade would get."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from wharf.cluster.api.replies.sender import TEXT_HEADER
from wharf.contract.client.relay.port import RawHeaders

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HANDSHAKE_REPLY_EXTENSION: Final = "websocket.http.response"
GOING_AWAY_CODE: Final = 1001
NO_WEBSOCKET_TEXT: Final = b"nothing here speaks over a websocket: ask without an upgrade"


async def reply_as_request(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Reject the handshake with the reply to the plain request, or with a 400 if that reply would be a success."""
    await receive()
    reply: list[Message] = []

    async def receive_empty_body() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def collect(message: Message) -> None:
        reply.append(message)

    await app({**scope, "type": "http", "method": "GET", "scheme": "http"}, receive_empty_body, collect)
    start, *parts = reply
    if start["status"] < 300:
        await refuse_handshake(send, scope, 400, [TEXT_HEADER], NO_WEBSOCKET_TEXT)
        return
    body = b"".join(part.get("body", b"") for part in parts)
    await refuse_handshake(send, scope, start["status"], start["headers"], body)


async def refuse_handshake(send: Send, scope: Scope, status: int, headers: RawHeaders, body: bytes) -> None:
    if HANDSHAKE_REPLY_EXTENSION not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1011, "reason": body.decode(errors="replace")[:100]})
        return
    reply_headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    length = (b"content-length", str(len(body)).encode())
    await send({"type": f"{HANDSHAKE_REPLY_EXTENSION}.start", "status": status, "headers": [*reply_headers, length]})
    await send({"type": f"{HANDSHAKE_REPLY_EXTENSION}.body", "body": body})
