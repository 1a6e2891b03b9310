"""Requests for another region: passed on whole, and answered as they are answered there."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import msgspec

from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.passage import App, InMemoryPassage
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.cluster.api.relay.regions import RegionRelay
from wharf.cluster.server.relay import RequestRelay
from wharf.cluster.state.tables import JOBS
from wharf.contract.client import ClientReply
from wharf.contract.client.relay.port import Relay, RelayRequest

JOB = msgspec.json.encode({"Job": a_job()})


async def fetch(
    app: App, method: str, target: str, body: bytes = b"", *, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> ClientReply:
    """A whole reply, however many parts it comes in."""

    async def parts() -> AsyncIterator[bytes]:
        yield body

    length = ((b"content-length", str(len(body)).encode()),) if body else ()
    outgoing = RelayRequest(method, target.encode(), (*headers, *length), parts() if body else None)
    async with InMemoryPassage(app).open(outgoing) as incoming:
        whole = b"".join([part async for part in incoming.parts])
    told = {name.decode().lower(): value.decode() for name, value in incoming.headers}
    return ClientReply(incoming.status, told, whole)


class TwoRegions:
    """East knows west by two servers, of which the first may be silent; west knows east."""

    def __init__(self, east: OneServer, west: OneServer) -> None:
        self.east, self.west = east, west
        for one, region in ((east, "east"), (west, "west")):
            one.server.identity = msgspec.structs.replace(one.server.identity, region=region)
        self.east_door = RegionRelay(east.api, east.server)
        self.west_door = RegionRelay(west.api, west.server)
        self.silent = InMemoryPassage(None)
        self.to_west = InMemoryPassage(self.west_door)
        self.to_east = InMemoryPassage(self.east_door)
        ways: dict[str, Relay] = {"silent": self.silent, "west": self.to_west, "east": self.to_east}
        way_to: Callable[[str], Relay] = ways.__getitem__
        east.server.relay = RequestRelay(way_to, regions={"west": ["silent", "west"], "north": ["silent"]})
        west.server.relay = RequestRelay(way_to, regions={"east": ["east"]})


async def two_regions(one: ACluster, other: ACluster) -> TwoRegions:
    return TwoRegions(await one.a_server("e1"), await other.a_server("w1"))


@in_virtual_time
async def test_a_write_and_its_read_reach_the_other_region_and_leave_ours_alone() -> None:
    async with ACluster() as one, ACluster(seed=8) as other:
        regions = await two_regions(one, other)

        written = await fetch(regions.east_door, "PUT", "/v1/jobs?region=west", JOB)
        read = await fetch(regions.east_door, "GET", "/v1/job/shop?region=west")

        assert (written.status, read.status) == (200, 200)
        assert json.loads(read.body)["ID"] == "shop"
        assert read.headers["x-cluster-index"] == str(json.loads(read.body)["ModifyIndex"])
        assert regions.east.replica.get(JOBS, "default", "shop") is None


@in_virtual_time
async def test_our_own_region_by_name_is_answered_here() -> None:
    async with ACluster() as one, ACluster(seed=8) as other:
        regions = await two_regions(one, other)
        await fetch(regions.east_door, "PUT", "/v1/jobs?region=east", JOB)

        assert regions.east.replica.get(JOBS, "default", "shop") is not None
        assert regions.to_west.sent == []


@in_virtual_time
async def test_an_unknown_region_is_404_in_the_reference_s_words_and_after_what_is_wrong_with_the_request() -> None:
    async with ACluster() as one, ACluster(seed=8) as other:
        regions = await two_regions(one, other)

        for method, target in (("GET", "/v1/jobs?region=south"), ("GET", "/v1/status/leader?region=south")):
            reply = await fetch(regions.east_door, method, target)
            assert (reply.status, reply.body) == (404, b"No path to region")
        wrong = await fetch(regions.east_door, "GET", "/v1/jobs?region=south&index=x")
        assert (wrong.status, wrong.body) == (400, b"Invalid index")
        refused = await fetch(regions.east_door, "PUT", "/v1/jobs?region=south", JOB)
        assert refused.status == 404
        assert regions.east.replica.get(JOBS, "default", "shop") is None


@in_virtual_time
async def test_a_region_of_which_no_server_answers_is_503_with_what_was_tried() -> None:
    async with ACluster() as one, ACluster(seed=8) as other:
        reply = await fetch((await two_regions(one, other)).east_door, "GET", "/v1/jobs?region=north")

        assert (reply.status, reply.body) == (503, b"no server of region north answers: nobody answers")


@in_virtual_time
async def test_refusals_of_the_other_region_come_back_as_they_are() -> None:
    async with ACluster() as one, ACluster(seed=8) as other:
        regions = await two_regions(one, other)

        missing = await fetch(regions.east_door, "GET", "/v1/job/nobody?region=west")
        wrong = await fetch(regions.east_door, "PUT", "/v1/jobs?region=west", b"{")
        nowhere = await fetch(regions.east_door, "GET", "/v1/nowhere?region=west")

        assert (missing.status, missing.body) == (404, b"job not found")
        assert int(missing.headers["x-cluster-index"]) >= 1
        assert (wrong.status, nowhere.status) == (400, 404)


@in_virtual_time
async def test_a_blocking_query_waits_there_and_is_woken_there() -> None:
    async with ACluster() as one, ACluster(seed=8) as other:
        regions = await two_regions(one, other)
        index = (await fetch(regions.east_door, "GET", "/v1/jobs?region=west")).headers["x-cluster-index"]
        waiting = one.start(
            fetch(regions.east_door, "GET", f"/v1/jobs?region=west&index={index}&wait=1h"), name="waiter"
        )
        await until(lambda: regions.west.server.reader.waiter_count == 1, what="it waits in the west")
        assert regions.east.server.reader.waiter_count == 0

        await regions.west.client.jobs.register(a_job())

        reply = await waiting
        assert [job["ID"] for job in json.loads(reply.body)] == ["shop"]


@in_virtual_time
async def test_who_hangs_up_here_hangs_up_there() -> None:
    async with ACluster() as one, ACluster(seed=8) as other:
        regions = await two_regions(one, other)
        index = (await fetch(regions.east_door, "GET", "/v1/jobs?region=west")).headers["x-cluster-index"]
        waiting = one.start(
            fetch(regions.east_door, "GET", f"/v1/jobs?region=west&index={index}&wait=1h"), name="waiter"
        )
        await until(lambda: regions.west.server.reader.waiter_count == 1, what="it waits in the west")

        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        await until(lambda: regions.west.server.reader.waiter_count == 0, what="nobody waits in the west")
        assert regions.to_west.open_count == 0


@in_virtual_time
async def test_a_server_that_stops_sends_its_waiters_to_another() -> None:
    async with ACluster() as one, ACluster(seed=8) as other:
        regions = await two_regions(one, other)
        index = (await fetch(regions.east_door, "GET", "/v1/jobs?region=west")).headers["x-cluster-index"]
        waiting = one.start(
            fetch(regions.east_door, "GET", f"/v1/jobs?region=west&index={index}&wait=1h"), name="waiter"
        )
        await until(lambda: regions.west.server.reader.waiter_count == 1, what="it waits in the west")
        stopped_s = now_s()

        regions.east_door.close()

        reply = await waiting
        assert (reply.status, reply.body) == (503, b"this server is stopping; ask another")
        assert now_s() - stopped_s < 1


@in_virtual_time
async def test_a_long_body_passes_part_by_part_with_no_more_than_a_few_parts_on_the_way() -> None:
    async with ACluster() as one, ACluster(seed=8) as other:
        regions = await two_regions(one, other)
        taken: list[int] = []
        given: list[int] = []
        go_on = asyncio.Event()

        async def slow(_scope: object, receive: Callable[[], object], send: Callable[[object], object]) -> None:
            more = True
            while more:
                await go_on.wait()
                message = await receive()  # type: ignore[misc]  # an ASGI callable
                taken.append(len(message["body"]))
                more = message["more_body"]
            await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[misc]
            await send({"type": "http.response.body", "body": b"done"})  # type: ignore[misc]

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(50):
                given.append(1_000)
                yield b"x" * 1_000

        regions.to_west.app = slow
        outgoing = RelayRequest("PUT", b"/v1/jobs?region=west", ((b"content-length", b"50000"),), parts())

        async def send_all() -> bytes:
            async with InMemoryPassage(regions.east_door).open(outgoing) as incoming:
                return b"".join([part async for part in incoming.parts])

        sending = one.start(send_all(), name="sender")
        await pass_time(1)
        assert len(given) < 6
        go_on.set()

        assert await sending == b"done"
        assert sum(taken) == 50_000


@in_virtual_time
async def test_a_request_makes_one_hop_between_regions_whatever_they_think_of_each_other() -> None:
    async with ACluster() as one, ACluster(seed=8) as other:
        regions = await two_regions(one, other)
        # The server that east calls west believes to be of another region, and that west is at east's.
        regions.west.server.identity = msgspec.structs.replace(regions.west.server.identity, region="elsewhere")
        regions.west.server.relay = RequestRelay({"east": regions.to_east}.__getitem__, regions={"west": ["east"]})

        reply = await fetch(regions.east_door, "GET", "/v1/jobs?region=west")

        assert (reply.status, reply.body) == (404, b"No path to region")
        assert len(regions.to_east.sent) == 0


@in_virtual_time
async def test_the_server_that_answered_is_asked_first_the_next_time() -> None:
    async with ACluster() as one, ACluster(seed=8) as other:
        regions = await two_regions(one, other)
        await fetch(regions.east_door, "GET", "/v1/jobs?region=west")
        regions.silent.app = regions.west_door

        await fetch(regions.east_door, "GET", "/v1/jobs?region=west")

        assert (len(regions.to_west.sent), len(regions.silent.sent)) == (2, 0)


@in_virtual_time
async def test_regions_are_listed_by_name_with_our_own() -> None:
    async with ACluster() as one, ACluster(seed=8) as other:
        regions = await two_regions(one, other)

        here = await fetch(regions.east_door, "GET", "/v1/regions")
        there = await fetch(regions.east_door, "GET", "/v1/regions?region=west")

        assert (json.loads(here.body), json.loads(there.body)) == (["east", "north", "west"], ["east", "west"])
