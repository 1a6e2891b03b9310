"""Open streams, blocking queries and commands whose server freezes: the client leaves it, although silence is normal."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from http import HTTPStatus

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from tests.kit.virtual_time import in_virtual_time, now_s
from wharf.contract.client import AsyncClient, ClientSettings, RetryPolicy, Unreachable
from wharf.contract.client.exec import open_command
from wharf.contract.client.liveness import PROBE_INTERVAL_S, PROBE_PATH, PROBE_TIMEOUT_S
from wharf.contract.client.streams import LOG_RESUME_LIMIT_S
from wharf.contract.client.transport import REQUEST_TIMEOUT_S, ClientReply, ClientRequest
from wharf.world import SimulatedWorld

MAX_LEAVE_S = PROBE_INTERVAL_S + PROBE_TIMEOUT_S + 0.5
"""The documented limit until a frozen server is left."""
EVENT = (
    b'{"Index": 7, "Events": [{"Topic": "Job", "Type": "JobRegistered", "Key": "web", "Index": 7, "Payload": {}}]}\n'
)
FOREVER_S = 1_000_000.0


class FreezingServer:
    """The transport to a server that answers nothing from `frozen_from_s` on, and keeps its connections open."""

    def __init__(self, frozen_from_s: float = FOREVER_S, *, chunks: tuple[bytes, ...] = (b"{}\n",)) -> None:
        self._frozen_from_s = frozen_from_s
        self.chunks = chunks
        self.requests: list[ClientRequest] = []

    async def send(self, request: ClientRequest) -> ClientReply:
        self.requests.append(request)
        await self.answer()
        if request.is_long_running and self._frozen_from_s < FOREVER_S:
            await asyncio.Event().wait()
        return ClientReply(200, {"x-cluster-index": "9"}, b'"10.0.0.1:4646"' if request.path == PROBE_PATH else b"[]")

    async def open(self, request: ClientRequest) -> "FreezingStream":
        self.requests.append(request)
        try:
            async with asyncio.timeout(request.timeout_s):
                await self.answer()
        except TimeoutError:
            raise Unreachable("no reply", is_sent=True) from None
        return FreezingStream(self)

    async def answer(self) -> None:
        if now_s() >= self._frozen_from_s:
            await asyncio.Event().wait()

    async def close(self) -> None:
        return


class FreezingStream:
    """A stream that sends its chunks at once and is then silent."""

    status = 200

    def __init__(self, server: FreezingServer) -> None:
        self.headers: dict[str, str] = {}
        self._chunks = list(server.chunks)

    async def read_chunk(self) -> bytes:
        if not self._chunks:
            await asyncio.Event().wait()
        return self._chunks.pop(0)

    async def close(self) -> None:
        return


def make_client(*servers: FreezingServer) -> AsyncClient:
    world = SimulatedWorld(1, asyncio.get_running_loop().time)
    return AsyncClient(world, servers, retry_policy=RetryPolicy(max_pause_s=0.1), sends_probes=True)


async def follow_log(client: AsyncClient) -> None:
    async for _ in client.files.logs("a1", "main", follow=True):
        pass


async def wait_for_end(settings: ClientSettings) -> None:
    """Run a command and wait until it has ended."""
    async with open_command(settings, "a1", "main", ["sleep", "1000"]) as running:
        async for _ in running.read_output():
            pass


@in_virtual_time
async def test_an_event_stream_leaves_a_frozen_server() -> None:
    frozen, well = FreezingServer(frozen_from_s=20.0), FreezingServer(chunks=(EVENT,))

    async with aclosing(make_client(frozen, well).events.stream(["Job"])) as lines:
        line = await anext(lines)

    assert line.index == 7

    assert 20.0 < now_s() < 20.0 + MAX_LEAVE_S


@in_virtual_time
async def test_a_followed_log_leaves_a_frozen_server() -> None:
    frozen, well = FreezingServer(frozen_from_s=20.0), FreezingServer()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(follow_log(make_client(frozen, well)), 20.0 + MAX_LEAVE_S)

    assert [request.path for request in well.requests if request.path != PROBE_PATH] == ["/v1/client/fs/logs/a1"]


@in_virtual_time
async def test_a_followed_log_of_the_only_server_ends_with_an_error_when_it_cannot_be_resumed() -> None:
    frozen = FreezingServer(frozen_from_s=20.0)

    with pytest.raises(Unreachable):
        await follow_log(make_client(frozen))

    # The last attempt to resume it began in time, and had the time of a call.
    assert LOG_RESUME_LIMIT_S < now_s() < LOG_RESUME_LIMIT_S + REQUEST_TIMEOUT_S


@in_virtual_time
async def test_a_blocking_query_leaves_a_frozen_server() -> None:
    frozen, well = FreezingServer(frozen_from_s=20.0), FreezingServer()

    reply = await make_client(frozen, well).jobs.list(index=8, wait_s=300.0)

    assert reply.index == 9
    assert 20.0 < now_s() < 20.0 + MAX_LEAVE_S


@in_virtual_time
async def test_a_silent_stream_of_a_server_that_answers_probes_stays_open() -> None:
    server = FreezingServer()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(follow_log(make_client(server)), 600.0)

    assert [request.path for request in server.requests if request.path != PROBE_PATH] == ["/v1/client/fs/logs/a1"]


async def run_silent_command(process_request: Callable[[ServerConnection, Request], object]) -> float:
    """Run a command that prints nothing at a server that handles ordinary requests like this.

    Return after how many seconds it ended with an error.
    """

    async def wait_forever(connection: ServerConnection) -> None:
        await connection.wait_closed()

    server = await serve(wait_forever, "127.0.0.1", 0, process_request=process_request)  # type: ignore[arg-type]
    try:
        port = server.sockets[0].getsockname()[1]
        settings = ClientSettings(addresses=(f"http://127.0.0.1:{port}",))
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(Unreachable, match="broke before the command ended"):
            await wait_for_end(settings)
        return asyncio.get_running_loop().time() - began_s
    finally:
        server.close(close_connections=False)


def test_a_command_at_a_frozen_server_ends_within_three_seconds_of_a_missed_probe() -> None:
    async def answer_no_probe(_: ServerConnection, request: Request) -> Response | None:
        if request.path == PROBE_PATH:
            await asyncio.Event().wait()
        return None

    assert PROBE_TIMEOUT_S <= asyncio.run(run_silent_command(answer_no_probe)) < PROBE_TIMEOUT_S + 2.0


def test_a_silent_command_at_a_server_that_answers_probes_continues() -> None:
    async def run() -> bool:
        probed = asyncio.Event()

        def answer_probe(connection: ServerConnection, request: Request) -> Response | None:
            if request.path != PROBE_PATH:
                return None
            probed.set()
            return connection.respond(HTTPStatus.OK, '"10.0.0.1:4646"')

        running = asyncio.create_task(run_silent_command(answer_probe))
        await asyncio.wait_for(probed.wait(), 60.0)
        done, _ = await asyncio.wait([running], timeout=0.2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return bool(done)

    assert not asyncio.run(run())
