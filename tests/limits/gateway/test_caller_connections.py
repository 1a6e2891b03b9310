"""One caller's connection: deadlines, slow callers and services, disconnects, and its socket."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.limits.gateway.exchange import (
    HEAD_S,
    IDLE_S,
    OK,
    REFUSE_ALL,
    UPSTREAM_S,
    Exchange,
    Socket,
    run,
)
from tests.waiting import wait_on_loop_until
from wharf.limits.gateway.caller.connection import REQUESTS_PER_STEP
from wharf.limits.gateway.caller.forwarding import MAX_BUFFERED_BYTES
from wharf.limits.gateway.caller.requests import PIECE_BYTES
from wharf.limits.gateway.caller.transport import FLUSH_TIMEOUT_S, LINGER_TIMEOUT_S, CallerTransport

# -- deadlines -----------------------------------------------------------------------------------------------------


def test_each_step_of_an_exchange_sets_the_deadline_of_the_side_that_must_act(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[tuple[float | None, float | None]]:
        steps = []

        def note() -> None:
            steps.append((exchange.caller_left_s, exchange.service_left_s))
            exchange.world.advance(1)

        note()
        exchange.connection.data_received(b"PUT /x HTTP/1.1\r\n")
        note()
        exchange.connection.data_received(b"Host: a\r\nContent-Length: 10\r\n\r\n")
        note()
        exchange.connection.data_received(b"hello")
        note()
        exchange.connection.data_received(b"world")
        note()
        exchange.reply(OK + b"Content-Length: 5\r\n\r\nhe")
        note()
        exchange.reply(b"llo")
        note()
        exchange.connection.data_received(b"GET /y HTTP/1.1\r\n")
        note()
        return steps

    assert run(tmp_path, scenario) == [
        (HEAD_S, 30.0),  # Before the head.
        (HEAD_S - 1, 29.0),  # An incomplete first head: the deadline does not move.
        (IDLE_S, None),  # The head was forwarded: the caller owes the body.
        (IDLE_S - 1 + 0.05, None),  # A part of the body: 5 bytes, at 100 bytes per second.
        (None, UPSTREAM_S),  # The end of the body: the service owes the reply.
        (None, UPSTREAM_S),  # A part of the reply.
        (IDLE_S, 30.0),  # The end of the reply: both connections are idle.
        (HEAD_S, 29.0),  # An incomplete second head.
    ]


def test_a_head_that_arrives_byte_by_byte_has_one_deadline(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[float | None]:
        left = []
        exchange.send()
        exchange.reply()
        for part in (b"G", b"E", b"T"):
            exchange.world.advance(1)
            exchange.connection.data_received(part)
            left.append(exchange.caller_left_s)
        return left

    assert run(tmp_path, scenario) == [HEAD_S, HEAD_S - 1, HEAD_S - 2]


def test_a_body_that_the_decision_needs_has_the_idle_timeout_from_its_head_on(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[float | None]:
        left = []
        body = b'{"query": "{ viewer { login } }"}'
        exchange.send("POST /graphql", b"Content-Length: %d\r\n" % len(body))
        left.append(exchange.caller_left_s)
        exchange.world.advance(1)
        exchange.connection.data_received(body[:5])
        left.append(exchange.caller_left_s)
        exchange.connection.data_received(body[5:])
        left.append(exchange.caller_left_s)
        return left

    assert run(tmp_path, scenario) == [IDLE_S, IDLE_S - 1, None]


@pytest.mark.parametrize(
    ("sent", "status", "calls"),
    [
        (b"", 0, ["close"]),
        (b"GET /", 408, ["eof"]),
        (b"PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc", 408, ["close"]),
        (b"POST /graphql HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc", 408, ["close"]),
        (b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", 0, []),
    ],
)
def test_a_late_caller_is_refused_with_408_or_closed(
    tmp_path: Path, sent: bytes, status: int, calls: list[str]
) -> None:
    async def scenario(exchange: Exchange) -> tuple[int, list[str], float | None]:
        if sent:
            exchange.connection.data_received(sent)
        exchange.connection.on_deadline()
        await exchange.settle()
        return exchange.status, exchange.socket.take_calls(), exchange.caller_left_s

    left_s = {"eof": LINGER_TIMEOUT_S, "close": FLUSH_TIMEOUT_S}.get(calls[0]) if calls else None
    assert run(tmp_path, scenario) == (status, calls, left_s)


def test_a_caller_that_does_not_read_the_reply_in_time_is_reset(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[str]:
        exchange.send()
        exchange.reply(OK + b"Content-Length: 5\r\n\r\nhe")
        exchange.connection.on_deadline()
        return exchange.socket.take_calls()

    assert run(tmp_path, scenario) == ["abort"]


def test_a_caller_whose_body_stays_incomplete_after_a_reply_of_the_gateway_gets_no_second_reply(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> tuple[int, int, list[str]]:
        exchange.connection.data_received(b"GET /rate_limit HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc")
        await exchange.settle()
        status, count = exchange.status, exchange.socket.written.count(b"HTTP/1.1 ")
        exchange.connection.on_deadline()
        await exchange.settle()
        return status, exchange.socket.written.count(b"HTTP/1.1 ") - count, exchange.socket.take_calls()

    assert run(tmp_path, scenario) == (200, 0, ["close"])


def test_a_caller_that_does_not_close_after_the_last_reply_is_closed(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> tuple[list[str], list[str], int]:
        exchange.connection.data_received(b"\x16")
        await exchange.settle()
        first = exchange.socket.take_calls()
        assert exchange.status == 400
        exchange.connection.data_received(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        exchange.connection.on_deadline()
        return first, exchange.socket.take_calls(), exchange.status

    assert run(tmp_path, scenario) == (["eof"], ["close"], 0)


def test_bytes_after_an_invalid_head_are_not_read(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.connection.data_received(b"\x16")
        exchange.send()
        exchange.connection.data_received(b"\x16")
        await exchange.settle()
        data = exchange.socket.take()
        return [data.count(b"HTTP/1.1 400"), data.count(b"HTTP/1.1 "), exchange.upstream_socket.take()]

    assert run(tmp_path, scenario) == [1, 1, b""]


# -- slow callers and slow services --------------------------------------------------------------------------------


def test_a_caller_that_does_not_read_gets_the_deadline_until_it_reads(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        seen: list[Any] = []
        exchange.send()
        exchange.reply(OK + b"Content-Length: 5\r\n\r\nhe")
        for change in (exchange.connection.pause_writing, exchange.connection.resume_writing):
            change()
            seen.append((exchange.upstream_socket.take_calls(), exchange.caller_left_s, exchange.service_left_s))
            exchange.world.advance(1)
        return seen

    assert run(tmp_path, scenario) == [(["pause"], IDLE_S, None), (["resume"], None, UPSTREAM_S)]


def test_a_service_that_does_not_read_pauses_the_caller_until_it_reads(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        seen: list[Any] = []
        exchange.send("PUT /x", b"Content-Length: 9\r\n")
        for change in (exchange.upstream.pause_writing, exchange.upstream.resume_writing):
            change()
            seen.append((exchange.socket.take_calls(), exchange.caller_left_s, exchange.service_left_s))
            exchange.world.advance(1)
        exchange.connection.data_received(b"123456789")
        exchange.upstream.pause_writing()
        exchange.world.advance(1)
        exchange.upstream.resume_writing()
        seen.append((exchange.socket.take_calls(), exchange.caller_left_s, exchange.service_left_s))
        return seen

    assert run(tmp_path, scenario) == [
        (["pause"], None, UPSTREAM_S),
        (["resume"], IDLE_S, None),
        (["pause", "resume"], None, UPSTREAM_S),
    ]


def test_time_in_which_the_caller_is_slow_is_not_charged(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[float]:
        works = []
        exchange.send("PUT /x", b"Content-Length: 9\r\n")
        (admitted,) = exchange.service.running_requests.values()

        def note() -> None:
            exchange.world.advance(1)
            works.append(round(admitted.compute_work_ms(exchange.world.monotonic_s()) / 1_000, 3))

        note()  # The caller owes the body.
        exchange.connection.data_received(b"123456789")
        note()
        exchange.reply(OK + b"Content-Length: 5\r\n\r\nhe")
        exchange.connection.pause_writing()
        note()
        exchange.connection.resume_writing()
        note()
        return works

    assert run(tmp_path, scenario) == [0, 1, 1, 1]


@pytest.mark.parametrize(("size", "calls"), [(PIECE_BYTES, []), (PIECE_BYTES + 1, ["pause"])])
def test_bytes_after_the_current_request_are_buffered_up_to_a_maximum(
    tmp_path: Path, size: int, calls: list[str]
) -> None:
    async def scenario(exchange: Exchange) -> list[list[str]]:
        exchange.send()
        exchange.connection.data_received(b"G" * size)
        paused = exchange.socket.take_calls()
        exchange.reply()
        await exchange.settle()
        return [paused, exchange.socket.take_calls()[:1]]

    assert run(tmp_path, scenario) == [calls, ["resume"] if calls else []]


@pytest.mark.parametrize(("size", "calls"), [(MAX_BUFFERED_BYTES, []), (MAX_BUFFERED_BYTES + 1, ["pause"])])
def test_a_body_without_a_connection_to_the_service_is_buffered_up_to_a_maximum(
    tmp_path: Path, size: int, calls: list[str]
) -> None:
    async def scenario(exchange: Exchange) -> tuple[list[str], list[str], int]:
        busy = exchange.occupy_connection()
        exchange.send("PUT /x", b"Content-Length: 99999999\r\n")
        for start in range(0, size, 10_000):
            exchange.connection.data_received(b"x" * min(10_000, size - start))
        paused = exchange.socket.take_calls()
        exchange.environment.pool.return_connection(busy)
        forwarded = exchange.upstream_socket.take().partition(b"\r\n\r\n")[2]
        return paused, exchange.socket.take_calls(), len(forwarded)

    assert run(tmp_path, scenario) == (calls, ["resume"] if calls else [], size)


# -- callers that disconnect ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(("is_sent", "charged"), [(True, 1), (False, 0)])
def test_a_caller_that_disconnects_frees_its_slot_and_is_refunded_unless_the_service_has_the_request(
    tmp_path: Path, is_sent: bool, charged: int, is_local: bool
) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        busy = None if is_sent else exchange.occupy_connection()
        exchange.send()
        await wait_on_loop_until(lambda: exchange.service.running_requests, what="the request is admitted")
        await exchange.settle()
        before = exchange.count_running()
        exchange.connection.connection_lost(None)
        await wait_on_loop_until(lambda: not exchange.count_running()[1], what="the slot is freed")
        if busy is not None:
            exchange.environment.pool.return_connection(busy)
        sent = bool(exchange.upstream_socket.take())
        calls = exchange.upstream_socket.take_calls()
        return [before, exchange.count_running(), sent, calls, len(exchange.closed), exchange.service.running_requests]

    aborted = ["abort"] if is_sent else []
    assert run(tmp_path, scenario, is_local=is_local) == [(1, 1), (charged, 0), is_sent, aborted, 1, {}]


def test_a_caller_that_disconnects_before_a_remote_decision_is_refunded(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send()
        exchange.connection.connection_lost(None)
        await exchange.service.close()  # Waits for its tasks, also that of the decision.
        await wait_on_loop_until(lambda: not exchange.count_running()[1], what="the slot is freed")
        admitted = sum(row.total for row in exchange.service.activity.list_rows())
        return [admitted, exchange.count_running(), exchange.upstream_socket.take(), exchange.socket.take()]

    assert run(tmp_path, scenario, is_local=False) == [1, (0, 0), b"", b""]


def test_an_idle_caller_that_disconnects_changes_nothing(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.send()
        exchange.reply()
        exchange.connection.connection_lost(None)
        return [exchange.count_running(), exchange.opened == exchange.closed, exchange.upstream_socket.take_calls()]

    assert run(tmp_path, scenario) == [(1, 0), True, []]


@pytest.mark.parametrize("sent", [b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16"])
def test_nothing_is_written_to_a_caller_that_has_disconnected(tmp_path: Path, sent: bytes) -> None:
    async def scenario(exchange: Exchange) -> tuple[bytes, list[str], int]:
        exchange.connection.data_received(sent)
        exchange.connection.connection_lost(None)
        await exchange.settle()
        return exchange.socket.take(), exchange.socket.take_calls(), sum(exchange.environment.counts.replies.values())

    assert run(tmp_path, scenario) == (b"", [], 0)


# -- the socket of a caller ----------------------------------------------------------------------------------------


def test_the_socket_of_a_caller_is_paused_and_resumed_once_and_not_after_its_end() -> None:
    socket = Socket()
    transport = CallerTransport(socket, lambda: 1.0)
    for action in (transport.resume_reading, transport.pause_reading, transport.pause_reading):
        action()
    for _ in range(2):
        transport.resume_reading()
    assert socket.take_calls() == ["pause", "resume"]

    transport.pause_reading()
    transport.is_closed = True
    for action in (transport.resume_reading, transport.pause_reading):
        action()
    transport.write(b"late")
    transport.linger()
    assert (socket.take_calls(), socket.take(), transport.deadline_s) == (["pause"], b"", 1.0 + LINGER_TIMEOUT_S)


@pytest.mark.parametrize(("tls", "scheme"), [(None, b"http"), (object(), b"https")])
@pytest.mark.parametrize(("address", "peer"), [(("192.0.2.7", 1), "192.0.2.7"), ("", ""), (None, "")])
def test_the_socket_of_a_caller_has_an_address_and_a_scheme(address: Any, peer: str, tls: Any, scheme: bytes) -> None:
    transport = CallerTransport(asyncio.Transport({"peername": address, "sslcontext": tls}), lambda: 0.0)

    assert (transport.peer, transport.scheme, transport.deadline_s) == (peer, scheme, 0.0)


@pytest.mark.parametrize("is_bare", [False, True])
def test_a_slow_caller_without_a_counted_request_pauses_only_its_reply(tmp_path: Path, is_bare: bool) -> None:
    async def scenario(exchange: Exchange) -> list[list[str]]:
        calls = []
        for _ in range(2):
            exchange.connection.pause_writing()
            exchange.connection.resume_writing()
            calls.append(exchange.upstream_socket.take_calls())
            exchange.send("GET /healthz" if not is_bare else "GET /x")
        return calls

    assert run(tmp_path, scenario, is_bare=is_bare) == [[], ["pause", "resume"] if is_bare else []]


REFUSED = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"


def test_pipelined_requests_are_answered_some_in_each_iteration_of_the_loop(tmp_path: Path) -> None:
    count = 5_000

    async def scenario(exchange: Exchange) -> list[int]:
        exchange.connection.data_received(REFUSED * count)
        answered, counts = 0, []
        while answered < count:
            replies = exchange.socket.take().count(b"HTTP/1.1 403")
            counts.append(replies)
            answered += replies
            assert len(counts) < 2 * count
            await asyncio.sleep(0)
        return counts

    counts = run(tmp_path, scenario, rules=REFUSE_ALL)

    assert sum(counts) == count
    assert max(counts) <= REQUESTS_PER_STEP


def test_no_further_request_begins_while_the_caller_does_not_read_its_replies(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[Any]:
        exchange.connection.pause_writing()
        exchange.connection.data_received(REFUSED * 3)
        await exchange.settle()
        seen: list[Any] = [exchange.socket.take(), exchange.socket.take_calls()]
        exchange.connection.resume_writing()
        await exchange.settle()
        return [*seen, exchange.socket.take().count(b"HTTP/1.1 403"), exchange.socket.take_calls()]

    assert run(tmp_path, scenario, rules=REFUSE_ALL) == [b"", ["pause"], 3, ["resume"]]


def test_a_large_body_reaches_the_service_in_pieces_and_order(tmp_path: Path) -> None:
    body = bytes(range(256)) * 1_000

    async def scenario(exchange: Exchange) -> bytes:
        exchange.send("PUT /x", b"Content-Length: %d\r\n" % len(body))
        exchange.connection.data_received(body)
        for _ in range(50):
            await asyncio.sleep(0)
        return exchange.upstream_socket.take()

    assert run(tmp_path, scenario).endswith(b"\r\n\r\n" + body)
