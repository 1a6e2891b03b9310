"""Passing a request on over a socket. The library that it takes is slow to load: whoever passes nothing on needs only the
port (`passage`).
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from wharf.client.exchange import CONNECT_S, UNIX, Unreachable
from wharf.client.http import NEVER_SENT
from wharf.client.passage import Incoming, Outgoing, travelling


class HttpPassage:
    """Waits for a reply as long as the caller does."""

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
