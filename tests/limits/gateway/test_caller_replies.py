"""What one caller receives of the service: replies with refunds and charges, failures, and websockets."""

from pathlib import Path
from typing import Any

import pytest

from tests.limits.gateway.exchange import (
    IDLE_S,
    OK,
    SWITCH,
    UPSTREAM_S,
    WEBSOCKET,
    Exchange,
    read_head,
    run,
)
from tests.waiting import wait_on_loop_until

# -- replies of the service ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(
    ("reply", "headers", "charged"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"If-None-Match: x\r\n", 1),
        (b"HTTP/1.1 304 N\r\n\r\n", b"", 1),
        (b"HTTP/1.1 304 N\r\n\r\n", b"If-None-Match: x\r\n", 0),
        (b"HTTP/1.1 499 N\r\nContent-Length: 0\r\n\r\n", b"", 1),
        (b"HTTP/1.1 500 N\r\nContent-Length: 0\r\n\r\n", b"", 0),
    ],
)
def test_unchanged_and_failed_replies_are_refunded_before_their_headers_are_written(
    tmp_path: Path, reply: bytes, headers: bytes, charged: int, is_local: bool
) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send(headers=headers)
        await wait_on_loop_until(lambda: exchange.upstream_socket.written, what="the request is forwarded")
        exchange.reply(reply)
        await wait_on_loop_until(lambda: exchange.socket.written, what="the reply is written")
        data = exchange.socket.take().lower()
        used = b"x-ratelimit-used: %d\r\n" % charged in data
        return [int(data[9:12]), used, exchange.count_running()[0], exchange.count_used("content")]

    assert run(tmp_path, scenario, is_local=is_local) == [int(reply[9:12]), True, charged, 0]


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("status", [200, 304, 500])
def test_content_that_the_service_reports_is_charged_with_every_status(
    tmp_path: Path, status: int, is_local: bool
) -> None:
    async def scenario(exchange: Exchange) -> tuple[int, int]:
        exchange.send()
        await wait_on_loop_until(lambda: exchange.upstream_socket.written, what="the request is forwarded")
        exchange.reply(b"HTTP/1.1 %d N\r\nContent-Length: 0\r\nX-Wharf-Content: 1\r\n\r\n" % status)
        return await exchange.wait_for_status(), exchange.count_used("content")

    assert run(tmp_path, scenario, is_local=is_local) == (status, 1)


def test_the_service_is_not_read_while_a_remote_refund_runs(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send()
        await wait_on_loop_until(lambda: exchange.upstream_socket.written, what="the request is forwarded")
        exchange.reply(b"HTTP/1.1 500 N\r\nContent-Length: 5\r\n\r\nhe")
        seen: list[Any] = [exchange.upstream_socket.take_calls(), exchange.socket.take()]
        await wait_on_loop_until(lambda: exchange.socket.written, what="the reply is written")
        exchange.reply(b"llo")
        return [*seen, exchange.upstream_socket.take_calls(), exchange.socket.take().partition(b"\r\n\r\n")[2]]

    assert run(tmp_path, scenario, is_local=False) == [["pause"], b"", ["resume"], b"hello"]


def test_a_caller_that_disconnects_during_a_remote_refund_gets_no_reply(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send()
        await wait_on_loop_until(lambda: exchange.upstream_socket.written, what="the request is forwarded")
        exchange.reply(b"HTTP/1.1 500 N\r\nContent-Length: 2\r\n\r\nhe")
        exchange.connection.connection_lost(None)
        await wait_on_loop_until(lambda: exchange.count_running() == (0, 0), what="the refund is done")
        await exchange.settle()
        return [exchange.socket.take(), exchange.upstream_socket.take_calls()]

    assert run(tmp_path, scenario, is_local=False) == [b"", ["pause", "abort"]]


def test_the_connection_to_the_service_is_reused_for_a_pipelined_request(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[bytes]:
        lines = []
        exchange.send()
        exchange.send("GET /y")
        for _ in range(2):
            lines.append(read_head(exchange.upstream_socket.take())[0])
            exchange.reply()
            await exchange.settle()
        return lines

    assert run(tmp_path, scenario) == [b"GET /x HTTP/1.1", b"GET /y HTTP/1.1"]


@pytest.mark.parametrize(
    ("line", "headers", "body", "calls"),
    [
        ("GET /x", b"", b"", []),
        ("GET /x", b"Connection: close\r\n", b"", ["close"]),
        ("PUT /x", b"Content-Length: 3\r\n", b"a", []),
        ("PUT /x", b"Connection: close\r\nContent-Length: 3\r\n", b"a", ["eof"]),
    ],
)
def test_the_connection_of_the_caller_ends_after_the_reply_if_the_caller_wants_it(
    tmp_path: Path, line: str, headers: bytes, body: bytes, calls: list[str]
) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send(line, headers, body)
        exchange.reply()
        return [exchange.status, exchange.socket.take_calls(), exchange.count_running()]

    assert run(tmp_path, scenario) == [200, calls, (1, 0)]


# -- failures of the service ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_local", [True, False])
def test_a_failure_before_the_reply_is_a_502_that_is_refunded_and_counted(tmp_path: Path, is_local: bool) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send()
        await wait_on_loop_until(lambda: exchange.upstream_socket.written, what="the request is forwarded")
        exchange.upstream.connection_lost(None)
        status = await exchange.wait_for_status()
        await wait_on_loop_until(lambda: not exchange.count_running()[1], what="the slot is freed")
        counts = exchange.environment.counts
        return [status, exchange.count_running(), counts.failures, counts.replies, exchange.socket.take_calls()]

    assert run(tmp_path, scenario, is_local=is_local) == [502, (0, 0), 1, {5: 1}, []]


def test_a_failure_in_the_middle_of_the_reply_resets_the_caller(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send()
        exchange.reply(OK + b"Content-Length: 5\r\n\r\nhe")
        exchange.socket.take()
        exchange.upstream.connection_lost(None)
        await exchange.settle()
        return [exchange.socket.take(), exchange.socket.take_calls(), exchange.environment.counts.failures]

    assert run(tmp_path, scenario) == [b"", ["abort"], 1]


def test_a_malformed_body_of_a_reply_whose_head_is_not_sent_yet_is_a_502(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send()
        exchange.reply(OK + b"Transfer-Encoding: chunked\r\n\r\nwhat?\r\n")
        await exchange.settle()
        data = exchange.socket.written
        return [data.count(b"HTTP/1.1 "), exchange.status, exchange.count_running()]

    assert run(tmp_path, scenario) == [1, 502, (0, 0)]


@pytest.mark.parametrize(
    ("line", "was_used", "early", "is_retried"),
    [
        ("GET /x", True, b"", True),
        ("GET /x", False, b"", False),
        ("GET /x", True, b"HTTP", False),
        ("DELETE /x", True, b"", False),
    ],
)
def test_a_read_is_sent_again_if_the_service_closed_its_idle_connection(
    tmp_path: Path, line: str, was_used: bool, early: bytes, is_retried: bool
) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.upstream.was_used = was_used
        others = [exchange.occupy_connection()]
        exchange.send(line)
        assert not exchange.upstream_socket.take()
        exchange.environment.pool.return_connection(others[0])
        first = bool(exchange.upstream_socket.take())
        if early:
            exchange.reply(early)
        exchange.upstream.connection_lost(None)
        await exchange.settle()
        status = exchange.status
        exchange.connect_upstream()
        return [first, bool(exchange.upstream_socket.take()), status]

    assert run(tmp_path, scenario) == [True, is_retried, 0 if is_retried else 502]


def test_a_request_is_sent_again_only_once(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        sent = []
        exchange.upstream.was_used = True
        exchange.send()
        for _ in range(2):
            sent.append(bool(exchange.upstream_socket.take()))
            exchange.upstream.connection_lost(None)
            await exchange.settle()
            exchange.upstream = exchange.connect_upstream()
        return [sent, exchange.status]

    assert run(tmp_path, scenario) == [[True, True], 502]


# -- websockets ----------------------------------------------------------------------------------------------------


def test_a_websocket_passes_bytes_both_ways_without_deadlines(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send("GET /live", WEBSOCKET)
        exchange.upstream_socket.take()
        exchange.connection.data_received(b"early")
        waited = exchange.upstream_socket.take()
        exchange.reply(SWITCH + b"first")
        head, _, first = exchange.socket.take().partition(b"\r\n\r\n")
        seen: list[Any] = [
            waited,
            head[:12],
            first,
            exchange.upstream_socket.take(),
            exchange.caller_left_s,
            exchange.service_left_s,
        ]
        exchange.connection.data_received(b"ping")
        exchange.reply(b"pong")
        seen += [exchange.upstream_socket.take(), exchange.socket.take()]
        exchange.upstream.connection_lost(None)
        seen.append(exchange.socket.take_calls())
        return seen

    assert run(tmp_path, scenario) == [
        *(b"", b"HTTP/1.1 101", b"first", b"early", None, None),
        *(b"ping", b"pong", ["close"]),
    ]


def test_only_the_side_of_a_websocket_that_does_not_read_has_a_deadline(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send("GET /live", WEBSOCKET)
        exchange.reply(SWITCH)
        seen = []
        exchange.upstream.pause_writing()
        seen.append((exchange.socket.take_calls(), exchange.caller_left_s, exchange.service_left_s))
        exchange.upstream.resume_writing()
        seen.append((exchange.socket.take_calls(), exchange.caller_left_s, exchange.service_left_s))
        exchange.connection.pause_writing()
        seen.append((exchange.upstream_socket.take_calls(), exchange.caller_left_s, exchange.service_left_s))
        exchange.connection.resume_writing()
        seen.append((exchange.upstream_socket.take_calls(), exchange.caller_left_s, exchange.service_left_s))
        return seen

    assert run(tmp_path, scenario) == [
        (["pause"], None, UPSTREAM_S),  # The caller can leave unnoticed while the service does not read.
        (["resume"], None, None),
        (["pause"], IDLE_S, None),  # A caller that never reads must not occupy memory forever.
        (["resume"], None, None),
    ]


def test_the_time_of_a_websocket_is_not_charged_as_work(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> float:
        exchange.send("GET /live", WEBSOCKET)
        (admitted,) = exchange.service.running_requests.values()
        exchange.world.advance(1)
        exchange.reply(SWITCH)
        exchange.world.advance(5)
        return round(admitted.compute_work_ms(exchange.world.monotonic_s()))

    assert run(tmp_path, scenario) == 1_000


@pytest.mark.parametrize("has_limits", [True, False])
def test_limit_headers_of_the_service_are_replaced_and_its_other_headers_kept(
    tmp_path: Path, *, has_limits: bool
) -> None:
    own = b"X-RateLimit-Used: 77\r\nRetry-After: 9\r\n" if has_limits else b""

    async def scenario(exchange: Exchange) -> list[bytes]:
        exchange.send()
        await wait_on_loop_until(lambda: exchange.upstream_socket.written, what="the request is forwarded")
        exchange.reply(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Other: 5\r\n" + own + b"\r\n")
        await wait_on_loop_until(lambda: exchange.socket.written, what="the reply is written")
        return exchange.socket.take().lower().split(b"\r\n")

    lines = run(tmp_path, scenario)

    assert [line for line in lines if line.startswith((b"x-ratelimit-used", b"x-other"))] == [
        b"x-other: 5",
        b"x-ratelimit-used: 1",
    ]
