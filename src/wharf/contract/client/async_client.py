"""The client that is awaited: takes the steps of flows on an event loop, and decides nothing."""

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
    """Calls as `await client.jobs.read("web")`, and what goes on as `async for`. Servers are used in turn."""

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
        self._exchanges = tuple(transports)
        self._standing = ClientState(world, server_count=len(transports), defaults=defaults, retry_policy=retry_policy)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for exchange in self._exchanges:
            await exchange.close()

    def with_token_source(self, token_source: "TokenSource") -> "AsyncClient":
        """The same servers, asked in another's name. It needs no closing of its own."""
        return self.with_transports(lambda exchange: _OnBehalf(exchange, token_source))

    def with_transports(self, wrap: Callable[[Transport], Transport]) -> "AsyncClient":
        """The same servers, reached another way. It needs no closing of its own."""
        standing, exchanges = self._standing, [wrap(exchange) for exchange in self._exchanges]
        return AsyncClient(standing.world, exchanges, defaults=standing.defaults, retry_policy=standing.retry_policy)

    async def send(self, request: ClientRequest) -> ClientReply:
        """Any request, for what has no method. The reply may be a refusal. Raises `Unreachable`."""
        return await self._run(send_once(self._standing, request))

    async def perform_call(self, row: Endpoint, spec: RequestSpec) -> Any:  # As the row says; methods are typed.
        return await self._run(perform_call(self._standing, row, spec))

    async def _run(self, flow: Flow[T]) -> T:
        course = FlowRun(flow)
        while (step := course.step) is not None:
            try:
                heard = await self._take(step)
            except Unreachable as error:
                course.fail(error)
            else:
                course.resume(heard)
        return course.result

    async def iterate(
        self, start_flow: Callable[[ClientState, Endpoint, RequestSpec], Flow[None]], row: Endpoint, spec: RequestSpec
    ) -> AsyncGenerator[Any, None]:  # As the row says; methods are typed.
        course = FlowRun(start_flow(self._standing, row, spec))
        opened: StreamedReply | None = None
        try:
            while (step := course.step) is not None:
                if isinstance(step, YieldValue):
                    yield step.value
                    course.resume(None)
                    continue
                try:
                    heard = await self._take(step)
                except Unreachable as error:
                    course.fail(error)
                    continue
                if isinstance(step, OpenStream):
                    opened = heard  # type: ignore[assignment]  # What this exchange opened is that.
                course.resume(heard)
        finally:
            if opened is not None:
                await opened.close()

    async def _take(self, step: Step) -> StepResult:
        match step:
            case SendRequest(request, server):
                return await self._exchanges[server].send(request)
            case OpenStream(request, server):
                return await self._exchanges[server].open(request)
            case ReadChunk(opened):
                piece: bytes = await opened.read_chunk()
                return piece
            case CloseStream(opened):
                await opened.close()
            case PauseFlow(seconds):
                await asyncio.sleep(seconds)
        return None


class TokenSource(Protocol):
    """In whose name requests are made."""

    async def get_token(self) -> str:
        """Looked up for each request. Raises `Unreachable` where it cannot be had now."""
        ...

    def on_rejected(self, token: str) -> None:
        """A server said that this token may not do what was asked, or is none."""
        ...


class _OnBehalf:
    def __init__(self, exchange: Transport, bearer: TokenSource) -> None:
        self._exchange = exchange
        self._bearer = bearer

    async def send(self, request: ClientRequest) -> ClientReply:
        named, token = await self._named(request)
        reply = await self._exchange.send(named)
        if reply.status == FORBIDDEN_STATUS:
            self._bearer.on_rejected(token)
        return reply

    async def open(self, request: ClientRequest) -> StreamedReply:
        named, _ = await self._named(request)
        return await self._exchange.open(named)

    async def close(self) -> None:
        """It is another's."""

    async def _named(self, request: ClientRequest) -> tuple[ClientRequest, str]:
        token = await self._bearer.get_token()
        return msgspec.structs.replace(request, headers={**request.headers, TOKEN_HEADER: token}), token
