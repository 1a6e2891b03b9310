"""The client that is awaited: takes the steps of flows on an event loop, and decides nothing."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

import msgspec

from wharf.client.calls import Ask
from wharf.client.exchange import Exchange, Opened, Reply, Request, Unreachable
from wharf.client.flow import (
    Close,
    Course,
    Defaults,
    Flow,
    Give,
    Heard,
    Next,
    Open,
    Pause,
    Retries,
    Send,
    Standing,
    Step,
    perform,
    sent,
)
from wharf.client.nouns import Nouns
from wharf.wire.endpoints import Endpoint
from wharf.world import World

T = TypeVar("T")

TOKEN_HEADER: Final = "x-cluster-token"
FORBIDDEN: Final = 403


class AsyncClient(Nouns["AsyncClient"]):
    """Calls as `await client.jobs.read("web")`, and what goes on as `async for`. Servers are used in turn."""

    IS_AWAITED: ClassVar = True

    def __init__(
        self,
        world: World,
        exchanges: Sequence[Exchange],
        *,
        defaults: Defaults | None = None,
        retries: Retries | None = None,
    ) -> None:
        super().__init__(self)
        self._exchanges = tuple(exchanges)
        self._standing = Standing(world, servers=len(exchanges), defaults=defaults, retries=retries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for exchange in self._exchanges:
            await exchange.close()

    def speaking_as(self, bearer: "Bearer") -> "AsyncClient":
        """The same servers, asked in another's name. It needs no closing of its own."""
        return self.through(lambda exchange: _OnBehalf(exchange, bearer))

    def through(self, way: Callable[[Exchange], Exchange]) -> "AsyncClient":
        """The same servers, reached another way. It needs no closing of its own."""
        standing, exchanges = self._standing, [way(exchange) for exchange in self._exchanges]
        return AsyncClient(standing.world, exchanges, defaults=standing.defaults, retries=standing.retries)

    async def send(self, request: Request) -> Reply:
        """Any request, for what has no method. The reply may be a refusal. Raises `Unreachable`."""
        return await self._run(sent(self._standing, request))

    async def perform(self, row: Endpoint, ask: Ask) -> Any:  # As the row says; methods are typed.
        return await self._run(perform(self._standing, row, ask))

    async def _run(self, flow: Flow[T]) -> T:
        course = Course(flow)
        while (step := course.step) is not None:
            try:
                heard = await self._take(step)
            except Unreachable as error:
                course.fail(error)
            else:
                course.hear(heard)
        return course.result

    async def iterate(
        self, begin: Callable[[Standing, Endpoint, Ask], Flow[None]], row: Endpoint, ask: Ask
    ) -> AsyncGenerator[Any, None]:  # As the row says; methods are typed.
        course = Course(begin(self._standing, row, ask))
        opened: Opened | None = None
        try:
            while (step := course.step) is not None:
                if isinstance(step, Give):
                    yield step.value
                    course.hear(None)
                    continue
                try:
                    heard = await self._take(step)
                except Unreachable as error:
                    course.fail(error)
                    continue
                if isinstance(step, Open):
                    opened = heard  # type: ignore[assignment]  # What this exchange opened is that.
                course.hear(heard)
        finally:
            if opened is not None:
                await opened.close()

    async def _take(self, step: Step) -> Heard:
        match step:
            case Send(request, server):
                return await self._exchanges[server].send(request)
            case Open(request, server):
                return await self._exchanges[server].open(request)
            case Next(opened):
                piece: bytes = await opened.next()
                return piece
            case Close(opened):
                await opened.close()
            case Pause(seconds):
                await asyncio.sleep(seconds)
        return None


class Bearer(Protocol):
    """In whose name requests are made."""

    async def token(self) -> str:
        """Looked up for each request. Raises `Unreachable` where it cannot be had now."""
        ...

    def refused(self, token: str) -> None:
        """A server said that this token may not do what was asked, or is none."""
        ...


class _OnBehalf:
    def __init__(self, exchange: Exchange, bearer: Bearer) -> None:
        self._exchange = exchange
        self._bearer = bearer

    async def send(self, request: Request) -> Reply:
        named, token = await self._named(request)
        reply = await self._exchange.send(named)
        if reply.status == FORBIDDEN:
            self._bearer.refused(token)
        return reply

    async def open(self, request: Request) -> Opened:
        named, _ = await self._named(request)
        return await self._exchange.open(named)

    async def close(self) -> None:
        """It is another's."""

    async def _named(self, request: Request) -> tuple[Request, str]:
        token = await self._bearer.token()
        return msgspec.structs.replace(request, headers={**request.headers, TOKEN_HEADER: token}), token
