"""Helpers for tests of flows: scripted server replies, and a driver that records requests without network and time."""

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

ScriptedReply = ClientReply | Unreachable
FlowStarter = Callable[[ClientState, Endpoint, RequestSpec], Flow[Any]]


def ok_reply(body: bytes = b"[]", **headers: str) -> ClientReply:
    """Return a successful reply."""
    return ClientReply(200, {name.replace("_", "-"): value for name, value in headers.items()}, body)


def error_reply(status: int, code: str = "", text: str = "no", **headers: str) -> ClientReply:
    """Return an error reply."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ClientReply(status, {**named, **({"x-cluster-error": code} if code else {})}, text.encode())


def not_reached() -> Unreachable:
    """Return the error for a request that reached no server."""
    return Unreachable("nobody listens", is_sent=False)


def no_reply() -> Unreachable:
    """Return the error for a request that was sent but got no reply."""
    return Unreachable("no reply came", is_sent=True)


class ScriptedFlow:
    """Performs the steps of a flow with scripted replies and virtual time, and records requests, pauses and values."""

    def __init__(
        self,
        *replies: ScriptedReply,
        servers: int = 1,
        retries: RetryPolicy | None = None,
        defaults: ClientDefaults | None = None,
    ) -> None:
        self.now_s = 0.0
        self.replies = list(replies)
        self.requests: list[ClientRequest] = []
        self.servers: list[int] = []
        self.watched_silence: list[bool] = []
        self.pauses_s: list[float] = []
        self.values: list[Any] = []
        world = SimulatedWorld(7, lambda: self.now_s)
        self.state = ClientState(world, server_count=servers, defaults=defaults, retry_policy=retries)

    def play(
        self, start_flow: FlowStarter, endpoint_name: str, spec: RequestSpec, *, value_count: int | None = None
    ) -> Any:
        """Run a flow to its end, or until it has yielded `value_count` values."""
        run = FlowRun(start_flow(self.state, ENDPOINT_BY_NAME[endpoint_name], spec))
        while (step := run.step) is not None:
            match step:
                case SendRequest(request, server, should_watch_silence):
                    self.watched_silence.append(should_watch_silence)
                    self.requests.append(request)
                    self.servers.append(server)
                    reply = self.replies.pop(0)
                    if isinstance(reply, Unreachable):
                        run.fail(reply)
                    else:
                        run.resume(reply)
                case PauseFlow(seconds):
                    self.pauses_s.append(seconds)
                    self.now_s += seconds
                    run.resume(None)
                case YieldValue(value):
                    self.values.append(value)
                    if len(self.values) == value_count:
                        return None
                    run.resume(None)
                case unsupported_step:
                    raise AssertionError(f"step is not supported by this driver: {unsupported_step}")
        return run.result

    @property
    def queries(self) -> Sequence[dict[str, str]]:
        return [dict(request.query) for request in self.requests]
