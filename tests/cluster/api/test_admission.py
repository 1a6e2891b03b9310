"""Admission: how many requests of each class may be in flight, and what the others get."""

import asyncio

import pytest

from tests.builders import a_job
from tests.kit.cluster import ACluster, ANode, OneServer
from tests.kit.exchange import InMemoryTransport, send_raw
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.api.admission import (
    DEFAULT_LIMITS,
    AdmissionController,
    AdmissionGate,
    AdmissionLimit,
    Overloaded,
    RequestClass,
)
from wharf.cluster.api.app import Api
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation
from wharf.cluster.state.tables import JOBS, NODES
from wharf.contract.client import AsyncClient, ClientReply, RetryPolicy
from wharf.contract.model.nodes.node import NodeStatus


def limit_to(server: OneServer, *nodes: ANode, **limits: int) -> None:
    """Give the server an application in which these classes, named as in `RequestClass`, have these limits.

    The nodes use this application from now on.
    """
    changed = {
        RequestClass[name]: AdmissionLimit(limit, returns_per_s=1.0, max_retry_after_s=30)
        for name, limit in limits.items()
    }
    server.api = Api(server.server, admission=AdmissionController(server.server, {**DEFAULT_LIMITS, **changed}))
    server.exchange.api = server.api
    for node in nodes:
        node.exchange.api = server.api


async def send_writes(server: OneServer, count: int) -> list[ClientReply]:
    """Create namespaces while every commit takes a second, and return the replies in the order of the requests."""
    server.faults.choose_fault = lambda operation: (
        DelayFault(request_s=1.0) if operation is EngineOperation.COMMIT else None
    )
    bodies = [b'{"Name":"n%d"}' % number for number in range(count)]
    return await asyncio.gather(
        *(send_raw(server.api, "PUT", f"/v1/namespace/n{i}", body=b) for i, b in enumerate(bodies))
    )


@in_virtual_time
async def test_requests_beyond_the_limit_are_refused_with_a_pause_and_change_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        limit_to(server, WRITE=2)
        index = server.replica.index

        replies = await send_writes(server, 5)

        refused = {reply.headers["retry-after"]: reply for reply in replies if reply.status == 503}
        assert sorted(reply.status for reply in replies) == [200, 200, 503, 503, 503]
        assert sorted(refused) == ["1", "2", "3"]
        assert refused["1"].headers["x-cluster-error-reason"] == "overloaded"
        assert (
            refused["1"].body == b"the server is overloaded: 2 writes are in progress; send the request again after 1 s"
        )
        assert server.replica.index == index + 2


@in_virtual_time
async def test_a_finished_request_makes_room_for_the_next_one_also_if_it_failed() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        limit_to(server, WRITE=1, READ=1)

        statuses = [(await send_raw(server.api, "PUT", "/v1/namespace/a", body=b"[")).status for _ in range(3)]
        statuses += [(await send_raw(server.api, "GET", "/v1/job/missing")).status for _ in range(3)]

        assert statuses == [400, 400, 400, 404, 404, 404]


@in_virtual_time
async def test_a_full_class_refuses_no_request_of_another_class() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        limit_to(server, WRITE=0, LOCAL=0, NEW_NODE=0)

        assert (await send_raw(server.api, "GET", "/v1/jobs")).status == 200
        assert (await send_raw(server.api, "GET", "/v1/agent/health")).status == 200
        assert (await send_raw(server.api, "GET", "/v1/agent/self")).status == 503


@in_virtual_time
async def test_registered_nodes_stay_ready_while_registrations_and_callers_are_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        nodes = await cluster.ready_nodes(server, 3)
        limit_to(server, *nodes, WRITE=0, READ=0, LOCAL=0, NEW_NODE=0)

        await pass_time(300.0)

        assert [node.status for node in server.replica.iter_all(NODES)] == [NodeStatus.READY] * 3


@in_virtual_time
async def test_a_heartbeat_with_a_wrong_secret_uses_no_slot_of_registered_nodes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        limit_to(server, NEW_NODE=0)

        wrong = {"x-cluster-node-secret": "wrong"}
        known = await send_raw(server.api, "PUT", f"/v1/node/{node.id}/heartbeat", headers=wrong)
        unknown = await send_raw(server.api, "PUT", "/v1/node/0000/heartbeat", headers=wrong)

        assert [known.status, unknown.status] == [503, 503]


@in_virtual_time
async def test_blocking_queries_do_not_count() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job("web"))
        limit_to(server, READ=1)
        query = f"index={server.replica.index}&wait=20s"
        waiting = [asyncio.ensure_future(send_raw(server.api, "GET", "/v1/jobs", query=query)) for _ in range(50)]
        await pass_time(1.0)

        assert (await send_raw(server.api, "GET", "/v1/jobs")).status == 200
        assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}


@in_virtual_time
async def test_a_client_repeats_a_refused_write_until_it_is_admitted() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        limit_to(server, WRITE=1)
        client = AsyncClient(server.world, [InMemoryTransport(server.api)], retry_policy=RetryPolicy(max_attempts=10))

        await asyncio.gather(*(client.jobs.register(a_job(f"job-{number}")) for number in range(4)))

        assert sorted(job.id for job in server.replica.iter_all(JOBS)) == [f"job-{number}" for number in range(4)]


def test_the_pause_grows_with_the_refused_callers_up_to_its_limit_and_shrinks_again() -> None:
    gate = AdmissionGate(RequestClass.NEW_NODE, AdmissionLimit(0, returns_per_s=100.0, max_retry_after_s=30))

    def draw_pause_s(now_s: float) -> int:
        with pytest.raises(Overloaded) as refused:
            gate.enter(now_s)
        return refused.value.retry_after_s

    first, *_, thousandth = [draw_pause_s(10.0) for _ in range(1_000)]
    *_, last = [draw_pause_s(10.0) for _ in range(9_000)]

    assert [first, thousandth, last, draw_pause_s(200.0)] == [1, 10, 30, 1]
