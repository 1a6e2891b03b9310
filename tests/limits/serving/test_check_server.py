"""The check endpoint over real sockets: what it reads, what it replies, and what it refuses."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from tests.limits.decision_services import ADA
from tests.limits.serving.checking import running_check
from tests.waiting import wait_on_loop_until
from wharf.limits.core.callers.addresses import read_proxies
from wharf.limits.serving.check_server import MAX_HEAD_BYTES, CheckServer

T = TypeVar("T")

NGINX_REPLY = "/check/nginx/reply"

FORWARDED = {"X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/things?page=2", "X-Forwarded-For": "192.0.2.7"}
ORIGINAL = {"X-Original-Method": "GET", "X-Original-URI": "/reports/1", "X-Forwarded-For": "192.0.2.7"}


def encode_reply(status: int, headers: tuple[tuple[str, str], ...]) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode((status, headers, b""))).decode()


class CheckReply:
    """A reply of the check endpoint."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def problem(self) -> str:
        text: str = json.loads(self.body)["message"]
        return text


def build_request(headers: Mapping[str, str], path: str = "/check", method: str = "GET") -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\nHost: limits\r\n{lines}\r\n".encode("latin-1")


async def read_reply(reader: asyncio.StreamReader) -> CheckReply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {line.partition(": ")[0]: line.partition(": ")[2] for line in head[1:] if line}
    body = await reader.readexactly(int(headers["content-length"]))
    return CheckReply(int(head[0].split()[1]), headers, body)


class Proxy:
    """A connection to a check server."""

    def __init__(self, server: CheckServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.reader = reader
        self.writer = writer

    async def check(self, headers: Mapping[str, str] = FORWARDED, path: str = "/check") -> CheckReply:
        self.writer.write(build_request(headers, path))
        return await read_reply(self.reader)


def run(folder: Path, scenario: Callable[[Proxy], Awaitable[T]], **fields: Any) -> T:
    async def start() -> T:
        async with running_check(folder, **fields) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            try:
                return await asyncio.wait_for(scenario(Proxy(server, reader, writer)), 60)
            finally:
                writer.close()

    return asyncio.run(start())


def test_an_admitted_request_is_ok_and_has_the_rate_limit_headers(tmp_path: Path) -> None:
    reply = run(tmp_path, lambda proxy: proxy.check())
    assert (reply.status, reply.body) == (200, b"")
    assert (reply.headers["x-ratelimit-remaining"], reply.headers["ratelimit"]) == ("2", '"core";r=2;t=3600')
    assert "x-github-request-id" in reply.headers


def test_a_refusal_has_its_status_and_body(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> CheckReply:
        for _ in range(4):
            reply = await proxy.check()
        return reply

    reply = run(tmp_path, scenario)
    assert (reply.status, "retry-after" in reply.headers) == (403, True)
    assert reply.problem.startswith("API rate limit exceeded for 192.0.2.7.")


def test_a_rule_can_refuse_with_another_status(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> list[int]:
        return [(await proxy.check({**FORWARDED, "X-Forwarded-Uri": "/reports/1"})).status for _ in range(2)]

    assert run(tmp_path, scenario) == [200, 429]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-HTTP-Method-Override": "DELETE"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ],
)
def test_a_checked_request_counts_as_the_methods_that_it_may_name(tmp_path: Path, headers: Mapping[str, str]) -> None:
    rules = """
        [[rule]]
        name = "core"
        ceiling = 9
        [[rule]]
        name = "deletions"
        match = ["DELETE /things/*"]
        counts = "requests"
        ceiling = 1
        [paths]
        method_override = "forms"
        """
    described = {"X-Forwarded-Method": "POST", "X-Forwarded-Uri": "/things/1", "Content-Type": "a/b"}
    sent = {**FORWARDED, **described, **headers}

    async def scenario(proxy: Proxy) -> list[int]:
        return [(await proxy.check(sent)).status for _ in range(2)]

    assert run(tmp_path, scenario, rules=rules) == [200, 403]


def test_nginx_gets_a_status_that_it_accepts_and_then_the_reply_for_the_caller(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> tuple[CheckReply, CheckReply]:
        await proxy.check(ORIGINAL, "/check/nginx")
        reply = await proxy.check(ORIGINAL, "/check/nginx")
        return reply, await proxy.check({**ORIGINAL, "X-Check-Reply": reply.headers["x-wharf-reply"]}, NGINX_REPLY)

    for_nginx, for_caller = run(tmp_path, scenario)
    assert (for_nginx.status, for_nginx.body) == (403, b"")
    assert (for_caller.status, json.loads(for_caller.body)["limit"]["name"]) == (429, "reports")
    assert "retry-after" in for_caller.headers


def test_a_wrong_credential_is_refused_with_403_for_nginx_and_401_for_the_caller(tmp_path: Path) -> None:
    headers = {**ORIGINAL, "Authorization": "Bearer wrong"}

    async def scenario(proxy: Proxy) -> tuple[CheckReply, CheckReply]:
        reply = await proxy.check(headers, "/check/nginx")
        return reply, await proxy.check({**headers, "X-Check-Reply": reply.headers["x-wharf-reply"]}, NGINX_REPLY)

    for_nginx, for_caller = run(tmp_path, scenario)
    assert (for_nginx.status, "www-authenticate" in for_nginx.headers) == (403, False)
    assert (for_caller.status, for_caller.problem) == (401, "Bad credentials")
    assert "www-authenticate" in for_caller.headers


@pytest.mark.parametrize(
    "text",
    ["", "!", "AAAA", "xyz", encode_reply(999, ()), encode_reply(200, (("x", "a\r\nSet-Cookie: b"),))],
)
def test_without_a_reply_of_the_limiter_the_caller_of_nginx_gets_403(tmp_path: Path, text: str) -> None:
    """Such as if a rule of nginx itself has denied the request."""
    reply = run(tmp_path, lambda proxy: proxy.check({**ORIGINAL, "X-Check-Reply": text}, NGINX_REPLY))
    assert (reply.status, reply.problem, "set-cookie" in reply.headers) == (403, "Forbidden", False)


def test_a_page_of_the_limiter_is_decided_once_and_rendered_for_nginx(tmp_path: Path) -> None:
    headers = {**ORIGINAL, "X-Original-URI": "/rate_limit"}

    async def scenario(proxy: Proxy) -> tuple[CheckReply, CheckReply]:
        reply = await proxy.check(headers, "/check/nginx")
        return reply, await proxy.check({**headers, "X-Check-Reply": reply.headers["x-wharf-reply"]}, NGINX_REPLY)

    for_nginx, for_caller = run(tmp_path, scenario)
    assert (for_nginx.status, for_nginx.headers["x-wharf-reply"]) == (403, "page")
    assert (for_caller.status, json.loads(for_caller.body)["resources"]["core"]["limit"]) == (200, 3)


def test_caddy_gets_the_true_status_of_each_reply_and_admissions_have_a_header(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> list[tuple[int, bool]]:
        replies = [
            await proxy.check({**FORWARDED, "X-Forwarded-Uri": uri}, "/check/caddy")
            for uri in ("/things", "/graphql", "/graphql", "/rate_limit")
        ]
        return [(reply.status, "x-wharf-admitted" in reply.headers) for reply in replies]

    assert run(tmp_path, scenario) == [(200, True), (200, True), (200, False), (200, False)]


@pytest.mark.parametrize(("path", "status"), [
    ("/pages/rate_limit", 200),
    ("/pages/rate%5Flimit?x=1", 200),
    ("/pages//rate_limit", 400),
    ("/pages/orders", 404),
    ("/pages/", 404),
])  # fmt: skip
def test_only_the_pages_of_the_limiter_are_below_pages(tmp_path: Path, path: str, status: int) -> None:
    reply = run(tmp_path, lambda proxy: proxy.check({"X-Forwarded-For": "192.0.2.7"}, path))
    assert reply.status == status


@pytest.mark.parametrize(("name", "value"), [
    ("X-Forwarded-Uri", "/caf\xe9"),
    ("X-Forwarded-Uri", "/things#x"),
    ("X-Forwarded-Uri", "things"),
    ("X-Forwarded-Uri", "/" + "x" * 10_000),
    ("X-Forwarded-Method", "G T"),
    ("X-Forwarded-Method", "get"),
    ("X-Forwarded-Method", "X" * 40),
    ("X-Forwarded-Method", "CONNECT"),
    ("Authorization", "Bearer caf\xe9"),
    ("X-Other", "caf\xe9"),
    ("X_Forwarded_For", "192.0.2.8"),
    ("X_Forwarded_Uri", "/other"),
])  # fmt: skip
@pytest.mark.parametrize("path", ["/check", "/check/nginx"])
def test_a_request_that_the_gateway_would_refuse_is_refused_for_the_caller(
    tmp_path: Path, path: str, name: str, value: str
) -> None:
    """nginx replies with 500 to a check that fails in another way."""
    names = dict(zip(FORWARDED, ORIGINAL, strict=True)) if path == "/check/nginx" else {}
    headers = {names.get(key, key): text for key, text in {**FORWARDED, name: value}.items()}
    expected = {"CONNECT": 405}.get(value, 414 if len(value) > 8_192 else 400)

    async def scenario(proxy: Proxy) -> tuple[CheckReply, int]:
        reply = await proxy.check(headers, path)
        return reply, (await proxy.check()).status  # The connection of the proxy stays open.

    reply, later = run(tmp_path, scenario)
    if path == "/check/nginx":
        status = msgspec.msgpack.decode(base64.urlsafe_b64decode(reply.headers["x-wharf-reply"]))[0]
        assert (reply.status, status, later) == (403, expected, 200)
    else:
        assert (reply.status, "x-ratelimit-limit" in reply.headers, later) == (expected, True, 200)


def test_a_refusal_of_a_graphql_request_is_no_admission(tmp_path: Path) -> None:
    """The limiter refuses it with status 200, which clients of GraphQL read; a proxy would admit the request."""

    async def scenario(proxy: Proxy) -> CheckReply:
        for _ in range(2):
            reply = await proxy.check({**FORWARDED, "X-Forwarded-Uri": "/graphql"})
        return reply

    reply = run(tmp_path, scenario)
    assert (reply.status, json.loads(reply.body)["errors"][0]["type"]) == (429, "RATE_LIMITED")


def test_scripts_of_other_origins_may_read_the_headers_of_a_refusal(tmp_path: Path) -> None:
    headers = {**FORWARDED, "Origin": "https://acme.example", "Authorization": "Bearer wrong"}
    reply = run(tmp_path, lambda proxy: proxy.check(headers))
    assert "retry-after" in reply.headers["access-control-expose-headers"].lower()


def test_a_credential_selects_the_ceiling(tmp_path: Path) -> None:
    reply = run(tmp_path, lambda proxy: proxy.check({**FORWARDED, "Authorization": f"Bearer {ADA}"}))
    assert reply.headers["x-ratelimit-limit"] == "5"


def test_a_checked_request_holds_no_slot(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> int:
        await proxy.check()
        return len(proxy.server.decision_service.running_requests)

    assert run(tmp_path, scenario) == 0


def test_the_caller_is_the_address_that_the_proxy_added_last(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> list[str]:
        values = ["198.51.100.1, 192.0.2.7", "198.51.100.2, 192.0.2.7"]
        replies = [await proxy.check({**FORWARDED, "X-Forwarded-For": value}) for value in values]
        return [reply.headers["x-ratelimit-remaining"] for reply in replies]

    assert run(tmp_path, scenario) == ["2", "1"]


def test_with_trusted_proxies_the_caller_is_the_address_before_them(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> list[str]:
        values = ["198.51.100.1, 10.0.0.1", "198.51.100.2, 10.0.0.1"]
        replies = [await proxy.check({**FORWARDED, "X-Forwarded-For": value}) for value in values]
        return [reply.headers["x-ratelimit-remaining"] for reply in replies]

    assert run(tmp_path, scenario, proxies=read_proxies(trusted=["10.0.0.0/8"])) == ["2", "2"]


@pytest.mark.parametrize("path", ["/check", "/check/nginx"])
def test_each_path_reads_only_its_own_headers(tmp_path: Path, path: str) -> None:
    """Otherwise a caller could describe another request, if the proxy passes on the headers of the other convention."""
    other = ORIGINAL if path == "/check" else FORWARDED
    reply = run(tmp_path, lambda proxy: proxy.check(other, path))
    assert (reply.status, reply.problem.endswith("is missing: configure the proxy to set it")) == (400, True)


@pytest.mark.parametrize(
    ("headers", "path", "status", "problem"),
    [
        (FORWARDED, "/other", 404, "unknown path: use /check, or /check/caddy for Caddy, or /check/nginx for nginx"),
        ({**FORWARDED, "X-Forwarded-Uri": ""}, "/check", 400, "the header x-forwarded-uri is missing"),
        (ORIGINAL, "/pages/orders", 404, "the limiter has no page at this path"),
        ({**FORWARDED, "x-forwarded-method": "PUT"}, "/check", 400, "the header x-forwarded-method occurs twice"),
        ({**FORWARDED, "X-Forwarded-For": "unknown"}, "/check", 400, "the last entry of x-forwarded-for is not an address"),
        ({**FORWARDED, "X-Forwarded-For": ""}, "/check", 400, "the header x-forwarded-for is missing"),
        ({**FORWARDED, "Content-Length": "5"}, "/check", 400, "the check has a body: configure the proxy to send none"),
    ],
)  # fmt: skip
def test_a_check_that_cannot_be_decided_says_what_to_configure(
    tmp_path: Path, headers: Mapping[str, str], path: str, status: int, problem: str
) -> None:
    reply = run(tmp_path, lambda proxy: proxy.check(headers, path))
    assert (reply.status, reply.problem[: len(problem)]) == (status, problem)


@pytest.mark.parametrize(
    ("sent", "status"), [({}, 400), ({"X-Check-Secret": "wrong"}, 400), ({"X-Check-Secret": "s" * 20}, 200)]
)
def test_with_a_secret_only_proxies_that_send_it_are_answered(
    tmp_path: Path, sent: Mapping[str, str], status: int
) -> None:
    reply = run(tmp_path, lambda proxy: proxy.check({**FORWARDED, **sent}), check_secret="s" * 20)
    assert reply.status == status


def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> list[str]:
        proxy.writer.write(build_request(FORWARDED) * 3)
        return [(await read_reply(proxy.reader)).headers["x-ratelimit-remaining"] for _ in range(3)]

    assert run(tmp_path, scenario) == ["2", "1", "0"]


def test_a_request_may_arrive_in_pieces(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> int:
        request = build_request(FORWARDED)
        for at in range(0, len(request), 40):
            proxy.writer.write(request[at : at + 40])
            await proxy.writer.drain()
        return (await read_reply(proxy.reader)).status

    assert run(tmp_path, scenario) == 200


def test_a_request_of_http_1_0_closes_the_connection_after_its_reply(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> tuple[int, bytes]:
        proxy.writer.write(build_request(FORWARDED).replace(b"HTTP/1.1", b"HTTP/1.0"))
        return (await read_reply(proxy.reader)).status, await proxy.reader.read()

    assert run(tmp_path, scenario) == (200, b"")


@pytest.mark.parametrize(
    ("data", "status"), [(b"\x16\x03\x01\r\n\r\n", 400), (b"GET /check HTTP/1.1\r\na: " + b"x" * MAX_HEAD_BYTES, 431)]
)
def test_what_is_no_request_is_refused_and_closed(tmp_path: Path, data: bytes, status: int) -> None:
    async def scenario(proxy: Proxy) -> tuple[int, bytes]:
        proxy.writer.write(data)
        return (await read_reply(proxy.reader)).status, await proxy.reader.read()

    assert run(tmp_path, scenario) == (status, b"")


def test_a_request_that_never_becomes_complete_is_dropped(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> bytes:
        proxy.writer.write(b"GET /check HTTP/1.1\r\n")
        try:
            return await proxy.reader.read()
        except ConnectionResetError:
            return b""

    assert run(tmp_path, scenario, head_ms=50) == b""


def test_connections_above_the_maximum_are_closed(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> tuple[bytes, int]:
        await proxy.check()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.server.port)
        try:
            data = await reader.read()
        except ConnectionResetError:
            data = b""
        writer.close()
        return data, proxy.server.rejected_connections

    assert run(tmp_path, scenario, connections_most=1) == (b"", 1)


def test_a_closed_connection_makes_room_for_another(tmp_path: Path) -> None:
    async def scenario(proxy: Proxy) -> int:
        await proxy.check()
        proxy.writer.close()
        await wait_on_loop_until(lambda: not proxy.server.connections, what="the server has noticed the end")
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.server.port)
        try:
            return (await Proxy(proxy.server, reader, writer).check()).status
        finally:
            writer.close()

    assert run(tmp_path, scenario, connections_most=1) == 200


@pytest.mark.parametrize(("path", "state"), [("/healthz", "alive"), ("/readyz", "ready")])
def test_health_pages_need_no_headers(tmp_path: Path, path: str, state: str) -> None:
    reply = run(tmp_path, lambda proxy: proxy.check({}, path))
    assert (reply.status, json.loads(reply.body)) == (200, {"status": state})


@pytest.mark.parametrize("uri", ["/a/../reports/1", "/a/%2e%2e/reports/1", "//reports/1", "/%zz"])
@pytest.mark.parametrize(
    ("path", "names", "status"),
    [
        ("/check", ("X-Forwarded-Method", "X-Forwarded-Uri"), 400),
        ("/check/nginx", ("X-Original-Method", "X-Original-URI"), 403),
    ],
)
def test_a_path_that_services_read_differently_is_refused(
    tmp_path: Path, uri: str, path: str, names: tuple[str, str], status: int
) -> None:
    headers = {names[0]: "GET", names[1]: uri, "X-Forwarded-For": "192.0.2.7"}

    reply = run(tmp_path, lambda proxy: proxy.check(headers, path))

    assert (reply.status, "x-wharf-reply" in reply.headers) == (status, status == 403)


@pytest.mark.parametrize("uri", ["/Reports/1", "/%72eports/1", "/reports;v=1/1"])
def test_another_spelling_of_a_path_selects_the_same_limit(tmp_path: Path, uri: str) -> None:
    async def scenario(proxy: Proxy) -> CheckReply:
        await proxy.check({**FORWARDED, "X-Forwarded-Uri": "/reports/1"})
        return await proxy.check({**FORWARDED, "X-Forwarded-Uri": uri})

    assert run(tmp_path, scenario).status == 429
