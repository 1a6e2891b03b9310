"""Websockets: passed on to another region with all that is said, and refused in the words of the plain request."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import msgspec
import pytest
from websockets.asyncio.server import Server as EchoServer
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from tests.kit.cluster import ACluster
from tests.kit.passage import InMemoryPassage
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.api.relay.regions import RegionRelay
from wharf.cluster.engines.memory.engine import MemoryEngine
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.server.relay import HOPS_HEADER, RequestRelay
from wharf.cluster.server.server import Server, ServerIdentity
from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.relay.websockets import WebSocketRelay
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import RealWorld

WORLD = RealWorld()
EXEC = "/v1/client/allocation/11111111-1111-4111-8111-111111111111/exec"


def on_a_real_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(10.0):
                await test()

        asyncio.run(bounded())

    return run


class Caller:
    """Who opens a websocket at an application in memory."""

    def __init__(
        self,
        app: Any,
        path: str,
        query: str = "",
        *,
        hops: bytes = b"",
        headers: Sequence[tuple[bytes, bytes]] = ((b"x-cluster-token", b"a-token"),),
    ) -> None:
        self._says: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.hears: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        headers = [*headers, (b"sec-websocket-key", b"x"), (b"connection", b"Upgrade")]
        scope: dict[str, Any] = {
            "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": [*headers, *([(HOPS_HEADER, hops)] if hops else [])], "subprotocols": ["frames"],
            "extensions": {"websocket.http.response": {}}, "scheme": "ws", "client": None, "server": None,
        }  # fmt: skip
        self.say(type="websocket.connect")
        self._running = asyncio.get_running_loop().create_task(app(scope, self._says.get, self.hears.put))

    def say(self, **message: Any) -> None:
        self._says.put_nowait(message)

    async def is_over(self) -> None:
        await self._running

    async def heard_of(self, kind: str) -> dict[str, Any]:
        message = await self.hears.get()
        assert message["type"] == kind, message
        return message

    async def refusal(self) -> tuple[int, bytes]:
        start = await self.heard_of("websocket.http.response.start")
        body = await self.heard_of("websocket.http.response.body")
        return start["status"], body["body"]


async def echo(connection: ServerConnection) -> None:
    """Says back what it hears, and ends with 4001 when it is told to."""
    assert connection.request is not None
    await connection.send(f"{connection.request.path} {connection.request.headers['x-cluster-token']}")
    async for message in connection:
        if message == "end":
            await connection.close(4001)
        await connection.send(message)


@asynccontextmanager
async def west(**options: Any) -> AsyncIterator[tuple[EchoServer, str]]:
    server = await serve(echo, "127.0.0.1", 0, subprotocols=["frames"], **options)  # type: ignore[list-item]  # texts
    try:
        yield server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def a_door(*addresses: str) -> RegionRelay:
    engine = MemoryEngine(WORLD, MemoryLog(WORLD))
    server = Server(WORLD, engine, ServerIdentity("e1", "e1", region="east"))
    server.relay = RequestRelay(
        lambda _address: InMemoryPassage(None), regions={"west": list(addresses)}, sockets_to=WebSocketRelay
    )
    return RegionRelay(nothing_here, server)


async def nothing_here(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("what is of another region is not answered here")


@on_a_real_loop
async def test_messages_pass_both_ways_as_they_are_with_path_token_and_the_way_of_speaking() -> None:
    async with west() as (_, address):
        caller = Caller(a_door("http://127.0.0.1:9", address), EXEC, "region=west&task=t")

        accepted = await caller.heard_of("websocket.accept")
        greeting = await caller.heard_of("websocket.send")
        caller.say(type="websocket.receive", text="ls")
        text = await caller.heard_of("websocket.send")
        caller.say(type="websocket.receive", bytes=b"\x00\xff" * 100_000)
        data = await caller.heard_of("websocket.send")
        caller.say(type="websocket.disconnect", code=1000)
        await caller.is_over()

        assert (accepted["subprotocol"], greeting["text"]) == ("frames", f"{EXEC}?region=west&task=t a-token")
        assert (text["text"], data["bytes"]) == ("ls", b"\x00\xff" * 100_000)


@on_a_real_loop
async def test_the_code_with_which_the_other_end_closes_is_told() -> None:
    async with west() as (_, address):
        caller = Caller(a_door(address), EXEC, "region=west")
        await caller.heard_of("websocket.accept")
        await caller.heard_of("websocket.send")

        caller.say(type="websocket.receive", text="end")

        assert (await caller.heard_of("websocket.close"))["code"] == 4001
        await caller.is_over()


@on_a_real_loop
async def test_a_caller_that_goes_away_closes_the_other_end() -> None:
    async with west() as (server, address):
        caller = Caller(a_door(address), EXEC, "region=west")
        await caller.heard_of("websocket.accept")
        (there,) = server.connections

        caller.say(type="websocket.disconnect", code=1006)
        await caller.is_over()
        await there.wait_closed()

        assert there.close_code == 1011


@on_a_real_loop
async def test_a_server_that_stops_closes_both_ends() -> None:
    async with west() as (server, address):
        door = a_door(address)
        caller = Caller(door, EXEC, "region=west")
        await caller.heard_of("websocket.accept")
        await caller.heard_of("websocket.send")
        (there,) = server.connections

        door.close()

        assert (await caller.heard_of("websocket.close"))["code"] == 1001
        await caller.is_over()
        await there.wait_closed()
        assert there.close_code == 1001


@on_a_real_loop
async def test_what_the_other_region_answers_instead_is_answered_here() -> None:
    def refuse(connection: ServerConnection, _request: Request) -> Response:
        return connection.respond(403, "Permission denied")

    async with west(process_request=refuse) as (_, address):
        caller = Caller(a_door(address), EXEC, "region=west")

        assert await caller.refusal() == (403, b"Permission denied")
        await caller.is_over()


@on_a_real_loop
async def test_a_region_of_which_nobody_answers_is_503_and_a_second_hop_is_none() -> None:
    away = Caller(a_door("http://127.0.0.1:9"), EXEC, "region=west")
    looping = Caller(a_door("http://127.0.0.1:9"), EXEC, "region=west", hops=b"region")

    status, text = await away.refusal()

    assert (status, text.startswith(b"no server of region west answers: cannot connect to http")) == (503, True)
    assert await looping.refusal() == (404, b"No path to region")


@on_a_real_loop
async def test_between_members_of_a_region_a_socket_makes_one_hop() -> None:
    async with west() as (_, address):
        passing = RequestRelay(lambda _address: InMemoryPassage(None), sockets_to=WebSocketRelay)
        outgoing = _outgoing()

        async with passing.open_socket_to_member(address, outgoing, subprotocols=["frames"]) as socket:
            assert await socket.receive() == f"{EXEC} a-token"
        again = msgspec.structs.replace(outgoing, headers=[*outgoing.headers, (HOPS_HEADER, b"member")])
        with pytest.raises(Refusal, match="already forwarded once") as refused:
            await passing.open_socket_to_member(address, again).__aenter__()

        assert refused.value.code is RefusalCode.UNAVAILABLE


def _outgoing() -> RelayRequest:
    return RelayRequest("GET", EXEC.encode(), [(b"x-cluster-token", b"a-token")])


@in_virtual_time
async def test_a_handshake_here_is_answered_as_the_plain_request_would_be() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        async def told(path: str, query: str = "") -> tuple[int, bytes]:
            caller = Caller(server.api, path, query)
            found = await caller.refusal()
            await caller.is_over()
            return found

        assert await told("/v1/nowhere") == (404, b"")
        assert await told("/v1/jobs", "index=x") == (400, b"Invalid index")
        assert await told("/v1/jobs") == (400, b"nothing here speaks over a websocket: ask without an upgrade")
        assert (await told("/v1/job/none"))[0] == 404
