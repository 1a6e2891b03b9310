"""Sends the requests of one caller to the service, one at a time, and the service's replies back to the caller.

Requests are decided elsewhere before they come here, and error replies are written elsewhere.
"""

from collections.abc import Callable
from typing import Final

from wharf.limits.decisions.requests import AdmittedRequest
from wharf.limits.decisions.service import run_immediately
from wharf.limits.gateway.caller.replies import ReplyWriter
from wharf.limits.gateway.caller.requests import RequestReader
from wharf.limits.gateway.caller.transport import CallerTransport
from wharf.limits.gateway.environment import GatewayEnvironment
from wharf.limits.gateway.heads import ReplyHead
from wharf.limits.gateway.proxied_request import ProxiedRequest, add_part
from wharf.limits.gateway.upstream import UpstreamConnection

MAX_BUFFERED_BYTES: Final = 64 * 1024
"""Bytes that wait for the service or for the end of the current request before reading is paused; limits memory."""


class RequestForwarder:
    """Forwards the current request of a caller to the service, and receives the reply as its `ReplyHandler`.

    After each request it calls either `on_finished`, when the whole reply is written, or `on_failed` with a message and
    a status, when nothing of the reply was written.
    """

    __slots__ = (
        "_environment",
        "_on_failed",
        "_on_finished",
        "_reader",
        "_replies",
        "_request",
        "_transport",
        "upstream",
    )

    def __init__(
        self,
        environment: GatewayEnvironment,
        transport: CallerTransport,
        reader: RequestReader,
        replies: ReplyWriter,
        *,
        on_finished: Callable[[ProxiedRequest], None],
        on_failed: Callable[[ProxiedRequest, str, int], None],
    ) -> None:
        self.upstream: UpstreamConnection | None = None
        """The connection that carries the current request; `None` while there is none."""
        self._environment = environment
        self._transport = transport
        self._reader = reader
        self._replies = replies
        self._request: ProxiedRequest | None = None
        self._on_finished = on_finished
        self._on_failed = on_failed

    # -- the request -----------------------------------------------------------------------------------------------

    def forward(self, request: ProxiedRequest) -> None:
        """Send a request to the service, at once or when a connection is free."""
        self._request = request
        upstream = self._environment.pool.take_idle()
        if upstream is not None:
            self._send_to(upstream, request)
        else:
            self._await_connection(request)

    def _await_connection(self, request: ProxiedRequest) -> None:
        """Wait until a connection to the service is free. The service has not received the request: this is not work."""
        if request.admitted is not None:
            request.admitted.pause_work(self._environment.now_s())
        self._environment.pool.start_connecting(self)

    def on_upstream_ready(self, upstream: UpstreamConnection) -> bool:
        """Send the waiting request over a new or freed connection. Return false if the connection is no longer needed."""
        request = self._request
        if request is None or request.is_sent:
            return False
        self._send_to(upstream, request)
        self._transport.resume_reading()
        return True

    def _send_to(self, upstream: UpstreamConnection, request: ProxiedRequest) -> None:
        """Send a request over a connection to the service: its head, and the part of its body that has arrived."""
        head, transport = request.head, self._transport
        self.upstream = upstream
        upstream.begin(self, request)
        request.on_sent(was_used=upstream.was_used)
        data = self._environment.build_request_head(request, transport.peer, transport.scheme)
        if request.unsent_parts or request.is_body_read:
            data += request.frame_body(b"".join(request.unsent_parts))
            request.unsent_parts = []
        admitted = request.admitted
        if not request.is_body_read:
            if head.has_expect_continue and not request.has_reply_begun and request.body_left == max(0, head.length):
                transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if admitted is not None:
                admitted.pause_work(self._environment.now_s())
            self._await_body(upstream, request)
        elif admitted is not None and admitted.working_since_s is None:
            admitted.resume_work(self._environment.now_s())
        upstream.write(data)

    def send_body(self, request: ProxiedRequest, body: bytes) -> None:
        """Send a part of the caller's body to the service, or store it until a connection to the service is open.

        After the last part, the deadline moves from the caller to the service, and the request counts as running again.
        """
        upstream = self.upstream
        if upstream is None:
            add_part(request.unsent_parts, body)
            if sum(map(len, request.unsent_parts)) > MAX_BUFFERED_BYTES:
                self._transport.pause_reading()
            return
        data = request.frame_body(body)
        if request.is_body_read:
            self._transport.deadline_s = 0.0  # No deadline for the caller.
            upstream.deadline_s = self._environment.pool.compute_deadline_s()
            if request.admitted is not None:
                request.admitted.resume_work(self._environment.now_s())
        else:
            self._await_body(upstream, request, received_bytes=len(body))
        upstream.write(data)

    def _await_body(self, upstream: UpstreamConnection, request: ProxiedRequest, *, received_bytes: int = 0) -> None:
        """Set a deadline for the rest of the caller's body, and none for the service, which waits for it.

        The first deadline is the idle timeout. `received_bytes` extend it by the time in which a caller with the least
        permitted rate sends them, so that slow callers do not occupy the connections to the service.
        """
        environment = self._environment
        deadline_s = environment.now_s() + environment.idle_timeout_s
        rate = environment.settings.body_rate_least
        if received_bytes and rate:
            deadline_s = min(deadline_s, request.body_deadline_s + received_bytes / rate)
        self._transport.deadline_s = request.body_deadline_s = deadline_s
        upstream.deadline_s = 0.0

    def cancel(self) -> None:
        """Stop forwarding the current request. Its reply is discarded."""
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.abandon()
        if self._request is not None:
            self._request = None
            self._environment.pool.cancel_wait(self)

    def close(self) -> None:
        """Stop forwarding, because the caller has disconnected.

        Removing the callbacks breaks a reference cycle, so that the garbage collector has nothing to do.
        """
        self.cancel()
        self._on_finished = _ignore_end
        self._on_failed = _ignore_failure

    # -- slow callers and slow services ----------------------------------------------------------------------------

    def on_caller_full(self) -> None:
        """Stop reading from the service, because the caller does not read. The deadline now applies to the caller."""
        if self.upstream is not None:
            self.upstream.pause_reading()
            self.upstream.deadline_s = 0.0
            self._transport.deadline_s = self._environment.now_s() + self._environment.idle_timeout_s

    def on_caller_drained(self) -> None:
        """Read from the service again, because the caller reads. The deadline now applies to the service."""
        if self.upstream is not None:
            self.upstream.resume_reading()
            if not self.upstream.is_tunnel:
                self.upstream.deadline_s = self._environment.pool.compute_deadline_s()
            self._transport.deadline_s = 0.0

    def on_upstream_full(self, upstream: UpstreamConnection) -> None:
        """Stop reading from the caller, because the service does not read. The deadline now applies to the service."""
        self._transport.pause_reading()
        upstream.deadline_s = self._environment.pool.compute_deadline_s()
        if not upstream.is_tunnel:
            self._transport.deadline_s = 0.0  # No deadline for the caller.

    def on_upstream_drained(self, upstream: UpstreamConnection) -> None:
        """Read from the caller again, because the service reads. Set a deadline for the side that must send next."""
        self._transport.resume_reading()
        request = self._request
        if upstream.is_tunnel:
            upstream.deadline_s = 0.0
        if request is None or upstream.is_tunnel:
            return
        if request.is_body_read:
            upstream.deadline_s = self._environment.pool.compute_deadline_s()
        else:
            self._await_body(upstream, request)

    # -- the reply -------------------------------------------------------------------------------------------------

    def on_reply_head(self, head: ReplyHead, rest: bytes) -> None:
        """Start to write the reply to the caller, after the refunds and charges that depend on it.

        If the counters are in another process, this continues in a task.
        """
        request, upstream = self._request, self.upstream
        assert request is not None
        assert upstream is not None
        admitted = request.admitted
        if admitted is not None:
            admitted.finish_work(self._environment.now_s())
            if admitted.proof is not None:
                self._environment.decision_service.on_reply_status(admitted, head.status)
        if admitted is not None and (head.status == 304 or head.status >= 500 or head.marks.is_content):
            if not self._environment.decision_service.is_local:
                upstream.pause_reading()
                self._environment.decision_service.start_task(
                    self._apply_charges_then_write(request, upstream, admitted, head, rest)
                )
                return
            run_immediately(self._apply_charges(admitted, head))
        self._write_reply(request, upstream, head, rest)

    async def _apply_charges_then_write(
        self,
        request: ProxiedRequest,
        upstream: UpstreamConnection,
        admitted: AdmittedRequest,
        head: ReplyHead,
        rest: bytes,
    ) -> None:
        """Refund and charge in another process, then start to write the reply. Reading from the service is paused until then."""
        await self._apply_charges(admitted, head)
        if self.upstream is not upstream:  # The caller has disconnected, or the service has failed.
            return
        upstream.resume_reading()
        self._write_reply(request, upstream, head, rest)

    async def _apply_charges(self, admitted: AdmittedRequest, head: ReplyHead) -> None:
        """Refund a 304 or 5xx reply, and charge reported content, before the rate limit headers are written."""
        decision_service = self._environment.decision_service
        await decision_service.on_status(admitted, head.status)
        if head.marks.is_content and self._environment.settings.trusts_marks:
            await decision_service.on_content_created(admitted, head.marks.content_route)

    def _write_reply(self, request: ProxiedRequest, upstream: UpstreamConnection, head: ReplyHead, rest: bytes) -> None:
        """Write the head of the reply and the bytes of the body that arrived with it (`rest`)."""
        self._read_cpu_mark(request, head)
        self._replies.begin(request, head)
        upstream.read_body(rest)
        self._replies.flush_head()

    def _read_cpu_mark(self, request: ProxiedRequest, head: ReplyHead) -> None:
        """Store the CPU time that the service reports in a reply, if the settings say that its marks are true."""
        measured_ms, admitted = head.marks.measured_ms, request.admitted
        if measured_ms is not None and admitted is not None and self._environment.settings.trusts_marks:
            admitted.measured_ms = measured_ms

    def on_reply_body(self, data: bytes) -> None:
        self._replies.write_body(data)

    def on_reply_end(self) -> None:
        """Complete the reply to the caller, and report that the request is finished."""
        request = self._request
        self.upstream = self._request = None
        if request is not None:
            self._replies.end()
            self._on_finished(request)

    # -- upgrades to websockets ------------------------------------------------------------------------------------

    def on_tunnel(self, head: ReplyHead, rest: bytes) -> None:
        """Write the service's reply that opens a websocket. From now on bytes are passed on unchanged in both directions."""
        request, upstream = self._request, self.upstream
        assert request is not None
        assert upstream is not None
        if request.admitted is not None:
            self._environment.decision_service.on_reply_status(request.admitted, head.status)
            request.admitted.finish_work(self._environment.now_s())
        self._read_cpu_mark(request, head)
        self._transport.deadline_s = 0.0
        self._replies.write_upgrade(request, head, rest)
        early_bytes = self._reader.take_buffer()
        if early_bytes:
            upstream.write(early_bytes)

    def on_tunnel_data(self, data: bytes) -> None:
        self._transport.write(data)

    def on_tunnel_closed(self) -> None:
        self.upstream = None
        self._transport.close()

    # -- failures of the service -----------------------------------------------------------------------------------

    def on_upstream_lost(self, upstream: UpstreamConnection, *, was_idle: bool) -> None:
        """Send the request again if the service closed an idle connection just as it was used; otherwise fail it with 502."""
        if self.upstream is not upstream:
            return
        self.upstream = None
        request = self._request
        if was_idle and request is not None and request.may_retry and not request.has_reply_begun:
            request.is_sent = request.may_retry = False
            self._await_connection(request)
            return
        self.on_upstream_failed("The service closed the connection before it replied.", status=502)

    def on_upstream_failed(self, message: str, *, status: int) -> None:
        """Fail the request with an error reply; reset the connection if a part of the service's reply was sent."""
        request = self._request
        self.upstream = self._request = None
        if request is None:
            return
        self._environment.counts.failures += 1
        if request.has_reply_begun and not self._replies.has_unsent_head:
            # A part of the reply was sent, so an error reply is impossible: reset the connection.
            self._transport.abort()
            return
        self._replies.discard_head()
        self._on_failed(request, message, status)


def _ignore_end(_request: ProxiedRequest) -> None:
    """Replace the callback for a finished request after the caller has disconnected."""
    return


def _ignore_failure(_request: ProxiedRequest, _message: str, _status: int) -> None:
    """Do nothing: the callback for a failed request after the caller has disconnected."""
    return
