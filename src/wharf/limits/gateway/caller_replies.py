"""What callers are sent: heads of the service with the limits in them, bodies framed anew, and replies of ours.

Which reply it is others decide. Nothing is held back longer than until the first bytes of its body.
"""

from typing import TYPE_CHECKING

from wharf.limits.desk.arrival import Reply
from wharf.limits.desk.telling import EXPOSED
from wharf.limits.gateway.caller_wire import CallerWire
from wharf.limits.gateway.chunks import as_chunk
from wharf.limits.gateway.exchange import Exchange
from wharf.limits.gateway.heads import CHUNKED, UNTIL_CLOSE, ReplyHead, without_limits
from wharf.limits.gateway.own_replies import reply_head

if TYPE_CHECKING:
    from wharf.limits.gateway.gateway import Gateway


class CallerReplies(CallerWire):
    __slots__ = ("_held", "_writes_chunks")

    def __init__(self, gateway: "Gateway") -> None:
        super().__init__(gateway)
        self._held = b""
        self._writes_chunks = False

    def _write_head(self, exchange: Exchange, head: ReplyHead) -> None:
        gateway, passage = self.gateway, exchange.passage
        if head.measured_ms is not None and passage is not None and gateway.settings.trusts_marks:
            passage.measured_ms = head.measured_ms
        kept = head.kept
        parts = [head.line]
        if not head.has_date:
            # Clients tell by it how far their clock is from ours, on which the reset is told.
            parts.append(b"date: %b\r\n" % gateway.date().encode())
        if passage is not None and passage.decision is not None:
            parts += without_limits(kept) if head.has_limits else kept
            parts.append(gateway.desk.block(passage))
        else:
            parts += kept
        if exchange.head.has_origin:
            parts.append(b"access-control-expose-headers: %s\r\n" % EXPOSED.encode())
        self._writes_chunks = False
        if head.length in (CHUNKED, UNTIL_CLOSE):
            if exchange.head.is_old:
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
        gateway.on_reply(head.status)
        # Written with the first bytes of the body, if there are any: one packet instead of two.
        self._held = b"".join(parts)

    def on_reply_body(self, data: bytes) -> None:
        if self._writes_chunks:
            data = as_chunk(data)
        if self._held:
            data, self._held = self._held + data, b""
        self.write(data)

    def _flush_head(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self.write(held)

    def _write_reply(self, reply: Reply, body: bytes, *, stays: bool) -> None:
        self.gateway.on_reply(reply.status)
        self.write(reply_head(reply, date=self.gateway.date(), stays=stays) + body)
