"""Connections of callers: what becomes of their requests. Each is decided, handed on, and its reply passed back.

What is refused, and with which words, others decide. Here is what may never happen on the way: a second reply, bytes of
one request taken for another's, a slot that stays held.
"""

import asyncio
from typing import Final

from wharf.limits.decisions.requests import AdmittedRequest, LocalReply
from wharf.limits.decisions.service import run_immediately
from wharf.limits.gateway.caller.requests import MAX_DRAINED_BYTES, MAX_PIPELINED_BYTES, CallerRequests
from wharf.limits.gateway.chunks import LAST_CHUNK
from wharf.limits.gateway.heads import ReplyHead
from wharf.limits.gateway.proxied_request import ProxiedRequest
from wharf.limits.gateway.upstream import UpstreamConnection

RETRIED_METHODS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})


class CallerConnection(CallerRequests):
    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.gateway.on_connection(self)

    def connection_lost(self, problem: Exception | None) -> None:  # noqa: ARG002 - A caller may leave as it likes.
        self.is_closed = True
        self.gateway.on_connection_lost(self)
        exchange, service = self.exchange, self._service
        self.exchange = self._service = None
        if service is not None:
            service.caller = None
            service.abort()
        if exchange is None:
            return
        exchange.is_over = True
        self.gateway.pool.cancel_wait(self)
        if exchange.passage is not None:
            desk = self.gateway.decision_service
            if exchange.is_handed_on:
                desk.end_request_later(exchange.passage)
            elif desk.is_local:
                run_immediately(desk.on_caller_gone(exchange.passage))
            else:
                desk.start_task(desk.on_caller_gone(exchange.passage))

    def pause_writing(self) -> None:
        exchange = self.exchange
        if exchange is not None and exchange.passage is not None:
            exchange.passage.pause_work(self.gateway.now_s())
        if self._service is not None:
            self._service.pause_reading()
            self._service.deadline_s = 0.0
            self.deadline_s = self.gateway.now_s() + self.gateway.idle_s

    def resume_writing(self) -> None:
        exchange = self.exchange
        if exchange is not None and exchange.passage is not None:
            exchange.passage.resume_work(self.gateway.now_s())
        if self._service is not None:
            self._service.resume_reading()
            if not self._service.is_tunnel:
                self._service.deadline_s = self.gateway.pool.compute_deadline_s()
            self.deadline_s = 0.0

    def on_upstream_full(self, service: UpstreamConnection) -> None:
        """The service does not read what it was sent: now it is the one that is waited for."""
        self.pause_reading()
        if not service.is_tunnel:
            self.deadline_s = 0.0
            service.deadline_s = self.gateway.pool.compute_deadline_s()

    def on_upstream_drained(self, service: UpstreamConnection) -> None:
        self.resume_reading()
        exchange = self.exchange
        if exchange is None or service.is_tunnel:
            return
        if exchange.is_body_read:
            service.deadline_s = self.gateway.pool.compute_deadline_s()
        else:
            self._await_body(service)

    def _await_body(self, service: UpstreamConnection) -> None:
        """The caller owes more of a body. The service owes nothing, until it has all."""
        self.deadline_s = self.gateway.now_s() + self.gateway.idle_s
        service.deadline_s = 0.0

    def _decide(self, exchange: ProxiedRequest, body: bytes | None) -> None:
        desk = self.gateway.decision_service
        if self.gateway.is_bare:
            self._hand_on(exchange)
        elif desk.is_local:
            self._on_decided(exchange, desk.admit_locally(exchange.arrival, body))
        else:
            self._is_deciding = True
            self._start(self._decide_later(exchange, body))

    async def _decide_later(self, exchange: ProxiedRequest, body: bytes | None) -> None:
        admitted = await self.gateway.decision_service.admit(exchange.arrival, body)
        self._is_deciding = False
        if exchange.is_over:
            if isinstance(admitted, AdmittedRequest):
                await self.gateway.decision_service.on_caller_gone(admitted)
            return
        self._on_decided(exchange, admitted)
        self.resume_reading()
        self._advance()

    def _on_decided(self, exchange: ProxiedRequest, admitted: AdmittedRequest | LocalReply) -> None:
        if isinstance(admitted, LocalReply):
            self._answer(exchange, admitted)
            return
        exchange.passage = admitted
        if exchange.arrival.method in ("GET", "HEAD") and self.gateway.is_page(exchange.arrival.path):
            self._is_deciding = True
            self._start(self._answer_page(exchange, admitted))
            return
        self._hand_on(exchange)

    async def _answer_page(self, exchange: ProxiedRequest, passage: AdmittedRequest) -> None:
        page = await self.gateway.decision_service.render_page(exchange.arrival, passage)
        if page is None:  # Limits are off, and this page with them: the service may have one.
            self._is_deciding = False
            if not exchange.is_over:
                self._hand_on(exchange)
            return
        await self.gateway.decision_service.end_request(passage)
        self._go_on_with(exchange, page)

    async def _answer_own(self, exchange: ProxiedRequest) -> None:
        self._go_on_with(exchange, await self.gateway.render_own_page(exchange.arrival))

    def _go_on_with(self, exchange: ProxiedRequest, reply: LocalReply) -> None:
        """A reply that was waited for is here."""
        self._is_deciding = False
        if exchange.is_over or self.is_closed:
            return
        self._answer(exchange, reply)
        self.resume_reading()
        self._advance()

    @property
    def is_head_request(self) -> bool:
        return self.exchange is not None and self.exchange.head.method == b"HEAD"

    @property
    def is_upgrade_request(self) -> bool:
        return self.exchange is not None and self.exchange.head.is_websocket

    @property
    def has_sent_all(self) -> bool:
        return self.exchange is None or self.exchange.is_body_read

    def _hand_on(self, exchange: ProxiedRequest) -> None:
        pool = self.gateway.pool
        service = pool.take_idle()
        if service is not None:
            self._send_to(service, exchange)
        else:
            pool.start_connecting(self)

    def on_upstream_ready(self, service: UpstreamConnection) -> bool:
        """There is a connection. Whether it is still wanted."""
        exchange = self.exchange
        if exchange is None or exchange.is_over or exchange.is_handed_on:
            return False
        self._send_to(service, exchange)
        self.resume_reading()
        return True

    def _send_to(self, service: UpstreamConnection, exchange: ProxiedRequest) -> None:
        head = exchange.head
        self._service = service
        service.caller = self
        service.deadline_s = self.gateway.pool.compute_deadline_s()
        exchange.is_handed_on = True
        exchange.may_retry = service.was_used and head.method in RETRIED_METHODS and head.length == 0
        data = self.gateway.build_request_head(exchange, self._peer, self._proto)
        if exchange.pending or exchange.is_body_read:
            data += exchange.frame_body(b"".join(exchange.pending))
            exchange.pending = []
        if not exchange.is_body_read:
            if head.has_expect_continue and not exchange.has_begun and exchange.body_left == max(0, head.length):
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if exchange.passage is not None:
                exchange.passage.pause_work(self.gateway.now_s())
            self._await_body(service)
        service.write(data)

    def _pass_body(self, exchange: ProxiedRequest, body: bytes) -> None:
        service = self._service
        if service is None:
            # Decided and not connected yet, or the service is gone and its reply said so.
            if body:
                exchange.pending.append(body)
            if sum(map(len, exchange.pending)) > MAX_PIPELINED_BYTES:
                self.pause_reading()
            return
        data = exchange.frame_body(body)
        if exchange.is_body_read:
            self.deadline_s = 0.0
            service.deadline_s = self.gateway.pool.compute_deadline_s()
            if exchange.passage is not None:
                exchange.passage.resume_work(self.gateway.now_s())
        else:
            self._await_body(service)
        service.write(data)

    def on_reply_head(self, head: ReplyHead, rest: bytes) -> None:
        exchange, service = self.exchange, self._service
        assert exchange is not None
        assert service is not None
        passage = exchange.passage
        if passage is not None and (head.status == 304 or head.status >= 500 or head.is_content):
            if not self.gateway.decision_service.is_local:
                service.pause_reading()
                self._start(self._settle_then_write(exchange, service, passage, head, rest))
                return
            run_immediately(self._settle(passage, head))
        self._write_head(exchange, head)
        service.read_body(rest)
        self._flush_head()

    async def _settle(self, passage: AdmittedRequest, head: ReplyHead) -> None:
        """What a reply gives back or charges, before it is told."""
        desk = self.gateway.decision_service
        await desk.on_status(passage, head.status)
        if head.is_content and self.gateway.settings.trusts_marks:
            await desk.on_content_created(passage)

    async def _settle_then_write(
        self,
        exchange: ProxiedRequest,
        service: UpstreamConnection,
        passage: AdmittedRequest,
        head: ReplyHead,
        rest: bytes,
    ) -> None:
        await self._settle(passage, head)
        if exchange.is_over or self._service is not service:
            return
        self._write_head(exchange, head)
        service.resume_reading()
        service.read_body(rest)
        self._flush_head()

    def on_reply_end(self, service: UpstreamConnection | None) -> None:  # noqa: ARG002
        self._service = None
        exchange = self.exchange
        if exchange is None:
            return
        last = LAST_CHUNK if self._writes_chunks else b""
        if self._held or last:
            held, self._held = self._held, b""
            self.write(held + last)
        self._finish(exchange)

    def _finish(self, exchange: ProxiedRequest) -> None:
        """The reply is out. The slot is free, and the next request may begin."""
        exchange.is_over = True
        self.exchange = None
        if exchange.passage is not None:
            self.gateway.decision_service.end_request_later(exchange.passage)
        if self.is_closed:
            return
        if not exchange.stays:
            self._close_softly(exchange)
            return
        if not exchange.is_body_read:
            self._left_to_drain, self._drained = exchange, 0
        self.deadline_s = self.gateway.now_s() + self.gateway.idle_s
        self.resume_reading()
        if self._buffer:
            asyncio.get_running_loop().call_soon(self._advance)

    def _answer(self, exchange: ProxiedRequest, reply: LocalReply) -> None:
        """Answer in the service's place. Of a body that nobody reads some is drained, else the connection ends."""
        if exchange.is_over or self.is_closed:
            return
        is_long = exchange.body_left > MAX_DRAINED_BYTES
        if (not exchange.is_body_read and (is_long or exchange.head.has_expect_continue)) or self.gateway.is_ending:
            exchange.stays = False
        body = b"" if exchange.head.method == b"HEAD" else reply.body
        self._write_reply(reply, body, stays=exchange.stays)
        exchange.has_begun = True
        self._finish(exchange)

    def _break(self, exchange: ProxiedRequest, message: str, status: int = 400) -> None:
        """The body of a request is malformed: whatever follows cannot be told apart."""
        service, self._service = self._service, None
        if service is not None:
            service.caller = None
            service.abort()
        exchange.stays = False
        exchange.is_body_read = True
        if exchange.has_begun:
            exchange.is_over = True
            self.abort()
            return
        self.gateway.pool.cancel_wait(self)
        self._fail_with(exchange, message, status)

    def _fail_with(self, exchange: ProxiedRequest, message: str, status: int) -> None:
        self._is_deciding = True
        self._start(self._fail_later(exchange, message, status))

    async def _fail_later(self, exchange: ProxiedRequest, message: str, status: int) -> None:
        desk, passage = self.gateway.decision_service, exchange.passage
        if passage is not None:
            await desk.on_status(passage, status)
        self._go_on_with(exchange, await desk.render_error(exchange.arrival, status, message, passage))

    def on_upstream_lost(self, service: UpstreamConnection, *, was_used: bool) -> None:
        if self._service is not service:
            return
        self._service = None
        exchange = self.exchange
        if exchange is None:
            return
        if was_used and exchange.may_retry and not exchange.has_begun:
            # It closed a connection that was idle, as it may, at the moment in which we used it. Nothing was done.
            exchange.is_handed_on = exchange.may_retry = False
            self.gateway.pool.start_connecting(self)
            return
        self._on_failure(exchange, "The service closed the connection before it answered.", 502)

    def on_bad_reply(self, why: str) -> None:
        self._service = None
        if self.exchange is not None:
            self._on_failure(self.exchange, f"The service's reply is not understood: {why}.", 502)

    def on_upstream_failed(self, message: str, *, status: int) -> None:
        self._service = None
        if self.exchange is not None and not self.exchange.is_over:
            self._on_failure(self.exchange, message, status)

    def _on_failure(self, exchange: ProxiedRequest, message: str, status: int) -> None:
        self.gateway.failures += 1
        if exchange.has_begun and not self._held:
            # A part of the reply is out: the only true thing left to say is that it ends here.
            self.abort()
            return
        self._held = b""
        self._fail_with(exchange, message, status)

    def on_tunnel(self, head: ReplyHead, rest: bytes) -> None:
        exchange, service = self.exchange, self._service
        assert exchange is not None
        assert service is not None
        passage = exchange.passage
        block = b""
        if passage is not None:
            passage.pause_work(self.gateway.now_s())
            block = self.gateway.decision_service.build_header_block(passage)
        lines = b"".join(head.lines)
        self.gateway.count_reply(101)
        exchange.has_begun = True
        self.deadline_s = 0.0
        self.write(head.status_line + lines + block + b"connection: Upgrade\r\nupgrade: websocket\r\n\r\n" + rest)
        if self._buffer:
            early, self._buffer = self._buffer, b""
            service.write(early)

    def on_tunnel_closed(self) -> None:
        self._service = None
        self.close()

    def on_deadline(self) -> None:
        """It took too long: a head that does not end, a body that pauses, a caller who does not read, or nothing at all."""
        self.deadline_s = 0.0
        exchange = self.exchange
        if self._lingers or (exchange is None and not self._buffer):
            self.close()
        elif exchange is None:
            self._refuse_head("The head of the request did not arrive in time.", 408)
        elif exchange.has_begun:
            self.abort()
        elif not exchange.is_body_read:
            exchange.gathered = None
            self._break(exchange, "The body of the request did not arrive in time.", 408)
