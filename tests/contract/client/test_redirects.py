"""A server that answers with a redirect: nothing is sent to the address that it names."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from wharf.contract.client.http_transport import HttpTransport, SyncHttpTransport
from wharf.contract.client.relay.http import HttpRelay
from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.relay.websockets import HandshakeRefused, WebSocketRelay
from wharf.contract.client.transport import ClientRequest, Unreachable
from wharf.world.http_clients import build_async_client, build_client

TOKEN = ((b"x-cluster-token", b"secret"),)


async def open_socket(address: str) -> int:
    try:
        async with WebSocketRelay(address).open_socket(RelayRequest("GET", b"/", TOKEN)):
            return 101
    except HandshakeRefused as refused:
        return refused.status


async def relay_request(address: str) -> int:
    relay = HttpRelay(address)
    try:
        async with relay.open(RelayRequest("GET", b"/", TOKEN)) as reply:
            return reply.status
    finally:
        await relay.close()


async def send_request(address: str) -> int:
    transport = HttpTransport(address, token="secret")
    try:
        return (await transport.send(ClientRequest("GET", "/"))).status
    finally:
        await transport.close()


async def send_blocking_request(address: str) -> int:
    transport = SyncHttpTransport(address, token="secret")
    try:
        return (await asyncio.to_thread(transport.send, ClientRequest("GET", "/"))).status
    finally:
        transport.close()


async def get_with_client(address: str) -> int:
    async with build_async_client() as client:
        return (await client.get(address)).status_code


async def get_with_blocking_client(address: str) -> int:
    with build_client() as client:
        return (await asyncio.to_thread(client.get, address)).status_code


async def redirect(send: Callable[[str], Awaitable[int]], status: int) -> tuple[int, int]:
    """Return the status that the function returns for a redirecting server, and the number of connections to the target."""
    connections = 0

    async def count_connection(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    target = await asyncio.start_server(count_connection, "127.0.0.1", 0)
    port = target.sockets[0].getsockname()[1]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            f"HTTP/1.1 {status} Found\r\nLocation: http://127.0.0.1:{port}/secret\r\nContent-Length: 0\r\n\r\n".replace(
                "http:", "ws:" if send is open_socket else "http:"
            ).encode()
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(20):
            return await send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), connections
    finally:
        server.close()
        target.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "send",
    [open_socket, relay_request, send_request, send_blocking_request, get_with_client, get_with_blocking_client],
)
def test_no_client_follows_a_redirect(send: Callable[[str], Awaitable[int]], status: int) -> None:
    assert asyncio.run(redirect(send, status)) == (status, 0)


@pytest.mark.parametrize("target", [b"@127.0.0.1:{port}/", b"0/", b".example.org/", b""])
def test_a_websocket_target_cannot_change_the_host(target: bytes) -> None:
    async def open_target(address: str) -> int:
        port = int(address.rpartition(":")[2])
        outgoing = RelayRequest("GET", target.replace(b"{port}", b"%d" % port), TOKEN)
        with pytest.raises(Unreachable, match="does not begin with /"):
            async with WebSocketRelay("http://127.0.0.2:4646").open_socket(outgoing):
                pass
        return 0

    assert asyncio.run(redirect(open_target, 301)) == (0, 0)


def test_a_client_cannot_be_built_to_follow_redirects() -> None:
    with pytest.raises(TypeError):
        build_async_client(follow_redirects=True)
    with pytest.raises(TypeError):
        build_client(follow_redirects=True)
