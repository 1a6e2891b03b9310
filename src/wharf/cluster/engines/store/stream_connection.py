"""A connection to the store that carries one stream: a feed, a load or a restore.

Whoever does not read from it is not sent more: the socket holds the store back. It knows nothing of the main connection.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

import msgspec

from wharf.cluster.engines.framing import FramingError, SocketFrameDecoder, encode_frame, open_socket_address
from wharf.cluster.engines.port import FollowerBehind, LogUnavailable
from wharf.cluster.engines.store.messages import (
    FailureReply,
    StoreHello,
    StoreMessage,
    StoreReply,
    StoreWelcome,
    decode_reply,
)

_STREAM_BYTES: Final = 1_000_000


class StreamConnection:
    """A connection that carries one stream."""

    def __init__(self, on_contact: Callable[[], None]) -> None:
        """`on_heard` is called whenever something comes from the store."""
        self._on_heard = on_contact
        self._frames = SocketFrameDecoder()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._why_closed = ""

    async def open(self, path: Path, hello: StoreHello, request: StoreMessage) -> None:
        with open_socket_address(path) as address:
            self._reader, self._writer = await asyncio.open_unix_connection(address, limit=_STREAM_BYTES)
        self._writer.write(encode_frame(hello) + encode_frame(request))

    async def send(self, message: StoreMessage) -> None:
        """Raises `Unavailable`."""
        assert self._writer is not None
        self._writer.write(encode_frame(message))
        try:
            await self._writer.drain()
        except OSError as error:
            await self._hear_why()
            raise LogUnavailable(self._why_closed or f"the store went away: {error}") from error

    async def iter_replies(self) -> AsyncGenerator[StoreReply, None]:
        """All after the welcome. Raises `Behind` and `Unavailable`, as the store says or when it is lost."""
        assert self._reader is not None
        while True:
            try:
                data = await self._reader.read(_STREAM_BYTES)
            except OSError as error:
                raise LogUnavailable(self._why_closed or f"the store went away: {error}") from error
            if self._why_closed or not data:
                raise LogUnavailable(self._why_closed or "the store went away")
            self._on_heard()
            for body in self._cut(data):
                reply = _decode(body)
                if isinstance(reply, FailureReply):
                    raise FollowerBehind(reply.why) if reply.is_behind else LogUnavailable(reply.why)
                if not isinstance(reply, StoreWelcome):
                    yield reply
            # What arrives fast must not keep the loop from everybody else.
            await asyncio.sleep(0)

    def _cut(self, data: bytes) -> list[bytes]:
        try:
            return self._frames.feed(data)
        except FramingError as error:
            raise LogUnavailable(f"what came from the store makes no sense: {error}") from error

    def close(self, why: str = "") -> None:
        self._why_closed = self._why_closed or why
        if self._writer is not None:
            self._writer.transport.abort()

    async def _hear_why(self) -> None:
        """The store may have said why it closes before it did."""
        try:
            async for _ in self.iter_replies():
                pass
        except (LogUnavailable, FollowerBehind) as error:
            self._why_closed = str(error)


def _decode(body: bytes) -> StoreReply:
    try:
        reply: StoreReply = decode_reply(body)
    except msgspec.DecodeError as error:
        raise LogUnavailable(f"what came from the store makes no sense: {error}") from error
    return reply
