"""A connection to the store that carries one stream: a feed, a load or a restore.

Whoever does not read from it is not sent more: the socket holds the store back. It knows nothing of the main connection.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

import msgspec

from wharf.engines.framing import Frames, NotOurs, frame, socket_address
from wharf.engines.port import Behind, Unavailable
from wharf.engines.store_wire import (
    Failed,
    Hello,
    Message,
    Reply,
    Welcome,
    decode_reply,
)

_STREAM_BYTES: Final = 1_000_000


class Stream:
    """A connection that carries one stream."""

    def __init__(self, on_heard: Callable[[], None]) -> None:
        """`on_heard` is called whenever something comes from the store."""
        self._on_heard = on_heard
        self._frames = Frames()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._why_closed = ""

    async def open(self, path: Path, hello: Hello, request: Message) -> None:
        with socket_address(path) as address:
            self._reader, self._writer = await asyncio.open_unix_connection(address, limit=_STREAM_BYTES)
        self._writer.write(frame(hello) + frame(request))

    async def say(self, message: Message) -> None:
        """Raises `Unavailable`."""
        assert self._writer is not None
        self._writer.write(frame(message))
        try:
            await self._writer.drain()
        except OSError as error:
            await self._hear_why()
            raise Unavailable(self._why_closed or f"the store went away: {error}") from error

    async def replies(self) -> AsyncGenerator[Reply, None]:
        """All after the welcome. Raises `Behind` and `Unavailable`, as the store says or when it is lost."""
        assert self._reader is not None
        while True:
            try:
                data = await self._reader.read(_STREAM_BYTES)
            except OSError as error:
                raise Unavailable(self._why_closed or f"the store went away: {error}") from error
            if self._why_closed or not data:
                raise Unavailable(self._why_closed or "the store went away")
            self._on_heard()
            for body in self._cut(data):
                reply = _decode(body)
                if isinstance(reply, Failed):
                    raise Behind(reply.why) if reply.is_behind else Unavailable(reply.why)
                if not isinstance(reply, Welcome):
                    yield reply
            # What arrives fast must not keep the loop from everybody else.
            await asyncio.sleep(0)

    def _cut(self, data: bytes) -> list[bytes]:
        try:
            return self._frames.feed(data)
        except NotOurs as error:
            raise Unavailable(f"what came from the store makes no sense: {error}") from error

    def close(self, why: str = "") -> None:
        self._why_closed = self._why_closed or why
        if self._writer is not None:
            self._writer.transport.abort()

    async def _hear_why(self) -> None:
        """The store may have said why it closes before it did."""
        try:
            async for _ in self.replies():
                pass
        except (Unavailable, Behind) as error:
            self._why_closed = str(error)


def _decode(body: bytes) -> Reply:
    try:
        reply: Reply = decode_reply(body)
    except msgspec.DecodeError as error:
        raise Unavailable(f"what came from the store makes no sense: {error}") from error
    return reply
