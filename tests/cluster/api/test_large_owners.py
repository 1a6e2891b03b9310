"""Reads of one job, node, service and the like with tens of thousands of records: none holds the event loop for long."""

import json
from typing import Any, Final

from tests.builders import a_job, admitted
from tests.cluster.api.test_all_reads import IDS, build_path
from tests.cluster.api.test_read_limits import ENDED, put_instance, put_job, send, store_all
from tests.kit.cluster import OneServer
from tests.kit.loop_holds import LoopHolds, MeasuredCluster
from tests.kit.state import a_node, an_allocation, an_evaluation
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.kit.work import SETTLED_S, an_id
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, NODES
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.wire.endpoint_table import ENDPOINTS, EndpointKind

RECORD_COUNT: Final = 40_000
"""Less than the 50,000 allocations that a job may have by default (`jobs.max_count`)."""
OWNERS: Final = ("{job_id...}", "{node_id}", "{eval_id}", "{deployment_id}", "{alloc_id}", "{service_name}")
"""Parts of the paths of the reads, which name records with many others."""
QUERIES: Final = {"job.allocations": ("", "all=true"), "service.read": ("", "choose=2|me", "per_page=10")}
"""Parameters that change which records are read."""
EXPLAINED_BY_THE_BRAIN: Final = {"job.explain", "evaluation.explain"}
"""Computed in a process of its own, which this test does not have."""
FOR_NODES: Final = {"node.desired", "node.former"}
"""Need the secret of a node."""


async def store_owners(server: OneServer, count: int) -> None:
    """Store one job with this number of allocations, evaluations and services, all on one node."""
    big = admitted(a_job("big"))
    puts: list[Any] = [NODES.build_put(a_node("node-big")), *put_job(big)]
    puts.append(DEPLOYMENTS.build_put(Deployment(
        id=IDS["deployment_id"], namespace="default", job_id="big", create_index=1, status=DeploymentStatus.SUCCESSFUL, task_groups={},
    )))  # fmt: skip
    for n in range(count):
        puts.append(ALLOCATIONS.build_put(an_allocation(
            big, an_id(n, 1), node_id="node-big", eval_id=an_id(0, 2), deployment_id=IDS["deployment_id"], **ENDED
        )))  # fmt: skip
        puts.append(EVALUATIONS.build_put(an_evaluation(big, an_id(n, 2), status=EvaluationStatus.COMPLETE)))
        puts.append(
            put_instance(f"r{n:05}", "shared", node_id="node-big", job_id="big", alloc_id=an_id(n, 1), tags=("a",))
        )
    await store_all(server, puts)
    await pass_time(SETTLED_S)


def list_reads() -> list[tuple[str, str]]:
    """Return path and query of each read of one job, node, evaluation, deployment, allocation or service."""
    return [
        (build_path(endpoint), query)
        for endpoint in ENDPOINTS
        if endpoint.kind is EndpointKind.READ and any(each in endpoint.path for each in OWNERS)
        if endpoint.name not in EXPLAINED_BY_THE_BRAIN | FOR_NODES
        for query in QUERIES.get(endpoint.name, ("",))
    ]


async def read(server: OneServer, path: str, query: str) -> tuple[Any, LoopHolds]:
    reply, holds = await send(server, path, query)
    assert reply.status in (200, 400, 404), (path, reply.body[:200])  # Some need more parameters or records.
    return (json.loads(reply.body) if reply.status == 200 else None), holds


@in_virtual_time
async def test_no_read_of_a_large_job_node_or_service_holds_the_loop() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_owners(server, RECORD_COUNT)
        for path, query in list_reads():
            _, holds = await read(server, path, query)

            holds.require_short(f"{path}?{query}")


@in_virtual_time
async def test_a_read_in_slices_has_the_same_records_in_the_same_order() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_owners(server, 2_500)

        for path, query in (("/v1/job/big/allocations", "all=true"), ("/v1/node/node-big/allocations", "")):
            allocations, _ = await read(server, path, query)
            assert [each["ID"] for each in allocations] == [an_id(n, 1) for n in range(2_500)]
        services, _ = await read(server, "/v1/service/shared", "")
        page, _ = await read(server, "/v1/service/shared", "per_page=2&next_token=default.r02000")

    assert [each["ID"] for each in services] == [f"r{n:05}" for n in range(2_500)]
    assert [each["ID"] for each in page] == ["r02000", "r02001"]
