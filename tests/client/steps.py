"""Small words for tests of flows: who plays the servers, and what was asked of them."""

from collections.abc import Callable, Sequence
from typing import Any

from wharf.client.calls import Ask
from wharf.client.exchange import Reply, Request, Unreachable
from wharf.client.flow import Course, Defaults, Flow, Give, Pause, Retries, Send, Standing
from wharf.wire.endpoints import BY_NAME, Endpoint
from wharf.world import SimulatedWorld

Said = Reply | Unreachable
Begin = Callable[[Standing, Endpoint, Ask], Flow[Any]]


def ok(body: bytes = b"[]", **headers: str) -> Reply:
    return Reply(200, {name.replace("_", "-"): value for name, value in headers.items()}, body)


def no(status: int, code: str = "", text: str = "no", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {**named, **({"x-cluster-error": code} if code else {})}, text.encode())


def nobody() -> Unreachable:
    return Unreachable("nobody listens", sent=False)


def silence() -> Unreachable:
    return Unreachable("no reply came", sent=True)


class Played:
    """Takes the steps of a flow without a network and without time: it says what it was told, in turn."""

    def __init__(
        self, *said: Said, servers: int = 1, retries: Retries | None = None, defaults: Defaults | None = None
    ) -> None:
        self.now_s = 0.0
        self.said = list(said)
        self.requests: list[Request] = []
        self.servers: list[int] = []
        self.pauses_s: list[float] = []
        self.given: list[Any] = []
        world = SimulatedWorld(7, lambda: self.now_s)
        self.standing = Standing(world, servers=servers, defaults=defaults, retries=retries)

    def play(self, begin: Begin, row: str, ask: Ask, *, until_given: int | None = None) -> Any:
        """To the end, or until so many values were given."""
        course = Course(begin(self.standing, BY_NAME[row], ask))
        while (step := course.step) is not None:
            match step:
                case Send(request, server):
                    self.requests.append(request)
                    self.servers.append(server)
                    said = self.said.pop(0)
                    if isinstance(said, Unreachable):
                        course.fail(said)
                    else:
                        course.hear(said)
                case Pause(seconds):
                    self.pauses_s.append(seconds)
                    self.now_s += seconds
                    course.hear(None)
                case Give(value):
                    self.given.append(value)
                    if len(self.given) == until_given:
                        return None
                    course.hear(None)
                case other:
                    raise AssertionError(f"no test needs {other}")
        return course.result

    @property
    def queries(self) -> Sequence[dict[str, str]]:
        return [dict(request.query) for request in self.requests]
