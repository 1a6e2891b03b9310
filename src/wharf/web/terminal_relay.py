"""Relays the websocket of a terminal page to the exec endpoint of the API, with limits of what waits in memory.

The messages are those of the API, with one addition: the page reports how much output it has shown (`{"read": N}`). Access
and commands are checked by the API, and the origin of the websocket by the pages.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from wharf.web.api_transport import App, Message
from wharf.world import World
from wharf.world.tasks import run_until_first

MAX_UNREAD_CHARS: Final = 512 << 10
"""Output that a page may not have shown yet. Then no more is sent: a browser reads a websocket without limit, and a program
such as `yes` would fill its memory."""
MAX_WAITING_INPUT_CHARS: Final = 1 << 20
"""Input that waits because the program does not read it. More ends the terminal. Pages send at most half of it at once."""
INPUT_OVERHEAD_CHARS: Final = 100
"""What a message of input counts in addition to its text."""
READ_PREFIX: Final = '{"read":'
NOT_READING_TEXT: Final = "the program does not read its input"
SIGNED_OUT_TEXT: Final = "you are signed out"
REFUSED_CODE: Final = 1008
HANDSHAKE_REPLY_EXTENSION: Final = "websocket.http.response"
OPENING_HEADERS: Final = frozenset((b"host", b"connection", b"upgrade", b"user-agent"))
OPENING_HEADER_PREFIX: Final = b"sec-websocket-"


class _ReadReport(msgspec.Struct):
    """The report of a page: how many characters of messages it has shown since the begin."""

    read: int


def parse_read_report(text: str) -> int | None:
    """Return how much a page has shown; `None` for another message."""
    if not text.startswith(READ_PREFIX):
        return None
    try:
        return msgspec.json.decode(text, type=_ReadReport).read
    except msgspec.MsgspecError:
        return None


class TerminalRelay:
    """The two directions of one terminal, between the ASGI functions of the browser's websocket and the API."""

    def __init__(self, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]) -> None:
        self._receive = receive
        self._send = send
        self._inputs: deque[Message] = deque()
        self._input_chars = 0
        self._sent_chars = 0
        self._read_chars = 0
        self._changed = asyncio.Condition()
        self._is_closed = False

    async def read_browser(self) -> str:
        """Take the messages of the browser. Return only if the terminal must end, with the reason.

        Messages are taken also while the program reads no input: behind them are reports, without which it could not write
        either.
        """
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                await self._add_input(message)
                await asyncio.get_running_loop().create_future()  # The API ends the terminal.
            text = message.get("text") or ""
            if (read_chars := parse_read_report(text)) is not None:
                async with self._changed:
                    self._read_chars = min(self._sent_chars, max(self._read_chars, read_chars))
                    self._changed.notify_all()
                continue
            if self._input_chars > MAX_WAITING_INPUT_CHARS:
                return NOT_READING_TEXT
            await self._add_input(message)

    async def _add_input(self, message: Message) -> None:
        async with self._changed:
            self._inputs.append(message)
            self._input_chars += _count_input(message)
            self._changed.notify_all()

    async def receive_for_api(self) -> Message:
        """Return the next message of the browser for the API."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._inputs)
            message = self._inputs.popleft()
            self._input_chars -= _count_input(message)
            return message

    async def send_from_api(self, message: Message) -> None:
        """Send a message of the API to the browser. Output waits until the page has shown most of what was sent before."""
        if message["type"] == "websocket.send":
            async with self._changed:
                await self._changed.wait_for(lambda: self._sent_chars - self._read_chars <= MAX_UNREAD_CHARS)
                self._sent_chars += len(message.get("text") or message.get("bytes") or "")
        elif message["type"] in ("websocket.close", f"{HANDSHAKE_REPLY_EXTENSION}.body"):
            self._is_closed = True
        await self._send(message)

    async def close(self, reason: str) -> None:
        """Close the websocket, unless the API has closed it."""
        if not self._is_closed:
            self._is_closed = True
            await self._send({"type": "websocket.close", "code": REFUSED_CODE, "reason": reason})


def _count_input(message: Message) -> int:
    return len(message.get("text") or message.get("bytes") or "") + INPUT_OVERHEAD_CHARS


async def relay_terminal(
    world: World,
    api: App,
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
    wait_until_signed_out: Callable[[], Awaitable[object]],
) -> None:
    """Connect a browser to the API until one of them ends the terminal, or the session of the browser ends."""
    relay = TerminalRelay(receive, send)

    async def wait_for_session() -> str:
        await wait_until_signed_out()
        return SIGNED_OUT_TEXT

    async def call_api() -> None:
        await api(scope, relay.receive_for_api, relay.send_from_api)

    terminal, browser, session = await run_until_first(
        world, terminal=call_api(), terminal_browser=relay.read_browser(), terminal_session=wait_for_session()
    )
    for ended in (session, browser):
        if not ended.cancelled():
            reason: str = ended.result()
            await relay.close(reason)
    if not terminal.cancelled():
        terminal.result()


def build_exec_scope(scope: Message, alloc_id: str, query: str, headers: list[tuple[bytes, bytes]]) -> Message:
    """Return the websocket request of a page as a request of the exec endpoint, with these headers for its credentials.

    Of the browser's headers only those of the handshake are passed on: the API takes no cookies, and no other credentials.
    """
    path = f"/v1/client/allocation/{alloc_id}/exec"
    opening = [
        (name, value)
        for name, value in scope["headers"]
        if name.lower() in OPENING_HEADERS or name.lower().startswith(OPENING_HEADER_PREFIX)
    ]
    return {
        **scope,
        "path": path,
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "headers": [*opening, *headers],
    }


async def refuse_socket(scope: Message, receive: Any, send: Any, status: int, text: str) -> None:
    """Reject the handshake of a websocket with this text."""
    await receive()  # The `websocket.connect` message.
    if HANDSHAKE_REPLY_EXTENSION not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": REFUSED_CODE, "reason": text[:100]})
        return
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    await send({"type": f"{HANDSHAKE_REPLY_EXTENSION}.start", "status": status, "headers": headers})
    await send({"type": f"{HANDSHAKE_REPLY_EXTENSION}.body", "body": body})


async def refuse_open_socket(receive: Any, send: Any, reason: str) -> None:
    """Accept a websocket and close it with this reason, which its page shows. Pages cannot read a rejected handshake."""
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": REFUSED_CODE, "reason": reason})
