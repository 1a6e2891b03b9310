"""Connections of callers: each request is read, decided, and then forwarded to the service or answered here.

The decision service decides what is refused and with which text. This module guarantees that a request gets only one
reply, that the bytes of two requests are never mixed, and that every slot is freed.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from wharf.limits.decisions.requests import AdmittedRequest, IncomingRequest, LocalReply
from wharf.limits.decisions.service import run_immediately
from wharf.limits.gateway.caller.forwarding import RequestForwarder
from wharf.limits.gateway.caller.replies import ReplyWriter
from wharf.limits.gateway.caller.requests import MAX_DRAINED_BYTES, RequestReader
from wharf.limits.gateway.caller.transport import CallerTransport
from wharf.limits.gateway.chunks import BadChunk
from wharf.limits.gateway.environment import HEALTH_PATHS, GatewayEnvironment
from wharf.limits.gateway.heads import BadHead
from wharf.limits.gateway.proxied_request import ProxiedRequest

RETRY_AFTER_S: Final = 1
"""After this time a caller may send a request again that was refused because of the gateway's memory."""
REQUESTS_PER_STEP: Final = 16
"""Requests of a connection that begin before other connections have their turn; limits how long one caller holds the loop."""


class CallerConnection(asyncio.Protocol):
    """The connection of a caller: reads its requests one after the other, and answers or forwards each.

    `connection_made` creates the parts of the connection.
    """

    __slots__ = (
        "_environment",
        "_forwarder",
        "_is_caller_full",
        "_is_deciding",
        "_is_scheduled",
        "_is_stopped",
        "_on_closed",
        "_on_opened",
        "_reader",
        "_replies",
        "request",
        "transport",
    )
    transport: CallerTransport
    _reader: RequestReader
    _replies: ReplyWriter
    _forwarder: RequestForwarder

    def __init__(
        self,
        environment: GatewayEnvironment,
        on_opened: "Callable[[CallerConnection], None]",
        on_closed: "Callable[[CallerConnection], None]",
    ) -> None:
        self.request: ProxiedRequest | None = None
        self._environment = environment
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._is_deciding = False
        """Whether the decision service works on the request: until it is done, no more of the body is read."""
        self._is_scheduled = False
        """Whether the next step is due in the next iteration of the loop."""
        self._is_stopped = False
        """Whether the caller has left: nothing more is done for it."""
        self._is_caller_full = False
        """Whether the caller does not read its replies: until it does, no further request begins."""

    # -- callbacks of the socket -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Create the parts of the connection, and set the deadline for the first request."""
        environment = self._environment
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = CallerTransport(cast(asyncio.Transport, transport), environment.now_s)
        self.transport.deadline_s = environment.now_s() + environment.head_timeout_s
        self.transport.on_resumed = self._schedule
        self._reader = RequestReader(environment.settings, environment.head_reader)
        self._replies = ReplyWriter(self.transport, environment)
        self._forwarder = RequestForwarder(
            environment,
            self.transport,
            self._reader,
            self._replies,
            on_finished=self._finish,
            on_failed=self._start_error_reply,
        )
        self._environment.idle_connections[self] = None
        self._on_opened(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - The reason makes no difference.
        """End everything that was begun for the caller."""
        self._stop()
        self._on_closed(self)

    def _stop(self) -> None:
        """Stop forwarding and end the current request; refund it if it was not sent to the service."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self.transport.is_closed = True
        self._environment.idle_connections.pop(self, None)
        self._environment.collected_bodies.discard(self)
        self._forwarder.close()
        request, self.request = self.request, None
        if request is None:
            return
        request.is_ended = True
        if request.admitted is not None:
            decision_service = self._environment.decision_service
            if request.is_sent:
                decision_service.end_request_later(request.admitted)
            elif decision_service.is_local:
                run_immediately(decision_service.on_caller_gone(request.admitted))
            else:
                decision_service.start_task(decision_service.on_caller_gone(request.admitted))

    def eof_received(self) -> None:
        """Close the connection, because a caller that stops sending has left. What was written is still sent."""
        self.transport.close()
        self._stop()

    def data_received(self, data: bytes) -> None:
        """Pass bytes of the caller to a tunnel, or add them to the buffer and process it. Discard them after the last reply."""
        if self.transport.is_lingering or self.transport.is_closing:
            return
        upstream = self._forwarder.upstream
        if upstream is not None and upstream.is_tunnel:
            upstream.write(data)
            return
        self._reader.add(data)
        if not self._is_scheduled:
            self._advance()
        if self._reader.has_more:
            self.transport.hold_reading()

    def pause_writing(self) -> None:
        """Stop reading the reply from the service, because the caller does not read."""
        self._is_caller_full = True
        self._forwarder.on_caller_full()

    def resume_writing(self) -> None:
        """Read the reply from the service again, because the caller has read what was written."""
        self._is_caller_full = False
        self._forwarder.on_caller_drained()
        self._schedule()

    def on_deadline(self) -> None:
        """Handle a timeout of the caller: refuse an incomplete head or body with 408.

        Close the connection if it is idle, and reset it if the caller does not read its reply.
        """
        self.transport.deadline_s = 0.0
        request = self.request
        if self.transport.is_closing:
            self.transport.abort()
        elif self.transport.is_lingering or (request is None and not self._reader.buffer):
            self.transport.close()
        elif self._is_caller_full:
            self.transport.abort()
        elif request is None:
            self._refuse_head("The head of the request did not arrive in time.", 408)
        elif request.has_reply_begun:
            self.transport.abort()
        elif not request.is_body_read:
            request.body_parts = None
            self._refuse_body(request, "The body of the request did not arrive in time.", 408)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Process received bytes, until more bytes or the end of the current request are needed.

        After a piece of them, or some requests, the rest follows in the next iteration of the loop.
        """
        reader, transport = self._reader, self.transport
        begun_count, has_taken = 0, False
        needs_more = not reader.buffer
        while not transport.is_closed and not transport.is_closing and not transport.is_lingering:
            if needs_more:
                if not reader.has_more:
                    transport.release_reading()
                    return
                if has_taken:
                    self._schedule()
                    return
                reader.take_piece()
                has_taken = True
            request = self.request
            needs_more = False
            if request is None:
                if reader.drained_request is not None:
                    self._drain()
                elif self._is_caller_full:
                    transport.hold_reading()
                    return
                elif begun_count >= REQUESTS_PER_STEP:
                    self._schedule()
                    return
                elif self._read_head():
                    begun_count += 1
                else:
                    needs_more = True
            elif request.is_body_read or self._is_deciding or transport.is_paused or not self._read_body(request):
                return
            needs_more = needs_more or not reader.buffer

    def _schedule(self) -> None:
        """Continue in the next iteration of the loop, if received bytes are left."""
        if not self._is_scheduled and (self._reader.buffer or self._reader.has_more):
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        """Process further bytes, now that other connections had their turn."""
        self._is_scheduled = False
        upstream = self._forwarder.upstream
        if upstream is None or not upstream.is_tunnel:
            self._advance()

    def _read_head(self) -> bool:
        """Read the head of the next request and begin the request. Return whether the head was complete and valid.

        An invalid head is refused; for an incomplete one a deadline is set.
        """
        transport, environment = self.transport, self._environment
        try:
            head = self._reader.read_head()
            if head is not None:
                head.target = environment.normalize_target(head.target)
        except BadHead as error:
            self._refuse_head(str(error), error.status)
            return False
        if head is None:
            deadline_s = environment.now_s() + environment.head_timeout_s
            if not transport.deadline_s or transport.deadline_s > deadline_s:
                transport.deadline_s = deadline_s
            return False
        transport.deadline_s = 0.0
        carriers = environment.decision_service.carriers
        self._begin_request(ProxiedRequest(head, transport.peer, carriers, is_tls=transport.scheme == b"https"))
        return True

    def _begin_request(self, request: ProxiedRequest) -> None:
        """Start to handle a request: send a health page, read the body if the decision needs it, or decide at once."""
        environment, head, incoming = self._environment, request.head, request.incoming
        self.request = request
        environment.idle_connections.pop(self, None)
        environment.counts.requests += 1
        if incoming.path in HEALTH_PATHS:
            self._is_deciding = True
            environment.decision_service.start_task(self._send_health_page(request))
        elif head.length and environment.decision_service.needs_body(incoming.method, incoming.path):
            request.body_parts = []
            if head.has_expect_continue:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.transport.deadline_s = environment.now_s() + environment.idle_timeout_s
        else:
            self._decide(request, None)

    def _read_body(self, request: ProxiedRequest) -> bool:
        """Process the buffered part of the body: collect it for the decision, or send it to the service.

        Return whether reading may continue; a malformed body is refused, and then it may not.
        """
        try:
            part = self._reader.read_body(request)
        except BadChunk as error:
            self._refuse_body(request, f"The chunked body is malformed: {error}.", 400)
            return False
        if request.body_parts is not None:
            if not self._environment.collected_bodies.add(self, len(part)):
                return False
            body = request.collect_body(request.body_parts, part)
            if body is not None:
                self.transport.deadline_s = 0.0
                self._environment.collected_bodies.complete(self)
                self._decide(request, body)
        elif part or request.is_body_read:
            self._forwarder.send_body(request, part)
        return True

    def _drain(self) -> None:
        """Discard the buffered part of an unneeded body; close the connection if the body is malformed or too long."""
        try:
            self._reader.drain()
        except BadChunk:
            self._linger()

    def refuse(self, reply: LocalReply) -> None:
        """Send a reply although no request was read, and end the connection."""
        self._environment.idle_connections.pop(self, None)
        self.transport.is_lingering = True
        self._replies.write_local_reply(reply, reply.body, is_persistent=False)
        self._linger()

    def evict(self) -> None:
        """Close the connection at once, because another caller needs its place."""
        self.transport.abort()

    def refuse_collected_body(self) -> None:
        """Refuse the request whose body is collected, because the gateway needs the memory for other bodies."""
        request = self.request
        if request is None or request.body_parts is None:
            return
        request.body_parts = None
        self.transport.deadline_s = 0.0
        message = "The gateway holds too many incomplete bodies of requests. Send the request again."
        self._refuse_body(request, message, 503)

    # -- decisions -------------------------------------------------------------------------------------------------

    def _decide(self, request: ProxiedRequest, body: bytes | None) -> None:
        """Let the decision service admit or refuse a request, and apply the result, at once or in a task.

        `body` is its body if the decision needs it, else `None`.
        """
        decision_service = self._environment.decision_service
        if self._environment.is_bare:
            self._forwarder.forward(request)
        elif decision_service.can_admit_locally(request.incoming, body):
            self._apply_decision(request, decision_service.admit_locally(request.incoming, body))
        else:
            self._is_deciding = True
            decision_service.start_task(self._decide_later(request, body))

    async def _decide_later(self, request: ProxiedRequest, body: bytes | None) -> None:
        """Decide a request by counters in another process, or by a long body, apply the result, and continue reading.

        If the caller has disconnected meanwhile, an admitted request is refunded.
        """
        decision_service = self._environment.decision_service
        result = await decision_service.admit(request.incoming, body)
        self._environment.collected_bodies.end(self)
        self._is_deciding = False
        if request.is_ended:
            if isinstance(result, AdmittedRequest):
                await decision_service.on_caller_gone(result)
            return
        self._apply_decision(request, result)
        self.transport.resume_reading()
        self._advance()

    def _apply_decision(self, request: ProxiedRequest, result: AdmittedRequest | LocalReply) -> None:
        """Send the refusal, send a page of the limiter, or forward the request to the service."""
        self._environment.collected_bodies.end(self)
        if isinstance(result, LocalReply):
            self._send_local_reply(request, result)
            return
        request.admitted = result
        if request.incoming.method in ("GET", "HEAD") and self._environment.is_limiter_page(request.incoming.path):
            self._is_deciding = True
            result.pause_work(self._environment.now_s())  # Until it is forwarded, if ever.
            self._environment.decision_service.start_task(self._send_limiter_page(request, result))
            return
        self._forwarder.forward(request)

    # -- local replies ---------------------------------------------------------------------------------------------

    async def _send_limiter_page(self, request: ProxiedRequest, admitted: AdmittedRequest) -> None:
        """Send one of the limiter's own pages, or forward the request if the limiter has no page at its path now."""
        decision_service = self._environment.decision_service
        page = await decision_service.render_page(request.incoming, admitted)
        if page is None:  # Limits are off, and so is this page: the service may have one at this path.
            self._is_deciding = False
            if not request.is_ended:
                self._forwarder.forward(request)
            return
        await decision_service.end_request(admitted)
        self._send_decided_reply(request, page)

    async def _send_health_page(self, request: ProxiedRequest) -> None:
        self._send_decided_reply(request, await self._environment.render_health_page(request.incoming))

    def _refuse_head(self, message: str, status: int) -> None:
        """Reply to an unreadable head with an error, in a task, and end the connection."""
        self._reader.take_buffer()
        self.transport.is_lingering = True
        self._environment.decision_service.start_task(self._send_head_refusal(message, status))

    async def _send_head_refusal(self, message: str, status: int) -> None:
        """Send the error reply to an unreadable head, and end the connection."""
        incoming = IncomingRequest("GET", "/", "", self.transport.peer)
        reply = await self._environment.decision_service.render_error(incoming, status, message)
        if self.transport.is_closed:
            return
        self._replies.write_local_reply(reply, reply.body, is_persistent=False)
        self._linger()

    def _refuse_body(self, request: ProxiedRequest, message: str, status: int) -> None:
        """Reply to a malformed or late body with an error, and end the connection: the end of the body is unknown.

        If a part of the service's reply was sent, the connection is reset instead.
        """
        self._environment.collected_bodies.discard(self)
        self._forwarder.cancel()
        request.is_persistent = False
        request.is_body_read = True
        if request.has_reply_begun:
            request.is_ended = True
            self.transport.abort()
            return
        self._start_error_reply(request, message, status)

    def _start_error_reply(self, request: ProxiedRequest, message: str, status: int) -> None:
        """Send an error reply in a task, because the decision service must be awaited."""
        self._is_deciding = True
        self._environment.decision_service.start_task(self._send_error_reply(request, message, status))

    async def _send_error_reply(self, request: ProxiedRequest, message: str, status: int) -> None:
        """Send an error reply with the rate limit headers; a request that fails with 5xx is refunded."""
        decision_service, admitted = self._environment.decision_service, request.admitted
        if admitted is not None:
            await decision_service.on_status(admitted, status)
        reply = await decision_service.render_error(request.incoming, status, message, admitted)
        if status == 503:
            reply = LocalReply(status, (*reply.headers, ("retry-after", str(RETRY_AFTER_S))), reply.body)
        self._send_decided_reply(request, reply)

    def _send_decided_reply(self, request: ProxiedRequest, reply: LocalReply) -> None:
        """Send a reply that the gateway made itself after awaiting the decision service."""
        self._is_deciding = False
        self._send_local_reply(request, reply)

    def _send_local_reply(self, request: ProxiedRequest, reply: LocalReply) -> None:
        """Send a reply that the gateway made itself, and finish the request.

        The rest of a short body is read and discarded; with a long one the connection is closed.
        """
        if request.is_ended or self.transport.is_closed:
            return
        is_long = request.body_left > MAX_DRAINED_BYTES
        has_unread_body = not request.is_body_read and (is_long or request.head.has_expect_continue)
        if has_unread_body or self._environment.is_ending:
            request.is_persistent = False
        body = b"" if request.head.method == b"HEAD" else reply.body
        self._replies.write_local_reply(
            reply, body, is_persistent=request.is_persistent, has_origin=request.head.has_origin
        )
        request.has_reply_begun = True
        self._finish(request)

    # -- the end of a request --------------------------------------------------------------------------------------

    def _finish(self, request: ProxiedRequest) -> None:
        """End the request after its reply: free its concurrency slots, and close the connection or begin the next request."""
        environment = self._environment
        request.is_ended = True
        self.request = None
        if not self._is_stopped:
            environment.idle_connections[self] = None
        if request.admitted is not None:
            environment.decision_service.end_request_later(request.admitted)
        if self.transport.is_closed or self.transport.is_closing:
            return
        if not request.is_persistent:
            if request.is_body_read:
                self.transport.close()
            else:
                self._linger()
            return
        if not request.is_body_read:
            self._reader.start_draining(request)
        self.transport.deadline_s = environment.now_s() + environment.idle_timeout_s
        self.transport.resume_reading()
        self._schedule()

    def _linger(self) -> None:
        """Close the connection so that the caller can read the last reply, although it is still sending."""
        self._reader.take_buffer()
        self.transport.linger()
