"""The parts of the gateway around the service: bodies of requests, connections to the service, marks and tunnels."""

import asyncio
import contextlib
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.limits.decision_services import ADA, AdvancingWorld, count_used
from tests.limits.gateway.running_gateway import ReceivedRequest, Reply, RunningGateway, ScriptedService, run_scenario
from tests.ports import free_ports
from tests.waiting import wait_on_loop_until
from wharf.limits.config.settings import GatewaySettings, Upstream
from wharf.limits.core.rule import ConnectionClass
from wharf.limits.decisions import LocalReply
from wharf.limits.gateway import upstream as upstream_module
from wharf.limits.gateway.caller.replies import build_reply_head
from wharf.limits.gateway.caller.requests import MAX_DRAINED_BYTES, RequestReader
from wharf.limits.gateway.chunks import BadChunk
from wharf.limits.gateway.environment import GatewayCounts
from wharf.limits.gateway.heads import BadHead, HeadReader, ReplyHead, read_request_head
from wharf.limits.gateway.proxied_request import ProxiedRequest
from wharf.limits.gateway.upstream import CHUNK_LINES_PER_STEP, MAX_HEAD_BYTES, UpstreamConnection, UpstreamPool

ADA_SENDS = f"Authorization: token {ADA}"


def make_request(*headers: str, line: str = "POST /x?y=z HTTP/1.1") -> ProxiedRequest:
    data = "".join(f"{text}\r\n" for text in [line, "Host: a", *headers, ""]).encode()
    return ProxiedRequest(read_request_head(data, len(data), max_headers=100), "192.0.2.7")


# -- requests ------------------------------------------------------------------------------------------------------


def test_a_request_has_the_parts_that_a_decision_needs() -> None:
    incoming = make_request(
        "Authorization: Bearer x", "If-None-Match: x", "X-Forwarded-For: a", "Forwarded: for=b"
    ).incoming

    assert (incoming.method, incoming.path, incoming.query, incoming.peer) == ("POST", "/x", "y=z", "192.0.2.7")
    assert (incoming.authorization, incoming.is_conditional, incoming.connection) == (
        "Bearer x",
        True,
        ConnectionClass.PLAIN,
    )
    assert (incoming.forwarded_for, incoming.forwarded) == (("a",), ("for=b",))


def test_a_plain_request_has_empty_parts() -> None:
    incoming = make_request(line="GET /x HTTP/1.1").incoming

    assert (incoming.query, incoming.authorization, incoming.forwarded_for, incoming.forwarded) == ("", None, (), ())


def test_a_websocket_occupies_the_service_as_such() -> None:
    request = make_request("Connection: upgrade", "Upgrade: websocket", line="GET /x HTTP/1.1")

    assert request.incoming.connection is ConnectionClass.WEBSOCKET


@pytest.mark.parametrize(
    ("headers", "line", "is_persistent"),
    [
        ((), "GET / HTTP/1.1", True),
        (("Connection: close",), "GET / HTTP/1.1", False),
        ((), "GET / HTTP/1.0", False),
    ],
)
def test_a_connection_stays_open_unless_the_caller_closes_it(
    headers: tuple[str, ...], line: str, is_persistent: bool
) -> None:
    assert make_request(*headers, line=line).is_persistent is is_persistent


@pytest.mark.parametrize(
    ("headers", "method", "was_used", "may_retry"),
    [
        ((), "GET", True, True),
        ((), "HEAD", True, True),
        ((), "OPTIONS", True, True),
        ((), "GET", False, False),
        ((), "DELETE", True, False),
        (("Content-Length: 1",), "GET", True, False),
        (("Transfer-Encoding: chunked",), "GET", True, False),
    ],
)
def test_only_reads_over_a_used_connection_are_sent_again(
    headers: tuple[str, ...], method: str, was_used: bool, may_retry: bool
) -> None:
    request = make_request(*headers, line=f"{method} / HTTP/1.1")

    request.on_sent(was_used=was_used)

    assert (request.is_sent, request.may_retry) == (True, may_retry)


def test_a_body_with_a_length_ends_after_its_last_byte() -> None:
    request = make_request("Content-Length: 5")

    assert (request.is_body_read, request.body_left) == (False, 5)
    assert (request.feed(b"hel"), request.is_body_read, request.body_left) == ((b"hel", b""), False, 2)
    assert (request.feed(b"lonext"), request.is_body_read) == ((b"lo", b"next"), True)


def test_a_chunked_body_ends_after_its_last_chunk() -> None:
    request = make_request("Transfer-Encoding: chunked")

    assert (request.is_body_read, request.body_left) == (False, 0)
    assert (request.feed(b"3\r\nabc\r\n"), request.is_body_read) == ((b"abc", b""), False)
    assert (request.feed(b"0\r\n\r\nnext"), request.is_body_read) == ((b"", b"next"), True)


def test_a_body_is_collected_until_it_is_complete() -> None:
    request = make_request("Content-Length: 5")
    parts: list[bytes] = []
    results = [request.collect_body(parts, request.feed(data)[0]) for data in (b"he", b"llo")]

    assert (results, request.body_parts, request.unsent_parts) == ([None, b"hello"], None, [b"hello"])


@pytest.mark.parametrize(("size", "is_collected"), [((1 << 20), False), ((1 << 20) + 1, True)])
def test_a_body_is_collected_up_to_a_mebibyte(size: int, is_collected: bool) -> None:
    request = make_request("Content-Length: 9999999")

    assert (request.collect_body([], request.feed(b"x" * size)[0]) is not None) is is_collected


def test_an_empty_body_leaves_nothing_to_send() -> None:
    request = make_request("Transfer-Encoding: chunked")

    assert (request.collect_body([], request.feed(b"0\r\n\r\n")[0]), request.unsent_parts) == (b"", [])


@pytest.mark.parametrize(
    ("header", "sent", "framed"),
    [
        ("Content-Length: 5", b"hello", b"hello"),
        ("Transfer-Encoding: chunked", b"5\r\nhello\r\n", b"5\r\nhello\r\n"),
        ("Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked", b"0\r\n\r\n", b"0\r\n\r\n"),
    ],
)
def test_a_body_is_framed_as_it_was_sent(header: str, sent: bytes, framed: bytes) -> None:
    request = make_request(header)

    assert request.frame_body(request.feed(sent)[0]) == framed


# -- reading requests ----------------------------------------------------------------------------------------------

SETTINGS = GatewaySettings(head_bytes_most=100, headers_most=3)


def make_reader(data: bytes) -> RequestReader:
    reader = RequestReader(SETTINGS, HeadReader(SETTINGS.headers_most))
    reader.buffer = data
    return reader


@pytest.mark.parametrize("before", [b"", b"\r\n", b"\r\n\r\n"])
def test_empty_lines_before_a_request_are_skipped(before: bytes) -> None:
    reader = make_reader(before + b"GET /x HTTP/1.1\r\nHost: a\r\n\r\nbody")
    head = reader.read_head()

    assert head is not None
    assert (head.target, reader.buffer, reader.take_buffer(), reader.buffer) == (b"/x", b"body", b"body", b"")


@pytest.mark.parametrize("data", [b"", b"\r\n", b"G", b"GET / HTTP/1.1\r\nHost: a\r\n", b"x" * 100])
def test_an_incomplete_head_stays_in_the_buffer(data: bytes) -> None:
    assert make_reader(data).read_head() is None


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"x" * 101, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 73 + b"\r\n\r\n", 431),
        (b"\x16\x03", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n", 431),
    ],
)
def test_a_head_that_is_too_long_or_no_head_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(BadHead) as caught:
        make_reader(data).read_head()

    assert caught.value.status == status


def test_a_head_of_the_maximum_length_is_read() -> None:
    data = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 72
    assert len(data) == 100

    assert make_reader(data + b"\r\n\r\n").read_head() is not None


@pytest.mark.parametrize(("size", "is_refused"), [(MAX_DRAINED_BYTES, False), (MAX_DRAINED_BYTES + 1, True)])
def test_an_unneeded_body_is_discarded_up_to_a_maximum(size: int, is_refused: bool) -> None:
    reader, request = make_reader(b"x" * (size - 1)), make_request("Content-Length: 9999999")
    reader.start_draining(request)
    reader.drain()
    reader.buffer = b"x"
    if is_refused:
        with pytest.raises(BadChunk, match="too long"):
            reader.drain()
    else:
        reader.drain()

    assert (reader.drained_request, reader.buffer) == (request, b"")


def test_the_next_request_follows_a_discarded_body() -> None:
    reader = make_reader(b"hellonext")
    reader.start_draining(make_request("Content-Length: 5"))

    reader.drain()

    assert (reader.drained_request, reader.buffer) == (None, b"next")


@pytest.mark.parametrize(("is_persistent", "more"), [(True, b""), (False, b"connection: close\r\n")])
def test_a_reply_of_the_gateway_has_date_length_and_headers(is_persistent: bool, more: bytes) -> None:
    head = build_reply_head(LocalReply(429, (("a", "\xe9"),), b"hello"), date="now", is_persistent=is_persistent)

    assert head == (b"HTTP/1.1 429 Too Many Requests\r\ndate: now\r\na: \xe9\r\ncontent-length: 5\r\n" + more + b"\r\n")


def test_replies_are_counted_by_the_first_digit_of_their_status() -> None:
    counts = GatewayCounts()
    for status in (200, 204, 299, 300, 599):
        counts.add_reply(status)

    assert counts.replies == {2: 3, 3: 1, 5: 1}


# -- connections to the service ------------------------------------------------------------------------------------


class RecordingTransport(asyncio.Transport):
    """A transport that records what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.calls.append(f"write {bytes(data).decode()}")

    def abort(self) -> None:
        self.calls.append("abort")

    def close(self) -> None:
        self.calls.append("close")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class Caller:
    """Records the events of one request that is sent to the service."""

    def __init__(self, connection: UpstreamConnection, *, needs_connection: bool = True) -> None:
        self.events: list[Any] = []
        self.connection = connection
        self.needs_connection = needs_connection

    def on_upstream_ready(self, upstream: UpstreamConnection) -> bool:
        self.events.append("ready")
        self.connection = upstream
        return self.needs_connection

    def on_upstream_full(self, upstream: UpstreamConnection) -> None:
        assert upstream is self.connection
        self.events.append("full")

    def on_upstream_drained(self, upstream: UpstreamConnection) -> None:
        assert upstream is self.connection
        self.events.append("drained")

    def on_reply_head(self, head: ReplyHead, rest: bytes) -> None:
        self.events.append(head.status)
        self.connection.read_body(rest)

    def on_reply_body(self, data: bytes) -> None:
        self.events.append(data)

    def on_reply_end(self) -> None:
        self.events.append("end")

    def on_tunnel(self, head: ReplyHead, rest: bytes) -> None:
        self.events.append(("tunnel", head.status, rest))

    def on_tunnel_data(self, data: bytes) -> None:
        self.events.append(("through", data))

    def on_tunnel_closed(self) -> None:
        self.events.append("tunnel closed")

    def on_upstream_lost(self, upstream: UpstreamConnection, *, was_idle: bool) -> None:
        assert upstream is self.connection
        self.events.append(("lost", was_idle))

    def on_upstream_failed(self, message: str, *, status: int) -> None:
        self.events.append((status, message))


class Service:
    """A pool of connections to a service that a test plays, on a clock that the test moves."""

    def __init__(self, *, connections_most: int = 8, port: int = 1) -> None:
        self.world = AdvancingWorld()
        settings = GatewaySettings(upstream_ms=5_000, connect_ms=200, upstream_connections_most=connections_most)
        upstream = Upstream(host="127.0.0.1", port=port, is_tls=False, base_path="")
        self.pool = UpstreamPool(upstream, settings, self.world)

    def connect(self) -> tuple[UpstreamConnection, RecordingTransport]:
        connection, transport = UpstreamConnection(self.pool), RecordingTransport()
        connection.connection_made(transport)
        return connection, transport

    def begin(
        self, *headers: str, line: str = "GET / HTTP/1.1"
    ) -> tuple[UpstreamConnection, RecordingTransport, Caller]:
        connection, transport = self.connect()
        caller = Caller(connection)
        connection.begin(caller, make_request(*headers, line=line))
        return connection, transport, caller


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("sent", "events", "calls"),
    [
        ([OK + b"Content-Length: 5\r\n\r\nhello"], [200, b"hello", "end"], []),
        ([OK + b"Content-Length: 5\r\n\r\nhe", b"llo"], [200, b"he", b"llo", "end"], []),
        ([OK + b"Content-Length: 0\r\n\r\n"], [200, "end"], []),
        ([OK[:7], OK[7:] + b"Content-Length: 1\r\n\r", b"\nx"], [200, b"x", "end"], []),
        ([OK + b"Content-Length: 5\r\n\r\nhello!"], [200, b"hello", "end"], ["abort"]),
        ([OK + b"Content-Length: 5\r\nConnection: close\r\n\r\nhello"], [200, b"hello", "end"], ["abort"]),
        ([OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n", b"0\r\n\r\n"], [200, b"he", "end"], []),
        ([OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore"], [200, "end"], ["abort"]),
        ([OK + b"\r\nhel", b"lo"], [200, b"hel", b"lo"], []),
        ([OK + b"\r\n"], [200], []),
        (
            [b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 103 E\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx"],
            [200, b"x", "end"],
            [],
        ),
        ([b"HTTP/1.1 100 C\r\n\r\n", OK + b"Content-Length: 1\r\n\r\nx"], [200, b"x", "end"], []),
        ([b"HTTP/1.1 304 N\r\n\r\n"], [304, "end"], []),
    ],
)
def test_a_reply_is_passed_on_in_order(sent: list[bytes], events: list[Any], calls: list[str]) -> None:
    service = Service()
    connection, transport, caller = service.begin()
    for data in sent:
        connection.data_received(data)

    assert (caller.events, transport.calls) == (events, calls)
    is_reused = "end" in events and not calls
    assert (service.pool.take_idle() is connection) is is_reused
    assert connection.was_used is is_reused


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"what\r\n\r\n", "does not begin with a status line"),
        (b"\r\n\r\n", "does not begin with a status line"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", "the size of a chunk"),
        (b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\n\r\n", "switches the protocol"),
        (b"HTTP/1.1 100 C\r\n\r\n" * 65, "more than 64 informational replies"),
        (b"x" * (MAX_HEAD_BYTES + 1), "its head is longer than"),
    ],
)
def test_a_malformed_reply_fails_the_request(sent: bytes, reason: str) -> None:
    connection, transport, caller = Service().begin()

    connection.data_received(sent)

    status, message = caller.events[-1]
    assert (status, reason in message, transport.calls, connection.is_closed) == (502, True, ["abort"], True)


@pytest.mark.parametrize("is_read_in_time", [True, False])
def test_a_connection_is_reused_only_if_the_service_has_read_the_request(is_read_in_time: bool) -> None:
    connection, transport, caller = Service().begin()
    connection.pause_writing()
    if is_read_in_time:
        connection.resume_writing()

    connection.data_received(OK + b"Content-Length: 0\r\n\r\n")

    events = ["full", *(["drained"] if is_read_in_time else []), 200, "end"]
    assert (caller.events, transport.calls) == (events, [] if is_read_in_time else ["abort"])


def test_tiny_chunks_are_decoded_in_steps_and_only_while_the_caller_reads() -> None:
    count = 2 * CHUNK_LINES_PER_STEP + 1

    async def scenario() -> tuple[list[int], list[str], list[Any]]:
        connection, transport, caller = Service().begin()
        connection.data_received(OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * count)
        sizes = [len(caller.events[-1])]
        connection.pause_reading()
        for _ in range(3):
            await asyncio.sleep(0)
        sizes.append(len(caller.events))
        connection.resume_reading()
        for _ in range(4):
            await asyncio.sleep(0)
            sizes.append(sum(len(event) for event in caller.events[1:]))
        calls = list(transport.calls)
        connection.data_received(b"0\r\n\r\n")
        return sizes, calls, caller.events[-1:]

    sizes, calls, end = asyncio.run(scenario())

    step = CHUNK_LINES_PER_STEP
    assert (sizes, calls, end) == ([step, 2, 2 * step, count, count, count], ["pause", "resume"], ["end"])


def test_a_request_does_not_wait_for_a_connection_that_was_lost_before_its_first_request() -> None:
    async def scenario() -> tuple[list[Any], bool]:
        server = await asyncio.start_server(_reset, "127.0.0.1", 0)
        service = Service(connections_most=1, port=server.sockets[0].getsockname()[1])
        callers = [Caller(UpstreamConnection(service.pool)) for _ in range(3)]
        for caller in callers:
            service.pool.start_connecting(caller)
        await wait_on_loop_until(lambda: all(caller.events for caller in callers), what="all requests have an outcome")
        last = Caller(UpstreamConnection(service.pool))
        service.pool.start_connecting(last)
        await wait_on_loop_until(lambda: last.events, what="the pool still opens connections")
        await service.pool.close()
        server.close()
        return [caller.events[0] == "ready" or caller.events[0][0] == 502 for caller in callers], bool(last.events)

    assert asyncio.run(scenario()) == ([True] * 3, True)


async def _reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def test_the_most_informational_replies_and_the_longest_head_are_accepted() -> None:
    connection, _, caller = Service().begin()
    connection.data_received(b"HTTP/1.1 100 C\r\n\r\n" * 64)
    connection.data_received(b"x" * MAX_HEAD_BYTES)

    assert caller.events == []


def test_informational_replies_are_counted_for_each_request() -> None:
    connection, _, caller = Service().begin()
    for _ in range(2):
        connection.data_received(b"HTTP/1.1 100 C\r\n\r\n" * 40 + OK + b"Content-Length: 0\r\n\r\n")
        connection.begin(caller, make_request(line="GET / HTTP/1.1"))

    assert caller.events == [200, "end"] * 2


def test_a_reply_before_the_end_of_the_request_ends_the_connection() -> None:
    connection, transport, caller = Service().begin("Content-Length: 5", line="PUT / HTTP/1.1")

    connection.data_received(OK + b"Content-Length: 0\r\n\r\n")

    assert (caller.events, transport.calls) == ([200, "end"], ["abort"])


def test_a_reply_to_head_has_no_body() -> None:
    connection, transport, caller = Service().begin(line="HEAD / HTTP/1.1")

    connection.data_received(OK + b"Content-Length: 5\r\n\r\n")

    assert (caller.events, transport.calls) == ([200, "end"], [])


@pytest.mark.parametrize(
    ("sent", "was_used", "events"),
    [
        (b"", False, [("lost", False)]),
        (b"", True, [("lost", True)]),
        (b"HTTP", True, [("lost", False)]),
        (OK + b"Content-Length: 5\r\n\r\n", True, [200, ("lost", False)]),
        (OK + b"\r\nx", True, [200, b"x", "end"]),
    ],
)
def test_a_lost_connection_is_reported(sent: bytes, was_used: bool, events: list[Any]) -> None:
    connection, _, caller = Service().begin()
    connection.was_used = was_used
    if sent:
        connection.data_received(sent)

    connection.connection_lost(None)

    assert (caller.events, connection.is_closed, connection.handler) == (events, True, None)


@pytest.mark.parametrize("has_upgrade", [True, False])
def test_a_websocket_becomes_a_tunnel(has_upgrade: bool) -> None:
    connection, transport, caller = Service().begin("Connection: upgrade", "Upgrade: websocket")
    upgrade = b"Upgrade: websocket\r\n" if has_upgrade else b""

    connection.data_received(b"HTTP/1.1 101 S\r\n" + upgrade + b"\r\nfirst")
    if has_upgrade:
        connection.data_received(b"more")
        connection.connection_lost(None)

    if has_upgrade:
        assert caller.events == [("tunnel", 101, b"first"), ("through", b"more"), "tunnel closed"]
        assert (connection.deadline_s, transport.calls) == (0.0, [])
    else:
        assert (caller.events[0][0], transport.calls) == (502, ["abort"])


def test_data_without_a_request_closes_the_connection() -> None:
    connection, transport = Service().connect()

    connection.data_received(b"x")

    assert (transport.calls, connection.is_closed) == (["abort"], True)


def test_a_full_socket_is_reported_to_the_request() -> None:
    connection, _, caller = Service().begin()
    connection.pause_writing()
    connection.resume_writing()
    connection.abandon()
    connection.pause_writing()
    connection.resume_writing()

    assert caller.events == ["full", "drained"]


def test_a_closed_connection_is_not_used_any_more() -> None:
    connection, transport = Service().connect()
    for action in (connection.pause_reading, connection.resume_reading, connection.close):
        action()
    connection.write(b"x")
    connection.pause_reading()
    connection.resume_reading()

    assert transport.calls == ["pause", "resume", "close"]


# -- the pool of connections ---------------------------------------------------------------------------------------


def test_the_connection_that_was_returned_last_is_used_first_and_closed_ones_never() -> None:
    service = Service()
    connections = [service.connect()[0] for _ in range(3)]
    for connection in connections:
        service.pool.return_connection(connection)
    connections[2].is_closed = True

    assert [service.pool.take_idle() for _ in range(3)] == [connections[1], connections[0], None]


def test_a_lost_connection_is_not_idle_any_more() -> None:
    service = Service()
    connection, _ = service.connect()
    service.pool.return_connection(connection)

    connection.connection_lost(None)
    connection.is_closed = False

    assert service.pool.take_idle() is None


def test_idle_connections_beyond_the_maximum_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "MAX_IDLE_CONNECTIONS", 2)
    service = Service()
    transports = []
    for _ in range(3):
        connection, transport = service.connect()
        service.pool.return_connection(connection)
        transports.append(transport.calls)

    assert transports == [[], [], ["close"]]


def test_requests_wait_in_order_for_a_free_connection() -> None:
    service = Service(connections_most=0)
    connection, _ = service.connect()
    callers = [Caller(connection, needs_connection=number != 1) for number in range(4)]
    for caller in callers:
        service.pool.start_connecting(caller)
    service.pool.cancel_wait(callers[0])
    service.pool.cancel_wait(callers[0])

    service.pool.return_connection(connection)

    # The second request does not need the connection any more, so the third one gets it.
    assert [caller.events for caller in callers] == [[], ["ready"], ["ready"], []]


@pytest.mark.parametrize(("seconds", "is_failed"), [(4.9, False), (5.0, True), (6.0, True)])
def test_waiting_requests_fail_after_the_time_for_a_reply(seconds: float, is_failed: bool) -> None:
    service = Service(connections_most=0)
    callers = [Caller(service.connect()[0]) for _ in range(2)]
    service.pool.start_connecting(callers[0])
    service.world.advance(3)
    service.pool.start_connecting(callers[1])
    service.world.advance(seconds - 3)

    service.pool.expire_deadlines(service.world.monotonic_s())

    failure = (504, "The service did not reply in time: all connections to it were busy.")
    assert [caller.events for caller in callers] == [[failure] if is_failed else [], []]


def test_a_connection_that_could_not_be_opened_fails_waiting_requests_too() -> None:
    async def scenario() -> list[list[Any]]:
        service = Service(connections_most=1)
        callers = [Caller(UpstreamConnection(service.pool)) for _ in range(100)]
        for caller in callers:
            service.pool.start_connecting(caller)
        await wait_on_loop_until(lambda: callers[-1].events, what="the requests fail")
        await service.pool.close()
        return [caller.events for caller in callers]

    assert asyncio.run(scenario()) == [[(502, "The service cannot be reached.")]] * 100


async def connect_at(service: Service, seconds: float) -> None:
    """Send a request that needs a new connection after this time; wait until it is connected or has failed."""
    service.world.advance(seconds)
    caller = Caller(UpstreamConnection(service.pool))
    service.pool.start_connecting(caller)
    await wait_on_loop_until(lambda: caller.events, what="the request is ready or fails")


def test_an_unreachable_service_is_logged_once_a_minute_and_when_it_is_reached_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (port,) = free_ports(1)

    async def scenario() -> None:
        service = Service(port=port)
        for seconds in (0, 59, 1):
            await connect_at(service, seconds)
        with socket.create_server(("127.0.0.1", port)):  # The system opens connections to it.
            for _ in range(2):
                await connect_at(service, 0)
        await service.pool.close()

    with caplog.at_level(logging.WARNING, logger="wharf.limits.gateway"):
        asyncio.run(scenario())

    lines = [record.getMessage().replace(f"127.0.0.1:{port}", "host") for record in caplog.records]
    assert [(line.partition(" service=")[0], line.rpartition(" ")[2]) for line in lines] == [
        ("service behind the gateway cannot be reached", "earlier_requests=0"),
        ("service behind the gateway cannot be reached", "earlier_requests=1"),
        ("service behind the gateway reached again", "service=host"),
    ]


@pytest.mark.parametrize(("seconds", "is_closed"), [(29.9, False), (30.0, True)])
def test_an_idle_connection_is_closed_after_half_a_minute(seconds: float, is_closed: bool) -> None:
    async def scenario() -> tuple[bool, bool]:
        server = ScriptedService()
        await server.open()
        service = Service(port=server.port)
        caller = Caller(service.connect()[0], needs_connection=False)
        service.pool.start_connecting(caller)
        await wait_on_loop_until(lambda: caller.events, what="the connection is open")
        service.world.advance(seconds)
        service.pool.expire_deadlines(service.world.monotonic_s())
        was_closed, is_idle = caller.connection.is_closed, service.pool.take_idle() is caller.connection
        await service.pool.close()
        await wait_on_loop_until(lambda: server.connections, what="the service has accepted the connection")
        server.close()
        return was_closed, is_idle

    assert asyncio.run(scenario()) == (is_closed, not is_closed)


@pytest.mark.parametrize(("seconds", "is_failed"), [(4.9, False), (5.0, True)])
def test_a_service_that_sends_nothing_in_time_fails_the_request(seconds: float, is_failed: bool) -> None:
    async def scenario() -> tuple[list[Any], bool]:
        server = ScriptedService()
        await server.open()
        service = Service(port=server.port)
        caller = Caller(service.connect()[0])
        service.pool.start_connecting(caller)
        await wait_on_loop_until(lambda: caller.events, what="the connection is open")
        caller.connection.begin(caller, make_request(line="GET / HTTP/1.1"))
        service.world.advance(seconds)
        service.pool.expire_deadlines(service.world.monotonic_s())
        outcome = caller.events[1:], caller.connection.is_closed
        await service.pool.close()
        await wait_on_loop_until(lambda: server.connections, what="the service has accepted the connection")
        server.close()
        return outcome

    failure = [(504, "The service did not reply in time.")]
    assert asyncio.run(scenario()) == (failure if is_failed else [], is_failed)


def test_a_service_that_accepts_no_connection_in_time_is_a_504() -> None:
    async def scenario() -> list[Any]:
        with socket.socket() as listener, contextlib.ExitStack() as held:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            for _ in range(4):  # The kernel accepts the first ones, and then answers no more.
                full = held.enter_context(socket.socket())
                full.setblocking(False)
                full.connect_ex(listener.getsockname())
            service = Service(port=listener.getsockname()[1])
            callers = [Caller(service.connect()[0]) for _ in range(2)]
            for caller in callers:
                service.pool.start_connecting(caller)
            await wait_on_loop_until(lambda: all(caller.events for caller in callers), what="the requests fail")
            await service.pool.close()
            return [caller.events for caller in callers]

    assert asyncio.run(scenario()) == [[(504, "The service did not accept a connection in time.")]] * 2


def test_a_closed_pool_closes_its_connections() -> None:
    async def scenario() -> bool:
        server = ScriptedService()
        await server.open()
        service = Service(port=server.port)
        caller = Caller(service.connect()[0])
        service.pool.start_connecting(caller)
        await wait_on_loop_until(lambda: server.connections and caller.events, what="the connection is open")
        await service.pool.close()
        server.close()
        return caller.connection.is_closed

    assert asyncio.run(scenario())


# -- running gateways ----------------------------------------------------------------------------------------------


def answer_with(head: bytes) -> Any:
    async def answer(_request: ReceivedRequest, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)

    return answer


@pytest.mark.parametrize(("trust", "cpu_ms", "content"), [("true", 1_234, 1), ("false", 0, 0)])
def test_marks_are_believed_only_of_a_trusted_service(tmp_path: Path, trust: str, cpu_ms: int, content: int) -> None:
    async def scenario(running: RunningGateway) -> tuple[int, int, Reply]:
        running.service.handler = answer_with(
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Wharf-Cpu-Ms: 1234\r\nX-Wharf-Content: 1\r\n\r\n"
        )
        reply = await running.request("/things", ADA_SENDS)
        service = running.decision_service
        return count_used(service, "cpu"), count_used(service, "content"), reply

    used_ms, used_content, reply = run_scenario(tmp_path, scenario, gateway=f"trust_marks = {trust}")

    assert (used_ms if trust == "true" else used_ms < 1_000, used_content) == (cpu_ms or True, content)
    assert [name for name in reply.headers if name.startswith("x-wharf")] == []


def test_each_request_is_sent_with_the_headers_of_the_gateway(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> list[ReceivedRequest]:
        caller = await running.connect()
        await caller.request("/a?b", "X-Forwarded-For: 203.0.113.1", "X-Forwarded-Proto: https", "Forwarded: for=x")
        await caller.request("/c", method="POST", body=b"hello")
        await caller.send(b"GET /d HTTP/1.0\r\n\r\n")
        await caller.read_reply()
        return running.service.requests

    first, second, third = run_scenario(tmp_path, scenario)

    assert (first.line, first.headers["x-forwarded-for"], first.headers["x-forwarded-proto"]) == (
        "GET /a?b HTTP/1.1",
        "127.0.0.1",
        "http",
    )
    assert "forwarded" not in first.headers
    assert "content-length" not in first.headers
    assert (second.headers["content-length"], second.body) == ("5", b"hello")
    assert third.headers["host"].startswith("127.0.0.1:")


def test_callers_of_trusted_proxies_are_passed_on(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> str:
        await running.request("/a", "X-Forwarded-For: 203.0.113.1", "X-Forwarded-For: 10.0.0.9")
        return running.service.requests[0].headers["x-forwarded-for"]

    assert run_scenario(tmp_path, scenario, more='[addresses]\ntrusted = ["127.0.0.0/8"]') == (
        "203.0.113.1, 10.0.0.9, 127.0.0.1"
    )


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (("X-Forwarded-Proto: https",), "https"),
        (("X-Forwarded-Proto: HTTPS",), "https"),
        (("X-Forwarded-Proto: http", "X-Forwarded-Proto: https"), "https"),
        (("X-Forwarded-Proto: gopher",), "http"),
        ((), "http"),
    ],
)
def test_the_scheme_that_a_proxy_with_tls_reports_is_passed_on(
    tmp_path: Path, sent: tuple[str, ...], received: str
) -> None:
    async def scenario(running: RunningGateway) -> str:
        await running.request("/a", *sent)
        return running.service.requests[0].headers["x-forwarded-proto"]

    assert run_scenario(tmp_path, scenario, more='[addresses]\ntrusted = ["127.0.0.0/8"]') == received


def test_pages_of_other_origins_can_read_the_limit_headers(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> list[bool]:
        replies = [await running.request("/x", *headers) for headers in ((), ("Origin: https://other.example",))]
        return ["access-control-expose-headers" in reply.headers for reply in replies]

    assert run_scenario(tmp_path, scenario) == [False, True]


@pytest.mark.parametrize("framing", ["Content-Length: 5", "Transfer-Encoding: chunked"])
def test_a_caller_that_waits_for_100_continue_gets_it(tmp_path: Path, framing: str) -> None:
    async def scenario(running: RunningGateway) -> tuple[bytes, int, bytes]:
        caller = await running.connect()
        await caller.send(f"PUT /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n{framing}\r\n\r\n".encode())
        informational = await caller.reader.readuntil(b"\r\n\r\n")
        await caller.send(b"hello" if "Length" in framing else b"5\r\nhello\r\n0\r\n\r\n")
        reply = await caller.read_reply()
        return informational, reply.status, running.service.requests[0].body

    assert run_scenario(tmp_path, scenario) == (b"HTTP/1.1 100 Continue\r\n\r\n", 200, b"hello")


def test_an_http_1_0_caller_gets_a_body_without_chunks(tmp_path: Path) -> None:
    async def scenario(running: RunningGateway) -> Reply:
        running.service.handler = answer_with(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        )
        caller = await running.connect()
        await caller.send(b"GET / HTTP/1.0\r\n\r\n")
        return await caller.read_reply()

    reply = run_scenario(tmp_path, scenario)

    assert (reply.body, reply.headers["connection"], "transfer-encoding" in reply.headers) == (b"hello", "close", False)


def test_only_the_requests_whose_time_is_over_fail() -> None:
    async def scenario() -> list[list[Any]]:
        server = ScriptedService()
        await server.open()
        service = Service(port=server.port, connections_most=16)
        callers = []
        for number in range(6):
            caller = Caller(service.connect()[0])
            service.pool.start_connecting(caller)
            await wait_on_loop_until(lambda each=caller: each.events, what="the connection is open")  # type: ignore[misc]
            caller.connection.begin(caller, make_request(line="GET / HTTP/1.1"))
            callers.append(caller)
            service.world.advance(float(number == 3))
        service.world.advance(4.0)
        service.pool.expire_deadlines(service.world.monotonic_s())
        outcomes = [caller.events[1:] for caller in callers]
        await service.pool.close()
        await wait_on_loop_until(lambda: server.connections, what="the service has accepted the connection")
        server.close()
        return outcomes

    assert asyncio.run(scenario()) == [[(504, "The service did not reply in time.")]] * 4 + [[]] * 2
