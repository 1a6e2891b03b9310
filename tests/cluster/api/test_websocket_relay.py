"""Websockets: relayed to another region, and rejected at paths that have none."""

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

from tests.builders import some_job_settings
from tests.kit.cluster import ACluster
from tests.kit.in_memory_relay import InMemoryRelay
from tests.kit.settings import USUAL_SEARCH_LIMITS
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.api.relay.region_slots import RegionSlots
from wharf.cluster.api.relay.regions import RegionRelay
from wharf.cluster.engines.memory.engine import MemoryEngine
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.server.relay import HOPS_HEADER, RequestRelay
from wharf.cluster.server.server import Server, ServerIdentity
from wharf.contract.client.exec import HEARTBEAT_MESSAGE
from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.client.relay.websockets import WebSocketRelay
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import RealWorld

WORLD = RealWorld()
EXEC = "/v1/client/allocation/11111111-1111-4111-8111-111111111111/exec"


def on_a_real_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def run_with_timeout() -> None:
            async with asyncio.timeout(10.0):
                await test()

        asyncio.run(run_with_timeout())

    return run


class WebSocketCaller:
    """Opens a websocket at an application in memory."""

    def __init__(
        self,
        app: Any,
        path: str,
        query: str = "",
        *,
        hops: bytes = b"",
        headers: Sequence[tuple[bytes, bytes]] = ((b"x-cluster-token", b"a-token"),),
    ) -> None:
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        headers = [*headers, (b"sec-websocket-key", b"x"), (b"connection", b"Upgrade")]
        scope: dict[str, Any] = {
            "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": [*headers, *([(HOPS_HEADER, hops)] if hops else [])], "subprotocols": ["frames"],
            "extensions": {"websocket.http.response": {}}, "scheme": "ws", "client": None, "server": None,
        }  # fmt: skip
        self.send(type="websocket.connect")
        self._running = asyncio.get_running_loop().create_task(app(scope, self._sent.get, self.received.put))

    def send(self, **message: Any) -> None:
        self._sent.put_nowait(message)

    async def wait_closed(self) -> None:
        await self._running

    @property
    def is_served(self) -> bool:
        """Whether the application has ended the websocket."""
        return self._running.done()

    async def expect(self, kind: str) -> dict[str, Any]:
        while (message := await self.received.get()).get("text") == HEARTBEAT_MESSAGE:
            continue  # As clients do.
        assert message["type"] == kind, message
        return message

    async def refusal(self) -> tuple[int, bytes]:
        start = await self.expect("websocket.http.response.start")
        body = await self.expect("websocket.http.response.body")
        return start["status"], body["body"]


async def echo(connection: ServerConnection) -> None:
    """Send each message back; close with 4001 at the message `end`."""
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


def build_relay(*addresses: str, http_relay: InMemoryRelay | None = None) -> RegionRelay:
    """Return a relay in the region `east` to servers of the region `west` at these addresses."""
    http_relay = http_relay or InMemoryRelay(None)
    engine = MemoryEngine(WORLD, MemoryLog(WORLD))
    server = Server(
        WORLD,
        engine,
        ServerIdentity("e1", "e1", region="east"),
        job_settings=some_job_settings(region="east"),
        search_limits=USUAL_SEARCH_LIMITS,
    )
    server.relay = RequestRelay(
        WORLD, lambda _address: http_relay, regions={"west": list(addresses)}, sockets_to=WebSocketRelay
    )
    return RegionRelay(reject_local_request, server, RegionSlots(server, is_nomad_compatible=False))


async def reject_local_request(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("a request for another region must not be handled locally")


@on_a_real_loop
async def test_messages_path_token_and_subprotocol_are_relayed_unchanged() -> None:
    async with west() as (_, address):
        caller = WebSocketCaller(build_relay("http://127.0.0.1:9", address), EXEC, "region=west&task=t")

        accepted = await caller.expect("websocket.accept")
        greeting = await caller.expect("websocket.send")
        caller.send(type="websocket.receive", text="ls")
        text = await caller.expect("websocket.send")
        caller.send(type="websocket.receive", bytes=b"\x00\xff" * 100_000)
        data = await caller.expect("websocket.send")
        caller.send(type="websocket.disconnect", code=1000)
        await caller.wait_closed()

        assert (accepted["subprotocol"], greeting["text"]) == ("frames", f"{EXEC}?region=west&task=t a-token")
        assert (text["text"], data["bytes"]) == ("ls", b"\x00\xff" * 100_000)


@on_a_real_loop
async def test_the_close_code_of_the_remote_side_is_relayed() -> None:
    async with west() as (_, address):
        caller = WebSocketCaller(build_relay(address), EXEC, "region=west")
        await caller.expect("websocket.accept")
        await caller.expect("websocket.send")

        caller.send(type="websocket.receive", text="end")

        assert (await caller.expect("websocket.close"))["code"] == 4001
        await caller.wait_closed()


@on_a_real_loop
async def test_a_websocket_to_a_region_is_closed_when_its_server_answers_no_probe() -> None:
    async with west() as (_, address):
        caller = WebSocketCaller(build_relay(address), EXEC, "region=west")
        await caller.expect("websocket.accept")
        await caller.expect("websocket.send")

        end = await caller.expect("websocket.close")

        assert (end["code"], end["reason"]) == (1011, f"{address} does not reply, not even to a probe")
        await caller.wait_closed()


@on_a_real_loop
async def test_a_disconnect_of_the_caller_closes_the_remote_side() -> None:
    async with west() as (server, address):
        caller = WebSocketCaller(build_relay(address), EXEC, "region=west")
        await caller.expect("websocket.accept")
        (remote,) = server.connections

        caller.send(type="websocket.disconnect", code=1006)
        await caller.wait_closed()
        await remote.wait_closed()

        assert remote.close_code == 1011


@on_a_real_loop
async def test_a_stopping_server_closes_both_sides() -> None:
    async with west() as (server, address):
        engine = build_relay(address)
        caller = WebSocketCaller(engine, EXEC, "region=west")
        await caller.expect("websocket.accept")
        await caller.expect("websocket.send")
        (remote,) = server.connections

        engine.close()

        assert (await caller.expect("websocket.close"))["code"] == 1001
        await caller.wait_closed()
        await remote.wait_closed()
        assert remote.close_code == 1001


@on_a_real_loop
async def test_a_rejected_handshake_of_the_other_region_is_returned() -> None:
    def refuse(connection: ServerConnection, _request: Request) -> Response:
        return connection.respond(403, "Permission denied")

    async with west(process_request=refuse) as (_, address):
        caller = WebSocketCaller(build_relay(address), EXEC, "region=west")

        assert await caller.refusal() == (403, b"Permission denied")
        await caller.wait_closed()


@on_a_real_loop
async def test_an_unreachable_region_is_503_and_a_second_hop_is_refused() -> None:
    away = WebSocketCaller(build_relay("http://127.0.0.1:9"), EXEC, "region=west")
    looping = WebSocketCaller(build_relay("http://127.0.0.1:9"), EXEC, "region=west", hops=b"region")

    status, text = await away.refusal()

    assert (status, text.startswith(b"no server of region west replies: cannot connect to http")) == (503, True)
    assert await looping.refusal() == (404, b"No path to region")


@on_a_real_loop
async def test_a_websocket_makes_one_hop_between_members_of_a_region() -> None:
    async with west() as (_, address):
        passing = RequestRelay(WORLD, lambda _address: InMemoryRelay(None), sockets_to=WebSocketRelay)
        outgoing = _outgoing()

        async with passing.open_socket_to_member(address, outgoing, subprotocols=["frames"]) as socket:
            assert await socket.receive() == f"{EXEC} a-token"
        repeated = msgspec.structs.replace(outgoing, headers=[*outgoing.headers, (HOPS_HEADER, b"member")])
        with pytest.raises(Refusal, match="already forwarded once") as caught:
            await passing.open_socket_to_member(address, repeated).__aenter__()

        assert caught.value.code is RefusalCode.UNAVAILABLE


def _outgoing() -> RelayRequest:
    return RelayRequest("GET", EXEC.encode(), [(b"x-cluster-token", b"a-token")])


async def shake_hands(app: Any, path: str, query: str = "") -> tuple[int, bytes]:
    """Return status and body of the reply that rejects a handshake."""
    caller = WebSocketCaller(app, path, query)
    reply = await caller.refusal()
    await caller.wait_closed()
    return reply


NO_WEBSOCKET = (400, b"this endpoint has no websocket: send the request without an upgrade")


@in_virtual_time
async def test_a_handshake_at_a_path_without_an_endpoint_gets_the_reply_of_the_plain_request() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        replies = [await shake_hands(server.api, path) for path in ("/v1/nowhere", "//v1/jobs", "/v1/job/")]

    assert replies == [
        (404, b"no API endpoint at /v1/nowhere; /v1/docs lists the endpoints"),
        (307, b'<a href="/v1/jobs">Temporary Redirect</a>.\n\n'),
        (404, b"job not found"),
    ]


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/jobs", ""),
        ("/v1/jobs", "index=x"),
        ("/v1/job/none", ""),
        ("/v1/namespaces", "index=99999999"),
        ("/v1/event/stream", ""),
        ("/v1/agent/monitor", ""),
        ("/v1/operator/snapshot", ""),
        ("/ui/", ""),
    ],
)
@in_virtual_time
async def test_a_handshake_at_an_endpoint_without_a_websocket_is_refused_and_never_executed(
    path: str, query: str
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        began_s = server.world.monotonic_s()

        reply = await shake_hands(server.api, path, query)

        assert (reply, server.world.monotonic_s() - began_s) == (NO_WEBSOCKET, 0.0)
