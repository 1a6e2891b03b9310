"""Replies that are ours and not the service's, as bytes: refusals, pages, and what went wrong on the way.

What callers are sent: heads of the service with the limits in them, bodies framed anew, and replies of ours.

Which reply it is others decide. Nothing is held back longer than until the first bytes of its body.
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
    """The head of a reply; `stays`: whether the connection goes on after it."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in reply.headers)
    more = "" if is_persistent else "connection: close\r\n"
    reason = REASONS.get(reply.status, "Answered")
    head = f"HTTP/1.1 {reply.status} {reason}\r\ndate: {date}\r\n{lines}content-length: {len(reply.body)}\r\n{more}\r\n"
    return head.encode("latin-1")


class CallerReplies(CallerTransport):
    __slots__ = ("_held", "_writes_chunks")

    def __init__(self, gateway: "Gateway") -> None:
        super().__init__(gateway)
        self._held = b""
        self._writes_chunks = False

    def _write_head(self, exchange: ProxiedRequest, head: ReplyHead) -> None:
        gateway, passage = self.gateway, exchange.passage
        if head.measured_ms is not None and passage is not None and gateway.settings.trusts_marks:
            passage.measured_ms = head.measured_ms
        kept = head.lines
        parts = [head.status_line]
        if not head.has_date:
            # Clients tell by it how far their clock is from ours, on which the reset is told.
            parts.append(b"date: %b\r\n" % gateway.format_date().encode())
        if passage is not None and passage.decision is not None:
            parts += drop_limit_headers(kept) if head.has_limits else kept
            parts.append(gateway.decision_service.build_header_block(passage))
        else:
            parts += kept
        if exchange.head.has_origin:
            parts.append(b"access-control-expose-headers: %s\r\n" % EXPOSED_HEADERS.encode())
        self._writes_chunks = False
        if head.length in (CHUNKED, UNTIL_CLOSE):
            if exchange.head.is_http_10:
                exchange.stays = False
            else:
                self._writes_chunks = True
                parts.append(b"transfer-encoding: chunked\r\n")
        if gateway.is_ending:
            exchange.stays = False
        if not exchange.stays:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        exchange.has_begun = True
        gateway.count_reply(head.status)
        # Written with the first bytes of the body, if there are any: one packet instead of two.
        self._held = b"".join(parts)

    def on_reply_body(self, data: bytes) -> None:
        if self._writes_chunks:
            data = encode_chunk(data)
        if self._held:
            data, self._held = self._held + data, b""
        self.write(data)

    def _flush_head(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self.write(held)

    def _write_reply(self, reply: LocalReply, body: bytes, *, stays: bool) -> None:
        self.gateway.count_reply(reply.status)
        self.write(build_reply_head(reply, date=self.gateway.format_date(), is_persistent=stays) + body)
