"""The network of the simulation, tried with small apps: what arrives, what is lost, who hears of it."""

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


class FixedWeather(FaultSource):
    """Every exchange has the same fate."""

    def __init__(self, fate: Delivery) -> None:
        super().__init__(1)
        self.fault_rate = NO_FAULTS
        self._fate = fate

    def draw_delivery(self) -> Delivery:
        return self._fate


class Place:
    """A client and a server on a network."""

    def __init__(self, app: AsgiApp, fate: Delivery = Delivery(request_s=0.25, reply_s=0.5)) -> None:  # noqa: B008  # frozen
        self.loop = SimulatedLoop(1)
        self.network = Network(self.loop, FixedWeather(fate))
        self.client = self.process("client")
        self.server = self.process("server")
        self.network.listen("server:1", self.server, app)

    def process(self, name: str) -> Process:
        return Process(name, name, SimulatedWorld(1, self.loop.time, member=name))

    async def get(self, target: str = "/", body: bytes = b"") -> SimulatedReply:
        return await self.network.exchange(
            self.client, "server:1", SimulatedRequest("PUT", target, [("X-One", "1")], body)
        )

    def run(self, story: Callable[["Place"], Coroutine[Any, Any, None]]) -> None:
        async def as_the_client() -> None:
            await self.client.start(story(self), name="story")

        self.loop.run_until_complete(as_the_client())
        self.loop.close()


async def answer(send: Send, *parts: bytes, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"x-two", b"2")]})
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": parts[-1]})


async def echo(scope: Any, receive: Receive, send: Send) -> None:
    request = await receive()
    headers = dict(scope["headers"])
    await answer(send, scope["path"].encode(), b" ", scope["query_string"], b" ", request["body"], headers[b"x-one"])


def test_a_request_and_its_complete_reply_each_take_the_latency_of_the_network() -> None:
    async def story(place: Place) -> None:
        reply = await place.get("/a%20b?c=d", b"body")
        assert (reply.status, dict(reply.headers)) == (200, {"x-two": "2"})
        assert await reply.read_body() == b"/a b c=d body1"
        assert place.loop.time() == 0.75

    Place(echo).run(story)


def test_a_request_to_a_closed_port_is_unsent() -> None:
    async def story(place: Place) -> None:
        with pytest.raises(RequestNotSent):
            await place.network.exchange(place.client, "elsewhere:1", SimulatedRequest("GET", "/"))

    Place(echo).run(story)


def test_no_data_passes_between_partitioned_machines() -> None:
    async def story(place: Place) -> None:
        place.network.partition("client", "server")
        with pytest.raises(RequestNotSent):
            await place.get()
        place.network.heal("server", "client")
        assert (await place.get()).status == 200

    Place(echo).run(story)


def counting(served: list[str], do: Callable[[Receive, Send], Awaitable[None]]) -> AsgiApp:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        served.append(scope["path"])
        await do(receive, send)

    return app


async def say_ok(_receive: Receive, send: Send) -> None:
    await answer(send, b"ok")


def test_a_lost_request_never_reaches_the_app_and_its_outcome_is_unknown() -> None:
    served: list[str] = []

    async def story(place: Place) -> None:
        with pytest.raises(OutcomeLost):
            await place.get()

    Place(counting(served, say_ok), Delivery(is_request_lost=True)).run(story)

    assert served == []


def test_a_lost_reply_does_not_undo_the_request() -> None:
    served: list[str] = []

    async def story(place: Place) -> None:
        with pytest.raises(OutcomeLost):
            await place.get()

    Place(counting(served, say_ok), Delivery(is_reply_lost=True)).run(story)

    assert served == ["/"]


def test_a_repeated_request_is_served_twice_and_answered_once() -> None:
    served: list[str] = []
    repeated: list[SimulatedRequest] = []

    async def story(place: Place) -> None:
        place.network.on_repeated = repeated.append
        assert await (await place.get()).read_body() == b"ok"
        await asyncio.sleep(5)

    Place(counting(served, say_ok), Delivery(is_repeated=True)).run(story)

    assert served == ["/", "/"]
    assert [request.target for request in repeated] == ["/"]


def test_the_app_is_notified_when_a_client_disconnects() -> None:
    heard: list[str] = []

    async def wait_for_the_end(receive: Receive, _send: Send) -> None:
        await receive()
        heard.append((await receive())["type"])

    async def story(place: Place) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await place.get()
        await asyncio.sleep(1)

    Place(counting([], wait_for_the_end)).run(story)

    assert heard == ["http.disconnect"]


def test_a_sender_waits_for_a_slow_reader() -> None:
    sent: list[float] = []

    async def send_much(_receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(4):
            await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})
            sent.append(asyncio.get_running_loop().time())
        await send({"type": "http.response.body", "body": b""})

    async def story(place: Place) -> None:
        assert len(await (await place.get()).read_body()) == 4 * 65_536

    Place(counting([], send_much), Delivery(read_s=3)).run(story)

    assert sent == [3, 6, 9, 12]


def test_the_death_of_a_server_breaks_its_connections() -> None:
    async def wait(receive: Receive, _send: Send) -> None:
        await receive()
        await asyncio.sleep(1_000)

    async def story(place: Place) -> None:
        asking = place.client.start(place.get(), name="asking")
        await asyncio.sleep(1)
        place.loop.kill(place.server)
        place.network.on_process_death(place.server)
        with pytest.raises(OutcomeLost, match="server was killed"):
            await asking
        with pytest.raises(RequestNotSent):
            await place.get()

    Place(counting([], wait)).run(story)


def test_an_app_that_raises_fails_the_run() -> None:
    async def fail(_receive: Receive, _send: Send) -> None:
        raise ValueError("a bug of the app")

    async def story(place: Place) -> None:
        await place.get()

    with pytest.raises(RunFailed, match="a bug of the app"):
        Place(counting([], fail)).run(story)


def test_an_app_that_does_not_finish_its_reply_fails_the_run() -> None:
    async def begin(_receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def story(place: Place) -> None:
        await (await place.get()).read_body()

    with pytest.raises(RunFailed, match="before its reply was complete"):
        Place(counting([], begin)).run(story)


def test_the_weather_is_the_same_for_the_same_seed_and_brings_every_fault() -> None:
    first, second = FaultSource(7), FaultSource(7)

    assert [first.draw_delivery() for _ in range(2_000)] == [second.draw_delivery() for _ in range(2_000)]
    assert first.counts == second.counts
    assert {LOST_REPLY, LOST_REQUEST, REPEATED_REQUEST} <= set(first.counts)


def test_in_a_calm_nothing_is_lost() -> None:
    weather = FaultSource(7)
    weather.fault_rate = NO_FAULTS

    assert not any(weather.draw_delivery().is_request_lost for _ in range(2_000))
    assert weather.counts == {}
