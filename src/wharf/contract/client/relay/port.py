"""The relay port: forwards a request unchanged to another server, and its reply back, in parts.

Nothing is read ahead in either direction, so a slow reader slows the sender. Bodies are neither interpreted nor decoded.
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
"""Headers that apply to a single connection and are not forwarded."""


class RelayRequest(msgspec.Struct, frozen=True):
    """A request to forward. `target` is the received path and query, still percent-encoded. `body` is None if there is none."""

    method: str
    target: bytes
    headers: RawHeaders
    body: AsyncIterator[bytes] | None = None


class RelayReply(msgspec.Struct, frozen=True):
    """The reply of the other server. Iterating `parts` raises `Unreachable` if the connection breaks."""

    status: int
    headers: RawHeaders
    parts: AsyncIterator[bytes]


class Relay(Protocol):
    """Forwards requests to one server."""

    def open(self, outgoing: RelayRequest) -> AbstractAsyncContextManager[RelayReply]:
        """Forward a request and yield the reply once its head was received. Raises `Unreachable`.

        At the end of the context the connection is reused, or closed if the reply is incomplete.
        """
        ...

    async def close(self) -> None: ...


def remove_hop_by_hop_headers(headers: RawHeaders) -> RawHeaders:
    """Return the headers without those that apply to a single connection."""
    return [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP_HEADERS]
