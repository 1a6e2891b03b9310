"""The port for passing a request on, as it came, and its reply back, part by part.

Nothing is read ahead in either direction: a slow reader slows whoever writes. Bodies are not looked at, nor decoded.
"""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

import httpx2
import msgspec

from wharf.client.exchange import Unreachable
from wharf.client.http import CONNECT_S, NEVER_SENT

RawHeaders = Sequence[tuple[bytes, bytes]]

OF_ONE_CONNECTION: Final = frozenset((
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade", b"host", b"expect",
))  # fmt: skip
"""Headers that mean one connection and no other."""


class Outgoing(msgspec.Struct, frozen=True):
    """`target`: path and query as they came, still escaped. `body` None: it has none."""

    method: str
    target: bytes
    headers: RawHeaders
    body: AsyncIterator[bytes] | None = None


class Incoming(msgspec.Struct, frozen=True):
    """`parts` raises `Unreachable` where the reply breaks off."""

    status: int
    headers: RawHeaders
    parts: AsyncIterator[bytes]


class Passage(Protocol):
    """The way to one server."""

    def open(self, outgoing: Outgoing) -> AbstractAsyncContextManager[Incoming]:
        """The reply from its first byte on; at the end of the context the connection is given back, or cut where the
        reply is not over. Raises `Unreachable`.
        """
        ...

    async def close(self) -> None: ...


def travelling(headers: RawHeaders) -> RawHeaders:
    """Those headers that are meant for the other end, not for this connection."""
    return [(name, value) for name, value in headers if name.lower() not in OF_ONE_CONNECTION]


UNIX: Final = "unix://"
"""In front of the path of a socket in the file system."""


class HttpPassage:
    """Over a socket. Waits for a reply as long as the caller does."""

    def __init__(self, address: str, *, tls: ssl.SSLContext | None = None) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        verify = tls or address.startswith("https")
        path = address.removeprefix(UNIX) if address.startswith(UNIX) else ""
        try:
            self._base = httpx2.URL("http://localhost" if path else address)
            self._http = httpx2.AsyncClient(
                limits=limits,
                timeout=httpx2.Timeout(None, connect=CONNECT_S),
                trust_env=False,
                verify=verify,
                transport=httpx2.AsyncHTTPTransport(uds=path, limits=limits) if path else None,
            )
        except httpx2.InvalidURL as error:
            raise Unreachable(f"{address} is no address ({error})", sent=False) from error
        self._address = address

    @asynccontextmanager
    async def open(self, outgoing: Outgoing) -> AsyncIterator[Incoming]:
        request = httpx2.Request(
            outgoing.method,
            self._base.copy_with(raw_path=outgoing.target),
            headers=list(travelling(outgoing.headers)),
            content=outgoing.body,
        )
        try:
            reply = await self._http.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, *NEVER_SENT) as error:
            raise Unreachable(f"no server answers at {self._address} ({error})", sent=False) from error
        except httpx2.RequestError as error:
            raise Unreachable(f"{self._address} gave no reply ({error})", sent=True) from error
        try:
            yield Incoming(reply.status_code, travelling(reply.headers.raw), self._parts(reply))
        finally:
            await reply.aclose()

    async def _parts(self, reply: httpx2.Response) -> AsyncIterator[bytes]:
        try:
            async for part in reply.aiter_raw():
                yield part
        except httpx2.RequestError as error:
            raise Unreachable(f"the reply of {self._address} broke off ({error})", sent=True) from error

    async def close(self) -> None:
        await self._http.aclose()
