"""Requests over a socket, with connections kept open between them."""

import ssl
from collections.abc import Mapping
from typing import Final

import httpx2

from wharf.client.exchange import Reply, Unreachable

CONNECT_S: Final = 10.0
NEVER_SENT: Final = (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, httpx2.InvalidURL)
"""What is wrong with the request itself, found before anything left this machine."""


class HttpExchange:
    """Talks to one server. `tls` says whose certificates are believed, and shows ours; without it, the system's.

    Raises `Unreachable` for an address that is none.
    """

    def __init__(self, address: str, *, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
        headers = {"x-cluster-token": token} if token else {}
        verify = tls or address.startswith("https")
        try:
            self._http = httpx2.AsyncClient(
                base_url=address, limits=limits, headers=headers, trust_env=False, verify=verify
            )
        except httpx2.InvalidURL as error:
            raise Unreachable(f"{address} is no address ({_said(error)})", sent=False) from error
        self._address = address

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
    ) -> Reply:
        timeout = httpx2.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
        try:
            reply = await self._http.request(
                method, path, params=dict(query), headers=dict(headers), content=body, timeout=timeout
            )
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, *NEVER_SENT) as error:
            raise Unreachable(f"no server answers at {self._address} ({_said(error)})", sent=False) from error
        except httpx2.RequestError as error:
            raise Unreachable(f"{self._address} gave no reply ({_said(error)})", sent=True) from error
        return Reply(reply.status_code, {name.lower(): value for name, value in reply.headers.items()}, reply.content)

    async def close(self) -> None:
        await self._http.aclose()


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
