"""Parses the requests of one connection in order: head, body, and the rest of a body that is not needed.

Does no input or output, and decides nothing. A request that could be read in two ways is an error.
"""

from typing import Final

from wharf.limits.config.settings import GatewaySettings
from wharf.limits.gateway.chunks import BadChunk
from wharf.limits.gateway.heads import BadHead, HeadReader, RequestHead
from wharf.limits.gateway.proxied_request import ProxiedRequest

MAX_DRAINED_BYTES: Final = 64 * 1024
"""Bytes of an unneeded body that are read to keep the connection open; after more the connection is closed."""
PIECE_BYTES: Final = 16 * 1024
"""Received bytes that are processed at a time. Limits how long one caller holds the event loop, and what a head copies."""
METHOD_BYTES: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz\r\n")
"""Bytes that a request, or an empty line before it, can begin with."""


class RequestReader:
    """The buffer of received bytes, and the parser for the requests in it."""

    __slots__ = (
        "_drained_bytes",
        "_head_reader",
        "_max_head_bytes",
        "_received",
        "_received_from",
        "buffer",
        "drained_request",
    )

    def __init__(self, settings: GatewaySettings, head_reader: HeadReader) -> None:
        self.buffer = b""
        """The bytes that are processed next."""
        self._received = b""
        """The bytes that follow, from position `_received_from` on."""
        self._received_from = 0
        self._max_head_bytes = settings.head_bytes_most
        self._head_reader = head_reader
        self.drained_request: ProxiedRequest | None = None
        """A request that was answered before its body was complete: the rest is discarded. `None` otherwise."""
        self._drained_bytes = 0

    @property
    def has_more(self) -> bool:
        """Whether bytes were received that are not in the buffer yet."""
        return bool(self._received)

    def add(self, data: bytes) -> None:
        """Add received bytes, to be taken piece by piece."""
        self._received = self._received[self._received_from :] + data if self._received else data
        self._received_from = 0

    def take_piece(self) -> None:
        """Move the next received bytes into the buffer."""
        end = self._received_from + PIECE_BYTES
        piece = self._received[self._received_from : end]
        self.buffer = self.buffer + piece if self.buffer else piece
        self._received_from = end
        if end >= len(self._received):
            self._received, self._received_from = b"", 0

    def take_buffer(self) -> bytes:
        """Return all bytes that are not processed yet, and forget them."""
        data = self.buffer + self._received[self._received_from :] if self._received else self.buffer
        self.buffer = self._received = b""
        self._received_from = 0
        return data

    def read_head(self) -> RequestHead | None:
        """Return the head of the next request and remove it from the buffer, or return `None` if it is incomplete.

        Raises `BadHead` if it is malformed or too long.
        """
        data = self.buffer
        if data[:2] == b"\r\n":
            data = self.buffer = data.lstrip(b"\r\n")  # An empty line before a request is harmless.
        end = data.find(b"\r\n\r\n")
        max_bytes = self._max_head_bytes
        if end < 0 or end > max_bytes:
            if len(data) > max_bytes:
                raise BadHead(f"The head of the request is longer than {max_bytes} bytes.", 431)
            if data and data[0] not in METHOD_BYTES:
                raise BadHead("This is not an HTTP request: it does not begin with a method.")
            return None
        head = self._head_reader.read(data, end + 4)
        self.buffer = data[end + 4 :]
        return head

    def read_body(self, request: ProxiedRequest) -> bytes:
        """Return the buffered part of a request's body, and remove it from the buffer.

        Raises `BadChunk` if a chunked body is malformed.
        """
        data, self.buffer = self.buffer, b""
        body, self.buffer = request.feed(data)
        return body

    def start_draining(self, request: ProxiedRequest) -> None:
        """Set the request whose remaining body `drain` must discard before the next head is read."""
        self.drained_request, self._drained_bytes = request, 0

    def drain(self) -> None:
        """Discard the buffered part of an unneeded body. Raises BadChunk if it is malformed or too long to be drained."""
        request = self.drained_request
        assert request is not None
        self._drained_bytes += len(self.read_body(request))
        if request.is_body_read:
            self.drained_request = None
        elif self._drained_bytes > MAX_DRAINED_BYTES:
            raise BadChunk("the rest of the body is too long")
