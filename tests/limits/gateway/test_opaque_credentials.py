"""Credentials that only the service knows: passed on, and counted by themselves once the service has accepted them."""

import asyncio
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.limits.decision_services import ADA, REVOKED, encode_basic
from tests.limits.gateway.code_host import BOB, BOB_SECOND_TOKEN, BOB_SESSION, BOB_TOKEN, EVE, CodeHost
from tests.limits.gateway.running_gateway import (
    ReceivedRequest,
    Reply,
    RunningGateway,
    reply_hello,
    run_gateway,
    run_scenario,
)
from tests.limits.stores.redis_server import running_redis
from tests.waiting import wait_on_loop_until
from wharf.limits.core.callers.acceptance import HOUR_MS
from wharf.limits.core.callers.credentials import hash_secret
from wharf.limits.rules import read_directory
from wharf.limits.stores.port import StoreUnavailable

OPAQUE = 'credentials = "opaque"\n'
RULES = '[[rule]]\nname = "core"\nceiling = { none = 30, user = 100 }\n'
Scenario = Callable[[RunningGateway, CodeHost], Awaitable[None]]


def run(folder: Path, scenario: Scenario, *, more: str = OPAQUE, rules: str = RULES) -> None:
    async def run_with_host(running: RunningGateway) -> None:
        host = CodeHost()
        running.service.handler = host.handle
        await scenario(running, host)

    run_scenario(folder, run_with_host, more=more, rules=rules)


def get_limit(reply: Reply) -> tuple[int, str, str]:
    """Return status, limit and used number of a reply."""
    return reply.status, reply.headers["x-ratelimit-limit"], reply.headers["x-ratelimit-used"]


def test_a_credential_counts_by_address_until_the_service_has_accepted_it(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        replies = [await running.request("/api/things", BOB) for _ in range(3)]
        replies += [await running.request("/api/things", EVE), await running.request("/things")]

        assert [get_limit(reply) for reply in replies] == [
            (200, "30", "1"),
            (200, "100", "1"),
            (200, "100", "2"),
            (200, "30", "2"),
            (200, "30", "3"),
        ]
        assert replies[0].json() == {"login": "Bob", "id": 9}

    run(tmp_path, scenario)


def test_a_credential_in_an_escaped_parameter_is_not_applied_to_later_requests(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        with_token = await running.request(f"/things?priv%61te_token={ADA}")
        without = await running.request("/things")

        assert [reply.headers["x-ratelimit-limit"] for reply in (with_token, without)] == ["100", "30"]

    run(tmp_path, scenario, more=OPAQUE + '[carriers]\nquery = ["private_token"]\n')


def test_a_credential_that_connection_names_reaches_the_service(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        headers = ("Authorization: Bearer invented", "Connection: authorization")
        replies = [await running.request("/api/user", *headers) for _ in range(2)]

        assert [(reply.status, reply.headers["x-ratelimit-limit"]) for reply in replies] == [(401, "30"), (401, "30")]

    run(tmp_path, scenario)


def test_a_rejected_credential_counts_by_address_and_as_a_failed_login(tmp_path: Path) -> None:
    rules = RULES + '[[rule]]\nname = "failed_logins"\nceiling = { none = 2 }\n'

    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        await running.request("/api/things", BOB)
        guesses = [await running.request("/api/things", f"Authorization: Bearer guess-{n}") for n in range(4)]
        others = [await running.request("/api/things", BOB), await running.request("/things")]

        assert [reply.status for reply in guesses] == [401, 401, 403, 403]
        assert guesses[2].json()["message"].startswith("Maximum number of login attempts exceeded.")
        assert [reply.status for reply in others] == [200, 200]
        assert len([r for r in running.service.requests if "guess" in r.headers.get("authorization", "")]) == 2

    run(tmp_path, scenario, rules=rules)


@pytest.mark.parametrize("name", ["X-Api-Key", "X_Api_Key", "x_api-key", "X.Api.Key"])
def test_no_spelling_of_a_header_with_a_credential_avoids_the_limit_of_failed_logins(tmp_path: Path, name: str) -> None:
    rules = RULES + '[[rule]]\nname = "failed_logins"\nceiling = { none = 2 }\n'

    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        guesses = [await running.request("/api/things", f"{name}: guess-{number}") for number in range(4)]

        assert [reply.status for reply in guesses] == [401, 401, 403, 403]

    run(tmp_path, scenario, more=OPAQUE + '[carriers]\nheaders = ["X-Api-Key"]\n', rules=rules)


@pytest.mark.parametrize("known", [ADA, BOB_TOKEN])
@pytest.mark.parametrize("name", ["X-Api-Key", "X_Api_Key"])
def test_a_known_credential_beside_guesses_does_not_avoid_the_limit_of_failed_logins(
    tmp_path: Path, known: str, name: str
) -> None:
    """The service may read the other credential first."""
    rules = RULES + '[[rule]]\nname = "failed_logins"\nceiling = { none = 2 }\n'

    async def reject(_request: ReceivedRequest, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")

    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        own = f"Authorization: Bearer {known}"
        await running.request("/api/things", own)
        running.service.handler = reject
        guesses = [await running.request("/api/things", own, f"{name}: guess-{number}") for number in range(4)]
        alone = await running.request("/api/things", f"Authorization: Bearer {ADA}")

        assert [reply.status for reply in guesses] == [401, 401, 403, 403]
        assert get_limit(alone)[:2] == (401, "100")

    run(tmp_path, scenario, more=OPAQUE + '[carriers]\nheaders = ["X-Api-Key"]\n', rules=rules)


def test_a_credential_that_the_service_no_longer_accepts_counts_by_address_again(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, host: CodeHost) -> None:
        for _ in range(2):
            await running.request("/api/things", BOB)
        del host.owners[BOB_TOKEN]
        replies = [await running.request("/api/things", BOB) for _ in range(3)]

        assert [get_limit(reply) for reply in replies] == [(401, "100", "2"), (401, "30", "2"), (401, "30", "3")]

    run(tmp_path, scenario)


@pytest.mark.parametrize("target", ["/login", "/api/none"])
def test_a_reply_that_says_nothing_about_the_credential_proves_nothing(tmp_path: Path, target: str) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        for _ in range(3):
            await running.request(target, "Authorization: Bearer invented")

        assert get_limit(await running.request("/things", "Authorization: Bearer invented"))[1] == "30"

    run(tmp_path, scenario)


def test_only_some_new_credentials_of_an_address_are_accepted_in_an_hour(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        for number in range(3):
            await running.request("/page", f"Authorization: Bearer invented-{number}")
        replies = [await running.request("/page", f"Authorization: Bearer invented-{n}") for n in range(3)]

        assert [get_limit(reply)[1] for reply in replies] == ["100", "100", "30"]

    run(tmp_path, scenario, more=OPAQUE + "[opaque]\nnew_most = 2\n")


def test_pages_that_are_open_to_everybody_can_be_excluded_from_proofs(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        for _ in range(2):
            await running.request("/page", "Authorization: Bearer invented")
        for _ in range(2):
            await running.request("/api/x", BOB)
        replies = [await running.request("/page", who) for who in ("Authorization: Bearer invented", BOB)]

        assert [get_limit(reply)[1] for reply in replies] == ["30", "100"]

    run(tmp_path, scenario, more=OPAQUE + '[opaque]\naccepted_on = ["* /api/*"]\n')


@pytest.mark.parametrize(
    "header",
    [
        f"Authorization: token {BOB_TOKEN}",
        f"Authorization: {encode_basic('bob', BOB_TOKEN)}",
        f"Authorization: {encode_basic('anybody', BOB_TOKEN)}",
        f"Authorization: {encode_basic(BOB_TOKEN, '')}",
        f"Private-Token: {BOB_TOKEN}",
    ],
)
def test_a_token_has_one_counter_in_whatever_form_it_is_sent(tmp_path: Path, header: str) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        for _ in range(2):
            await running.request("/api/x", BOB)

        assert get_limit(await running.request("/api/x", header)) == (200, "100", "2")
        assert get_limit(await running.request(f"/api/x?private_token={BOB_TOKEN}")) == (200, "100", "3")

    carriers = '[carriers]\nheaders = "PRIVATE-TOKEN"\nquery = "private_token"\n'
    run(tmp_path, scenario, more=OPAQUE + carriers)


def test_a_user_name_and_a_password_count_together(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, host: CodeHost) -> None:
        host.owners |= {"secret": "bob", "hunter2": "eve"}
        headers = [
            f"Authorization: {encode_basic(name, secret)}" for name, secret in (("bob", "secret"), ("eve", "hunter2"))
        ]
        for header in headers * 2:
            await running.request("/api/x", header)
        wrong = await running.request("/api/x", f"Authorization: {encode_basic('bob', 'hunter2')}")

        assert [get_limit(await running.request("/api/x", header))[2] for header in headers] == ["2", "2"]
        assert get_limit(wrong)[:2] == (401, "30")

    run(tmp_path, scenario)


def test_a_request_with_two_credentials_proves_neither_and_counts_for_the_accepted_one(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        both = ("Private-Token: invented", f"Authorization: Bearer {BOB_SECOND_TOKEN}")
        first = [await running.request("/api/x", *both) for _ in range(2)]
        for _ in range(2):
            await running.request("/api/x", both[1])

        assert [get_limit(reply)[1] for reply in first] == ["30", "30"]
        assert get_limit(await running.request("/api/x", *both))[1] == "100"
        assert get_limit(await running.request("/page", both[0]))[1] == "30"

    run(tmp_path, scenario, more=OPAQUE + '[carriers]\nheaders = "PRIVATE-TOKEN"\n')


def test_two_authorization_headers_are_refused(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        reply = await running.request("/api/x", BOB, EVE)

        assert (reply.status, running.service.requests) == (401, [])

    run(tmp_path, scenario)


SESSIONS = (
    OPAQUE
    + '[carriers]\ncookies = "session"\n[opaque]\naccepted_on = "* /api/*"\nsessions_accepted_on = "GET /api/user/*"\n'
)
INVENTED_SESSION = "Cookie: session=invented"
INVENTED = "Authorization: Bearer invented"


def test_a_session_is_proved_only_by_paths_that_need_a_login(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        limits = []
        for path in ("/page", "/api/x", "/api/user/x", "/page"):
            reply = await running.request(path, BOB_SESSION)
            await running.request(path, INVENTED_SESSION)
            limits.append(get_limit(reply)[1])
        invented = await running.request("/page", INVENTED_SESSION)

        assert (limits, get_limit(invented)[1]) == (["30", "30", "30", "100"], "30")

    run(tmp_path, scenario, more=SESSIONS)


@pytest.mark.parametrize("status", [403, 404, 303, 500])
def test_a_reply_that_a_stranger_may_get_too_proves_no_session(tmp_path: Path, status: int) -> None:
    """Services hide pages from strangers in different ways. An unknown session is a stranger."""

    async def answer(_request: ReceivedRequest, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)

    async def scenario(running: RunningGateway) -> None:
        running.service.handler = answer
        for _ in range(2):
            reply = await running.request("/api/user/x", INVENTED_SESSION)

        assert get_limit(reply)[1] == "30"

    run_scenario(tmp_path, scenario, more=SESSIONS, rules=RULES)


@pytest.mark.parametrize(
    ("method", "override"), [("OPTIONS", ""), ("TRACE", ""), ("GET", "options"), ("POST", "OPTIONS, x"), ("GET", "PUT")]
)
def test_a_request_that_may_be_served_without_a_look_at_its_credential_proves_none(
    tmp_path: Path, method: str, override: str
) -> None:
    settings = OPAQUE + '[opaque]\naccepted_on = ["GET /page", "OPTIONS,TRACE,POST /page"]\n'
    headers = [f"X-HTTP-Method-Override: {override}"] if override else []

    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        first = await running.request("/page", INVENTED, *headers, method=method)
        second = await running.request("/page", INVENTED, *headers, method=method)

        assert (first.status, get_limit(second)[1]) == (200, "30")

    run(tmp_path, scenario, more=settings)


def test_an_expired_session_is_no_failed_login(tmp_path: Path) -> None:
    """Otherwise open pages whose sessions have ended would lock out everybody at their address, even from signing in."""
    rules = RULES + '[[rule]]\nname = "failed_logins"\nceiling = { none = 1 }\n'

    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        polls = [await running.request("/api/user/x", INVENTED_SESSION) for _ in range(3)]
        guesses = [await running.request("/api/x", f"Authorization: Bearer guess-{n}") for n in range(2)]
        pages = [await running.request(path, INVENTED_SESSION) for path in ("/page", "/login")]

        assert [reply.status for reply in polls + guesses + pages] == [401, 401, 401, 401, 403, 200, 303]

    run(tmp_path, scenario, more=SESSIONS, rules=rules)


def test_a_session_stays_accepted_where_the_service_takes_no_sessions(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, host: CodeHost) -> None:
        await running.request("/api/user/x", BOB_SESSION)
        del host.sessions["bob-session"]
        limits = [get_limit(await running.request(path, BOB_SESSION))[1] for path in ("/api/x", "/api/user/x", "/page")]

        assert limits == ["100", "100", "30"]

    run(tmp_path, scenario, more=SESSIONS)


def test_credentials_of_the_directory_are_recognized_and_revoked_as_before(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        replies = [await running.request("/page", f"Authorization: token {token}") for token in (ADA, REVOKED)]

        assert [reply.status for reply in replies] == [200, 401]
        assert get_limit(replies[0]) == (200, "100", "1")
        assert len(running.service.requests) == 1

    run(tmp_path, scenario)


def test_a_credential_that_is_listed_later_counts_for_its_owner(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        for _ in range(2):
            await running.request("/api/x", BOB)
        text = f'[[user]]\nlogin = "bob"\ntokens = [{{ sha256 = "{hash_secret(BOB_TOKEN)}" }}]'
        running.decision_service.caller_resolver.set_directory(read_directory(text))

        assert get_limit(await running.request("/api/x", BOB)) == (200, "100", "1")

    run(tmp_path, scenario)


def test_accepted_credentials_survive_a_restart_as_hashes_that_only_the_owner_can_read(tmp_path: Path) -> None:
    async def accept(running: RunningGateway, _host: CodeHost) -> None:
        await running.request("/api/x", BOB)

    async def use(running: RunningGateway, _host: CodeHost) -> None:
        assert get_limit(await running.request("/api/x", BOB))[1] == "100"

    run(tmp_path, accept)
    run(tmp_path, use)

    files = [tmp_path / "data" / name for name in ("credential.key", "accepted-credentials.json")]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    assert BOB_TOKEN not in files[1].read_text()


def test_an_accepted_credential_ends_without_use(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        await running.request("/api/x", BOB)
        unlisted = running.decision_service.unlisted
        assert unlisted is not None
        (key, until_ms), now_ms = unlisted.accepted.copy_entries()[0], running.decision_service.now_ms()

        assert 0 < until_ms - now_ms <= 2 * HOUR_MS
        assert [unlisted.accepted.is_accepted(key, until_ms + step) for step in (-1, 0)] == [True, False]

    run(tmp_path, scenario, more=OPAQUE + '[opaque]\naccepted_for = "2h"\n')


BELOW_A_BASE_PATH = 'base_path = "/api/v1"\n' + RULES


@pytest.mark.parametrize(
    ("pattern", "target", "is_proved"),
    [
        ("* /user", "/api/v1/user", True),
        ("* /user", "/user", False),
        ("* /user", "/api/v1/user/", True),
        ("* outside:/{owner}/{name}.git/*", "/bob/site.git/info/refs", True),
        ("* outside:/{owner}/{name}.git/*", "/api/v1/site.git/x", False),
        ("GET /*", "/api/v1/user", True),
        ("POST /*", "/api/v1/user", False),
    ],
)
def test_a_proving_request_is_named_as_in_a_rule(tmp_path: Path, pattern: str, target: str, is_proved: bool) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        running.service.handler = reply_hello
        await running.request(target, BOB)

        limit = get_limit(await running.request("/api/v1/other", BOB))[1]
        assert limit == ("100" if is_proved else "30")

    more = OPAQUE + f'[opaque]\naccepted_on = "{pattern}"\n'
    run(tmp_path, scenario, more=more, rules=BELOW_A_BASE_PATH)


@pytest.mark.parametrize(
    ("case", "target", "is_proved"),
    [("ignore", "/USER", True), ("exact", "/USER", False), ("both", "/USER", False), ("both", "/user", True)],
)
def test_a_proving_request_is_one_however_the_service_reads_its_path(
    tmp_path: Path, case: str, target: str, is_proved: bool
) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        running.service.handler = reply_hello
        await running.request(target, BOB)

        assert get_limit(await running.request("/other", BOB))[1] == ("100" if is_proved else "30")

    rules = RULES + f'[paths]\ncase = "{case}"\n'
    run(tmp_path, scenario, more=OPAQUE + '[opaque]\naccepted_on = "* /user"\n', rules=rules)


def test_changed_rules_move_the_proving_requests(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        running.service.handler = reply_hello
        await running.decision_service.set_rules(RULES, "rules.toml")
        await running.request("/user", BOB)

        assert get_limit(await running.request("/user", BOB))[1] == "100"

    run(tmp_path, scenario, more=OPAQUE + '[opaque]\naccepted_on = "* /user"\n', rules=BELOW_A_BASE_PATH)


@pytest.mark.needs_program("redis-server")
def test_gateways_on_one_redis_count_new_credentials_of_an_address_together(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32)
    (tmp_path / "key").chmod(0o600)

    async def scenario(address: str) -> list[str]:
        store = f'[store]\nkind = "redis"\naddresses = ["{address}"]\nwait_ms = 2000\n'
        more = f'{OPAQUE}credential_key_file = "{tmp_path / "key"}"\n{store}[opaque]\nnew_most = 3\n'
        for name in "ab":
            (tmp_path / name).mkdir()
        async with (
            run_gateway(tmp_path / "a", rules=RULES, more=more) as first,
            run_gateway(tmp_path / "b", rules=RULES, more=more) as second,
        ):
            gateways = [first, second]
            headers = [f"Authorization: Bearer invented-{number}" for number in range(6)]
            for number, header in enumerate(headers):
                await gateways[number % 2].request("/page", header)
                unlisted = gateways[number % 2].decision_service.unlisted
                assert unlisted is not None
                await wait_on_loop_until(lambda u=unlisted: not u.has_writes, what="the proof is stored")  # type: ignore[misc]
            return [
                get_limit(await gateways[(number + 1) % 2].request("/page", header))[1]
                for number, header in enumerate(headers)
            ]

    with running_redis(tmp_path) as redis:
        limits = asyncio.run(scenario(redis.address))

    assert limits == ["100", "100", "100", "30", "30", "30"]


@pytest.mark.needs_program("redis-server")
def test_gateways_on_one_redis_share_accepted_credentials_and_their_end(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32)
    (tmp_path / "key").chmod(0o600)

    async def scenario(address: str) -> list[str]:
        store = f'[store]\nkind = "redis"\naddresses = ["{address}"]\nwait_ms = 2000\n'
        more = f'{OPAQUE}credential_key_file = "{tmp_path / "key"}"\n{store}'
        host = CodeHost()
        for name in "ab":
            (tmp_path / name).mkdir()
        async with (
            run_gateway(tmp_path / "a", rules=RULES, more=more) as first,
            run_gateway(tmp_path / "b", rules=RULES, more=more) as second,
        ):
            first.service.handler = second.service.handler = host.handle
            shared = second.decision_service.unlisted
            assert shared is not None
            assert shared.shared is not None
            limits = [get_limit(await first.request("/api/x", BOB))[1]]
            key = shared.hash_secret(BOB_TOKEN)

            async def is_shared() -> bool:
                assert shared.shared is not None
                return await shared.shared.find(key) is not None

            async with asyncio.timeout(60):
                while not await is_shared():
                    pass
            limits.append(get_limit(await second.request("/api/x", BOB))[1])
            del host.owners[BOB_TOKEN]
            await first.request("/api/x", BOB)
            async with asyncio.timeout(60):
                while await is_shared():
                    pass
            await wait_on_loop_until(
                lambda: not first.decision_service.running_requests, what="all requests have ended"
            )
            return limits

    with running_redis(tmp_path) as redis:
        assert asyncio.run(scenario(redis.address)) == ["30", "100"]


class LostStore:
    """A shared store that never replies in time, and counts the reads."""

    def __init__(self) -> None:
        self.reads = 0

    async def find(self, key: str) -> int | None:
        self.reads += 1
        raise StoreUnavailable(f"no reply about {key}")

    async def store(self, key: str, until_ms: int, lifetime_ms: int) -> None:
        raise StoreUnavailable(f"no reply about {key} {until_ms} {lifetime_ms}")

    async def remove(self, key: str) -> None:
        raise StoreUnavailable(f"no reply about {key}")

    async def add_new(self, group: str, key: str, *, most: int, lifetime_ms: int) -> bool:
        raise StoreUnavailable(f"no reply about {key} {group} {most} {lifetime_ms}")

    async def count_new(self, group: str) -> int:
        raise StoreUnavailable(f"no reply about {group}")


def test_a_gateway_whose_shared_store_is_lost_accepts_credentials_by_itself(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, _host: CodeHost) -> None:
        unlisted, lost = running.decision_service.unlisted, LostStore()
        assert unlisted is not None
        unlisted.shared = lost
        replies = [await running.request("/api/x", who) for who in (BOB, EVE, BOB, EVE)]

        assert [get_limit(reply)[1] for reply in replies] == ["30", "30", "100", "100"]
        assert lost.reads == 1

    run(tmp_path, scenario)
