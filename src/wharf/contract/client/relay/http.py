"""Passing a request on over a socket. The library that it takes is slow to load: whoever passes nothing on needs only the
port (`passage`).
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from wharf.contract.client.http_transport import UNSENT_ERRORS
from wharf.contract.client.relay.port import RelayReply, RelayRequest, remove_hop_by_hop_headers
from wharf.contract.client.transport import CONNECT_TIMEOUT_S, UNIX_SCHEME, Unreachable


class HttpRelay:
    """Waits for a reply as long as the caller does."""

    def __init__(self, address: str, *, tls: ssl.SSLContext | None = None) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        verify = tls or address.startswith("https")
        path = address.removeprefix(UNIX_SCHEME) if address.startswith(UNIX_SCHEME) else ""
        try:
            self._base = httpx2.URL("http://localhost" if path else address)
            self._http = httpx2.AsyncClient(
                limits=limits,
                timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
                trust_env=False,
                verify=verify,
                transport=httpx2.AsyncHTTPTransport(uds=path, limits=limits) if path else None,
            )
        except httpx2.InvalidURL as error:
            raise Unreachable(f"{address} is no address ({error})", is_sent=False) from error
        self._address = address

    @asynccontextmanager
    async def open(self, outgoing: RelayRequest) -> AsyncIterator[RelayReply]:
        request = httpx2.Request(
            outgoing.method,
            self._base.copy_with(raw_path=outgoing.target),
            headers=list(remove_hop_by_hop_headers(outgoing.headers)),
            content=outgoing.body,
        )
        try:
            reply = await self._http.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, *UNSENT_ERRORS) as error:
            raise Unreachable(f"no server answers at {self._address} ({error})", is_sent=False) from error
        except httpx2.RequestError as error:
            raise Unreachable(f"{self._address} gave no reply ({error})", is_sent=True) from error
        try:
            yield RelayReply(reply.status_code, remove_hop_by_hop_headers(reply.headers.raw), self._parts(reply))
        finally:
            await reply.aclose()

    async def _parts(self, reply: httpx2.Response) -> AsyncIterator[bytes]:
        try:
            async for part in reply.aiter_raw():
                yield part
        except httpx2.RequestError as error:
            raise Unreachable(f"the reply of {self._address} broke off ({error})", is_sent=True) from error

    async def close(self) -> None:
        await self._http.aclose()
