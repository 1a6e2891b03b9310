"""The requests of one caller: their bodies, and the replies that the gateway makes itself."""

from pathlib import Path
from typing import Any

import pytest

from tests.limits.gateway.exchange import (
    CONTINUE,
    EXPECT,
    OK,
    REFUSE_ALL,
    UPSTREAM_S,
    Exchange,
    read_head,
    run,
)
from tests.waiting import wait_on_loop_until
from wharf.limits.gateway.caller.forwarding import MAX_BUFFERED_BYTES
from wharf.limits.gateway.caller.requests import MAX_DRAINED_BYTES

# -- bodies --------------------------------------------------------------------------------------------------------


def test_a_request_without_a_body_is_sent_as_one_head(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> tuple[bytes, bytes]:
        exchange.send()
        return read_head(exchange.upstream_socket.take())

    assert run(tmp_path, scenario) == (b"GET /x HTTP/1.1", b"")


def test_a_body_is_sent_in_the_parts_in_which_it_arrives(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[bytes]:
        exchange.send("PUT /x", b"Content-Length: 9\r\n", b"123")
        parts = [read_head(exchange.upstream_socket.take())[1]]
        for part in (b"45", b"6789"):
            exchange.connection.data_received(part)
            parts.append(exchange.upstream_socket.take())
        return parts

    assert run(tmp_path, scenario) == [b"123", b"45", b"6789"]


def test_a_body_that_waited_for_a_connection_is_sent_with_the_head_once_it_is_complete(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        busy = exchange.occupy_connection()
        exchange.send("PUT /x", b"Content-Length: 9\r\n", b"1234")
        exchange.connection.data_received(b"56789")
        exchange.environment.pool.return_connection(busy)
        return [
            read_head(exchange.upstream_socket.take())[1],
            exchange.caller_left_s,
            exchange.service_left_s,
            exchange.socket.take(),
        ]

    # The body is complete, so the caller has no deadline.
    assert run(tmp_path, scenario) == [b"123456789", None, UPSTREAM_S, b""]


@pytest.mark.parametrize(
    ("headers", "body", "is_told"),
    [
        (b"Content-Length: 9\r\nExpect: 100-continue\r\n", b"", True),
        (b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n", b"", True),
        (b"Content-Length: 9\r\n", b"", False),
        (b"Content-Length: 9\r\nExpect: 100-continue\r\n", b"abc", False),
    ],
)
def test_100_continue_is_sent_to_a_caller_that_waits_for_it_and_sends_no_body_yet(
    tmp_path: Path, headers: bytes, body: bytes, is_told: bool
) -> None:
    async def scenario(exchange: Exchange) -> bytes:
        busy = exchange.occupy_connection()
        exchange.send("PUT /x", headers, body)
        exchange.environment.pool.return_connection(busy)
        return exchange.socket.take()

    assert run(tmp_path, scenario) == (CONTINUE if is_told else b"")


@pytest.mark.parametrize("is_expected", [True, False])
def test_a_body_that_the_decision_needs_is_asked_for_before_the_decision(tmp_path: Path, is_expected: bool) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        seen: list[Any] = []
        body = b'{"query": "{ viewer { login } }"}'
        exchange.send("POST /graphql", b"Content-Length: %d\r\n%s" % (len(body), EXPECT if is_expected else b""))
        seen.append((exchange.socket.take(), exchange.upstream_socket.take()))
        exchange.connection.data_received(body[:7])
        exchange.connection.data_received(body[7:])
        line, sent = read_head(exchange.upstream_socket.take())
        return [*seen, exchange.socket.take(), line, sent == body]

    continued = CONTINUE if is_expected else b""
    assert run(tmp_path, scenario) == [(continued, b""), b"", b"POST /graphql HTTP/1.1", True]


def test_an_empty_body_is_decided_at_once_although_decisions_need_it(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> bytes:
        exchange.send("POST /graphql", b"Content-Length: 0\r\n")
        return read_head(exchange.upstream_socket.take())[0]

    assert run(tmp_path, scenario) == b"POST /graphql HTTP/1.1"


@pytest.mark.parametrize("line", ["PUT /x", "POST /graphql"])
def test_a_malformed_body_is_refused_with_400_and_the_connection_ends(tmp_path: Path, line: str) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send(line, b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\nwhat?\r\n")
        await exchange.settle()
        data = exchange.socket.written
        seen = [exchange.status, b"connection: close" in data, exchange.socket.take_calls()]
        seen.append(exchange.upstream_socket.take_calls())
        exchange.connection.data_received(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
        await exchange.settle()
        return [*seen, exchange.count_running(), exchange.environment.counts.failures]

    aborted = ["abort"] if line == "PUT /x" else []
    charged = int(line == "PUT /x")
    assert run(tmp_path, scenario)[:5] == [400, True, ["close"], aborted, (charged, 0)]


def test_a_malformed_body_resets_a_caller_whose_reply_has_begun(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> tuple[int, list[str], list[str]]:
        exchange.send("PUT /x", b"Transfer-Encoding: chunked\r\n")
        exchange.reply(OK + b"Content-Length: 5\r\n\r\nhe")
        status = exchange.status
        exchange.connection.data_received(b"what?\r\n")
        await exchange.settle()
        assert exchange.socket.take() == b""
        return status, exchange.socket.take_calls(), exchange.upstream_socket.take_calls()

    assert run(tmp_path, scenario) == (200, ["abort"], ["abort"])


# -- replies of the gateway ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "body", "is_closed", "calls"),
    [
        (b"", b"", False, []),
        (b"Content-Length: 3\r\n", b"abc", False, []),
        (b"Content-Length: %d\r\n" % MAX_DRAINED_BYTES, b"", False, []),
        (b"Content-Length: %d\r\n" % (MAX_DRAINED_BYTES + 1), b"", True, ["eof"]),
        (b"Transfer-Encoding: chunked\r\n", b"", False, []),
        (b"Content-Length: 3\r\nExpect: 100-continue\r\n", b"", True, ["eof"]),
        (b"Expect: 100-continue\r\n", b"", False, []),
        (b"Connection: close\r\n", b"", True, ["close"]),
        (b"Connection: close\r\nContent-Length: 3\r\n", b"", True, ["eof"]),
    ],
)
def test_after_a_refusal_the_connection_stays_open_unless_a_long_or_unsent_body_follows(
    tmp_path: Path, headers: bytes, body: bytes, is_closed: bool, calls: list[str]
) -> None:
    async def scenario(exchange: Exchange) -> tuple[bool, bool, list[str]]:
        exchange.send("PUT /x", headers, body)
        await exchange.settle()
        data = exchange.socket.written
        assert exchange.status == 403
        return b"connection: close" in data, bool(exchange.upstream_socket.take()), exchange.socket.take_calls()

    assert run(tmp_path, scenario, rules=REFUSE_ALL) == (is_closed, False, calls)


def test_the_rest_of_a_refused_body_is_discarded_and_the_next_request_is_answered(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[int]:
        statuses = []
        exchange.send("PUT /x", b"Content-Length: 9\r\n", b"123")
        await exchange.settle()
        statuses.append(exchange.status)
        exchange.connection.data_received(b"456")
        await exchange.settle()
        statuses.append(exchange.status)
        exchange.connection.data_received(b"789GET /rate_limit HTTP/1.1\r\nHost: a\r\n\r\n")
        await exchange.settle()
        return [*statuses, exchange.status]

    assert run(tmp_path, scenario, rules=REFUSE_ALL) == [403, 0, 200]


@pytest.mark.parametrize(
    ("headers", "rest", "calls"),
    [
        (b"Transfer-Encoding: chunked\r\n", b"what?\r\n", ["eof"]),
        (b"Transfer-Encoding: chunked\r\n", b"fffff\r\n" + b"x" * 70_000, ["pause", "resume", "eof"]),
    ],
)
def test_a_discarded_body_that_is_malformed_or_too_long_ends_the_connection(
    tmp_path: Path, headers: bytes, rest: bytes, calls: list[str]
) -> None:
    async def scenario(exchange: Exchange) -> tuple[list[str], int]:
        exchange.send("PUT /x", headers)
        await exchange.settle()
        assert exchange.status == 403
        exchange.connection.data_received(rest)
        exchange.connection.data_received(b"GET /rate_limit HTTP/1.1\r\nHost: a\r\n\r\n")
        await exchange.settle()
        return exchange.socket.take_calls(), exchange.status

    assert run(tmp_path, scenario, rules=REFUSE_ALL) == (calls, 0)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_reply_of_the_gateway_to_head_has_the_length_and_no_body(tmp_path: Path, method: str) -> None:
    async def scenario(exchange: Exchange) -> tuple[int, int]:
        exchange.send(f"{method} /x")
        head, _, body = exchange.socket.take().partition(b"\r\n\r\n")
        (length,) = [line for line in head.split(b"\r\n") if line.startswith(b"content-length: ")]
        return int(length[16:]), len(body)

    length, sent = run(tmp_path, scenario, rules=REFUSE_ALL)
    assert length > 0
    assert sent == (length if method == "GET" else 0)


def test_each_reply_of_an_ending_gateway_closes_its_connection(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        seen: list[Any] = []
        exchange.send()
        exchange.environment.is_ending = True
        exchange.reply()
        seen.append((b"connection: close" in exchange.socket.written, exchange.status, exchange.socket.take_calls()))
        return seen

    assert run(tmp_path, scenario) == [(True, 200, ["close"])]


def test_a_refusal_of_an_ending_gateway_closes_its_connection(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> tuple[bool, list[str]]:
        exchange.environment.is_ending = True
        exchange.send()
        return b"connection: close" in exchange.socket.written, exchange.socket.take_calls()

    assert run(tmp_path, scenario, rules=REFUSE_ALL) == (True, ["close"])


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(
    ("path", "statuses"), [("/healthz", [200, 200]), ("/readyz", [200, 503]), ("/rate_limit", [200, 200])]
)
def test_own_pages_are_answered_one_after_the_other_and_hold_no_slot(
    tmp_path: Path, path: str, statuses: list[int], is_local: bool
) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        seen = []
        exchange.send(f"GET {path}")
        seen.append(await exchange.wait_for_status())
        exchange.environment.is_ending = True
        exchange.send(f"GET {path}")
        seen.append(await exchange.wait_for_status())
        return [
            seen,
            exchange.upstream_socket.take(),
            exchange.count_running()[1],
            exchange.environment.counts.requests,
        ]

    assert run(tmp_path, scenario, is_local=is_local) == [statuses, b"", 0, 2]


@pytest.mark.parametrize(("method", "path"), [("POST", "/rate_limit"), ("GET", "/rate_limits")])
def test_other_methods_and_paths_reach_the_service(tmp_path: Path, method: str, path: str) -> None:
    async def scenario(exchange: Exchange) -> bytes:
        exchange.send(f"{method} {path}")
        await exchange.settle()
        return read_head(exchange.upstream_socket.take())[0]

    assert run(tmp_path, scenario) == f"{method} {path} HTTP/1.1".encode()


def test_while_limits_are_off_the_path_of_a_page_of_insights_belongs_to_the_service(tmp_path: Path) -> None:
    path = "/orgs/acme/insights/api/summary-stats"

    async def scenario(exchange: Exchange) -> list[Any]:
        await exchange.service.overrides.set_off_until(exchange.service.now_ms() + 60_000)
        exchange.send(f"GET {path}")
        exchange.send("GET /y")
        assert exchange.upstream_socket.take() == b""
        await exchange.settle()
        line = read_head(exchange.upstream_socket.take())[0]
        exchange.reply()
        await exchange.settle()
        return [line, exchange.status, read_head(exchange.upstream_socket.take())[0]]

    assert run(tmp_path, scenario) == [f"GET {path} HTTP/1.1".encode(), 200, b"GET /y HTTP/1.1"]


def test_a_bare_gateway_forwards_without_a_decision(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> tuple[bytes, int, bool]:
        exchange.send()
        line = read_head(exchange.upstream_socket.take())[0]
        exchange.reply()
        return line, exchange.count_running()[0], b"x-ratelimit" in exchange.socket.take()

    assert run(tmp_path, scenario, is_bare=True, rules=REFUSE_ALL) == (b"GET /x HTTP/1.1", 0, False)


@pytest.mark.parametrize(
    ("line", "is_local", "status"),
    [("GET /healthz", True, 200), ("GET /rate_limit", True, 200), ("PUT /x", False, 403)],
)
def test_the_body_of_a_request_is_not_read_while_its_reply_is_made(
    tmp_path: Path, line: str, is_local: bool, status: int
) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send(line, b"Transfer-Encoding: chunked\r\n", b"what?\r\n")
        await wait_on_loop_until(lambda: exchange.socket.calls, what="the connection ends")
        data = exchange.socket.take()
        return [data.count(b"HTTP/1.1 "), int(data[9:12]), exchange.socket.take_calls()]

    rules = REFUSE_ALL if status == 403 else ""
    # The malformed body ends the connection, but only after the reply.
    assert run(tmp_path, scenario, rules=rules, is_local=is_local) == [1, status, ["eof"]]


def test_a_malformed_body_after_a_failure_of_the_service_gets_no_second_reply(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send("PUT /x", b"Transfer-Encoding: chunked\r\n")
        exchange.upstream.connection_lost(None)
        exchange.connection.data_received(b"what?\r\n")
        await exchange.settle()
        data = exchange.socket.take()
        return [data.count(b"HTTP/1.1 "), int(data[9:12]), exchange.socket.take_calls()]

    assert run(tmp_path, scenario) == [1, 502, ["eof"]]


@pytest.mark.parametrize("is_local", [True, False])
def test_a_request_that_arrives_while_a_reply_is_made_is_answered_after_it(tmp_path: Path, is_local: bool) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send("GET /rate_limit")
        exchange.send("GET /y", body=b"G" * MAX_BUFFERED_BYTES)
        paused = exchange.socket.take_calls()
        await wait_on_loop_until(lambda: exchange.upstream_socket.written, what="the next request is forwarded")
        line = read_head(exchange.upstream_socket.take())[0]
        return [exchange.status, line, paused, exchange.socket.take_calls()[:1]]

    assert run(tmp_path, scenario, is_local=is_local) == [200, b"GET /y HTTP/1.1", ["pause"], []]
