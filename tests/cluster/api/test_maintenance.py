"""Endpoints that start maintenance at once (conventions 3.1)."""

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import DENIED, commit, put, send, status_and_text
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.engines.port import WriteLimits
from wharf.cluster.state.tables import JOB_SUMMARIES, JOBS
from wharf.contract.model.jobs.job import GroupSummary, JobStatus
from wharf.contract.model.log import WRITE_INDEX


async def with_finished_jobs(server: OneServer, count: int) -> None:
    for number in range(count):
        job = a_batch_job(f"job-{number}", create_index=WRITE_INDEX, status=JobStatus.DEAD, stop=True)
        await commit(server, JOBS.build_put(job))
    await until(lambda: server.replica.count_records(JOB_SUMMARIES) == count, what="the summaries exist")


@in_virtual_time
async def test_garbage_collection_deletes_finished_records_in_as_many_writes_as_needed() -> None:
    async with ACluster(limits=WriteLimits(changes=30, conditions=30, bytes=100_000)) as cluster:
        server = await cluster.a_server()
        await with_finished_jobs(server, 12)

        reply = await put(server, "/v1/system/gc")

        assert status_and_text(reply) == (200, "")
        assert "x-cluster-index" not in reply.headers
        assert (server.replica.count_records(JOBS), server.replica.count_records(JOB_SUMMARIES)) == (0, 0)


@in_virtual_time
async def test_summaries_are_recomputed() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await with_finished_jobs(server, 3)
        summary = server.replica.get(JOB_SUMMARIES, "default", "job-1")
        assert summary is not None
        await commit(server, JOB_SUMMARIES.build_put(replace(summary, summary={"web": GroupSummary(running=9)})))

        reply = await put(server, "/v1/system/reconcile/summaries")

        assert status_and_text(reply) == (200, "")
        counted = server.replica.get(JOB_SUMMARIES, "default", "job-1")
        assert counted is not None
        assert counted.summary == {"web": GroupSummary()}


@in_virtual_time
@pytest.mark.parametrize("path", ["/v1/system/gc", "/v1/system/reconcile/summaries"])
async def test_maintenance_needs_put_and_a_management_token(path: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        operator = await a_token(server, 'operator { policy = "write" } node { policy = "write" }')
        manager = await a_token(server, management=True)

        assert (await send(server, "POST", path)).status == 405
        assert (await send(server, "GET", path)).status == 405
        assert status_and_text(await put(server, path, headers=operator)) == DENIED
        assert status_and_text(await put(server, path, headers=manager)) == (200, "")
