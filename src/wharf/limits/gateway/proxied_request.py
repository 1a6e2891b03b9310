"""One request on its way through the gateway: what was read of it, what it was admitted with, how far both sides are."""

from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest
from wharf.limits.gateway.chunks import LAST_CHUNK, ChunkReader, encode_chunk
from wharf.limits.gateway.heads import CHUNKED, RequestHead


class ProxiedRequest:
    __slots__ = (
        "arrival",
        "body_left",
        "chunks",
        "gathered",
        "has_begun",
        "head",
        "is_body_read",
        "is_handed_on",
        "is_over",
        "may_retry",
        "passage",
        "pending",
        "stays",
    )

    def __init__(self, head: RequestHead, arrival: IncomingRequest) -> None:
        self.head = head
        self.arrival = arrival
        self.passage: AdmittedRequest | None = None
        self.chunks = ChunkReader() if head.length == CHUNKED else None
        self.body_left = max(0, head.length)
        self.is_body_read = head.length == 0
        self.gathered: list[bytes] | None = None
        """The body so far, where a decision needs it."""
        self.pending: list[bytes] = []
        """Of the body, what waits for a connection to the service."""
        self.is_handed_on = False
        self.has_begun = False
        """Whether the caller has seen a byte of the reply."""
        self.is_over = False
        self.may_retry = False
        self.stays = not head.has_close and not head.is_http_10
        """Whether the caller's connection goes on after the reply."""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Read of the body what is in these bytes: the body's, and what follows it. Raises BadChunk."""
        if self.chunks is not None:
            body = self.chunks.feed(data)
            self.is_body_read = self.chunks.is_done
            return body, self.chunks.rest if self.is_body_read else b""
        body, rest = data[: self.body_left], data[self.body_left :]
        self.body_left -= len(body)
        self.is_body_read = not self.body_left
        return body, rest

    def frame_body(self, body: bytes) -> bytes:
        """A part of the body as it is sent on, and after its last part the end."""
        if self.chunks is None:
            return body
        return (encode_chunk(body) if body else b"") + (LAST_CHUNK if self.is_body_read else b"")
