"""Requests over real sockets: what is told when nobody answers."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.ports import free_ports
from wharf.contract.client import ClientRequest, Unreachable
from wharf.contract.client.http_transport import HttpTransport

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def send(address: str, path: str = "/v1/jobs", timeout_s: float = 5.0) -> object:
    exchange = HttpTransport(address)
    try:
        return await exchange.send(ClientRequest("GET", path, (("a", "1"),), {"x-one": "1"}, b"", timeout_s))
    finally:
        await exchange.close()


async def with_server(talk: Talk, timeout_s: float = 5.0, path: str = "/v1/jobs") -> object:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        return await send(f"http://127.0.0.1:{port}", path, timeout_s)
    finally:
        server.close()


def test_where_nobody_listens_nothing_was_sent() -> None:
    with pytest.raises(Unreachable) as told:
        asyncio.run(send(f"http://127.0.0.1:{free_ports(1)[0]}"))

    assert not told.value.is_sent
    assert "no server answers at" in str(told.value)


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "http://[::1", "nonsense"])
def test_an_address_that_is_none_is_told_and_nothing_was_sent(address: str) -> None:
    with pytest.raises(Unreachable) as told:
        asyncio.run(send(address))

    assert not told.value.is_sent


def test_a_server_that_hangs_up_may_have_done_what_was_asked() -> None:
    async def hang_up(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    with pytest.raises(Unreachable) as told:
        asyncio.run(with_server(hang_up))

    assert told.value.is_sent


def test_a_server_that_says_nothing_may_have_done_what_was_asked() -> None:
    async def be_silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(Unreachable) as told:
        asyncio.run(with_server(be_silent, timeout_s=0.2))

    assert told.value.is_sent


def test_what_is_no_http_is_told() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"guten tag\r\n\r\n")

    with pytest.raises(Unreachable):
        asyncio.run(with_server(babble))


def test_a_reply_has_status_headers_in_lower_case_and_body_and_paths_stay_as_they_are() -> None:
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\nX-Cluster-Index: 7\r\nContent-Length: 3\r\n\r\nabc")
        await writer.drain()

    reply = asyncio.run(with_server(answer, path="/v1/job/a%2Fsummary"))

    assert (reply.status, reply.headers["x-cluster-index"], reply.body) == (404, "7", b"abc")  # type: ignore[attr-defined]
    assert seen[0].startswith(b"GET /v1/job/a%2Fsummary?a=1 HTTP/1.1\r\n")
    assert b"x-one: 1" in seen[0]
