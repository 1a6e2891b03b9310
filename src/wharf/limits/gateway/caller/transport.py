"""The socket of a caller: pausing, writing, and closing in a way that the caller can still read the last reply.

Knows nothing about requests.
"""

import asyncio
from typing import Final

LINGER_TIMEOUT_S: Final = 2.0
"""How long a connection stays half open after the last reply, so that a caller who still sends can read it."""


class CallerTransport:
    """The connection of a caller as a byte stream."""

    __slots__ = ("_is_paused", "_transport", "deadline_s", "is_closed", "is_lingering", "peer", "scheme")

    def __init__(self, transport: asyncio.Transport) -> None:
        address = transport.get_extra_info("peername")
        self.peer: str = address[0] if isinstance(address, tuple) else ""
        """The IP address of the caller; empty if the socket has none."""
        self.scheme = b"http" if transport.get_extra_info("sslcontext") is None else b"https"
        self.deadline_s = 0.0
        """When the caller must have sent or read more. The gateway checks it; 0 means no deadline."""
        self.is_closed = False
        """Whether the connection is lost: nothing more can be written."""
        self.is_lingering = False
        """Whether the last reply was sent: what the caller still sends is discarded."""
        self._is_paused = False
        self._transport = transport

    def pause_reading(self) -> None:
        if not self._is_paused and not self.is_closed:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused and not self.is_closed:
            self._is_paused = False
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if not self.is_closed:
            self._transport.write(data)

    def close(self) -> None:
        """Close after everything that was written is sent."""
        self._transport.close()

    def linger(self, now_s: float) -> None:
        """Stop writing and discard what the caller sends, until it closes or the linger timeout ends."""
        self.is_lingering = True
        self.resume_reading()
        self.deadline_s = now_s + LINGER_TIMEOUT_S
        if not self.is_closed and self._transport.can_write_eof():
            self._transport.write_eof()

    def abort(self) -> None:
        """Reset the connection, so that the caller cannot mistake a partial reply for a complete one."""
        self._transport.abort()
