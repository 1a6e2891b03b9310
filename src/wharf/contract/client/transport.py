"""The transport port of the client: sends one request to one server and returns the reply, complete or streamed."""

import enum
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

REQUEST_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
UNIX_SCHEME: Final = "unix://"
"""Prefix of an address that is the path of a Unix socket."""


class TlsFailure(enum.Enum):
    """Why TLS with a server failed."""

    UNTRUSTED_SERVER_CERTIFICATE = enum.auto()
    CLIENT_CERTIFICATE_REQUIRED = enum.auto()
    SERVER_WITHOUT_TLS = enum.auto()
    OTHER = enum.auto()


class Unreachable(Exception):
    """No complete reply was received.

    `is_sent`: the request may have reached the server, so a write may have been committed.
    `tls_failure`: why TLS failed, or `None` if the cause is not TLS.
    """

    def __init__(self, text: str, *, is_sent: bool, tls_failure: TlsFailure | None = None) -> None:
        super().__init__(text)
        self.is_sent = is_sent
        self.tls_failure = tls_failure


class ClientRequest(msgspec.Struct, frozen=True):
    """A request. `path` is percent-encoded. `timeout_s` limits the wait for the reply, or for each chunk of a streamed one."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = {}
    body: bytes = b""
    timeout_s: float = REQUEST_TIMEOUT_S


class ClientReply(msgspec.Struct, frozen=True):
    """A complete reply. The names in `headers` are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class StreamHead(Protocol):
    """The status and the headers of a streamed reply."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class StreamedReply(StreamHead, Protocol):
    """A reply that is received in chunks."""

    async def read_chunk(self) -> bytes:
        """Return the next chunk; an empty one is the end. Raises `Unreachable` if the connection breaks."""
        ...

    async def close(self) -> None: ...


class SyncStreamedReply(StreamHead, Protocol):
    """A reply that is received in chunks, for synchronous clients."""

    def read_chunk(self) -> bytes:
        """Return the next chunk; an empty one is the end. Raises `Unreachable` if the connection breaks."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """Sends requests to one server."""

    async def send(self, request: ClientRequest) -> ClientReply:
        """Send a request and return the complete reply. Raises `Unreachable`."""
        ...

    async def open(self, request: ClientRequest) -> StreamedReply:
        """Send a request and return once the head of the reply was received. Raises `Unreachable`."""
        ...

    async def close(self) -> None: ...


class SyncTransport(Protocol):
    """Sends requests to one server, for synchronous clients. See `Transport`."""

    def send(self, request: ClientRequest) -> ClientReply: ...

    def open(self, request: ClientRequest) -> SyncStreamedReply: ...

    def close(self) -> None: ...
