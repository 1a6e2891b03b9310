"""Endpoints of volumes of hosts."""

from typing import Any

import msgspec
from msgspec.structs import replace

from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import DENIED, commit, delete, get, put, read, told
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.server.node_channels.port import NodeCall, NodeChannel, NodeReply, NodeStream, build_no_node_path
from wharf.cluster.state.tables import HOST_VOLUMES, NAMESPACES, NODES
from wharf.contract.client import ClientReply
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.volumes import HostVolumeState
from wharf.contract.wire.volumes import NodeVolumeCreated


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
        NODES.build_put(a_node("node-1", status=NodeStatus.READY, create_index=WRITE_INDEX)),
        NAMESPACES.build_put(Namespace(name="team", create_index=WRITE_INDEX)),
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
        assert volume["CreateIndex"] == server.replica.get_last_change(HOST_VOLUMES)


@in_virtual_time
async def test_volumes_are_chosen_by_node_and_pool_and_page_by_page() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        await commit(server, NODES.build_put(a_node("other-1", node_pool="gpu", create_index=WRITE_INDEX)))
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


class Answering:
    """The channels of a node that says to all the same, or no."""

    def __init__(self, answer: NodeVolumeCreated | Refusal) -> None:
        self._answer = answer
        self.asked: list[tuple[str, str]] = []

    def channel_to(self, node_id: str) -> NodeChannel:
        if node_id != "node-1":
            raise build_no_node_path()
        return self

    async def call(self, question: NodeCall) -> NodeReply:
        self.asked.append((question.verb, question.target_id))
        if isinstance(self._answer, Refusal):
            raise self._answer
        return NodeReply("application/json", msgspec.json.encode(self._answer))

    async def open_stream(self, question: NodeCall) -> NodeStream:
        raise AssertionError(question)


WITH_MKDIR: dict[str, Any] = {"attributes": {"plugins.host_volume.mkdir.version": "1"}, "status": NodeStatus.READY}


async def making(cluster: ACluster, answer: NodeVolumeCreated | Refusal) -> tuple[OneServer, Answering]:
    server = await with_node(cluster)
    gpu = a_node("node-2", node_pool="gpu", create_index=WRITE_INDEX, **WITH_MKDIR)
    await commit(
        server, NODES.build_put(a_node("node-1", create_index=WRITE_INDEX, **WITH_MKDIR)), NODES.build_put(gpu)
    )
    channels = server.server.node_channels = Answering(answer)
    return server, channels


async def create(server: OneServer, *, key: str = "", **fields: Any) -> ClientReply:
    headers = {"Idempotency-Key": key} if key else {}
    body = asked(**{"NodeID": "", "HostPath": "", **fields})
    return await put(server, "/v1/volume/host/create", body, headers=headers)


@in_virtual_time
async def test_a_node_that_can_makes_a_volume_and_says_where() -> None:
    async with ACluster() as cluster:
        server, channels = await making(cluster, NodeVolumeCreated(host_path="/made/here", capacity_bytes=5))

        made = read(await create(server, NodePool="default"))["Volume"]

        assert (made["NodeID"], made["HostPath"], made["CapacityBytes"]) == ("node-1", "/made/here", 5)
        assert (made["PluginID"], made["State"], channels.asked) == (
            "mkdir",
            "pending",
            [("volume_create", made["ID"])],
        )
        again = read(await create(server, ID=made["ID"], NodeID="node-1", Parameters={"mode": "0700"}))["Volume"]
        assert (again["ID"], again["CreateIndex"], again["Parameters"]) == (
            made["ID"], made["CreateIndex"], {"mode": "0700"},
        )  # fmt: skip


@in_virtual_time
async def test_a_volume_is_made_once_for_one_key() -> None:
    async with ACluster() as cluster:
        server, channels = await making(cluster, NodeVolumeCreated(host_path="/made/here"))

        first = await create(server, NodePool="default", key="k")
        second = await create(server, NodePool="default", key="k")

        assert (read(first), len(channels.asked)) == (read(second), 1)


@in_virtual_time
async def test_where_no_node_can_make_a_volume_it_is_told_why() -> None:
    async with ACluster() as cluster:
        server, channels = await making(cluster, NodeVolumeCreated(host_path="/made/here"))

        wrong = await create(server, Name="")
        nowhere = await create(server, NodePool="default", PluginID="zfs")
        not_so = await create(
            server, Constraints=[{"LTarget": "${attr.kernel.name}", "Operand": "=", "RTarget": "os2"}]
        )

        assert (wrong.status, "missing name" in wrong.body.decode()) == (400, True)
        assert told(nowhere) == (
            400,
            'no node can create the volume: not in node pool "default" (1), without the plugin "zfs" (1)',
        )
        assert (not_so.status, "does not meet ${attr.kernel.name} = os2 (2)" in not_so.body.decode()) == (400, True)
        assert channels.asked == []


@in_virtual_time
async def test_a_volume_that_its_node_cannot_make_is_forgotten_and_one_of_which_nobody_knows_is_kept() -> None:
    async with ACluster() as cluster:
        server, _ = await making(cluster, invalid_request("the disk is full"))
        refused = await create(server, NodePool="default")
        forgotten = read(await get(server, "/v1/volumes"))
        server.server.node_channels = Answering(Refusal(RefusalCode.UNAVAILABLE, "it went away"))
        unsure = await create(server, NodePool="default")
        (kept,) = read(await get(server, "/v1/volumes"))

        assert told(refused) == (400, "volume data cannot be made: the disk is full")
        assert (forgotten, kept["State"]) == ([], "pending")
        assert (unsure.status, kept["ID"] in unsure.body.decode()) == (503, True)


@in_virtual_time
async def test_a_volume_is_registered_also_while_its_node_is_away_and_that_is_said() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        reply = read(await put(server, "/v1/volume/host/register", asked()))

        assert reply["Warnings"] == (
            "its node cannot be reached and does not know of it: register it again, "
            f"with the ID {reply['Volume']['ID']}, when it is back"
        )


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
        await commit(server, HOST_VOLUMES.build_put(replace(stored, state=HostVolumeState.READY)))

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
        assert (await put(server, "/v1/volume/host/create", asked(Name="b"), headers=creator)).status == 400
        assert told(await delete(server, path, headers=writer)) == (200, "")
