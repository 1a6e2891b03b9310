"""What a client does for a call, step by step, without doing it: whom to ask, when to ask again, what to make of replies.

A flow is a generator. It yields a step, is told what came of it, and goes on. Two thin drivers take the steps, one that
waits and one that is awaited; nothing of what is decided here is decided there.
"""

from collections.abc import Generator
from typing import Any, Final, Generic, TypeVar

import msgspec

from wharf.contract.client.calls import (
    RequestSpec,
    Response,
    build_path,
    build_query,
    has_idempotency_key,
    is_repeatable,
)
from wharf.contract.client.errors import TRANSIENT_ERRORS, RequestRefused, UnexpectedReply, build_error
from wharf.contract.client.transport import REQUEST_TIMEOUT_S, ClientReply, ClientRequest, StreamHead, Unreachable
from wharf.contract.wire.endpoint_table import Endpoint, EndpointKind
from wharf.world import World

T = TypeVar("T")

STREAMED_BODY_TIMEOUT_S: Final = 900.0
"""For what takes a body of any size: it is read, checked and taken in before there is an answer."""
BLOCKING_QUERY_MARGIN_S: Final = 30.0
DEFAULT_WAIT_S: Final = 300.0
MAX_WAIT_FACTOR: Final = 17 / 16
"""Servers wait up to a sixteenth longer than asked, so that not all come back at once."""
DEFAULT_PAGE_SIZE: Final = 500
MIN_BLOCKING_TIME_S: Final = 0.05
FAILOVER_STATUSES: Final = (500, 503)
"""A server that answers so has lost its leader or its log: another may have both."""


class SendRequest(msgspec.Struct, frozen=True):
    """To the server of this number; what comes of it is a `Reply`."""

    request: ClientRequest
    server: int


class PauseFlow(msgspec.Struct, frozen=True):
    seconds: float


class OpenStream(msgspec.Struct, frozen=True):
    """As `Send`, for a reply that comes piece by piece: what comes of it is its `Head`."""

    request: ClientRequest
    server: int


class ReadChunk(msgspec.Struct, frozen=True):
    """What comes of it is the next piece of an opened reply; an empty one is its end."""

    reply: Any  # Whatever the driver gave for `Open`.


class CloseStream(msgspec.Struct, frozen=True):
    reply: Any


class YieldValue(msgspec.Struct, frozen=True):
    """A value for the caller."""

    value: Any


Step = SendRequest | PauseFlow | OpenStream | ReadChunk | CloseStream | YieldValue
StepResult = ClientReply | StreamHead | bytes | None
Flow = Generator[Step, StepResult, T]


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often a call is made at most, and the pauses in between: each up to twice as long as the one before."""

    max_attempts: int = 4
    initial_pause_s: float = 0.1
    max_pause_s: float = 5.0

    def draw_pause_s(self, attempt: int, world: World) -> float:
        """Before the attempt of this number. By chance, so that clients that failed together do not return together."""
        longest_s = min(self.max_pause_s, self.initial_pause_s * 2.0 ** min(attempt - 1, 16))
        return world.random.uniform(longest_s / 2, longest_s)


NO_RETRIES: Final = RetryPolicy(max_attempts=1)


class ClientDefaults(msgspec.Struct, frozen=True):
    """What holds for every call of a client that does not say otherwise."""

    namespace: str = ""
    region: str = ""
    stale: bool = False


class ClientState:
    """What flows of one client share: which server is asked, and how often."""

    def __init__(
        self, world: World, *, server_count: int, defaults: ClientDefaults | None, retry_policy: RetryPolicy | None
    ) -> None:
        assert server_count > 0, "a client needs a server"
        self.world = world
        self.defaults = defaults or ClientDefaults()
        self.retry_policy = retry_policy or RetryPolicy()
        self.server_count = server_count
        self.current_server = 0

    def draw_pause_s(self, attempt: int, error: Exception | None = None) -> float:
        """Before the attempt of this number; no shorter than the server wants it."""
        wanted_s = error.retry_after_s if isinstance(error, RequestRefused) else None
        return max(wanted_s or 0.0, self.retry_policy.draw_pause_s(attempt, self.world))

    def switch_server(self, used: int) -> None:
        """To the next server, unless somebody turned already."""
        if self.current_server == used:
            self.current_server = (used + 1) % self.server_count


class FlowRun(Generic[T]):
    """A flow under way: `step` is what to do next; None, when `result` is there."""

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow
        self.step: Step | None = None
        self._result: list[T] = []
        self.resume(None)

    @property
    def result(self) -> T:
        return self._result[0]

    def resume(self, result: StepResult) -> None:
        try:
            self.step = self._flow.send(result)
        except StopIteration as end:
            self._end(end)

    def fail(self, error: Unreachable) -> None:
        try:
            self.step = self._flow.throw(error)
        except StopIteration as end:
            self._end(end)

    def _end(self, end: StopIteration) -> None:
        self.step = None
        self._result.append(end.value)


# -- one call ----------------------------------------------------------------------------------------------------------


def perform_call(state: ClientState, row: Endpoint, spec: RequestSpec) -> Flow[Any]:
    """One call: sent, and sent again where that does no harm and may help. Ends with what the row returns.

    Raises `Refused` and `Unreachable`.
    """
    request = build_request(state, row, spec)
    reply = yield from send_with_retries(
        state, request, success_statuses=row.success_statuses, is_repeatable=_is_safe(row, request)
    )
    value = decode_value(row, reply)
    return _answer(reply, value) if row.kind is EndpointKind.READ else value


def send_with_retries(
    state: ClientState, request: ClientRequest, *, is_repeatable: bool, success_statuses: tuple[int, ...] = ()
) -> Flow[ClientReply]:
    """A reply that is a success. `answers`: statuses beside the usual ones that are no refusals."""
    retries, world = state.retry_policy, state.world
    gives_up_at_s = world.monotonic_s() + request.timeout_s
    attempt, unheard = 1, 0
    while True:
        used = state.current_server
        pause_s: float | None = None
        try:
            reply = yield SendRequest(request, used)
            assert isinstance(reply, ClientReply)
            if reply.status < 300 or reply.status in success_statuses:
                return reply
            error: RequestRefused | Unreachable = build_error(reply)
            if reply.status in FAILOVER_STATUSES:
                state.switch_server(used)
            if not isinstance(error, TRANSIENT_ERRORS) or not is_repeatable:
                raise error
            pause_s = error.retry_after_s if isinstance(error, RequestRefused) else None
        except Unreachable as unreachable:
            state.switch_server(used)
            error = unreachable
            if error.is_sent and not is_repeatable:
                raise
            if not error.is_sent:
                # Nobody heard it: another server is asked at once, as long as there is one that was not.
                unheard += 1
                if unheard % state.server_count:
                    continue
        pause_s = pause_s if pause_s is not None else retries.draw_pause_s(attempt, world)
        attempt += 1
        if attempt > retries.max_attempts or world.monotonic_s() + pause_s >= gives_up_at_s:
            raise error
        yield PauseFlow(pause_s)


def send_once(state: ClientState, request: ClientRequest) -> Flow[ClientReply]:
    """Any request, and whatever is answered, also a refusal. Sent again only to a server that has not heard it."""
    for _ in range(state.server_count - 1):
        used = state.current_server
        try:
            return (yield from _sent_to(used, request))
        except Unreachable as error:
            state.switch_server(used)
            if error.is_sent:
                raise
    return (yield from _sent_to(state.current_server, request))


def _sent_to(server: int, request: ClientRequest) -> Flow[ClientReply]:
    reply = yield SendRequest(request, server)
    assert isinstance(reply, ClientReply)
    return reply


def _is_safe(row: Endpoint, request: ClientRequest) -> bool:
    return is_repeatable(row) or "idempotency-key" in request.headers


def build_request(state: ClientState, row: Endpoint, spec: RequestSpec) -> ClientRequest:
    options, defaults = spec.options, state.defaults
    query = list(build_query(row, spec.query))
    for name, default in (("namespace", defaults.namespace), ("region", defaults.region)):
        value = options.get(name, default)
        if value:
            query.append((name, str(value)))
    timeout_s = STREAMED_BODY_TIMEOUT_S if row.has_streamed_body else REQUEST_TIMEOUT_S
    if row.kind is EndpointKind.READ:
        timeout_s = _read_query(row, spec, defaults, query)
    headers = dict(spec.headers)
    body = b""
    if spec.body is not None:
        body = spec.body if isinstance(spec.body, bytes) else msgspec.json.encode(spec.body)
        headers.setdefault("content-type", "application/json")
    if has_idempotency_key(row):
        key = options.get("idempotency_key") or (state.world.new_id() if state.retry_policy.max_attempts > 1 else "")
        if key:
            headers["idempotency-key"] = key
    return ClientRequest(row.method, build_path(row, spec.path_values), tuple(query), headers, body, timeout_s)


def _read_query(row: Endpoint, ask: RequestSpec, defaults: ClientDefaults, query: list[tuple[str, str]]) -> float:
    """Adds what reads may say; the time within which the reply must come."""
    options = ask.options
    texts = {"filter": options.get("filter"), "prefix": options.get("prefix"), "next_token": options.get("next_token")}
    query.extend((name, value) for name, value in texts.items() if value)
    if options.get("per_page"):
        query.append(("per_page", str(options["per_page"])))
    if options.get("reverse"):
        query.append(("reverse", "true"))
    if options.get("stale", defaults.stale):
        query.append(("stale", ""))
    index = options.get("index", 0)
    if not index or not row.can_block:
        return REQUEST_TIMEOUT_S
    query.append(("index", str(index)))
    wait_s = options.get("wait_s")
    if wait_s is not None:
        query.append(("wait", f"{max(1, round(wait_s * 1000))}ms"))  # None at all would mean the server's default.
    return (DEFAULT_WAIT_S if wait_s is None else wait_s) * MAX_WAIT_FACTOR + BLOCKING_QUERY_MARGIN_S


# -- what is made of replies -------------------------------------------------------------------------------------------


def decode_value(row: Endpoint, reply: ClientReply) -> Any:
    """The reply's body as the row declares it. Raises `NotUnderstood`."""
    if row.reply_type is None:
        return reply.body if row.content_type else None
    if row.reply_type is bytes:
        return reply.body
    if row.content_type and row.reply_type is str:
        return reply.body.decode("utf-8", "replace")
    return decode_json(row, reply.body)


def decode_json(row: Endpoint, body: bytes) -> Any:
    try:
        return msgspec.json.decode(body, type=row.reply_type)
    except msgspec.MsgspecError as error:
        text = f"what answers is no server that this client understands: {error}"
        raise UnexpectedReply(text, is_sent=True) from error


def _answer(reply: ClientReply, value: Any) -> Response[Any]:
    return Response(
        value,
        _number(reply, "x-cluster-index"),
        reply.headers.get("x-cluster-knownleader", "true") == "true",
        _number(reply, "x-cluster-lastcontact"),
        reply.headers.get("x-cluster-nexttoken", ""),
    )


def _number(reply: ClientReply, header: str) -> int:
    text = reply.headers.get(header, "0")
    return int(text) if text.isascii() and text.isdigit() else 0


# -- calls that go on --------------------------------------------------------------------------------------------------


def follow_changes(state: ClientState, row: Endpoint, spec: RequestSpec) -> Flow[None]:
    """Gives the answer, and again whenever the servers have a newer one, for ever.

    Outages are waited out. Where the index goes back (the servers were restored, or began anew) what they say now is
    given, and followed from there.
    """
    waits = row.kind is EndpointKind.READ and row.can_block
    assert waits, f"{row.name} does not wait for anything, so it cannot be followed"
    world = state.world
    troubles = 0
    while True:
        asked, began_s = spec.options.get("index", 0), world.monotonic_s()
        try:
            answer = yield from perform_call(state, row, spec)
        except (Unreachable, *TRANSIENT_ERRORS) as error:
            if isinstance(error, UnexpectedReply):
                raise
            troubles += 1
            yield PauseFlow(state.draw_pause_s(troubles, error))
            continue
        if answer.index != asked:
            troubles = 0
            yield YieldValue(answer)
        elif world.monotonic_s() - began_s < MIN_BLOCKING_TIME_S:
            # Who answers so does not wait (a proxy, say); asked on and on it would do nothing else.
            troubles += 1
            yield PauseFlow(state.draw_pause_s(troubles))
        spec.options["index"] = max(1, answer.index)  # With an index of 0 nothing would ever block.


def iterate_records(state: ClientState, row: Endpoint, spec: RequestSpec) -> Flow[None]:
    """Gives all records of a list, fetched page by page, however many there are."""
    spec.options.setdefault("per_page", DEFAULT_PAGE_SIZE)
    while True:
        answer = yield from perform_call(state, row, spec)
        for record in answer.value:
            yield YieldValue(record)
        if not answer.next_token:
            return
        spec.options["next_token"] = answer.next_token
