"""The client that waits with its thread: takes the steps of flows, and decides nothing."""

import threading
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

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
from wharf.contract.client.transport import ClientReply, ClientRequest, SyncStreamedReply, SyncTransport, Unreachable
from wharf.contract.wire.endpoint_table import Endpoint
from wharf.world import World

T = TypeVar("T")


class SyncClient(ClientMethods["SyncClient"]):
    """Calls as `client.jobs.read("web")`, and what goes on as `for`. Servers are used in turn."""

    IS_ASYNC: ClassVar = False

    def __init__(
        self,
        world: World,
        transports: Sequence[SyncTransport],
        *,
        defaults: ClientDefaults | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        super().__init__(self)
        self._closing = threading.Event()
        self._exchanges = tuple(transports)
        self._standing = ClientState(world, server_count=len(transports), defaults=defaults, retry_policy=retry_policy)

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

    def send(self, request: ClientRequest) -> ClientReply:
        """Any request, for what has no method. The reply may be a refusal. Raises `Unreachable`."""
        return self._run(send_once(self._standing, request))

    def perform_call(self, row: Endpoint, spec: RequestSpec) -> Any:  # As the row says; methods are typed.
        return self._run(perform_call(self._standing, row, spec))

    def _run(self, flow: Flow[T]) -> T:
        course = FlowRun(flow)
        while (step := course.step) is not None:
            try:
                heard = self._take(step)
            except Unreachable as error:
                course.fail(error)
            else:
                course.resume(heard)
        return course.result

    def iterate(
        self, start_flow: Callable[[ClientState, Endpoint, RequestSpec], Flow[None]], row: Endpoint, spec: RequestSpec
    ) -> Generator[Any, None, None]:  # As the row says; methods are typed.
        course = FlowRun(start_flow(self._standing, row, spec))
        opened: SyncStreamedReply | None = None
        try:
            while (step := course.step) is not None:
                if isinstance(step, YieldValue):
                    yield step.value
                    course.resume(None)
                    continue
                try:
                    heard = self._take(step)
                except Unreachable as error:
                    course.fail(error)
                    continue
                if isinstance(step, OpenStream):
                    opened = heard  # type: ignore[assignment]  # What this exchange opened is that.
                course.resume(heard)
        finally:
            if opened is not None:
                opened.close()

    def _take(self, step: Step) -> StepResult:
        match step:
            case SendRequest(request, server):
                return self._exchanges[server].send(request)
            case OpenStream(request, server):
                return self._exchanges[server].open(request)
            case ReadChunk(opened):
                piece: bytes = opened.read_chunk()
                return piece
            case CloseStream(opened):
                opened.close()
            case PauseFlow(seconds):
                self._pause(seconds)
        return None

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise Unreachable("the client was closed", is_sent=False)
