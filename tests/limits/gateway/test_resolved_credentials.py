"""Credentials whose owner the limiter asks for: the service, a hook, or an authorization server."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest

from tests.limits.decision_services import encode_basic
from tests.limits.gateway.code_host import BOB, BOB_SECOND_TOKEN, BOB_SESSION, BOB_TOKEN, EVE, CodeHost
from tests.limits.gateway.running_gateway import (
    ReceivedRequest,
    RunningGateway,
    ScriptedService,
    run_gateway,
    run_scenario,
)
from tests.limits.gateway.test_opaque_credentials import RULES, get_limit
from tests.limits.stores.redis_server import running_redis
from tests.waiting import wait_on_loop_until
from wharf.limits.credentials import resolver

RESOLVED = 'credentials = "resolved"\n'
BOB_SECOND = f"Authorization: Bearer {BOB_SECOND_TOKEN}"
INVENTED = "Authorization: Bearer invented-token-0000000000"
Scenario = Callable[[RunningGateway, CodeHost], Awaitable[None]]


def run(folder: Path, scenario: Scenario, *, more: str = RESOLVED, rules: str = RULES) -> None:
    async def run_with_host(running: RunningGateway) -> None:
        host = CodeHost()
        running.service.handler = host.handle
        await scenario(running, host)

    run_scenario(folder, run_with_host, more=more, rules=rules)


def test_all_credentials_of_a_user_count_together_from_the_first_request_on(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, host: CodeHost) -> None:
        headers = [
            BOB,
            BOB_SECOND,
            f"Authorization: {encode_basic('bob', BOB_TOKEN)}",
            f"Private-Token: {BOB_TOKEN}",
            BOB_SESSION,
        ]
        replies = [await running.request("/page", header) for header in headers]

        assert [get_limit(reply) for reply in replies] == [(200, "100", str(number)) for number in range(1, 6)]
        assert len(host.questions) == 3  # The same token in another header needs no question.
        assert get_limit(await running.request("/page", EVE)) == (200, "100", "1")

    run(tmp_path, scenario, more=RESOLVED + '[carriers]\nheaders = "private-token"\ncookies = "session"\n')


def test_each_credential_is_asked_about_once_at_a_time_and_the_answer_is_cached(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, host: CodeHost) -> None:
        host.question_gate = asyncio.Event()
        requests = [asyncio.ensure_future(running.request("/page", BOB)) for _ in range(5)]
        await wait_on_loop_until(lambda: running.gateway.counts.requests == 5, what="five requests that wait")
        host.question_gate.set()
        replies = [await request for request in requests]
        replies.append(await running.request("/page", BOB))

        assert sorted(get_limit(reply) for reply in replies) == [(200, "100", str(number)) for number in range(1, 7)]
        assert len(host.questions) == 1

    run(tmp_path, scenario)


def test_a_credential_that_nobody_owns_is_passed_on_and_counts_by_address(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, host: CodeHost) -> None:
        replies = [await running.request("/page", INVENTED) for _ in range(3)]

        assert [get_limit(reply) for reply in replies] == [(200, "30", str(number)) for number in (1, 2, 3)]
        assert len(host.questions) == 1

    run(tmp_path, scenario)


def test_a_credential_that_nobody_owns_can_count_by_itself_once_it_is_accepted(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        replies = [await running.request("/page", INVENTED) for _ in range(2)]

        assert [get_limit(reply)[1] for reply in replies] == ["30", "100"]

    run(tmp_path, scenario, more=RESOLVED + "[resolver]\naccept_unknown = true\n")


def test_after_some_unknown_credentials_nothing_more_is_asked_for_an_address(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, host: CodeHost) -> None:
        for number in range(4):
            await running.request("/page", f"Authorization: Bearer invented-{number}")
        replies = [await running.request("/page", BOB) for _ in range(2)]

        assert len(host.questions) == 2
        assert [get_limit(reply)[1] for reply in replies] == ["30", "30"]

    run(tmp_path, scenario, more=RESOLVED + "[opaque]\nnew_most = 2\n")


@pytest.mark.needs_program("redis-server")
def test_gateways_on_one_redis_ask_together_about_some_unknown_credentials_of_an_address(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32)
    (tmp_path / "key").chmod(0o600)

    async def scenario(address: str) -> int:
        store = f'[store]\nkind = "redis"\naddresses = ["{address}"]\nwait_ms = 2000\n'
        more = f'{RESOLVED}credential_key_file = "{tmp_path / "key"}"\n{store}[opaque]\nnew_most = 3\n'
        host = CodeHost()
        for name in "ab":
            (tmp_path / name).mkdir()
        async with (
            run_gateway(tmp_path / "a", rules=RULES, more=more) as first,
            run_gateway(tmp_path / "b", rules=RULES, more=more) as second,
        ):
            first.service.handler = second.service.handler = host.handle
            for number in range(8):
                await (first, second)[number % 2].request("/page", f"Authorization: Bearer invented-{number}")
            return len(host.questions)

    with running_redis(tmp_path) as redis:
        assert asyncio.run(scenario(redis.address)) == 3


def test_while_the_service_cannot_be_asked_credentials_are_opaque(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, host: CodeHost) -> None:
        host.is_away = True
        replies = [await running.request("/page", BOB) for _ in range(3)]

        assert [get_limit(reply) for reply in replies] == [(200, "30", "1"), (200, "100", "1"), (200, "100", "2")]
        assert len(host.questions) == 1  # After a question without an answer the limiter waits.

    run(tmp_path, scenario)


def test_after_three_questions_without_an_answer_nothing_is_asked_for_a_while(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, host: CodeHost) -> None:
        host.is_away = True
        for number in range(4):
            await running.request("/page", f"Authorization: Bearer invented-{number}")
        host.is_away = False

        assert get_limit(await running.request("/page", BOB))[1] == "30"
        assert len(host.questions) == 3

    run(tmp_path, scenario)


@pytest.mark.parametrize(("age_ms", "limits"), [(0, ["100", "30"]), (60_000, ["100", "100"])])
def test_after_a_401_of_the_service_an_old_answer_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_ms: int, limits: list[str]
) -> None:
    monkeypatch.setattr(resolver, "MIN_DISTRUSTED_AGE_MS", age_ms)

    async def scenario(running: RunningGateway, host: CodeHost) -> None:
        await running.request("/page", BOB)
        del host.owners[BOB_TOKEN]
        replies = [await running.request("/api/x", BOB) for _ in range(2)]

        assert [get_limit(reply)[:2] for reply in replies] == [(401, limit) for limit in limits]

    run(tmp_path, scenario)


def test_a_slow_answer_delays_a_request_only_for_the_timeout(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, host: CodeHost) -> None:
        host.question_gate = asyncio.Event()
        reply = await running.request("/page", BOB)
        host.question_gate.set()

        assert get_limit(reply) == (200, "30", "1")

    run(tmp_path, scenario, more=RESOLVED + '[resolver]\ntimeout = "50ms"\n')


# -- hooks and authorization servers -------------------------------------------------------------------------------


@asynccontextmanager
async def run_other_service(replies: dict[str, tuple[int, Any]]) -> AsyncIterator[ScriptedService]:
    """Run a service that replies to a token with a status and JSON, and to all others with 404."""
    service = ScriptedService()

    async def reply(request: ReceivedRequest, _reader: object, writer: asyncio.StreamWriter) -> None:
        if request.headers["content-type"] == "application/json":
            token = msgspec.json.decode(request.body)["credential"]
        else:
            token = parse_qs(request.body.decode())["token"][0]
        status, content = replies.get(token, (404, {}))
        body = msgspec.json.encode(content)
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    service.handler = reply
    await service.open()
    try:
        yield service
    finally:
        service.close()


def write_secret(folder: Path, text: str = "the secret of the limiter") -> None:
    (folder / "secret").write_text(text)
    (folder / "secret").chmod(0o600)


def run_with_other_service(
    folder: Path,
    replies: dict[str, tuple[int, Any]],
    settings: str,
    scenario: Callable[[RunningGateway, ScriptedService], Awaitable[None]],
) -> None:
    from tests.limits.gateway.running_gateway import run_gateway

    async def run_both() -> None:
        async with run_other_service(replies) as other:
            more = f'{RESOLVED}[resolver]\nurl = "http://127.0.0.1:{other.port}/owner"\n{settings}\n'
            async with run_gateway(folder, rules=RULES, more=more) as running:
                running.service.handler = CodeHost().handle
                await scenario(running, other)

    write_secret(folder)
    asyncio.run(run_both())


def test_a_hook_names_users_apps_and_organizations(tmp_path: Path) -> None:
    replies = {
        "Bearer a": (200, {"user": "bob", "user_id": 4, "scopes": ["repo"]}),
        "Bearer b": (200, {"app": "runner {1} x"}),
        "Bearer c": (200, {"organization": "ACME"}),
        "Bearer d": (200, {"active": False}),
        "Bearer e": (500, {}),
    }

    async def scenario(running: RunningGateway, hook: ScriptedService) -> None:
        received = [await running.request("/page", f"Authorization: Bearer {name}") for name in "abcdf"]
        running.decision_service.activity.add_admissions_to_rows(running.decision_service.now_ms())
        callers = running.decision_service.activity.last_callers

        assert set(callers) == {"user:bob", "app:runner%20%7B1%7D%20x", "organization:acme", "address:127.0.0.1"}
        assert callers["user:bob"].display_name == "user ID 4"
        assert received[0].headers["x-oauth-scopes"] == "repo"
        assert get_limit(received[4]) == (200, "30", "2")
        assert hook.requests[0].headers["authorization"] == "Bearer the secret of the limiter"
        assert msgspec.json.decode(hook.requests[0].body) == {
            "carrier": "authorization",
            "credential": "Bearer a",
            "address": "127.0.0.1",
        }

    run_with_other_service(tmp_path, replies, 'kind = "hook"\nsecret_file = "secret"', scenario)


def test_an_authorization_server_names_the_owner_of_an_active_token(tmp_path: Path) -> None:
    active = {"active": True, "username": "bob", "client_id": "ci", "scope": "read write", "exp": 4_000_000_000}
    replies = {"good": (200, active), "ended": (200, {"active": False, "username": "bob"})}

    async def scenario(running: RunningGateway, server: ScriptedService) -> None:
        received = [
            await running.request("/page", f"Authorization: Bearer {name}") for name in ("good", "good", "ended")
        ]
        received.append(await running.request("/page", f"Authorization: {encode_basic('bob', 'hunter2')}"))

        assert [get_limit(reply)[1:] for reply in received] == [("100", "1"), ("100", "2"), ("30", "1"), ("30", "2")]
        assert received[0].headers["x-oauth-scopes"] == "read, write"
        assert len(server.requests) == 2  # A password is no token: the server is not asked.
        credentials = base64.b64decode(server.requests[0].headers["authorization"].removeprefix("Basic "))
        assert credentials == b"limiter:the%20secret%20of%20the%20limiter"

    settings = 'kind = "introspection"\nclient_id = "limiter"\nsecret_file = "secret"'
    run_with_other_service(tmp_path, replies, settings, scenario)


@pytest.mark.parametrize("content", ["text", [], {"user": ""}, {"user": "x" * 300}, {"user": "a\nb"}, {"user": True}])
def test_an_answer_without_a_usable_name_makes_no_owner(tmp_path: Path, content: Any) -> None:
    async def scenario(running: RunningGateway, _hook: ScriptedService) -> None:
        replies = [await running.request("/page", "Authorization: Bearer a") for _ in range(2)]

        assert [get_limit(reply)[1] for reply in replies] == ["30", "100"]

    run_with_other_service(tmp_path, {"Bearer a": (200, content)}, 'kind = "hook"', scenario)
