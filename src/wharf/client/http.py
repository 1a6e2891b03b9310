"""Requests over a socket, with connections kept open between them."""

import ssl
from collections.abc import Mapping

import httpx2

from wharf.client.exchange import Reply, Unreachable


class HttpExchange:
    """Talks to one server. `tls` says whose certificates are believed, and shows ours; without it, the system's."""

    def __init__(self, address: str, *, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
        headers = {"x-cluster-token": token} if token else {}
        self._http = httpx2.AsyncClient(
            base_url=address, limits=limits, headers=headers, trust_env=False, verify=tls or address.startswith("https")
        )
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
        try:
            reply = await self._http.request(
                method, path, params=dict(query), headers=dict(headers), content=body, timeout=timeout_s
            )
        except httpx2.ConnectError as error:
            raise Unreachable(f"no server answers at {self._address} ({error})", sent=False) from error
        except httpx2.TransportError as error:
            raise Unreachable(f"{self._address} gave no reply ({type(error).__name__}: {error})", sent=True) from error
        return Reply(reply.status_code, {name.lower(): value for name, value in reply.headers.items()}, reply.content)

    async def close(self) -> None:
        await self._http.aclose()
