"""The client that waits with its thread: takes the steps of flows, and decides nothing."""

import threading
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from wharf.client.calls import Ask
from wharf.client.exchange import Reply, Request, SyncExchange, SyncOpened, Unreachable
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


class SyncClient(Nouns["SyncClient"]):
    """Calls as `client.jobs.read("web")`, and what goes on as `for`. Servers are used in turn."""

    IS_AWAITED: ClassVar = False

    def __init__(
        self,
        world: World,
        exchanges: Sequence[SyncExchange],
        *,
        defaults: Defaults | None = None,
        retries: Retries | None = None,
    ) -> None:
        super().__init__(self)
        self._closing = threading.Event()
        self._exchanges = tuple(exchanges)
        self._standing = Standing(world, servers=len(exchanges), defaults=defaults, retries=retries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """From another thread too: whoever pauses between two attempts does not wake for the second."""
        self._closing.set()
        for exchange in self._exchanges:
            exchange.close()

    def send(self, request: Request) -> Reply:
        """Any request, for what has no method. The reply may be a refusal. Raises `Unreachable`."""
        return self._run(sent(self._standing, request))

    def perform(self, row: Endpoint, ask: Ask) -> Any:  # As the row says; methods are typed.
        return self._run(perform(self._standing, row, ask))

    def _run(self, flow: Flow[T]) -> T:
        course = Course(flow)
        while (step := course.step) is not None:
            try:
                heard = self._take(step)
            except Unreachable as error:
                course.fail(error)
            else:
                course.hear(heard)
        return course.result

    def iterate(
        self, begin: Callable[[Standing, Endpoint, Ask], Flow[None]], row: Endpoint, ask: Ask
    ) -> Generator[Any, None, None]:  # As the row says; methods are typed.
        course = Course(begin(self._standing, row, ask))
        opened: SyncOpened | None = None
        try:
            while (step := course.step) is not None:
                if isinstance(step, Give):
                    yield step.value
                    course.hear(None)
                    continue
                try:
                    heard = self._take(step)
                except Unreachable as error:
                    course.fail(error)
                    continue
                if isinstance(step, Open):
                    opened = heard  # type: ignore[assignment]  # What this exchange opened is that.
                course.hear(heard)
        finally:
            if opened is not None:
                opened.close()

    def _take(self, step: Step) -> Heard:
        match step:
            case Send(request, server):
                return self._exchanges[server].send(request)
            case Open(request, server):
                return self._exchanges[server].open(request)
            case Next(opened):
                piece: bytes = opened.next()
                return piece
            case Close(opened):
                opened.close()
            case Pause(seconds):
                self._pause(seconds)
        return None

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise Unreachable("the client was closed", sent=False)
