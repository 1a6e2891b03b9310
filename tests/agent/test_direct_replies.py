"""Replies written in one step: the bytes equal those of uvicorn, and special requests are left to uvicorn."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvicorn

from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.agent.http.protocol import DirectReplyProtocol
from wharf.cluster.api.connection import Headers, take_connection

HEADERS = [(b"content-type", b"application/json"), (b"x-cluster-index", b"7")]
REQUEST = b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\n\r\n"

App = Callable[[Any, Any, Any], Awaitable[None]]


class Wire(asyncio.Transport):
    """A transport that records each write, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40_000), "sockname": ("127.0.0.1", 4646)})
        self.writes: list[bytes] = []
        self.is_closed = False

    @property
    def sent(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: bytes) -> None:  # type: ignore[override]  # only bytes are written
        self.writes.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def connect(app: App) -> tuple[DirectReplyProtocol, Wire]:
    config = uvicorn.Config(app, lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    wire = Wire()
    protocol = DirectReplyProtocol(config, uvicorn.server.ServerState(), {})
    protocol.connection_made(wire)
    return protocol, wire


def build_app(*, at_once: bool, headers: Headers = HEADERS, body: bytes = b"[1]") -> App:
    async def app(scope: Any, _receive: Any, send: Any) -> None:
        connection = take_connection(scope)
        assert connection is not None
        if at_once and connection.try_write_reply(200, headers, body):
            return
        reply_headers = [*headers, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": reply_headers})
        await send({"type": "http.response.body", "body": body})

    return app


async def exchange(app: App, *requests: bytes) -> Wire:
    protocol, wire = connect(app)
    for request in requests:
        protocol.data_received(request)
    await pass_time(1.0)
    return wire


def split_reply(reply: bytes) -> tuple[Sequence[bytes], bytes]:
    """Return the sorted header lines and the body of a reply."""
    head, _, body = reply.partition(b"\r\n\r\n")
    return sorted(head.split(b"\r\n")), body


@in_virtual_time
async def test_a_reply_written_in_one_step_equals_the_one_in_two_steps() -> None:
    one_step, two_steps = [await exchange(build_app(at_once=at_once), REQUEST) for at_once in (True, False)]

    assert (len(one_step.writes), len(two_steps.writes)) == (1, 2)
    assert split_reply(one_step.sent) == split_reply(two_steps.sent)


@pytest.mark.parametrize(
    "request_",
    [
        b"HEAD /v1/jobs HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /v1/jobs HTTP/1.0\r\n\r\n",
    ],
)
def test_special_requests_are_answered_by_the_http_library(request_: bytes) -> None:
    @in_virtual_time
    async def scenario() -> None:
        reply_at_once, reply_in_steps = [
            await exchange(build_app(at_once=at_once), request_) for at_once in (True, False)
        ]

        assert (reply_at_once.sent, reply_at_once.is_closed) == (reply_in_steps.sent, reply_in_steps.is_closed)

    scenario()


@in_virtual_time
async def test_pipelined_requests_are_answered_in_order_on_one_connection() -> None:
    wire = await exchange(build_app(at_once=True), REQUEST + REQUEST, REQUEST)

    assert wire.sent.count(b"HTTP/1.1 200 OK") == 3
    assert not wire.is_closed


@in_virtual_time
async def test_a_header_value_with_a_line_break_does_not_split_the_reply() -> None:
    unsafe_headers = [(b"x-cluster-nexttoken", b"a\r\nset-cookie: b")]

    wire = await exchange(build_app(at_once=True, headers=unsafe_headers), REQUEST)

    assert b"set-cookie" not in wire.sent


@in_virtual_time
async def test_a_waiting_handler_is_notified_once_when_the_client_disconnects() -> None:
    events: list[str] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        connection = take_connection(scope)
        assert connection is not None
        disconnected = asyncio.Event()

        def on_disconnect() -> None:
            events.append("gone")
            disconnected.set()

        assert connection.set_disconnect_callback(on_disconnect)
        await disconnected.wait()

    protocol, _ = connect(app)
    protocol.data_received(REQUEST)
    await pass_time(1.0)
    before = list(events)

    protocol.connection_lost(None)
    await pass_time(1.0)

    assert (before, events) == ([], ["gone"])


@in_virtual_time
async def test_a_request_with_a_body_reports_the_disconnect_while_receiving() -> None:
    answers: list[bool] = []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        connection = take_connection(scope)
        assert connection is not None
        answers.append(connection.set_disconnect_callback(lambda: None))
        await build_app(at_once=False)({"extensions": {"wharf.connection": connection}}, _receive, send)

    await exchange(app, b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")

    assert answers == [False]
