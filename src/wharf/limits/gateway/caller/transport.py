"""The socket of a caller: pausing, writing, deadlines, and closing in a way that the caller can still read the reply.

Requests and limits are handled by the subclasses.
"""

import asyncio
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from wharf.limits.gateway.gateway import Gateway

LINGER_TIMEOUT_S: Final = 2.0
"""How long a connection stays half open after the last reply, so that a caller who still sends can read it."""


class CallerTransport(asyncio.Protocol):
    """A connection of a caller as a byte stream. `deadline_s` is checked by the gateway; 0 means no deadline."""

    __slots__ = (
        "_buffer",
        "_is_lingering",
        "_is_paused",
        "_peer",
        "_scheme",
        "_transport",
        "deadline_s",
        "gateway",
        "is_closed",
    )

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.deadline_s = 0.0
        self.is_closed = False
        self._buffer = b""
        self._is_lingering = False
        self._is_paused = False
        self._peer = ""
        self._scheme = b"http"
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of it.
        address = self._transport.get_extra_info("peername")
        self._peer = address[0] if isinstance(address, tuple) else ""
        if transport.get_extra_info("sslcontext") is not None:
            self._scheme = b"https"
        self.deadline_s = self.gateway.now_s() + self.gateway.head_s

    def eof_received(self) -> None:
        return None  # Close the transport: a caller that stops sending has left.

    def pause_reading(self) -> None:
        if not self._is_paused and not self.is_closed and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused and not self.is_closed and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.is_closed:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _linger(self) -> None:
        """Stop writing and discard what the caller sends, until it closes or the linger timeout ends."""
        self._is_lingering = True
        self._buffer = b""
        self.resume_reading()
        self.deadline_s = self.gateway.now_s() + LINGER_TIMEOUT_S
        if self._transport is not None and self._transport.can_write_eof() and not self.is_closed:
            self._transport.write_eof()

    def abort(self) -> None:
        """Reset the connection, so that the caller cannot mistake a partial reply for a complete one."""
        if self._transport is not None:
            self._transport.abort()
