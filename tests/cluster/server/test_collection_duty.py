"""Garbage collection at intervals in a cluster, in virtual time (scheduling.md 1.6)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_task
from tests.kit.cluster import COLLECTION_SETTINGS, ACluster, OneServer
from tests.kit.settings import USUAL_COLLECTION
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.controllers.collection import list_collection_passes
from wharf.cluster.engines.port import WriteLimits
from wharf.cluster.operations.operator.collection import CollectionKind
from wharf.cluster.state import Table
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOB_SUMMARIES, JOB_VERSIONS, JOBS, NODES
from wharf.contract.model.jobs.job import Job

HOUR_S = 3_600
HOUR_NS = HOUR_S * 1_000_000_000


def make_shop_job() -> Job:
    return a_job("shop", a_group("web", a_task(driver="mock"), count=3))


def count_records(server: OneServer) -> tuple[int, ...]:
    tables: tuple[Table[Any], ...] = (JOBS, JOB_VERSIONS, EVALUATIONS, ALLOCATIONS, DEPLOYMENTS, JOB_SUMMARIES)
    return tuple(sum(1 for _ in server.replica.iter_all(table)) for table in tables)


@pytest.mark.parametrize(
    ("kind", "hours"),
    [
        (CollectionKind.EVALUATIONS, 1),
        (CollectionKind.BATCH_EVALUATIONS, 24),
        (CollectionKind.JOBS, 4),
        (CollectionKind.JOB_RESULTS, 720),
        (CollectionKind.DEPLOYMENTS, 1),
        (CollectionKind.NODES, 24),
        (CollectionKind.ONE_TIME_TOKENS, 0),
    ],
)
def test_each_kind_of_record_has_its_retention_time(kind: CollectionKind, hours: int) -> None:
    assert [age.retention_ns for age in list_collection_passes(USUAL_COLLECTION) if age.kind is kind] == [
        hours * HOUR_NS
    ]


def test_nodes_are_collected_last_and_tokens_by_another_duty() -> None:
    kinds = [age.kind for age in list_collection_passes(USUAL_COLLECTION)]

    assert kinds[-1] is CollectionKind.NODES
    assert set(CollectionKind) - set(kinds) == {CollectionKind.TOKENS}


EARLY_RESULTS = replace(COLLECTION_SETTINGS, batch_job_retention_ns=5 * HOUR_NS, batch_evaluation_retention_ns=HOUR_NS)
"""Settings with which batch jobs are retained for little longer than other jobs."""


@in_virtual_time
async def test_an_ended_batch_job_is_collected_when_its_retention_has_passed_since_its_end() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(collection=EARLY_RESULTS)
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_batch_job("nightly", a_group("work", a_task(driver="mock"))))

        await pass_time(4.9 * HOUR_S)
        assert count_records(server) == (1, 1, 1, 1, 0, 1)
        await pass_time(0.3 * HOUR_S)
        assert count_records(server) == (0, 0, 0, 0, 0, 0)


@in_virtual_time
async def test_old_records_of_a_running_service_are_collected_and_the_service_is_retained() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(make_shop_job())
        await pass_time(1.2 * HOUR_S)

        jobs, versions, evaluations, allocations, deployments, summaries = count_records(server)

        assert (jobs, versions, allocations, summaries) == (1, 1, 3, 1)
        assert deployments == 1  # Its allocations should run.
        assert evaluations == 1  # It belongs to running allocations.


@in_virtual_time
async def test_a_node_that_is_down_for_its_retention_is_collected() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        [node] = await cluster.ready_nodes(server, 1)
        await node.die()
        await node.wait_for_status("down")

        await pass_time(19 * HOUR_S)
        assert server.replica.get(NODES, node.id) is not None
        await pass_time(1.2 * HOUR_S)
        assert server.replica.get(NODES, node.id) is None


@in_virtual_time
async def test_many_records_are_collected_in_writes_that_fit_a_small_log() -> None:
    async with ACluster(limits=WriteLimits(changes=56, conditions=56)) as cluster:
        server = await cluster.a_server(collection=EARLY_RESULTS)
        await cluster.ready_nodes(server, 1)
        for number in range(2):
            await server.client.jobs.register(
                a_batch_job(f"job-{number}", a_group("work", a_task(driver="mock"), count=30))
            )

        await pass_time(6.2 * HOUR_S)

        assert count_records(server) == (0, 0, 0, 0, 0, 0)
