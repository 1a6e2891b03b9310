"""Runners of flows (generators of steps): they send requests, read streams and pause, and make no decisions.

One runs in the calling thread, the other on an event loop. Which step comes next is decided in `flow`.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Any, ClassVar, Final, Protocol, TypeVar

from wharf.contract.client.calls import RequestSpec
from wharf.contract.client.flow import (
    ClientDefaults,
    ClientState,
    CloseStream,
    Flow,
    FlowRun,
    OpenStream,
    PauseFlow,
    ReadChunk,
    RetryPolicy,
    SendRequest,
    Step,
    StepResult,
    YieldValue,
    perform_call,
    send_request,
)
from wharf.contract.client.liveness import PROBE_PATH, PROBE_TIMEOUT_S, end_if_silent, send_until_silent
from wharf.contract.client.transport import (
    ClientReply,
    ClientRequest,
    StreamedReply,
    SyncStreamedReply,
    SyncTransport,
    Transport,
    Unreachable,
)
from wharf.contract.wire.endpoint_table import Endpoint
from wharf.world import World
from wharf.world.failover import FailoverAddresses

T = TypeVar("T")
PROBE: Final = ClientRequest("GET", PROBE_PATH, timeout_s=PROBE_TIMEOUT_S, connect_timeout_s=PROBE_TIMEOUT_S)


StreamObserver = Callable[[ClientRequest], AbstractContextManager[None]]
"""Returns a context manager that lasts while a client waits for the head of a stream, so that a command can inform its user."""


class AsyncFlowRunner:
    """Performs the steps of flows on an event loop. A flow is a generator that decides the steps of a call."""

    IS_ASYNC: ClassVar = True

    def __init__(
        self,
        world: World,
        transports: Sequence[Transport],
        *,
        defaults: ClientDefaults | None = None,
        retry_policy: RetryPolicy | None = None,
        servers: FailoverAddresses | None = None,
        sends_probes: bool = False,
    ) -> None:
        """`servers`: which servers failed, if other clients or connections use the same ones. `sends_probes`: whether a
        frozen server is found by probes while a blocking query or a stream waits for it.
        """
        self._transports = tuple(transports)
        self._sends_probes = sends_probes
        self._stream_observer: StreamObserver | None = None
        self._state = ClientState(
            world, server_count=len(transports), defaults=defaults, retry_policy=retry_policy, servers=servers
        )

    def set_stream_observer(self, observer: "StreamObserver") -> None:
        """Inform `observer` of streams that are opened from now on."""
        self._stream_observer = observer

    @property
    def servers(self) -> FailoverAddresses:
        """The servers of this client: which one is used first, and which ones failed."""
        return self._state.servers

    async def close(self) -> None:
        """Close the connections to all servers."""
        for transport in self._transports:
            await transport.close()

    async def send(self, request: ClientRequest) -> ClientReply:
        """Send any request, for endpoints without a client method, and return the reply, also an error reply.

        A GET or HEAD is sent to the next server if one does not reply or has no leader. Raises `Unreachable`.
        """
        return await self._run(send_request(self._state, request))

    async def perform_call(
        self, endpoint: Endpoint, spec: RequestSpec
    ) -> Any:  # The endpoint's type; methods are typed.
        """Perform one call with retries and return its decoded reply. Raises `RequestRefused` and `Unreachable`."""
        return await self._run(perform_call(self._state, endpoint, spec))

    async def _run(self, flow: Flow[T]) -> T:
        """Perform the steps that a flow (a generator) yields until it ends, and return its result.

        If a step fails, `Unreachable` is raised in the flow, which may retry.
        """
        run = FlowRun(flow)
        while (step := run.step) is not None:
            try:
                result = await self._perform_step(step)
            except Unreachable as error:
                run.fail(error)
            else:
                run.resume(result)
        return run.result

    async def iterate(
        self,
        start_flow: Callable[[ClientState, Endpoint, RequestSpec], Flow[None]],
        endpoint: Endpoint,
        spec: RequestSpec,
    ) -> AsyncGenerator[Any, None]:  # The endpoint declares the type; methods are typed.
        """Start a flow (a generator of steps) for a call, perform its steps, and yield its values.

        Closes the streamed reply at the end.
        """
        run = FlowRun(start_flow(self._state, endpoint, spec))
        streamed_reply: StreamedReply | None = None
        server = 0
        try:
            while (step := run.step) is not None:
                if isinstance(step, YieldValue):
                    yield step.value
                    run.resume(None)
                    continue
                try:
                    async with self._probe_during(step, server):
                        result = await self._perform_step(step)
                except Unreachable as error:
                    run.fail(error)
                    continue
                if isinstance(step, OpenStream):
                    server = step.server
                    streamed_reply = result  # type: ignore[assignment]  # The result of `OpenStream` is a streamed reply.
                run.resume(result)
        finally:
            if streamed_reply is not None:
                await streamed_reply.close()

    async def _perform_step(self, step: Step) -> StepResult:
        """Perform one step of a flow and return its result: a reply, the head of a streamed reply, a chunk, or None."""
        match step:
            case SendRequest(request, server, True):
                return await self._send_until_silent(request, server)
            case SendRequest(request, server):
                return await self._transports[server].send(request)
            case OpenStream(request, server):
                with self._stream_observer(request) if self._stream_observer else nullcontext():
                    return await self._transports[server].open(request)
            case ReadChunk(reply):
                chunk: bytes = await reply.read_chunk()
                return chunk
            case CloseStream(reply):
                await reply.close()
            case PauseFlow(seconds):
                await asyncio.sleep(seconds)
        return None

    def _probe_during(self, step: Step, server: int) -> AbstractAsyncContextManager[None]:
        """Return a context manager that raises `Unreachable` if the server of a stream is silent while a chunk is read."""
        return self._probe_server(server) if isinstance(step, ReadChunk) else nullcontext()

    def _probe_server(self, server: int) -> AbstractAsyncContextManager[None]:
        """Return a context manager that raises `Unreachable` when the server does not answer a probe.

        It does nothing if this client sends no probes.
        """
        if not self._sends_probes:
            return nullcontext()
        return end_if_silent(self._state.world, lambda: self._transports[server].send(PROBE), "the server")

    async def _send_until_silent(self, request: ClientRequest, server: int) -> ClientReply:
        """Send a request to a server, and wait for the reply until another call finds that the server is silent.

        Raises `Unreachable`.
        """
        try:
            async with self._state.servers.end_on_silence(server), self._probe_server(server):
                return await self._transports[server].send(request)
        except TimeoutError:
            raise Unreachable("the server does not reply to other requests either", is_sent=True) from None


class CallObserver(Protocol):
    """Is informed while calls of a synchronous client wait, so that a command can inform its user."""

    def watch_reply(
        self, request: ClientRequest, server: SyncTransport
    ) -> AbstractContextManager[None]:  # Ends with the reply.
        """Return a context manager that lasts while the client waits for the reply, or for the head of a stream."""
        ...

    def on_pause(self, seconds: float, cause: Exception | None) -> None:
        """Called before the client pauses, because of `cause`, and then attempts the call again."""
        ...


class SyncFlowRunner:
    """Performs the steps of flows in the calling thread. A flow is a generator that decides the steps of a call."""

    IS_ASYNC: ClassVar = False

    def __init__(
        self,
        world: World,
        transports: Sequence[SyncTransport],
        *,
        defaults: ClientDefaults | None = None,
        retry_policy: RetryPolicy | None = None,
        sends_probes: bool = False,
    ) -> None:
        """`sends_probes`: whether a frozen server is found by probes while a blocking query waits for it."""
        self._closing = threading.Event()
        self._observer: CallObserver | None = None
        self._transports = tuple(transports)
        self._sends_probes = sends_probes
        self._state = ClientState(world, server_count=len(transports), defaults=defaults, retry_policy=retry_policy)

    def set_observer(self, observer: CallObserver) -> None:
        """Inform `observer` of slow replies and repeated attempts from now on."""
        self._observer = observer

    @property
    def write_index(self) -> int:
        """Log index of the newest write of this client; 0 if no reply stated one."""
        return self._state.write_index

    def close(self) -> None:
        """Close the connections to all servers. May be called from another thread.

        A call that pauses between two attempts then fails at once.
        """
        self._closing.set()
        for transport in self._transports:
            transport.close()

    def send(self, request: ClientRequest) -> ClientReply:
        """Send any request, for endpoints without a client method, and return the reply, also an error reply.

        A GET or HEAD is sent to the next server if one does not reply or has no leader. Raises `Unreachable`.
        """
        return self._run(send_request(self._state, request))

    def perform_call(self, endpoint: Endpoint, spec: RequestSpec) -> Any:  # The endpoint's type; methods are typed.
        """Perform one call with retries and return its decoded reply. Raises `RequestRefused` and `Unreachable`."""
        return self._run(perform_call(self._state, endpoint, spec))

    def _run(self, flow: Flow[T]) -> T:
        """Perform the steps that a flow (a generator) yields until it ends, and return its result.

        If a step fails, `Unreachable` is raised in the flow, which may retry.
        """
        run = FlowRun(flow)
        while (step := run.step) is not None:
            try:
                result = self._perform_step(step)
            except Unreachable as error:
                run.fail(error)
            else:
                run.resume(result)
        return run.result

    def iterate(
        self,
        start_flow: Callable[[ClientState, Endpoint, RequestSpec], Flow[None]],
        endpoint: Endpoint,
        spec: RequestSpec,
    ) -> Generator[Any, None, None]:  # The endpoint declares the type; methods are typed.
        """Start a flow (a generator of steps) for a call, perform its steps, and yield its values.

        Closes the streamed reply at the end.
        """
        run = FlowRun(start_flow(self._state, endpoint, spec))
        streamed_reply: SyncStreamedReply | None = None
        try:
            while (step := run.step) is not None:
                if isinstance(step, YieldValue):
                    yield step.value
                    run.resume(None)
                    continue
                try:
                    result = self._perform_step(step)
                except Unreachable as error:
                    run.fail(error)
                    continue
                if isinstance(step, OpenStream):
                    streamed_reply = result  # type: ignore[assignment]  # The result of `OpenStream` is a streamed reply.
                run.resume(result)
        finally:
            if streamed_reply is not None:
                streamed_reply.close()

    def _perform_step(self, step: Step) -> StepResult:
        """Perform one step of a flow and return its result: a reply, the head of a streamed reply, a chunk, or None."""
        match step:
            case SendRequest(request, server, True) if self._sends_probes:
                transport = self._transports[server]
                return send_until_silent(lambda: transport.send(request), lambda: transport.send(PROBE), "the server")
            case SendRequest(request, server):
                with self._observe(request, server):
                    return self._transports[server].send(request)
            case OpenStream(request, server):
                with self._observe(request, server):
                    return self._transports[server].open(request)
            case ReadChunk(reply):
                chunk: bytes = reply.read_chunk()
                return chunk
            case CloseStream(reply):
                reply.close()
            case PauseFlow(seconds, cause):
                if self._observer is not None:
                    self._observer.on_pause(seconds, cause)
                self._pause(seconds)
        return None

    def _observe(self, request: ClientRequest, server: int) -> AbstractContextManager[None]:
        """Return a context manager that informs the observer of a request. A long one is meant to wait."""
        if self._observer is None or request.is_long_running:
            return nullcontext()
        return self._observer.watch_reply(request, self._transports[server])

    def _pause(self, seconds: float) -> None:
        """Wait for a number of seconds. Raises `Unreachable` if the client is closed meanwhile."""
        if self._closing.wait(seconds):
            raise Unreachable("the client was closed", is_sent=False)
