"""The network of the simulation: requests from process to process, answered by ASGI apps, with all that goes wrong.

It carries HTTP exchanges as messages with delays; it knows no path and no product. Faults come from the weather, from
partitions between machines, and from processes that die. A fault is told to the caller as one of two errors: either
surely nothing happened, or nobody can tell.
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
"""What a connection takes before the sender has to wait for the reader."""

PARTITION: Final = "partition"
CONNECTION_LOST: Final = "connection broken by a death"
CALLER_DISCONNECTED: Final = "caller gone"


class ExchangeFailed(Exception):
    """No reply came."""


class RequestNotSent(ExchangeFailed):
    """The request reached nobody: nothing happened."""


class OutcomeLost(ExchangeFailed):
    """The request or its reply was lost: it may have happened or not."""


class SimulatedRequest(msgspec.Struct, frozen=True):
    """`target` is the path with its query, as it stands in a request line."""

    method: str
    target: str
    headers: Headers = ()
    body: bytes = b""


class SimulatedReply:
    """Status and headers at once; the body as it comes."""

    def __init__(self, exchange: "NetworkExchange", status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        self._exchange = exchange

    async def iterate_parts(self) -> AsyncIterator[bytes]:
        """Raises `Lost` where the connection breaks off."""
        while (part := await self._exchange.read_part()) is not None:
            yield part

    async def read_body(self) -> bytes:
        return b"".join([part async for part in self.iterate_parts()])

    def close(self) -> None:
        """Stop reading: the app sees its caller go."""
        self._exchange.abandon()


class NetworkListener(msgspec.Struct, frozen=True):
    process: Process
    app: AsgiApp


class Network:
    def __init__(self, loop: SimulatedLoop, fault_source: FaultSource) -> None:
        self.loop = loop
        self.fault_source = fault_source
        self.on_repeated: Callable[[SimulatedRequest], None] = lambda _: None
        self.context = Context()  # Of no process: what is on its way goes on, whoever dies.
        self._listeners: dict[str, NetworkListener] = {}
        self._parted: dict[frozenset[str], None] = {}
        self._exchanges: dict[NetworkExchange, None] = {}

    # -- who is where ----------------------------------------------------------------------------------------------

    def listen(self, address: str, process: Process, app: AsgiApp) -> None:
        self._listeners[address] = NetworkListener(process, app)

    def stop_listening(self, address: str) -> None:
        self._listeners.pop(address, None)

    def partition(self, one: str, other: str) -> None:
        """Nothing passes between two machines until they are joined again."""
        self._parted[frozenset((one, other))] = None

    def heal(self, one: str, other: str) -> None:
        self._parted.pop(frozenset((one, other)), None)

    def heal_all(self) -> None:
        self._parted.clear()

    def is_partitioned(self, one: str, other: str) -> bool:
        return bool(self._parted) and frozenset((one, other)) in self._parted

    def on_process_death(self, process: Process) -> None:
        """The machine of a dead process closes its connections; the other ends hear of it."""
        for address in [address for address, listener in self._listeners.items() if listener.process is process]:
            del self._listeners[address]
        for exchange in list(self._exchanges):
            exchange.on_process_death(process)

    # -- exchanges -------------------------------------------------------------------------------------------------

    async def exchange(
        self, source: Process, address: str, request: SimulatedRequest, *, can_repeat: bool = True
    ) -> SimulatedReply:
        """One request and the beginning of its reply. Raises `NotSent` or `Lost`.

        A line itself brings nothing twice: proxies and impatient callers do. So between servers nothing is repeated.
        """
        fate = self.fault_source.draw_delivery()
        listener = self._listeners.get(address)
        if listener is None or listener.process.is_dead:
            await asyncio.sleep(fate.request_s)
            raise RequestNotSent(f"nobody listens at {address}")
        if self.is_partitioned(source.machine, listener.process.machine):
            self.fault_source.count_fault(PARTITION)
            await asyncio.sleep(self.fault_source.draw_detection_delay_s())
            raise RequestNotSent(f"no way from {source.machine} to {address}")
        exchange = NetworkExchange(self, source, listener, request, fate)
        self._exchanges[exchange] = None
        if fate.is_repeated and can_repeat:
            self.on_repeated(request)
            again = NetworkExchange(
                self, source, listener, request, Delivery(request_s=fate.request_s * 2 + 0.01), is_read=False
            )
            self._exchanges[again] = None
            again.send_request()
        return await exchange.reply()

    def remove_exchange(self, exchange: "NetworkExchange") -> None:
        self._exchanges.pop(exchange, None)


class NetworkExchange:
    """One request on its way, and its reply on the way back. Of a repeated one the second reply is not read."""

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
        self._fate = delivery
        self._is_read = is_read
        self._reply: asyncio.Future[SimulatedReply] = self._loop.create_future()
        self._parts: list[bytes] = []
        self._unread_bytes = 0
        self._is_complete = False  # The last part has arrived.
        self._is_failing = False  # It is lost, and nobody has noticed yet.
        self._broken: ExchangeFailed | None = None
        self._arrived = asyncio.Event()  # Something new for the caller.
        self._room = asyncio.Event()  # The sender need not wait.
        self._room.set()
        self._is_request_read = False
        self._caller_is_gone = asyncio.Event()  # As the app sees it.
        self._outbox: list[Message] = []
        self._is_sent_whole = False
        self._last_arrival_s = 0.0
        self._status = 0
        self._headers: Headers = ()

    # -- the caller's end ------------------------------------------------------------------------------------------

    async def reply(self) -> SimulatedReply:
        self.send_request()
        try:
            return await self._reply
        except asyncio.CancelledError:
            self.abandon()
            raise

    async def read_part(self) -> bytes | None:
        """The next part of the body; None at its end."""
        if self._fate.read_s:
            await asyncio.sleep(self._fate.read_s)
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
            self._room.set()
        return part

    def abandon(self) -> None:
        """The caller goes; the app hears of it, if the line carries."""
        if self._is_complete or self._broken is not None:
            return
        self._break(OutcomeLost("the caller has gone"))
        if not self._is_parted():
            self._network.fault_source.count_fault(CALLER_DISCONNECTED)
            self._after(self._fate.request_s, self._hang_up)

    # -- the way there ---------------------------------------------------------------------------------------------

    def send_request(self) -> None:
        if self._fate.is_request_lost:
            self._fail_later(OutcomeLost("no reply came: the request was lost"))
            return
        self._after(self._fate.request_s, self._arrive)

    def _arrive(self) -> None:
        if self._listener.process.is_dead:
            self._break(RequestNotSent("nobody listens any more"))
        elif self._is_parted():
            self._network.fault_source.count_fault(PARTITION)
            self._fail_later(OutcomeLost("no reply came: the line is cut"))
        elif not self._caller_is_gone.is_set():
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
                (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self._headers_sent()
            ],
            "client": (self._source.machine, 40_000),
            "server": (self._listener.process.machine, 4646),
            "state": {},
        }
        asked = f"{self._request.method} {self._request.target}"
        try:
            await self._listener.app(scope, self._receive, self._send)
            assert self._is_sent_whole or self._caller_is_gone.is_set(), "the app returned and its reply is not whole"
        except Exception as error:  # The top of a task: nobody waits for it, so it says itself what went wrong.
            self._loop.call_exception_handler({"message": f"the app failed at {asked}", "exception": error})

    def _headers_sent(self) -> list[tuple[str, str]]:
        given: Mapping[str, str] = {name.lower(): value for name, value in self._request.headers}
        more = [("host", self._listener.process.machine)] if "host" not in given else []
        if self._request.body and "content-length" not in given:
            more.append(("content-length", str(len(self._request.body))))
        return [*self._request.headers, *more]

    # -- the app's end ---------------------------------------------------------------------------------------------

    async def _receive(self) -> Message:
        if not self._is_request_read:
            self._is_request_read = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self._caller_is_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._caller_is_gone.is_set():
            return  # As servers do: what is sent to nobody is dropped.
        self._outbox.append(message)
        arrival_s = max(self._last_arrival_s, self._loop.time() + self._fate.reply_s)
        self._last_arrival_s = arrival_s
        self._loop.call_at(arrival_s, self._bring, context=self._network.context)
        self._is_sent_whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        self._unread_bytes += len(message.get("body", b""))
        if self._is_read and self._unread_bytes >= MAX_UNREAD_BYTES:
            self._room.clear()
            await self._room.wait()

    # -- the way back ----------------------------------------------------------------------------------------------

    def _bring(self) -> None:
        """The oldest message under way arrives."""
        message = self._outbox.pop(0)
        if self._broken is not None or self._is_failing:
            return
        if self._fate.is_reply_lost or self._is_parted():
            self._fail_later(OutcomeLost("no reply came: it was lost"))
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

    def _is_parted(self) -> bool:
        return self._network.is_partitioned(self._source.machine, self._listener.process.machine)

    def on_process_death(self, process: Process) -> None:
        if process is self._listener.process:
            self._network.fault_source.count_fault(CONNECTION_LOST)
            self._fail_later(OutcomeLost(f"{process.name} died"))
        elif process is self._source:
            self.abandon()

    # -- ends ------------------------------------------------------------------------------------------------------

    def _fail_later(self, error: ExchangeFailed) -> None:
        """The caller's machine needs a while to notice."""
        if self._is_failing:
            return
        self._is_failing = True
        self._after(self._network.fault_source.draw_detection_delay_s(), self._break, error)
        self._hang_up()

    def _after(self, delay_s: float, then: Callable[..., None], *args: object) -> None:
        self._loop.call_later(delay_s, then, *args, context=self._network.context)

    def _break(self, error: ExchangeFailed) -> None:
        if self._is_complete or self._broken is not None:
            return
        self._broken = error
        if not self._reply.done():
            self._reply.set_exception(error)
            self._reply.exception()  # Looked at: a caller that has gone need not hear of it.
        self._arrived.set()
        self._end()

    def _hang_up(self) -> None:
        self._caller_is_gone.set()
        self._room.set()

    def _end(self) -> None:
        self._hang_up()
        self._network.remove_exchange(self)
