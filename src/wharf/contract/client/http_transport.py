"""Requests over a socket, with connections kept open between them: awaited, and with a thread that waits."""

import re
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx2

from wharf.contract.client.transport import CONNECT_TIMEOUT_S, UNIX_SCHEME, ClientReply, ClientRequest, Unreachable

_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ")
UNSENT_ERRORS: Final = (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, httpx2.InvalidURL)
"""What is wrong with the request itself, found before anything left this machine."""
MAX_IDLE_CONNECTIONS: Final = 100


class _Line:
    """What both share: the address, what every request carries, and what errors of the library mean."""

    def __init__(
        self,
        address: str,
        *,
        token: str,
        tls: ssl.SSLContext | None,
        server_name: str,
        headers: Mapping[str, str] | None,
    ) -> None:
        self.address = address
        self.socket = address.removeprefix(UNIX_SCHEME) if address.startswith(UNIX_SCHEME) else None
        self.headers = {**(headers or {}), **({"x-cluster-token": token} if token else {})}
        self.verify: ssl.SSLContext | bool = tls or address.startswith("https")
        self.extensions = {"sni_hostname": server_name} if server_name else {}

    def options(self) -> dict[str, Any]:  # As both clients of the library take them.
        return {
            "base_url": "http://localhost" if self.socket else self.address,
            "headers": self.headers,
            "trust_env": False,
            "verify": self.verify,
        }

    def request(self, client: Any, request: ClientRequest) -> httpx2.Request:
        """`client`: either of the library's."""
        timeout = httpx2.Timeout(request.timeout_s, connect=min(CONNECT_TIMEOUT_S, request.timeout_s))
        with self.failing():
            built: httpx2.Request = client.build_request(
                request.method,
                request.path,
                params=list(request.query),
                headers=dict(request.headers),
                content=request.body,
                timeout=timeout,
                extensions=dict(self.extensions),
            )
        return built

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Inside, errors of the library become ours."""
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, *UNSENT_ERRORS) as error:
            raise Unreachable(f"no server answers at {self.address} ({_said(error)})", is_sent=False) from error
        except httpx2.RequestError as error:
            raise Unreachable(f"{self.address} gave no reply ({_said(error)})", is_sent=True) from error


def _no_address(line: _Line, error: Exception) -> Unreachable:
    return Unreachable(f"{line.address} is no address ({_said(error)})", is_sent=False)


def _limits() -> httpx2.Limits:
    return httpx2.Limits(max_connections=None, max_keepalive_connections=MAX_IDLE_CONNECTIONS)


class HttpTransport:
    """Talks to one server. `tls` says whose certificates are believed, and shows ours; without it, the system's.

    `server_name`: the name that its certificate must hold, where that is not the address's. Raises `Unreachable` for an
    address that is none.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        line = self._line = _Line(address, token=token, tls=tls, server_name=server_name, headers=headers)
        try:
            transport = httpx2.AsyncHTTPTransport(uds=line.socket, limits=_limits()) if line.socket else None
            self._http = httpx2.AsyncClient(**line.options(), limits=_limits(), transport=transport)
        except httpx2.InvalidURL as error:
            raise _no_address(line, error) from error

    async def send(self, request: ClientRequest) -> ClientReply:
        built = self._line.request(self._http, request)
        with self._line.failing():
            reply = await self._http.send(built)
        return ClientReply(reply.status_code, _headers(reply), reply.content)

    async def open(self, request: ClientRequest) -> "HttpStreamedReply":
        built = self._line.request(self._http, request)
        with self._line.failing():
            return HttpStreamedReply(self._line, await self._http.send(built, stream=True))

    async def close(self) -> None:
        await self._http.aclose()


class HttpStreamedReply:
    def __init__(self, line: _Line, reply: httpx2.Response) -> None:
        self.status = reply.status_code
        self.headers = _headers(reply)
        self._line = line
        self._reply = reply
        self._pieces: AsyncIterator[bytes] = reply.aiter_bytes()

    async def read_chunk(self) -> bytes:
        with self._line.failing():
            return await anext(self._pieces, b"")

    async def close(self) -> None:
        await self._reply.aclose()


class SyncHttpTransport:
    """The same, with a thread that waits."""

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        line = self._line = _Line(address, token=token, tls=tls, server_name=server_name, headers=headers)
        try:
            transport = httpx2.HTTPTransport(uds=line.socket, limits=_limits()) if line.socket else None
            self._http = httpx2.Client(**line.options(), limits=_limits(), transport=transport)
        except httpx2.InvalidURL as error:
            raise _no_address(line, error) from error

    def send(self, request: ClientRequest) -> ClientReply:
        built = self._line.request(self._http, request)
        with self._line.failing():
            reply = self._http.send(built)
        return ClientReply(reply.status_code, _headers(reply), reply.content)

    def open(self, request: ClientRequest) -> "SyncHttpStreamedReply":
        built = self._line.request(self._http, request)
        with self._line.failing():
            return SyncHttpStreamedReply(self._line, self._http.send(built, stream=True))

    def close(self) -> None:
        self._http.close()


class SyncHttpStreamedReply:
    def __init__(self, line: _Line, reply: httpx2.Response) -> None:
        self.status = reply.status_code
        self.headers = _headers(reply)
        self._line = line
        self._reply = reply
        self._pieces: Iterator[bytes] = reply.iter_bytes()

    def read_chunk(self) -> bytes:
        with self._line.failing():
            return next(self._pieces, b"")

    def close(self) -> None:
        self._reply.close()


def _headers(reply: httpx2.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in reply.headers.items()}


def _said(error: Exception) -> str:
    text = _ERRNO.sub("", str(error))
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
        return "what answers there speaks no TLS: its address begins with http://"
    return text or type(error).__name__
