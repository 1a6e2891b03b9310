"""Parameters that all share, and the headers of replies."""

import gzip
import json

from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.spec.rules import rule
from tests.spec.words import get, listed, register, write
from wharf.model.changes import THIS
from wharf.model.namespace import Namespace
from wharf.state.tables import NAMESPACES


@rule("parameters", "namespace")
@in_virtual_time
async def test_the_namespace_is_named_where_it_is_not_the_default_one() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await write(server, NAMESPACES.put(Namespace(name="other", create_index=THIS)))
        await register(server, a_job("here"))
        await register(server, replace(a_job("there"), namespace="other"), "namespace=other")

        assert [job["ID"] for job in await listed(server, "/v1/jobs")] == ["here"]
        assert [job["ID"] for job in await listed(server, "/v1/jobs", "namespace=other")] == ["there"]
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
        await pass_time(2.0)  # Its evaluation is through; nothing changes between the two.

        plain, pretty = [(await get(server, "/v1/job/shop", query)).body for query in ("", "pretty")]

        assert (b"\n    " in plain, b"\n    " in pretty, json.loads(pretty)) == (False, True, json.loads(plain))


@rule("parameters", "gzip")
@in_virtual_time
async def test_whoever_accepts_gzip_gets_gzip() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        zipped = await get(server, "/v1/jobs", headers={"accept-encoding": "gzip"})

        assert (zipped.headers["content-encoding"], gzip.decompress(zipped.body)) == ("gzip", b"[]")


@rule("parameters", "reverse")
@rule("paging", "order")
@in_virtual_time
async def test_lists_are_ascending_and_turned_round_on_demand() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for name in ("b", "c", "a"):
            await register(server, a_job(name))
        created = [
            e["JobID"] for e in await listed(server, "/v1/evaluations", "filter=TriggeredBy+==+%22job-register%22")
        ]

        assert [job["ID"] for job in await listed(server, "/v1/jobs")] == ["a", "b", "c"]
        assert [job["ID"] for job in await listed(server, "/v1/jobs", "reverse=true")] == ["c", "b", "a"]
        assert created == ["b", "c", "a"]


@rule("headers", "index")
@in_virtual_time
async def test_the_index_starts_at_one_and_identifies_the_state() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        new = await get(server, "/v1/jobs")

        registered = await register(server, a_job())
        await pass_time(2.0)
        one = await get(server, "/v1/job/shop")
        again = await get(server, "/v1/job/shop")

        assert new.headers["x-cluster-index"] == "1"
        assert int(one.headers["x-cluster-index"]) >= int(registered.headers["x-cluster-index"]) > 1
        assert again.headers["x-cluster-index"] == one.headers["x-cluster-index"]


@rule("headers", "nexttoken")
@rule("paging", "split", "token", "last")
@in_virtual_time
async def test_a_token_leads_from_page_to_page_until_there_is_none() -> None:
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
async def test_reads_tell_how_fresh_they_are() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        fresh = await get(server, "/v1/jobs", "stale")
        server.faults.cut()
        await pass_time(7.0)
        old = await get(server, "/v1/jobs", "stale")

        assert (fresh.headers["x-cluster-knownleader"], old.headers["x-cluster-knownleader"]) == ("true", "false")
        assert int(old.headers["x-cluster-lastcontact"]) >= 6_000 > int(fresh.headers["x-cluster-lastcontact"])
