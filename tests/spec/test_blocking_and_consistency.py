"""Blocking queries, and the modes of consistency."""

import json

from tests.builders import a_job
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from tests.spec.rules import rule
from tests.spec.server_requests import get, read_list, register
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation


@rule("blocking", "waits")
@in_virtual_time
async def test_a_request_with_an_index_waits_for_a_change() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/jobs")).headers["x-cluster-index"]
        asking = cluster.start(get(server, "/v1/jobs", f"index={index}&wait=60s"), name="asks")
        await pass_time(10.0)
        waited = not asking.done()

        await register(server, a_job())
        reply = await asking

        assert (waited, [job["ID"] for job in json.loads(reply.body)]) == (True, ["shop"])
        assert int(reply.headers["x-cluster-index"]) > int(index)


@rule("blocking", "no-guarantee")
@in_virtual_time
async def test_a_blocking_query_returns_the_current_result_after_its_wait() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        before = await get(server, "/v1/jobs")

        after = await get(server, "/v1/jobs", f"index={before.headers['x-cluster-index']}&wait=1s")

        assert (after.status, after.body) == (200, before.body)
        assert after.headers["x-cluster-index"] == before.headers["x-cluster-index"]


@rule("blocking", "idempotent")
@in_virtual_time
async def test_a_write_that_does_not_change_the_result_may_end_the_wait() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register(server, a_job())
        await pass_time(2.0)
        before = await get(server, "/v1/job/shop/versions")
        asking = cluster.start(
            get(server, "/v1/job/shop/versions", f"index={before.headers['x-cluster-index']}&wait=60s"), name="asks"
        )
        await pass_time(1.0)

        repeated = await register(server, a_job())
        after = await asking

        assert (repeated.status, after.status) == (200, 200)
        assert [job["Version"] for job in json.loads(after.body)["Versions"]] == [0]
        assert int(after.headers["x-cluster-index"]) >= int(before.headers["x-cluster-index"])


@rule("blocking", "bounds", "jitter")
@in_virtual_time
async def test_the_wait_defaults_to_5_minutes_is_at_most_10_and_has_a_jitter_of_a_sixteenth() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/vars")).headers["x-cluster-index"]

        async def waits_s(query: str) -> float:
            began_s = now_s()
            await get(server, "/v1/vars", f"index={index}{query}")
            return now_s() - began_s

        default, longest, short = await waits_s(""), await waits_s("&wait=1h"), await waits_s("&wait=16s")

        assert 300 <= default <= 300 * 17 / 16
        assert 600 <= longest <= 600 * 17 / 16
        assert 16 <= short <= 17


@rule("consistency", "default")
@in_virtual_time
async def test_a_default_read_returns_writes_acknowledged_by_another_server() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        second.faults.choose_fault = lambda operation: (
            DelayFault(reply_s=2.0) if operation is EngineOperation.FEED else None
        )

        await register(first, a_job())

        assert [job["ID"] for job in await read_list(second, "/v1/jobs")] == ["shop"]


@rule("consistency", "reads-only")
@in_virtual_time
async def test_a_write_ignores_the_stale_parameter() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)

        written = await register(second, a_job(), "stale")

        assert written.status == 200
        assert [job["ID"] for job in await read_list(first, "/v1/jobs")] == ["shop"]


@rule("consistency", "stale-bound")
@in_virtual_time
async def test_a_stale_read_on_another_server_shows_a_write_within_50_milliseconds() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)

        await register(first, a_job())
        await pass_time(0.05)

        assert [job["ID"] for job in await read_list(second, "/v1/jobs", "stale")] == ["shop"]


@rule("consistency", "default-leader", "stale-leaderless", "stale-any")
@in_virtual_time
async def test_without_a_leader_only_stale_reads_are_served() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)

        default, stale = await get(server, "/v1/jobs"), await get(server, "/v1/jobs", "stale")

        assert (default.status, default.body) == (500, b"No cluster leader")
        assert (stale.status, stale.body, stale.headers["x-cluster-knownleader"]) == (200, b"[]", "false")


@rule("consistency", "stale-any")
@in_virtual_time
async def test_a_server_that_does_not_lead_serves_stale_reads() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        await register(first, a_job())
        await pass_time(0.5)

        assert [job["ID"] for job in await read_list(second, "/v1/jobs", "stale")] == ["shop"]
