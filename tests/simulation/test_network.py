"""The simulated network with small apps: which messages arrive, and which errors their senders get."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from simulation.fault_source import LOST_REPLY, LOST_REQUEST, NO_FAULTS, REPEATED_REQUEST, Delivery, FaultSource
from simulation.loop import RunFailed, SimulatedLoop
from simulation.network import (
    AsgiApp,
    Network,
    OutcomeLost,
    Receive,
    RequestNotSent,
    Send,
    SimulatedReply,
    SimulatedRequest,
)
from simulation.process import Process
from wharf.world import SimulatedWorld


class FixedFaultSource(FaultSource):
    """Returns the same delivery for every exchange."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(1)
        self.fault_rate = NO_FAULTS
        self._delivery = delivery

    def draw_delivery(self) -> Delivery:
        return self._delivery


class ClientAndServer:
    """A client and a server on a network."""

    def __init__(self, app: AsgiApp, delivery: Delivery = Delivery(request_s=0.25, reply_s=0.5)) -> None:  # noqa: B008  # frozen
        self.loop = SimulatedLoop(1)
        self.network = Network(self.loop, FixedFaultSource(delivery))
        self.client = self.make_process("client")
        self.server = self.make_process("server")
        self.network.listen("server:1", self.server, app)

    def make_process(self, name: str) -> Process:
        return Process(name, name, SimulatedWorld(1, self.loop.time, member=name))

    async def get(self, target: str = "/", body: bytes = b"") -> SimulatedReply:
        return await self.network.exchange(
            self.client, "server:1", SimulatedRequest("PUT", target, [("X-One", "1")], body)
        )

    def run(self, scenario: Callable[["ClientAndServer"], Coroutine[Any, Any, None]]) -> None:
        async def run_as_client() -> None:
            await self.client.start(scenario(self), name="scenario")

        self.loop.run_until_complete(run_as_client())
        self.loop.close()


async def send_reply(send: Send, *parts: bytes, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"x-two", b"2")]})
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": parts[-1]})


async def echo(scope: Any, receive: Receive, send: Send) -> None:
    request = await receive()
    headers = dict(scope["headers"])
    await send_reply(
        send, scope["path"].encode(), b" ", scope["query_string"], b" ", request["body"], headers[b"x-one"]
    )


def test_a_request_and_its_complete_reply_each_take_the_latency_of_the_network() -> None:
    async def scenario(peers: ClientAndServer) -> None:
        reply = await peers.get("/a%20b?c=d", b"body")
        assert (reply.status, dict(reply.headers)) == (200, {"x-two": "2"})
        assert await reply.read_body() == b"/a b c=d body1"
        assert peers.loop.time() == 0.75

    ClientAndServer(echo).run(scenario)


def test_a_request_to_a_closed_port_is_unsent() -> None:
    async def scenario(peers: ClientAndServer) -> None:
        with pytest.raises(RequestNotSent):
            await peers.network.exchange(peers.client, "elsewhere:1", SimulatedRequest("GET", "/"))

    ClientAndServer(echo).run(scenario)


def test_no_data_passes_between_partitioned_machines() -> None:
    async def scenario(peers: ClientAndServer) -> None:
        peers.network.partition("client", "server")
        with pytest.raises(RequestNotSent):
            await peers.get()
        peers.network.heal("server", "client")
        assert (await peers.get()).status == 200

    ClientAndServer(echo).run(scenario)


def make_recording_app(served: list[str], handle: Callable[[Receive, Send], Awaitable[None]]) -> AsgiApp:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        served.append(scope["path"])
        await handle(receive, send)

    return app


async def reply_ok(_receive: Receive, send: Send) -> None:
    await send_reply(send, b"ok")


def test_a_lost_request_never_reaches_the_app_and_its_outcome_is_unknown() -> None:
    served: list[str] = []

    async def scenario(peers: ClientAndServer) -> None:
        with pytest.raises(OutcomeLost):
            await peers.get()

    ClientAndServer(make_recording_app(served, reply_ok), Delivery(is_request_lost=True)).run(scenario)

    assert served == []


def test_a_lost_reply_does_not_undo_the_request() -> None:
    served: list[str] = []

    async def scenario(peers: ClientAndServer) -> None:
        with pytest.raises(OutcomeLost):
            await peers.get()

    ClientAndServer(make_recording_app(served, reply_ok), Delivery(is_reply_lost=True)).run(scenario)

    assert served == ["/"]


def test_a_repeated_request_is_served_twice_and_answered_once() -> None:
    served: list[str] = []
    repeated: list[SimulatedRequest] = []

    async def scenario(peers: ClientAndServer) -> None:
        peers.network.on_repeated = repeated.append
        assert await (await peers.get()).read_body() == b"ok"
        await asyncio.sleep(5)

    ClientAndServer(make_recording_app(served, reply_ok), Delivery(is_repeated=True)).run(scenario)

    assert served == ["/", "/"]
    assert [request.target for request in repeated] == ["/"]


def test_the_app_is_notified_when_a_client_disconnects() -> None:
    received: list[str] = []

    async def wait_for_disconnect(receive: Receive, _send: Send) -> None:
        await receive()
        received.append((await receive())["type"])

    async def scenario(peers: ClientAndServer) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await peers.get()
        await asyncio.sleep(1)

    ClientAndServer(make_recording_app([], wait_for_disconnect)).run(scenario)

    assert received == ["http.disconnect"]


def test_a_sender_waits_for_a_slow_reader() -> None:
    sent: list[float] = []

    async def send_large_body(_receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(4):
            await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})
            sent.append(asyncio.get_running_loop().time())
        await send({"type": "http.response.body", "body": b""})

    async def scenario(peers: ClientAndServer) -> None:
        assert len(await (await peers.get()).read_body()) == 4 * 65_536

    ClientAndServer(make_recording_app([], send_large_body), Delivery(read_s=3)).run(scenario)

    assert sent == [3, 6, 9, 12]


def test_a_late_start_of_a_reply_delays_its_further_parts_only_once() -> None:
    read: list[float] = []

    async def send_large_body(_receive: Receive, send: Send) -> None:
        await send_reply(send, *([bytes(65_536)] * 4), b"")

    async def scenario(peers: ClientAndServer) -> None:
        reply = await peers.get()
        read.extend([asyncio.get_running_loop().time() async for _ in reply.iterate_parts()])

    ClientAndServer(make_recording_app([], send_large_body), Delivery(reply_s=0.5, reply_start_s=4)).run(scenario)

    assert len(read) == 4
    assert read[0] == 4.5
    assert read[-1] <= 4.5 + 3 * 0.5


def test_the_death_of_a_server_breaks_its_connections() -> None:
    async def wait(receive: Receive, _send: Send) -> None:
        await receive()
        await asyncio.sleep(1_000)

    async def scenario(peers: ClientAndServer) -> None:
        request = peers.client.start(peers.get(), name="request")
        await asyncio.sleep(1)
        peers.loop.kill(peers.server)
        peers.network.on_process_death(peers.server)
        with pytest.raises(OutcomeLost, match="server was killed"):
            await request
        with pytest.raises(RequestNotSent):
            await peers.get()

    ClientAndServer(make_recording_app([], wait)).run(scenario)


def test_an_app_that_raises_fails_the_run() -> None:
    async def fail(_receive: Receive, _send: Send) -> None:
        raise ValueError("a bug of the app")

    async def scenario(peers: ClientAndServer) -> None:
        await peers.get()

    with pytest.raises(RunFailed, match="a bug of the app"):
        ClientAndServer(make_recording_app([], fail)).run(scenario)


def test_an_app_that_does_not_finish_its_reply_fails_the_run() -> None:
    async def begin(_receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def scenario(peers: ClientAndServer) -> None:
        await (await peers.get()).read_body()

    with pytest.raises(RunFailed, match="before its reply was complete"):
        ClientAndServer(make_recording_app([], begin)).run(scenario)


def test_a_seed_determines_all_faults_and_every_fault_happens() -> None:
    first, second = FaultSource(7), FaultSource(7)

    assert [first.draw_delivery() for _ in range(2_000)] == [second.draw_delivery() for _ in range(2_000)]
    assert first.counts == second.counts
    assert {LOST_REPLY, LOST_REQUEST, REPEATED_REQUEST} <= set(first.counts)


def test_without_faults_nothing_is_lost() -> None:
    fault_source = FaultSource(7)
    fault_source.fault_rate = NO_FAULTS

    assert not any(fault_source.draw_delivery().is_request_lost for _ in range(2_000))
    assert fault_source.counts == {}
