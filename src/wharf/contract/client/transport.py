"""The port under the client: one request out, one reply back, whole or piece by piece."""

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

REQUEST_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
UNIX_SCHEME: Final = "unix://"
"""In front of the path of a socket in the file system."""


class Unreachable(Exception):
    """No reply came. `sent`: the request may have reached the server, so a write may have happened."""

    def __init__(self, text: str, *, is_sent: bool) -> None:
        super().__init__(text)
        self.is_sent = is_sent


class ClientRequest(msgspec.Struct, frozen=True):
    """`path` is escaped. `timeout_s` bounds the wait for the reply, and of a stream that for each piece of it."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = {}
    body: bytes = b""
    timeout_s: float = REQUEST_TIMEOUT_S


class ClientReply(msgspec.Struct, frozen=True):
    """`headers` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class StreamHead(Protocol):
    """The beginning of a reply that comes piece by piece."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class StreamedReply(StreamHead, Protocol):
    async def read_chunk(self) -> bytes:
        """The next piece; an empty one is the end. Raises `Unreachable` where the reply breaks off."""
        ...

    async def close(self) -> None: ...


class SyncStreamedReply(StreamHead, Protocol):
    def read_chunk(self) -> bytes:
        """As that of `Opened`."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """The way to one server."""

    async def send(self, request: ClientRequest) -> ClientReply:
        """Raises `Unreachable`."""
        ...

    async def open(self, request: ClientRequest) -> StreamedReply:
        """The reply from its first byte on. Raises `Unreachable`."""
        ...

    async def close(self) -> None: ...


class SyncTransport(Protocol):
    """The same for those who wait with their thread."""

    def send(self, request: ClientRequest) -> ClientReply: ...

    def open(self, request: ClientRequest) -> SyncStreamedReply: ...

    def close(self) -> None: ...
