"""The way past ASGI for one request: its reply in one step, and a word when its caller hangs up.

The server sends the head of a reply and its body apart, and who wants to know that a caller has gone must receive in a
task of their own. Both cost as much as the rest of a small read, and the memory of a long wait.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from wharf.api.connection import EXTENSION, Headers


class ExchangingProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **options: Any) -> None:  # Whatever the server gives its protocol.
        super().__init__(*args, **options)
        self.tell_gone: Callable[[], None] | None = None
        """Of the one request that is being answered; those that came behind it wait for their turn."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.tell_gone is not None:
            self.tell_gone()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is not None and cycle.scope is self.scope:  # Else it is no request that is answered here.
            exchange: dict[Any, Any] = {EXTENSION: Exchange(self, cycle, has_body=_has_body(self.headers))}
            self.scope["extensions"] = exchange


class Exchange:
    __slots__ = ("_cycle", "_has_body", "_protocol")

    def __init__(self, protocol: ExchangingProtocol, cycle: RequestResponseCycle, *, has_body: bool) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._has_body = has_body

    def write_whole(self, status: int, headers: Headers, body: bytes) -> bool:
        """Only in the plain case: what is special in any way goes the server's own way."""
        cycle = self._cycle
        if (
            cycle.response_started
            or cycle.disconnected
            or cycle.flow.write_paused
            or not cycle.keep_alive
            or cycle.waiting_for_100_continue
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        told = [*cycle.default_headers, *headers]
        head = b"".join([b"%b: %b\r\n" % header for header in told])
        if head.count(b"\n") != len(told) or head.count(b"\r") != len(told):
            return False  # A value with the end of a line in it, which the server refuses to send.
        transport: asyncio.Transport = cycle.transport
        cycle.response_started = True
        transport.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (STATUS_LINE[status], head, len(body), body))
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True

    def on_gone(self, call: Callable[[], None] | None) -> bool:
        if self._has_body:
            return False  # Of a body that nobody takes, the rest would keep the end of the connection from being seen.
        self._protocol.tell_gone = call
        if call is not None and self._cycle.disconnected:
            call()
        return True


def _has_body(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)
