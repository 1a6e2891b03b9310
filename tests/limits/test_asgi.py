"""The ASGI middleware: limit headers of replies, concurrency slots, and charges that depend on the reply."""

import asyncio
from typing import Any

import pytest
from starlette.middleware.cors import CORSMiddleware

from tests.limits.builders import build_rules_text
from tests.limits.decision_services import (
    ADA,
    APP_USER,
    CLIENT_ID,
    CLIENT_SECRET,
    INSTALLATION,
    OAUTH,
    REVOKED,
    WORKFLOW,
    AdvancingWorld,
    AsgiCaller,
    RecordedReply,
    count_slots,
    count_used,
    encode_basic,
    make_application,
    make_decision_service,
    run_async,
    send_request,
)
from tests.waiting import wait_on_loop_until
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.core.responses import build_headers
from wharf.limits.decisions import AdmittedRequest, DecisionService, IncomingRequest
from wharf.limits.rules import read_rules

LIMIT_HEADERS = (
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-used",
    "x-ratelimit-reset",
    "x-ratelimit-resource",
)
TWO_AN_HOUR = '[[rule]]\nname = "core"\nceiling = 2\n'


@pytest.mark.parametrize(
    ("authorization", "limit"),
    [
        (None, "60"),
        (f"token {ADA}", "5000"),
        (f"Bearer {OAUTH}", "5000"),
        (f"Bearer {APP_USER}", "5000"),
        (f"Bearer {INSTALLATION}", "5000"),
        (encode_basic(CLIENT_ID, CLIENT_SECRET), "5000"),
        (f"Bearer {WORKFLOW}", "1000"),
    ],
)
def test_each_kind_of_credential_has_its_own_limit(authorization: str | None, limit: str) -> None:
    headers = [] if authorization is None else [("authorization", authorization)]

    reply = send_request(make_decision_service(), AsgiCaller(headers=headers))

    assert (reply.status, reply.headers["x-ratelimit-limit"], reply.headers["x-ratelimit-used"]) == (200, limit, "1")


COSTLY = "query=%7Ba(first:100)%7Bb(first:100)%7Bid%7D,c(first:100)%7Bid%7D,d(first:100)%7Bid%7D%7D%7D"
"""A query of three points."""


def test_only_replies_to_a_token_with_scopes_have_the_scopes_header() -> None:
    with_scopes = send_request(make_decision_service(), AsgiCaller(token=OAUTH)).headers
    without_scopes = send_request(make_decision_service(), AsgiCaller(token=ADA)).headers

    assert with_scopes["x-oauth-scopes"] == "repo, read:org"
    assert "x-oauth-scopes" not in without_scopes


@pytest.mark.parametrize("status", [200, 201, 301, 304, 404, 422, 500, 503])
def test_every_reply_of_the_application_has_the_rate_limit_headers(status: int) -> None:
    reply = send_request(make_decision_service(), AsgiCaller(token=ADA), make_application(status))

    assert [name for name in (*LIMIT_HEADERS, "ratelimit", "ratelimit-policy") if name not in reply.headers] == []


@pytest.mark.parametrize("status", [200, 301, 401, 403, 404, 422])
def test_2_7_redirects_and_errors_of_the_application_cost_as_much_as_any_reply(status: int) -> None:
    decision_service = make_decision_service()

    send_request(decision_service, AsgiCaller(token=ADA, headers=[("if-none-match", '"1"')]), make_application(status))

    assert count_used(decision_service, "core") == 1


def test_both_header_formats_equal_the_headers_of_the_core() -> None:
    for text in ("", "disclose_secondary = true\n"):
        decision_service = make_decision_service(text + TWO_AN_HOUR)

        async def scenario(
            decision_service: DecisionService = decision_service,
        ) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]], bytes]:
            admitted = await decision_service.admit(IncomingRequest("GET", "/graphql", "", "192.0.2.7", f"token {ADA}"))
            assert isinstance(admitted, AdmittedRequest)
            assert admitted.decision is not None
            expected = [
                (n.encode(), v.encode()) for n, v in build_headers(admitted.decision, decision_service.evaluator.rules)
            ]
            expected.append((b"x-github-request-id", admitted.id.encode()))
            return (
                expected,
                decision_service.build_header_pairs(admitted),
                decision_service.build_header_block(admitted),
            )

        expected, pairs, block = run_async(scenario)

        assert expected == pairs
        assert b"".join(b"%s: %s\r\n" % pair for pair in expected) == block


def test_a_refusal_has_the_body_that_clients_know_and_a_cause_for_programs() -> None:
    decision_service = make_decision_service(TWO_AN_HOUR)
    for _ in range(2):
        send_request(decision_service, AsgiCaller(token=ADA))

    reply = send_request(decision_service, AsgiCaller(token=ADA))

    assert reply.status == 403
    assert reply.json()["message"].startswith("API rate limit exceeded for user ID 5")
    assert (reply.json()["cause"], reply.headers["x-ratelimit-remaining"]) == ("primary", "0")
    assert reply.headers["x-github-request-id"] in reply.json()["message"]
    assert reply.headers["retry-after"] == "3600"


@pytest.mark.parametrize(
    "authorization", ["Bearer nobody", f"token {REVOKED}", "Digest x", "Basic ?", encode_basic("a", "b")]
)
def test_an_unknown_credential_gets_401_and_the_uncharged_bucket_of_the_address(authorization: str) -> None:
    reply = send_request(make_decision_service(), AsgiCaller(headers=[("authorization", authorization)]))

    assert (reply.status, reply.headers["x-ratelimit-limit"], reply.headers["x-ratelimit-used"]) == (401, "60", "0")


def test_an_unchanged_reply_costs_an_authenticated_caller_nothing() -> None:
    decision_service = make_decision_service()

    reply = send_request(
        decision_service, AsgiCaller(token=ADA, headers=[("if-none-match", '"1"')]), make_application(304)
    )

    assert (reply.headers["x-ratelimit-used"], count_used(decision_service, "core")) == ("0", 0)


def test_an_unchanged_reply_costs_an_anonymous_caller_a_request() -> None:
    assert (
        send_request(
            make_decision_service(), AsgiCaller(headers=[("if-none-match", '"1"')]), make_application(304)
        ).headers["x-ratelimit-used"]
        == "1"
    )


def test_an_exception_of_the_application_is_refunded_and_answered_with_500() -> None:
    decision_service = make_decision_service()

    async def application_that_raises(_scope: Any, _receive: Any, _send: Any) -> None:
        raise LookupError("broken")

    caller = AsgiCaller(token=ADA)
    with pytest.raises(LookupError):
        send_request(decision_service, caller, application_that_raises)

    assert (caller.reply.status, caller.reply.headers["x-ratelimit-used"], count_slots(decision_service)) == (
        500,
        "0",
        0,
    )


def test_limit_headers_of_the_application_are_replaced_and_its_marks_are_removed() -> None:
    headers = [(b"x-ratelimit-limit", b"7"), (b"x-wharf-note", b"secret"), (b"etag", b'"1"')]

    reply = send_request(make_decision_service(), AsgiCaller(token=ADA), make_application(headers=headers))

    assert reply.headers["x-ratelimit-limit"] == "5000"
    assert reply.headers["etag"] == '"1"'
    assert "x-wharf-note" not in reply.headers


def test_cpu_time_that_the_application_reports_is_charged() -> None:
    decision_service = make_decision_service()

    send_request(decision_service, AsgiCaller(token=ADA), make_application(headers=[(b"x-wharf-cpu-ms", b"1500")]))

    assert (count_used(decision_service, "cpu"), count_used(decision_service, "compute")) == (1500, 1500)


def test_cpu_time_that_the_application_reports_replaces_what_was_charged_while_it_ran() -> None:
    world = AdvancingWorld()
    decision_service = make_decision_service(world=world)
    charged: list[int] = []

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        for _ in range(3):
            world.advance(8)
            await decision_service.run_maintenance(should_renew=True)
        charged.append(count_used(decision_service, "cpu"))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-wharf-cpu-ms", b"40")]})
        await send({"type": "http.response.body", "body": b""})

    send_request(decision_service, AsgiCaller(token=ADA), application)

    assert (charged, count_used(decision_service, "cpu")) == ([24_000], 40)


def test_cpu_time_excludes_the_time_spent_waiting_for_the_caller() -> None:
    world = AdvancingWorld()
    decision_service = make_decision_service(world=world)

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        world.advance(0.3)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    class SlowCaller(AsgiCaller):
        """A caller that takes time to receive each part of a reply."""

        async def send(self, message: Any) -> None:
            world.advance(4.0)
            await super().send(message)

    send_request(decision_service, SlowCaller(token=ADA), application)

    assert count_used(decision_service, "cpu") == 300


def test_the_time_of_an_open_stream_is_not_charged() -> None:
    world = AdvancingWorld()
    decision_service = make_decision_service(world=world)

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        world.advance(0.2)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            world.advance(60)
            await decision_service.run_maintenance(should_renew=True)
            await send({"type": "http.response.body", "body": b"event", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    send_request(decision_service, AsgiCaller(token=ADA), application)

    assert count_used(decision_service, "cpu") == 200


def test_small_amounts_of_work_add_up() -> None:
    world = AdvancingWorld()
    decision_service = make_decision_service(world=world)

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        world.advance(0.0004)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    for _ in range(100):
        send_request(decision_service, AsgiCaller(token=ADA), application)

    assert count_used(decision_service, "cpu") in range(30, 41)


def test_content_that_the_application_reports_is_charged_once() -> None:
    decision_service = make_decision_service()
    mark = [(b"x-wharf-content", b"1")]

    send_request(decision_service, AsgiCaller("/odd/place", method="POST", token=ADA), make_application(headers=mark))
    send_request(decision_service, AsgiCaller("/gists", method="POST", token=ADA), make_application(headers=mark))

    assert (count_used(decision_service, "content"), count_used(decision_service, "content_hourly")) == (2, 2)


def test_a_slot_is_held_until_the_last_byte() -> None:
    decision_service = make_decision_service()
    slots = []

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            slots.append(count_slots(decision_service))
        await send({"type": "http.response.body", "body": b""})
        slots.append(count_slots(decision_service))

    send_request(decision_service, AsgiCaller(token=ADA), application)

    assert slots == [1, 1, 1, 0]


def test_a_slot_is_freed_when_an_application_that_listens_receives_the_disconnect() -> None:
    decision_service = make_decision_service()
    slots = []

    async def application(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        slots.append(count_slots(decision_service))
        assert (await receive())["type"] == "http.disconnect"
        slots.append(count_slots(decision_service))

    caller = AsgiCaller(token=ADA)
    caller.disconnect()
    send_request(decision_service, caller, application)

    assert slots == [1, 0]


def test_a_slot_is_freed_when_the_caller_of_a_long_request_disconnects_and_the_application_does_not_listen() -> None:
    world = AdvancingWorld()
    decision_service = make_decision_service(world=world)

    async def scenario() -> list[int]:
        caller, may_end = AsgiCaller(token=ADA), asyncio.Event()
        has_started = asyncio.Event()

        async def application(_scope: Any, receive: Any, _send: Any) -> None:
            await receive()
            has_started.set()
            await may_end.wait()

        task = world.start_task(caller.call(LimitsMiddleware(application, decision_service)), name="a long request")
        await has_started.wait()
        world.advance(2.0)
        await decision_service.run_maintenance(should_renew=False)
        slots = [count_slots(decision_service)]
        caller.disconnect()
        await wait_on_loop_until(lambda: not count_slots(decision_service), what="the slot is freed")
        slots.append(count_slots(decision_service))
        may_end.set()
        await task
        return slots

    assert run_async(scenario) == [1, 0]


def test_the_work_of_a_long_request_is_charged_while_it_runs_and_its_slot_is_renewed() -> None:
    world = AdvancingWorld()
    decision_service = make_decision_service(world=world)

    async def scenario() -> tuple[int, int]:
        admitted = await decision_service.admit(IncomingRequest("GET", "/things", "", "192.0.2.7", f"token {ADA}"))
        assert isinstance(admitted, AdmittedRequest)
        for _ in range(5):
            world.advance(9.0)
            await decision_service.run_maintenance(should_renew=True)
        charged_and_held = (count_used(decision_service, "cpu"), count_slots(decision_service))
        await decision_service.end_request(admitted)
        return charged_and_held

    assert run_async(scenario) == (45_000, 1)


def test_a_graphql_query_is_charged_and_the_application_reads_all_of_it() -> None:
    decision_service = make_decision_service()
    bodies = []

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    query = b'{"query": "{ viewer { repositories(first: 100) { nodes { issues(first: 50) { nodes { title } } } } } }"}'
    reply = send_request(decision_service, AsgiCaller("/graphql", method="POST", token=ADA, body=query), application)

    assert (reply.headers["x-ratelimit-resource"], reply.headers["x-ratelimit-used"]) == ("graphql", "1")
    assert bodies == [query]


def test_a_batch_of_too_many_objects_never_reaches_the_application() -> None:
    body = b'{"objects": [' + b",".join([b"{}"] * 101) + b"]}"

    reply = send_request(
        make_decision_service(),
        AsgiCaller("/acme/site.git/info/lfs/objects/batch", method="POST", token=ADA, body=body),
    )

    assert (reply.status, reply.json()["cause"]) == (413, "too_many_objects")


@pytest.mark.parametrize("header", [("content-type", "application/json; charset=utf-7"), ("content-encoding", "br")])
def test_a_batch_that_the_application_may_decode_to_another_one_never_reaches_it(header: tuple[str, str]) -> None:
    path = "/acme/site.git/info/lfs/objects/batch"

    reply = send_request(
        make_decision_service(),
        AsgiCaller(path, method="POST", token=ADA, headers=[header], body=b'{"objects": []}'),
    )

    assert (reply.status, reply.json()["message"].startswith("The headers of the request say")) == (400, True)


def test_the_middleware_serves_the_status_page_without_a_primary_charge() -> None:
    decision_service = make_decision_service()
    send_request(decision_service, AsgiCaller(token=ADA))

    reply = send_request(decision_service, AsgiCaller("/rate_limit", token=ADA))

    assert reply.json()["rate"]["used"] == reply.json()["resources"]["core"]["used"] == 1
    assert reply.headers["x-ratelimit-used"] == "1"


def test_the_meta_page_accepts_client_id_and_secret() -> None:
    reply = send_request(
        make_decision_service(),
        AsgiCaller("/meta", headers=[("authorization", encode_basic(CLIENT_ID, CLIENT_SECRET))]),
    )

    assert (reply.status, reply.json()) == (200, {"verifiable_password_authentication": False})


def test_while_limits_are_off_replies_have_no_limit_headers_and_the_status_page_is_missing() -> None:
    decision_service = make_decision_service()
    decision_service.overrides.off_until_ms = decision_service.now_ms() + 60_000

    assert send_request(decision_service, AsgiCaller(token=ADA)).headers == {}
    assert send_request(decision_service, AsgiCaller("/rate_limit", token=ADA)).status == 404


def test_a_websocket_costs_one_request_and_holds_a_websocket_slot() -> None:
    decision_service = make_decision_service()
    slots = []

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        slots.append((count_slots(decision_service, rule="concurrent_websockets"), count_slots(decision_service)))
        assert (await receive())["type"] == "websocket.disconnect"
        slots.append((count_slots(decision_service, rule="concurrent_websockets"), count_slots(decision_service)))

    caller = AsgiCaller(kind="websocket", token=ADA)
    caller.messages.put_nowait({"type": "websocket.connect"})
    caller.disconnect()
    reply = send_request(decision_service, caller, application)

    assert slots == [(1, 0), (0, 0)]
    assert reply.headers["x-ratelimit-used"] == "1"


def test_a_websocket_beyond_the_limit_is_refused_with_the_body_of_a_refusal() -> None:
    decision_service = make_decision_service(
        build_rules_text('[[rule]]\nname = "few"\nmatch = ["GET /live"]\nresource = "few"\nceiling = 0')
    )
    caller = AsgiCaller("/live", kind="websocket", token=ADA)
    caller.messages.put_nowait({"type": "websocket.connect"})

    reply = send_request(decision_service, caller)

    assert (reply.status, reply.json()["cause"]) == (403, "never")


def test_changed_rules_apply_from_the_next_request_and_counters_stay() -> None:
    decision_service = make_decision_service()
    send_request(decision_service, AsgiCaller(token=ADA))
    run_async(lambda: decision_service.set_rules(TWO_AN_HOUR, "rules.toml"))

    reply = send_request(decision_service, AsgiCaller(token=ADA))

    assert (reply.headers["x-ratelimit-limit"], reply.headers["x-ratelimit-used"]) == ("2", "2")
    assert reply.headers["ratelimit-policy"] == '"core";q=2;w=3600'
    assert decision_service.evaluator.rules == read_rules(TWO_AN_HOUR)


def test_pages_of_other_origins_can_read_the_limit_headers() -> None:
    reply = send_request(make_decision_service(), AsgiCaller(token=ADA, headers=[("origin", "https://acme.example")]))

    assert "X-RateLimit-Remaining" in reply.headers["access-control-expose-headers"]


def test_pages_of_other_origins_can_read_a_refusal_behind_a_cors_middleware() -> None:
    async def scenario() -> tuple[RecordedReply, RecordedReply, int]:
        decision_service = make_decision_service('[[rule]]\nname = "core"\nceiling = 1\n')
        application = CORSMiddleware(
            LimitsMiddleware(make_application(), decision_service),
            allow_origins=["https://acme.example"],
            allow_headers=["authorization"],
        )
        origin = ("origin", "https://acme.example")
        preflight_headers = [
            origin,
            ("access-control-request-method", "GET"),
            ("access-control-request-headers", "authorization"),
        ]
        preflight = await AsgiCaller(method="OPTIONS", headers=preflight_headers).call(application)
        await AsgiCaller(token=ADA, headers=[origin]).call(application)
        return (
            preflight,
            await AsgiCaller(token=ADA, headers=[origin]).call(application),
            count_used(decision_service, "core", "address:192.0.2.7"),
        )

    preflight, refused, counted = run_async(scenario)

    assert (preflight.status, counted, refused.status) == (200, 0, 403)
    assert refused.headers["access-control-allow-origin"] == "https://acme.example"
    assert "Retry-After" in refused.headers["access-control-expose-headers"]
    assert int(refused.headers["retry-after"]) > 0


def test_a_caller_without_a_socket_address_is_admitted() -> None:
    assert send_request(make_decision_service(), AsgiCaller(peer="testclient")).status == 200


@pytest.mark.parametrize(
    ("method", "query", "body", "status", "used"),
    [
        ("GET", COSTLY, b"", 200, 3),
        ("POST", COSTLY, b"", 200, 3),
        ("GET", "", b"", 200, 1),
        ("GET", "", b'{"query": "{ a }"}', 200, 1),
        ("GET", COSTLY, b'{"query": "{ a }"}', 400, 0),
        ("GET", COSTLY + "+" * 3_000, b"", 200, 3),
    ],
)
def test_a_graphql_query_in_the_url_is_charged_by_its_cost(
    method: str, query: str, body: bytes, status: int, used: int
) -> None:
    decision_service = make_decision_service()

    reply = send_request(decision_service, AsgiCaller("/graphql", method=method, query=query, body=body, token=ADA))

    assert (reply.status, count_used(decision_service, "graphql")) == (status, used)


@pytest.mark.parametrize(
    ("authorization", "challenge"),
    [
        ("Bearer nobody", 'Bearer realm="api", error="invalid_token"'),
        ("token nobody", 'Bearer realm="api", error="invalid_token"'),
        ("Basic bm9ib2R5OnNlY3JldA==", 'Basic realm="api", charset="UTF-8"'),
    ],
)
def test_a_wrong_credential_gets_a_challenge_of_its_scheme(authorization: str, challenge: str) -> None:
    reply = send_request(make_decision_service(), AsgiCaller(headers=[("authorization", authorization)]))

    assert (reply.status, reply.headers["www-authenticate"]) == (401, challenge)


@pytest.mark.parametrize(("status", "has_length"), [(200, True), (204, False), (304, True)])
def test_a_204_is_sent_without_a_length(status: int, has_length: bool) -> None:
    application = make_application(status, [(b"Content-Length", b"5")], body=())

    reply = send_request(make_decision_service(), AsgiCaller(token=ADA), application)

    assert (reply.status, "Content-Length" in reply.headers) == (status, has_length)
