"""Endpoints of volumes of hosts."""

from typing import Any

from msgspec.structs import replace

from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import DENIED, commit, delete, get, put, read, told
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time
from wharf.model.changes import THIS
from wharf.model.host_volume import HostVolumeState
from wharf.model.namespace import Namespace
from wharf.model.node import NodeStatus
from wharf.state.tables import HOST_VOLUMES, NAMESPACES, NODES


def asked(**fields: Any) -> dict[str, Any]:
    volume = {
        "Name": "data", "NodeID": "node-1", "HostPath": "/srv/data",
        "RequestedCapabilities": [{"AccessMode": "single-node-writer", "AttachmentMode": "file-system"}],
        **fields,
    }  # fmt: skip
    return {"Volume": volume}


async def with_node(cluster: ACluster) -> OneServer:
    server = await cluster.a_server()
    await commit(
        server,
        NODES.put(a_node("node-1", status=NodeStatus.READY, create_index=THIS)),
        NAMESPACES.put(Namespace(name="team", create_index=THIS)),
    )
    return server


async def registered(server: OneServer, **fields: Any) -> str:
    reply = await put(server, "/v1/volume/host/register", asked(**fields))
    volume_id: str = read(reply)["Volume"]["ID"]
    return volume_id


@in_virtual_time
async def test_a_volume_is_registered_listed_as_a_stub_and_read() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        volume_id = await registered(server, Parameters={"secret": "x"})

        volume = read(await get(server, f"/v1/volume/host/{volume_id}"))
        (stub,) = read(await get(server, "/v1/volumes", "type=host"))
        assert (volume["HostPath"], volume["State"], volume["NodePool"]) == ("/srv/data", "pending", "default")
        assert set(stub) == {
            "ID", "Namespace", "Name", "PluginID", "NodePool", "NodeID", "CapacityBytes", "State", "CreateIndex",
            "CreateTime", "ModifyIndex", "ModifyTime",
        }  # fmt: skip


@in_virtual_time
async def test_what_only_servers_know_is_not_taken_from_whoever_registers() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        volume_id = await registered(server, State="ready", CreateIndex=9_999)

        volume = read(await get(server, f"/v1/volume/host/{volume_id}"))
        assert volume["State"] == "pending"
        assert volume["CreateIndex"] == server.replica.last_change(HOST_VOLUMES)


@in_virtual_time
async def test_volumes_are_chosen_by_node_and_pool_and_page_by_page() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        await commit(server, NODES.put(a_node("other-1", node_pool="gpu", create_index=THIS)))
        here = await registered(server)
        there = await registered(server, NodeID="other-1", Namespace="team")

        async def ids(query: str) -> list[str]:
            return [volume["ID"] for volume in read(await get(server, "/v1/volumes", query))]

        assert await ids("type=host") == [here]
        assert await ids("namespace=*") == [here, there]
        assert await ids("namespace=*&reverse=true") == [there, here]
        assert await ids("namespace=*&node_id=other") == [there]
        assert await ids("namespace=*&node_pool=default") == [here]
        assert await ids(f"namespace=*&per_page=1&next_token=team.{there}") == [there]


@in_virtual_time
async def test_other_types_of_volumes_are_left_out_or_unknown() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        assert (await get(server, "/v1/volumes", "type=csi")).status == 501
        assert told(await get(server, "/v1/volumes", "type=tape")) == (
            400,
            'there is no type of volumes "tape": use "host"',
        )


@in_virtual_time
async def test_to_make_a_volume_is_judged_now_and_done_when_nodes_can() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        index = server.replica.index

        wrong = await put(server, "/v1/volume/host/create", asked(Name=""))
        right = await put(server, "/v1/volume/host/create", asked(NodeID="", HostPath=""))

        assert (wrong.status, "missing name" in wrong.body.decode()) == (400, True)
        assert (right.status, "register it" in right.body.decode()) == (501, True)
        assert server.replica.index == index


@in_virtual_time
async def test_a_request_without_a_volume_is_refused() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        for what in ("create", "register"):
            assert told(await put(server, f"/v1/volume/host/{what}", {})) == (400, "missing volume definition")


@in_virtual_time
async def test_a_volume_that_its_node_does_not_have_is_deleted() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        volume_id = await registered(server)

        assert told(await delete(server, f"/v1/volume/host/{volume_id}")) == (200, "")
        assert told(await get(server, f"/v1/volume/host/{volume_id}")) == (404, "volume not found")
        assert told(await delete(server, f"/v1/volume/host/{volume_id}")) == (404, "volume not found")


@in_virtual_time
async def test_a_volume_that_its_node_has_is_the_nodes_to_take_away() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        volume_id = await registered(server)
        stored = server.replica.get(HOST_VOLUMES, "default", volume_id)
        assert stored is not None
        await commit(server, HOST_VOLUMES.put(replace(stored, state=HostVolumeState.READY)))

        assert told(await delete(server, f"/v1/volume/host/{volume_id}")) == (404, "No path to node")
        assert server.replica.get(HOST_VOLUMES, "default", volume_id) is not None


@in_virtual_time
async def test_each_thing_needs_its_right_in_the_volumes_namespace() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        volume_id = await registered(server)
        enable_acl(server)
        nobody = await a_token(server)
        reader = await a_token(server, 'namespace "default" { capabilities = ["host-volume-read"] }')
        creator = await a_token(server, 'namespace "default" { capabilities = ["host-volume-create"] }')
        writer = await a_token(server, 'namespace "default" { capabilities = ["host-volume-write"] }')
        path = f"/v1/volume/host/{volume_id}"

        refused = [
            await get(server, path, headers=nobody),
            await put(server, "/v1/volume/host/create", asked(), headers=reader),
            await put(server, "/v1/volume/host/register", asked(Name="b"), headers=creator),
            await put(server, "/v1/volume/host/register", asked(Name="b", Namespace="team"), headers=writer),
            await delete(server, path, headers=creator),
        ]

        assert [told(reply) for reply in refused] == [DENIED] * 5
        assert read(await get(server, "/v1/volumes", headers=nobody)) == []
        assert len(read(await get(server, "/v1/volumes", "namespace=*", headers=reader))) == 1
        assert (await put(server, "/v1/volume/host/create", asked(), headers=creator)).status == 501
        assert told(await delete(server, path, headers=writer)) == (200, "")
