"""Builds the HTTP clients of all processes, so that no server that they call can hold, fill or block them.

All clients share the TLS contexts of `tls_contexts`. The replies of all clients have the limits of `reply_pieces`, and a timeout for the whole head. An asyncio client gives the
event loop back after each piece. Callers limit the time and the bytes of a body, which they know. Imports the HTTP library,
which is slow to load.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpcore2
import httpx2

from wharf.world.reply_decoders import ACCEPTED_CODINGS, limit_decoding, limit_decoding_async
from wharf.world.reply_pieces import ReplySplitter, ReplyTooLarge
from wharf.world.tls_contexts import NO_VERIFICATION, SYSTEM_TRUST, get_client_context

SocketOptions = Iterable[Any] | None
READ_BYTES: Final = 65_536
"""The most bytes that are read at once; protects memory."""
MIN_BODY_BYTES_PER_S: Final = 10_000
"""A body that arrives more slowly must be complete within its timeout. Protects callers from a server that sends a byte
from time to time, and lets large replies pass slow networks."""
ACCEPTED_TEXT: Final = "it accepted the connection, but"
"""Begins the error texts of servers that accept connections and do not answer, such as a frozen server."""
TLS_TIMEOUT_TEXT: Final = f"{ACCEPTED_TEXT} did not begin TLS"
CONNECT_TIMEOUT_TEXT: Final = "no connection"


@contextmanager
def _describe_timeout(text: str, timeout_s: float | None) -> Iterator[None]:
    """Return a context manager that gives timeouts of the library a text, because their own only says `timed out`."""
    try:
        yield
    except (httpcore2.ConnectTimeout, httpcore2.ReadTimeout) as error:
        if timeout_s is None or ACCEPTED_TEXT in str(error):
            raise
        raise type(error)(f"{text} within {round(timeout_s, 1):g} s") from error


def build_async_client(**options: Any) -> httpx2.AsyncClient:  # The options of the library have different types.
    """Return an asyncio client with limits for replies, which follows no redirects.

    The options are those of `httpx2.AsyncClient`. `verify` may be a TLS context; see `_select_context`. `socket_path`: the
    Unix socket of the server.
    """
    client = httpx2.AsyncClient(**_complete_options(options, httpx2.AsyncHTTPTransport), follow_redirects=False)
    client.event_hooks["response"].append(limit_decoding_async)
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx2.AsyncHTTPTransport):
            pool: Any = transport._pool
            pool._network_backend = _LimitedBackend(pool._network_backend)
            _discard_connections_with_unread_bytes(pool)
    return client


def build_client(**options: Any) -> httpx2.Client:  # The options of the library have different types.
    """Return a blocking client with limits for replies, which follows no redirects.

    The options are those of `build_async_client`.
    """
    client = httpx2.Client(**_complete_options(options, httpx2.HTTPTransport), follow_redirects=False)
    client.event_hooks["response"].append(limit_decoding)
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx2.HTTPTransport):
            pool: Any = transport._pool
            pool._network_backend = _BlockingLimitedBackend(pool._network_backend)
            _discard_connections_with_unread_bytes(pool)
    return client


def _complete_options(options: dict[str, Any], make_transport: Callable[..., Any]) -> dict[str, Any]:
    """Return the options of the library: with a TLS context, the accepted codings, and a transport for a Unix socket."""
    socket_path = options.pop("socket_path", "")
    options["verify"] = _select_context(False if socket_path else options.get("verify", True))
    options["headers"] = {"accept-encoding": ACCEPTED_CODINGS, **options.get("headers", {})}
    if socket_path:
        limits = options.pop("limits", httpx2.Limits())
        options["transport"] = make_transport(uds=socket_path, verify=options["verify"], limits=limits)
    return options


def _select_context(verify: ssl.SSLContext | bool) -> ssl.SSLContext:
    """Return the shared context with the certificates of the system for true, and without verification for false.

    The first call with true takes 20 ms. Callers on an event loop get the context from `load_client_context`.
    """
    if isinstance(verify, ssl.SSLContext):
        return verify
    return get_client_context(SYSTEM_TRUST if verify else NO_VERIFICATION)


def _discard_connections_with_unread_bytes(pool: Any) -> None:  # A pool of the library, for asyncio or not.
    """Make the pool close connections whose server has sent more bytes than its last reply.

    The library keeps such bytes in its parser, and would return them as the reply to the next request.
    """
    create_connection = pool.create_connection

    def create_checked_connection(origin: Any) -> Any:
        connection = create_connection(origin)
        has_expired = connection.has_expired
        connection.has_expired = lambda: has_expired() or (connection.is_idle() and _has_unread_bytes(connection))
        return connection

    pool.create_connection = create_checked_connection


def _has_unread_bytes(connection: Any) -> bool:
    """Return whether the parser of a connection of the library has bytes that belong to no request."""
    while hasattr(connection, "_connection"):
        connection = connection._connection
    parser = getattr(connection, "_h11_state", None)
    return parser is not None and bool(parser.trailing_data[0])


class _BodyLimit:
    """The time and the bytes that a body may have: some time, and more for each byte that was received."""

    def __init__(self, timeout_s: float, max_bytes: int) -> None:
        self._began_s = time.monotonic()
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._bytes = 0

    def add(self, part: bytes) -> bytes:
        """Count a part of the body and return it. Raises `httpx2.ReadError` or `httpx2.ReadTimeout`."""
        self._bytes += len(part)
        if self._bytes > self._max_bytes:
            raise httpx2.ReadError(f"the reply has more than {self._max_bytes} bytes")
        if time.monotonic() - self._began_s > self._timeout_s + self._bytes / MIN_BODY_BYTES_PER_S:
            raise httpx2.ReadTimeout(f"the reply was not complete after {self._timeout_s:g} s, and arrived too slowly")
        return part


async def read_body(reply: httpx2.Response, *, timeout_s: float, max_bytes: int) -> bytes:
    """Return the body of an open reply, decompressed.

    The server may use `timeout_s`, and 1 s more for every `MIN_BODY_BYTES_PER_S` bytes that it sends. Raises
    `httpx2.RequestError` if the body is too slow, has more than `max_bytes` bytes, or is incomplete.
    """
    limit = _BodyLimit(timeout_s, max_bytes)
    parts = []
    async for part in reply.aiter_bytes():
        parts.append(limit.add(part))
        await asyncio.sleep(0)  # One received piece can be 64 MB of content, whose parts come without a wait.
    return b"".join(parts)


def read_body_blocking(reply: httpx2.Response, *, timeout_s: float, max_bytes: int) -> bytes:
    """Return the body of an open reply of a blocking client, with the limits of `read_body`."""
    limit = _BodyLimit(timeout_s, max_bytes)
    return b"".join([limit.add(part) for part in reply.iter_bytes()])


class _ReplyReading:
    """The pieces of the replies of one connection, and the deadline of the head that is read."""

    def __init__(self) -> None:
        self._splitter = ReplySplitter()
        self._head_deadline_s: float | None = None

    @property
    def has_data(self) -> bool:
        return self._splitter.has_data

    def start_reply(self) -> None:
        self._splitter.start_reply()
        self._head_deadline_s = None

    def take(self, max_bytes: int) -> bytes:
        """Return the next piece; empty if more bytes are needed first. Raises the library's error for a bad reply."""
        try:
            return self._splitter.take(max_bytes)
        except ReplyTooLarge as error:
            raise httpcore2.RemoteProtocolError(str(error)) from None

    def add(self, data: bytes) -> None:
        self._splitter.add(data)

    def take_rest(self) -> bytes:
        return self._splitter.take_rest()

    def limit_read(self, timeout_s: float | None) -> float | None:
        """Return how long to wait for the next bytes: `timeout_s`, or what is left of it for the whole head.

        Raises the library's error if nothing is left.
        """
        if timeout_s is None or not self._splitter.is_in_head:
            return timeout_s
        now_s = time.monotonic()
        if self._head_deadline_s is None:
            self._head_deadline_s = now_s + timeout_s
        if now_s >= self._head_deadline_s:
            raise httpcore2.ReadTimeout
        return self._head_deadline_s - now_s

    def describe_timeout(self) -> str:
        """Return what the server did not do, if a read times out now."""
        return f"{ACCEPTED_TEXT} did not {'answer' if self._splitter.is_in_head else 'send the next part of its reply'}"


class _PiecewiseStream(httpcore2.AsyncNetworkStream):
    """A connection that returns received bytes in pieces, and gives the event loop back before each."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner
        self._reading = _ReplyReading()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - As the library calls it.
        await asyncio.sleep(0)  # The library parses all pieces that are here already without a pause.
        while not (piece := self._reading.take(max_bytes)):
            with _describe_timeout(self._reading.describe_timeout(), timeout):
                data = await self._inner.read(READ_BYTES, self._reading.limit_read(timeout))
            if not data:
                return self._reading.take_rest()
            self._reading.add(data)
        return piece

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - As the library calls it.
        self._reading.start_reply()
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - As the library calls it.
    ) -> httpcore2.AsyncNetworkStream:
        with _describe_timeout(TLS_TIMEOUT_TEXT, timeout):
            return _PiecewiseStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._reading.has_data:
            return True  # Bytes without a request: the connection must not be used again.
        return self._inner.get_extra_info(info)


class _LimitedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections whose replies are limited."""

    def __init__(self, inner: httpcore2.AsyncNetworkBackend) -> None:
        self._inner = inner

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - As the library calls it.
        local_address: str | None = None,
        socket_options: SocketOptions = None,
    ) -> httpcore2.AsyncNetworkStream:
        with _describe_timeout(CONNECT_TIMEOUT_TEXT, timeout):
            return _PiecewiseStream(await self._inner.connect_tcp(host, port, timeout, local_address, socket_options))

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - As the library calls it.
        socket_options: SocketOptions = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _PiecewiseStream(await self._inner.connect_unix_socket(path, timeout, socket_options))

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _BlockingLimitedStream(httpcore2.NetworkStream):
    """A connection that returns received bytes in pieces, for a blocking client."""

    def __init__(self, inner: httpcore2.NetworkStream) -> None:
        self._inner = inner
        self._reading = _ReplyReading()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        while not (piece := self._reading.take(max_bytes)):
            with _describe_timeout(self._reading.describe_timeout(), timeout):
                data = self._inner.read(READ_BYTES, self._reading.limit_read(timeout))
            if not data:
                return self._reading.take_rest()
            self._reading.add(data)
        return piece

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._reading.start_reply()
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        with _describe_timeout(TLS_TIMEOUT_TEXT, timeout):
            return _BlockingLimitedStream(self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._reading.has_data:
            return True  # Bytes without a request: the connection must not be used again.
        return self._inner.get_extra_info(info)


class _BlockingLimitedBackend(httpcore2.NetworkBackend):
    """Opens connections whose replies are limited, for a blocking client."""

    def __init__(self, inner: httpcore2.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: SocketOptions = None,
    ) -> httpcore2.NetworkStream:
        with _describe_timeout(CONNECT_TIMEOUT_TEXT, timeout):
            return _BlockingLimitedStream(self._inner.connect_tcp(host, port, timeout, local_address, socket_options))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: SocketOptions = None
    ) -> httpcore2.NetworkStream:
        return _BlockingLimitedStream(self._inner.connect_unix_socket(path, timeout, socket_options))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)
