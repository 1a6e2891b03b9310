"""The asyncio client: performs the steps of flows on an event loop, and makes no decisions."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

import msgspec

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
    send_once,
)
from wharf.contract.client.nouns import ClientMethods
from wharf.contract.client.transport import ClientReply, ClientRequest, StreamedReply, Transport, Unreachable
from wharf.contract.wire.endpoint_table import Endpoint
from wharf.world import World

T = TypeVar("T")

TOKEN_HEADER: Final = "x-cluster-token"
FORBIDDEN_STATUS: Final = 403


class AsyncClient(ClientMethods["AsyncClient"]):
    """An asyncio client: `await client.jobs.read("web")`, or `async for` over streams. Fails over between servers."""

    IS_ASYNC: ClassVar = True

    def __init__(
        self,
        world: World,
        transports: Sequence[Transport],
        *,
        defaults: ClientDefaults | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        super().__init__(self)
        self._transports = tuple(transports)
        self._state = ClientState(world, server_count=len(transports), defaults=defaults, retry_policy=retry_policy)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for transport in self._transports:
            await transport.close()

    def with_token_source(self, token_source: "TokenSource") -> "AsyncClient":
        """Return a client for the same servers that authenticates with other tokens. It need not be closed."""
        return self.with_transports(lambda transport: _TokenTransport(transport, token_source))

    def with_transports(self, wrap: Callable[[Transport], Transport]) -> "AsyncClient":
        """Return a client for the same servers with wrapped transports. It need not be closed."""
        state, transports = self._state, [wrap(transport) for transport in self._transports]
        return AsyncClient(state.world, transports, defaults=state.defaults, retry_policy=state.retry_policy)

    async def send(self, request: ClientRequest) -> ClientReply:
        """Send any request, for endpoints without a method. The reply may be an error. Raises `Unreachable`."""
        return await self._run(send_once(self._state, request))

    async def perform_call(
        self, endpoint: Endpoint, spec: RequestSpec
    ) -> Any:  # The endpoint's type; methods are typed.
        """Perform one call with retries and return its decoded reply."""
        return await self._run(perform_call(self._state, endpoint, spec))

    async def _run(self, flow: Flow[T]) -> T:
        """Perform the steps of a flow and return its result."""
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
        """Perform the steps of a flow and yield its values. Closes the streamed reply at the end."""
        run = FlowRun(start_flow(self._state, endpoint, spec))
        streamed_reply: StreamedReply | None = None
        try:
            while (step := run.step) is not None:
                if isinstance(step, YieldValue):
                    yield step.value
                    run.resume(None)
                    continue
                try:
                    result = await self._perform_step(step)
                except Unreachable as error:
                    run.fail(error)
                    continue
                if isinstance(step, OpenStream):
                    streamed_reply = result  # type: ignore[assignment]  # The result of `OpenStream` is a streamed reply.
                run.resume(result)
        finally:
            if streamed_reply is not None:
                await streamed_reply.close()

    async def _perform_step(self, step: Step) -> StepResult:
        """Perform one step and return its result."""
        match step:
            case SendRequest(request, server):
                return await self._transports[server].send(request)
            case OpenStream(request, server):
                return await self._transports[server].open(request)
            case ReadChunk(reply):
                chunk: bytes = await reply.read_chunk()
                return chunk
            case CloseStream(reply):
                await reply.close()
            case PauseFlow(seconds):
                await asyncio.sleep(seconds)
        return None


class TokenSource(Protocol):
    """Supplies the tokens of requests."""

    async def get_token(self) -> str:
        """Return the token for the next request. Raises `Unreachable` if none is available at the moment."""
        ...

    def on_rejected(self, token: str) -> None:
        """A server rejected this token: it is invalid or lacks the permission."""
        ...


class _TokenTransport:
    """A transport that adds the token of a token source to each request."""

    def __init__(self, transport: Transport, token_source: TokenSource) -> None:
        self._transport = transport
        self._token_source = token_source

    async def send(self, request: ClientRequest) -> ClientReply:
        """Send the request with a token, and report the token if the server rejects it."""
        authenticated, token = await self._add_token(request)
        reply = await self._transport.send(authenticated)
        if reply.status == FORBIDDEN_STATUS:
            self._token_source.on_rejected(token)
        return reply

    async def open(self, request: ClientRequest) -> StreamedReply:
        authenticated, _ = await self._add_token(request)
        return await self._transport.open(authenticated)

    async def close(self) -> None:
        """Do nothing: the wrapped transport belongs to another client."""

    async def _add_token(self, request: ClientRequest) -> tuple[ClientRequest, str]:
        """Return the request with a token, and the token."""
        token = await self._token_source.get_token()
        return msgspec.structs.replace(request, headers={**request.headers, TOKEN_HEADER: token}), token
