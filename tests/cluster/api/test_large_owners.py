"""Reads of one job, node, service and the like with tens of thousands of records: none holds the event loop for long."""

import asyncio
import json
from typing import Any, Final

from msgspec.structs import replace

from tests.builders import a_job, admitted
from tests.cluster.api.test_all_reads import IDS, build_path
from tests.cluster.api.test_read_limits import ENDED, put_instance, put_job, send, store_all
from tests.kit.cluster import OneServer
from tests.kit.loop_holds import LoopHolds, MeasuredCluster
from tests.kit.state import SECRET, a_node, an_allocation, an_evaluation
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.kit.work import SETTLED_S, an_id
from wharf.cluster.api.replies.encoding import encode_json
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, DEPLOYMENTS, EVALUATIONS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.wire.endpoint_table import ENDPOINTS, EndpointKind

RECORD_COUNT: Final = 40_000
"""Less than the 50,000 allocations that a job may have by default (`jobs.max_count`)."""
OWNERS: Final = ("{job_id...}", "{node_id}", "{eval_id}", "{deployment_id}", "{alloc_id}", "{service_name}")
"""Parts of the paths of the reads, which name records with many others."""
QUERIES: Final = {
    "job.allocations": ("", "all=true"),
    "service.read": ("", "choose=2|me", "per_page=10"),
    "node.desired": ("", "without_ended=true", "index=1"),
}
"""Parameters that change which records are read."""
COMPUTED_IN_A_COPY: Final = {"job.explain", "evaluation.explain"}
"""Computed in a copy of the process, which this test does not have."""
NODE_HEADERS: Final = {"x-cluster-node-secret": SECRET}
"""Headers of every read. Those of nodes need the secret of the node."""


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
        if endpoint.name not in COMPUTED_IN_A_COPY
        for query in QUERIES.get(endpoint.name, ("",))
    ]


async def read(server: OneServer, path: str, query: str) -> tuple[Any, LoopHolds]:
    reply, holds = await send(server, path, query, headers=NODE_HEADERS)
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


async def read_assignments(server: OneServer, query: str) -> tuple[str, bytes]:
    reply, _ = await send(server, "/v1/node/node-big/desired", query, headers=NODE_HEADERS)
    assert reply.status == 200, reply.body
    return reply.headers["x-cluster-index"], reply.body


def build_expected_assignments(server: OneServer, *, without_ended: bool) -> tuple[str, bytes]:
    """Return the index header and the body of the assignments of the large node, as one step would build them."""
    replica = server.server.replica
    selected = [
        each
        for each in replica.list_by_index(ALLOCATIONS_ON_NODE, "node-big")
        if not without_ended or each.client_status is not ClientStatus.COMPLETE
    ]
    indexes = {each.id: max(each.alloc_modify_index, replica.epoch_since) for each in selected}
    return str(max(indexes.values(), default=1)), encode_json(indexes)


@in_virtual_time
async def test_the_assignments_of_a_large_node_are_the_same_bytes_as_in_one_step_after_each_kind_of_change() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_owners(server, 2_500)

        first, last = (server.server.replica.get(ALLOCATIONS, an_id(n, 1)) for n in (0, 2_499))
        assert first is not None
        assert last is not None
        stored = [server.server.replica.get(ALLOCATIONS, an_id(n, 1)) for n in range(1_200)]
        revived = [
            ALLOCATIONS.build_put(replace(each, client_status=ClientStatus.RUNNING, alloc_modify_index=WRITE_INDEX))
            for each in stored
            if each is not None
        ]
        for changes in (
            (),
            revived[:1],
            revived[1:],  # Now many have not ended.
            (ALLOCATIONS.build_put(replace(last, alloc_modify_index=WRITE_INDEX)),),
            (ALLOCATIONS.build_put(replace(first, alloc_modify_index=WRITE_INDEX)),),  # Has ended.
            (ALLOCATIONS.build_delete(first.id),),
        ):
            await store_all(server, list(changes))
            await pass_time(SETTLED_S)
            for query in ("", "without_ended=true"):
                assert await read_assignments(server, query) == build_expected_assignments(
                    server, without_ended=bool(query)
                )


@in_virtual_time
async def test_a_large_node_that_waits_for_its_assignments_is_woken_by_the_next_one() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_owners(server, 2_500)
        index, _ = await read_assignments(server, "")

        waiting = asyncio.create_task(read_assignments(server, f"index={index}&wait=60s"))
        await pass_time(1)
        was_done = waiting.done()
        await store_all(server, [ALLOCATIONS.build_put(an_allocation(admitted(a_job("big")), an_id(9_999, 1), node_id="node-big"))])  # fmt: skip
        new_index, body = await waiting

    assert (was_done, int(new_index) > int(index)) == (False, True)
    assert an_id(9_999, 1) in json.loads(body)


@in_virtual_time
async def test_a_large_node_reads_the_predecessor_of_its_own_allocation_and_no_other() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_owners(server, 2_500)
        own = an_allocation(
            admitted(a_job("big")), an_id(9_999, 1), node_id="node-big", previous_allocation=an_id(7, 1)
        )
        await store_all(server, [ALLOCATIONS.build_put(own)])
        await pass_time(SETTLED_S)

        replies = [
            (await send(server, f"/v1/node/node-big/former/{an_id(n, 1)}", headers=NODE_HEADERS))[0] for n in (7, 8)
        ]

    assert [(each.status, b"alloc not found" in each.body) for each in replies] == [(200, False), (404, True)]
