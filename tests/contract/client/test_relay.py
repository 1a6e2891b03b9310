"""The HTTP relay: requests are forwarded unchanged and in parts, and errors report whether the request was sent."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from tests.waiting import wait_on_loop_until
from wharf.contract.client.relay.http import HttpRelay
from wharf.contract.client.relay.port import RelayReply, RelayRequest
from wharf.contract.client.transport import Unreachable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def with_server(serve: Serve, use: Callable[[HttpRelay], Awaitable[None]]) -> None:
    """Call `use` with a relay to a server with this handler."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    relay = HttpRelay(f"http://127.0.0.1:{port}")
    try:
        await use(relay)
    finally:
        await relay.close()
        server.close()
        await server.wait_closed()


async def read_body(incoming: RelayReply) -> bytes:
    return b"".join([part async for part in incoming.parts])


def test_request_and_reply_are_forwarded_unchanged() -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        received.append(await reader.readexactly(4))
        writer.write(
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\nx-cluster-index: 7\r\ncontent-encoding: gzip\r\n\r\n\x1f\x8b!"
        )
        await writer.drain()
        writer.close()

    async def use(relay: HttpRelay) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield b"bo"
            yield b"dy"

        headers = ((b"x-cluster-token", b"abc"), (b"content-length", b"4"), (b"connection", b"close"))
        outgoing = RelayRequest("PUT", b"/v1/job/a%2Fb%20c?filter=a%20%3D%3D%20b&x=1+2", headers, body())
        async with relay.open(outgoing) as incoming:
            assert (incoming.status, await read_body(incoming)) == (404, b"\x1f\x8b!")
            reply_headers = dict(incoming.headers)
        assert (reply_headers[b"x-cluster-index"], reply_headers[b"content-encoding"]) == (b"7", b"gzip")

    asyncio.run(with_server(serve, use))

    lines = received[0].lower().split(b"\r\n")
    assert lines[0] == b"put /v1/job/a%2fb%20c?filter=a%20%3d%3d%20b&x=1+2 http/1.1"
    assert b"x-cluster-token: abc" in lines
    assert b"content-length: 4" in lines
    assert not any(line.startswith((b"transfer-encoding", b"connection: close")) for line in lines)
    assert received[1] == b"body"


def test_callers_share_no_connection_to_a_server_of_other_operators() -> None:
    async def count_connections(relays: Callable[[str], HttpRelay]) -> int:
        connections = ended = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections, ended
            connections += 1
            with suppress(asyncio.IncompleteReadError):
                while await reader.readuntil(b"\r\n\r\n"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            writer.close()
            await writer.wait_closed()
            ended += 1

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        relay = relays(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for _ in range(3):
            async with relay.open(RelayRequest("GET", b"/", ())) as incoming:
                await read_body(incoming)
        await relay.close()
        server.close()
        await wait_on_loop_until(lambda: ended == connections, what="the server has closed its connections")
        return connections

    alone = asyncio.run(count_connections(lambda address: HttpRelay(address, max_idle_connections=0)))

    assert (alone, asyncio.run(count_connections(HttpRelay))) == (3, 1)


def test_a_refused_connection_counts_as_not_sent() -> None:
    async def run_test() -> None:
        relay = HttpRelay("http://127.0.0.1:1")
        with pytest.raises(Unreachable) as unreachable:
            async with relay.open(RelayRequest("PUT", b"/v1/jobs", ())):
                pass
        await relay.close()
        assert unreachable.value.is_sent is False

    asyncio.run(run_test())


def test_a_connection_closed_before_the_reply_counts_as_sent() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def use(relay: HttpRelay) -> None:
        with pytest.raises(Unreachable) as unreachable:
            async with relay.open(RelayRequest("PUT", b"/v1/jobs", ())):
                pass
        assert unreachable.value.is_sent is True

    asyncio.run(with_server(serve, use))


def test_an_incomplete_reply_raises_an_error() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    async def use(relay: HttpRelay) -> None:
        async with relay.open(RelayRequest("GET", b"/v1/jobs", ())) as incoming:
            with pytest.raises(Unreachable):
                await read_body(incoming)

    asyncio.run(with_server(serve, use))


def test_leaving_a_stream_closes_the_connection_to_the_server() -> None:
    disconnected = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nline\r\n")
        await writer.drain()
        await reader.read()
        disconnected.set()
        writer.close()

    async def use(relay: HttpRelay) -> None:
        async with relay.open(RelayRequest("GET", b"/v1/agent/monitor", ())) as incoming:
            assert await anext(incoming.parts) == b"line"
        await wait_on_loop_until(disconnected.is_set, what="the server sees it")

    asyncio.run(with_server(serve, use))


def test_a_reader_that_does_not_read_stops_the_sender() -> None:
    sent, is_full = 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        try:
            while sent < 1_000_000_000:
                writer.write(b"x" * 1_000_000)
                sent += 1_000_000
                try:
                    async with asyncio.timeout(0.5):
                        await writer.drain()
                except TimeoutError:
                    is_full.set()
                    await writer.drain()
        except OSError:
            pass  # The reader has closed the connection.
        finally:
            writer.close()

    async def use(relay: HttpRelay) -> None:
        async with relay.open(RelayRequest("GET", b"/v1/jobs", ())) as incoming:
            await anext(incoming.parts)
            await wait_on_loop_until(is_full.is_set, what="the sender has to wait")
            assert sent < 50_000_000

    asyncio.run(with_server(serve, use))
