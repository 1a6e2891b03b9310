"""A request in the gateway: its head and body, its admission, and the progress of request and reply."""

from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest
from wharf.limits.gateway.chunks import LAST_CHUNK, ChunkReader, encode_chunk
from wharf.limits.gateway.heads import CHUNKED, RequestHead


class ProxiedRequest:
    """The state of one request that the gateway forwards."""

    __slots__ = (
        "admitted",
        "body_left",
        "body_parts",
        "chunks",
        "has_begun",
        "head",
        "incoming",
        "is_body_read",
        "is_over",
        "is_persistent",
        "is_sent",
        "may_retry",
        "unsent_parts",
    )

    def __init__(self, head: RequestHead, incoming: IncomingRequest) -> None:
        self.head = head
        self.incoming = incoming
        self.admitted: AdmittedRequest | None = None
        self.chunks = ChunkReader() if head.length == CHUNKED else None
        self.body_left = max(0, head.length)
        self.is_body_read = head.length == 0
        self.body_parts: list[bytes] | None = None
        """The parts of the body read so far, if the decision needs the body."""
        self.unsent_parts: list[bytes] = []
        """The parts of the body that wait for a connection to the service."""
        self.is_sent = False
        self.has_begun = False
        """Whether the reply has begun."""
        self.is_over = False
        self.may_retry = False
        self.is_persistent = not head.has_close and not head.is_http_10
        """Whether the caller's connection stays open after the reply."""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the body bytes in `data`, and the bytes after the end of the body. Raises BadChunk."""
        if self.chunks is not None:
            body = self.chunks.feed(data)
            self.is_body_read = self.chunks.is_done
            return body, self.chunks.rest if self.is_body_read else b""
        body, rest = data[: self.body_left], data[self.body_left :]
        self.body_left -= len(body)
        self.is_body_read = not self.body_left
        return body, rest

    def frame_body(self, body: bytes) -> bytes:
        """Return a part of the body as it is sent to the service, with the end mark after the last part."""
        if self.chunks is None:
            return body
        return (encode_chunk(body) if body else b"") + (LAST_CHUNK if self.is_body_read else b"")
