"""The port for passing a request on, as it came, and its reply back, part by part.

Nothing is read ahead in either direction: a slow reader slows whoever writes. Bodies are not looked at, nor decoded.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import msgspec

RawHeaders = Sequence[tuple[bytes, bytes]]

HOP_BY_HOP_HEADERS: Final = frozenset((
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade", b"host", b"expect",
))  # fmt: skip
"""Headers that mean one connection and no other."""


class RelayRequest(msgspec.Struct, frozen=True):
    """`target`: path and query as they came, still escaped. `body` None: it has none."""

    method: str
    target: bytes
    headers: RawHeaders
    body: AsyncIterator[bytes] | None = None


class RelayReply(msgspec.Struct, frozen=True):
    """`parts` raises `Unreachable` where the reply breaks off."""

    status: int
    headers: RawHeaders
    parts: AsyncIterator[bytes]


class Relay(Protocol):
    """The way to one server."""

    def open(self, outgoing: RelayRequest) -> AbstractAsyncContextManager[RelayReply]:
        """The reply from its first byte on; at the end of the context the connection is given back, or cut where the
        reply is not over. Raises `Unreachable`.
        """
        ...

    async def close(self) -> None: ...


def remove_hop_by_hop_headers(headers: RawHeaders) -> RawHeaders:
    """Those headers that are meant for the other end, not for this connection."""
    return [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP_HEADERS]
