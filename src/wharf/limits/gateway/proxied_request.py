"""A request in the gateway: its head and body, its admission, and the progress of request and reply."""

from typing import Final

from wharf.limits.core.body_coding import is_body_coded
from wharf.limits.core.callers.carriers import CarrierSettings, find_carried
from wharf.limits.core.method_overrides import is_form, is_json
from wharf.limits.core.rule import ConnectionClass
from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest
from wharf.limits.decisions.service import MAX_BODY_BYTES
from wharf.limits.gateway.chunks import LAST_CHUNK, ChunkReader, encode_chunk
from wharf.limits.gateway.heads import CHUNKED, RequestHead

RETRIED_METHODS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})
"""Methods that are sent again if an idle connection turns out to be closed."""


MIN_PART_BYTES: Final = 16 * 1024
"""Smaller parts of a stored body are joined. Limits how much memory and time each part costs."""


class ProxiedRequest:
    """One request of a caller in the gateway, with the progress of its body and its reply.

    `peer` is the address of the caller's socket.
    """

    __slots__ = (
        "admitted",
        "body_deadline_s",
        "body_left",
        "body_parts",
        "chunks",
        "has_reply_begun",
        "head",
        "incoming",
        "is_body_read",
        "is_ended",
        "is_persistent",
        "is_sent",
        "may_retry",
        "unsent_parts",
    )

    def __init__(
        self, head: RequestHead, peer: str, carriers: CarrierSettings | None = None, *, is_tls: bool = False
    ) -> None:
        self.head = head
        self.incoming = _build_incoming(head, peer, carriers, is_tls=is_tls)
        self.admitted: AdmittedRequest | None = None
        """`None` until the request is admitted, and for requests that are not counted."""
        self.chunks = ChunkReader() if head.length == CHUNKED else None
        self.body_left = max(0, head.length)
        """Bytes of the body that the caller has not sent yet; 0 if the body is chunked."""
        self.is_body_read = head.length == 0
        """Whether the whole body has arrived from the caller."""
        self.body_deadline_s = 0.0
        """When the caller must have sent more of the body; 0 before the service waits for it."""
        self.body_parts: list[bytes] | None = None
        """The parts of the body read so far, if the decision needs the body."""
        self.unsent_parts: list[bytes] = []
        """The parts of the body that wait for a connection to the service."""
        self.is_sent = False
        """Whether the head was sent to the service."""
        self.has_reply_begun = False
        self.is_ended = False
        """Whether the reply is complete or the caller has disconnected."""
        self.may_retry = False
        """Whether the request can be sent again if the service closes the connection without a reply."""
        self.is_persistent = not head.has_close and not head.is_http_10
        """Whether the caller's connection stays open after the reply."""

    def on_sent(self, *, was_used: bool) -> None:
        """Record that the head was sent to the service. `was_used`: its connection has carried another request before."""
        self.is_sent = True
        self.may_retry = was_used and self.head.length == 0 and self.head.method in RETRIED_METHODS

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return a pair: the body bytes in `data` without chunk framing, and the bytes after the end of the body.

        Raises `BadChunk` if the chunks are malformed.
        """
        if self.chunks is not None:
            body = self.chunks.feed(data)
            self.is_body_read = self.chunks.is_done
            return body, self.chunks.rest if self.is_body_read else b""
        body, rest = data[: self.body_left], data[self.body_left :]
        self.body_left -= len(body)
        self.is_body_read = not self.body_left
        return body, rest

    def collect_body(self, parts: list[bytes], part: bytes) -> bytes | None:
        """Add `part` to `parts`, the body so far. Return the body once it is complete or too long; `None` before that.

        The returned body is also stored to be sent to the service later.
        """
        add_part(parts, part)
        if not self.is_body_read and sum(map(len, parts)) <= MAX_BODY_BYTES:
            return None
        body = b"".join(parts)
        self.body_parts = None
        self.unsent_parts = [body] if body else []
        return body

    def frame_body(self, body: bytes) -> bytes:
        """Return a part of the body as it is sent to the service: as a chunk if the body is chunked, else unchanged.

        After the last part of a chunked body, the chunk that ends the body is added.
        """
        if self.chunks is None:
            return body
        return (encode_chunk(body) if body else b"") + (LAST_CHUNK if self.is_body_read else b"")


def add_part(parts: list[bytes], part: bytes) -> None:
    """Add a part of a body to `parts`. Small parts become one, so that the list stays short."""
    if parts and len(parts[-1]) < MIN_PART_BYTES:
        parts[-1] += part
    elif part:
        parts.append(part)


def _build_incoming(head: RequestHead, peer: str, carriers: CarrierSettings | None, *, is_tls: bool) -> IncomingRequest:
    """Return the parts of the request that the decision service needs. `carriers`: what else carries credentials."""
    path, _, query = head.target.decode("ascii").partition("?")
    authorization = head.authorization
    content_types = find_content_types(head) if head.length else ()
    return IncomingRequest(  # By position: names cost half a microsecond.
        head.method.decode("ascii"),
        path,
        query,
        peer,
        None if authorization is None else authorization.decode("ascii"),
        head.is_conditional,
        ConnectionClass.WEBSOCKET if head.is_websocket else ConnectionClass.PLAIN,
        tuple(value.decode("ascii") for value in head.forwarded_for) if head.forwarded_for else (),
        tuple(value.decode("ascii") for value in head.forwarded) if head.forwarded else (),
        head.has_origin,
        () if carriers is None else find_carried_lines(head, carriers),
        "" if head.host is None else head.host.decode("ascii"),
        is_tls,
        tuple([value.decode("ascii") for value in head.method_overrides]) if head.method_overrides else (),
        bool(content_types) and is_form("POST", content_types),
        bool(content_types) and is_json("POST", content_types),
        bool(head.length) and _has_coded_body(head),
    )


def _has_coded_body(head: RequestHead) -> bool:
    """Return whether the body is compressed or not in UTF-8, as the headers say."""
    return is_body_coded(_find_values(head, b"content-type:"), _find_values(head, b"content-encoding:"))


def find_content_types(head: RequestHead) -> tuple[str, ...]:
    """Return the types of the body of a POST, of which one is empty if it names none; empty for other methods."""
    if head.method != b"POST":
        return ()
    return tuple(_find_values(head, b"content-type:")) or ("",)


def _find_values(head: RequestHead, start: bytes) -> list[str]:
    """Return the values of the header lines that begin with a name in small letters and its colon."""
    length = len(start)
    return [line[length:].decode("ascii").strip() for line in head.lines if line[:length].lower() == start]


def find_carried_lines(head: RequestHead, carriers: CarrierSettings) -> tuple[tuple[str, str], ...]:
    """Return the configured headers and cookies of a request that carry credentials."""
    pairs = (line.rstrip(b"\r\n").partition(b":") for line in head.lines)
    return find_carried(((name.lower(), value) for name, _, value in pairs), carriers)
