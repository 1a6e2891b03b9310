"""Admission: how many requests of each class may be in flight, and what the others get."""

import asyncio
import gzip
from typing import Any

import pytest

from tests.builders import a_job
from tests.cluster.api.access import UNKNOWN_SECRET, an_operator
from tests.kit.cluster import ACluster, ANode, OneServer
from tests.kit.exchange import InMemoryTransport, build_scope, send_raw
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.api.admission import (
    DEFAULT_LIMITS,
    DEFAULT_MAX_BODY_MEMORY,
    AdmissionController,
    AdmissionGate,
    AdmissionLimit,
    RequestClass,
)
from wharf.cluster.api.app import Api
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation
from wharf.cluster.state.tables import JOBS, NODES
from wharf.contract.client import AsyncClient, ClientReply, RetryPolicy
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import Overloaded


def limit_to(server: OneServer, *nodes: ANode, body_bytes: int = 0, **limits: int) -> None:
    """Give the server an application in which these classes, named as in `RequestClass`, have these limits.

    The nodes use this application from now on. `body_bytes`: how many bytes the bodies of callers may take.
    """
    changed = {
        RequestClass[name]: AdmissionLimit(limit, returns_per_s=1.0, max_retry_after_s=30)
        for name, limit in limits.items()
    }
    memory = {**DEFAULT_MAX_BODY_MEMORY, RequestClass.WRITE: body_bytes} if body_bytes else DEFAULT_MAX_BODY_MEMORY
    admission = AdmissionController(server.server, {**DEFAULT_LIMITS, **changed}, memory)
    server.api = server.exchange.api = server.build_api(admission=admission)
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
async def test_heartbeats_are_admitted_while_other_requests_of_nodes_are_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        nodes = await cluster.ready_nodes(server, 3)
        limit_to(server, *nodes, NODE=0)

        await pass_time(300.0)

        assert [node.status for node in server.replica.iter_all(NODES)] == [NodeStatus.READY] * 3


@in_virtual_time
async def test_a_heartbeat_with_a_wrong_secret_uses_no_slot_of_registered_nodes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        limit_to(server, UNPROVED_NODE=0)

        wrong = {"x-cluster-node-secret": "wrong"}
        known = await send_raw(server.api, "PUT", f"/v1/node/{node.id}/heartbeat", headers=wrong)
        unknown = await send_raw(server.api, "PUT", "/v1/node/0000/heartbeat", headers=wrong)

        assert [known.status, unknown.status] == [503, 503]


@in_virtual_time
async def test_blocking_queries_do_not_count_while_they_wait() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job("web"))
        limit_to(server, READ=1, QUERY=50)
        query = f"index={server.replica.index}&wait=20s"
        waiting = [asyncio.ensure_future(send_raw(server.api, "GET", "/v1/jobs", query=query)) for _ in range(50)]
        await pass_time(1.0)

        assert (await send_raw(server.api, "GET", "/v1/jobs")).status == 200
        waiting += [asyncio.ensure_future(send_raw(server.api, "GET", "/v1/jobs", query=query)) for _ in range(50)]
        assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}


@in_virtual_time
async def test_blocking_queries_that_are_answered_at_once_count() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job("web"))
        limit_to(server, QUERY=2)
        # All queries wait for the log at the same time.
        server.faults.choose_fault = lambda operation: (
            DelayFault(reply_s=1.0) if operation is EngineOperation.BARRIER else None
        )

        replies = await asyncio.gather(
            *(send_raw(server.api, "GET", "/v1/jobs", query="index=1&wait=20s") for _ in range(5))
        )
        after = await send_raw(server.api, "GET", "/v1/jobs", query="index=1&wait=20s")

        assert sorted(reply.status for reply in replies) == [200, 200, 503, 503, 503]
        assert after.status == 200


class SlowBody:
    """A request whose body arrives in parts, each when `send_part` is called."""

    def __init__(self, server: OneServer, path: str, **headers: str) -> None:
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._sent: list[Any] = []
        scope = build_scope("PUT", path, query="", headers=headers)
        self.reply = asyncio.ensure_future(self._run(server, scope))

    async def _run(self, server: OneServer, scope: Any) -> ClientReply:
        async def send(message: Any) -> None:
            self._sent.append(message)

        await server.api(scope, self._messages.get, send)
        start, *parts = self._sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return ClientReply(start["status"], headers, b"".join(part["body"] for part in parts))

    async def send_part(self, part: bytes, *, is_last: bool = False) -> None:
        self._messages.put_nowait({"type": "http.request", "body": part, "more_body": not is_last})
        await pass_time(0.01)


NAMESPACE_START = b" " * 1_000 + b'{"Name":"n1"'
NAMESPACE_END = b"}"


@in_virtual_time
async def test_bodies_above_the_memory_for_bodies_are_refused_until_others_have_their_reply() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        limit_to(server, body_bytes=2 * len(NAMESPACE_START) + 1)
        first, second, third = (SlowBody(server, "/v1/namespace/n1") for _ in range(3))
        for each in (first, second, third):
            await each.send_part(NAMESPACE_START)

        refused = await third.reply
        small = await send_raw(server.api, "PUT", "/v1/namespace/n2", body=b'{"Name":"n2"}')
        assert (refused.status, refused.headers["retry-after"], small.status) == (503, "5", 200)
        assert refused.headers["x-cluster-error-reason"] == "overloaded"
        assert refused.body == (
            b"the server is overloaded: the bodies of the requests in progress take 2025 bytes; "
            b"send the request again after 5 s"
        )

        await first.send_part(b"", is_last=True)
        assert (await first.reply).status == 400
        again = SlowBody(server, "/v1/namespace/n1")
        await again.send_part(NAMESPACE_START)
        assert not again.reply.done()
        await second.send_part(b"", is_last=True)
        await again.send_part(NAMESPACE_END, is_last=True)
        assert (await again.reply).status == 200


@in_virtual_time
async def test_the_memory_of_a_body_is_free_again_if_its_caller_disconnects_or_sends_too_much() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        limit_to(server, body_bytes=3_000)
        for _ in range(3):
            lost = SlowBody(server, "/v1/namespace/n1")
            await lost.send_part(NAMESPACE_START)
            lost._messages.put_nowait({"type": "http.disconnect"})
            assert (await lost.reply).status == 400
            large = SlowBody(server, "/v1/namespace/n1")
            await large.send_part(NAMESPACE_START)
            await large.send_part(b" " * 3_000)
            assert (await large.reply).status == 503

        whole = SlowBody(server, "/v1/namespace/n1")
        await whole.send_part(NAMESPACE_START)
        await whole.send_part(NAMESPACE_END, is_last=True)
        assert (await whole.reply).status == 200


@in_virtual_time
async def test_the_rest_of_a_large_body_is_not_read_from_a_caller_without_access() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1", access=True)
        for headers in ({}, {"X-Cluster-Token": UNKNOWN_SECRET}):
            stranger = SlowBody(server, "/v1/namespace/n1", **headers)
            await stranger.send_part(NAMESPACE_START)

            assert stranger.reply.done()
            assert (await stranger.reply).status == 403


@in_virtual_time
async def test_the_content_of_a_compressed_body_is_not_read_from_a_caller_without_access() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1", access=True)
        limit_to(server, body_bytes=1_000)
        body = gzip.compress(b" " * 1_000_000)

        replies = [
            await send_raw(server.api, "PUT", path, headers={"content-encoding": "gzip"}, body=body)
            for path in ("/v1/namespace/n1", f"/v1/node/{UNKNOWN_SECRET}/register")
        ]

        assert [reply.status for reply in replies] == [403, 403]


@in_virtual_time
async def test_one_token_uses_a_quarter_of_the_memory_of_bodies_but_at_least_one_body() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        other = await operator.a_token(Type="management")
        limit_to(operator.server, body_bytes=4_000)
        own = {"X-Cluster-Token": operator.token}
        first, second = (SlowBody(operator.server, "/v1/namespace/n1", **own) for _ in range(2))
        third = SlowBody(operator.server, "/v1/namespace/n1", **{"X-Cluster-Token": other.token})
        for each in (first, second, third):
            await each.send_part(b" " * 1_001)

        assert [each.reply.done() for each in (first, second, third)] == [False, True, False]
        assert (await second.reply).body == (
            b"the server is overloaded: the bodies of the requests in progress of this caller take 1000 bytes; "
            b"send the request again after 5 s"
        )
        for each in (first, third):
            await each.send_part(b'{"Name":"n1"}', is_last=True)
            assert (await each.reply).status == 200


@in_virtual_time
async def test_the_rest_of_a_large_body_is_not_read_from_an_unknown_node() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1", access=True)
        for path in ("register", "report"):
            stranger = SlowBody(server, f"/v1/node/{UNKNOWN_SECRET}/{path}", **{"X-Cluster-Node-Secret": "wrong"})
            await stranger.send_part(b" " * 1_000)

            assert stranger.reply.done()
            assert (await stranger.reply).status in (403, 404)


@in_virtual_time
async def test_the_rest_of_a_large_body_is_read_from_a_registered_node() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        wrong = SlowBody(server, f"/v1/node/{node.id}/report", **{"X-Cluster-Node-Secret": "wrong"})
        known = SlowBody(server, f"/v1/node/{node.id}/report", **{"X-Cluster-Node-Secret": node.secret_id})
        for each in (wrong, known):
            await each.send_part(b" " * 1_000)

        assert [each.reply.done() for each in (wrong, known)] == [True, False]
        await known.send_part(b"{}", is_last=True)
        assert [(await each.reply).status for each in (wrong, known)] == [403, 200]


@in_virtual_time
async def test_bodies_of_new_nodes_take_no_memory_of_registered_nodes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        memory = {**DEFAULT_MAX_BODY_MEMORY, RequestClass.NEW_NODE: 1_500}
        server.api = Api(server.server, admission=AdmissionController(server.server, DEFAULT_LIMITS, memory))
        first, second = (SlowBody(server, f"/v1/node/{UNKNOWN_SECRET}/register") for _ in range(2))
        known = SlowBody(server, f"/v1/node/{node.id}/report", **{"X-Cluster-Node-Secret": node.secret_id})
        for each in (first, second, known):
            await each.send_part(b" " * 1_000)

        assert [each.reply.done() for each in (first, second, known)] == [False, True, False]
        await known.send_part(b"{}", is_last=True)
        await first.send_part(b"{}", is_last=True)
        assert [(await each.reply).status for each in (first, second, known)] == [400, 503, 200]


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
