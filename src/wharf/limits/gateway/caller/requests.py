"""Requests of one connection, read one at a time, in their order: head, body, and the rest of a body that nobody wants.

What a request comes to is for whoever inherits from this. What cannot be read one way only ends the connection.
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
"""How much is read of what comes behind the request that is served."""
MAX_DRAINED_BYTES: Final = 64 * 1024
TOKEN_BYTES: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz\r\n")


class CallerRequests(CallerReplies, ABC):
    __slots__ = ("_drained", "_is_deciding", "_left_to_drain", "_service", "exchange")

    def __init__(self, gateway: "Gateway") -> None:
        super().__init__(gateway)
        self.exchange: ProxiedRequest | None = None
        self._drained = 0
        self._left_to_drain: ProxiedRequest | None = None
        self._is_deciding = False
        self._service: UpstreamConnection | None = None

    # -- what requests come to, for whoever inherits ---------------------------------------------------------------

    @abstractmethod
    def _decide(self, exchange: ProxiedRequest, body: bytes | None) -> None:
        """A request is read as far as a decision needs it."""

    @abstractmethod
    def _pass_body(self, exchange: ProxiedRequest, body: bytes) -> None:
        """A part of its body is here."""

    @abstractmethod
    def _break(self, exchange: ProxiedRequest, message: str, status: int = 400) -> None:
        """Its body is malformed: whatever follows cannot be told apart."""

    @abstractmethod
    async def _answer_own(self, exchange: ProxiedRequest) -> None:
        """It asks for a page of the gateway's own."""

    # -- reading ---------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            return
        service = self._service
        if service is not None and service.is_tunnel:
            service.write(data)
            return
        self._buffer = self._buffer + data if self._buffer else data
        self._advance()

    def _advance(self) -> None:
        """Read on as far as the bytes and the request that is served allow."""
        while self._buffer and not self.is_closed and not self._lingers:
            exchange = self.exchange
            if self._left_to_drain is not None:
                if not self._drain(self._left_to_drain):
                    return
            elif exchange is None:
                if not self._read_head():
                    return
            elif exchange.is_body_read or self._is_deciding:
                if len(self._buffer) > MAX_PIPELINED_BYTES:
                    self.pause_reading()
                return
            elif not self._read_body(exchange):
                return

    def _read_head(self) -> bool:
        """Read the head of the next request and begin with it. Whether there was a whole one."""
        gateway, data = self.gateway, self._buffer
        if data[:2] == b"\r\n":
            data = self._buffer = data.lstrip(b"\r\n")  # An empty line before a request is harmless.
        end = data.find(b"\r\n\r\n")
        most = gateway.settings.head_bytes_most
        if end < 0 or end > most:
            if end > most or len(data) > most:
                self._refuse_head(f"The head of the request is longer than {most} bytes.", 431)
            elif data and data[0] not in TOKEN_BYTES:
                self._refuse_head("This is no HTTP request.", 400)
            elif not self.deadline_s or self.deadline_s > gateway.now_s() + gateway.head_s:
                self.deadline_s = gateway.now_s() + gateway.head_s
            return False
        try:
            head = read_request_head(data, end + 4, max_headers=gateway.settings.headers_most)
        except BadHead as problem:
            self._refuse_head(str(problem), problem.status)
            return False
        self._buffer = data[end + 4 :]
        self.deadline_s = 0.0
        self._begin(head)
        return True

    def _begin(self, head: RequestHead) -> None:
        gateway = self.gateway
        path, _, query = head.target.decode("ascii").partition("?")
        authorization = head.authorization
        arrival = IncomingRequest(
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
        exchange = self.exchange = ProxiedRequest(head, arrival)
        gateway.requests += 1
        if path in gateway.own_paths:
            self._is_deciding = True
            self._start(self._answer_own(exchange))
            return
        if head.length and gateway.decision_service.needs_body(arrival.method, path):
            exchange.gathered = []
            if head.has_expect_continue:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.deadline_s = gateway.now_s() + gateway.idle_s
            return
        self._decide(exchange, None)

    def _read_body(self, exchange: ProxiedRequest) -> bool:
        """Read of the body what there is. Whether more may be read now."""
        data, self._buffer = self._buffer, b""
        try:
            body, self._buffer = exchange.feed(data)
        except BadChunk as problem:
            self._break(exchange, str(problem))
            return False
        if exchange.gathered is not None:
            self._gather(exchange, exchange.gathered, body)
        elif body or exchange.is_body_read:
            self._pass_body(exchange, body)
        return True

    def _gather(self, exchange: ProxiedRequest, gathered: list[bytes], body: bytes) -> None:
        gathered.append(body)
        if not exchange.is_body_read and sum(map(len, gathered)) <= MAX_BODY_BYTES:
            return
        exchange.gathered = None
        whole = b"".join(gathered)
        exchange.pending = [whole] if whole else []
        self.deadline_s = 0.0
        self._decide(exchange, whole)

    def _drain(self, exchange: ProxiedRequest) -> bool:
        """Read past the rest of a body that nobody wants. Whether the next request may be read."""
        data, self._buffer = self._buffer, b""
        try:
            body, self._buffer = exchange.feed(data)
        except BadChunk:
            self._close_softly(exchange)
            return False
        self._drained += len(body)
        if exchange.is_body_read:
            self._left_to_drain = None
            return True
        if self._drained > MAX_DRAINED_BYTES:
            self._close_softly(exchange)
        return False

    def _refuse_head(self, message: str, status: int) -> None:
        """What cannot be read as a request gets one reply, and the connection ends."""
        self._buffer = b""
        self._lingers = True
        arrival = IncomingRequest("GET", "/", "", self._peer)
        self._start(self._refuse_later(arrival, message, status))

    async def _refuse_later(self, arrival: IncomingRequest, message: str, status: int) -> None:
        reply = await self.gateway.decision_service.render_error(arrival, status, message)
        if self.is_closed:
            return
        self._write_reply(reply, reply.body, stays=False)
        self._linger()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self.gateway.decision_service.start_task(work)

    def _close_softly(self, exchange: ProxiedRequest) -> None:
        """Close so that the caller can read the reply, though it may still be sending."""
        self._left_to_drain = None
        if exchange.is_body_read:
            self.close()
        else:
            self._linger()
