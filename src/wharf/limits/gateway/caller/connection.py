"""Connections of callers: each request is decided, sent to the service, and the reply is sent back.

The decision service decides what is refused and with which text. This module guarantees that a request gets only one
reply, that the bytes of two requests are never mixed, and that every slot is freed.
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
"""Methods that are sent again if an idle connection turns out to be closed."""


class CallerConnection(CallerRequests):
    """The connection of a caller, with the current request and its connection to the service."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.gateway.on_connection(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - The reason makes no difference.
        self.is_closed = True
        self.gateway.on_connection_lost(self)
        proxied, upstream = self.proxied, self._upstream
        self.proxied = self._upstream = None
        if upstream is not None:
            upstream.caller = None
            upstream.abort()
        if proxied is None:
            return
        proxied.is_over = True
        self.gateway.pool.cancel_wait(self)
        if proxied.admitted is not None:
            decision_service = self.gateway.decision_service
            if proxied.is_sent:
                decision_service.end_request_later(proxied.admitted)
            elif decision_service.is_local:
                run_immediately(decision_service.on_caller_gone(proxied.admitted))
            else:
                decision_service.start_task(decision_service.on_caller_gone(proxied.admitted))

    def pause_writing(self) -> None:
        proxied = self.proxied
        if proxied is not None and proxied.admitted is not None:
            proxied.admitted.pause_work(self.gateway.now_s())
        if self._upstream is not None:
            self._upstream.pause_reading()
            self._upstream.deadline_s = 0.0
            self.deadline_s = self.gateway.now_s() + self.gateway.idle_s

    def resume_writing(self) -> None:
        proxied = self.proxied
        if proxied is not None and proxied.admitted is not None:
            proxied.admitted.resume_work(self.gateway.now_s())
        if self._upstream is not None:
            self._upstream.resume_reading()
            if not self._upstream.is_tunnel:
                self._upstream.deadline_s = self.gateway.pool.compute_deadline_s()
            self.deadline_s = 0.0

    def on_upstream_full(self, upstream: UpstreamConnection) -> None:
        """Stop reading from the caller, because the service does not read. The deadline now applies to the service."""
        self.pause_reading()
        if not upstream.is_tunnel:
            self.deadline_s = 0.0
            upstream.deadline_s = self.gateway.pool.compute_deadline_s()

    def on_upstream_drained(self, upstream: UpstreamConnection) -> None:
        self.resume_reading()
        proxied = self.proxied
        if proxied is None or upstream.is_tunnel:
            return
        if proxied.is_body_read:
            upstream.deadline_s = self.gateway.pool.compute_deadline_s()
        else:
            self._await_body(upstream)

    def _await_body(self, upstream: UpstreamConnection) -> None:
        """Set a deadline for the rest of the caller's body, and none for the service, which waits for it."""
        self.deadline_s = self.gateway.now_s() + self.gateway.idle_s
        upstream.deadline_s = 0.0

    def _decide(self, proxied: ProxiedRequest, body: bytes | None) -> None:
        decision_service = self.gateway.decision_service
        if self.gateway.is_bare:
            self._forward(proxied)
        elif decision_service.is_local:
            self._on_decided(proxied, decision_service.admit_locally(proxied.incoming, body))
        else:
            self._is_deciding = True
            self._start_task(self._decide_async(proxied, body))

    async def _decide_async(self, proxied: ProxiedRequest, body: bytes | None) -> None:
        result = await self.gateway.decision_service.admit(proxied.incoming, body)
        self._is_deciding = False
        if proxied.is_over:
            if isinstance(result, AdmittedRequest):
                await self.gateway.decision_service.on_caller_gone(result)
            return
        self._on_decided(proxied, result)
        self.resume_reading()
        self._advance()

    def _on_decided(self, proxied: ProxiedRequest, result: AdmittedRequest | LocalReply) -> None:
        if isinstance(result, LocalReply):
            self._finish_with_reply(proxied, result)
            return
        proxied.admitted = result
        if proxied.incoming.method in ("GET", "HEAD") and self.gateway.is_page(proxied.incoming.path):
            self._is_deciding = True
            self._start_task(self._serve_page(proxied, result))
            return
        self._forward(proxied)

    async def _serve_page(self, proxied: ProxiedRequest, admitted: AdmittedRequest) -> None:
        page = await self.gateway.decision_service.render_page(proxied.incoming, admitted)
        if page is None:  # Limits are off, and so is this page: the service may have one at this path.
            self._is_deciding = False
            if not proxied.is_over:
                self._forward(proxied)
            return
        await self.gateway.decision_service.end_request(admitted)
        self._write_local_reply(proxied, page)

    async def _serve_own_page(self, proxied: ProxiedRequest) -> None:
        self._write_local_reply(proxied, await self.gateway.render_own_page(proxied.incoming))

    def _write_local_reply(self, proxied: ProxiedRequest, reply: LocalReply) -> None:
        """Send a local reply after an asynchronous step, and continue reading."""
        self._is_deciding = False
        if proxied.is_over or self.is_closed:
            return
        self._finish_with_reply(proxied, reply)
        self.resume_reading()
        self._advance()

    @property
    def is_head_request(self) -> bool:
        return self.proxied is not None and self.proxied.head.method == b"HEAD"

    @property
    def is_upgrade_request(self) -> bool:
        return self.proxied is not None and self.proxied.head.is_websocket

    @property
    def has_sent_all(self) -> bool:
        return self.proxied is None or self.proxied.is_body_read

    def _forward(self, proxied: ProxiedRequest) -> None:
        pool = self.gateway.pool
        upstream = pool.take_idle()
        if upstream is not None:
            self._send_to(upstream, proxied)
        else:
            pool.start_connecting(self)

    def on_upstream_ready(self, upstream: UpstreamConnection) -> bool:
        """Send the request over a new or freed connection. Return false if the connection is no longer needed."""
        proxied = self.proxied
        if proxied is None or proxied.is_over or proxied.is_sent:
            return False
        self._send_to(upstream, proxied)
        self.resume_reading()
        return True

    def _send_to(self, upstream: UpstreamConnection, proxied: ProxiedRequest) -> None:
        head = proxied.head
        self._upstream = upstream
        upstream.caller = self
        upstream.deadline_s = self.gateway.pool.compute_deadline_s()
        proxied.is_sent = True
        proxied.may_retry = upstream.was_used and head.method in RETRIED_METHODS and head.length == 0
        data = self.gateway.build_request_head(proxied, self._peer, self._scheme)
        if proxied.unsent_parts or proxied.is_body_read:
            data += proxied.frame_body(b"".join(proxied.unsent_parts))
            proxied.unsent_parts = []
        if not proxied.is_body_read:
            if head.has_expect_continue and not proxied.has_begun and proxied.body_left == max(0, head.length):
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if proxied.admitted is not None:
                proxied.admitted.pause_work(self.gateway.now_s())
            self._await_body(upstream)
        upstream.write(data)

    def _pass_body(self, proxied: ProxiedRequest, body: bytes) -> None:
        upstream = self._upstream
        if upstream is None:
            # The connection is not open yet, or it was lost and an error reply is being sent.
            if body:
                proxied.unsent_parts.append(body)
            if sum(map(len, proxied.unsent_parts)) > MAX_PIPELINED_BYTES:
                self.pause_reading()
            return
        data = proxied.frame_body(body)
        if proxied.is_body_read:
            self.deadline_s = 0.0
            upstream.deadline_s = self.gateway.pool.compute_deadline_s()
            if proxied.admitted is not None:
                proxied.admitted.resume_work(self.gateway.now_s())
        else:
            self._await_body(upstream)
        upstream.write(data)

    def on_reply_head(self, head: ReplyHead, rest: bytes) -> None:
        proxied, upstream = self.proxied, self._upstream
        assert proxied is not None
        assert upstream is not None
        admitted = proxied.admitted
        if admitted is not None and (head.status == 304 or head.status >= 500 or head.is_content):
            if not self.gateway.decision_service.is_local:
                upstream.pause_reading()
                self._start_task(self._apply_charges_then_write(proxied, upstream, admitted, head, rest))
                return
            run_immediately(self._apply_charges(admitted, head))
        self._write_head(proxied, head)
        upstream.read_body(rest)
        self._flush_head()

    async def _apply_charges(self, admitted: AdmittedRequest, head: ReplyHead) -> None:
        """Refund or charge what depends on the service's reply, before the head with the limits is written."""
        decision_service = self.gateway.decision_service
        await decision_service.on_status(admitted, head.status)
        if head.is_content and self.gateway.settings.trusts_marks:
            await decision_service.on_content_created(admitted)

    async def _apply_charges_then_write(
        self,
        proxied: ProxiedRequest,
        upstream: UpstreamConnection,
        admitted: AdmittedRequest,
        head: ReplyHead,
        rest: bytes,
    ) -> None:
        await self._apply_charges(admitted, head)
        if proxied.is_over or self._upstream is not upstream:
            return
        self._write_head(proxied, head)
        upstream.resume_reading()
        upstream.read_body(rest)
        self._flush_head()

    def on_reply_end(self, upstream: UpstreamConnection | None) -> None:  # noqa: ARG002
        self._upstream = None
        proxied = self.proxied
        if proxied is None:
            return
        last = LAST_CHUNK if self._writes_chunks else b""
        if self._unsent_head or last:
            unsent_head, self._unsent_head = self._unsent_head, b""
            self.write(unsent_head + last)
        self._finish(proxied)

    def _finish(self, proxied: ProxiedRequest) -> None:
        """End the request after its reply: free the slot, and close the connection or begin the next request."""
        proxied.is_over = True
        self.proxied = None
        if proxied.admitted is not None:
            self.gateway.decision_service.end_request_later(proxied.admitted)
        if self.is_closed:
            return
        if not proxied.is_persistent:
            self._close_gracefully(proxied)
            return
        if not proxied.is_body_read:
            self._drained_request, self._drained_bytes = proxied, 0
        self.deadline_s = self.gateway.now_s() + self.gateway.idle_s
        self.resume_reading()
        if self._buffer:
            asyncio.get_running_loop().call_soon(self._advance)

    def _finish_with_reply(self, proxied: ProxiedRequest, reply: LocalReply) -> None:
        """Send a local reply. A short unread body is drained; with a long one the connection is closed."""
        if proxied.is_over or self.is_closed:
            return
        is_long = proxied.body_left > MAX_DRAINED_BYTES
        if (not proxied.is_body_read and (is_long or proxied.head.has_expect_continue)) or self.gateway.is_ending:
            proxied.is_persistent = False
        body = b"" if proxied.head.method == b"HEAD" else reply.body
        self._write_reply(reply, body, is_persistent=proxied.is_persistent)
        proxied.has_begun = True
        self._finish(proxied)

    def _reject_body(self, proxied: ProxiedRequest, message: str, status: int = 400) -> None:
        """Refuse a malformed body and end the connection, because the end of the body is unknown."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.caller = None
            upstream.abort()
        proxied.is_persistent = False
        proxied.is_body_read = True
        if proxied.has_begun:
            proxied.is_over = True
            self.abort()
            return
        self.gateway.pool.cancel_wait(self)
        self._start_error_reply(proxied, message, status)

    def _start_error_reply(self, proxied: ProxiedRequest, message: str, status: int) -> None:
        self._is_deciding = True
        self._start_task(self._write_error_reply(proxied, message, status))

    async def _write_error_reply(self, proxied: ProxiedRequest, message: str, status: int) -> None:
        decision_service, admitted = self.gateway.decision_service, proxied.admitted
        if admitted is not None:
            await decision_service.on_status(admitted, status)
        self._write_local_reply(
            proxied, await decision_service.render_error(proxied.incoming, status, message, admitted)
        )

    def on_upstream_lost(self, upstream: UpstreamConnection, *, was_used: bool) -> None:
        if self._upstream is not upstream:
            return
        self._upstream = None
        proxied = self.proxied
        if proxied is None:
            return
        if was_used and proxied.may_retry and not proxied.has_begun:
            # The service closed an idle connection just as it was used. It has not read the request: send it again.
            proxied.is_sent = proxied.may_retry = False
            self.gateway.pool.start_connecting(self)
            return
        self._on_failure(proxied, "The service closed the connection before it answered.", 502)

    def on_bad_reply(self, reason: str) -> None:
        self._upstream = None
        if self.proxied is not None:
            self._on_failure(self.proxied, f"The service's reply is not understood: {reason}.", 502)

    def on_upstream_failed(self, message: str, *, status: int) -> None:
        self._upstream = None
        if self.proxied is not None and not self.proxied.is_over:
            self._on_failure(self.proxied, message, status)

    def _on_failure(self, proxied: ProxiedRequest, message: str, status: int) -> None:
        self.gateway.failures += 1
        if proxied.has_begun and not self._unsent_head:
            # A part of the reply was sent, so an error reply is impossible: reset the connection.
            self.abort()
            return
        self._unsent_head = b""
        self._start_error_reply(proxied, message, status)

    def on_tunnel(self, head: ReplyHead, rest: bytes) -> None:
        proxied, upstream = self.proxied, self._upstream
        assert proxied is not None
        assert upstream is not None
        admitted = proxied.admitted
        block = b""
        if admitted is not None:
            admitted.pause_work(self.gateway.now_s())
            block = self.gateway.decision_service.build_header_block(admitted)
        lines = b"".join(head.lines)
        self.gateway.count_reply(101)
        proxied.has_begun = True
        self.deadline_s = 0.0
        self.write(head.status_line + lines + block + b"connection: Upgrade\r\nupgrade: websocket\r\n\r\n" + rest)
        if self._buffer:
            early_bytes, self._buffer = self._buffer, b""
            upstream.write(early_bytes)

    def on_tunnel_closed(self) -> None:
        self._upstream = None
        self.close()

    def on_deadline(self) -> None:
        """Handle a timeout of the caller: an incomplete head or body, an unread reply, or an idle connection."""
        self.deadline_s = 0.0
        proxied = self.proxied
        if self._is_lingering or (proxied is None and not self._buffer):
            self.close()
        elif proxied is None:
            self._refuse_head("The head of the request did not arrive in time.", 408)
        elif proxied.has_begun:
            self.abort()
        elif not proxied.is_body_read:
            proxied.body_parts = None
            self._reject_body(proxied, "The body of the request did not arrive in time.", 408)
