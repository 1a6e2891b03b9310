"""Hostile callers: slow, endless and idle ones cost the gateway a limited amount, and no other caller notices."""

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest

from tests.attempts import limited_cpu, require_cpu
from tests.bounded_work.measured_loop import run_measured
from tests.kit.loop_holds import MAX_HOLD_S, measure_holds
from tests.limits.decision_services import count_slots, count_used
from tests.limits.gateway.exchange import (
    IDLE_S,
    OK,
    REFUSE_ALL,
    Exchange,
    Socket,
    run,
)
from tests.limits.gateway.running_gateway import (
    ReceivedRequest,
    RunningGateway,
    find_statuses,
    run_gateway,
    run_scenario,
)
from tests.limits.gateway.test_gateway import ADA_SENDS
from tests.limits.gateway.test_requests_and_replies import Caller, Service
from tests.limits.gateway.test_tls import make_certificates
from tests.waiting import wait_on_loop_until
from wharf.limits.gateway.caller import collected_bodies
from wharf.limits.gateway.caller.connection import CallerConnection
from wharf.limits.gateway.caller.transport import FLUSH_TIMEOUT_S
from wharf.limits.gateway.proxied_request import MIN_PART_BYTES, add_part
from wharf.limits.gateway.upstream import UpstreamConnection

START = f"HTTP/1.1\r\nHost: a\r\n{ADA_SENDS}\r\n".encode()


# -- slow and endless bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("framing", "rate", "statuses"),
    [
        (b"Content-Length: 100000", 1_000, [408]),
        (b"Transfer-Encoding: chunked", 1_000, [408]),
        (b"Content-Length: 100000", 0, []),
    ],
)
def test_a_body_slower_than_the_least_rate_gets_408(
    tmp_path: Path, framing: bytes, rate: int, statuses: list[int]
) -> None:
    async def scenario(running: RunningGateway) -> tuple[list[int], int]:
        running.service.reads_bodies = False

        async def read_until_disconnect(
            _request: ReceivedRequest, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter
        ) -> None:
            await reader.read()

        running.service.handler = read_until_disconnect
        caller = await running.connect()
        await caller.send(b"PUT /x " + START + framing + b"\r\n\r\n")
        part = b"x" if b"Length" in framing else b"1\r\nx\r\n"

        async def send_slowly() -> None:
            for _ in range(75):
                await caller.send(part)
                await asyncio.sleep(0.02)

        async def read_reply() -> bytes:
            received = b""
            while b"\r\n\r\n" not in received and (data := await caller.reader.read(65_536)):
                received += data
            return received

        done, pending = await asyncio.wait(
            [asyncio.ensure_future(send_slowly()), asyncio.ensure_future(read_reply())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        received = b"".join([data for task in done if (data := task.result()) is not None])
        for task in pending:
            task.cancel()
        caller.close()
        await wait_on_loop_until(lambda: not count_slots(running.decision_service), what="the slot is freed")
        return find_statuses(received), count_used(running.decision_service, "core")

    gateway = f'idle_timeout = "300ms"\nbody_rate_least = {rate}'
    assert run_scenario(tmp_path, scenario, gateway=gateway) == (statuses, 1)


@pytest.mark.parametrize("sent", [b"", b"x", b"x" * 40])
def test_a_caller_of_100_continue_without_a_body_gets_408_and_frees_its_slot(tmp_path: Path, sent: bytes) -> None:
    async def scenario(running: RunningGateway) -> tuple[list[int], int]:
        caller = await running.connect()
        await caller.send(b"PUT /x " + START + b"Expect: 100-continue\r\nContent-Length: 50\r\n\r\n")
        await caller.reader.readuntil(b"\r\n\r\n")
        await caller.send(sent)
        return find_statuses(await caller.read_until_close()), count_slots(running.decision_service)

    assert run_scenario(tmp_path, scenario, gateway='idle_timeout = "300ms"') == ([408], 0)


@pytest.mark.parametrize("end", [b"0\r\n" + b"X-T: 1\r\n" * 2_000, b"0\r\nX-T: " + b"x" * 9_000, b"1;" + b"x" * 9_000])
def test_endless_trailers_and_extensions_of_a_caller_get_400(tmp_path: Path, end: bytes) -> None:
    async def scenario(running: RunningGateway) -> tuple[list[int], int]:
        caller = await running.connect()
        await caller.send(b"PUT /x " + START + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n" + end)
        return find_statuses(await caller.read_until_close()), count_slots(running.decision_service)

    assert run_scenario(tmp_path, scenario) == ([400], 0)


def test_the_stored_parts_of_a_body_are_few_however_small_they_arrive() -> None:
    parts: list[bytes] = []
    for _ in range(4 * MIN_PART_BYTES):
        add_part(parts, b"ab")

    assert (len(parts), sum(map(len, parts))) == (8, 8 * MIN_PART_BYTES)


def test_the_oldest_collected_body_is_refused_when_bodies_need_too_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collected_bodies, "MAX_COLLECTED_BYTES", 1_000_000)
    query = json.dumps({"query": "{ a }", "x": "x" * 300_000}).encode()

    async def scenario(running: RunningGateway) -> tuple[int, str, int, int]:
        callers = [await running.connect() for _ in range(4)]
        for caller in callers:
            await caller.send(b"POST /graphql " + START + b"Content-Length: %d\r\n\r\n" % len(query) + query[:-1])
        reply = await callers[0].read_reply()
        await callers[3].send(query[-1:])
        last = await callers[3].read_reply()
        for caller in callers:
            caller.close()
        collected = running.gateway.environment.collected_bodies
        await wait_on_loop_until(lambda: not collected.total_bytes, what="the bodies of the others are discarded")
        return reply.status, reply.headers["retry-after"], last.status, count_slots(running.decision_service)

    assert run_scenario(tmp_path, scenario) == (503, "1", 200, 0)


BODIES = {
    "comments": "#\n" * 500_000 + "{a}",
    "a text": '{a(b:"' + "x" * 1_000_000 + '")}',
    "many operations": "".join(f"query a{n}{{...f}} " for n in range(900)) + "fragment f on X{" + "a " * 4_000 + "}",
    "many fields": "{" + "a " * 9_900 + "}",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_graphql_query_of_a_mebibyte_does_not_hold_the_loop(tmp_path: Path, name: str) -> None:
    body = json.dumps({"query": BODIES[name]}).encode()

    async def scenario() -> tuple[int, int]:
        async with run_gateway(tmp_path) as running:
            with measure_holds() as holds:
                reply = await running.request("/graphql", ADA_SENDS, method="POST", body=body)
            holds.require_short(name)
            return reply.status, running.gateway.environment.collected_bodies.total_bytes

    status, collected_bytes = asyncio.run(scenario())

    assert (status in (200, 400, 403), collected_bytes) == (True, 0)


TARGETS = {
    "many segments": ("/a" * 4_000, 200),
    "a long id": ("/repos/a/b/issues/" + "1" * 8_000, 200),
    "many slashes": ("/" * 8_000, 400),
    "escaped dots": ("/%2e%2e" * 1_100, 400),
    "batches": ("/a.git/info/lfs/objects/batch" * 280, 200),
    "a graphql query": ("/graphql?query={" + "a," * 3_900 + "}", 200),
    "many readings": ("/A%2fB;c" * 1_000 + ".json", 200),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_long_path_does_not_hold_the_loop(tmp_path: Path, name: str) -> None:
    target, status = TARGETS[name]

    async def scenario() -> int:
        async with run_gateway(tmp_path) as running:
            with measure_holds() as holds:
                reply = await running.request(target, ADA_SENDS)
            holds.require_short(name)
            return reply.status

    assert asyncio.run(scenario()) == status


# -- callers that do not read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [b"", b"Connection: close\r\n"])
def test_a_closed_connection_whose_caller_does_not_read_is_reset_in_the_end(tmp_path: Path, headers: bytes) -> None:
    async def scenario(exchange: Exchange) -> tuple[float | None, list[str], list[str]]:
        exchange.send(headers=headers)
        exchange.reply()
        if not headers:
            exchange.world.advance(IDLE_S)
            exchange.connection.on_deadline()
        left_s, calls = exchange.caller_left_s, exchange.socket.take_calls()
        exchange.connection.on_deadline()
        return left_s, calls, exchange.socket.take_calls()

    assert run(tmp_path, scenario) == (FLUSH_TIMEOUT_S, ["close"], ["abort"])


def test_no_request_begins_after_one_that_closes_the_connection(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> tuple[int, list[str]]:
        one = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        exchange.connection.data_received(one * 3)
        exchange.connection.resume_writing()
        await exchange.settle()
        return exchange.environment.counts.requests, exchange.socket.take_calls()

    assert run(tmp_path, scenario, rules=REFUSE_ALL) == (1, ["close"])


def test_a_caller_that_stops_sending_frees_everything_at_once_though_its_reply_is_not_flushed(tmp_path: Path) -> None:
    async def scenario(exchange: Exchange) -> tuple[list[str], list[str], tuple[int, int], bytes, list[str]]:
        exchange.send()
        exchange.reply(OK + b"Content-Length: 500\r\n\r\nhello")
        exchange.socket.take()
        exchange.connection.eof_received()
        await exchange.settle()
        calls = exchange.socket.take_calls()
        used = exchange.count_running()
        exchange.reply(b"more")
        exchange.connection.on_deadline()
        return calls, exchange.upstream_socket.take_calls(), used, exchange.socket.take(), exchange.socket.take_calls()

    calls, upstream_calls, used, written, later_calls = run(tmp_path, scenario)

    assert (calls, upstream_calls[:1], used, written, later_calls) == (["close"], ["abort"], (1, 0), b"", ["abort"])


def test_an_http_1_0_caller_cannot_mistake_half_a_reply_for_a_complete_one(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> bool:
        has_received = asyncio.Event()

        async def reply_partly(
            _request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            await writer.drain()
            await has_received.wait()
            writer.close()

        running.service.handler = reply_partly
        caller = await running.connect()
        await caller.send(b"GET /x HTTP/1.0\r\n\r\n")
        await caller.reader.readuntil(b"hello")
        has_received.set()
        try:
            while await caller.reader.read(65_536):
                pass
        except ConnectionResetError:
            return True
        return False

    assert run_scenario(tmp_path, scenario)


# -- many callers --------------------------------------------------------------------------------------------------


def test_thousands_of_callers_whose_time_is_over_do_not_hold_the_loop_together(tmp_path: Path) -> None:
    count = 3_000

    async def scenario() -> tuple[float, int, str]:
        async with run_gateway(tmp_path, gateway='head_timeout = "1s"') as running:
            gateway = running.gateway
            sockets = []
            for _ in range(count):
                connection = CallerConnection(gateway.environment, gateway.connections.add, gateway.connections.discard)
                sockets.append(Socket())
                connection.connection_made(sockets[-1])
                connection.data_received(b"GET /")
                connection.transport.deadline_s = 0.001
            loop = asyncio.get_running_loop()
            loop.begin()  # type: ignore[attr-defined]  # A `MeasuredLoop`.
            await wait_on_loop_until(lambda: all(caller.written for caller in sockets), what="all are refused")
            measurement = loop.measurement  # type: ignore[attr-defined]
            for connection in list(gateway.connections):
                connection.connection_lost(None)
            refused = sum(caller.written.startswith(b"HTTP/1.1 408 ") for caller in sockets)
            return measurement.longest_hold_s, refused, measurement.holder

    longest_s, refused, holder = run_measured(scenario)

    assert refused == count
    require_cpu(longest_s, MAX_HOLD_S, holder)


def test_requests_that_wait_for_a_connection_can_all_leave_in_little_time() -> None:
    service = Service(connections_most=0)
    callers = [Caller(UpstreamConnection(service.pool)) for _ in range(20_000)]

    with limited_cpu(1.0, "waiting and leaving"):
        for caller in callers:
            service.pool.start_connecting(caller)
        for caller in reversed(callers):
            service.pool.cancel_wait(caller)


def test_idle_connections_leave_room_for_new_callers(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> tuple[list[int], int]:
        idle = [await running.connect() for _ in range(50)]
        for caller in idle[::2]:
            await caller.send(b"GET / HTTP/1.1\r\nX-Slow: ")
        statuses = [(await running.request("/x", ADA_SENDS)).status for _ in range(100)]
        return [status for status in statuses if status != 200], len(running.gateway.connections)

    assert run_scenario(tmp_path, scenario, gateway="connections_most = 50") == ([], 50)


def test_the_kernel_ends_connections_of_machines_that_vanished(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> list[int]:
        caller = await running.connect()
        await caller.request()
        values = []
        for name in os.listdir("/proc/self/fd"):
            try:
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    if connection.family != socket.AF_INET:
                        continue
                    is_from_caller = connection.getsockname()[1] == running.gateway.port
                    if is_from_caller or connection.getpeername()[1] == running.service.port:
                        values.append(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            except OSError:
                continue
        return values

    assert run_scenario(tmp_path, scenario) == [1, 1, 1]  # Also the listening socket.


def test_a_tls_connection_without_a_handshake_is_closed_after_the_head_timeout(tmp_path: Path) -> None:
    _, server = make_certificates(tmp_path)

    async def scenario(running: RunningGateway) -> tuple[bytes, bool]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with socket.create_connection(("127.0.0.1", running.gateway.port)) as silent:
            silent.setblocking(False)
            async with asyncio.timeout(20):
                received = await loop.sock_recv(silent, 100)
        return received, loop.time() - began_s < 10

    files = f'certificate_file = "{server.certificate_file}"\nkey_file = "{server.key_file}"'
    gateway = f'head_timeout = "1s"\n{files}'
    assert run_scenario(tmp_path, scenario, gateway=gateway) == (b"", True)
