"""Writes replies to callers: the service's replies with the rate limit headers added, and local replies.

Does not decide which reply is sent. A head is held back only until the first bytes of its body.
"""

from typing import TYPE_CHECKING, Final

from wharf.limits.decisions.headers import EXPOSED_HEADERS
from wharf.limits.decisions.requests import LocalReply
from wharf.limits.gateway.caller.transport import CallerTransport
from wharf.limits.gateway.chunks import encode_chunk
from wharf.limits.gateway.heads import CHUNKED, UNTIL_CLOSE, ReplyHead, drop_limit_headers
from wharf.limits.gateway.proxied_request import ProxiedRequest

if TYPE_CHECKING:
    from wharf.limits.gateway.gateway import Gateway

REASONS: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 413: "Content Too Large", 414: "URI Too Long", 417: "Expectation Failed",
    429: "Too Many Requests", 431: "Request Header Fields Too Large", 502: "Bad Gateway", 503: "Service Unavailable",
    504: "Gateway Timeout",
}  # fmt: skip


def build_reply_head(reply: LocalReply, *, date: str, is_persistent: bool) -> bytes:
    """Return the head of a local reply. `is_persistent`: whether the connection stays open after it."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
    connection_line = "" if is_persistent else "connection: close\r\n"
    reason = REASONS.get(reply.status, "Answered")
    head = f"HTTP/1.1 {reply.status} {reason}\r\ndate: {date}\r\n{lines}content-length: {len(reply.body)}\r\n{connection_line}\r\n"
    return head.encode("latin-1")


class CallerReplies(CallerTransport):
    """A connection of a caller that writes replies."""

    __slots__ = ("_unsent_head", "_writes_chunks")

    def __init__(self, gateway: "Gateway") -> None:
        super().__init__(gateway)
        self._unsent_head = b""
        self._writes_chunks = False

    def _write_head(self, proxied: ProxiedRequest, head: ReplyHead) -> None:
        """Build the head of the service's reply with the limiter's headers, and hold it until the body begins."""
        gateway, admitted = self.gateway, proxied.admitted
        if head.measured_ms is not None and admitted is not None and gateway.settings.trusts_marks:
            admitted.measured_ms = head.measured_ms
        lines = head.lines
        parts = [head.status_line]
        if not head.has_date:
            # Clients compare this date with their clock, to know when `x-ratelimit-reset` is reached.
            parts.append(b"date: %b\r\n" % gateway.format_date().encode())
        if admitted is not None and admitted.decision is not None:
            parts += drop_limit_headers(lines) if head.has_limits else lines
            parts.append(gateway.decision_service.build_header_block(admitted))
        else:
            parts += lines
        if proxied.head.has_origin:
            parts.append(b"access-control-expose-headers: %s\r\n" % EXPOSED_HEADERS.encode())
        self._writes_chunks = False
        if head.length in (CHUNKED, UNTIL_CLOSE):
            if proxied.head.is_http_10:
                proxied.is_persistent = False
            else:
                self._writes_chunks = True
                parts.append(b"transfer-encoding: chunked\r\n")
        if gateway.is_ending:
            proxied.is_persistent = False
        if not proxied.is_persistent:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        proxied.has_begun = True
        gateway.count_reply(head.status)
        # Written together with the first bytes of the body: one packet instead of two.
        self._unsent_head = b"".join(parts)

    def on_reply_body(self, data: bytes) -> None:
        if self._writes_chunks:
            data = encode_chunk(data)
        if self._unsent_head:
            data, self._unsent_head = self._unsent_head + data, b""
        self.write(data)

    def _flush_head(self) -> None:
        if self._unsent_head:
            unsent_head, self._unsent_head = self._unsent_head, b""
            self.write(unsent_head)

    def _write_reply(self, reply: LocalReply, body: bytes, *, is_persistent: bool) -> None:
        self.gateway.count_reply(reply.status)
        self.write(build_reply_head(reply, date=self.gateway.format_date(), is_persistent=is_persistent) + body)
