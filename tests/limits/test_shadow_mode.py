"""`shadow = true` at the top of the rules: every way to ask the limiter counts and logs, and refuses nothing."""

from pathlib import Path
from typing import Any

import pytest

from tests.limits.builders import InMemoryLimiter, a_user
from tests.limits.decision_services import (
    ADA,
    AdvancingWorld,
    AsgiCaller,
    make_decision_service,
    run_async,
    send_request,
)
from tests.limits.gateway.running_gateway import Reply, RunningGateway, run_scenario
from tests.limits.serving.messages import OK, Proxy, describe
from tests.limits.serving.test_check_server import Proxy as CheckingProxy
from tests.limits.serving.test_check_server import run as run_with_check
from tests.limits.test_wsgi import WsgiCaller
from wharf.limits.core.decision import Verdict
from wharf.limits.decisions import AdmittedRequest, DecisionService, IncomingRequest
from wharf.limits.rules import read_rules

TWO_AN_HOUR = '[[rule]]\nname = "core"\nceiling = 2\n'
SHADOW = f"shadow = true\n{TWO_AN_HOUR}"
DOMAIN = '[[domain]]\nname = "shop"\n[[domain.descriptors]]\nkey = "path"\nceiling = 1\n'
LIMIT_NAMES = {"x-ratelimit-limit", "x-ratelimit-remaining", "ratelimit", "ratelimit-policy", "retry-after"}


def test_the_switch_puts_every_rule_and_all_bans_in_shadow_mode() -> None:
    rules = read_rules(SHADOW + DOMAIN)

    assert {rule.shadow for rule in (*rules.rules, *(found.rule for found in rules.descriptors))} == {True}
    assert rules.ban.shadow


def test_a_rule_cannot_be_enforced_while_the_switch_is_on() -> None:
    rules = read_rules(f"{SHADOW}shadow = false\n[ban]\nshadow = false\n")

    assert ({rule.shadow for rule in rules.rules}, rules.ban.shadow) == ({True}, True)


def test_an_exceeded_limit_is_counted_and_admits() -> None:
    limiter = InMemoryLimiter(SHADOW)
    limiter.send_many(2, a_user(), "/things")

    decision = limiter.send(a_user(), "/things")

    assert (decision.verdict, decision.list_hit_rules(is_enforced=False)) == (Verdict.ADMITTED, ["core"])


def test_the_gateway_forwards_everything_without_limit_headers(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> list[Reply]:
        return [await running.request("/things", f"Authorization: token {ADA}") for _ in range(3)]

    replies = run_scenario(tmp_path, scenario, rules=SHADOW)

    assert [(reply.status, LIMIT_NAMES & reply.headers.keys()) for reply in replies] == [(200, set())] * 3
    assert "x-github-request-id" in replies[-1].headers


def test_the_gateway_passes_on_the_limit_headers_of_the_service(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> str:
        async def reply_limited(_request: Any, _reader: Any, writer: Any) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nX-RateLimit-Remaining: 7\r\nContent-Length: 0\r\n\r\n")

        running.service.handler = reply_limited
        return (await running.request("/things")).headers["x-ratelimit-remaining"]

    assert run_scenario(tmp_path, scenario, rules=SHADOW) == "7"


def test_the_middleware_admits_everything_without_limit_headers() -> None:
    service = make_decision_service(SHADOW)

    replies = [send_request(service, AsgiCaller()) for _ in range(3)]

    assert [(reply.status, LIMIT_NAMES & reply.headers.keys()) for reply in replies] == [(200, set())] * 3


def test_the_wsgi_middleware_admits_everything_without_limit_headers(tmp_path: Path) -> None:
    caller = WsgiCaller(tmp_path, rules=SHADOW)
    try:
        replies = [caller.request() for _ in range(3)]
    finally:
        caller.middleware.close()

    assert [(reply.status, {name.lower() for name in reply.headers} & LIMIT_NAMES) for reply in replies] == [
        (200, set())
    ] * 3


def test_the_wsgi_middleware_passes_on_the_limit_headers_of_the_application(tmp_path: Path) -> None:
    caller = WsgiCaller(tmp_path, rules=SHADOW)
    caller.headers = [("X-RateLimit-Remaining", "7")]
    try:
        reply = caller.request()
    finally:
        caller.middleware.close()

    assert reply.headers["X-RateLimit-Remaining"] == "7"


def test_the_check_endpoint_admits_everything_without_limit_headers(tmp_path: Path) -> None:
    async def scenario(proxy: CheckingProxy) -> list[tuple[int, set[str]]]:
        replies = [await proxy.check() for _ in range(3)]
        return [(reply.status, LIMIT_NAMES & reply.headers.keys()) for reply in replies]

    assert run_with_check(tmp_path, scenario, rules=SHADOW) == [(200, set())] * 3


def test_envoy_gets_ok_and_no_state_of_the_limit() -> None:
    async def scenario() -> list[Any]:
        proxy = Proxy(make_decision_service(SHADOW + DOMAIN, world=AdvancingWorld()))
        return [await proxy.ask("path=/x") for _ in range(2)]

    replies = run_async(scenario)

    assert [(reply.overall_code, reply.statuses[0].HasField("current_limit")) for reply in replies] == [(OK, False)] * 2
    assert {header.key for reply in replies for header in reply.response_headers_to_add} == {"x-github-request-id"}


def test_a_limit_that_envoy_sends_refuses_nothing() -> None:
    async def scenario() -> list[int]:
        rules = 'shadow = true\n[[domain]]\nname = "shop"\n'
        proxy = Proxy(make_decision_service(rules, world=AdvancingWorld()))
        return [await proxy.ask_code(describe("path=/x", limit=(1, "HOUR"))) for _ in range(3)]

    assert run_async(scenario) == [OK] * 3


def test_the_page_of_limits_says_that_none_apply() -> None:
    reply = send_request(make_decision_service(SHADOW), AsgiCaller("/rate_limit"))

    assert (reply.status, reply.json()["message"]) == (404, "Rate limiting is not enabled.")


@pytest.mark.parametrize("body", [b'{"query": "%b"}' % (b"{a" * 200), b"no JSON"])
def test_a_query_that_cannot_be_read_is_admitted_and_logged(body: bytes) -> None:
    async def scenario() -> tuple[DecisionService, AdmittedRequest]:
        service = make_decision_service(SHADOW)
        admitted = await service.admit(IncomingRequest("POST", "/graphql", "", "192.0.2.7"), body)
        assert isinstance(admitted, AdmittedRequest)
        return service, admitted

    service, admitted = run_async(scenario)

    entry = service.decision_log.find(admitted.id)
    assert entry is not None
    assert (entry["verdict"], bool(entry["problem"])) == ("admitted", True)


def test_a_limit_in_shadow_mode_alone_is_not_reported_and_others_are() -> None:
    rules = 'disclose_secondary = true\n[[rule]]\nname = "core"\nceiling = 2\nshadow = true\n'
    headers = send_request(make_decision_service(rules), AsgiCaller()).headers

    assert "x-ratelimit-remaining" not in headers
    assert headers["ratelimit"].startswith('"concurrent"')
