"""Reads the requests of one connection in order: head, body, and the rest of a body that is not needed.

Subclasses decide and forward the requests. A request that could be read in two ways is refused and ends the connection.
"""

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from wharf.limits.core.rule import ConnectionClass
from wharf.limits.decisions.requests import IncomingRequest
from wharf.limits.decisions.service import MAX_BODY_BYTES
from wharf.limits.gateway.caller.replies import CallerReplies
from wharf.limits.gateway.chunks import BadChunk
from wharf.limits.gateway.heads import BadHead, RequestHead, read_request_head
from wharf.limits.gateway.proxied_request import ProxiedRequest
from wharf.limits.gateway.upstream import UpstreamConnection

if TYPE_CHECKING:
    from wharf.limits.gateway.gateway import Gateway

MAX_PIPELINED_BYTES: Final = 64 * 1024
"""Bytes that are buffered after the current request, before reading is paused; limits memory."""
MAX_DRAINED_BYTES: Final = 64 * 1024
"""Bytes of an unneeded body that are read to keep the connection open; after more the connection is closed."""
TOKEN_BYTES: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz\r\n")


class CallerRequests(CallerReplies, ABC):
    """A connection of a caller that reads requests. Subclasses handle them in the abstract methods."""

    __slots__ = ("_drained_bytes", "_drained_request", "_is_deciding", "_upstream", "proxied")

    def __init__(self, gateway: "Gateway") -> None:
        super().__init__(gateway)
        self.proxied: ProxiedRequest | None = None
        self._drained_bytes = 0
        self._drained_request: ProxiedRequest | None = None
        self._is_deciding = False
        self._upstream: UpstreamConnection | None = None

    # -- for subclasses --------------------------------------------------------------------------------------------

    @abstractmethod
    def _decide(self, proxied: ProxiedRequest, body: bytes | None) -> None:
        """Decide a request. `body` is its body if the decision needs it, else `None`."""

    @abstractmethod
    def _pass_body(self, proxied: ProxiedRequest, body: bytes) -> None:
        """Forward a part of the body."""

    @abstractmethod
    def _reject_body(self, proxied: ProxiedRequest, message: str, status: int = 400) -> None:
        """Refuse a malformed body and end the connection, because the end of the body is unknown."""

    @abstractmethod
    async def _serve_own_page(self, proxied: ProxiedRequest) -> None:
        """Reply with one of the gateway's own pages."""

    # -- reading ---------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            return
        upstream = self._upstream
        if upstream is not None and upstream.is_tunnel:
            upstream.write(data)
            return
        self._buffer = self._buffer + data if self._buffer else data
        self._advance()

    def _advance(self) -> None:
        """Process the buffered bytes, until more bytes or the end of the current request are needed."""
        while self._buffer and not self.is_closed and not self._is_lingering:
            proxied = self.proxied
            if self._drained_request is not None:
                if not self._drain(self._drained_request):
                    return
            elif proxied is None:
                if not self._read_head():
                    return
            elif proxied.is_body_read or self._is_deciding:
                if len(self._buffer) > MAX_PIPELINED_BYTES:
                    self.pause_reading()
                return
            elif not self._read_body(proxied):
                return

    def _read_head(self) -> bool:
        """Read the head of the next request and begin the request. Return whether the head was complete."""
        gateway, data = self.gateway, self._buffer
        if data[:2] == b"\r\n":
            data = self._buffer = data.lstrip(b"\r\n")  # An empty line before a request is harmless.
        end = data.find(b"\r\n\r\n")
        max_bytes = gateway.settings.head_bytes_most
        if end < 0 or end > max_bytes:
            if end > max_bytes or len(data) > max_bytes:
                self._refuse_head(f"The head of the request is longer than {max_bytes} bytes.", 431)
            elif data and data[0] not in TOKEN_BYTES:
                self._refuse_head("This is not an HTTP request.", 400)
            elif not self.deadline_s or self.deadline_s > gateway.now_s() + gateway.head_s:
                self.deadline_s = gateway.now_s() + gateway.head_s
            return False
        try:
            head = read_request_head(data, end + 4, max_headers=gateway.settings.headers_most)
        except BadHead as error:
            self._refuse_head(str(error), error.status)
            return False
        self._buffer = data[end + 4 :]
        self.deadline_s = 0.0
        self._begin_request(head)
        return True

    def _begin_request(self, head: RequestHead) -> None:
        gateway = self.gateway
        path, _, query = head.target.decode("ascii").partition("?")
        authorization = head.authorization
        incoming = IncomingRequest(
            head.method.decode("ascii"),
            path,
            query,
            self._peer,
            None if authorization is None else authorization.decode("ascii"),
            head.is_conditional,
            ConnectionClass.WEBSOCKET if head.is_websocket else ConnectionClass.PLAIN,
            tuple(value.decode("ascii") for value in head.forwarded_for) if head.forwarded_for else (),
            tuple(value.decode("ascii") for value in head.forwarded) if head.forwarded else (),
        )
        proxied = self.proxied = ProxiedRequest(head, incoming)
        gateway.requests += 1
        if path in gateway.own_paths:
            self._is_deciding = True
            self._start_task(self._serve_own_page(proxied))
            return
        if head.length and gateway.decision_service.needs_body(incoming.method, path):
            proxied.body_parts = []
            if head.has_expect_continue:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.deadline_s = gateway.now_s() + gateway.idle_s
            return
        self._decide(proxied, None)

    def _read_body(self, proxied: ProxiedRequest) -> bool:
        """Read the buffered part of the body. Return whether reading may continue."""
        data, self._buffer = self._buffer, b""
        try:
            body, self._buffer = proxied.feed(data)
        except BadChunk as error:
            self._reject_body(proxied, str(error))
            return False
        if proxied.body_parts is not None:
            self._collect_body(proxied, proxied.body_parts, body)
        elif body or proxied.is_body_read:
            self._pass_body(proxied, body)
        return True

    def _collect_body(self, proxied: ProxiedRequest, body_parts: list[bytes], body: bytes) -> None:
        body_parts.append(body)
        if not proxied.is_body_read and sum(map(len, body_parts)) <= MAX_BODY_BYTES:
            return
        proxied.body_parts = None
        complete_body = b"".join(body_parts)
        proxied.unsent_parts = [complete_body] if complete_body else []
        self.deadline_s = 0.0
        self._decide(proxied, complete_body)

    def _drain(self, proxied: ProxiedRequest) -> bool:
        """Discard the rest of a body that is not needed. Return whether the next request may be read."""
        data, self._buffer = self._buffer, b""
        try:
            body, self._buffer = proxied.feed(data)
        except BadChunk:
            self._close_gracefully(proxied)
            return False
        self._drained_bytes += len(body)
        if proxied.is_body_read:
            self._drained_request = None
            return True
        if self._drained_bytes > MAX_DRAINED_BYTES:
            self._close_gracefully(proxied)
        return False

    def _refuse_head(self, message: str, status: int) -> None:
        """Reply to an unreadable head with an error and end the connection."""
        self._buffer = b""
        self._is_lingering = True
        incoming = IncomingRequest("GET", "/", "", self._peer)
        self._start_task(self._write_head_refusal(incoming, message, status))

    async def _write_head_refusal(self, incoming: IncomingRequest, message: str, status: int) -> None:
        reply = await self.gateway.decision_service.render_error(incoming, status, message)
        if self.is_closed:
            return
        self._write_reply(reply, reply.body, is_persistent=False)
        self._linger()

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.gateway.decision_service.start_task(coroutine)

    def _close_gracefully(self, proxied: ProxiedRequest) -> None:
        """Close so that the caller can read the reply, even if it is still sending."""
        self._drained_request = None
        if proxied.is_body_read:
            self.close()
        else:
            self._linger()
