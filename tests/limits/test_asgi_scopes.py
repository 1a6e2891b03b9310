"""The ASGI middleware: what it reads of a scope, and how it serves machines, websockets and the lifespan."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.limits.builders import build_rules_text
from tests.limits.decision_services import (
    ADA,
    AdvancingWorld,
    AsgiCaller,
    RecordedReply,
    count_slots,
    count_used,
    make_application,
    make_decision_service,
    run_async,
    send_request,
)
from tests.waiting import wait_on_loop_until
from wharf.limits.asgi import SCOPE_KEY, LimitsMiddleware, read_incoming_request
from wharf.limits.config import LimiterSettings
from wharf.limits.core.rule import ConnectionClass
from wharf.limits.decisions import IncomingRequest
from wharf.limits.decisions.service import MAX_BODY_BYTES
from wharf.limits.rate_limiter import RateLimiter
from wharf.world import RealWorld

ORIGIN = ("origin", "https://acme.example")


def read(*headers: tuple[str, str], **scope: Any) -> IncomingRequest:
    return read_incoming_request(AsgiCaller("/a", headers=headers, query="q=\xe9").scope | scope, "/a")


def test_a_scope_without_special_headers_is_a_plain_request() -> None:
    incoming = read(("accept", "x"), ("x-if-none-match", "x"))

    expected = IncomingRequest("GET", "/a", "q=\u00c3\u00a9", "192.0.2.7")
    assert [getattr(incoming, name) for name in IncomingRequest.__struct_fields__] == [
        getattr(expected, name) for name in IncomingRequest.__struct_fields__
    ]


SPECIAL_HEADERS = pytest.mark.parametrize(
    ("headers", "field", "value"),
    [
        ([("authorization", "Bearer x")], "authorization", "Bearer x"),
        ([("authorization", "Bearer x"), ("authorization", "Bearer x")], "authorization", "twice"),
        ([("if-none-match", "x")], "is_conditional", True),
        ([("if-modified-since", "x")], "is_conditional", True),
        ([("x-forwarded-for", "a"), ("x-forwarded-for", "b")], "forwarded_for", ("a", "b")),
        ([("forwarded", "for=a"), ("forwarded", "for=b")], "forwarded", ("for=a", "for=b")),
        ([ORIGIN], "has_origin", True),
    ],
)


@SPECIAL_HEADERS
def test_each_special_header_sets_only_its_field(headers: list[tuple[str, str]], field: str, value: object) -> None:
    fields = ("authorization", "is_conditional", "forwarded_for", "forwarded", "has_origin")
    plain, incoming = read(), read(*headers)

    assert {name: getattr(incoming, name) for name in fields} == {
        **{name: getattr(plain, name) for name in fields},
        field: value,
    }


@SPECIAL_HEADERS
def test_special_headers_are_found_between_others(headers: list[tuple[str, str]], field: str, value: object) -> None:
    others = [("host", "acme.example"), ("accept", "x")]
    mixed = [each for header in headers for each in (others[0], header)] + [others[1]]

    assert getattr(read(*mixed), field) == value


@pytest.mark.parametrize(
    ("client", "peer"),
    [(("192.0.2.1", 5), "192.0.2.1"), (None, "127.0.0.1"), (("", 5), "127.0.0.1"), ((None, 5), "127.0.0.1")],
)
def test_a_caller_without_an_address_is_local(client: object, peer: str) -> None:
    assert read(client=client).peer == peer


def find_logged_path(*, routes_raw_paths: bool, **scope: Any) -> str:
    """Return the path that the limiter judged of a request with this scope; `refused` if it refused the path."""
    decision_service = make_decision_service('[[rule]]\nname = "core"\nceiling = 0\n')  # Refusals are logged.
    caller = AsgiCaller(token=ADA)
    caller.scope |= scope
    middleware = LimitsMiddleware(make_application(), decision_service, routes_raw_paths=routes_raw_paths)
    status = asyncio.run(caller.call(middleware)).status
    return {400: "refused"}.get(status) or next(iter(decision_service.decision_log.list_recent())).path


@pytest.mark.parametrize(
    ("raw_path", "path", "judged_path", "judged_raw_path"),
    [
        (b"/a%20b", "/a b", "/a%20b", "/a%20b"),
        (b"/%e9", "/\ufffd", "/%EF%BF%BD", "/%E9"),
        (b"/\xe9", "/\xe9", "/%C3%A9", "/%E9"),
        (b"/a%2fb", "/a/b", "/a/b", "/a%2Fb"),
        (b"/a%3Fb%23c", "/a?b#c", "/a%3Fb%23c", "/a%3Fb%23c"),
        (b"/a%252Fb", "/a%2Fb", "/a%252Fb", "/a%252Fb"),
        (b"/a;b", "/a;b", "/a;b", "/a;b"),
        (b"/a?b", "/a", "/a", "/a"),
        (b"", "/decoded", "/decoded", "/decoded"),
        (None, "/decoded", "/decoded", "/decoded"),
        (b"/a%2F..%2Fb", "/a/../b", "refused", "refused"),
        (b"//a", "//a", "refused", "refused"),
        (b"/a%0A", "/a\n", "refused", "refused"),
        (b"/a\\b", "/a\\b", "/a%5Cb", "refused"),
        (b"/%ed%a0%80", "/\ud800", "/%3F", "/%ED%A0%80"),
    ],
)
def test_the_path_is_judged_that_the_application_uses(
    raw_path: bytes | None, path: str, judged_path: str, judged_raw_path: str
) -> None:
    judged = [find_logged_path(raw_path=raw_path, path=path, routes_raw_paths=is_raw) for is_raw in (False, True)]

    assert judged == [judged_path, judged_raw_path]


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_refused_path_does_not_reach_the_application(kind: str) -> None:
    decision_service = make_decision_service()
    caller = AsgiCaller("/a/../rate_limit", kind=kind, token=ADA)
    if kind == "websocket":
        caller.messages.put_nowait({"type": "websocket.connect"})

    reply = send_request(decision_service, caller)

    assert (reply.status, count_used(decision_service, "core")) == (400, 0)
    assert "segment `.` or `..`" in reply.json()["message"]


@pytest.mark.parametrize(
    ("class_name", "connection"), [("waiting", ConnectionClass.WAITING), ("plain", ConnectionClass.PLAIN)]
)
def test_the_application_around_the_middleware_can_describe_a_request(
    class_name: str, connection: ConnectionClass
) -> None:
    description = {"kind": "user", "class": class_name, "authorization": "Bearer described"}

    incoming = read(("authorization", "Bearer sent"), **{SCOPE_KEY: description})

    assert (incoming.connection, incoming.authorization) == (connection, "Bearer described")


def describe(kind: str) -> dict[str, str | None]:
    return {"kind": kind, "class": "plain", "authorization": None}


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(("caller_kind", "is_counted"), [("machine", False), ("user", True)])
def test_machines_pass_without_limits(kind: str, caller_kind: str, is_counted: bool) -> None:
    decision_service = make_decision_service()
    caller = AsgiCaller(kind=kind)
    caller.scope[SCOPE_KEY] = describe(caller_kind)

    served: list[str] = []

    async def application(scope: Any, _receive: Any, send: Any) -> None:
        served.append(scope["type"])
        if kind == "websocket":
            await send({"type": "websocket.accept"})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})

    reply = send_request(decision_service, caller, application)

    assert served == [kind]
    assert ("x-ratelimit-used" in reply.headers, decision_service.activity.admitted) == (is_counted, 1)
    assert count_used(decision_service, "core", "address:192.0.2.7") == is_counted


@pytest.mark.parametrize(("has_pages", "body"), [(True, b"{"), (False, b"h")])
def test_the_application_can_serve_the_pages_of_the_limiter_itself(has_pages: bool, body: bytes) -> None:
    decision_service, caller = make_decision_service(), AsgiCaller("/meta", token=ADA)
    application = LimitsMiddleware(make_application(), decision_service, has_pages=has_pages)

    reply = asyncio.run(caller.call(application))

    assert (reply.body[:1], count_slots(decision_service)) == (body, 0)


def test_a_post_to_a_page_of_the_limiter_reaches_the_application() -> None:
    decision_service = make_decision_service()

    reply = send_request(decision_service, AsgiCaller("/meta", method="POST", token=ADA))

    assert (reply.body, count_slots(decision_service), count_used(decision_service, "core")) == (b"hello", 0, 1)


@pytest.mark.parametrize(
    ("method", "headers", "body", "is_exposed"),
    [("GET", [], True, False), ("GET", [ORIGIN], True, True), ("HEAD", [ORIGIN], False, True)],
)
def test_a_page_of_the_limiter_has_its_length_and_no_body_for_head(
    method: str, headers: list[tuple[str, str]], body: bool, is_exposed: bool
) -> None:
    reply = send_request(make_decision_service(), AsgiCaller("/meta", method=method, headers=headers))

    assert (bool(reply.body), "access-control-expose-headers" in reply.headers) == (body, is_exposed)
    assert int(reply.headers["content-length"]) == len(b'{"verifiable_password_authentication":false}')


def test_replies_expose_limit_headers_only_to_other_origins() -> None:
    replies = [send_request(make_decision_service(), AsgiCaller(headers=headers)) for headers in ([], [ORIGIN])]

    assert ["access-control-expose-headers" in reply.headers for reply in replies] == [False, True]


# -- bodies --------------------------------------------------------------------------------------------------------


async def receive_all(receive: Any) -> list[Any]:
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    return messages


@pytest.mark.parametrize(
    "sizes", [[0], [5], [5, 7], [MAX_BODY_BYTES], [MAX_BODY_BYTES, 1, 1], [MAX_BODY_BYTES - 1, 1, 1]]
)
def test_the_application_receives_all_of_a_body_that_was_read_before(sizes: list[int]) -> None:
    received: list[int] = []

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        received.extend(len(message["body"]) for message in await receive_all(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    decision_service = make_decision_service(
        build_rules_text('[[endpoint]]\nmatch = ["POST /graphql"]\ninterface = "large_files"')
    )
    caller = AsgiCaller("/graphql/objects/batch", method="POST", token=ADA)
    caller.messages.get_nowait()
    for number, size in enumerate(sizes):
        caller.messages.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": number < len(sizes) - 1})

    assert send_request(decision_service, caller, application).status == 200
    assert sum(received) == sum(sizes)


def test_many_small_parts_of_a_body_that_was_read_before_are_one_part() -> None:
    received: list[Any] = []

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        received.extend(await receive_all(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    query = b'{"query": "{ a }"}'
    caller = AsgiCaller("/graphql", method="POST", token=ADA)
    caller.messages.get_nowait()
    for number in range(len(query)):
        part = query[number : number + 1]
        caller.messages.put_nowait({"type": "http.request", "body": part, "more_body": number < len(query) - 1})

    assert send_request(make_decision_service(), caller, application).status == 200
    assert received == [{"type": "http.request", "body": query, "more_body": False}]


@pytest.mark.parametrize(("more", "status"), [([], 200), ([b" "], 400)])
def test_a_query_is_read_up_to_one_byte_more_than_allowed(more: list[bytes], status: int) -> None:
    query = b'{"query": "{ a }"}'
    parts = [query + b" " * (MAX_BODY_BYTES - len(query)), *more]
    caller = AsgiCaller("/graphql", method="POST", token=ADA)
    caller.messages.get_nowait()
    for number, part in enumerate(parts):
        caller.messages.put_nowait({"type": "http.request", "body": part, "more_body": number < len(parts) - 1})

    assert send_request(make_decision_service(), caller).status == status


def test_a_body_is_read_until_the_caller_disconnects() -> None:
    decision_service, caller = make_decision_service(), AsgiCaller("/graphql", method="POST", token=ADA)
    caller.messages.get_nowait()
    caller.messages.put_nowait({"type": "http.request", "body": b'{"query": ', "more_body": True})
    caller.disconnect()

    reply = send_request(decision_service, caller)

    assert (reply.status, reply.json()["cause"]) == (400, "too_complex")


def test_the_slot_of_a_caller_that_disconnects_is_freed_at_once() -> None:
    decision_service = make_decision_service()
    slots: list[int] = []

    async def application(_scope: Any, receive: Any, _send: Any) -> None:
        for _ in range(2):
            await receive()
            slots.append(count_slots(decision_service))

    caller = AsgiCaller(token=ADA)
    caller.messages.get_nowait()
    caller.messages.put_nowait({"type": "http.request", "body": b"x", "more_body": True})
    caller.disconnect()
    send_request(decision_service, caller, application)

    assert slots == [1, 0]


# -- websockets ----------------------------------------------------------------------------------------------------

FEW = build_rules_text(
    '[[rule]]\nname = "few"\nmatch = ["GET /live"]\nresource = "few"\nceiling = 0',
    '[[rule]]\nname = "live"\ncounts = "connections"\nconnection = "websocket"\nceiling = 2',
    '[[rule]]\nname = "cpu"\ncounts = "cpu_ms"\nceiling = 90000',
)


def call_websocket(caller: AsgiCaller, application: Any = None) -> list[str]:
    """Call with a websocket, and return the types of the messages that the caller receives."""
    sent: list[str] = []
    record = caller.send

    async def send(message: Any) -> None:
        sent.append(message["type"])
        await record(message)

    caller.send = send  # type: ignore[method-assign]  # records the types too
    caller.messages.put_nowait({"type": "websocket.connect"})
    send_request(make_decision_service(FEW), caller, application)
    return sent


def test_a_refused_handshake_gets_a_reply_or_a_close_code() -> None:
    replying, closing = AsgiCaller("/live", kind="websocket"), AsgiCaller("/live", kind="websocket")
    closing.scope["extensions"] = {}

    assert call_websocket(replying) == ["websocket.http.response.start", "websocket.http.response.body"]
    assert call_websocket(closing) == ["websocket.close"]
    assert (replying.reply.status, bool(replying.reply.body), closing.reply) == (403, True, RecordedReply())
    assert replying.messages.empty()


def test_an_application_can_refuse_a_websocket_with_limit_headers() -> None:
    async def application(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.http.response.start", "status": 404, "headers": [(b"x-own", b"1")]})
        await send({"type": "websocket.http.response.body", "body": b""})

    caller = AsgiCaller("/x", kind="websocket")
    call_websocket(caller, application)

    assert (caller.reply.headers["x-own"], caller.reply.headers["x-ratelimit-used"]) == ("1", "1")


@pytest.mark.parametrize("ending", ["application closes", "caller leaves", "application returns"])
def test_the_slot_of_a_websocket_is_freed_when_it_ends(ending: str) -> None:
    decision_service = make_decision_service(FEW)
    slots: list[int] = []

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        slots.append(count_slots(decision_service, "address:192.0.2.7", "live"))
        if ending == "application closes":
            await send({"type": "websocket.close"})
        elif ending == "caller leaves":
            await receive()
        else:
            return
        slots.append(count_slots(decision_service, "address:192.0.2.7", "live"))

    caller = AsgiCaller(kind="websocket")
    caller.messages.put_nowait({"type": "websocket.connect"})
    caller.disconnect()
    send_request(decision_service, caller, application)

    assert slots == ([1] if ending == "application returns" else [1, 0])
    assert count_slots(decision_service, "address:192.0.2.7", "live") == 0


def test_what_an_application_reports_as_it_accepts_a_websocket_is_charged_and_removed() -> None:
    decision_service = make_decision_service()

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept", "headers": [(b"x-wharf-cpu-ms", b"40"), (b"x-own", b"1")]})

    caller = AsgiCaller("/x", kind="websocket", token=ADA)
    caller.messages.put_nowait({"type": "websocket.connect"})
    send_request(decision_service, caller, application)

    assert ("x-wharf-cpu-ms" in caller.reply.headers, caller.reply.headers["x-own"]) == (False, "1")
    assert count_used(decision_service, "cpu") == 40


@pytest.mark.parametrize("ending", ["raises", "raises before it listens", "replies with an error"])
def test_a_handshake_that_fails_in_the_application_is_refunded_and_answered_with_limit_headers(ending: str) -> None:
    decision_service = make_decision_service()

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        if ending == "raises before it listens":
            raise LookupError("broken")
        await receive()
        if ending == "raises":
            raise LookupError("broken")
        await send({"type": "websocket.http.response.start", "status": 500, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b""})

    caller = AsgiCaller("/x", kind="websocket", token=ADA)
    caller.messages.put_nowait({"type": "websocket.connect"})
    expectation = pytest.raises(LookupError) if ending.startswith("raises") else contextlib.nullcontext()
    with expectation:
        send_request(decision_service, caller, application)

    assert (caller.reply.status, caller.reply.headers["x-ratelimit-used"]) == (500, "0")
    assert (count_used(decision_service, "core"), decision_service.running_requests) == (0, {})


def test_a_websocket_that_fails_after_it_was_accepted_costs_a_request() -> None:
    decision_service = make_decision_service()

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        raise LookupError("broken")

    caller = AsgiCaller("/x", kind="websocket", token=ADA)
    caller.messages.put_nowait({"type": "websocket.connect"})
    with pytest.raises(LookupError):
        send_request(decision_service, caller, application)

    assert (count_used(decision_service, "core"), decision_service.running_requests) == (1, {})


# -- other connections ---------------------------------------------------------------------------------------------


def make_limiter(folder: Path) -> RateLimiter:
    return RateLimiter(LimiterSettings(data_folder=folder), RealWorld())


async def serve_lifespan(middleware: Any, *types: str) -> list[str]:
    """Run the lifespan of an application with these messages, and return the types of its replies."""
    messages: asyncio.Queue[Any] = asyncio.Queue()
    for kind in types:
        messages.put_nowait({"type": kind})
    sent: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await middleware({"type": "lifespan"}, messages.get, send)
    return sent


def test_a_limiter_is_open_while_the_application_runs(tmp_path: Path) -> None:
    limiter, folder = make_limiter(tmp_path / "data"), tmp_path / "data"
    states: list[str] = []

    def get_state() -> str:
        """Return whether the limiter is closed, open, or was closed and has saved its counters."""
        if not folder.exists():
            return "new"
        return "closed" if (folder / "counters").exists() else "open"

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        states.append(get_state())
        for phase in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{phase}"
            states.append(get_state())
            await send({"type": f"lifespan.{phase}.complete"})

    sent = run_async(
        lambda: serve_lifespan(LimitsMiddleware(application, limiter), "lifespan.startup", "lifespan.shutdown")
    )

    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert [*states, get_state()] == ["new", "open", "open", "closed"]


async def raise_for_lifespans(_scope: Any, _receive: Any, _send: Any) -> None:
    raise ValueError("only HTTP")


async def reply_always(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def ignore_lifespans(_scope: Any, _receive: Any, _send: Any) -> None:
    pass


@pytest.mark.parametrize("application", [raise_for_lifespans, reply_always, ignore_lifespans])
def test_a_limiter_is_open_also_if_the_application_knows_no_lifespan(tmp_path: Path, application: Any) -> None:
    limiter = make_limiter(tmp_path / "data")

    sent = run_async(
        lambda: serve_lifespan(LimitsMiddleware(application, limiter), "lifespan.startup", "lifespan.shutdown")
    )

    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert (tmp_path / "data" / "counters").exists()


def test_a_server_learns_that_the_limiter_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    limiter = make_limiter(tmp_path / "data")

    sent = run_async(lambda: serve_lifespan(LimitsMiddleware(ignore_lifespans, limiter), "lifespan.startup"))

    assert sent == ["lifespan.startup.failed"]


def test_a_limiter_is_closed_if_the_application_fails_to_start(tmp_path: Path) -> None:
    limiter = make_limiter(tmp_path / "data")

    async def application(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        raise NotImplementedError

    with pytest.raises(NotImplementedError):
        run_async(lambda: serve_lifespan(LimitsMiddleware(application, limiter), "lifespan.startup"))

    assert (tmp_path / "data" / "counters").exists()


@pytest.mark.parametrize("kind", ["lifespan", "other"])
def test_a_connection_without_requests_is_passed_on(kind: str) -> None:
    kinds: list[str] = []

    async def application(scope: Any, _receive: Any, _send: Any) -> None:
        kinds.append(scope["type"])

    send_request(make_decision_service(), AsgiCaller(kind=kind), application)

    assert kinds == [kind]


def test_only_one_receive_waits_for_the_caller_of_a_long_request() -> None:
    async def scenario() -> tuple[list[str], int, int]:
        world = AdvancingWorld()
        decision_service = make_decision_service(world=world)
        waiting = most_waiting = 0
        types: list[str] = []
        caller = AsgiCaller(token=ADA)

        async def receive() -> Any:
            nonlocal waiting, most_waiting
            waiting += 1
            most_waiting = max(most_waiting, waiting)
            try:
                return await caller.messages.get()
            finally:
                waiting -= 1

        async def application(_scope: Any, receive: Any, _send: Any) -> None:
            types.extend([(await receive())["type"] for _ in range(2)])

        running = asyncio.ensure_future(
            LimitsMiddleware(application, decision_service)(caller.scope, receive, caller.send)
        )
        await wait_on_loop_until(lambda: waiting, what="the application waits for the caller")
        world.advance(5)
        await decision_service.run_maintenance(should_renew=False)
        await asyncio.sleep(0)
        caller.disconnect()
        await running
        return types, most_waiting, waiting

    assert asyncio.run(scenario()) == (["http.request", "http.disconnect"], 1, 0)


def test_a_message_after_the_body_of_a_long_request_is_passed_on_as_a_disconnect() -> None:
    async def scenario() -> list[str]:
        world = AdvancingWorld()
        decision_service = make_decision_service(world=world)
        types: list[str] = []
        caller = AsgiCaller(token=ADA)
        has_ended = asyncio.Event()

        async def application(_scope: Any, receive: Any, _send: Any) -> None:
            types.append((await receive())["type"])
            await has_ended.wait()
            types.extend([(await receive())["type"] for _ in range(2)])

        running = asyncio.ensure_future(caller.call(LimitsMiddleware(application, decision_service)))
        await wait_on_loop_until(caller.messages.empty, what="the application has the request")
        world.advance(5)
        await decision_service.run_maintenance(should_renew=False)
        caller.messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        await wait_on_loop_until(caller.messages.empty, what="the middleware has the second message")
        has_ended.set()
        await running
        return types

    assert asyncio.run(scenario()) == ["http.request", "http.disconnect", "http.disconnect"]


def test_after_a_long_request_nothing_waits_for_its_caller() -> None:
    async def scenario() -> tuple[bool, int]:
        world = AdvancingWorld()
        decision_service = make_decision_service(world=world)
        caller = AsgiCaller(token=ADA)
        may_end = asyncio.Event()

        async def application(_scope: Any, receive: Any, _send: Any) -> None:
            await receive()
            await may_end.wait()

        before = asyncio.all_tasks()
        running = asyncio.ensure_future(caller.call(LimitsMiddleware(application, decision_service)))
        await wait_on_loop_until(caller.messages.empty, what="the application has the request")
        world.advance(5)
        await decision_service.run_maintenance(should_renew=False)
        is_watched = len(asyncio.all_tasks() - before) == 2
        may_end.set()
        await running
        await asyncio.sleep(0)
        return is_watched, len(asyncio.all_tasks() - before)

    assert asyncio.run(scenario()) == (True, 0)


@pytest.mark.parametrize(
    ("status", "headers", "used"),
    [
        (200, [], "1"),
        (304, [], "1"),
        (304, [("if-none-match", "x")], "0"),
        (499, [], "1"),
        (500, [], "0"),
        (503, [], "0"),
    ],
)
def test_a_reply_of_the_application_is_refunded_if_it_is_unchanged_or_failed(
    status: int, headers: list[tuple[str, str]], used: str
) -> None:
    decision_service = make_decision_service()
    reply = send_request(decision_service, AsgiCaller(token=ADA, headers=headers), make_application(status))

    assert (reply.status, reply.headers["x-ratelimit-used"]) == (status, used)
    assert count_used(decision_service, "core") == int(used)
