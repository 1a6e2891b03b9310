"""The socket of a caller: what is read of it and when, what is written, and how it is closed so that a reply can be read.

It knows nothing of requests and limits. Whoever reads and writes here looks at `is_closed` and at the deadline.
"""

import asyncio
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from wharf.limits.gateway.gateway import Gateway

LINGER_TIMEOUT_S: Final = 2.0


class CallerTransport(asyncio.Protocol):
    __slots__ = (
        "_buffer",
        "_is_paused",
        "_lingers",
        "_peer",
        "_proto",
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
        self._lingers = False
        self._is_paused = False
        self._peer = ""
        self._proto = b"http"
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by their class, only by what they do.
        address = self._transport.get_extra_info("peername")
        self._peer = address[0] if isinstance(address, tuple) else ""
        if transport.get_extra_info("sslcontext") is not None:
            self._proto = b"https"
        self.deadline_s = self.gateway.now_s() + self.gateway.head_s

    def eof_received(self) -> None:
        return None  # The transport closes: a caller who sends no more is a caller who left.

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
        self._lingers = True
        self._buffer = b""
        self.resume_reading()
        self.deadline_s = self.gateway.now_s() + LINGER_TIMEOUT_S
        if self._transport is not None and self._transport.can_write_eof() and not self.is_closed:
            self._transport.write_eof()

    def abort(self) -> None:
        """End it at once: what was written cannot be taken for a whole reply."""
        if self._transport is not None:
            self._transport.abort()
