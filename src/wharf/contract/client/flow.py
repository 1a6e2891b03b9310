"""The logic of a call, without I/O: which server to use, when to retry, and how to decode replies.

A flow is a generator that yields steps and receives their results. Two runners perform the steps, one synchronous and one
asynchronous; they make no decisions.
"""

import math
from collections.abc import Generator
from typing import Any, Final, Generic, TypeVar

import msgspec

from wharf.contract.client.bodies import encode_body
from wharf.contract.client.calls import (
    RequestSpec,
    Response,
    build_path,
    build_query,
    is_read_only,
    is_repeatable,
)
from wharf.contract.client.errors import (
    TRANSIENT_ERRORS,
    NoLeader,
    RequestRefused,
    ServerUnavailable,
    UnexpectedReply,
    build_error,
    get_requested_delay_s,
)
from wharf.contract.client.transport import REQUEST_TIMEOUT_S, ClientReply, ClientRequest, StreamHead, Unreachable
from wharf.contract.model.refusal import RefusalReason
from wharf.contract.wire.endpoint_table import Endpoint, EndpointKind, takes_idempotency_key
from wharf.contract.wire.errors import CODE_HEADER
from wharf.world import World
from wharf.world.backoff import draw_delay_s
from wharf.world.failover import Attempt, FailoverAddresses

T = TypeVar("T")

STREAMED_BODY_TIMEOUT_S: Final = 900.0
"""Timeout of requests with large bodies, such as snapshots: the server processes all of it before it replies."""
BLOCKING_QUERY_MARGIN_S: Final = 30.0
"""Added to the wait time of a blocking query, for the transfer of the reply."""
DEFAULT_WAIT_S: Final = 300.0
"""The servers' default wait time of a blocking query."""
MAX_WAIT_FACTOR: Final = 17 / 16
"""Servers add up to a sixteenth to the wait time, so that clients do not all return at once."""
DEFAULT_PAGE_SIZE: Final = 500
MIN_BLOCKING_TIME_S: Final = 0.05
"""A blocking query that returns an unchanged index sooner than this did not block; the client then pauses."""
FAILOVER_STATUSES: Final = (500, 503)
"""Statuses of a server without a leader or without its log; another server may have both."""
READ_METHODS: Final = ("GET", "HEAD")
"""Methods of requests that change nothing in the cluster, so that they may be sent again."""


class SendRequest(msgspec.Struct, frozen=True):
    """A step of a call, yielded by its flow: send a request to one server. Its result is a `ClientReply`."""

    request: ClientRequest
    server: int  # Position of the server in the client's list.
    should_watch_silence: bool = False
    """Whether the step fails as soon as another call finds that the server is silent."""


class PauseFlow(msgspec.Struct, frozen=True):
    """A step of a call, yielded by its flow: wait before the next step."""

    seconds: float
    cause: Exception | None = None
    """The failure after which the call is attempted again; `None` if nothing failed."""


class OpenStream(msgspec.Struct, frozen=True):
    """A step of a call, yielded by its flow: send a request to one server and open its streamed reply.

    Its result is a `StreamHead`.
    """

    request: ClientRequest
    server: int  # Position of the server in the client's list.


class ReadChunk(msgspec.Struct, frozen=True):
    """A step of a call, yielded by its flow: read the next chunk of a streamed reply.

    Its result is bytes; empty bytes are the end.
    """

    reply: Any  # The streamed reply that was the result of `OpenStream`.


class CloseStream(msgspec.Struct, frozen=True):
    """A step of a call, yielded by its flow: close a streamed reply."""

    reply: Any  # The streamed reply that was the result of `OpenStream`.


class YieldValue(msgspec.Struct, frozen=True):
    """A step of a call, yielded by its flow: yield a value to the caller of the client."""

    value: Any


Step = SendRequest | PauseFlow | OpenStream | ReadChunk | CloseStream | YieldValue
StepResult = ClientReply | StreamHead | bytes | None
Flow = Generator[Step, StepResult, T]
"""A generator that yields steps, receives their results, and returns a T. It does no I/O itself."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often a call is attempted, and the pauses between attempts, which double up to a maximum."""

    max_attempts: int = 4  # Including the first one.
    initial_pause_s: float = 0.1
    max_pause_s: float = 5.0
    retries_first_open: bool = True
    """Whether an endless stream or a followed read is also retried without end before it has begun. If not, the caller
    gets the error, as a user of a command expects."""
    max_outage_s: float = math.inf
    """How long an endless stream or a followed read is retried after it broke. Then the caller gets the error."""
    max_store_outage_s: float = math.inf
    """How long a call is retried if servers refuse it because they cannot reach their store. Then the caller gets the
    error. All servers use the same store, so another one rarely helps."""

    def draw_pause_s(self, attempt: int, world: World, requested_s: float | None = None) -> float:
        """Return a random pause in seconds after failed attempt number `attempt`, counted from 1.

        It is not shorter than the server requested (`Retry-After`).
        """
        return draw_delay_s(
            world.random, attempt, min_s=self.initial_pause_s, max_s=self.max_pause_s, requested_s=requested_s
        )


NO_RETRIES: Final = RetryPolicy(max_attempts=1)


class ClientDefaults(msgspec.Struct, frozen=True):
    """The defaults of a client for calls that do not set these options."""

    namespace: str = ""
    region: str = ""
    stale: bool = False  # Whether servers may reply without waiting for the newest writes.


class ClientState:
    """The state that all calls of one client share: the servers, the defaults and the retry policy."""

    def __init__(
        self,
        world: World,
        *,
        server_count: int,
        defaults: ClientDefaults | None,
        retry_policy: RetryPolicy | None,
        servers: FailoverAddresses | None = None,
    ) -> None:
        """`servers`: which servers failed, shared with other clients of the same servers."""
        self.world = world
        self.defaults = defaults or ClientDefaults()
        self.retry_policy = retry_policy or RetryPolicy()
        self.servers = servers or FailoverAddresses(world, server_count)
        self.write_index = 0
        """Log index of the newest write whose reply states it; 0 before the first one."""

    def draw_pause_s(self, attempt: int, error: Exception | None = None) -> float:
        """Return the pause in seconds after failed attempt number `attempt`, counted from 1.

        It is random, but not shorter than the server that sent `error` requested.
        """
        requested_s = get_requested_delay_s(error)
        return self.retry_policy.draw_pause_s(attempt, self.world, requested_s)


class FlowRun(Generic[T]):
    """A running flow: a generator that yields the steps of a call.

    `step` is the next step to perform, or None when the flow has ended and `result` is available.
    """

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow
        self.step: Step | None = None
        self._result: list[T] = []
        self.resume(None)

    @property
    def result(self) -> T:
        """The return value of the flow. Available when `step` is None."""
        return self._result[0]

    def resume(self, result: StepResult) -> None:
        """Pass the result of the performed step to the flow (a generator). `step` becomes the next step of the flow."""
        try:
            self.step = self._flow.send(result)
        except StopIteration as end:
            self._end(end)

    def fail(self, error: Unreachable) -> None:
        """Raise `error` in the flow (a generator), because the step failed.

        `step` becomes the next step of the flow, unless the flow raises an error itself.
        """
        try:
            self.step = self._flow.throw(error)
        except StopIteration as end:
            self._end(end)

    def _end(self, end: StopIteration) -> None:
        """Store the return value of the flow (a generator), which ended with this `StopIteration`."""
        self.step = None
        self._result.append(end.value)


# -- one call ----------------------------------------------------------------------------------------------------------


def perform_call(state: ClientState, endpoint: Endpoint, spec: RequestSpec) -> Flow[Any]:
    """Perform one call, with retries if they are safe, and return its decoded reply.

    The result is a `Response` for reads, otherwise the value that the endpoint declares. Raises `RequestRefused` and
    `Unreachable`. This is a flow: a generator that yields steps, such as `SendRequest`, which a runner performs.
    """
    request = build_request(state, endpoint, spec)
    try:
        reply = yield from send_with_retries(
            state, request, success_statuses=endpoint.success_statuses, is_repeatable=_can_repeat(endpoint, request)
        )
    except (RequestRefused, Unreachable) as error:
        error.is_read = is_read_only(endpoint)
        raise
    value = decode_value(endpoint, reply)
    if endpoint.kind is EndpointKind.READ:
        return _build_response(reply, value)
    # Replies to writes state the index in a header, or in their body.
    index = _parse_number_header(reply, "x-cluster-index")
    if not index and isinstance(value, msgspec.Struct):
        index = getattr(value, "index", 0)
    state.write_index = max(state.write_index, index)
    return value


def send_with_retries(
    state: ClientState, request: ClientRequest, *, is_repeatable: bool, success_statuses: tuple[int, ...] = ()
) -> Flow[ClientReply]:
    """Send a request until it succeeds, and return the reply. If all attempts fail, raises the error that explains most.

    Uses another server if one does not reply in its part of the time, or has no leader. Only failures of all servers
    count as an attempt of the retry policy. `is_repeatable`: whether the request may be sent again after a server may
    have received it. `success_statuses`: HTTP statuses of 300 or above that are not errors. This is a flow: a generator
    that yields steps, such as `SendRequest`, which a runner performs.
    """
    retries, servers = state.retry_policy, state.servers
    budget = servers.start_call(request.timeout_s)
    failures = CallFailures(state.world.monotonic_s())
    failed_attempts = 0
    while True:
        attempt = budget.next_attempt()
        try:
            reply = yield _build_send(request, attempt, budget.remaining_s, is_repeatable=is_repeatable)
            assert isinstance(reply, ClientReply)
            servers.on_reply(attempt.position)
            if reply.status < 300 or reply.status in success_statuses:
                return reply
            refused = build_error(reply)
            error: RequestRefused | Unreachable = refused
            if reply.status in FAILOVER_STATUSES:
                servers.on_failure(attempt.position)
            # A server that is overloaded refuses requests before it executes them, so every one may be repeated.
            may_repeat = is_repeatable or refused.reason is RefusalReason.OVERLOADED
            if not isinstance(error, TRANSIENT_ERRORS) or not may_repeat:
                raise error
            failures.add(attempt.position, error)
        except Unreachable as unreachable:
            servers.on_silence(attempt)
            error = unreachable
            failures.add(attempt.position, error)
            may_repeat = is_repeatable or not error.is_sent
            if may_repeat and budget.has_untried:
                continue  # No pause: the next server may be well.
        if not may_repeat:
            raise failures.explain()
        failed_attempts += 1
        pause_s = state.draw_pause_s(failed_attempts, error)
        is_store_lost = failures.is_store_lost_for(retries.max_store_outage_s, state.world.monotonic_s())
        if failed_attempts >= retries.max_attempts or pause_s >= budget.remaining_s or is_store_lost:
            raise failures.explain()
        yield PauseFlow(pause_s, error)


class CallFailures:
    """The newest failure of each server that a call tried, and which of them explains most why the call failed."""

    def __init__(self, began_s: float) -> None:
        """`began_s`: when the call began, in seconds of the monotonic clock."""
        self._began_s = began_s
        self._by_server: dict[int, RequestRefused | Unreachable] = {}

    def add(self, server: int, error: RequestRefused | Unreachable) -> None:
        """Record that an attempt at a server failed. A refusal stays if the server later does not reply in time."""
        earlier = self._by_server.get(server)
        if isinstance(error, Unreachable) and error.is_silent and _is_store_lost(earlier):
            return
        self._by_server[server] = error

    def is_store_lost_for(self, seconds: float, now_s: float) -> bool:
        """Return whether the call has failed for this time, and servers refused it because they cannot reach their store."""
        return now_s - self._began_s >= seconds and any(map(_is_store_lost, self._by_server.values()))

    def explain(self) -> RequestRefused | Unreachable:
        """Return the error that explains most: an unreachable store, another refusal, or the servers that did not reply.

        A refusal gets the failures of the other servers. Without a refusal, the text names all servers.
        """
        errors = list(self._by_server.values())
        refusals = [error for error in errors if isinstance(error, RequestRefused)]
        if refusals:
            chosen = next(filter(_is_store_lost, refusals), refusals[-1])
            chosen.other_failures = tuple(error for error in errors if error is not chosen)
            return chosen
        silent = [error for error in errors if isinstance(error, Unreachable)]
        last = silent[-1]
        if len(silent) == 1 or any(type(error) is not Unreachable for error in silent):
            return last  # Errors of more specific types, such as an invalid header, do not depend on the server.
        return Unreachable(
            "; ".join(map(str, silent)),
            is_sent=any(error.is_sent for error in silent),
            tls_failure=last.tls_failure,
            is_silent=any(error.is_silent for error in silent),
        )


def _is_store_lost(error: Exception | None) -> bool:
    """Return whether a server refused a request because it cannot reach its store."""
    return isinstance(error, RequestRefused) and error.reason is RefusalReason.STORE_UNREACHABLE


def _build_send(request: ClientRequest, attempt: Attempt, remaining_s: float, *, is_repeatable: bool) -> SendRequest:
    """Return the step for one attempt. Its server gets a part of the time to accept the connection and to reply.

    The server gets all the `remaining_s` for the reply if no other server may receive the request after it. A
    long-running request keeps its timeout, because silence is normal for it. If such a request may be repeated, the
    step ends once another call finds that the server is silent.
    """
    timeout_s = attempt.timeout_s if is_repeatable else max(attempt.timeout_s, remaining_s)
    limited = msgspec.structs.replace(
        request,
        timeout_s=request.timeout_s if request.is_long_running else timeout_s,
        connect_timeout_s=min(request.connect_timeout_s, attempt.timeout_s),
    )
    return SendRequest(limited, attempt.position, should_watch_silence=request.is_long_running and is_repeatable)


def send_request(state: ClientState, request: ClientRequest) -> Flow[ClientReply]:
    """Send any request and return the reply, also an error reply.

    A GET or HEAD changes nothing. It goes to the next server if one does not reply in its part of the time, or has no
    leader. Any other request goes to the next server only while no server has received it. If no server replied, raises
    `Unreachable`, which names all servers that were tried. This is a flow: a generator that yields steps, such as
    `SendRequest`, which a runner performs.
    """
    is_read = request.method in READ_METHODS
    budget = state.servers.start_call(request.timeout_s)
    failures = CallFailures(state.world.monotonic_s())
    refusal: ClientReply | None = None
    while True:
        attempt = budget.next_attempt()
        try:
            reply = yield _build_send(request, attempt, budget.remaining_s, is_repeatable=is_read)
            assert isinstance(reply, ClientReply)
            state.servers.on_reply(attempt.position)
            if not is_read or not _is_server_without_leader(reply):
                return reply
            state.servers.on_failure(attempt.position)
            refusal = reply
        except Unreachable as error:
            state.servers.on_silence(attempt)
            failures.add(attempt.position, error)
            if error.is_sent and not is_read:
                raise
        if budget.has_untried:
            continue
        if refusal is not None:
            return refusal
        failure = failures.explain()
        failure.is_read = is_read
        raise failure


def _is_server_without_leader(reply: ClientReply) -> bool:
    """Return whether a server refused a request because it has no leader or no log: another server may have both."""
    return CODE_HEADER in reply.headers and isinstance(build_error(reply), (NoLeader, ServerUnavailable))


def _can_repeat(endpoint: Endpoint, request: ClientRequest) -> bool:
    """Return whether a second send of the request has no second effect.

    It has none if the endpoint changes nothing twice, or if the request has an idempotency key.
    """
    return is_repeatable(endpoint) or "idempotency-key" in request.headers


def build_request(state: ClientState, endpoint: Endpoint, spec: RequestSpec) -> ClientRequest:
    """Return the HTTP request of a call, from its options and the client's defaults.

    A client that retries adds an idempotency key to writes that have none.
    """
    options, defaults = spec.options, state.defaults
    query = list(build_query(endpoint, spec.query))
    for name, default in (("namespace", defaults.namespace), ("region", defaults.region)):
        value = options.get(name, default)
        if value:
            query.append((name, str(value)))
    timeout_s = STREAMED_BODY_TIMEOUT_S if endpoint.has_streamed_body else options.get("timeout_s", REQUEST_TIMEOUT_S)
    if endpoint.kind is EndpointKind.READ:
        timeout_s = _add_read_options(endpoint, spec, defaults, query, timeout_s=timeout_s)
    headers = dict(spec.headers)
    body = b""
    if spec.body is not None:
        body = spec.body if isinstance(spec.body, bytes) else encode_body(spec.body)
        headers.setdefault("content-type", "application/json")
    if takes_idempotency_key(endpoint):
        key = options.get("idempotency_key") or (state.world.new_id() if state.retry_policy.max_attempts > 1 else "")
        if key:
            headers["idempotency-key"] = key
    return ClientRequest(
        endpoint.method,
        build_path(endpoint, spec.path_values),
        tuple(query),
        headers,
        body,
        timeout_s,
        is_long_running=endpoint.has_streamed_body or _is_blocking(endpoint, spec),
    )


def _is_blocking(endpoint: Endpoint, spec: RequestSpec) -> bool:
    """Return whether the request is a blocking query: the server replies when the result has changed."""
    return endpoint.kind is EndpointKind.READ and endpoint.can_block and bool(spec.options.get("index", 0))


def _add_read_options(
    endpoint: Endpoint,
    spec: RequestSpec,
    defaults: ClientDefaults,
    query: list[tuple[str, str]],
    *,
    timeout_s: float,
) -> float:
    """Add the options of a read to `query`, a list of (name, text), and return the timeout in seconds for the reply.

    `timeout_s` is the timeout of a read that does not wait. If the read waits for a change (`index`), the timeout is the wait time with a margin.
    """
    options = spec.options
    text_by_name = {
        "filter": options.get("filter"),
        "prefix": options.get("prefix"),
        "next_token": options.get("next_token"),
    }
    query.extend((name, value) for name, value in text_by_name.items() if value)
    if options.get("per_page"):
        query.append(("per_page", str(options["per_page"])))
    if options.get("reverse"):
        query.append(("reverse", "true"))
    if options.get("stale", defaults.stale):
        query.append(("stale", ""))
    if not _is_blocking(endpoint, spec):
        return timeout_s
    query.append(("index", str(options["index"])))
    wait_s = options.get("wait_s")
    if wait_s is not None:
        query.append(
            ("wait", f"{max(1, round(wait_s * 1000))}ms")
        )  # At least 1 ms, because 0 would select the server's default.
    return (DEFAULT_WAIT_S if wait_s is None else wait_s) * MAX_WAIT_FACTOR + BLOCKING_QUERY_MARGIN_S


# -- decoding replies -------------------------------------------------------------------------------------------


def decode_value(endpoint: Endpoint, reply: ClientReply) -> Any:
    """Return the body of a reply, decoded as its endpoint declares: as None, bytes, text or a JSON value.

    Raises `UnexpectedReply` if it is not JSON of the declared type.
    """
    if endpoint.reply_type is None:
        return reply.body if endpoint.content_type else None
    if endpoint.reply_type is bytes:
        return reply.body
    if endpoint.content_type and endpoint.reply_type is str:
        return reply.body.decode("utf-8", "replace")
    return decode_json(endpoint, reply.body)


def decode_json(endpoint: Endpoint, body: bytes) -> Any:
    """Return a JSON text decoded as the endpoint's reply type. Raises `UnexpectedReply` if it has another type."""
    try:
        return msgspec.json.decode(body, type=endpoint.reply_type)
    except msgspec.MsgspecError as error:
        raise UnexpectedReply(f"unexpected reply: {error}", is_sent=True) from error


def _build_response(reply: ClientReply, value: Any) -> Response[Any]:
    """Return the response of a read: the decoded value with the index, leader, age and page token in the reply headers."""
    return Response(
        value,
        _parse_number_header(reply, "x-cluster-index"),
        reply.headers.get("x-cluster-knownleader", "true") == "true",
        _parse_number_header(reply, "x-cluster-lastcontact"),
        reply.headers.get("x-cluster-nexttoken", ""),
    )


def _parse_number_header(reply: ClientReply, header: str) -> int:
    """Return the number in a header; 0 if it is missing or invalid."""
    text = reply.headers.get(header, "0")
    return int(text) if text.isascii() and text.isdigit() else 0


# -- repeated calls --------------------------------------------------------------------------------------------------


def follow_changes(state: ClientState, endpoint: Endpoint, spec: RequestSpec) -> Flow[None]:
    """Yield the current response of a read, and a new one after each change, without end.

    During an outage it pauses and retries. If the index decreases, because the servers were restored or reset, the new
    response is yielded and followed from there. Updates the index in `spec.options`. This is a flow: a generator that
    yields steps, such as `SendRequest`, which a runner performs.
    """
    can_block = endpoint.kind is EndpointKind.READ and endpoint.can_block
    assert can_block, f"{endpoint.name} does not support blocking queries, so it cannot be followed"
    world = state.world
    failure_count = 0
    has_begun = False
    lost_at_s: float | None = None
    while True:
        requested_index, start_s = spec.options.get("index", 0), world.monotonic_s()
        try:
            response = yield from perform_call(state, endpoint, spec)
        except (Unreachable, *TRANSIENT_ERRORS) as error:
            if isinstance(error, UnexpectedReply) or not (has_begun or state.retry_policy.retries_first_open):
                raise
            lost_at_s = world.monotonic_s() if lost_at_s is None else lost_at_s
            if world.monotonic_s() - lost_at_s >= state.retry_policy.max_outage_s:
                raise
            failure_count += 1
            yield PauseFlow(state.draw_pause_s(failure_count, error), error)
            continue
        has_begun, lost_at_s = True, None
        if response.index != requested_index:
            failure_count = 0
            yield YieldValue(response)
        elif world.monotonic_s() - start_s < MIN_BLOCKING_TIME_S:
            # The server (or a proxy) did not block. Without a pause the client would send requests in a tight loop.
            failure_count += 1
            yield PauseFlow(state.draw_pause_s(failure_count))
        spec.options["index"] = max(1, response.index)  # A query with index 0 never blocks.


def iterate_records(state: ClientState, endpoint: Endpoint, spec: RequestSpec) -> Flow[None]:
    """Yield all records of a list, fetched page by page. Updates the page token in `spec.options`.

    This is a flow: a generator that yields steps, such as `SendRequest`, which a runner performs.
    """
    spec.options.setdefault("per_page", DEFAULT_PAGE_SIZE)
    while True:
        response = yield from perform_call(state, endpoint, spec)
        for record in response.value:
            yield YieldValue(record)
        if not response.next_token:
            return
        spec.options["next_token"] = response.next_token
