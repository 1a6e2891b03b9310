"""Callers and proxies: connections of one address, and headers that only proxies may set."""

import asyncio
from pathlib import Path

import pytest

from tests.limits.gateway.running_gateway import RunningGateway, run_scenario
from tests.waiting import wait_on_loop_until
from wharf.limits.admin.metrics import render_metrics
from wharf.limits.gateway import gateway as gateway_module
from wharf.limits.gateway.gateway import ConnectionCounts

TRUSTED = '[addresses]\ntrusted = ["127.0.0.0/8"]'
UNTRUSTED = '[addresses]\ntrusted = ["10.0.0.0/8"]'
HOPS = "[addresses]\nhops = 1"
REFUSE_ALL = '[[rule]]\nname = "core"\nceiling = 0\n'
OF_PROXIES = (
    "X-Forwarded-Host: evil.example",
    "X-Forwarded-Port: 1",
    "X-Forwarded-Prefix: /admin",
    "X-Original-URL: /admin",
    "X-Rewrite-URL: /admin",
    "X-Original-Host: evil.example",
    "Front-End-Https: on",
    "X-Real-IP: 203.0.113.1",
)


# -- connections of one address ------------------------------------------------------------------------------------


def test_connections_beyond_the_maximum_of_an_address_are_refused_with_the_reason(
    tmp_path: Path,
) -> None:

    async def scenario(running: RunningGateway) -> list[object]:
        first, second = await running.connect(), await running.connect()
        statuses = [(await caller.request()).status for caller in (first, second)]
        refused = await running.connect()
        reply = await refused.read_reply()
        rest = await refused.read_until_close()
        still_works = (await first.request()).status
        return [statuses, reply.status, reply.headers["retry-after"], rest, b"connections" in reply.body, still_works]

    found = run_scenario(tmp_path, scenario, gateway="connections_per_address = 2")

    assert found == [[200, 200], 429, "1", b"", True, 200]


def test_a_closed_connection_makes_room_for_another(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> int:
        first = await running.connect()
        await first.request()
        first.close()
        await wait_on_loop_until(lambda: not running.gateway.connections, what="the connection is closed")
        return (await running.request()).status

    assert run_scenario(tmp_path, scenario, gateway="connections_per_address = 1") == 200


def test_refused_connections_are_counted_by_reason(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> bytes:
        await (await running.connect()).request()
        await (await running.connect()).read_reply()
        return render_metrics(running.gateway.limits, running.gateway)

    metrics = run_scenario(tmp_path, scenario, gateway="connections_per_address = 1")

    assert b'wharf_limits_gateway_turned_away_total{reason="address"} 1\n' in metrics
    assert b'wharf_limits_gateway_turned_away_total{reason="total"} 0\n' in metrics


def test_beyond_a_number_of_refused_connections_they_are_closed_without_a_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "MAX_REFUSED_CONNECTIONS", 1)

    async def scenario(running: RunningGateway) -> tuple[int, bytes]:
        await (await running.connect()).request()
        lingering = await running.connect()
        status = (await lingering.read_reply()).status
        return status, await (await running.connect()).read_until_close()

    assert run_scenario(tmp_path, scenario, gateway="connections_per_address = 1") == (429, b"")


@pytest.mark.parametrize(("more", "status"), [(TRUSTED, 200), (HOPS, 200), (UNTRUSTED, 429)])
def test_proxies_have_no_maximum_of_connections(tmp_path: Path, more: str, status: int) -> None:
    async def scenario(running: RunningGateway) -> int:
        await (await running.connect()).request()
        second = await running.connect()
        if status == 429:
            return (await second.read_reply()).status
        return (await second.request()).status

    assert run_scenario(tmp_path, scenario, gateway="connections_per_address = 1", more=more) == status


def test_the_table_of_addresses_has_only_those_with_connections() -> None:
    counts = ConnectionCounts(2)
    added = [counts.add(peer) for peer in ("192.0.2.7", "192.0.2.7", "192.0.2.7", "2001:db8::1", "2001:db8::2", "")]
    added.append(counts.add("2001:db8::3"))
    counts.remove("192.0.2.7")
    counts.remove("192.0.2.7")
    counts.remove("2001:db8::9")
    counts.remove("")

    assert (added, len(counts)) == ([True, True, False, True, True, True, False], 1)


def test_without_a_maximum_nothing_is_counted() -> None:
    counts = ConnectionCounts(0)

    assert ([counts.add("192.0.2.7") for _ in range(3)], len(counts)) == ([True] * 3, 0)


# -- headers of proxies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("more", "is_passed"), [("", False), (UNTRUSTED, False), (TRUSTED, True), (HOPS, True)])
def test_headers_that_only_proxies_set_are_removed_from_other_callers(
    tmp_path: Path, more: str, is_passed: bool
) -> None:
    async def scenario(running: RunningGateway) -> list[bool]:
        await running.request("/a", *OF_PROXIES)
        received = running.service.requests[0].headers
        return [header.partition(":")[0].lower() in received for header in OF_PROXIES]

    assert run_scenario(tmp_path, scenario, more=more) == [is_passed] * len(OF_PROXIES)


@pytest.mark.parametrize(
    ("more", "sent", "received"),
    [
        ("", "https", ("127.0.0.1", "http")),
        (UNTRUSTED, "https", ("127.0.0.1", "http")),
        (TRUSTED, "https", ("203.0.113.1, 127.0.0.1", "https")),
        (TRUSTED, "gopher", ("203.0.113.1, 127.0.0.1", "http")),
    ],
)
def test_address_and_scheme_of_the_caller_are_those_that_the_proxy_reports(
    tmp_path: Path, more: str, sent: str, received: tuple[str, str]
) -> None:
    async def scenario(running: RunningGateway) -> tuple[str, str]:
        await running.request("/a", "X-Forwarded-For: 203.0.113.1", f"X-Forwarded-Proto: {sent}")
        headers = running.service.requests[0].headers
        return headers["x-forwarded-for"], headers["x-forwarded-proto"]

    assert run_scenario(tmp_path, scenario, more=more) == received


@pytest.mark.parametrize("name", ["X_Forwarded_Host", "X.Original.URL", "X_Forwarded-Anything"])
def test_similar_names_of_these_headers_are_refused(tmp_path: Path, name: str) -> None:
    async def scenario(running: RunningGateway) -> int:
        return (await running.request("/a", f"{name}: x")).status

    assert run_scenario(tmp_path, scenario, more=TRUSTED) == 400


# -- replies of the gateway ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "rules", "status"), [("/x", REFUSE_ALL, 403), ("/rate_limit", "", 200)])
def test_pages_of_other_origins_can_read_the_headers_of_refusals_and_own_pages(
    tmp_path: Path, target: str, rules: str, status: int
) -> None:
    async def scenario(running: RunningGateway) -> list[tuple[int, bool]]:
        replies = [await running.request(target, *headers) for headers in ((), ("Origin: https://other.example",))]
        return [(reply.status, "access-control-expose-headers" in reply.headers) for reply in replies]

    assert run_scenario(tmp_path, scenario, rules=rules) == [(status, False), (status, True)]


def test_pages_of_other_origins_can_read_the_headers_of_errors(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, bool]:
        running.service.close()
        await asyncio.sleep(0)
        reply = await running.request("/x", "Origin: https://other.example")
        return reply.status, "access-control-expose-headers" in reply.headers

    assert run_scenario(tmp_path, scenario) == (502, True)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_a_204_is_passed_on_without_a_length(tmp_path: Path, method: str) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, bool, bool]:
        async def answer(_request: object, _reader: object, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n")

        running.service.handler = answer
        caller = await running.connect()
        reply = await caller.request("/x", method=method)
        return reply.status, "content-length" in reply.headers, "transfer-encoding" in reply.headers

    assert run_scenario(tmp_path, scenario) == (204, False, False)
