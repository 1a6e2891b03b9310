"""Revocations by command and by request: what was learned about a credential does not count any more."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.limits.admin.test_commands import Operator, run_as_operator
from tests.limits.gateway.code_host import BOB, BOB_SECOND_TOKEN, BOB_TOKEN, EVE, CodeHost
from tests.limits.gateway.running_gateway import RunningGateway, run_gateway, run_scenario
from tests.limits.gateway.test_opaque_credentials import OPAQUE, RULES, get_limit
from tests.limits.gateway.test_resolved_credentials import RESOLVED, write_secret
from tests.limits.stores.redis_server import running_redis
from tests.waiting import wait_on_loop_until
from wharf.cli.root import root

WEBHOOK = '[revocation]\npath = "/-/revoked"\nsecret_file = "secret"\n'
SECRET = "Authorization: Bearer the secret of the limiter"
SESSIONS = '[carriers]\ncookies = ["session"]\n[opaque]\nsessions_accepted_on = ["GET /home"]\n'
"""With session cookies, a revoked text may also be a session."""


def run(folder: Path, scenario: Callable[[Operator, CodeHost], Awaitable[None]], *, more: str) -> None:
    async def run_with_host(operator: Operator) -> None:
        host = CodeHost()
        operator.running.service.handler = host.handle
        await scenario(operator, host)

    run_as_operator(folder, run_with_host, more=more, rules=RULES)


def test_the_command_makes_an_accepted_credential_unknown(tmp_path: Path) -> None:
    async def scenario(operator: Operator, _host: CodeHost) -> None:
        for header in (BOB, EVE):
            await operator.running.request("/api/x", header)
        unlisted = operator.running.decision_service.unlisted
        assert unlisted is not None
        key = unlisted.hash_secret(BOB_TOKEN)

        assert "core" in await operator.run("show", f"credential:{key}")
        assert await operator.run("revoke-credential", f"credential:{key}") == f"revoked credential:{key}\n"
        replies = [await operator.running.request("/api/x", header) for header in (BOB, EVE, BOB)]
        assert [get_limit(reply)[1] for reply in replies] == ["30", "100", "100"]
        assert operator.read_audit_log()[-1].startswith("credential revoked by ")
        assert BOB_TOKEN not in (tmp_path / "data" / "audit.jsonl").read_text()

    run(tmp_path, scenario, more=OPAQUE)


def test_the_command_reads_a_credential_from_standard_input(tmp_path: Path) -> None:
    async def scenario(operator: Operator, _host: CodeHost) -> None:
        await operator.running.request("/api/x", BOB)
        command = ["limits", "revoke-credential", "--stdin", "--admin-address", str(tmp_path / "data" / "admin.sock")]
        result = await asyncio.to_thread(
            lambda: CliRunner().invoke(root, command, input=io.BytesIO(BOB_TOKEN.encode() + b"\n"))
        )

        assert result.output.startswith("revoked credential:")
        assert get_limit(await operator.running.request("/api/x", BOB))[1] == "30"

    run(tmp_path, scenario, more=OPAQUE)


def test_the_command_revokes_all_credentials_of_a_user(tmp_path: Path) -> None:
    async def scenario(operator: Operator, host: CodeHost) -> None:
        headers = [BOB, f"Authorization: Bearer {BOB_SECOND_TOKEN}", EVE]
        for header in headers:
            await operator.running.request("/page", header)
        del host.owners[BOB_TOKEN]
        assert get_limit(await operator.running.request("/page", BOB))[1] == "100"  # The answer is cached.

        await operator.run("revoke-credential", "user:BOB")
        replies = [await operator.running.request("/page", header) for header in headers]
        assert [get_limit(reply)[1] for reply in replies] == ["30", "100", "100"]
        assert len(host.questions) == 5

    run(tmp_path, scenario, more=RESOLVED)


def test_an_answer_to_a_question_from_before_the_revocation_does_not_count(tmp_path: Path) -> None:
    async def scenario(operator: Operator, host: CodeHost) -> None:
        host.question_gate = asyncio.Event()
        request = asyncio.ensure_future(operator.running.request("/page", BOB))
        await wait_on_loop_until(lambda: host.questions, what="a question")
        await operator.run("revoke-credential", "user:bob")
        host.question_gate.set()

        assert get_limit(await request)[1] == "30"
        assert get_limit(await operator.running.request("/page", BOB))[1] == "100"
        assert len(host.questions) == 2

    run(tmp_path, scenario, more=RESOLVED)


@pytest.mark.parametrize(
    ("more", "words", "message"),
    [
        (OPAQUE, ["app:7"], "'app:7' cannot be revoked: name a user such as user:ada"),
        (OPAQUE, ["credential:xyz"], "'credential:xyz' cannot be revoked"),
        (OPAQUE, [], "give either NAME or --stdin"),
        ("", ["user:ada"], "knows only the credentials of its directory file"),
    ],
)
def test_the_command_explains_what_cannot_be_revoked(tmp_path: Path, more: str, words: list[str], message: str) -> None:
    async def scenario(operator: Operator, _host: CodeHost) -> None:
        assert message in await operator.run("revoke-credential", *words, fails=True)

    run(tmp_path, scenario, more=more)


# -- requests of other programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more_rules", "more"),
    [("", ""), ('[paths]\nmethod_override = "forms"\n', ""), ("", SESSIONS)],
    ids=["plain", "forms", "sessions"],
)
def test_a_program_revokes_credentials_with_a_request(tmp_path: Path, more_rules: str, more: str) -> None:
    async def scenario(running: RunningGateway) -> None:
        running.service.handler = CodeHost().handle
        for header in (BOB, EVE):
            await running.request("/api/x", header)
        body = msgspec.json.encode({"credentials": [BOB_TOKEN], "users": ["nobody"]})
        reply = await running.request("/-/revoked", SECRET, method="POST", body=body)

        assert (reply.status, reply.json()) == (200, {"revoked": 2})
        assert [get_limit(await running.request("/api/x", who))[1] for who in (BOB, EVE)] == ["30", "100"]
        assert len(running.service.requests) == 4  # The request is not forwarded.

    write_secret(tmp_path)
    run_scenario(tmp_path, scenario, rules=RULES + more_rules, more=OPAQUE + WEBHOOK + more)


@pytest.mark.parametrize(
    ("header", "body", "status"),
    [
        ("Authorization: Bearer wrong", b"{}", 401),
        ("Accept: */*", b"{}", 401),
        (SECRET, b"text", 400),
        (SECRET, b'{"users": 7}', 400),
        (SECRET, b'{"hashes": ["short"]}', 400),
        (SECRET, msgspec.json.encode({"users": ["a"] * 1_001}), 400),
    ],
)
def test_other_requests_revoke_nothing(tmp_path: Path, header: str, body: bytes, status: int) -> None:
    async def scenario(running: RunningGateway) -> None:
        running.service.handler = CodeHost().handle
        await running.request("/api/x", BOB)
        reply = await running.request("/-/revoked", header, method="POST", body=body)

        assert reply.status == status
        assert get_limit(await running.request("/api/x", BOB))[1] == "100"

    write_secret(tmp_path)
    run_scenario(tmp_path, scenario, rules=RULES, more=OPAQUE + WEBHOOK)


@pytest.mark.needs_program("redis-server")
def test_a_revocation_is_in_force_in_all_gateways_on_one_redis(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32)
    (tmp_path / "key").chmod(0o600)
    write_secret(tmp_path)

    async def scenario(address: str) -> None:
        store = f'[store]\nkind = "redis"\naddresses = ["{address}"]\nwait_ms = 2000\n'
        webhook = WEBHOOK.replace('"secret"', f'"{tmp_path / "secret"}"')
        more = f'{RESOLVED}credential_key_file = "{tmp_path / "key"}"\n{store}{webhook}'
        host = CodeHost()
        for name in "ab":
            (tmp_path / name).mkdir()
        async with (
            run_gateway(tmp_path / "a", rules=RULES, more=more) as first,
            run_gateway(tmp_path / "b", rules=RULES, more=more) as second,
        ):
            first.service.handler = second.service.handler = host.handle
            for running in (first, second):
                assert get_limit(await running.request("/page", BOB))[1] == "100"
            del host.owners[BOB_TOKEN]
            body = msgspec.json.encode({"users": ["bob"]})
            assert (await first.request("/-/revoked", SECRET, method="POST", body=body)).status == 200
            unlisted = second.decision_service.unlisted
            assert unlisted is not None
            await wait_on_loop_until(lambda: unlisted.revocations.get_ms("user:bob") > 0, what="the revocation")

            for running in (first, second):
                assert get_limit(await running.request("/page", BOB))[1] == "30"

    with running_redis(tmp_path) as redis:
        asyncio.run(scenario(redis.address))
