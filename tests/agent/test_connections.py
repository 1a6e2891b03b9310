"""Limits of the HTTP port: connections per client address, and the size of a request head."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import uvicorn

from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.agent.http.connection_limits import (
    MAX_UNPROVEN,
    MAX_UNPROVEN_PER_ADDRESS,
    ConnectionLimiter,
    CountedConnection,
)
from wharf.agent.http.parsing_slots import MAX_PIECE_BYTES, ParsingSlots
from wharf.agent.http.protocol import (
    DISCARD_S,
    FIRST_BYTE_TIMEOUT_S,
    HEAD_TIMEOUT_S,
    MAX_HEAD_BYTES,
    MAX_REQUEST_TARGET_BYTES,
    MAX_SMALL_CHUNKS,
    MAX_UNPROVEN_HEAD_BYTES,
    STALLED_REPLY_TIMEOUT_S,
    UNPROVEN_TIMEOUT_S,
    LingeringConnections,
    build_protocol,
)
from wharf.cluster.api.connection_senders import ProvenSender
from wharf.world import SimulatedWorld

REMOTE_ADDRESS = "10.0.0.7"


NODE_SECRETS = {b"secret-of-n1": "n1", b"secret-of-n2": "n2"}
MAX_OF_NODE = 2
NODE_HEAD = b"GET / HTTP/1.1\r\nHost: a\r\nX-Cluster-Node-Secret: %b\r\n\r\n"
HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def find_node(secrets: Mapping[bytes, bytes], _address: str) -> ProvenSender | None:
    node_id = NODE_SECRETS.get(secrets.get(b"x-cluster-node-secret", b""))
    return ProvenSender(f"node {node_id}", MAX_OF_NODE) if node_id else None


def build_limiter(per_client_max: int) -> ConnectionLimiter:
    return ConnectionLimiter(SimulatedWorld(1), max_per_client=per_client_max, find_sender=find_node)


def open_counted(connections: ConnectionLimiter, address: str = REMOTE_ADDRESS) -> CountedConnection:
    return connections.open(address, lambda: None)


def test_an_address_has_a_limited_number_of_open_connections() -> None:
    connections = build_limiter(2)

    opened = [open_counted(connections) for _ in range(3)]
    first = [connection.is_unproven for connection in opened]
    opened[0].release()

    assert first == [False, False, True]
    assert [open_counted(connections).is_unproven for _ in range(2)] == [False, True]
    assert not open_counted(connections, "10.0.0.8").is_unproven


def test_loopback_and_a_limit_of_0_are_unlimited() -> None:
    connections = build_limiter(1)
    for loopback in ("127.0.0.1", "::ffff:127.0.0.1", ""):
        assert not any(open_counted(connections, loopback).is_unproven for _ in range(3))
    unbounded = build_limiter(0)
    assert not any(open_counted(unbounded).is_unproven for _ in range(1_000))


@in_virtual_time
async def test_a_hundred_excess_connections_get_a_reply_and_then_ten_a_second() -> None:
    connections = ConnectionLimiter(SimulatedWorld(1, asyncio.get_running_loop().time), max_per_client=1)

    at_once = sum(connections.should_explain_rejection() for _ in range(500))
    await pass_time(1.0)
    later = sum(connections.should_explain_rejection() for _ in range(500))

    assert (at_once, later) == (100, 10)


class Wire(asyncio.Transport):
    """A transport that records the bytes written to it, and whether it was closed."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 40_000), "sockname": ("127.0.0.1", 4646)})
        self.sent = b""
        self.is_closed = False
        self.is_ended = False
        """Whether the client sees the end of what is sent."""
        self.is_aborted = False
        self.is_paused = False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def abort(self) -> None:
        self.is_aborted = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def write(self, data: bytes) -> None:  # type: ignore[override]  # only bytes are written
        self.sent += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self.is_ended = self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


async def _reply(_scope: object, _receive: object, send: Callable[[object], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def connect(
    connections: ConnectionLimiter,
    address: str = REMOTE_ADDRESS,
    *,
    app: Callable[..., Awaitable[None]] = _reply,
    slots: ParsingSlots | None = None,
) -> tuple[asyncio.Protocol, Wire]:
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    wire = Wire(address)
    build = build_protocol(connections, slots or ParsingSlots(lambda: 0.0))
    protocol = build(config, uvicorn.server.ServerState(), {})  # type: ignore[call-arg]  # the server's own arguments
    protocol.connection_made(wire)
    return protocol, wire


def test_an_excess_connection_gets_a_reply_is_closed_and_does_not_count() -> None:
    async def scenario() -> None:
        connections = build_limiter(1)
        first, _ = connect(connections)
        second, wire = connect(connections)
        second.data_received(HEAD)
        second.connection_lost(None)

        assert wire.is_closed
        assert wire.sent.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        assert wire.sent.endswith(b"too many concurrent connections, please rate limit your calls\n")
        first.connection_lost(None)
        assert not open_counted(connections).is_unproven

    asyncio.run(scenario())


@in_virtual_time
async def test_an_excess_connection_that_sends_no_complete_head_is_refused_after_five_seconds() -> None:
    connections = build_limiter(1)
    connect(connections)
    silent, slow = connect(connections), connect(connections)
    slow[0].data_received(HEAD[:-2])
    await pass_time(UNPROVEN_TIMEOUT_S - 1)
    before = [wire.is_closed for _, wire in (silent, slow)]
    await pass_time(2.0)

    assert before == [False, False]
    assert [wire.sent[:12] for _, wire in (silent, slow)] == [b"HTTP/1.1 429"] * 2
    assert [wire.is_closed for _, wire in (silent, slow)] == [True, True]


def test_an_excess_connection_with_a_long_head_is_refused() -> None:
    async def scenario() -> None:
        connections = build_limiter(1)
        connect(connections)
        protocol, wire = connect(connections)
        protocol.data_received(b"GET / HTTP/1.1\r\na: " + b"b" * MAX_UNPROVEN_HEAD_BYTES)

        assert (wire.sent[:12], wire.is_closed) == (b"HTTP/1.1 429", True)

    asyncio.run(scenario())


def test_a_registered_node_is_served_beyond_the_limit_of_its_address_up_to_its_own_limit() -> None:
    async def scenario() -> None:
        connections = build_limiter(1)
        connect(connections)
        wires = []
        for _ in range(MAX_OF_NODE + 1):
            protocol, wire = connect(connections)
            protocol.data_received(NODE_HEAD % b"secret-of-n1")
            wires.append(wire)
        other, other_wire = connect(connections)
        other.data_received(NODE_HEAD % b"secret-of-n2")
        await asyncio.sleep(0)

        assert [wire.sent[:12] == b"HTTP/1.1 429" for wire in (*wires, other_wire)] == [False, False, True, False]

    asyncio.run(scenario())


def test_a_wrong_secret_proves_nothing() -> None:
    async def scenario() -> None:
        connections = build_limiter(1)
        connect(connections)
        two_secrets = HEAD[:-2] + b"X-Cluster-Node-Secret: secret-of-n1\r\nX-Cluster-Node-Secret: secret-of-n2\r\n\r\n"
        for head in (NODE_HEAD % b"wrong", NODE_HEAD % b"", two_secrets):
            protocol, wire = connect(connections)
            protocol.data_received(head)

            assert wire.sent.startswith(b"HTTP/1.1 429")

    asyncio.run(scenario())


def test_a_connection_within_the_limit_makes_way_for_others_once_it_proves_a_node() -> None:
    async def scenario() -> None:
        connections = build_limiter(1)
        protocol, _ = connect(connections)
        protocol.data_received(NODE_HEAD % b"secret-of-n1")

        assert [open_counted(connections).is_unproven for _ in range(2)] == [False, True]

    asyncio.run(scenario())


def test_a_request_without_the_secret_over_the_connection_of_a_node_counts_for_the_address() -> None:
    async def scenario() -> None:
        connections = build_limiter(1)
        protocol, wire = connect(connections)
        protocol.data_received(NODE_HEAD % b"secret-of-n1")
        await asyncio.sleep(0)  # The application replies.
        connect(connections)
        protocol.data_received(HEAD)

        assert wire.sent.count(b"HTTP/1.1 200") == 1
        assert b"HTTP/1.1 429" in wire.sent
        assert wire.is_closed

    asyncio.run(scenario())


def test_the_secret_of_a_relaying_server_proves_it_and_does_not_reach_the_application() -> None:
    async def scenario() -> None:
        received: list[Mapping[bytes, bytes]] = []

        def find_sender(secrets: Mapping[bytes, bytes], _address: str) -> ProvenSender | None:
            received.append(secrets)
            return ProvenSender("servers", 1)

        connections = ConnectionLimiter(SimulatedWorld(1), max_per_client=1, find_sender=find_sender)
        connect(connections)
        protocol, wire = connect(connections)
        protocol.data_received(HEAD[:-2] + b"X-Cluster-Relay-Secret: s\r\nA: b\r\n\r\n")

        assert received == [{b"x-cluster-relay-secret": b"s"}]
        assert protocol.scope["headers"] == [(b"host", b"a"), (b"a", b"b")]  # type: ignore[attr-defined]
        assert not wire.sent.startswith(b"HTTP/1.1 429")

    asyncio.run(scenario())


def test_connections_that_end_count_for_nothing_any_more() -> None:
    async def scenario() -> None:
        connections = build_limiter(1)
        for head in (b"", HEAD, NODE_HEAD % b"secret-of-n1", NODE_HEAD % b"wrong") * 3:
            opened = [connect(connections)[0] for _ in range(3)]
            for protocol in opened:
                protocol.data_received(head)
            for protocol in opened:
                protocol.connection_lost(None)

        assert not connections.has_connections

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("addresses", "kept"), [(1, MAX_UNPROVEN_PER_ADDRESS), (MAX_UNPROVEN, MAX_UNPROVEN)], ids=["one-address", "many"]
)
def test_the_oldest_unproven_connection_makes_way_for_a_new_one(addresses: int, kept: int) -> None:
    connections = build_limiter(1)
    dropped: list[int] = []
    for number in range(addresses):
        open_counted(connections, f"address {number}")
    for number in range(kept + 3):
        connections.open(f"address {number % addresses}", lambda number=number: dropped.append(number))  # type: ignore[misc]

    assert dropped == [0, 1, 2]


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/1.1\r\na: " + b"b" * (MAX_HEAD_BYTES + 1) + b"\r\n",
     b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1_100],
)  # fmt: skip
def test_a_request_head_that_is_too_long_gets_431(head: bytes) -> None:
    async def scenario() -> None:
        protocol, wire = connect(build_limiter(1))
        for start in range(0, len(head), 65_536):
            protocol.data_received(head[start : start + 65_536])

        assert wire.is_ended
        assert wire.sent.count(b"HTTP/1.1") == 1
        assert wire.sent.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")

    asyncio.run(scenario())


@in_virtual_time
async def test_the_rest_of_a_rejected_request_is_discarded_for_a_second() -> None:
    protocol, wire = connect(build_limiter(1))
    protocol.data_received(b"GET /" + b"a" * (MAX_REQUEST_TARGET_BYTES + 1))
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    before = wire.is_ended, wire.is_closed
    await pass_time(DISCARD_S)

    assert before == (True, False)
    assert wire.is_closed
    assert wire.sent.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("step", [65_536, 10_000_000])
@pytest.mark.parametrize("end", [b"", b" HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_a_request_line_above_its_limit_is_414(end: bytes, step: int) -> None:
    async def scenario() -> None:
        protocol, wire = connect(build_limiter(1))
        head = b"GET /" + b"a" * MAX_REQUEST_TARGET_BYTES + end
        for start in range(0, len(head), step):
            protocol.data_received(head[start : start + step])

        assert wire.is_ended
        assert wire.sent.count(b"HTTP/1.1") == 1
        assert wire.sent.startswith(b"HTTP/1.1 414 URI Too Long\r\n")

    asyncio.run(scenario())


def test_a_request_line_at_its_limit_is_accepted() -> None:
    async def scenario() -> None:
        protocol, wire = connect(build_limiter(1))
        query = b"a" * (MAX_REQUEST_TARGET_BYTES - len(b"/?"))
        protocol.data_received(b"GET /?" + query + b" HTTP/1.1\r\nHost: a\r\n\r\n")

        assert (wire.is_closed, wire.sent) == (False, b"")

    asyncio.run(scenario())


@pytest.mark.parametrize("hosts", [b"", b"Host: a\r\nHOST: b\r\n", b"Host: a\r\nhost: a\r\n"])
def test_a_request_over_http_1_1_without_exactly_one_host_is_400(hosts: bytes) -> None:
    async def scenario() -> None:
        protocol, wire = connect(build_limiter(1))
        protocol.data_received(b"GET / HTTP/1.1\r\n" + hosts + b"\r\n")

        assert wire.is_ended
        assert wire.sent.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert wire.sent.endswith(b"a request over HTTP/1.1 needs exactly one Host header")

    asyncio.run(scenario())


@pytest.mark.parametrize("head", [b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"])
def test_a_request_over_http_1_0_needs_no_host(head: bytes) -> None:
    async def scenario() -> None:
        protocol, wire = connect(build_limiter(1))
        protocol.data_received(head)
        await asyncio.sleep(0)

        assert not wire.sent.startswith(b"HTTP/1.1 400")

    asyncio.run(scenario())


@in_virtual_time
async def test_a_request_head_that_stays_incomplete_closes_the_connection() -> None:
    protocol, wire = connect(build_limiter(1))
    silent, silent_wire = connect(build_limiter(1))
    protocol.data_received(b"GET / HT")
    await pass_time(HEAD_TIMEOUT_S - 1)
    protocol.data_received(b"TP/1.1\r\n")
    before = wire.is_closed
    await pass_time(2.0)

    assert (before, wire.is_closed, silent_wire.is_closed) == (False, True, False)
    assert wire.sent.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    protocol.connection_lost(None)
    silent.connection_lost(None)


@in_virtual_time
async def test_a_connection_that_sends_nothing_is_closed() -> None:
    protocol, wire = connect(build_limiter(1))
    active, active_wire = connect(build_limiter(1))
    active.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n")
    await pass_time(HEAD_TIMEOUT_S - 1)
    active.data_received(b"\r\n")
    await pass_time(FIRST_BYTE_TIMEOUT_S - HEAD_TIMEOUT_S + 2)

    assert (wire.is_aborted, active_wire.is_aborted) == (True, False)
    protocol.connection_lost(None)
    active.connection_lost(None)


@in_virtual_time
async def test_a_connection_to_a_client_that_reads_nothing_is_aborted() -> None:
    protocol, wire = connect(build_limiter(1))
    slow, slow_wire = connect(build_limiter(1))
    for connection in (protocol, slow):
        connection.data_received(b"GET /")
        connection.pause_writing()
    await pass_time(STALLED_REPLY_TIMEOUT_S - 1)
    slow.resume_writing()
    before = wire.is_aborted
    await pass_time(2.0)

    assert (before, wire.is_aborted, slow_wire.is_aborted) == (False, True, False)
    protocol.connection_lost(None)
    slow.connection_lost(None)


def test_a_closed_connection_that_lingers_until_the_next_check_is_aborted() -> None:
    open_wire, closed, closed_later = Wire(REMOTE_ADDRESS), Wire(REMOTE_ADDRESS), Wire(REMOTE_ADDRESS)
    closed.close()
    lingering = LingeringConnections()

    lingering.abort_lingering([open_wire, closed, closed_later])
    closed_later.close()
    lingering.abort_lingering([open_wire, closed, closed_later])

    assert [wire.is_aborted for wire in (open_wire, closed, closed_later)] == [False, True, False]


CHUNKED_HEAD = b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


class ReadingApp:
    """An application that reads the body of each request, and remembers the headers and the number of bytes."""

    def __init__(self) -> None:
        self.headers: list[list[tuple[bytes, bytes]]] = []
        self.body_sizes: list[int] = []

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        size, message = 0, {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            size += len(message.get("body", b""))
        self.headers.append(list(scope["headers"]))
        self.body_sizes.append(size)
        await _reply(scope, receive, send)


@in_virtual_time
async def test_a_body_in_too_many_small_chunks_is_refused_with_the_reason() -> None:
    protocol, wire = connect(build_limiter(1), app=ReadingApp())
    protocol.data_received(CHUNKED_HEAD)
    for _ in range(MAX_SMALL_CHUNKS // 1_000 + 1):
        protocol.data_received(b"1\r\na\r\n" * 1_000)
    await pass_time(0.001)

    assert wire.sent.startswith(b"HTTP/1.1 400 ")
    assert b"send larger chunks" in wire.sent
    assert wire.sent.count(b"HTTP/1.1") == 1


@in_virtual_time
async def test_a_body_in_many_large_chunks_is_accepted() -> None:
    app = ReadingApp()
    protocol, wire = connect(build_limiter(1), app=app)
    protocol.data_received(CHUNKED_HEAD)
    count = 2 * MAX_SMALL_CHUNKS // 1_000
    for _ in range(count):
        protocol.data_received((b"40\r\n" + b"a" * 64 + b"\r\n") * 1_000)
        await pass_time(0.001)
    protocol.data_received(b"0\r\n\r\n")
    await pass_time(0.001)

    assert wire.sent.startswith(b"HTTP/1.1 200 ")
    assert app.body_sizes == [64 * 1_000 * count]


@in_virtual_time
async def test_a_trailer_does_not_become_a_header() -> None:
    app = ReadingApp()
    protocol, _ = connect(build_limiter(1), app=app)
    protocol.data_received(CHUNKED_HEAD + b"1\r\na\r\n0\r\nX-Cluster-Token: b\r\nHost: c\r\n\r\n")
    await pass_time(0.001)

    assert app.headers == [[(b"host", b"a"), (b"transfer-encoding", b"chunked")]]


class SteppingClock:
    """A CPU clock that shows at each reading that each piece took 3 ms."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.003
        return self.now_s


@in_virtual_time
async def test_bodies_of_many_connections_are_parsed_in_turn_and_not_read_meanwhile() -> None:
    slots, limiter, app = ParsingSlots(SteppingClock()), build_limiter(3), ReadingApp()
    connected = [connect(limiter, app=app, slots=slots) for _ in range(3)]
    size = 10 * MAX_PIECE_BYTES
    for protocol, _ in connected:
        protocol.data_received(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
    for protocol, _ in connected:
        protocol.data_received(b"a" * size)
    at_first = [wire.is_paused for _, wire in connected]
    await asyncio.sleep(0)
    after_an_iteration = [wire.sent for _, wire in connected]
    await pass_time(0.001)

    assert at_first == [True] * 3
    assert after_an_iteration == [b""] * 3
    assert app.body_sizes == [size] * 3
    assert [wire.is_paused for _, wire in connected] == [False] * 3


@in_virtual_time
async def test_a_short_request_does_not_wait_for_the_bodies_of_other_connections() -> None:
    slots, limiter = ParsingSlots(SteppingClock()), build_limiter(2)
    protocol, body_wire = connect(limiter, slots=slots)
    size = 100 * MAX_PIECE_BYTES
    protocol.data_received(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + b"a" * size)
    other, wire = connect(limiter, slots=slots)
    other.data_received(HEAD)
    for _ in range(5):
        await asyncio.sleep(0)

    assert wire.sent.startswith(b"HTTP/1.1 200 ")
    assert body_wire.is_paused


@in_virtual_time
async def test_requests_behind_a_body_are_answered_after_its_turns() -> None:
    app = ReadingApp()
    protocol, wire = connect(build_limiter(1), app=app, slots=ParsingSlots(SteppingClock()))
    size = 3 * MAX_PIECE_BYTES
    body_request = b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + b"a" * size
    protocol.data_received(body_request * 3 + HEAD)
    await pass_time(0.001)

    assert app.body_sizes == [size, size, size, 0]
    assert not wire.is_paused
