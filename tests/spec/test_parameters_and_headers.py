"""Parameters of all endpoints, and the headers of replies."""

import gzip
import json

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from tests.cluster.api.test_agent import FakeAgentInterface
from tests.cluster.api.test_regions import JOB, fetch, two_regions
from tests.kit.cluster import ACluster
from tests.kit.in_memory_relay import InMemoryRelay
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from tests.spec.rules import rule
from tests.spec.server_requests import get, read_list, register, write
from wharf.cluster.state.tables import ALLOCATIONS, NAMESPACES
from wharf.contract.client.relay.port import RelayRequest
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace


@rule("parameters", "namespace")
@in_virtual_time
async def test_a_namespace_other_than_the_default_must_be_named() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await write(server, NAMESPACES.build_put(Namespace(name="other", create_index=WRITE_INDEX)))
        await register(server, a_job("here"))
        await register(server, replace(a_job("there"), namespace="other"), "namespace=other")

        assert [job["ID"] for job in await read_list(server, "/v1/jobs")] == ["here"]
        assert [job["ID"] for job in await read_list(server, "/v1/jobs", "namespace=other")] == ["there"]
        assert [(await get(server, "/v1/job/there", query)).status for query in ("", "namespace=other")] == [404, 200]


@rule("parameters", "region")
@in_virtual_time
async def test_the_region_is_the_agents_own_unless_it_is_named() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        statuses = [(await get(server, "/v1/jobs", query)).status for query in ("", "region=global", "region=moon")]

        assert statuses == [200, 200, 404]


@rule("parameters", "pretty")
@in_virtual_time
async def test_pretty_is_indented() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register(server, a_job())
        await pass_time(2.0)  # Let the evaluation finish, so that nothing changes between the two reads.

        plain, pretty = [(await get(server, "/v1/job/shop", query)).body for query in ("", "pretty")]

        assert (b"\n    " in plain, b"\n    " in pretty, json.loads(pretty)) == (False, True, json.loads(plain))


@rule("parameters", "gzip")
@in_virtual_time
async def test_replies_are_compressed_if_the_client_accepts_gzip() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        zipped = await get(server, "/v1/jobs", headers={"accept-encoding": "gzip"})

        assert (zipped.headers["content-encoding"], gzip.decompress(zipped.body)) == ("gzip", b"[]")


@rule("parameters", "reverse")
@rule("paging", "order")
@in_virtual_time
async def test_lists_are_ascending_or_reversed_on_request() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for name in ("b", "c", "a"):
            await register(server, a_job(name))
        created = [
            e["JobID"] for e in await read_list(server, "/v1/evaluations", "filter=TriggeredBy+==+%22job-register%22")
        ]

        assert [job["ID"] for job in await read_list(server, "/v1/jobs")] == ["a", "b", "c"]
        assert [job["ID"] for job in await read_list(server, "/v1/jobs", "reverse=true")] == ["c", "b", "a"]
        assert created == ["b", "c", "a"]


@rule("headers", "index")
@in_virtual_time
async def test_the_index_starts_at_one_and_identifies_the_state() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        new = await get(server, "/v1/jobs")

        registered = await register(server, a_job())
        await pass_time(2.0)
        reply = await get(server, "/v1/job/shop")
        repeated = await get(server, "/v1/job/shop")

        assert new.headers["x-cluster-index"] == "1"
        assert int(reply.headers["x-cluster-index"]) >= int(registered.headers["x-cluster-index"]) > 1
        assert repeated.headers["x-cluster-index"] == reply.headers["x-cluster-index"]


@rule("headers", "nexttoken")
@rule("paging", "split", "token", "last")
@in_virtual_time
async def test_next_tokens_lead_through_all_pages() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for name in "abcde":
            await register(server, a_job(name))
        pages, query = [], "per_page=2"
        for _ in range(3):
            reply = await get(server, "/v1/jobs", query)
            pages.append(([job["ID"] for job in json.loads(reply.body)], "x-cluster-nexttoken" in reply.headers))
            query = f"per_page=2&next_token={reply.headers.get('x-cluster-nexttoken', '')}"

        assert pages == [(["a", "b"], True), (["c", "d"], True), (["e"], False)]


@rule("headers", "lastcontact", "knownleader")
@rule("consistency", "bounds")
@in_virtual_time
async def test_reads_report_their_last_contact_with_the_leader() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        fresh = await get(server, "/v1/jobs", "stale")
        server.faults.disconnect()
        await pass_time(7.0)
        old = await get(server, "/v1/jobs", "stale")

        assert (fresh.headers["x-cluster-knownleader"], old.headers["x-cluster-knownleader"]) == ("true", "false")
        assert int(old.headers["x-cluster-lastcontact"]) >= 6_000 > int(fresh.headers["x-cluster-lastcontact"])


# -- formats of parameters


@rule("parameters", "segments")
@in_virtual_time
async def test_records_of_a_job_are_only_in_its_namespace() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await write(server, NAMESPACES.build_put(Namespace(name="other", create_index=WRITE_INDEX)))
        await cluster.ready_nodes(server, 1)
        group = a_group("web", a_task(driver="mock"), update=UpdatePolicy())
        await register(server, a_job("shop", group, namespace="other"), "namespace=other")
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="placed")

        for path in ("/v1/jobs", "/v1/evaluations", "/v1/allocations", "/v1/deployments"):
            counts = [len(await read_list(server, path, query)) > 0 for query in ("", "namespace=other", "namespace=*")]
            assert (path, counts) == (path, [False, True, True])


@rule("parameters", "per-page")
@pytest.mark.parametrize("per_page", ["-1", "1.5", "two", "+1", "0x2"])
@in_virtual_time
async def test_a_page_s_size_is_a_positive_integer(per_page: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await get(server, "/v1/jobs", f"per_page={per_page}")

        assert reply.status == 400
        assert reply.body.startswith(b"Expect a number ")


@rule("parameters", "wait")
@in_virtual_time
async def test_a_wait_is_a_duration_with_its_unit() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/vars")).headers["x-cluster-index"]

        for wait, lasts_s in (("10s", 10.0), ("1500ms", 1.5), ("1m30s", 90.0), ("5m", 300.0)):
            began_s = now_s()
            await get(server, "/v1/vars", f"index={index}&wait={wait}")
            assert lasts_s <= now_s() - began_s <= lasts_s * 17 / 16
        for wait in ("10", "soon", "10 s", "5M"):
            reply = await get(server, "/v1/vars", f"index={index}&wait={wait}")
            assert (wait, reply.status, reply.body) == (wait, 400, b"Invalid wait time")


@rule("parameters", "index")
@pytest.mark.parametrize("index", ["-1", "1.5", "now", "0x2", "9" * 30])
@in_virtual_time
async def test_an_index_is_an_integer(index: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await get(server, "/v1/jobs", f"index={index}")

        assert (reply.status, reply.body) == (400, b"Invalid index")


@rule("parameters", "flags")
@in_virtual_time
async def test_a_flag_needs_no_value() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)

        statuses = [(await get(server, "/v1/jobs", query)).status for query in ("", "stale", "stale=", "stale=true")]
        pretty = [
            (await get(server, "/v1/namespaces", f"stale&{query}")).body for query in ("pretty", "pretty=", "pretty=1")
        ]

        assert statuses == [500, 200, 200, 200]
        assert (b"\n    " in pretty[0], set(pretty)) == (True, {pretty[0]})


# -- other regions


@rule("parameters", "forwarded")
@in_virtual_time
async def test_a_request_for_another_region_is_answered_there_with_all_its_headers() -> None:
    async with ACluster() as west_cluster, ACluster(seed=8) as east_cluster:
        regions = await two_regions(west_cluster, east_cluster)

        written = await fetch(regions.east_relay, "PUT", "/v1/jobs?region=west", JOB)
        read = await fetch(regions.east_relay, "GET", "/v1/jobs?region=west&per_page=1")
        local_reply = await fetch(regions.east_relay, "GET", "/v1/jobs")

        assert (written.status, read.status, local_reply.body) == (200, 200, b"[]")
        assert [job["ID"] for job in json.loads(read.body)] == ["shop"]
        assert {"x-cluster-index", "x-cluster-knownleader", "x-cluster-lastcontact"} <= read.headers.keys()


@rule("parameters", "forwarded")
@in_virtual_time
async def test_a_blocking_query_waits_in_another_region() -> None:
    async with ACluster() as west_cluster, ACluster(seed=8) as east_cluster:
        regions = await two_regions(west_cluster, east_cluster)
        index = (await fetch(regions.east_relay, "GET", "/v1/jobs?region=west")).headers["x-cluster-index"]
        asking = west_cluster.start(
            fetch(regions.east_relay, "GET", f"/v1/jobs?region=west&index={index}&wait=60s"), name="asks"
        )
        await pass_time(5.0)
        waited = not asking.done()

        await register(regions.west, a_job())

        assert waited
        assert [job["ID"] for job in json.loads((await asking).body)] == ["shop"]


@rule("parameters", "forwarded")
@in_virtual_time
async def test_events_of_another_region_are_streamed() -> None:
    async with ACluster() as west_cluster, ACluster(seed=8) as east_cluster:
        regions = await two_regions(west_cluster, east_cluster)
        outgoing = RelayRequest("GET", b"/v1/event/stream?region=west&topic=Job", ())

        async with InMemoryRelay(regions.east_relay).open(outgoing) as incoming:
            beginning = await anext(incoming.parts)
            await register(regions.west, a_job())
            events = b""
            while b"JobRegistered" not in events:
                events += await anext(incoming.parts)

        assert (incoming.status, beginning.strip()) == (200, b"{}")
        assert json.loads(events.strip().splitlines()[-1])["Events"][0]["Key"] == "shop"


@rule("parameters", "forwarded")
@in_virtual_time
async def test_the_log_of_a_server_in_another_region_is_streamed_line_by_line() -> None:
    async with ACluster() as west_cluster, ACluster(seed=8) as east_cluster:
        regions = await two_regions(west_cluster, east_cluster)
        regions.west.server.agent = FakeAgentInterface()
        outgoing = RelayRequest("GET", b"/v1/agent/monitor?region=west&plain=true&log_level=debug", ())

        async with InMemoryRelay(regions.east_relay).open(outgoing) as incoming:
            log_lines = b""
            while log_lines.count(b"\n") < 3:
                log_lines += await anext(incoming.parts)

        assert (incoming.status, log_lines.splitlines()) == (200, [b"line %d of debug" % number for number in range(3)])
