"""The socket of a caller: pausing, writing, and closing in a way that the caller can still read the last reply.

Knows nothing about requests.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from wharf.limits.gateway.sockets import reset_when_closed

LINGER_TIMEOUT_S: Final = 2.0
"""How long a connection stays half open after the last reply, so that a caller who still sends can read it."""
FLUSH_TIMEOUT_S: Final = 60.0
"""How long a closed connection waits until its caller has read the last reply; otherwise it could wait forever."""


class CallerTransport:
    """The connection of a caller as a byte stream."""

    __slots__ = (
        "_is_held",
        "_is_paused",
        "_now_s",
        "_transport",
        "deadline_s",
        "is_closed",
        "is_closing",
        "is_lingering",
        "on_resumed",
        "peer",
        "scheme",
    )

    def __init__(self, transport: asyncio.Transport, now_s: Callable[[], float]) -> None:
        address = transport.get_extra_info("peername")
        self.peer: str = address[0] if isinstance(address, tuple) else ""
        """The IP address of the caller; empty if the socket has none."""
        self.scheme = b"http" if transport.get_extra_info("sslcontext") is None else b"https"
        self.deadline_s = 0.0
        """When the caller must have sent or read more. The gateway checks it; 0 means no deadline."""
        self.is_closed = False
        """Whether the connection is lost: nothing more can be written."""
        self.is_closing = False
        """Whether the connection closes as soon as everything that was written is sent."""
        self.is_lingering = False
        """Whether the last reply was sent: what the caller still sends is discarded."""
        self._is_paused = False
        self._is_held = False
        """Whether received bytes are not processed yet."""
        self.on_resumed: Callable[[], None] = _do_nothing
        """Called when the current request can take bytes again."""
        self._transport = transport
        self._now_s = now_s

    @property
    def is_paused(self) -> bool:
        """Whether the current request can take no more bytes."""
        return self._is_paused

    def pause_reading(self) -> None:
        """Stop reading, because the current request can take no more bytes."""
        if not self._is_paused and not self.is_closed:
            self._is_paused = True
            if not self._is_held:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again, unless received bytes must be processed first."""
        if self._is_paused and not self.is_closed:
            self._is_paused = False
            if not self._is_held:
                self._transport.resume_reading()
            self.on_resumed()

    def hold_reading(self) -> None:
        """Stop reading until the bytes that were received are processed."""
        if not self._is_held and not self.is_closed:
            self._is_held = True
            if not self._is_paused:
                self._transport.pause_reading()

    def release_reading(self) -> None:
        """Read again, unless the current request can take no more bytes."""
        if self._is_held and not self.is_closed:
            self._is_held = False
            if not self._is_paused:
                self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if not self.is_closed:
            self._transport.write(data)

    def close(self) -> None:
        """Close after everything that was written is sent, or after the flush timeout."""
        if not self.is_closing:
            self.is_closing = True
            self.deadline_s = self._now_s() + FLUSH_TIMEOUT_S
        self._transport.close()

    def linger(self) -> None:
        """Stop writing and discard what the caller sends, until it closes or the linger timeout ends."""
        self.is_lingering = True
        self.resume_reading()
        self.release_reading()
        self.deadline_s = self._now_s() + LINGER_TIMEOUT_S
        if not self.is_closed and self._transport.can_write_eof():
            self._transport.write_eof()

    def abort(self) -> None:
        """Reset the connection, so that the caller cannot mistake a partial reply for a complete one."""
        transport_socket = self._transport.get_extra_info("socket")
        if transport_socket is not None and not self.is_closed:
            reset_when_closed(transport_socket)
        self._transport.abort()


def _do_nothing() -> None:
    pass
