"""The ASGI middleware: what every reply carries, what a slot is held for, what a request costs afterwards."""

import asyncio
from typing import Any

import pytest
from starlette.middleware.cors import CORSMiddleware

from tests.limits.builders import only
from tests.limits.front.desks import (
    ADA,
    APP_USER,
    CLIENT_ID,
    CLIENT_SECRET,
    INSTALLATION,
    OAUTH,
    REVOKED,
    WORKFLOW,
    Caller,
    Heard,
    MovingWorld,
    a_desk,
    ask,
    basic,
    held,
    replies,
    run,
    used,
)
from tests.waiting import wait_on_loop_until
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.core.responses import build_headers
from wharf.limits.decisions import AdmittedRequest, DecisionService, IncomingRequest
from wharf.limits.rules import read_rules

FIVE = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-used", "x-ratelimit-reset", "x-ratelimit-resource")
TWO_AN_HOUR = '[[rule]]\nname = "core"\nceiling = 2\n'


@pytest.mark.parametrize(
    ("authorization", "limit"),
    [
        (None, "60"),
        (f"token {ADA}", "5000"),
        (f"Bearer {OAUTH}", "5000"),
        (f"Bearer {APP_USER}", "5000"),
        (f"Bearer {INSTALLATION}", "5000"),
        (basic(CLIENT_ID, CLIENT_SECRET), "5000"),
        (f"Bearer {WORKFLOW}", "1000"),
    ],
)
def test_each_kind_of_credential_is_told_its_own_limit(authorization: str | None, limit: str) -> None:
    headers = [] if authorization is None else [("authorization", authorization)]

    heard = ask(a_desk(), Caller(headers=headers))

    assert (heard.status, heard.headers["x-ratelimit-limit"], heard.headers["x-ratelimit-used"]) == (200, limit, "1")


def test_a_token_with_scopes_is_told_them_and_others_nothing_of_the_kind() -> None:
    told = ask(a_desk(), Caller(token=OAUTH)).headers
    others = ask(a_desk(), Caller(token=ADA)).headers

    assert told["x-oauth-scopes"] == "repo, read:org"
    assert "x-oauth-scopes" not in others


@pytest.mark.parametrize("status", [200, 201, 301, 304, 404, 422, 500, 503])
def test_every_reply_of_the_application_carries_the_limits(status: int) -> None:
    heard = ask(a_desk(), Caller(token=ADA), replies(status))

    assert [name for name in (*FIVE, "ratelimit", "ratelimit-policy") if name not in heard.headers] == []


@pytest.mark.parametrize("status", [200, 301, 401, 403, 404, 422])
def test_2_7_redirects_and_refusals_of_the_application_cost_like_any_reply(status: int) -> None:
    desk = a_desk()

    ask(desk, Caller(token=ADA, headers=[("if-none-match", '"1"')]), replies(status))

    assert used(desk, "core") == 1


def test_headers_are_those_of_the_core_whichever_way_they_are_written() -> None:
    for text in ("", "disclose_secondary = true\n"):
        desk = a_desk(text + TWO_AN_HOUR)

        async def scenario(
            desk: DecisionService = desk,
        ) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]], bytes]:
            passage = await desk.admit(IncomingRequest("GET", "/graphql", "", "192.0.2.7", f"token {ADA}"))
            assert isinstance(passage, AdmittedRequest)
            assert passage.decision is not None
            told = [(n.encode(), v.encode()) for n, v in build_headers(passage.decision, desk.evaluator.rules)]
            told.append((b"x-github-request-id", passage.id.encode()))
            return told, desk.build_header_pairs(passage), desk.build_header_block(passage)

        told, pairs, block = run(scenario)

        assert told == pairs
        assert b"".join(b"%s: %s\r\n" % pair for pair in told) == block


def test_a_refusal_has_the_body_that_clients_know_and_a_cause_for_machines() -> None:
    desk = a_desk(TWO_AN_HOUR)
    for _ in range(2):
        ask(desk, Caller(token=ADA))

    heard = ask(desk, Caller(token=ADA))

    assert heard.status == 403
    assert heard.json()["message"].startswith("API rate limit exceeded for user ID 5")
    assert (heard.json()["cause"], heard.headers["x-ratelimit-remaining"]) == ("primary", "0")
    assert heard.headers["x-github-request-id"] in heard.json()["message"]
    assert heard.headers["retry-after"] == "3600"


@pytest.mark.parametrize("authorization", ["Bearer nobody", f"token {REVOKED}", "Digest x", "Basic ?", basic("a", "b")])
def test_an_unknown_credential_gets_401_with_the_bucket_of_the_address_uncharged(authorization: str) -> None:
    heard = ask(a_desk(), Caller(headers=[("authorization", authorization)]))

    assert (heard.status, heard.headers["x-ratelimit-limit"], heard.headers["x-ratelimit-used"]) == (401, "60", "0")


def test_an_unchanged_reply_costs_a_caller_with_a_credential_nothing() -> None:
    desk = a_desk()

    heard = ask(desk, Caller(token=ADA, headers=[("if-none-match", '"1"')]), replies(304))

    assert (heard.headers["x-ratelimit-used"], used(desk, "core")) == ("0", 0)


def test_an_unchanged_reply_costs_a_caller_without_a_credential() -> None:
    assert ask(a_desk(), Caller(headers=[("if-none-match", '"1"')]), replies(304)).headers["x-ratelimit-used"] == "1"


def test_an_error_of_the_application_is_given_back_and_told_with_headers() -> None:
    desk = a_desk()

    async def breaks(_scope: Any, _receive: Any, _send: Any) -> None:
        raise LookupError("broken")

    caller = Caller(token=ADA)
    with pytest.raises(LookupError):
        ask(desk, caller, breaks)

    assert (caller.heard.status, caller.heard.headers["x-ratelimit-used"], held(desk)) == (500, "0", 0)


def test_headers_of_the_application_with_our_names_are_replaced_and_marks_stay_inside() -> None:
    theirs = [(b"x-ratelimit-limit", b"7"), (b"x-wharf-note", b"secret"), (b"etag", b'"1"')]

    heard = ask(a_desk(), Caller(token=ADA), replies(headers=theirs))

    assert heard.headers["x-ratelimit-limit"] == "5000"
    assert heard.headers["etag"] == '"1"'
    assert "x-wharf-note" not in heard.headers


def test_cpu_time_that_the_application_states_is_charged() -> None:
    desk = a_desk()

    ask(desk, Caller(token=ADA), replies(headers=[(b"x-wharf-cpu-ms", b"1500")]))

    assert (used(desk, "cpu"), used(desk, "compute")) == (1500, 1500)


def test_cpu_time_is_what_passes_less_what_the_caller_is_waited_for() -> None:
    world = MovingWorld()
    desk = a_desk(world=world)

    async def works(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        world.advance(0.3)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    class SlowCaller(Caller):
        async def send(self, message: Any) -> None:
            world.advance(4.0)
            await super().send(message)

    ask(desk, SlowCaller(token=ADA), works)

    assert used(desk, "cpu") == 300


def test_small_amounts_of_work_add_up() -> None:
    world = MovingWorld()
    desk = a_desk(world=world)

    async def works(_scope: Any, _receive: Any, send: Any) -> None:
        world.advance(0.0004)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    for _ in range(100):
        ask(desk, Caller(token=ADA), works)

    assert used(desk, "cpu") in range(30, 41)


def test_content_that_the_application_tells_of_is_charged_once() -> None:
    desk = a_desk()
    mark = [(b"x-wharf-content", b"1")]

    ask(desk, Caller("/odd/place", method="POST", token=ADA), replies(headers=mark))
    ask(desk, Caller("/gists", method="POST", token=ADA), replies(headers=mark))

    assert (used(desk, "content"), used(desk, "content_hourly")) == (2, 2)


def test_a_slot_is_held_until_the_last_byte() -> None:
    desk = a_desk()
    seen = []

    async def streams(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            seen.append(held(desk))
        await send({"type": "http.response.body", "body": b""})
        seen.append(held(desk))

    ask(desk, Caller(token=ADA), streams)

    assert seen == [1, 1, 1, 0]


def test_a_slot_is_free_when_the_caller_hangs_up_and_the_application_listens() -> None:
    desk = a_desk()
    seen = []

    async def listens(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        seen.append(held(desk))
        assert (await receive())["type"] == "http.disconnect"
        seen.append(held(desk))

    caller = Caller(token=ADA)
    caller.hang_up()
    ask(desk, caller, listens)

    assert seen == [1, 0]


def test_a_slot_is_free_when_the_caller_of_a_long_request_hangs_up_and_nobody_listens() -> None:
    world = MovingWorld()
    desk = a_desk(world=world)

    async def scenario() -> list[int]:
        caller, may_end = Caller(token=ADA), asyncio.Event()
        begun = asyncio.Event()

        async def sits(_scope: Any, receive: Any, _send: Any) -> None:
            await receive()
            begun.set()
            await may_end.wait()

        task = world.start_task(caller.call(LimitsMiddleware(sits, desk)), name="a long request")
        await begun.wait()
        world.advance(2.0)
        await desk.run_maintenance(should_renew=False)
        seen = [held(desk)]
        caller.hang_up()
        await wait_on_loop_until(lambda: not held(desk), what="the slot is free")
        seen.append(held(desk))
        may_end.set()
        await task
        return seen

    assert run(scenario) == [1, 0]


def test_work_of_a_long_request_is_charged_while_it_runs_and_its_slot_renewed() -> None:
    world = MovingWorld()
    desk = a_desk(world=world)

    async def scenario() -> tuple[int, int]:
        passage = await desk.admit(IncomingRequest("GET", "/things", "", "192.0.2.7", f"token {ADA}"))
        assert isinstance(passage, AdmittedRequest)
        for _ in range(5):
            world.advance(9.0)
            await desk.run_maintenance(should_renew=True)
        running = (used(desk, "cpu"), held(desk))
        await desk.end_request(passage)
        return running

    assert run(scenario) == (45_000, 1)


def test_a_query_costs_what_it_asks_for_and_the_application_reads_it_whole() -> None:
    desk = a_desk()
    bodies = []

    async def reads(_scope: Any, receive: Any, send: Any) -> None:
        bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    query = b'{"query": "{ viewer { repositories(first: 100) { nodes { issues(first: 50) { nodes { title } } } } } }"}'
    heard = ask(desk, Caller("/graphql", method="POST", token=ADA, body=query), reads)

    assert (heard.headers["x-ratelimit-resource"], heard.headers["x-ratelimit-used"]) == ("graphql", "1")
    assert bodies == [query]


def test_a_batch_of_too_many_objects_never_reaches_the_application() -> None:
    body = b'{"objects": [' + b",".join([b"{}"] * 101) + b"]}"

    heard = ask(a_desk(), Caller("/acme/site.git/info/lfs/objects/batch", method="POST", token=ADA, body=body))

    assert (heard.status, heard.json()["cause"]) == (413, "too_many_objects")


def test_the_status_page_is_answered_here_and_costs_no_primary() -> None:
    desk = a_desk()
    ask(desk, Caller(token=ADA))

    heard = ask(desk, Caller("/rate_limit", token=ADA))

    assert heard.json()["rate"]["used"] == heard.json()["resources"]["core"]["used"] == 1
    assert heard.headers["x-ratelimit-used"] == "1"


def test_the_meta_page_is_for_client_id_and_secret_too() -> None:
    heard = ask(a_desk(), Caller("/meta", headers=[("authorization", basic(CLIENT_ID, CLIENT_SECRET))]))

    assert (heard.status, heard.json()) == (200, {"verifiable_password_authentication": False})


def test_without_limits_nothing_is_told_and_the_status_page_is_not_there() -> None:
    desk = a_desk()
    desk.overrides.off_until_ms = desk.now_ms() + 60_000

    assert ask(desk, Caller(token=ADA)).headers == {}
    assert ask(desk, Caller("/rate_limit", token=ADA)).status == 404


def test_a_websocket_costs_a_request_and_holds_a_slot_of_its_own() -> None:
    desk = a_desk()
    seen = []

    async def talks(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        seen.append((held(desk, rule="concurrent_websockets"), held(desk)))
        assert (await receive())["type"] == "websocket.disconnect"
        seen.append((held(desk, rule="concurrent_websockets"), held(desk)))

    caller = Caller(kind="websocket", token=ADA)
    caller.to_send.put_nowait({"type": "websocket.connect"})
    caller.hang_up()
    heard = ask(desk, caller, talks)

    assert seen == [(1, 0), (0, 0)]
    assert heard.headers["x-ratelimit-used"] == "1"


def test_a_websocket_beyond_the_limit_is_refused_with_the_body_of_a_refusal() -> None:
    desk = a_desk(only('[[rule]]\nname = "few"\nmatch = ["GET /live"]\nresource = "few"\nceiling = 0'))
    caller = Caller("/live", kind="websocket", token=ADA)
    caller.to_send.put_nowait({"type": "websocket.connect"})

    heard = ask(desk, caller)

    assert (heard.status, heard.json()["cause"]) == (403, "never")


def test_rules_that_change_hold_from_the_next_request_on_and_counters_stay() -> None:
    desk = a_desk()
    ask(desk, Caller(token=ADA))
    run(lambda: desk.set_rules(TWO_AN_HOUR, "rules.toml"))

    heard = ask(desk, Caller(token=ADA))

    assert (heard.headers["x-ratelimit-limit"], heard.headers["x-ratelimit-used"]) == ("2", "2")
    assert heard.headers["ratelimit-policy"] == '"core";q=2;w=3600'
    assert desk.evaluator.rules == read_rules(TWO_AN_HOUR)


def test_a_page_of_another_origin_may_read_the_limits() -> None:
    heard = ask(a_desk(), Caller(token=ADA, headers=[("origin", "https://acme.example")]))

    assert "X-RateLimit-Remaining" in heard.headers["access-control-expose-headers"]


def test_a_page_of_another_origin_may_read_a_refusal_where_the_sharing_of_origins_stands_outside() -> None:
    async def scenario() -> tuple[Heard, Heard, int]:
        desk = a_desk('[[rule]]\nname = "core"\nceiling = 1\n')
        shared = CORSMiddleware(
            LimitsMiddleware(replies(), desk), allow_origins=["https://acme.example"], allow_headers=["authorization"]
        )
        page = ("origin", "https://acme.example")
        asking = [page, ("access-control-request-method", "GET"), ("access-control-request-headers", "authorization")]
        asked_before = await Caller(method="OPTIONS", headers=asking).call(shared)
        await Caller(token=ADA, headers=[page]).call(shared)
        return (
            asked_before,
            await Caller(token=ADA, headers=[page]).call(shared),
            used(desk, "core", "address:192.0.2.7"),
        )

    asked_before, refused, counted = run(scenario)

    assert (asked_before.status, counted, refused.status) == (200, 0, 403)
    assert refused.headers["access-control-allow-origin"] == "https://acme.example"
    assert "Retry-After" in refused.headers["access-control-expose-headers"]
    assert int(refused.headers["retry-after"]) > 0


def test_a_caller_whose_socket_has_no_address_counts_as_one_of_this_machine() -> None:
    assert ask(a_desk(), Caller(peer="testclient")).status == 200
