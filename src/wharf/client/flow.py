"""What a client does for a call, step by step, without doing it: whom to ask, when to ask again, what to make of replies.

A flow is a generator. It yields a step, is told what came of it, and goes on. Two thin drivers take the steps, one that
waits and one that is awaited; nothing of what is decided here is decided there.
"""

from collections.abc import Generator
from typing import Any, Final, Generic, TypeVar

import msgspec

from wharf.client.calls import Answer, Ask, may_be_repeated, own_query, path_of, takes_key
from wharf.client.errors import PASSING, NotUnderstood, Refused, refused
from wharf.client.exchange import TIMEOUT_S, Head, Reply, Request, Unreachable
from wharf.wire.endpoints import Endpoint, Kind
from wharf.world import World

T = TypeVar("T")

STREAMED_S: Final = 900.0
"""For what takes a body of any size: it is read, checked and taken in before there is an answer."""
BLOCKING_SLACK_S: Final = 30.0
WAIT_DEFAULT_S: Final = 300.0
LONGEST_WAIT: Final = 17 / 16
"""Servers wait up to a sixteenth longer than asked, so that not all come back at once."""
PER_PAGE: Final = 500
SOON_S: Final = 0.05
UNABLE: Final = (500, 503)
"""A server that answers so has lost its leader or its log: another may have both."""


class Send(msgspec.Struct, frozen=True):
    """To the server of this number; what comes of it is a `Reply`."""

    request: Request
    server: int


class Pause(msgspec.Struct, frozen=True):
    seconds: float


class Open(msgspec.Struct, frozen=True):
    """As `Send`, for a reply that comes piece by piece: what comes of it is its `Head`."""

    request: Request
    server: int


class Next(msgspec.Struct, frozen=True):
    """What comes of it is the next piece of an opened reply; an empty one is its end."""

    opened: Any  # Whatever the driver gave for `Open`.


class Close(msgspec.Struct, frozen=True):
    opened: Any


class Give(msgspec.Struct, frozen=True):
    """A value for the caller."""

    value: Any


Step = Send | Pause | Open | Next | Close | Give
Heard = Reply | Head | bytes | None
Flow = Generator[Step, Heard, T]


class Retries(msgspec.Struct, frozen=True):
    """How often a call is made at most, and the pauses in between: each up to twice as long as the one before."""

    attempts: int = 4
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0

    def pause_s(self, attempt: int, world: World) -> float:
        """Before the attempt of this number. By chance, so that clients that failed together do not return together."""
        longest_s = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(attempt - 1, 16))
        return world.random.uniform(longest_s / 2, longest_s)


ONCE: Final = Retries(attempts=1)


class Defaults(msgspec.Struct, frozen=True):
    """What holds for every call of a client that does not say otherwise."""

    namespace: str = ""
    region: str = ""
    stale: bool = False


class Standing:
    """What flows of one client share: which server is asked, and how often."""

    def __init__(self, world: World, *, servers: int, defaults: Defaults | None, retries: Retries | None) -> None:
        assert servers > 0, "a client needs a server"
        self.world = world
        self.defaults = defaults or Defaults()
        self.retries = retries or Retries()
        self.servers = servers
        self.server = 0

    def pause_s(self, attempt: int, error: Exception | None = None) -> float:
        """Before the attempt of this number; no shorter than the server wants it."""
        wanted_s = error.retry_after_s if isinstance(error, Refused) else None
        return max(wanted_s or 0.0, self.retries.pause_s(attempt, self.world))

    def turn_from(self, used: int) -> None:
        """To the next server, unless somebody turned already."""
        if self.server == used:
            self.server = (used + 1) % self.servers


class Course(Generic[T]):
    """A flow under way: `step` is what to do next; None, when `result` is there."""

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow
        self.step: Step | None = None
        self._result: list[T] = []
        self.hear(None)

    @property
    def result(self) -> T:
        return self._result[0]

    def hear(self, heard: Heard) -> None:
        try:
            self.step = self._flow.send(heard)
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


def perform(standing: Standing, row: Endpoint, ask: Ask) -> Flow[Any]:
    """One call: sent, and sent again where that does no harm and may help. Ends with what the row returns.

    Raises `Refused` and `Unreachable`.
    """
    request = request_of(standing, row, ask)
    reply = yield from exchanged(standing, request, answers=row.answers, repeatable=_is_safe(row, request))
    value = value_of(row, reply)
    return _answer(reply, value) if row.kind is Kind.READ else value


def exchanged(standing: Standing, request: Request, *, repeatable: bool, answers: tuple[int, ...] = ()) -> Flow[Reply]:
    """A reply that is a success. `answers`: statuses beside the usual ones that are no refusals."""
    retries, world = standing.retries, standing.world
    gives_up_at_s = world.monotonic_s() + request.timeout_s
    attempt, unheard = 1, 0
    while True:
        used = standing.server
        pause_s: float | None = None
        try:
            reply = yield Send(request, used)
            assert isinstance(reply, Reply)
            if reply.status < 300 or reply.status in answers:
                return reply
            error: Refused | Unreachable = refused(reply)
            if reply.status in UNABLE:
                standing.turn_from(used)
            if not isinstance(error, PASSING) or not repeatable:
                raise error
            pause_s = error.retry_after_s if isinstance(error, Refused) else None
        except Unreachable as unreachable:
            standing.turn_from(used)
            error = unreachable
            if error.sent and not repeatable:
                raise
            if not error.sent:
                # Nobody heard it: another server is asked at once, as long as there is one that was not.
                unheard += 1
                if unheard % standing.servers:
                    continue
        pause_s = pause_s if pause_s is not None else retries.pause_s(attempt, world)
        attempt += 1
        if attempt > retries.attempts or world.monotonic_s() + pause_s >= gives_up_at_s:
            raise error
        yield Pause(pause_s)


def sent(standing: Standing, request: Request) -> Flow[Reply]:
    """Any request, and whatever is answered, also a refusal. Sent again only to a server that has not heard it."""
    for _ in range(standing.servers - 1):
        used = standing.server
        try:
            return (yield from _sent_to(used, request))
        except Unreachable as error:
            standing.turn_from(used)
            if error.sent:
                raise
    return (yield from _sent_to(standing.server, request))


def _sent_to(server: int, request: Request) -> Flow[Reply]:
    reply = yield Send(request, server)
    assert isinstance(reply, Reply)
    return reply


def _is_safe(row: Endpoint, request: Request) -> bool:
    return may_be_repeated(row) or "idempotency-key" in request.headers


def request_of(standing: Standing, row: Endpoint, ask: Ask) -> Request:
    options, defaults = ask.options, standing.defaults
    query = list(own_query(row, ask.own))
    for name, default in (("namespace", defaults.namespace), ("region", defaults.region)):
        value = options.get(name, default)
        if value:
            query.append((name, str(value)))
    timeout_s = STREAMED_S if row.streams_body else TIMEOUT_S
    if row.kind is Kind.READ:
        timeout_s = _read_query(row, ask, defaults, query)
    headers = dict(ask.headers)
    body = b""
    if ask.body is not None:
        body = ask.body if isinstance(ask.body, bytes) else msgspec.json.encode(ask.body)
        headers.setdefault("content-type", "application/json")
    if takes_key(row):
        key = options.get("idempotency_key") or (standing.world.new_id() if standing.retries.attempts > 1 else "")
        if key:
            headers["idempotency-key"] = key
    return Request(row.method, path_of(row, ask.parts), tuple(query), headers, body, timeout_s)


def _read_query(row: Endpoint, ask: Ask, defaults: Defaults, query: list[tuple[str, str]]) -> float:
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
    if not index or not row.blocks:
        return TIMEOUT_S
    query.append(("index", str(index)))
    wait_s = options.get("wait_s")
    if wait_s is not None:
        query.append(("wait", f"{max(1, round(wait_s * 1000))}ms"))  # None at all would mean the server's default.
    return (WAIT_DEFAULT_S if wait_s is None else wait_s) * LONGEST_WAIT + BLOCKING_SLACK_S


# -- what is made of replies -------------------------------------------------------------------------------------------


def value_of(row: Endpoint, reply: Reply) -> Any:
    """The reply's body as the row declares it. Raises `NotUnderstood`."""
    if row.returns is None:
        return reply.body if row.media else None
    if row.returns is bytes:
        return reply.body
    if row.media and row.returns is str:
        return reply.body.decode("utf-8", "replace")
    return decoded(row, reply.body)


def decoded(row: Endpoint, body: bytes) -> Any:
    try:
        return msgspec.json.decode(body, type=row.returns)
    except msgspec.MsgspecError as error:
        text = f"what answers is no server that this client understands: {error}"
        raise NotUnderstood(text, sent=True) from error


def _answer(reply: Reply, value: Any) -> Answer[Any]:
    return Answer(
        value,
        _number(reply, "x-cluster-index"),
        reply.headers.get("x-cluster-knownleader", "true") == "true",
        _number(reply, "x-cluster-lastcontact"),
        reply.headers.get("x-cluster-nexttoken", ""),
    )


def _number(reply: Reply, header: str) -> int:
    text = reply.headers.get(header, "0")
    return int(text) if text.isascii() and text.isdigit() else 0


# -- calls that go on --------------------------------------------------------------------------------------------------


def follow(standing: Standing, row: Endpoint, ask: Ask) -> Flow[None]:
    """Gives the answer, and again whenever the servers have a newer one, for ever.

    Outages are waited out. Where the index goes back (the servers were restored, or began anew) what they say now is
    given, and followed from there.
    """
    waits = row.kind is Kind.READ and row.blocks
    assert waits, f"{row.name} does not wait for anything, so it cannot be followed"
    world = standing.world
    troubles = 0
    while True:
        asked, began_s = ask.options.get("index", 0), world.monotonic_s()
        try:
            answer = yield from perform(standing, row, ask)
        except (Unreachable, *PASSING) as error:
            if isinstance(error, NotUnderstood):
                raise
            troubles += 1
            yield Pause(standing.pause_s(troubles, error))
            continue
        if answer.index != asked:
            troubles = 0
            yield Give(answer)
        elif world.monotonic_s() - began_s < SOON_S:
            # Who answers so does not wait (a proxy, say); asked on and on it would do nothing else.
            troubles += 1
            yield Pause(standing.pause_s(troubles))
        ask.options["index"] = max(1, answer.index)  # With an index of 0 nothing would ever block.


def each(standing: Standing, row: Endpoint, ask: Ask) -> Flow[None]:
    """Gives all records of a list, fetched page by page, however many there are."""
    ask.options.setdefault("per_page", PER_PAGE)
    while True:
        answer = yield from perform(standing, row, ask)
        for record in answer.value:
            yield Give(record)
        if not answer.next_token:
            return
        ask.options["next_token"] = answer.next_token
