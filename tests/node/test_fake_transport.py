"""The HTTP transport of fake nodes: connections that are used again, errors on real sockets, and cut connections."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.ports import free_ports
from wharf.contract.client import ClientReply, ClientRequest, Unreachable
from wharf.node.fake_transport import FakeNodeTransport
from wharf.world import RealWorld

REPLY = b'HTTP/1.1 200 OK\r\nX-Cluster-Index: 7\r\ncontent-length: 4\r\n\r\n"ok"'
LAST_REPLY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbusy"
CHUNKED_REPLY = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n[1\r\n1\r\n]\r\n0\r\n\r\n"


class ScriptedServer:
    """A server that answers the requests of all connections with these replies in turn, the last one repeatedly."""

    def __init__(self, *replies: bytes) -> None:
        self._replies = list(replies)
        self.requests: list[bytes] = []
        self.connections = 0
        self.has_request = asyncio.Event()
        self._serving: list[asyncio.Task[None] | None] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._serving.append(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                self.requests.append(head + await reader.readexactly(length))
                self.has_request.set()
                writer.write(self._replies.pop(0) if len(self._replies) > 1 else self._replies[0])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def wait_closed(self) -> None:
        """Wait until all connections are closed. The clients have closed them."""
        await asyncio.gather(*(task for task in self._serving if task is not None))
        await asyncio.sleep(0)  # The event loop closes the sockets.


@asynccontextmanager
async def connected(server: ScriptedServer, *, token: str = "") -> AsyncIterator[FakeNodeTransport]:
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        transport = FakeNodeTransport(RealWorld(), f"http://127.0.0.1:{port}", token=token)
        try:
            yield transport
        finally:
            await transport.close()
            await server.wait_closed()


def a_request(body: bytes = b"", *, timeout_s: float = 5.0) -> ClientRequest:
    return ClientRequest(
        "PUT" if body else "GET", "/v1/nodes", (("index", "1"), ("wait", "60 s")), {"x-one": "1"}, body, timeout_s
    )


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def within_limit() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(within_limit())


def test_requests_and_replies_are_complete_and_share_a_connection() -> None:
    async def story() -> None:
        server = ScriptedServer(REPLY)
        async with connected(server, token="secret") as transport:
            first = await transport.send(a_request())
            await transport.send(a_request(b'{"a": 1}'))

            assert first == ClientReply(200, {"x-cluster-index": "7", "content-length": "4"}, b'"ok"')
            assert server.connections == 1
            assert server.requests[0].startswith(b"GET /v1/nodes?index=1&wait=60+s HTTP/1.1\r\nhost: 127.0.0.1:")
            assert b"\r\nx-cluster-token: secret\r\nx-one: 1\r\n" in server.requests[0]
            assert server.requests[1].endswith(b'\r\n\r\n{"a": 1}')

    run(story)


def test_a_chunked_reply_is_joined() -> None:
    async def story() -> None:
        async with connected(ScriptedServer(CHUNKED_REPLY)) as transport:
            assert (await transport.send(a_request())).body == b"[1]"

    run(story)


def test_a_connection_that_the_server_closes_after_its_reply_is_not_used_again() -> None:
    async def story() -> None:
        server = ScriptedServer(LAST_REPLY, REPLY)
        async with connected(server) as transport:
            replies = [await transport.send(a_request()) for _ in range(2)]

            assert [(reply.status, reply.body) for reply in replies] == [(503, b"busy"), (200, b'"ok"')]
            assert server.connections == 2

    run(story)


def test_concurrent_requests_use_connections_of_their_own() -> None:
    async def story() -> None:
        server = ScriptedServer(REPLY)
        async with connected(server) as transport:
            await asyncio.gather(*(transport.send(a_request()) for _ in range(5)))

            assert server.connections == 5

    run(story)


def test_a_refused_connection_counts_as_not_sent() -> None:
    async def story() -> None:
        transport = FakeNodeTransport(RealWorld(), f"http://127.0.0.1:{free_ports(1)[0]}")

        with pytest.raises(Unreachable) as error:
            await transport.send(a_request())

        assert not error.value.is_sent

    run(story)


def test_a_request_without_a_reply_counts_as_sent() -> None:
    async def story() -> None:
        async with connected(ScriptedServer(b"")) as transport:
            with pytest.raises(Unreachable) as error:
                await transport.send(a_request(timeout_s=0.1))

            assert error.value.is_sent

    run(story)


def test_a_reply_that_is_not_http_counts_as_sent() -> None:
    async def story() -> None:
        async with connected(ScriptedServer(b"nonsense\r\n\r\n")) as transport:
            with pytest.raises(Unreachable) as error:
                await transport.send(a_request())

            assert error.value.is_sent

    run(story)


def test_a_late_reply_does_not_answer_the_next_request() -> None:
    async def story() -> None:
        server = ScriptedServer(b"HTTP/1.1 200 OK\r\n", REPLY)
        async with connected(server) as transport:
            with pytest.raises(Unreachable):
                await transport.send(a_request(timeout_s=0.1))

            assert (await transport.send(a_request())).body == b'"ok"'
            assert server.connections == 2

    run(story)


def test_cut_connections_end_their_requests_and_the_next_request_connects_again() -> None:
    async def story() -> None:
        server = ScriptedServer(b"", REPLY)
        async with connected(server) as transport:
            waiting = asyncio.create_task(transport.send(a_request()))
            await server.has_request.wait()

            assert transport.cut() == 1
            with pytest.raises(Unreachable) as error:
                await waiting

            assert error.value.is_sent
            assert (await transport.send(a_request())).status == 200

    run(story)


def test_a_unix_socket_can_be_an_address(tmp_path: Path) -> None:
    async def story() -> None:
        server = ScriptedServer(REPLY)
        async with await asyncio.start_unix_server(server.serve, tmp_path / "api.sock"):
            transport = FakeNodeTransport(RealWorld(), f"unix://{tmp_path}/api.sock")
            reply = await transport.send(a_request())
            await transport.close()
            await server.wait_closed()

            assert reply.body == b'"ok"'

    run(story)
