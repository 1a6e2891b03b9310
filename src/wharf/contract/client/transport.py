"""The transport port of the client: sends one request to one server and returns the reply, complete or streamed."""

import enum
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

REQUEST_TIMEOUT_S: Final = 30.0
"""Seconds for a call, in all its attempts. Protects callers from servers that never reply."""
CONNECT_TIMEOUT_S: Final = 10.0
"""Seconds for a connection, if no other server can be tried. Protects callers from networks that drop all packets."""
UNIX_SCHEME: Final = "unix://"
"""Prefix of an address that is the path of a Unix socket."""


class TlsFailure(enum.Enum):
    """The reason why a TLS connection to a server failed."""

    UNTRUSTED_SERVER_CERTIFICATE = enum.auto()
    EXPIRED_SERVER_CERTIFICATE = enum.auto()
    WRONG_SERVER_NAME = enum.auto()
    CLIENT_CERTIFICATE_REQUIRED = enum.auto()
    SERVER_WITHOUT_TLS = enum.auto()
    OTHER = enum.auto()


class Unreachable(Exception):
    """The error for a request to which no complete reply was received.

    `is_sent`: whether the request may have reached the server, so that a write may have been committed. `tls_failure`:
    why TLS failed, or `None` if the cause is not TLS. `is_silent`: whether the server accepted the connection and then
    did not answer in time, as a frozen server does.
    """

    def __init__(
        self, text: str, *, is_sent: bool, tls_failure: TlsFailure | None = None, is_silent: bool = False
    ) -> None:
        super().__init__(text)
        self.is_sent = is_sent
        self.tls_failure = tls_failure
        self.is_silent = is_silent
        self.is_read = False
        """Whether the request can have changed nothing, because it only reads."""


class InvalidHeader(Unreachable):
    """The error for a request that cannot be sent, because a value of the caller is not valid in an HTTP header."""

    def __init__(self, text: str) -> None:
        super().__init__(text, is_sent=False)


def find_header_problem(value: str) -> str:
    """Return why a text cannot be the value of an HTTP header, without the text itself; empty if it can."""
    if "\n" in value or "\r" in value:
        return "contains a line break"
    if not value.isprintable():
        return "contains a control character"
    if not value.isascii():
        return "contains a character that is not ASCII"
    return "begins or ends with a space" if value != value.strip() else ""


class ClientRequest(msgspec.Struct, frozen=True):
    """An HTTP request of the client."""

    method: str
    path: str  # Percent-encoded.
    query: tuple[tuple[str, str], ...] = ()  # Names and values, not encoded.
    headers: Mapping[str, str] = {}
    body: bytes = b""
    timeout_s: float = REQUEST_TIMEOUT_S  # Limits the wait for the reply, or for the head of a streamed one.
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    chunk_timeout_s: float | None = None  # Limits the wait for each chunk of a streamed reply; None: `timeout_s`.
    is_long_running: bool = False
    """Whether the server may wait or work for the whole timeout before it replies, as for a blocking query."""


class ClientReply(msgspec.Struct, frozen=True):
    """A complete HTTP reply."""

    status: int
    headers: Mapping[str, str]  # The names are lower case.
    body: bytes


class StreamHead(Protocol):
    """The status and the headers of a streamed reply."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class StreamedReply(StreamHead, Protocol):
    """A reply whose body is received in chunks."""

    async def read_chunk(self) -> bytes:
        """Return the next chunk; an empty one is the end. Raises `Unreachable` if the connection breaks."""
        ...

    async def close(self) -> None: ...


class SyncStreamedReply(StreamHead, Protocol):
    """A reply whose body is received in chunks, for synchronous clients."""

    def read_chunk(self) -> bytes:
        """Return the next chunk; an empty one is the end. Raises `Unreachable` if the connection breaks."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """Sends requests to one server, for asyncio clients."""

    async def send(self, request: ClientRequest) -> ClientReply:
        """Send a request and return the complete reply. Raises `Unreachable`."""
        ...

    async def open(self, request: ClientRequest) -> StreamedReply:
        """Send a request and return once the head of the reply was received. Raises `Unreachable`."""
        ...

    async def close(self) -> None: ...


class SyncTransport(Protocol):
    """Sends requests to one server and blocks until the reply, for synchronous clients."""

    def send(self, request: ClientRequest) -> ClientReply:
        """Send a request and return the complete reply. Raises `Unreachable`."""
        ...

    def open(self, request: ClientRequest) -> SyncStreamedReply:
        """Send a request and return once the head of the reply was received. Raises `Unreachable`."""
        ...

    def close(self) -> None: ...
