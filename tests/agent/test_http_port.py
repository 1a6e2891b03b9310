"""The HTTP port: websockets are closed with a reason when it stops, and the address of a caller is that of its socket."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.waiting import WITHIN_S, wait_on_loop_until
from wharf.agent.http.server import MAX_WEBSOCKET_MESSAGE_BYTES, HttpServer
from wharf.agent.sockets import listen_tcp
from wharf.cluster.api.settings import ApiSettings
from wharf.cluster.api.websockets.sockets import GOING_AWAY_CODE, CallerSocket
from wharf.config.settings import AgentSettings
from wharf.contract.model.settings import Duration
from wharf.contract.model.times import MINUTE
from wharf.world import RealWorld
from wharf.world.tasks import run_until_first

HOST = "127.0.0.1"
LONG_GRACE = msgspec.structs.replace(AgentSettings(), api=ApiSettings(shutdown_grace=Duration(60 * MINUTE)))


class Port:
    """An application for websockets: sends endlessly on `/flood` and nothing elsewhere, until the server stops.

    HTTP requests get the scheme and the address of their caller.
    """

    def __init__(self) -> None:
        self.world = RealWorld()
        self.closing = asyncio.Event()
        self.sent_count = 0
        listening = listen_tcp(HOST, 0)
        self.number = listening.getsockname()[1]
        self.http = HttpServer(self.world, self, LONG_GRACE, listening.detach())

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        if scope["type"] == "http":
            client = f"{scope['scheme']} {scope['client'][0]}".encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": client})
            return
        socket = CallerSocket(scope, receive, send, self.closing)
        await socket.accept()
        talking = self._flood(socket) if scope["path"] == "/flood" else socket.receive()
        await run_until_first(self.world, talking=talking, closing=self.closing.wait())
        await socket.close(GOING_AWAY_CODE, "this server is stopping")

    async def _flood(self, socket: CallerSocket) -> None:
        while True:
            await socket.send(b"x" * 65_536)
            self.sent_count += 1


@asynccontextmanager
async def serve_until_exit(port: Port | None = None) -> AsyncIterator[Port]:
    """Serve a port, request its stop at the end of the block, and wait until it has stopped."""
    port = port or Port()
    await port.http.open()
    serving = port.world.start_task(port.http.serve(port.closing), name="serving")
    try:
        yield port
    finally:
        port.closing.set()
        async with asyncio.timeout(WITHIN_S):
            await serving


def test_a_websocket_is_closed_with_a_reason_when_the_server_stops() -> None:
    async def test() -> tuple[int | None, str | None]:
        async with serve_until_exit() as port:
            caller = await connect(f"ws://{HOST}:{port.number}/", compression=None)
        with pytest.raises(ConnectionClosed):
            await caller.recv()
        return caller.close_code, caller.close_reason

    assert (1001, "this server is stopping") == asyncio.run(test())


def test_a_client_that_reads_nothing_does_not_delay_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serve_until_exit() as port:
            stalled = await _connect_stalled_client(port)
        stalled.close()

    asyncio.run(test())

    assert [] == [record for record in caplog.records if record.levelno >= logging.ERROR]


async def _connect_stalled_client(port: Port) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(HOST, port.number, limit=1)
    writer.write(
        b"GET /flood HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    await reader.read(1)
    last_count = -1

    def is_stalled() -> bool:
        nonlocal last_count
        previous, last_count = last_count, port.sent_count
        return port.sent_count > 0 and port.sent_count == previous

    await wait_on_loop_until(is_stalled, what="the send buffer is full")
    return writer


def test_headers_of_proxies_do_not_change_the_address_of_a_local_caller() -> None:
    async def test() -> bytes:
        async with serve_until_exit() as port:
            reader, writer = await asyncio.open_connection(HOST, port.number)
            writer.write(
                b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Forwarded-For: 10.9.9.9\r\n"
                b"X-Forwarded-Proto: https\r\nForwarded: for=10.9.9.9\r\nX-Real-IP: 10.9.9.9\r\n\r\n"
            )
            reply = await reader.read()
            writer.close()
            return reply

    assert asyncio.run(test()).endswith(b"http 127.0.0.1\r\n0\r\n\r\n")


def test_a_client_can_read_the_reply_to_a_request_line_that_is_far_too_long() -> None:
    async def test() -> list[bytes]:
        replies = []
        async with serve_until_exit() as port:
            for _ in range(5):
                reader, writer = await asyncio.open_connection(HOST, port.number)
                writer.write(b"GET /" + b"a" * 2_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
                await writer.drain()
                replies.append(await reader.read())
                writer.close()
        return replies

    assert [reply[:12] for reply in asyncio.run(test())] == [b"HTTP/1.1 414"] * 5


def test_a_connection_with_many_pipelined_requests_is_closed() -> None:
    async def test() -> tuple[bytes, bytes]:
        request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        async with serve_until_exit() as port:
            reader, writer = await asyncio.open_connection(HOST, port.number)
            writer.write(request * 50)
            few = b""
            while few.count(b"HTTP/1.1 200") < 50:
                few += await reader.read(65_536)
            writer.write(request * 50_000)
            many = b""
            with suppress(ConnectionError):
                while part := await reader.read(65_536):
                    many += part
            writer.close()
        return few, many

    few, many = asyncio.run(test())

    assert few.count(b"HTTP/1.1 200") == 50
    assert many.count(b"HTTP/1.1 200") < 50_000


@pytest.mark.parametrize("compression", ["deflate", None])
def test_a_websocket_message_above_its_limit_ends_the_connection(compression: str | None) -> None:
    async def test() -> tuple[bool, int | None]:
        async with serve_until_exit() as port:
            caller = await connect(f"ws://{HOST}:{port.number}/", compression=compression)
            is_compressed = bool(caller.protocol.extensions)
            await caller.send(b"x" * (MAX_WEBSOCKET_MESSAGE_BYTES + 1))
            with pytest.raises(ConnectionClosed):
                await caller.recv()
        return is_compressed, caller.close_code

    assert asyncio.run(test()) == (False, 1009)
