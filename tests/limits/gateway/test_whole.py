"""The gateway with what stands around it: TLS on both sides, counters on Redis, the demonstration."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.limits.front.desks import OAUTH, run
from tests.limits.gateway.places import Heard, Place, a_place, at
from tests.limits.gateway.test_gateway import ADA_SENDS, limits_missing
from tests.limits.operating.test_operators import operate
from tests.limits.stores.redis_server import running_redis
from tests.waiting import wait_on_loop_until
from wharf.agent.tls import certificates
from wharf.cli.root import root

TWO_AN_HOUR = '[[rule]]\nname = "core"\nceiling = 2\n'


def test_it_speaks_tls_with_callers(tmp_path: Path) -> None:
    made = certificates.create_certificates(
        tmp_path / "tls",
        region="global",
        is_server=True,
        files_name="here",
        alternative_names=(),
        days=1,
        authority_days=1,
    )
    trust = ssl.create_default_context(cafile=str(made[0].certificate_file))

    async def scenario(place: Place) -> tuple[bytes, str]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", place.gateway.port, ssl=trust, server_hostname="localhost"
        )
        writer.write(b"GET /things HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        said = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return said, place.service.got[0].headers["x-forwarded-proto"]

    files = f'certificate_file = "{made[-1].certificate_file}"\nkey_file = "{made[-1].key_file}"'
    said, proto = at(tmp_path, scenario, gateway=files)

    assert said.endswith(b"\r\n\r\nhello")
    assert b"x-ratelimit-limit: 60\r\n" in said
    assert proto == "https"


def test_it_speaks_tls_with_the_service_and_trusts_only_what_it_is_told_to(tmp_path: Path) -> None:
    made = certificates.create_certificates(
        tmp_path / "tls",
        region="global",
        is_server=True,
        files_name="here",
        alternative_names=(),
        days=1,
        authority_days=1,
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(str(made[-1].certificate_file), str(made[-1].key_file))

    async def scenario(trusted: str) -> tuple[int, bytes]:
        async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret")
            await writer.drain()
            writer.close()

        service = await asyncio.start_server(serves, "127.0.0.1", 0, ssl=context)
        port = service.sockets[0].getsockname()[1]
        async with a_place(tmp_path, gateway=trusted, upstream=f"https://localhost:{port}") as place:
            heard = await place.ask()
        service.close()
        return heard.status, heard.body[:6]

    assert run(lambda: scenario(f'upstream_ca_file = "{made[0].certificate_file}"')) == (200, b"secret")
    assert run(lambda: scenario(""))[0] == 502


@pytest.mark.needs_program("redis-server")
def test_gateways_on_one_redis_count_together(tmp_path: Path) -> None:
    async def scenario(address: str) -> tuple[list[int], list[list[str]]]:
        store = f'[store]\nkind = "redis"\naddresses = ["{address}"]\nwait_ms = 2000\n'
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        heard: list[Heard] = []
        async with (
            a_place(tmp_path / "a", rules=TWO_AN_HOUR, more=store) as one,
            a_place(tmp_path / "b", rules=TWO_AN_HOUR, more=store) as other,
        ):
            for place in (one, other, one, other):
                wire = await place.wire()
                heard.append(await wire.ask("/things", ADA_SENDS))
            heard.append(await one.ask("/rate_limit", ADA_SENDS))
            heard.append(await other.ask("/things", "Authorization: Bearer nobody"))
            await wait_on_loop_until(
                lambda: not one.desk.running_requests and not other.desk.running_requests, what="all have ended"
            )
        return [h.status for h in heard], [limits_missing(h) for h in heard]

    with running_redis(tmp_path) as redis:
        statuses, missing = run(lambda: scenario(redis.address))

    assert statuses == [200, 200, 403, 403, 200, 401]
    assert missing == [[]] * 6


@pytest.mark.needs_program("redis-server")
def test_on_redis_an_unchanged_reply_costs_nothing_and_slots_are_freed(tmp_path: Path) -> None:
    async def scenario(address: str) -> tuple[list[str], int]:
        store = f'[store]\nkind = "redis"\naddresses = ["{address}"]\nwait_ms = 2000\n'
        async with a_place(tmp_path, more=store) as place:

            async def unchanged(_got: object, _reader: object, writer: asyncio.StreamWriter) -> None:
                writer.write(b"HTTP/1.1 304 Not Modified\r\nETag: 1\r\n\r\n")

            place.service.handler = unchanged
            wire = await place.wire()
            used = [(await wire.ask("/x", ADA_SENDS, 'If-None-Match: "1"')).headers["x-ratelimit-used"] for _ in "123"]
            await wait_on_loop_until(lambda: not place.desk.running_requests, what="all have ended")
            caller = place.desk.activity.last_callers.get("user:ada")
            place.desk.activity.fold_counts(place.desk.now_ms())
            caller = caller or place.desk.activity.last_callers["user:ada"]
            rule = place.desk.evaluator.limiter.rulebook.rules_by_name["concurrent"]
            charge = next(
                c for c in place.desk.evaluator.limiter.rulebook.list_secondary_charges(caller) if c.rule is rule
            )

            async def held() -> int:
                return (await place.desk.evaluator.store.peek([charge]))[0].used

            async with asyncio.timeout(60):
                while await held():  # A slot is given back without anybody waiting for it.
                    pass
            return used, await held()

    with running_redis(tmp_path) as redis:
        assert run(lambda: scenario(redis.address)) == (["0", "0", "0"], 0)


@pytest.mark.needs_program("redis-server")
def test_a_drill_shows_what_rules_answer_while_the_store_is_away(tmp_path: Path) -> None:
    rules = '[[rule]]\nname = "core"\nceiling = 100\non_store_loss = "closed"\n'
    with running_redis(tmp_path) as redis:
        store = f'[store]\nkind = "redis"\naddresses = ["{redis.address}"]\nwait_ms = 2000\n'

        async def scenario(desk: object) -> tuple[int, int]:
            from tests.limits.operating.test_operators import Desk

            assert isinstance(desk, Desk)
            before = await desk.ask(ADA_SENDS)
            await desk.type("simulate-outage", "store", "--duration", "1m")
            return before, await desk.ask(ADA_SENDS)

        assert operate(tmp_path, scenario, rules=rules, more=store) == (200, 403)


def test_the_demonstration_shows_callers_admitted_and_refused() -> None:
    done = CliRunner().invoke(root, ["limits", "demo", "--duration", "6"])

    assert done.exit_code == 0, done.output
    assert "crawler is refused: 403" in done.output
    assert "That was all." in done.output


@pytest.mark.parametrize(
    "words",
    [("gateway", "--upstream", "http://127.0.0.1:9", "--data-dir", "data"), ("limits", "demo", "--duration", "1")],
)
def test_a_port_that_is_taken_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = CliRunner().invoke(root, [*words, "--port", str(port)])

    said = f"port {port} on 127.0.0.1 is in use: stop what listens there, or choose another with --port"
    assert (ended.exit_code, ended.stderr.splitlines()[-1]) == (1, f"Error: {said}")


def test_a_gateway_without_a_service_says_what_to_write() -> None:
    done = CliRunner().invoke(root, ["gateway"])

    assert "missing service: give its URL with --upstream, such as http://127.0.0.1:3000" in done.output


def test_the_scopes_of_a_token_are_told_by_the_gateway(tmp_path: Path) -> None:
    async def scenario() -> dict[str, str]:
        async with a_place(tmp_path) as place:
            return (await place.ask("/things", f"Authorization: token {OAUTH}")).headers

    assert run(scenario)["x-oauth-scopes"] == "repo, read:org"
