"""The relay port: forwards a request unchanged to another server, and its reply back, in parts.

Nothing is read ahead in either direction, so a slow reader slows the sender. Bodies are neither interpreted nor decoded.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import msgspec

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Pairs of header name and value, as they were received."""

HOP_BY_HOP_HEADERS: Final = frozenset((
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade", b"host", b"expect",
))  # fmt: skip
"""Headers that apply to a single connection and are not forwarded."""


class RelayRequest(msgspec.Struct, frozen=True):
    """A request to forward to another server."""

    method: str
    target: bytes  # The received path and query, still percent-encoded.
    headers: RawHeaders
    body: AsyncIterator[bytes] | None = None  # The parts of the body; None if there is none.


class RelayReply(msgspec.Struct, frozen=True):
    """The reply of the server to which a request was forwarded."""

    status: int
    headers: RawHeaders
    parts: AsyncIterator[bytes]  # The parts of the body. Iteration raises `Unreachable` if the connection breaks.


class Relay(Protocol):
    """Forwards requests to one server, unchanged except for headers of a single connection."""

    def open(self, outgoing: RelayRequest) -> AbstractAsyncContextManager[RelayReply]:
        """Forward a request; as a context manager, yield the reply once its head was received. Raises `Unreachable`.

        At the end of the context the connection is reused, or closed if the body was not read to its end.
        """
        ...

    async def close(self) -> None: ...


def remove_hop_by_hop_headers(headers: RawHeaders) -> RawHeaders:
    """Return the headers without those that apply to a single connection, such as `connection` and `host`."""
    return [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP_HEADERS]
