"""Slow callers and services, early replies and many requests: memory stays limited, and every slot is freed."""

import asyncio
from pathlib import Path

import pytest

from tests.limits.decision_services import count_slots
from tests.limits.gateway.exchange import OK, Exchange, run
from tests.limits.gateway.running_gateway import (
    ReceivedRequest,
    RunningGateway,
    find_statuses,
    reply_hello,
    run_scenario,
)
from tests.limits.gateway.test_gateway import ADA_SENDS
from tests.waiting import wait_on_loop_until

MEBIBYTE = 1 << 20


def test_a_caller_that_does_not_read_pauses_the_service(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[bool, int]:
        sent = 0
        is_whole = asyncio.Event()

        async def send_large_reply(
            _request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 * MEBIBYTE))
            for _ in range(64):
                writer.write(b"x" * MEBIBYTE)
                await writer.drain()
                sent += 1
            is_whole.set()

        running.service.handler = send_large_reply
        caller = await running.connect()
        await caller.send(f"GET /big HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\n\r\n".encode())
        before = -1

        def has_stopped_sending() -> bool:
            nonlocal before
            is_paused, before = sent == before and sent > 0, sent
            return is_paused

        await wait_on_loop_until(has_stopped_sending, what="the service waits")
        was_paused = not is_whole.is_set()
        head = await caller.reader.readuntil(b"\r\n\r\n")
        body = await caller.reader.readexactly(64 * MEBIBYTE)
        assert head
        return was_paused, len(body)

    assert run_scenario(tmp_path, scenario) == (True, 64 * MEBIBYTE)


def test_a_caller_that_reads_late_leaves_a_connection_that_others_can_use(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> list[int]:
        exchange.send()
        exchange.reply(OK + b"Content-Length: 5\r\n\r\nhell")
        exchange.connection.pause_writing()  # The caller's socket is full.
        exchange.reply(b"o")
        exchange.connection.resume_writing()
        statuses = [exchange.status]
        calls = exchange.upstream_socket.take_calls()
        exchange.send()
        assert exchange.upstream.request is not None
        assert calls.count("pause") == calls.count("resume") == 1
        exchange.reply()
        return [*statuses, exchange.status]

    assert run(tmp_path, scenario) == [200, 200]


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_large_reply_leaves_a_connection_that_others_can_use(tmp_path: Path, framing: str) -> None:
    part = b"x" * 65_536

    async def scenario(running: RunningGateway) -> tuple[list[int], int]:
        async def send_large_reply(
            request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            if "large" not in request.line:
                await reply_hello(request, reader, writer)
                return
            if framing == "length":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (256 * len(part)) + part * 256)
            else:
                tiny = b"8\r\nabcdefgh\r\n" * 50_000
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + tiny + b"0\r\n\r\n")

        running.service.handler = send_large_reply
        statuses = []
        for _ in range(4):
            caller = await running.connect()
            statuses += [(await caller.request("/large", ADA_SENDS)).status for _ in range(2)]
            statuses.append((await running.request("/small", ADA_SENDS)).status)
        return statuses, running.service.connections

    statuses, _ = run_scenario(tmp_path, scenario, gateway='upstream_timeout = "3s"\nupstream_connections_most = 1')

    assert statuses == [200] * 12


def test_a_service_that_does_not_read_pauses_the_caller(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[bool, int]:
        running.service.reads_bodies = False
        may_read = asyncio.Event()

        async def read_late(
            request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await may_read.wait()
            request.body = await reader.readexactly(64 * MEBIBYTE)
            await reply_hello(request, reader, writer)

        running.service.handler = read_late
        caller = await running.connect()
        caller.writer.write(b"PUT /big HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (64 * MEBIBYTE))
        sending = running.decision_service.world.start_task(_pour(caller.writer), name="pour")
        await wait_on_loop_until(lambda: running.service.requests, what="the service has the head")
        done, _ = await asyncio.wait([sending], timeout=0.3)
        may_read.set()
        await sending
        return not done, (await caller.read_reply()).status

    async def _pour(writer: asyncio.StreamWriter) -> None:
        for _ in range(64):
            writer.write(b"x" * MEBIBYTE)
            await writer.drain()

    assert run_scenario(tmp_path, scenario) == (True, 200)


def test_a_body_that_stops_arriving_gets_408_and_is_charged(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, str]:
        caller = await running.connect()
        await caller.send(f"PUT /x HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\nContent-Length: 9\r\n\r\nabc".encode())
        reply = await caller.read_reply()
        return reply.status, reply.headers["x-ratelimit-used"]

    assert run_scenario(tmp_path, scenario, gateway='upstream_timeout = "100ms"\nidle_timeout = "1s"') == (408, "1")


def test_a_service_that_does_not_read_in_time_is_a_504(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> int:
        running.service.reads_bodies = False

        async def wait_for_disconnect(
            _request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await writer.wait_closed()

        running.service.handler = wait_for_disconnect
        caller = await running.connect()
        caller.writer.write(b"PUT /big HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (64 * MEBIBYTE))
        caller.writer.write(b"x" * (64 * MEBIBYTE))
        return (await caller.read_reply()).status

    assert run_scenario(tmp_path, scenario, gateway='upstream_timeout = "1s"\nidle_timeout = "1s"') == 504


def test_a_reply_sent_before_the_end_of_the_body_reaches_the_caller(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[list[int], int]:
        running.service.reads_bodies = False

        async def reply_early(
            _request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.write(b"HTTP/1.1 422 No\r\nContent-Length: 2\r\n\r\nno")

        running.service.handler = reply_early
        caller = await running.connect()
        await caller.send(
            f"PUT /big HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\nContent-Length: 30000\r\n\r\n".encode() + b"x" * 10
        )
        first = await caller.read_reply()
        await caller.send(b"x" * 29_990)
        running.service.reads_bodies = True
        running.service.handler = reply_hello
        return [first.status, (await caller.request()).status], count_slots(running.decision_service)

    assert run_scenario(tmp_path, scenario) == ([422, 200], 0)


def test_requests_wait_while_all_connections_to_the_service_are_busy(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[list[int], int]:
        callers = [await running.connect() for _ in range(30)]
        replies = await asyncio.gather(*(caller.request() for caller in callers))
        return [reply.status for reply in replies], running.service.connections

    statuses, connections = run_scenario(tmp_path, scenario, gateway="upstream_connections_most = 2")

    assert (statuses, connections) == ([200] * 30, 2)


def test_a_request_is_refunded_if_its_caller_disconnects_while_it_waits_for_a_connection(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, list[str]]:
        may_end = asyncio.Event()

        async def reply_when_allowed(
            request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await may_end.wait()
            await reply_hello(request, reader, writer)

        running.service.handler = reply_when_allowed
        first, second = await running.connect(), await running.connect()
        await first.send(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
        await wait_on_loop_until(lambda: running.service.requests, what="the service has the first request")
        await second.send(f"GET /second HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\n\r\n".encode())
        await wait_on_loop_until(lambda: count_slots(running.decision_service), what="the second is admitted")
        second.close()
        await wait_on_loop_until(lambda: not count_slots(running.decision_service), what="the slot is freed")
        may_end.set()
        await first.read_reply()
        return count_slots(running.decision_service, rule="core"), [
            request.line for request in running.service.requests
        ]

    assert run_scenario(tmp_path, scenario, gateway="upstream_connections_most = 1") == (0, ["GET /first HTTP/1.1"])


def test_requests_that_wait_for_a_connection_fail_if_the_service_stops(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[list[int], int]:
        is_gone = asyncio.Event()

        async def close_connection(
            _request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await is_gone.wait()
            writer.close()

        running.service.handler = close_connection
        callers = [await running.connect() for _ in range(6)]
        tasks = [
            running.decision_service.world.start_task(caller.request("/x", ADA_SENDS), name="ask") for caller in callers
        ]
        await wait_on_loop_until(lambda: count_slots(running.decision_service) == 6, what="all requests are admitted")
        running.service.close()
        is_gone.set()
        return [reply.status for reply in await asyncio.gather(*tasks)], count_slots(running.decision_service)

    assert run_scenario(tmp_path, scenario, gateway="upstream_connections_most = 2") == ([502] * 6, 0)


def test_a_request_waits_for_a_connection_at_most_as_long_as_for_a_reply(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, str]:
        async def accept_upgrade(
            _request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            await reader.read()

        running.service.handler = accept_upgrade
        first, second = await running.connect(), await running.connect()
        await first.send(b"GET /talk HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert (await first.read_reply()).status == 101
        reply = await second.request("/x", ADA_SENDS)
        first.close()
        return reply.status, reply.json()["message"]

    assert run_scenario(tmp_path, scenario, gateway='upstream_connections_most = 1\nupstream_timeout = "1s"') == (
        504,
        "The service did not reply in time: all connections to it were busy.",
    )


def test_a_connection_over_the_limit_is_closed_while_all_others_have_requests(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, bytes, int]:
        may_reply = asyncio.Event()

        async def reply_when_allowed(
            request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await may_reply.wait()
            await reply_hello(request, reader, writer)

        running.service.handler = reply_when_allowed
        first = await running.connect()
        await first.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        await wait_on_loop_until(lambda: running.service.requests, what="the service has the request")
        rejected = await (await running.connect()).read_until_close()
        may_reply.set()
        return (await first.read_reply()).status, rejected, running.gateway.counts.rejected_connections

    assert run_scenario(tmp_path, scenario, gateway="connections_most = 1") == (200, b"", 1)


def test_a_connection_over_the_limit_replaces_the_one_that_is_idle_for_the_longest_time(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[list[int], bytes, int]:
        first, second, third = [await running.connect() for _ in range(3)]
        await wait_on_loop_until(lambda: len(running.gateway.connections) == 3, what="all connections are open")
        statuses = [(await first.request()).status]  # Idle for a shorter time than the second one.
        fourth = await running.connect()
        statuses += [(await caller.request()).status for caller in (fourth, third, first)]
        return statuses, await second.read_until_close(), len(running.gateway.connections)

    assert run_scenario(tmp_path, scenario, gateway="connections_most = 3") == ([200] * 4, b"", 3)


def test_a_malformed_body_never_reaches_the_service_completely(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[list[int], list[bytes]]:
        caller = await running.connect()
        await caller.send(b"PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await wait_on_loop_until(lambda: running.service.requests, what="the service has the head")
        await caller.send(b"what?\r\n")
        statuses = find_statuses(await caller.read_until_close())
        return statuses, [request.body for request in running.service.requests]

    assert run_scenario(tmp_path, scenario) == ([400], [b""])
