"""The endpoint that reports the use of the cluster."""

from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import DENIED, get, read_json, status_and_body

READ_NODES = 'node { policy = "read" }'


@in_virtual_time
async def test_a_caller_without_the_right_to_read_nodes_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)

        assert status_and_body(await get(server, "/v1/usage", headers=await a_token(server))) == DENIED


@in_virtual_time
async def test_an_unknown_order_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        status, text = status_and_body(await get(server, "/v1/usage", "order=age"))

        assert (status, text) == (400, b"unknown order: use one of cpu, memory, allocations, name")


@in_virtual_time
async def test_the_nodes_of_the_cluster_are_reported_with_a_limit() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 3)
        enable_acl(server)
        headers = await a_token(server, READ_NODES)

        found = await read_json(server, "/v1/usage", "limit=2&order=name", headers=headers)

        assert (found["NodeCount"], [node["Name"] for node in found["Nodes"]]) == (3, ["node-1", "node-2"])
        assert found["CPUCapacity"] > 0
