"""A connection to the store that carries one stream: a feed, a load or a restore.

A client that does not read slows the store down, because the socket's buffer is full. Requests with numbered replies
use `main_connection`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

import msgspec

from wharf.cluster.engines.port import FollowerBehind, LogUnavailable, LogUnchanged
from wharf.cluster.engines.store.messages import (
    MAX_FRAME_BYTES,
    FailureReply,
    StoreHello,
    StoreMessage,
    StoreReply,
    StoreWelcome,
    decode_reply,
)
from wharf.world.framing import FrameDecoder, FrameTooLong, encode_frame
from wharf.world.unix_sockets import shorten_socket_path

_STREAM_BYTES: Final = 1_000_000
"""Size of one read, and of the buffer of unread data."""


class StreamConnection:
    """A connection that carries one stream."""

    def __init__(self, on_contact: Callable[[], None]) -> None:
        """`on_contact` is called whenever data arrives from the store."""
        self._on_contact = on_contact
        self._frames = FrameDecoder(MAX_FRAME_BYTES)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._close_reason = ""

    async def open(self, path: Path, hello: StoreHello, request: StoreMessage) -> None:
        """Connect, and send the hello and the request for the stream."""
        with shorten_socket_path(path) as address:
            self._reader, self._writer = await asyncio.open_unix_connection(address, limit=_STREAM_BYTES)
        self._writer.write(encode_frame(hello) + encode_frame(request))

    async def send(self, message: StoreMessage) -> None:
        """Send a message and wait until the socket accepts more. Raises `LogUnavailable`."""
        assert self._writer is not None
        try:
            self.require_open()
            self._writer.write(encode_frame(message))
            await self._writer.drain()
        except (OSError, RuntimeError) as error:  # uvloop raises RuntimeError for a transport that is closed.
            await self._read_close_reason()
            raise LogUnavailable(self._close_reason or f"the store went away: {error}") from error

    def require_open(self) -> None:
        """Raise `ConnectionResetError` if the connection is known to be closed, so that nothing more can be sent."""
        assert self._writer is not None
        if self._writer.is_closing():
            raise ConnectionResetError("the connection is closed")

    async def iter_replies(self) -> AsyncGenerator[StoreReply, None]:
        """Yield all replies after the welcome. Raises `FollowerBehind` and `LogUnavailable`, as reported by the store
        or when the connection is lost."""
        assert self._reader is not None
        while True:
            try:
                data = await self._reader.read(_STREAM_BYTES)
            except OSError as error:
                raise LogUnavailable(self._close_reason or f"the store went away: {error}") from error
            if self._close_reason or not data:
                raise LogUnavailable(self._close_reason or "the store went away")
            self._on_contact()
            for body in self._split_frames(data):
                reply = _decode(body)
                if isinstance(reply, FailureReply):
                    if reply.is_behind:
                        raise FollowerBehind(reply.why)
                    raise LogUnchanged(reply.why) if reply.is_unchanged else LogUnavailable(reply.why)
                if not isinstance(reply, StoreWelcome):
                    yield reply
            # Give other tasks of the loop a chance when data arrives quickly.
            await asyncio.sleep(0)

    def _split_frames(self, data: bytes) -> list[bytes]:
        """Return the complete frames in the received data. Raises `LogUnavailable`."""
        try:
            return self._frames.feed(data)
        except FrameTooLong as error:
            raise LogUnavailable(f"the store sent an invalid message: {error}") from error

    def close(self, reason: str = "") -> None:
        self._close_reason = self._close_reason or reason
        if self._writer is not None:
            self._writer.transport.abort()

    async def _read_close_reason(self) -> None:
        """Read the reason that the store may have sent before it closed the connection."""
        try:
            async for _ in self.iter_replies():
                pass
        except (LogUnavailable, FollowerBehind) as error:
            self._close_reason = str(error)


def _decode(body: bytes) -> StoreReply:
    try:
        reply: StoreReply = decode_reply(body)
    except msgspec.DecodeError as error:
        raise LogUnavailable(f"the store sent an invalid message: {error}") from error
    return reply
