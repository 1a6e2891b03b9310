"""Passing requests on over a socket: as they came, part by part, and honest about what was sent."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.waiting import wait_on_loop_until
from wharf.contract.client.relay.http import HttpRelay
from wharf.contract.client.relay.port import RelayReply, RelayRequest
from wharf.contract.client.transport import Unreachable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def with_server(serve: Serve, use: Callable[[HttpRelay], Awaitable[None]]) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    passage = HttpRelay(f"http://127.0.0.1:{port}")
    try:
        await use(passage)
    finally:
        await passage.close()
        server.close()
        await server.wait_closed()


async def all_of(incoming: RelayReply) -> bytes:
    return b"".join([part async for part in incoming.parts])


def test_path_query_headers_and_body_arrive_as_they_were_and_so_does_the_reply() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        seen.append(await reader.readexactly(4))
        writer.write(
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\nx-cluster-index: 7\r\ncontent-encoding: gzip\r\n\r\n\x1f\x8b!"
        )
        await writer.drain()
        writer.close()

    async def use(passage: HttpRelay) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield b"bo"
            yield b"dy"

        headers = ((b"x-cluster-token", b"abc"), (b"content-length", b"4"), (b"connection", b"close"))
        outgoing = RelayRequest("PUT", b"/v1/job/a%2Fb%20c?filter=a%20%3D%3D%20b&x=1+2", headers, body())
        async with passage.open(outgoing) as incoming:
            assert (incoming.status, await all_of(incoming)) == (404, b"\x1f\x8b!")
            told = dict(incoming.headers)
        assert (told[b"x-cluster-index"], told[b"content-encoding"]) == (b"7", b"gzip")

    asyncio.run(with_server(serve, use))

    lines = seen[0].lower().split(b"\r\n")
    assert lines[0] == b"put /v1/job/a%2fb%20c?filter=a%20%3d%3d%20b&x=1+2 http/1.1"
    assert b"x-cluster-token: abc" in lines
    assert b"content-length: 4" in lines
    assert not any(line.startswith((b"transfer-encoding", b"connection: close")) for line in lines)
    assert seen[1] == b"body"


def test_where_nobody_listens_nothing_was_sent() -> None:
    async def scene() -> None:
        passage = HttpRelay("http://127.0.0.1:1")
        with pytest.raises(Unreachable) as unreachable:
            async with passage.open(RelayRequest("PUT", b"/v1/jobs", ())):
                pass
        await passage.close()
        assert unreachable.value.is_sent is False

    asyncio.run(scene())


def test_a_server_that_hangs_up_before_it_answers_may_have_heard_it() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def use(passage: HttpRelay) -> None:
        with pytest.raises(Unreachable) as unreachable:
            async with passage.open(RelayRequest("PUT", b"/v1/jobs", ())):
                pass
        assert unreachable.value.is_sent is True

    asyncio.run(with_server(serve, use))


def test_a_reply_that_breaks_off_is_no_whole_one() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    async def use(passage: HttpRelay) -> None:
        async with passage.open(RelayRequest("GET", b"/v1/jobs", ())) as incoming:
            with pytest.raises(Unreachable):
                await all_of(incoming)

    asyncio.run(with_server(serve, use))


def test_who_leaves_a_stream_hangs_up_on_its_server() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nline\r\n")
        await writer.drain()
        await reader.read()
        gone.set()
        writer.close()

    async def use(passage: HttpRelay) -> None:
        async with passage.open(RelayRequest("GET", b"/v1/agent/monitor", ())) as incoming:
            assert await anext(incoming.parts) == b"line"
        await wait_on_loop_until(gone.is_set, what="the server sees it")

    asyncio.run(with_server(serve, use))


def test_a_reader_that_takes_nothing_stops_the_sender() -> None:
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
            pass  # The reader has gone.
        finally:
            writer.close()

    async def use(passage: HttpRelay) -> None:
        async with passage.open(RelayRequest("GET", b"/v1/jobs", ())) as incoming:
            await anext(incoming.parts)
            await wait_on_loop_until(is_full.is_set, what="the sender has to wait")
            assert sent < 50_000_000

    asyncio.run(with_server(serve, use))
