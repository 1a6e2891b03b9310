"""A hostile or broken service: its caller gets a clear error, and neither the gateway nor other callers are affected."""

import asyncio
import os
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.kit.loop_holds import measure_holds
from tests.limits.decision_services import count_slots, count_used
from tests.limits.gateway.hostile_service import (
    HELLO,
    Attack,
    HostileService,
    ServiceConnection,
    run_hostile_service,
    send_and_close,
    send_and_reset,
    send_and_wait,
    send_endlessly,
    send_only,
)
from tests.limits.gateway.running_gateway import RunningGateway, run_gateway
from tests.limits.gateway.test_gateway import ADA_SENDS
from tests.waiting import wait_on_loop_until

T = TypeVar("T")
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
FIVE = OK + b"Content-Length: 5\r\n"
MAX_READ_BYTES = 16 << 20
"""What a service can send before the gateway closes the connection: most of it is in buffers of the kernel."""


def drip(first: bytes, part: bytes) -> Attack:
    """Return an attack that sends `first`, and then one byte of `part` every 20 ms."""

    def attack(connection: ServiceConnection) -> None:
        connection.send(first)
        for byte in part:
            time.sleep(0.02)
            connection.send(bytes([byte]))

    return attack


def run_with(folder: Path, scenario: Callable[[RunningGateway, HostileService], Awaitable[T]], gateway: str = "") -> T:
    """Run a scenario with a hostile service, on asyncio's loop, whose callbacks can be measured."""

    async def run(service: HostileService) -> T:
        upstream = f"http://127.0.0.1:{service.port}"
        async with run_gateway(folder, upstream=upstream, gateway=gateway) as running:
            return await scenario(running, service)

    with run_hostile_service() as service:
        return asyncio.run(run(service))


MALFORMED = "The service's reply is malformed: "
LOST = "The service closed the connection before it replied."
LATE = "The service did not reply in time."
FAILED: dict[str, tuple[Attack, int, str]] = {
    "100 MiB of headers": (send_endlessly(OK, b"X-Name: " + b"v" * 100 + b"\r\n"), 502, MALFORMED + "its head is longer"),
    "an endless header line": (send_endlessly(OK + b"X: ", b"y" * 1_000), 502, MALFORMED + "its head is longer"),
    "an endless status line": (send_endlessly(b"HTTP/1.1 200 ", b"y" * 1_000), 502, MALFORMED + "its head is longer"),
    "10,000 headers": (
        send_and_wait(FIVE + b"".join(b"X-%d: 1\r\n" % n for n in range(10_000)) + b"\r\nhello"),
        502, MALFORMED + "it has more than 1000 headers"),
    "60,000 short headers": (send_and_wait(FIVE + b"a:\r\n" * 60_000 + b"\r\n"), 502, MALFORMED + "it has more than"),
    "120,000 options": (
        send_and_wait(FIVE + b"Connection: " + b"a," * 120_000 + b"\r\n\r\nhello"),
        502, MALFORMED + "its Connection headers have more than 100 options"),
    "endless 1xx": (send_endlessly(b"", b"HTTP/1.1 100 C\r\n\r\n"), 502, MALFORMED + "it has more than 64 informational"),
    "1xx with many headers": (
        send_endlessly(b"", b"HTTP/1.1 103 C\r\n" + b"a:\r\n" * 900 + b"\r\n"), 502, MALFORMED + "it has more than 64"),
    "a negative length": (send_and_wait(OK + b"Content-Length: -5\r\n\r\n"), 502, MALFORMED + "its Content-Length"),
    "an absurd length": (send_and_wait(OK + b"Content-Length: 9" + b"9" * 40 + b"\r\n\r\n"), 502, MALFORMED),
    "two lengths": (send_and_wait(FIVE + b"Content-Length: 6\r\n\r\nhello!"), 502, MALFORMED + "its Content-Length"),
    "a list of lengths": (send_and_wait(OK + b"Content-Length: 5, 5\r\n\r\nhello"), 502, MALFORMED),
    "length and chunks": (send_and_wait(FIVE + CHUNKED[17:] + b"0\r\n\r\n"), 502, MALFORMED + "it has both"),
    "a chunk size that is too long": (send_and_wait(CHUNKED + b"f" * 40 + b"\r\n"), 502, MALFORMED + "the size"),
    "an endless chunk extension": (send_endlessly(CHUNKED + b"5;", b"x"), 502, MALFORMED + "the line of a chunk size"),
    "a zero byte": (send_and_wait(FIVE + b"X: a\0b\r\n\r\nhello"), 502, MALFORMED + "one of its headers"),
    "a LF in a header": (send_and_wait(FIVE + b"X: a\nY: b\r\n\r\nhello"), 502, MALFORMED + "one of its headers"),
    "a CR in a header": (send_and_wait(FIVE + b"X: a\rb\r\n\r\nhello"), 502, MALFORMED + "one of its headers"),
    "a space in a name": (send_and_wait(FIVE + b"X Y: a\r\n\r\nhello"), 502, MALFORMED + "one of its headers"),
    "a CR in the status line": (send_and_wait(b"HTTP/1.1 200 O\rK\r\n\r\n"), 502, MALFORMED + "it does not begin"),
    "no HTTP": (send_and_wait(b"220 mail ESMTP\r\n\r\n"), 502, MALFORMED + "it does not begin"),
    "HTTP/2": (send_and_wait(b"HTTP/2 200\r\n\r\n"), 502, MALFORMED + "it does not begin"),
    "an upgrade nobody requested": (
        send_and_wait(b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"),
        502, MALFORMED + "it switches the protocol"),
    "RST before the reply": (send_and_reset(), 502, LOST),
    "RST in the head": (send_and_reset(FIVE), 502, LOST),
    "the end in the head": (send_and_close(FIVE), 502, LOST),
    "a slow head": (drip(b"", FIVE + b"X-Long: " + b"x" * 200 + b"\r\n\r\nhello"), 504, LATE),
    "a slow head after 1xx": (drip(b"HTTP/1.1 103 E\r\n\r\n", FIVE + b"X-Long: " + b"x" * 200 + b"\r\n\r\nhello"), 504, LATE),
    "silence": (send_and_wait(), 504, LATE),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILED)
def test_a_hostile_reply_is_a_clear_error_for_its_caller_and_harms_nobody_else(tmp_path: Path, name: str) -> None:
    attack, status, message = FAILED[name]
    descriptors = len(os.listdir("/proc/self/fd"))

    async def scenario(running: RunningGateway, service: HostileService) -> None:
        service.attack = attack
        tasks = len(asyncio.all_tasks())
        caller, other = await running.connect(), await running.connect()
        with measure_holds() as holds:
            asking = asyncio.create_task(caller.request("/attack", ADA_SENDS))
            honest = [(await other.request("/honest", ADA_SENDS)).body for _ in range(5)]
            reply = await asking
        honest += [(await caller.request("/honest", ADA_SENDS)).body]

        assert (reply.status, message in reply.json()["message"], honest) == (status, True, [b"hello"] * 6)
        assert reply.headers["x-ratelimit-resource"] == "core"
        holds.require_short(name)
        assert (count_slots(running.decision_service), count_used(running.decision_service, "core")) == (0, 6)
        attacked = [connection for connection in service.connections if connection.has_attacked]
        assert [connection.sent_bytes > MAX_READ_BYTES for connection in attacked] == [False]
        await wait_on_loop_until(lambda: attacked[0].is_ended, what="the connection is closed, not reused")
        await wait_on_loop_until(lambda: len(asyncio.all_tasks()) == tasks, what="all tasks have ended")

    run_with(tmp_path, scenario, 'upstream_timeout = "300ms"')

    assert len(os.listdir("/proc/self/fd")) <= descriptors


BROKEN: dict[str, Attack] = {
    "the end within the length": send_and_close(OK + b"Content-Length: 50\r\n\r\nhello"),
    "RST within the length": send_and_reset(OK + b"Content-Length: 50\r\n\r\nhello"),
    "RST of a reply until the end": send_and_reset(OK + b"\r\nhello"),
    "the end within a chunk": send_and_close(CHUNKED + b"fffffffffffffff\r\nhello"),
    "the end before the last chunk": send_and_close(CHUNKED + b"5\r\nhello\r\n"),
    "a chunk longer than its size": send_and_wait(CHUNKED + b"5\r\nhello!\r\n0\r\n\r\n"),
    "endless trailers": send_endlessly(CHUNKED + b"5\r\nhello\r\n0\r\n", b"X-T: 1\r\n"),
    "an endless trailer": send_endlessly(CHUNKED + b"5\r\nhello\r\n0\r\n", b"x"),
    "slow trailers": drip(CHUNKED + b"5\r\nhello\r\n0\r\n", b"X-T: 1\r\n" * 30 + b"\r\n"),
    "a slow chunk extension": drip(CHUNKED + b"5\r\nhello\r\n5;", b"x" * 200 + b"\r\nhello\r\n0\r\n\r\n"),
    "a stop within the length": send_and_wait(OK + b"Content-Length: 50\r\n\r\nhello"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_incomplete_reply_never_seems_complete_to_its_caller(tmp_path: Path, name: str) -> None:
    async def scenario(running: RunningGateway, service: HostileService) -> None:
        service.attack = BROKEN[name]
        caller = await running.connect()
        await caller.send(f"GET /attack HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\nConnection: close\r\n\r\n".encode())
        received = b""
        with measure_holds() as holds:
            try:
                async with asyncio.timeout(20):
                    while data := await caller.reader.read(65_536):
                        received += data
                was_reset = False
            except ConnectionResetError:
                was_reset = True
        honest = await running.request("/honest", ADA_SENDS)

        has_error = received.startswith(b"HTTP/1.1 502 ")
        assert (was_reset or has_error, received.endswith(b"0\r\n\r\n"), honest.body) == (True, False, b"hello")
        holds.require_short(name)
        assert count_slots(running.decision_service) == 0
        (attacked,) = [connection for connection in service.connections if connection.has_attacked]
        await wait_on_loop_until(lambda: attacked.is_ended, what="the connection is closed, not reused")

    run_with(tmp_path, scenario, 'upstream_timeout = "300ms"')


FRAMED: dict[str, tuple[Attack, str, int, bytes]] = {
    "two equal lengths": (send_only(FIVE + b"Content-Length: 5\r\n\r\nhello"), "GET", 200, b"hello"),
    "Connection: content-length": (send_only(FIVE + b"Connection: Content-Length\r\n\r\nhello"), "GET", 200, b"hello"),
    "bytes after the reply": (send_and_wait(FIVE + b"\r\nhello" + HELLO), "GET", 200, b"hello"),
    "bytes after the last chunk": (send_and_wait(CHUNKED + b"5\r\nhello\r\n0\r\n\r\n" + HELLO), "GET", 200, b"hello"),
    "a body of HEAD": (send_and_wait(FIVE + b"\r\nhello"), "HEAD", 200, b""),
    "a body of 204": (send_and_wait(b"HTTP/1.1 204 N\r\nContent-Length: 5\r\n\r\nhello"), "GET", 204, b""),
    "chunks of 204": (send_and_wait(b"HTTP/1.1 204 N\r\n" + CHUNKED[17:] + b"5\r\nhello\r\n0\r\n\r\n"), "GET", 204, b""),
    "a body of 304": (send_and_wait(b"HTTP/1.1 304 N\r\nContent-Length: 5\r\n\r\nhello"), "GET", 304, b""),
    "chunks of HTTP/1.0": (
        send_and_wait(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + CHUNKED[17:] + b"5\r\nhello\r\n0\r\n\r\n"),
        "GET", 200, b"hello"),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMED)
def test_the_caller_of_an_ambiguous_reply_knows_where_it_ends(tmp_path: Path, name: str) -> None:
    attack, method, status, body = FRAMED[name]

    async def scenario(running: RunningGateway, service: HostileService) -> None:
        service.attack = attack
        caller = await running.connect()
        await caller.send(f"{method} /attack HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\n\r\n".encode())
        reply = await caller.read_reply(is_head=method == "HEAD")
        honest = await caller.request("/honest", ADA_SENDS)

        assert (reply.status, reply.body, honest.body) == (status, body, b"hello")
        lengths = ("content-length" in reply.headers, "transfer-encoding" in reply.headers)
        assert lengths != (True, True)
        if status == 204:
            assert lengths == (False, False)
        elif body:
            assert lengths != (False, False)
        if "equal" not in name and "Connection" not in name:
            (attacked,) = [connection for connection in service.connections if connection.has_attacked]
            await wait_on_loop_until(lambda: attacked.is_ended, what="the connection is closed, not reused")
        assert count_slots(running.decision_service) == 0

    run_with(tmp_path, scenario)


@pytest.mark.parametrize("part", [b"1\r\na\r\n", b"1;" + b"x" * 240 + b"\r\na\r\n"])
def test_tiny_chunks_of_a_service_do_not_hold_the_loop(tmp_path: Path, part: bytes) -> None:
    count = 2_000_000 // len(part)

    async def scenario(running: RunningGateway, service: HostileService) -> None:
        service.attack = send_and_wait(CHUNKED + part * count + b"0\r\n\r\n")
        with measure_holds() as holds:
            reply = await running.request("/attack")

        assert reply.body == b"a" * count
        holds.require_short("a reply in tiny chunks")

    run_with(tmp_path, scenario)


def test_bytes_that_a_service_sends_before_a_request_are_never_its_reply(tmp_path: Path) -> None:
    may_send, has_sent = threading.Event(), threading.Event()

    def send_two_replies(connection: ServiceConnection) -> None:
        connection.send(HELLO)
        may_send.wait(30)
        connection.send(OK + b"Content-Length: 6\r\n\r\nsecret")
        has_sent.set()

    async def scenario(running: RunningGateway, service: HostileService) -> tuple[bytes, bytes]:
        service.attack = send_two_replies
        first = await running.request("/attack")
        with socket.create_connection(("127.0.0.1", running.gateway.port)) as other:
            await wait_on_loop_until(
                lambda: len(running.gateway.connections) == 2, what="the other caller is connected"
            )
            # The loop stands still: it sees the other caller's request and the unrequested reply at once, in this order.
            other.sendall(b"GET /honest HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            may_send.set()
            has_sent.wait(30)
            other.setblocking(False)
            received = b""
            while data := await asyncio.get_running_loop().sock_recv(other, 65_536):
                received += data
        return first.body, received[-6:]

    assert run_with(tmp_path, scenario) == (b"hello", b"\nhello")


@pytest.mark.parametrize("attack", [send_only(HELLO), send_and_reset(), send_and_reset(HELLO), send_and_close()])
def test_connections_that_fail_before_a_request_are_not_leaked(tmp_path: Path, attack: Attack) -> None:
    async def scenario(running: RunningGateway, service: HostileService) -> tuple[list[int], bytes, int]:
        service.on_accept = attack
        statuses = [(await running.request("/attack", ADA_SENDS)).status for _ in range(30)]
        service.on_accept = lambda _connection: None
        honest = await running.request("/honest", ADA_SENDS)
        return (
            [status for status in statuses if status not in (200, 502)],
            honest.body,
            count_slots(running.decision_service),
        )

    gateway = 'upstream_connections_most = 1\nupstream_timeout = "2s"'
    assert run_with(tmp_path, scenario, gateway) == ([], b"hello", 0)


def test_all_requests_that_wait_for_a_hostile_service_fail_without_a_long_hold(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, service: HostileService) -> tuple[list[int], int]:
        service.attack = send_and_wait(OK + b"a:\r\n" * 60_000 + b"\r\n")
        callers = [await running.connect() for _ in range(60)]
        with measure_holds() as holds:
            replies = await asyncio.gather(*(caller.request("/attack", ADA_SENDS) for caller in callers))
        holds.require_short("60 replies with 60,000 headers")
        return [reply.status for reply in replies], count_slots(running.decision_service)

    assert run_with(tmp_path, scenario, "upstream_connections_most = 4") == ([502] * 60, 0)


def test_a_header_that_only_the_gateway_sets_for_callers_is_never_that_of_the_service(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway, service: HostileService) -> list[str]:
        service.attack = send_and_wait(
            FIVE + b"Connection: set-cookie, x-ratelimit-limit, date\r\nSet-Cookie: a=b\r\nX-RateLimit-Limit: 1\r\n"
            b"X-Wharf-Secret: 1\r\nKeep-Alive: 1\r\nUpgrade: h2c\r\nTrailer: x\r\n\r\nhello"
        )
        reply = await running.request("/attack", ADA_SENDS)
        assert reply.headers["x-ratelimit-limit"] == "5000"
        return sorted(name for name in reply.headers if re.match("set-cookie|x-wharf|keep-alive|upgrade|trailer", name))

    assert run_with(tmp_path, scenario) == []
