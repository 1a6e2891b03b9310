"""The simulated network: HTTP requests between processes, with delays and faults. ASGI apps answer them.

Faults come from the fault source, from partitions between machines, and from killed processes. The caller gets one of two
errors: `RequestNotSent` (nothing happened) or `OutcomeLost` (the outcome is unknown).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextvars import Context
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from simulation.fault_source import Delivery, FaultSource
from simulation.loop import SimulatedLoop
from simulation.process import Process

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[str, str]]

MAX_UNREAD_BYTES: Final = 65_536
"""How many bytes a connection buffers before the sender waits for the reader."""

PARTITION: Final = "partition"
CONNECTION_LOST: Final = "connection lost with its process"
CALLER_DISCONNECTED: Final = "caller disconnected"


class ExchangeFailed(Exception):
    """The caller received no reply."""


class RequestNotSent(ExchangeFailed):
    """The request reached no server: nothing happened."""


class OutcomeLost(ExchangeFailed):
    """The request or its reply was lost: the outcome is unknown."""


class SimulatedRequest(msgspec.Struct, frozen=True):
    """An HTTP request. `target` is the path with its query, as in a request line."""

    method: str
    target: str
    headers: Headers = ()
    body: bytes = b""


class SimulatedReply:
    """A reply: status and headers at once, and the body as it arrives."""

    def __init__(self, exchange: "NetworkExchange", status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        self._exchange = exchange

    async def iterate_parts(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body. Raises `OutcomeLost` if the connection breaks."""
        while (part := await self._exchange.read_part()) is not None:
            yield part

    async def read_body(self) -> bytes:
        return b"".join([part async for part in self.iterate_parts()])

    def close(self) -> None:
        """Stop reading. The app is notified of the disconnect."""
        self._exchange.abandon()


class NetworkListener(msgspec.Struct, frozen=True):
    """An app that a process serves at an address."""

    process: Process
    app: AsgiApp


class Network:
    """Connects the processes of all machines."""

    def __init__(self, loop: SimulatedLoop, fault_source: FaultSource) -> None:
        self.loop = loop
        self.fault_source = fault_source
        self.on_repeated: Callable[[SimulatedRequest], None] = lambda _: None
        self.context = Context()  # Belongs to no process: messages in transit arrive even if their sender is killed.
        self._listeners: dict[str, NetworkListener] = {}
        self._partitions: dict[frozenset[str], None] = {}
        self._exchanges: dict[NetworkExchange, None] = {}

    # -- listeners and partitions ----------------------------------------------------------------------------------------------

    def listen(self, address: str, process: Process, app: AsgiApp) -> None:
        self._listeners[address] = NetworkListener(process, app)

    def stop_listening(self, address: str) -> None:
        self._listeners.pop(address, None)

    def partition(self, first: str, second: str) -> None:
        """Cut the connection between two machines until `heal`."""
        self._partitions[frozenset((first, second))] = None

    def heal(self, first: str, second: str) -> None:
        self._partitions.pop(frozenset((first, second)), None)

    def heal_all(self) -> None:
        self._partitions.clear()

    def is_partitioned(self, first: str, second: str) -> bool:
        return bool(self._partitions) and frozenset((first, second)) in self._partitions

    def on_process_death(self, process: Process) -> None:
        """Close the connections of a killed process, as its machine would."""
        for address in [address for address, listener in self._listeners.items() if listener.process is process]:
            del self._listeners[address]
        for exchange in list(self._exchanges):
            exchange.on_process_death(process)

    # -- exchanges -------------------------------------------------------------------------------------------------

    async def exchange(
        self, source: Process, address: str, request: SimulatedRequest, *, can_repeat: bool = True
    ) -> SimulatedReply:
        """Send a request and return the start of its reply. Raises `RequestNotSent` or `OutcomeLost`.

        Proxies and impatient callers repeat requests; connections do not. So requests between servers are not repeated.
        """
        delivery = self.fault_source.draw_delivery()
        listener = self._listeners.get(address)
        if listener is None or listener.process.is_dead:
            await asyncio.sleep(delivery.request_s)
            raise RequestNotSent(f"no process listens at {address}")
        if self.is_partitioned(source.machine, listener.process.machine):
            self.fault_source.count_fault(PARTITION)
            await asyncio.sleep(self.fault_source.draw_detection_delay_s())
            raise RequestNotSent(f"{source.machine} and {address} are partitioned")
        exchange = NetworkExchange(self, source, listener, request, delivery)
        self._exchanges[exchange] = None
        if delivery.is_repeated and can_repeat:
            self.on_repeated(request)
            repeated = NetworkExchange(
                self, source, listener, request, Delivery(request_s=delivery.request_s * 2 + 0.01), is_read=False
            )
            self._exchanges[repeated] = None
            repeated.send_request()
        return await exchange.reply()

    def remove_exchange(self, exchange: "NetworkExchange") -> None:
        self._exchanges.pop(exchange, None)


class NetworkExchange:
    """One request and its reply, in transit. The reply to a repeated request is not read."""

    def __init__(
        self,
        network: Network,
        source: Process,
        listener: NetworkListener,
        request: SimulatedRequest,
        delivery: Delivery,
        *,
        is_read: bool = True,
    ) -> None:
        self._network = network
        self._loop = network.loop
        self._source = source
        self._listener = listener
        self._request = request
        self._delivery = delivery
        self._is_read = is_read
        self._reply: asyncio.Future[SimulatedReply] = self._loop.create_future()
        self._parts: list[bytes] = []
        self._unread_bytes = 0
        self._is_complete = False  # The last part has arrived.
        self._is_failing = False  # Lost, but the caller has not noticed it yet.
        self._broken: ExchangeFailed | None = None
        self._arrived = asyncio.Event()  # Set when data for the caller has arrived.
        self._can_send = asyncio.Event()  # Cleared while the buffer is full.
        self._can_send.set()
        self._is_request_read = False
        self._caller_disconnected = asyncio.Event()  # Set when the app is notified.
        self._outbox: list[Message] = []
        self._is_sent_completely = False
        self._last_arrival_s = 0.0
        self._status = 0
        self._headers: Headers = ()

    # -- caller ------------------------------------------------------------------------------------------

    async def reply(self) -> SimulatedReply:
        self.send_request()
        try:
            return await self._reply
        except asyncio.CancelledError:
            self.abandon()
            raise

    async def read_part(self) -> bytes | None:
        """Return the next part of the body, or `None` at its end."""
        if self._delivery.read_s:
            await asyncio.sleep(self._delivery.read_s)
        while not self._parts:
            if self._broken is not None:
                raise self._broken
            if self._is_complete:
                return None
            self._arrived.clear()
            try:
                await self._arrived.wait()
            except asyncio.CancelledError:
                self.abandon()
                raise
        part = self._parts.pop(0)
        self._unread_bytes -= len(part)
        if self._unread_bytes < MAX_UNREAD_BYTES:
            self._can_send.set()
        return part

    def abandon(self) -> None:
        """Disconnect the caller. The app is notified, unless the machines are partitioned."""
        if self._is_complete or self._broken is not None:
            return
        self._break(OutcomeLost("the caller disconnected"))
        if not self._is_partitioned():
            self._network.fault_source.count_fault(CALLER_DISCONNECTED)
            self._schedule(self._delivery.request_s, self._disconnect_caller)

    # -- request in transit ---------------------------------------------------------------------------------------------

    def send_request(self) -> None:
        if self._delivery.is_request_lost:
            self._fail_later(OutcomeLost("no reply: the request was lost"))
            return
        self._schedule(self._delivery.request_s, self._arrive)

    def _arrive(self) -> None:
        if self._listener.process.is_dead:
            self._break(RequestNotSent("no process listens any more"))
        elif self._is_partitioned():
            self._network.fault_source.count_fault(PARTITION)
            self._fail_later(OutcomeLost("no reply: the machines are partitioned"))
        elif not self._caller_disconnected.is_set():
            self._listener.process.start(self._serve(), name=f"{self._request.method} {self._request.target}")

    async def _serve(self) -> None:
        path, _, query = self._request.target.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self._request.method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self._build_headers()
            ],
            "client": (self._source.machine, 40_000),
            "server": (self._listener.process.machine, 4646),
            "state": {},
        }
        request_line = f"{self._request.method} {self._request.target}"
        try:
            await self._listener.app(scope, self._receive, self._send)
            assert self._is_sent_completely or self._caller_disconnected.is_set(), (
                "the app returned before its reply was complete"
            )
        except Exception as error:  # Top level of the task: no caller awaits it.
            self._loop.call_exception_handler({"message": f"the app failed at {request_line}", "exception": error})

    def _build_headers(self) -> list[tuple[str, str]]:
        names: Mapping[str, str] = {name.lower(): value for name, value in self._request.headers}
        added = [("host", self._listener.process.machine)] if "host" not in names else []
        if self._request.body and "content-length" not in names:
            added.append(("content-length", str(len(self._request.body))))
        return [*self._request.headers, *added]

    # -- app ---------------------------------------------------------------------------------------------

    async def _receive(self) -> Message:
        if not self._is_request_read:
            self._is_request_read = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self._caller_disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._caller_disconnected.is_set():
            return  # Drop the message, as servers do after a disconnect.
        self._outbox.append(message)
        delay_s = self._delivery.reply_s
        if message["type"] == "http.response.start":
            delay_s += self._delivery.reply_start_s
        arrival_s = max(self._last_arrival_s, self._loop.time() + delay_s)
        self._last_arrival_s = arrival_s
        self._loop.call_at(arrival_s, self._deliver_message, context=self._network.context)
        self._is_sent_completely = message["type"] == "http.response.body" and not message.get("more_body", False)
        self._unread_bytes += len(message.get("body", b""))
        if self._is_read and self._unread_bytes >= MAX_UNREAD_BYTES:
            self._can_send.clear()
            await self._can_send.wait()

    # -- reply in transit ----------------------------------------------------------------------------------------------

    def _deliver_message(self) -> None:
        """Deliver the oldest message in transit to the caller."""
        message = self._outbox.pop(0)
        if self._broken is not None or self._is_failing:
            return
        if self._delivery.is_reply_lost or self._is_partitioned():
            self._fail_later(OutcomeLost("no reply: it was lost"))
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            if not self._reply.done():
                self._reply.set_result(SimulatedReply(self, self._status, self._headers))
            return
        if message.get("body"):
            self._parts.append(message["body"])
        if not message.get("more_body", False):
            self._is_complete = True
            self._end()
        self._arrived.set()

    def _is_partitioned(self) -> bool:
        return self._network.is_partitioned(self._source.machine, self._listener.process.machine)

    def on_process_death(self, process: Process) -> None:
        if process is self._listener.process:
            self._network.fault_source.count_fault(CONNECTION_LOST)
            self._fail_later(OutcomeLost(f"{process.name} was killed"))
        elif process is self._source:
            self.abandon()

    # -- end ------------------------------------------------------------------------------------------------------

    def _fail_later(self, error: ExchangeFailed) -> None:
        """Fail after a delay: the caller's machine notices a broken connection late."""
        if self._is_failing:
            return
        self._is_failing = True
        self._schedule(self._network.fault_source.draw_detection_delay_s(), self._break, error)
        self._disconnect_caller()

    def _schedule(self, delay_s: float, callback: Callable[..., None], *args: object) -> None:
        self._loop.call_later(delay_s, callback, *args, context=self._network.context)

    def _break(self, error: ExchangeFailed) -> None:
        if self._is_complete or self._broken is not None:
            return
        self._broken = error
        if not self._reply.done():
            self._reply.set_exception(error)
            self._reply.exception()  # Mark it as read: a disconnected caller does not await it.
        self._arrived.set()
        self._end()

    def _disconnect_caller(self) -> None:
        self._caller_disconnected.set()
        self._can_send.set()

    def _end(self) -> None:
        self._disconnect_caller()
        self._network.remove_exchange(self)
