"""Relays requests over HTTP. Imports the HTTP library, which is slow to load; the port itself (`port`) does not."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2

from wharf.contract.client.http_transport import UNSENT_ERRORS
from wharf.contract.client.relay.port import RelayReply, RelayRequest, remove_hop_by_hop_headers
from wharf.contract.client.transport import UNIX_SCHEME, Unreachable
from wharf.world.failover import MAX_PART_S
from wharf.world.http_clients import build_async_client

MAX_IDLE_CONNECTIONS: Final = 20
"""Connections that stay open to one server; limits open sockets."""


class HttpRelay:
    """Forwards requests to one server over HTTP, without a timeout for the reply: callers decide how long to wait."""

    def __init__(
        self,
        address: str,
        *,
        tls: ssl.SSLContext | None = None,
        max_idle_connections: int = MAX_IDLE_CONNECTIONS,
    ) -> None:
        """`max_idle_connections`: how many connections stay open for later requests.

        0 for a server of other operators: a connection has the requests of one caller only, so bytes that the server sends
        after a reply, or before a request, reach no other caller.
        """
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=max_idle_connections)
        verify = tls or address.startswith("https")
        path = address.removeprefix(UNIX_SCHEME) if address.startswith(UNIX_SCHEME) else ""
        try:
            self._base = httpx2.URL("http://localhost" if path else address)
            self._http = build_async_client(
                limits=limits,
                timeout=httpx2.Timeout(None, connect=MAX_PART_S),
                trust_env=False,
                verify=verify,
                socket_path=path,
            )
        except httpx2.InvalidURL as error:
            raise Unreachable(f"invalid address {address} ({error})", is_sent=False) from error
        self._address = address

    @asynccontextmanager
    async def open(self, outgoing: RelayRequest) -> AsyncIterator[RelayReply]:
        """Forward a request; as a context manager, yield the reply once its head was received.

        Raises `Unreachable` if the server cannot be reached or sends no reply.
        """
        request = httpx2.Request(
            outgoing.method,
            self._base.copy_with(raw_path=outgoing.target),
            headers=list(remove_hop_by_hop_headers(outgoing.headers)),
            content=outgoing.body,
        )
        try:
            reply = await self._http.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, *UNSENT_ERRORS) as error:
            raise Unreachable(f"cannot connect to {self._address} ({error})", is_sent=False) from error
        except httpx2.RequestError as error:
            raise Unreachable(f"no reply from {self._address} ({error})", is_sent=True) from error
        try:
            headers = remove_hop_by_hop_headers(reply.headers.raw)
            if "transfer-encoding" in reply.headers:  # It precedes a length, which would not be that of the body.
                headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
            yield RelayReply(reply.status_code, headers, self._iter_parts(reply))
        finally:
            await reply.aclose()

    async def _iter_parts(self, reply: httpx2.Response) -> AsyncIterator[bytes]:
        """Yield the body of a reply in parts, not decompressed. Raises `Unreachable` if the connection breaks."""
        try:
            async for part in reply.aiter_raw():
                yield part
        except httpx2.RequestError as error:
            raise Unreachable(
                f"connection to {self._address} broke during the reply ({error})", is_sent=True
            ) from error

    async def close(self) -> None:
        await self._http.aclose()
