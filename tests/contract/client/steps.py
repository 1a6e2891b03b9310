"""Small words for tests of flows: who plays the servers, and what was asked of them."""

from collections.abc import Callable, Sequence
from typing import Any

from wharf.contract.client.calls import RequestSpec
from wharf.contract.client.flow import (
    ClientDefaults,
    ClientState,
    Flow,
    FlowRun,
    PauseFlow,
    RetryPolicy,
    SendRequest,
    YieldValue,
)
from wharf.contract.client.transport import ClientReply, ClientRequest, Unreachable
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, Endpoint
from wharf.world import SimulatedWorld

Said = ClientReply | Unreachable
Begin = Callable[[ClientState, Endpoint, RequestSpec], Flow[Any]]


def ok(body: bytes = b"[]", **headers: str) -> ClientReply:
    return ClientReply(200, {name.replace("_", "-"): value for name, value in headers.items()}, body)


def no(status: int, code: str = "", text: str = "no", **headers: str) -> ClientReply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ClientReply(status, {**named, **({"x-cluster-error": code} if code else {})}, text.encode())


def nobody() -> Unreachable:
    return Unreachable("nobody listens", is_sent=False)


def silence() -> Unreachable:
    return Unreachable("no reply came", is_sent=True)


class Played:
    """Takes the steps of a flow without a network and without time: it says what it was told, in turn."""

    def __init__(
        self, *said: Said, servers: int = 1, retries: RetryPolicy | None = None, defaults: ClientDefaults | None = None
    ) -> None:
        self.now_s = 0.0
        self.said = list(said)
        self.requests: list[ClientRequest] = []
        self.servers: list[int] = []
        self.pauses_s: list[float] = []
        self.given: list[Any] = []
        world = SimulatedWorld(7, lambda: self.now_s)
        self.standing = ClientState(world, server_count=servers, defaults=defaults, retry_policy=retries)

    def play(self, begin: Begin, row: str, ask: RequestSpec, *, until_given: int | None = None) -> Any:
        """To the end, or until so many values were given."""
        course = FlowRun(begin(self.standing, ENDPOINT_BY_NAME[row], ask))
        while (step := course.step) is not None:
            match step:
                case SendRequest(request, server):
                    self.requests.append(request)
                    self.servers.append(server)
                    said = self.said.pop(0)
                    if isinstance(said, Unreachable):
                        course.fail(said)
                    else:
                        course.resume(said)
                case PauseFlow(seconds):
                    self.pauses_s.append(seconds)
                    self.now_s += seconds
                    course.resume(None)
                case YieldValue(value):
                    self.given.append(value)
                    if len(self.given) == until_given:
                        return None
                    course.resume(None)
                case other:
                    raise AssertionError(f"no test needs {other}")
        return course.result

    @property
    def queries(self) -> Sequence[dict[str, str]]:
        return [dict(request.query) for request in self.requests]
