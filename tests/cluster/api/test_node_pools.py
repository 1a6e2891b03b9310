"""Endpoints of node pools (nodes-allocations.md 1.5)."""

import pytest

from tests.builders import a_job
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import DENIED, commit, delete, get, put, read, status_and_text
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.server.security.access_services import AccessSettings
from wharf.cluster.state.tables import JOBS, NAMESPACES, NODE_POOLS, NODES
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace

DAY_NS = 24 * 3_600 * 1_000_000_000


async def with_pool(cluster: ACluster) -> OneServer:
    server = await cluster.a_server()
    await put(server, "/v1/node/pools", {"Name": "gpu"})
    return server


@in_virtual_time
async def test_two_node_pools_are_built_in() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        pools = read(await get(server, "/v1/node/pools"))

        assert [(pool["Name"], pool["Description"]) for pool in pools] == [
            ("all", "Node pool with all nodes in the cluster."),
            ("default", "Default node pool."),
        ]


@in_virtual_time
async def test_a_node_pool_write_has_an_empty_reply_and_can_be_read_back() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        body = {"Name": "gpu", "Meta": {"a": "b"}, "SchedulerConfiguration": {"SchedulerAlgorithm": "spread"}}

        stored = await put(server, "/v1/node/pools", body)

        pool = read(await get(server, "/v1/node/pool/gpu"))
        assert status_and_text(stored) == (200, "")
        assert pool["CreateIndex"] == pool["ModifyIndex"] == int(stored.headers["x-cluster-index"])
        assert (pool["Meta"], pool["NodeIdentityTTL"]) == ({"a": "b"}, DAY_NS)
        assert pool["SchedulerConfiguration"] == {
            "SchedulerAlgorithm": "spread", "MemoryOversubscriptionEnabled": None,
        }  # fmt: skip


@in_virtual_time
@pytest.mark.parametrize("ttl", ["12h", DAY_NS // 2])
async def test_the_ttl_of_node_identities_is_a_duration_text_or_nanoseconds(ttl: object) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        await put(server, "/v1/node/pool/gpu", {"Name": "gpu", "NodeIdentityTTL": ttl})

        assert read(await get(server, "/v1/node/pool/gpu"))["NodeIdentityTTL"] == DAY_NS // 2


@in_virtual_time
async def test_an_invalid_ttl_is_refused_with_its_position() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        status, text = status_and_text(await put(server, "/v1/node/pools", {"Name": "gpu", "NodeIdentityTTL": "soon"}))

        assert (status, "NodeIdentityTTL" in text) == (400, True)


@in_virtual_time
async def test_a_body_that_names_another_pool_than_the_path_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert status_and_text(await put(server, "/v1/node/pool/gpu", {"Name": "other"})) == (
            400,
            "Node pool name does not match request path",
        )


@in_virtual_time
async def test_a_built_in_pool_can_neither_be_changed_nor_deleted() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert status_and_text(await put(server, "/v1/node/pools", {"Name": "default"})) == (
            400,
            'modifying node pool "default" is not allowed',
        )
        assert (await delete(server, "/v1/node/pool/all")).status == 400


@in_virtual_time
async def test_an_unknown_pool_is_refused_wherever_it_is_named() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        for path in ("/v1/node/pool/gpu", "/v1/node/pool/gpu/nodes", "/v1/node/pool/gpu/jobs"):
            assert status_and_text(await get(server, path)) == (404, "node pool not found")
        assert status_and_text(await delete(server, "/v1/node/pool/gpu")) == (404, "node pool gpu not found")


@in_virtual_time
async def test_a_pool_in_use_cannot_be_deleted_and_an_unused_one_can() -> None:
    async with ACluster() as cluster:
        server = await with_pool(cluster)
        await commit(server, NODES.build_put(a_node("node-1", node_pool="gpu", create_index=WRITE_INDEX)))

        in_use = await delete(server, "/v1/node/pool/gpu")
        await commit(server, NODES.build_delete("node-1"))
        unused = await delete(server, "/v1/node/pool/gpu")

        assert (in_use.status, "node-1" in in_use.body.decode()) == (400, True)
        assert status_and_text(unused) == (200, "")
        assert server.replica.get(NODE_POOLS, "gpu") is None


@in_virtual_time
async def test_pools_are_listed_by_name_with_pages_filter_and_reverse() -> None:
    async with ACluster() as cluster:
        server = await with_pool(cluster)

        async def names(query: str) -> list[str]:
            return [pool["Name"] for pool in read(await get(server, "/v1/node/pools", query))]

        assert await names("reverse=true") == ["gpu", "default", "all"]
        assert await names("per_page=1&next_token=default") == ["default"]
        assert await names("prefix=g") == ["gpu"]
        assert await names("filter=Name%20%3D%3D%20gpu") == ["gpu"]


@in_virtual_time
async def test_the_nodes_of_a_pool_are_stubs_and_the_pool_all_has_every_node() -> None:
    async with ACluster() as cluster:
        server = await with_pool(cluster)
        await commit(
            server,
            NODES.build_put(a_node("node-1", node_pool="gpu", attributes={"os.name": "x"}, create_index=WRITE_INDEX)),
            NODES.build_put(a_node("node-2", create_index=WRITE_INDEX)),
        )

        async def ids(pool: str, query: str = "") -> list[str]:
            return [node["ID"] for node in read(await get(server, f"/v1/node/pool/{pool}/nodes", query))]

        assert (await ids("gpu"), await ids("all")) == (["node-1"], ["node-1", "node-2"])
        assert await ids("all", "per_page=1&next_token=node-2") == ["node-2"]
        (node,) = read(await get(server, "/v1/node/pool/gpu/nodes", "os=true"))
        assert node["Attributes"] == {"os.name": "x"}


@in_virtual_time
async def test_the_jobs_of_a_pool_are_stubs_of_the_namespace_with_meta_on_request() -> None:
    async with ACluster() as cluster:
        server = await with_pool(cluster)
        await commit(
            server,
            NAMESPACES.build_put(Namespace(name="team", create_index=WRITE_INDEX)),
            JOBS.build_put(a_job("ours", node_pool="gpu", meta={"a": "b"}, create_index=WRITE_INDEX)),
            JOBS.build_put(a_job("theirs", namespace="team", node_pool="gpu", create_index=WRITE_INDEX)),
            JOBS.build_put(a_job("elsewhere", node_pool="default", create_index=WRITE_INDEX)),
        )
        path = "/v1/node/pool/gpu/jobs"

        async def ids(query: str) -> list[str]:
            return [job["ID"] for job in read(await get(server, path, query))]

        assert await ids("") == ["ours"]
        assert await ids("namespace=*") == ["ours", "theirs"]
        assert await ids("namespace=*&reverse=true") == ["theirs", "ours"]
        assert await ids("namespace=*&per_page=1&next_token=team.a") == ["theirs"]
        assert "Meta" not in read(await get(server, path))[0]
        assert read(await get(server, path, "meta=true"))[0]["Meta"] == {"a": "b"}


@in_virtual_time
@pytest.mark.parametrize("query", ["nodes", "jobs"])
async def test_a_prefix_within_a_pool_is_refused(query: str) -> None:
    async with ACluster() as cluster:
        server = await with_pool(cluster)

        assert (await get(server, f"/v1/node/pool/gpu/{query}", "prefix=ab")).status == 400


@in_virtual_time
async def test_reading_writing_and_deleting_a_pool_need_separate_rights() -> None:
    async with ACluster() as cluster:
        server = await with_pool(cluster)
        enable_acl(server)
        powerless = await a_token(server)
        reader = await a_token(server, 'node_pool "gpu" { policy = "read" }')
        writer = await a_token(server, 'node_pool "gpu" { policy = "write" }')

        observed = read(await get(server, "/v1/node/pools", headers=reader))
        refusals = [
            await get(server, "/v1/node/pool/default", headers=reader),
            await put(server, "/v1/node/pools", {"Name": "gpu"}, headers=reader),
            await put(server, "/v1/node/pools", {"Name": "other"}, headers=writer),
            await put(server, "/v1/node/pool/gpu", {"Name": "gpu"}, headers=reader),
            await delete(server, "/v1/node/pool/gpu", headers=reader),
            await get(server, "/v1/node/pool/gpu/nodes", headers=reader),
            await get(server, "/v1/node/pool/gpu/jobs", headers=reader),
        ]

        assert [pool["Name"] for pool in observed] == ["gpu"]
        assert read(await get(server, "/v1/node/pools", headers=powerless)) == []
        assert [status_and_text(reply) for reply in refusals] == [DENIED] * 7
        assert status_and_text(await put(server, "/v1/node/pools", {"Name": "gpu"}, headers=writer)) == (200, "")
        assert status_and_text(await delete(server, "/v1/node/pool/gpu", headers=writer)) == (200, "")


def registration(pool: str) -> dict[str, object]:
    return {"Node": {"ID": "node-1", "Name": "n", "NodePool": pool}, "SecretID": "s"}


@in_virtual_time
async def test_a_node_creates_its_pool_in_the_authoritative_region() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert (await put(server, "/v1/node/node-1/register", registration("gpu"))).status == 200

        assert read(await get(server, "/v1/node/pool/gpu"))["Name"] == "gpu"
        assert read(await get(server, "/v1/nodes"))[0]["NodePool"] == "gpu"


@in_virtual_time
async def test_in_other_regions_a_node_waits_until_its_pool_exists() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.server.access.apply_settings(AccessSettings(authoritative_region="far-away"))

        await put(server, "/v1/node/node-1/register", registration("gpu"))

        node = server.replica.get(NODES, "node-1")
        assert server.replica.get(NODE_POOLS, "gpu") is None
        assert node is not None
        assert (node.events or ())[-1].message == "Node registered but waiting for node pool to be created"


@in_virtual_time
@pytest.mark.parametrize(
    ("pool", "text"),
    [
        ("all", 'node is not allowed to register in node pool "all": that pool contains every node'),
        ("a b", 'invalid node pool name "a b". Must match regex ^[a-zA-Z0-9-_]{1,128}$'),
    ],
)
async def test_no_node_registers_into_the_pool_all_or_an_invalid_pool(pool: str, text: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert status_and_text(await put(server, "/v1/node/node-1/register", registration(pool))) == (400, text)
        assert (server.replica.count_records(NODES), server.replica.get(NODE_POOLS, pool) is None) == (0, pool != "all")
