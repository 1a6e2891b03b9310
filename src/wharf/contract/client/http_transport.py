"""The HTTP transports, async and sync. Connections stay open between requests."""

import re
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import httpx2

from wharf.contract.client.transport import (
    UNIX_SCHEME,
    ClientReply,
    ClientRequest,
    InvalidHeader,
    TlsFailure,
    Unreachable,
    find_header_problem,
)
from wharf.world.addresses import MAX_PORT
from wharf.world.http_clients import ACCEPTED_TEXT, build_async_client, build_client, read_body, read_body_blocking

_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ")
UNSENT_ERRORS: Final = (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, httpx2.InvalidURL)
"""Errors in the request itself, found before anything was sent."""
NO_TLS_REASONS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons if the server answers without TLS."""
CERTIFICATE_REQUIRED_REASONS: Final = ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLSV1_ALERT_CERTIFICATE_REQUIRED")
"""OpenSSL's reasons if the server requires a client certificate and received none."""
_CERTIFICATE_FAILURES: Final = MappingProxyType(
    {
        9: TlsFailure.EXPIRED_SERVER_CERTIFICATE,  # Not valid yet.
        10: TlsFailure.EXPIRED_SERVER_CERTIFICATE,
        62: TlsFailure.WRONG_SERVER_NAME,  # Host name.
        64: TlsFailure.WRONG_SERVER_NAME,  # IP address.
    }
)
"""Kinds of OpenSSL's verification errors (`X509_V_ERR_*`)."""
MAX_REPLY_BYTES: Final = 1 << 30
"""The body of a complete reply; protects memory. Streamed replies have no such limit."""
MAX_IDLE_CONNECTIONS: Final = 100
"""Connections that stay open to one server; limits open sockets."""


class _HttpConfig:
    """What the asyncio and the synchronous transport share: address, default headers, and translation of httpx2 errors."""

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
        self.socket_path = address.removeprefix(UNIX_SCHEME) if address.startswith(UNIX_SCHEME) else None
        self.headers = {**(headers or {}), **({"x-cluster-token": token} if token else {})}
        for name, value in self.headers.items():
            if problem := find_header_problem(value):
                raise InvalidHeader(f"the {'token' if value == token else f'value of the header {name}'} {problem}")
        self.verify: ssl.SSLContext | bool = tls or address.startswith("https")
        self.extensions = {"sni_hostname": server_name} if server_name else {}

    def build_client_options(self) -> dict[str, Any]:  # The values have different types.
        """Return the keyword arguments for an httpx2 client, asyncio or synchronous."""
        url = None if self.socket_path else httpx2.URL(self.address)
        if url is not None and not url.host:
            raise httpx2.InvalidURL("it has no host: expected http://HOST:PORT or https://HOST:PORT")
        port = url.port if url is not None else None
        if port is not None and not 0 < port <= MAX_PORT:
            raise httpx2.InvalidURL(f"the port is not between 1 and {MAX_PORT}")
        return {
            "base_url": "http://localhost" if self.socket_path else self.address,
            "headers": self.headers,
            "trust_env": False,
            "verify": self.verify,
            "limits": _build_limits(),
            "socket_path": self.socket_path or "",
        }

    def build_request(self, client: Any, request: ClientRequest) -> httpx2.Request:
        """Return an httpx2 request, built with `client`, which is an asyncio or synchronous httpx2 client.

        Raises `Unreachable` if the request is invalid.
        """
        for name, value in request.headers.items():
            if problem := find_header_problem(value):
                raise InvalidHeader(f"the value of the header {name} {problem}")
        timeout = httpx2.Timeout(request.timeout_s, connect=min(request.connect_timeout_s, request.timeout_s))
        with self.translate_errors():
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
    def translate_errors(self) -> Iterator[None]:
        """Return a context manager that raises `Unreachable` in place of errors of httpx2.

        Its `is_sent` is False if the error occurred before anything was sent.
        """
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, *UNSENT_ERRORS) as error:
            tls_failure = _find_tls_failure(error)
            failure = "no reply from" if ACCEPTED_TEXT in str(error) else "cannot connect to"
            text = f"{failure} {self.address} ({_describe_error(error, tls_failure)})"
            is_silent = ACCEPTED_TEXT in str(error)
            raise Unreachable(text, is_sent=False, tls_failure=tls_failure, is_silent=is_silent) from error
        except httpx2.RequestError as error:
            tls_failure = _find_tls_failure(error)
            text = f"no reply from {self.address} ({_describe_error(error, tls_failure)})"
            is_silent = isinstance(error, httpx2.ReadTimeout)
            raise Unreachable(text, is_sent=True, tls_failure=tls_failure, is_silent=is_silent) from error


def _build_address_error(config: _HttpConfig, error: Exception) -> Unreachable:
    """Return the `Unreachable` for an address that httpx2 cannot parse."""
    return Unreachable(f"invalid address {config.address} ({_describe_error(error)})", is_sent=False)


def _build_limits() -> httpx2.Limits:
    """Return limits for httpx2: any number of connections, of which a limited number stay open when idle."""
    return httpx2.Limits(max_connections=None, max_keepalive_connections=MAX_IDLE_CONNECTIONS)


class HttpTransport:
    """Sends requests to one server over HTTP, for the asyncio client.

    `tls` holds trusted certificates and the client certificate; the default is the system's trust store. `server_name`
    is the name in the server's certificate, if it differs from the address. Raises `Unreachable` if the address is
    invalid.
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
        config = self._config = _HttpConfig(address, token=token, tls=tls, server_name=server_name, headers=headers)
        try:
            self._http = build_async_client(**config.build_client_options())
        except httpx2.InvalidURL as error:
            raise _build_address_error(config, error) from error

    async def send(self, request: ClientRequest) -> ClientReply:
        """Send a request and return the complete reply. Raises `Unreachable`."""
        built = self._config.build_request(self._http, request)
        with self._config.translate_errors():
            reply = await self._http.send(built, stream=True)
            try:
                body = await read_body(reply, timeout_s=request.timeout_s, max_bytes=MAX_REPLY_BYTES)
            finally:
                await reply.aclose()
        return ClientReply(reply.status_code, _get_headers(reply), body)

    async def open(self, request: ClientRequest) -> "HttpStreamedReply":
        """Send a request and return its reply once the head was received. Raises `Unreachable`."""
        built = self._config.build_request(self._http, request)
        with self._config.translate_errors():
            reply = await self._http.send(built, stream=True)
        _limit_chunks(built, request)
        return HttpStreamedReply(self._config, reply)

    async def close(self) -> None:
        """Close the connections to the server."""
        await self._http.aclose()


class HttpStreamedReply:
    """A streamed reply over HTTP: its status and headers, and its body in chunks."""

    def __init__(self, config: _HttpConfig, reply: httpx2.Response) -> None:
        self.status = reply.status_code
        self.headers = _get_headers(reply)
        self._config = config
        self._reply = reply
        self._chunks: AsyncIterator[bytes] = reply.aiter_bytes()

    async def read_chunk(self) -> bytes:
        """Return the next chunk of the body; empty at the end. Raises `Unreachable` if the connection breaks."""
        with self._config.translate_errors():
            return await anext(self._chunks, b"")

    async def close(self) -> None:
        await self._reply.aclose()


class SyncHttpTransport:
    """Sends requests to one server over HTTP, for the synchronous client.

    `tls` holds trusted certificates and the client certificate; the default is the system's trust store. `server_name`
    is the name in the server's certificate, if it differs from the address. Raises `Unreachable` if the address is
    invalid.
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
        config = self._config = _HttpConfig(address, token=token, tls=tls, server_name=server_name, headers=headers)
        try:
            self._http = build_client(**config.build_client_options())
        except httpx2.InvalidURL as error:
            raise _build_address_error(config, error) from error

    @property
    def address(self) -> str:
        """The address of the server."""
        return self._config.address

    def send(self, request: ClientRequest) -> ClientReply:
        """Send a request and return the complete reply. Raises `Unreachable`."""
        built = self._config.build_request(self._http, request)
        with self._config.translate_errors():
            reply = self._http.send(built, stream=True)
            try:
                body = read_body_blocking(reply, timeout_s=request.timeout_s, max_bytes=MAX_REPLY_BYTES)
            finally:
                reply.close()
        return ClientReply(reply.status_code, _get_headers(reply), body)

    def open(self, request: ClientRequest) -> "SyncHttpStreamedReply":
        """Send a request and return its reply once the head was received. Raises `Unreachable`."""
        built = self._config.build_request(self._http, request)
        with self._config.translate_errors():
            reply = self._http.send(built, stream=True)
        _limit_chunks(built, request)
        return SyncHttpStreamedReply(self._config, reply)

    def close(self) -> None:
        """Close the connections to the server."""
        self._http.close()


class SyncHttpStreamedReply:
    """A streamed reply over HTTP, read synchronously: its status and headers, and its body in chunks."""

    def __init__(self, config: _HttpConfig, reply: httpx2.Response) -> None:
        self.status = reply.status_code
        self.headers = _get_headers(reply)
        self._config = config
        self._reply = reply
        self._chunks: Iterator[bytes] = reply.iter_bytes()

    def read_chunk(self) -> bytes:
        """Return the next chunk of the body; empty at the end. Raises `Unreachable` if the connection breaks."""
        with self._config.translate_errors():
            return next(self._chunks, b"")

    def close(self) -> None:
        self._reply.close()


def _limit_chunks(built: httpx2.Request, request: ClientRequest) -> None:
    """Set the time limit for each chunk of a streamed reply, whose head was received within another limit.

    The HTTP library reads the limit from the extensions of the request before each chunk.
    """
    if request.chunk_timeout_s is not None:
        built.extensions["timeout"]["read"] = request.chunk_timeout_s


def _get_headers(reply: httpx2.Response) -> dict[str, str]:
    """Return the reply headers, with their names in lower case."""
    return {name.lower(): value for name, value in reply.headers.items()}


_CERTIFICATE_TEXTS: Final = MappingProxyType(
    {
        TlsFailure.EXPIRED_SERVER_CERTIFICATE: "the server's certificate is not valid now",
        TlsFailure.WRONG_SERVER_NAME: "the server's certificate is for another name or address",
    }
)


def _describe_error(error: Exception, tls_failure: TlsFailure | None = None) -> str:
    """Return the text of an httpx2 error without its error number; for common failures of TLS, plain words instead."""
    if tls_failure is not None and tls_failure in _CERTIFICATE_TEXTS:
        return _CERTIFICATE_TEXTS[tls_failure]
    cause = _find_ssl_error(error) if tls_failure is TlsFailure.UNTRUSTED_SERVER_CERTIFICATE else None
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {cause.verify_message}"
    if tls_failure is TlsFailure.SERVER_WITHOUT_TLS:
        return "the server does not use TLS: try an address that begins with http://"
    return _ERRNO.sub("", str(error)) or type(error).__name__


def _find_tls_failure(error: Exception) -> TlsFailure | None:
    """Return why TLS failed, from the `ssl.SSLError` among the causes of an httpx2 error; `None` if there is none."""
    cause = _find_ssl_error(error)
    if cause is None:
        return None
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _CERTIFICATE_FAILURES.get(cause.verify_code, TlsFailure.UNTRUSTED_SERVER_CERTIFICATE)
    reason = cause.reason or ""  # OpenSSL's name of the error, such as TLSV13_ALERT_CERTIFICATE_REQUIRED.
    if reason in NO_TLS_REASONS:
        return TlsFailure.SERVER_WITHOUT_TLS
    return TlsFailure.CLIENT_CERTIFICATE_REQUIRED if reason in CERTIFICATE_REQUIRED_REASONS else TlsFailure.OTHER


def _find_ssl_error(error: BaseException) -> ssl.SSLError | None:
    """Return the `ssl.SSLError` among the causes of an error, or `None`.

    The HTTP library passes it as cause, context or argument, at any depth. Each error is visited once, because causes
    may form a cycle.
    """
    pending: list[object] = [error]
    visited_ids: set[int] = set()
    while pending:
        candidate = pending.pop()
        if isinstance(candidate, ssl.SSLError) and not isinstance(
            candidate, (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        ):
            return candidate
        if isinstance(candidate, BaseException) and id(candidate) not in visited_ids:
            visited_ids.add(id(candidate))
            pending += [*candidate.args, candidate.__context__, candidate.__cause__]
    return None
