"""HTTP clients and servers that send too much, too slowly or without end: limits for time, bytes and the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import httpx2
import pytest

from tests.kit.loop_holds import LoopHolds, measure_holds
from wharf.contract.client import ClientRequest, Unreachable
from wharf.contract.client.http_transport import HttpTransport, SyncHttpTransport
from wharf.world.http_clients import build_async_client, build_client, read_body
from wharf.world.reply_pieces import (
    MAX_HEAD_BYTES,
    MAX_HEAD_LINES,
    MAX_INTERIM_REPLIES,
    MAX_PIECE_LINES,
    ReplySplitter,
    ReplyTooLarge,
)

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
FINAL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def send_forever(writer: asyncio.StreamWriter, data: bytes) -> None:
    while True:
        writer.write(data)
        await writer.drain()


async def with_server(answer: Answer, use: Callable[[str], Awaitable[object]]) -> object:
    """Call `use` with the address of a server that answers each request like this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await answer(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        return await use(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()


async def fetch(address: str, timeout_s: float = 5.0) -> bytes:
    transport = HttpTransport(address)
    try:
        return (await transport.send(ClientRequest("GET", "/", timeout_s=timeout_s))).body
    finally:
        await transport.close()


def run_against(answer: Answer, use: Callable[[str], Awaitable[object]] = fetch) -> tuple[object, LoopHolds]:
    """Return what `use` returns with such a server, or its error, and the holds of the event loop."""

    async def run_test() -> object:
        async with asyncio.timeout(90):
            return await with_server(answer, use)

    asyncio.run(with_server(lambda writer: _write(writer, FINAL), fetch))  # Loads modules before the measurement.
    with measure_holds() as holds:
        try:
            return asyncio.run(run_test()), holds
        except Unreachable as error:
            return str(error), holds


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)


def test_endless_interim_replies_fail_the_call_and_do_not_hold_the_loop() -> None:
    result, holds = run_against(lambda writer: send_forever(writer, INTERIM * 2_600))

    assert f"the server sent more than {MAX_INTERIM_REPLIES} interim replies" in str(result)
    holds.require_short("a flood of interim replies")


def test_a_few_interim_replies_are_skipped() -> None:
    result, _ = run_against(lambda writer: _write(writer, INTERIM * MAX_INTERIM_REPLIES + FINAL))

    assert result == b"ok"


def test_each_reply_of_a_connection_may_have_interim_replies() -> None:
    async def fetch_twice(address: str) -> object:
        async with build_async_client() as http:
            return [(await http.get(address)).content for _ in range(2)]

    result, _ = run_against(lambda writer: _write(writer, INTERIM * MAX_INTERIM_REPLIES + FINAL), fetch_twice)

    assert result == [b"ok", b"ok"]


OWN = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n3\r\nown\r\n0\r\nx: y\r\n\r\n"
NEXT = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"


async def fetch_thrice(address: str) -> object:
    async with build_async_client() as http:
        return [(await http.get(address)).content for _ in range(3)]


async def fetch_thrice_blocking(address: str) -> object:
    def fetch_all() -> list[bytes]:
        with build_client() as http:
            return [http.get(address).content for _ in range(3)]

    return await asyncio.to_thread(fetch_all)


@pytest.mark.parametrize("fetch_all", [fetch_thrice, fetch_thrice_blocking])
@pytest.mark.parametrize("own", [OWN, CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("extra", [NEXT, b"x" * 100, INTERIM, b"H"], ids=["reply", "text", "interim", "byte"])
def test_bytes_after_a_reply_are_not_the_reply_to_the_next_request(
    own: bytes, extra: bytes, fetch_all: Callable[[str], Awaitable[object]]
) -> None:
    result, _ = run_against(lambda writer: _write(writer, own + extra), fetch_all)

    assert result == [b"own"] * 3


def test_a_connection_without_further_bytes_is_used_again() -> None:
    connections: set[object] = set()

    async def answer(writer: asyncio.StreamWriter) -> None:
        connections.add(writer.transport)
        writer.write(CHUNKED)

    assert (run_against(answer, fetch_thrice)[0], len(connections)) == ([b"own"] * 3, 1)


def test_a_body_of_tiny_chunks_does_not_hold_the_loop() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    result, holds = run_against(
        lambda writer: _write(writer, head + b"1\r\nx\r\n" * 30_000 + b"0\r\n\r\n"), partial(fetch, timeout_s=60)
    )

    assert result == b"x" * 30_000
    holds.require_short("a body of tiny chunks")


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        pytest.param((b"X: " + b"a" * 400 + b"\r\n") * 200, f"more than {MAX_HEAD_BYTES} bytes", id="bytes"),
        pytest.param(b"X: a\r\n" * (MAX_HEAD_LINES + 1), f"more than {MAX_HEAD_LINES} lines", id="lines"),
        pytest.param(b"X: " + b"a" * 5_000_000 + b"\r\n", f"more than {MAX_HEAD_BYTES} bytes", id="one header"),
    ],
)
def test_a_head_that_is_too_large_fails_the_call(head: bytes, problem: str) -> None:
    result, holds = run_against(lambda writer: _write(writer, b"HTTP/1.1 200 OK\r\n" + head + b"\r\n"))

    assert problem in str(result)
    holds.require_short("a large head")


async def send_slowly(writer: asyncio.StreamWriter, data: bytes, ended: asyncio.Event) -> None:
    """Send a byte every 50 ms."""
    for byte in data:
        writer.write(bytes([byte]))
        await writer.drain()
        try:
            async with asyncio.timeout(0.05):
                await ended.wait()
        except TimeoutError:
            continue
        return


@pytest.mark.parametrize("reply", [FINAL * 10, b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 500], ids=["slow head", "slow body"])
def test_a_reply_that_trickles_fails_the_call_at_its_timeout(reply: bytes) -> None:
    sent_at_once = reply.index(b"\r\n\r\n") + 4 if reply.endswith(b"xx") else 0

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(reply[:sent_at_once])
        await send_slowly(writer, reply[sent_at_once:], asyncio.Event())

    async def fetch_shortly(address: str) -> object:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with pytest.raises(Unreachable):
            await fetch(address, timeout_s=0.3)
        return loop.time() - began_s

    result, _ = run_against(answer, fetch_shortly)

    assert isinstance(result, float)
    assert result < 1.5  # All of the reply takes at least 20 s.


def test_a_blocking_client_has_the_same_limits() -> None:
    async def fetch_blocking(address: str) -> object:
        def send() -> object:
            transport = SyncHttpTransport(address)
            try:
                return transport.send(ClientRequest("GET", "/", timeout_s=5.0)).body
            except Unreachable as error:
                return str(error)
            finally:
                transport.close()

        return await asyncio.to_thread(send)

    for reply, expected in (
        (FINAL, "ok"),
        (INTERIM * 100, "interim replies"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 99_999, "bytes"),
    ):
        result, _ = run_against(lambda writer, reply=reply: _write(writer, reply), fetch_blocking)  # type: ignore[misc]
        assert expected in str(result)


def test_a_body_larger_than_the_limit_is_rejected() -> None:
    async def fetch_little(address: str) -> object:
        async with build_async_client() as http, http.stream("GET", address) as reply:
            with pytest.raises(httpx2.ReadError, match="more than 1000 bytes"):
                await read_body(reply, timeout_s=5.0, max_bytes=1_000)
            return True

    result, _ = run_against(
        lambda writer: _write(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5_000), fetch_little
    )

    assert result is True


def test_a_reply_without_http_fails_at_once() -> None:
    result, _ = run_against(lambda writer: _write(writer, b"\x15\x03\x03\x00\x02\x02\x46"))

    assert "no reply from" in str(result)


def test_pieces_of_a_body_are_its_bytes_and_have_few_lines() -> None:
    splitter = ReplySplitter()
    body = b"a\n" * 1_000 + b"b" * 10_000 + b"\n\n" * 500
    splitter.add(b"HTTP/1.1 200 OK\r\n\r\n" + body[:1_500])
    pieces = [splitter.take(65_536)]
    splitter.add(body[1_500:])
    while piece := splitter.take(4_096):
        pieces.append(piece)

    assert pieces[0] == b"HTTP/1.1 200 OK\r\n\r\n"
    assert b"".join(pieces[1:]) == body
    assert max(piece.count(b"\n") for piece in pieces) <= MAX_PIECE_LINES
    assert max(map(len, pieces)) <= 4_096


def test_a_head_in_parts_is_returned_whole() -> None:
    splitter = ReplySplitter()
    for byte in FINAL[:-3]:
        splitter.add(bytes([byte]))
        assert splitter.take(100) == b""
    splitter.add(FINAL[-3:])

    assert (splitter.take(100), splitter.take(100)) == (FINAL[:-2], b"ok")


def test_switching_protocols_is_a_final_reply() -> None:
    splitter = ReplySplitter()
    splitter.add(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + b"\x00" * 100_000)

    splitter.take(65_536)

    assert not splitter.is_in_head


def test_a_head_without_end_is_rejected() -> None:
    splitter = ReplySplitter()
    splitter.add(b"H" * (MAX_HEAD_BYTES + 1))

    with pytest.raises(ReplyTooLarge, match="the head of the reply has more than"):
        splitter.take(65_536)
