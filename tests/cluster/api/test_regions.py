"""Relaying of requests to another region."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.in_memory_relay import App, InMemoryRelay
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
    """Return the whole reply, joined from its parts."""

    async def parts() -> AsyncIterator[bytes]:
        yield body

    length = ((b"content-length", str(len(body)).encode()),) if body else ()
    outgoing = RelayRequest(method, target.encode(), (*headers, *length), parts() if body else None)
    async with InMemoryRelay(app).open(outgoing) as incoming:
        whole = b"".join([part async for part in incoming.parts])
    result = {name.decode().lower(): value.decode() for name, value in incoming.headers}
    return ClientReply(incoming.status, result, whole)


class TwoRegions:
    """Two regions. East is configured with two servers of west, of which the first may be silent."""

    def __init__(self, east: OneServer, west: OneServer) -> None:
        self.east, self.west = east, west
        for item, region in ((east, "east"), (west, "west")):
            item.server.identity = msgspec.structs.replace(item.server.identity, region=region)
        self.east_relay = RegionRelay(east.api, east.server, east.api.region_slots)
        self.west_relay = RegionRelay(west.api, west.server, west.api.region_slots)
        self.silent = InMemoryRelay(None)
        self.to_west = InMemoryRelay(self.west_relay)
        self.to_east = InMemoryRelay(self.east_relay)
        transports: dict[str, Relay] = {"silent": self.silent, "west": self.to_west, "east": self.to_east}
        transport_to: Callable[[str], Relay] = transports.__getitem__
        east.server.relay = RequestRelay(
            east.world, transport_to, regions={"west": ["silent", "west"], "north": ["silent"]}
        )
        west.server.relay = RequestRelay(west.world, transport_to, regions={"east": ["east"]})


async def two_regions(west_cluster: ACluster, east_cluster: ACluster) -> TwoRegions:
    return TwoRegions(await west_cluster.a_server("e1"), await east_cluster.a_server("w1"))


@in_virtual_time
async def test_a_write_and_its_read_affect_only_the_other_region() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)

        stored = await fetch(regions.east_relay, "PUT", "/v1/jobs?region=west", JOB)
        read = await fetch(regions.east_relay, "GET", "/v1/job/shop?region=west")

        assert (stored.status, read.status) == (200, 200)
        assert json.loads(read.body)["ID"] == "shop"
        assert read.headers["x-cluster-index"] == str(json.loads(read.body)["ModifyIndex"])
        assert regions.east.replica.get(JOBS, "default", "shop") is None


@in_virtual_time
async def test_a_request_for_the_own_region_by_name_is_answered_locally() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)
        await fetch(regions.east_relay, "PUT", "/v1/jobs?region=east", JOB)

        assert regions.east.replica.get(JOBS, "default", "shop") is not None
        assert regions.to_west.sent == []


@in_virtual_time
async def test_a_request_whose_token_is_not_certain_is_not_relayed_to_another_region() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)

        headers = ((b"x-cluster-token", b"a"), (b"authorization", b"Bearer b"))
        reply = await fetch(regions.east_relay, "GET", "/v1/jobs?region=west", headers=headers)

        assert (reply.status, regions.to_west.sent) == (400, [])


@in_virtual_time
async def test_an_unknown_region_is_404_with_nomads_text_after_all_other_errors() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)

        for method, target in (("GET", "/v1/jobs?region=south"), ("GET", "/v1/status/leader?region=south")):
            reply = await fetch(regions.east_relay, method, target)
            assert (reply.status, reply.body) == (404, b"No path to region")
        invalid = await fetch(regions.east_relay, "GET", "/v1/jobs?region=south&index=x")
        assert (invalid.status, invalid.body) == (400, b"Invalid index")
        refusal = await fetch(regions.east_relay, "PUT", "/v1/jobs?region=south", JOB)
        assert refusal.status == 404
        assert regions.east.replica.get(JOBS, "default", "shop") is None


@in_virtual_time
async def test_an_unreachable_region_is_503_with_the_addresses_tried() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        reply = await fetch((await two_regions(item, second)).east_relay, "GET", "/v1/jobs?region=north")

        assert (reply.status, reply.body) == (503, b"no server of region north replies: no server at this address")


@in_virtual_time
async def test_a_read_leaves_a_frozen_server_of_the_region_within_three_seconds_and_later_reads_avoid_it() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)
        regions.silent.app, regions.silent.is_frozen = regions.west_relay, True
        began_s = now_s()

        first_reply = await fetch(regions.east_relay, "GET", "/v1/jobs?region=west")
        switched_s = now_s()
        await fetch(regions.east_relay, "GET", "/v1/jobs?region=west")

        assert (first_reply.status, first_reply.body) == (200, b"[]")
        assert switched_s - began_s < 3
        assert now_s() - switched_s < 0.1


@in_virtual_time
async def test_a_write_at_a_frozen_server_of_the_region_is_not_sent_to_another_one() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)
        regions.silent.app, regions.silent.is_frozen = regions.west_relay, True

        reply = await fetch(regions.east_relay, "PUT", "/v1/jobs?region=west", JOB)

        assert reply.status == 504
        assert b"check the current state before you retry" in reply.body
        assert regions.to_west.sent == []


@in_virtual_time
async def test_refusals_of_the_other_region_are_relayed_unchanged() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)

        missing = await fetch(regions.east_relay, "GET", "/v1/job/nobody?region=west")
        invalid = await fetch(regions.east_relay, "PUT", "/v1/jobs?region=west", b"{")
        nowhere = await fetch(regions.east_relay, "GET", "/v1/nowhere?region=west")

        assert (missing.status, missing.body) == (404, b"job not found")
        assert int(missing.headers["x-cluster-index"]) >= 1
        assert (invalid.status, nowhere.status) == (400, 404)


@in_virtual_time
async def test_a_blocking_query_waits_and_wakes_in_the_other_region() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)
        index = (await fetch(regions.east_relay, "GET", "/v1/jobs?region=west")).headers["x-cluster-index"]
        pending_read = item.start(
            fetch(regions.east_relay, "GET", f"/v1/jobs?region=west&index={index}&wait=1h"), name="query"
        )
        await until(lambda: regions.west.server.reader.waiter_count == 1, what="the query waits in the west")
        assert regions.east.server.reader.waiter_count == 0

        await regions.west.client.jobs.register(a_job())

        reply = await pending_read
        assert [job["ID"] for job in json.loads(reply.body)] == ["shop"]


@in_virtual_time
async def test_a_disconnect_of_the_caller_ends_the_request_in_the_other_region() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)
        index = (await fetch(regions.east_relay, "GET", "/v1/jobs?region=west")).headers["x-cluster-index"]
        pending_read = item.start(
            fetch(regions.east_relay, "GET", f"/v1/jobs?region=west&index={index}&wait=1h"), name="query"
        )
        await until(lambda: regions.west.server.reader.waiter_count == 1, what="the query waits in the west")

        pending_read.cancel()
        await asyncio.gather(pending_read, return_exceptions=True)

        await until(lambda: regions.west.server.reader.waiter_count == 0, what="no query waits in the west")
        assert regions.to_west.open_count == 0


@in_virtual_time
async def test_a_stopping_server_refuses_waiting_requests_with_503() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)
        index = (await fetch(regions.east_relay, "GET", "/v1/jobs?region=west")).headers["x-cluster-index"]
        pending_read = item.start(
            fetch(regions.east_relay, "GET", f"/v1/jobs?region=west&index={index}&wait=1h"), name="query"
        )
        await until(lambda: regions.west.server.reader.waiter_count == 1, what="the query waits in the west")
        stopped_s = now_s()

        regions.east_relay.close()

        reply = await pending_read
        assert (reply.status, reply.body) == (503, b"this server is stopping: use another server")
        assert now_s() - stopped_s < 1


@in_virtual_time
async def test_a_long_body_is_relayed_in_parts_with_little_buffering() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)
        part_sizes: list[int] = []
        submitted: list[int] = []
        resume = asyncio.Event()

        async def slow(_scope: object, receive: Callable[[], object], send: Callable[[object], object]) -> None:
            more = True
            while more:
                await resume.wait()
                message = await receive()  # type: ignore[misc]  # an ASGI callable
                part_sizes.append(len(message["body"]))
                more = message["more_body"]
            await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[misc]
            await send({"type": "http.response.body", "body": b"done"})  # type: ignore[misc]

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(50):
                submitted.append(1_000)
                yield b"x" * 1_000

        regions.to_west.app = slow
        outgoing = RelayRequest("PUT", b"/v1/jobs?region=west", ((b"content-length", b"50000"),), parts())

        async def send_all() -> bytes:
            async with InMemoryRelay(regions.east_relay).open(outgoing) as incoming:
                return b"".join([part async for part in incoming.parts])

        sending = item.start(send_all(), name="sender")
        await pass_time(1)
        assert len(submitted) < 6
        resume.set()

        assert await sending == b"done"
        assert sum(part_sizes) == 50_000


@in_virtual_time
async def test_a_request_makes_at_most_one_hop_between_regions() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)
        # The server at west's address believes that it belongs to another region, and that west is at east's address.
        regions.west.server.identity = msgspec.structs.replace(regions.west.server.identity, region="elsewhere")
        regions.west.server.relay = RequestRelay(
            regions.west.world, {"east": regions.to_east}.__getitem__, regions={"west": ["east"]}
        )

        reply = await fetch(regions.east_relay, "GET", "/v1/jobs?region=west")

        assert (reply.status, reply.body) == (404, b"No path to region")
        assert len(regions.to_east.sent) == 0


@in_virtual_time
async def test_the_server_that_answered_last_is_tried_first() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)
        await fetch(regions.east_relay, "GET", "/v1/jobs?region=west")
        regions.silent.app = regions.west_relay

        await fetch(regions.east_relay, "GET", "/v1/jobs?region=west")

        assert (len(regions.to_west.sent), len(regions.silent.sent)) == (2, 0)


@in_virtual_time
async def test_regions_are_listed_by_name_including_the_own_one() -> None:
    async with ACluster() as item, ACluster(seed=8) as second:
        regions = await two_regions(item, second)

        local = await fetch(regions.east_relay, "GET", "/v1/regions")
        remote = await fetch(regions.east_relay, "GET", "/v1/regions?region=west")

        assert (json.loads(local.body), json.loads(remote.body)) == (["east", "north", "west"], ["east", "west"])


class HostileServer:
    """A server of another region that sends this reply to every request."""

    def __init__(self, status: int, *headers: tuple[bytes, bytes]) -> None:
        self.start = {"type": "http.response.start", "status": status, "headers": list(headers)}

    async def __call__(self, _scope: object, _receive: object, send: Callable[..., Any]) -> None:
        await send(self.start)
        await send({"type": "http.response.body", "body": b"ok"})


async def fetch_hostile(
    method: str, server: HostileServer, *, path: str = "/v1/jobs", headers: tuple[tuple[bytes, bytes], ...] = ()
) -> ClientReply:
    """Send a request for the region of a hostile server."""
    async with ACluster() as cluster:
        east = await cluster.a_server("e1")
        east.server.relay = RequestRelay(east.world, lambda _: InMemoryRelay(server), regions={"west": ["west"]})
        relay = RegionRelay(east.api, east.server, east.api.region_slots, extra_headers={"X-Ours": "yes"})
        return await fetch(relay, method, f"{path}?region=west", headers=headers)


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        (HostileServer(999), "has the status 999"),
        (HostileServer(101), "has the status 101"),
        (HostileServer(200, (b"X-Cluster-Index", b"abc")), "has an invalid value of the header x-cluster-index"),
        (HostileServer(200, (b"x-cluster-index", b"9" * 30)), "has an invalid value of the header x-cluster-index"),
        (HostileServer(200, (b"content-type", b"a\x01\x7f")), "has an invalid value of the header content-type"),
        (HostileServer(302, (b"location", b"http://evil/")), "has an invalid value of the header location"),
        (HostileServer(302, (b"location", b"//evil/")), "has an invalid value of the header location"),
        (HostileServer(302, (b"location", b"/\\evil/")), "has an invalid value of the header location"),
    ],
)
def test_an_invalid_reply_of_another_region_is_502_with_the_problem(server: HostileServer, problem: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        read, write = await fetch_hostile("GET", server), await fetch_hostile("PUT", server)

        text = f"invalid reply from region west: it {problem}"
        assert (read.status, read.body.decode(), read.headers["x-cluster-error"]) == (502, text, "unavailable")
        advice = "; the request may have been executed: check the current state before you retry"
        assert (write.status, write.body.decode()) == (502, text + advice)
        assert write.headers["x-cluster-error"] == "undecided"

    refuse()


@in_virtual_time
async def test_only_known_headers_of_another_region_are_relayed() -> None:
    server = HostileServer(
        200,
        (b"Content-Type", b"text/html"),
        (b"X-Cluster-Index", b"7"),
        (b"X-Cluster-Index", b"8"),
        (b"Set-Cookie", b"a=b"),
        (b"Access-Control-Allow-Origin", b"*"),
        (b"Strict-Transport-Security", b"max-age=1"),
        (b"X-A", b"b\x01\x7f\xff"),
    )

    reply = await fetch_hostile("GET", server)

    assert (reply.status, reply.body) == (200, b"ok")
    assert reply.headers == {
        "content-type": "text/html",
        "x-cluster-index": "7",
        "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
        "x-content-type-options": "nosniff",
        "vary": "Accept-Encoding",
        "x-ours": "yes",
    }


@in_virtual_time
async def test_pages_of_other_origins_may_read_relayed_replies_where_they_may_read_own_ones() -> None:
    reply = await fetch_hostile("GET", HostileServer(200), path="/v1/vars", headers=((b"origin", b"http://ui"),))

    assert reply.headers["access-control-allow-origin"] == "*"
