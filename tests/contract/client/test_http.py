"""The HTTP transport: errors on real sockets."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.ports import free_ports
from wharf.contract.client import ClientRequest, Unreachable
from wharf.contract.client.http_transport import HttpTransport

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def send(address: str, path: str = "/v1/jobs", timeout_s: float = 5.0) -> object:
    transport = HttpTransport(address)
    try:
        return await transport.send(ClientRequest("GET", path, (("a", "1"),), {"x-one": "1"}, b"", timeout_s))
    finally:
        await transport.close()


async def with_server(handle: Handler, timeout_s: float = 5.0, path: str = "/v1/jobs") -> object:
    """Send a request to a server with this handler, and return the reply."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        return await send(f"http://127.0.0.1:{port}", path, timeout_s)
    finally:
        server.close()


def test_a_refused_connection_counts_as_not_sent() -> None:
    with pytest.raises(Unreachable) as error:
        asyncio.run(send(f"http://127.0.0.1:{free_ports(1)[0]}"))

    assert not error.value.is_sent
    assert "cannot connect to" in str(error.value)


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "http://[::1", "nonsense"])
def test_an_invalid_address_counts_as_not_sent(address: str) -> None:
    with pytest.raises(Unreachable) as error:
        asyncio.run(send(address))

    assert not error.value.is_sent


def test_a_connection_closed_before_the_reply_counts_as_sent() -> None:
    async def close_connection(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    with pytest.raises(Unreachable) as error:
        asyncio.run(with_server(close_connection))

    assert error.value.is_sent


def test_a_timeout_counts_as_sent() -> None:
    async def send_nothing(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(Unreachable) as error:
        asyncio.run(with_server(send_nothing, timeout_s=0.2))

    assert error.value.is_sent


def test_a_reply_that_is_not_http_raises_an_error() -> None:
    async def send_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"guten tag\r\n\r\n")

    with pytest.raises(Unreachable):
        asyncio.run(with_server(send_garbage))


def test_a_reply_has_lower_case_headers_and_paths_stay_encoded() -> None:
    received: list[bytes] = []

    async def reply_404(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\nX-Cluster-Index: 7\r\nContent-Length: 3\r\n\r\nabc")
        await writer.drain()

    reply = asyncio.run(with_server(reply_404, path="/v1/job/a%2Fsummary"))

    assert (reply.status, reply.headers["x-cluster-index"], reply.body) == (404, "7", b"abc")  # type: ignore[attr-defined]
    assert received[0].startswith(b"GET /v1/job/a%2Fsummary?a=1 HTTP/1.1\r\n")
    assert b"x-one: 1" in received[0]
