"""Writes replies to a caller: the service's replies with the rate limit headers added, and local replies.

Does not decide which reply is sent.
"""

from wharf.limits.decisions.headers import EXPOSED_HEADERS, get_reason_phrase
from wharf.limits.decisions.requests import LocalReply
from wharf.limits.gateway.caller.transport import CallerTransport
from wharf.limits.gateway.chunks import LAST_CHUNK, encode_chunk
from wharf.limits.gateway.environment import GatewayEnvironment
from wharf.limits.gateway.heads import CHUNKED, UNTIL_CLOSE, ReplyHead, drop_limit_headers
from wharf.limits.gateway.proxied_request import ProxiedRequest


def build_reply_head(reply: LocalReply, *, date: str, is_persistent: bool, has_origin: bool = False) -> bytes:
    """Return the HTTP head of a reply that the gateway makes itself.

    `is_persistent` is set if the connection stays open after it, and `has_origin` if a page of another origin must be able to
    read the rate limit headers.
    """
    lines = "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
    if has_origin:
        lines += f"access-control-expose-headers: {EXPOSED_HEADERS}\r\n"
    connection_line = "" if is_persistent else "connection: close\r\n"
    head = (
        f"HTTP/1.1 {reply.status} {get_reason_phrase(reply.status)}\r\ndate: {date}\r\n{lines}"
        f"content-length: {len(reply.body)}\r\n{connection_line}\r\n"
    )
    return head.encode("latin-1")


class ReplyWriter:
    """Writes the replies to one caller, one after the other.

    The head of the service's reply is held until the first bytes of its body, so that one packet carries both.
    """

    __slots__ = ("_environment", "_has_chunks", "_transport", "_unsent_head")

    def __init__(self, transport: CallerTransport, environment: GatewayEnvironment) -> None:
        self._transport = transport
        self._environment = environment
        self._unsent_head = b""
        self._has_chunks = False
        """Whether the body of the current reply is sent in chunks."""

    @property
    def has_unsent_head(self) -> bool:
        return bool(self._unsent_head)

    def begin(self, request: ProxiedRequest, head: ReplyHead) -> None:
        """Build the head of the service's reply with the limiter's headers, and hold it until the body begins."""
        environment, admitted = self._environment, request.admitted
        lines = head.lines
        parts = [head.status_line]
        if not head.has_date:
            # Clients compare this date with their clock, to know when `x-ratelimit-reset` is reached.
            parts.append(b"date: %b\r\n" % environment.format_date().encode())
        if admitted is not None and admitted.decision is not None:
            parts += drop_limit_headers(lines) if head.has_limits and admitted.decision.reports_bucket else lines
            parts.append(environment.decision_service.build_header_block(admitted))
        else:
            parts += lines
        if request.head.has_origin:
            parts.append(b"access-control-expose-headers: %s\r\n" % EXPOSED_HEADERS.encode())
        self._has_chunks = False
        if head.length in (CHUNKED, UNTIL_CLOSE):
            if request.head.is_http_10:
                request.is_persistent = False
            else:
                self._has_chunks = True
                parts.append(b"transfer-encoding: chunked\r\n")
        if environment.is_ending:
            request.is_persistent = False
        if not request.is_persistent:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        request.has_reply_begun = True
        environment.counts.add_reply(head.status)
        self._unsent_head = b"".join(parts)

    def write_body(self, data: bytes) -> None:
        """Write a part of the body, which must not be empty."""
        if self._has_chunks:
            data = encode_chunk(data)
        if self._unsent_head:
            data, self._unsent_head = self._unsent_head + data, b""
        self._transport.write(data)

    def flush_head(self) -> None:
        """Write the head of the service's reply, if it was not written together with the body."""
        if self._unsent_head:
            unsent_head, self._unsent_head = self._unsent_head, b""
            self._transport.write(unsent_head)

    def end(self) -> None:
        """End the service's reply: write the last chunk of a chunked body, and the head if there was no body."""
        last = LAST_CHUNK if self._has_chunks else b""
        if self._unsent_head or last:
            unsent_head, self._unsent_head = self._unsent_head, b""
            self._transport.write(unsent_head + last)

    def discard_head(self) -> None:
        """Discard the head that is held: nothing of its reply is written."""
        self._unsent_head = b""

    def write_local_reply(
        self, reply: LocalReply, body: bytes, *, is_persistent: bool, has_origin: bool = False
    ) -> None:
        """Write a reply that the gateway makes itself.

        `body` is empty for a HEAD request, although the head has the length of the full body.
        """
        environment = self._environment
        environment.counts.add_reply(reply.status)
        head = build_reply_head(
            reply, date=environment.format_date(), is_persistent=is_persistent, has_origin=has_origin
        )
        self._transport.write(head + body)

    def write_upgrade(self, request: ProxiedRequest, head: ReplyHead, first_bytes: bytes) -> None:
        """Write the reply that opens a websocket, and the first bytes that the service sent over it."""
        environment, admitted = self._environment, request.admitted
        block = b"" if admitted is None else environment.decision_service.build_header_block(admitted)
        environment.counts.add_reply(101)
        request.has_reply_begun = True
        self._transport.write(
            head.status_line
            + b"".join(head.lines)
            + block
            + b"connection: Upgrade\r\nupgrade: websocket\r\n\r\n"
            + first_bytes
        )
