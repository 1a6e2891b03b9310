"""Endpoints of host volumes."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.loop_holds import MeasuredCluster, measure_holds
from tests.kit.requests import DENIED, commit, delete, get, put, read, status_and_text
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.server.node_channels.port import NodeCall, NodeChannel, NodeReply, NodeStream, build_no_node_path
from wharf.cluster.state.tables import HOST_VOLUMES, NAMESPACES, NODES
from wharf.contract.client import ClientReply
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import NodeHostVolume, NodeStatus
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.volumes import HostVolumeState
from wharf.contract.wire.volumes import NodeVolumeCreated


def build_registration(**fields: Any) -> dict[str, Any]:
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


async def register(server: OneServer, **fields: Any) -> str:
    reply = await put(server, "/v1/volume/host/register", build_registration(**fields))
    volume_id: str = read(reply)["Volume"]["ID"]
    return volume_id


@in_virtual_time
async def test_a_volume_is_registered_listed_as_a_stub_and_read() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        volume_id = await register(server, Parameters={"secret": "x"})

        volume = read(await get(server, f"/v1/volume/host/{volume_id}"))
        (stub,) = read(await get(server, "/v1/volumes", "type=host"))
        assert (volume["HostPath"], volume["State"], volume["NodePool"]) == ("/srv/data", "pending", "default")
        assert set(stub) == {
            "ID", "Namespace", "Name", "PluginID", "NodePool", "NodeID", "CapacityBytes", "State", "CreateIndex",
            "CreateTime", "ModifyIndex", "ModifyTime",
        }  # fmt: skip


@in_virtual_time
async def test_fields_that_only_servers_set_are_ignored_in_a_registration() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        volume_id = await register(server, State="ready", CreateIndex=9_999)

        volume = read(await get(server, f"/v1/volume/host/{volume_id}"))
        assert volume["State"] == "pending"
        assert volume["CreateIndex"] == server.replica.get_last_change(HOST_VOLUMES)


@in_virtual_time
async def test_volumes_are_selected_by_node_and_pool_with_pages() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        await commit(server, NODES.build_put(a_node("other-1", node_pool="gpu", create_index=WRITE_INDEX)))
        local = await register(server)
        remote = await register(server, NodeID="other-1", Namespace="team")

        async def ids(query: str) -> list[str]:
            return [volume["ID"] for volume in read(await get(server, "/v1/volumes", query))]

        assert await ids("type=host") == [local]
        assert await ids("namespace=*") == [local, remote]
        assert await ids("namespace=*&reverse=true") == [remote, local]
        assert await ids("namespace=*&node_id=other") == [remote]
        assert await ids("namespace=*&node_pool=default") == [local]
        assert await ids(f"namespace=*&per_page=1&next_token=team.{remote}") == [remote]


@in_virtual_time
async def test_csi_volumes_are_not_supported_and_other_types_are_unknown() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        assert (await get(server, "/v1/volumes", "type=csi")).status == 501
        assert status_and_text(await get(server, "/v1/volumes", "type=tape")) == (
            400,
            'unknown volume type "tape": use "host"',
        )


class FakeVolumeNode:
    """Node channels with one node that gives every call the same reply or refusal."""

    def __init__(self, answer: NodeVolumeCreated | Refusal) -> None:
        self.answer = answer
        self.calls: list[tuple[str, str]] = []
        self.on_call: Callable[[], Awaitable[None]] | None = None
        """Runs while the node executes a call."""

    def channel_to(self, node_id: str) -> NodeChannel:
        if node_id != "node-1":
            raise build_no_node_path()
        return self

    async def call(self, call: NodeCall) -> NodeReply:
        self.calls.append((call.verb, call.target_id))
        if self.on_call is not None:
            on_call, self.on_call = self.on_call, None
            await on_call()
        if isinstance(self.answer, Refusal):
            raise self.answer
        return NodeReply("application/json", msgspec.json.encode(self.answer))

    async def open_stream(self, call: NodeCall) -> NodeStream:
        raise AssertionError(call)


MKDIR_NODE_FIELDS: dict[str, Any] = {
    "attributes": {"plugins.host_volume.mkdir.version": "1"},
    "status": NodeStatus.READY,
}


async def with_volume_node(cluster: ACluster, answer: NodeVolumeCreated | Refusal) -> tuple[OneServer, FakeVolumeNode]:
    server = await with_node(cluster)
    gpu = a_node("node-2", node_pool="gpu", create_index=WRITE_INDEX, **MKDIR_NODE_FIELDS)
    await commit(
        server, NODES.build_put(a_node("node-1", create_index=WRITE_INDEX, **MKDIR_NODE_FIELDS)), NODES.build_put(gpu)
    )
    channels = server.server.node_channels = FakeVolumeNode(answer)
    return server, channels


async def create(server: OneServer, *, key: str = "", **fields: Any) -> ClientReply:
    headers = {"Idempotency-Key": key} if key else {}
    body = build_registration(**{"NodeID": "", "HostPath": "", **fields})
    return await put(server, "/v1/volume/host/create", body, headers=headers)


@in_virtual_time
async def test_a_suitable_node_creates_the_volume_and_returns_its_path() -> None:
    async with ACluster() as cluster:
        server, channels = await with_volume_node(cluster, NodeVolumeCreated(host_path="/made/here", capacity_bytes=5))

        created = read(await create(server, NodePool="default"))["Volume"]

        assert (created["NodeID"], created["HostPath"], created["CapacityBytes"]) == ("node-1", "/made/here", 5)
        assert (created["PluginID"], created["State"], channels.calls) == (
            "mkdir",
            "pending",
            [("volume_create", created["ID"])],
        )
        repeated = read(await create(server, ID=created["ID"], NodeID="node-1", Parameters={"mode": "0700"}))["Volume"]
        assert (repeated["ID"], repeated["CreateIndex"], repeated["Parameters"]) == (
            created["ID"], created["CreateIndex"], {"mode": "0700"},
        )  # fmt: skip


@in_virtual_time
async def test_a_search_for_a_node_among_thousands_does_not_hold_the_event_loop() -> None:
    constraints = [
        {"LTarget": "${attr.plugins.host_volume.mkdir.version}", "Operand": "regexp", "RTarget": f"1|{number}"}
        for number in range(100)
    ]
    async with MeasuredCluster() as cluster:
        server, _ = await with_volume_node(cluster, NodeVolumeCreated(host_path="/made/here", capacity_bytes=5))
        others = [a_node(f"other-{number:03}", create_index=WRITE_INDEX, **MKDIR_NODE_FIELDS) for number in range(400)]
        await commit(server, *(NODES.build_put(node) for node in others))
        with measure_holds() as holds:
            created = await create(server, Constraints=constraints)

    assert read(created)["Volume"]["NodeID"] == "node-1"
    holds.require_short("the search for a node")


@in_virtual_time
async def test_a_volume_is_created_once_for_one_idempotency_key() -> None:
    async with ACluster() as cluster:
        server, channels = await with_volume_node(cluster, NodeVolumeCreated(host_path="/made/here"))

        first = await create(server, NodePool="default", key="k")
        second = await create(server, NodePool="default", key="k")

        assert (read(first), len(channels.calls)) == (read(second), 1)


@in_virtual_time
async def test_a_volume_that_no_node_can_create_is_refused_with_the_reason() -> None:
    async with ACluster() as cluster:
        server, channels = await with_volume_node(cluster, NodeVolumeCreated(host_path="/made/here"))

        invalid = await create(server, Name="")
        nowhere = await create(server, NodePool="default", PluginID="zfs")
        contradiction = await create(
            server, Constraints=[{"LTarget": "${attr.kernel.name}", "Operand": "=", "RTarget": "os2"}]
        )

        assert (invalid.status, "missing name" in invalid.body.decode()) == (400, True)
        assert status_and_text(nowhere) == (
            400,
            'no node can create the volume: not in node pool "default" (1), without the plugin "zfs" (1)',
        )
        assert (contradiction.status, "does not meet ${attr.kernel.name} = os2 (2)" in contradiction.body.decode()) == (
            400,
            True,
        )
        assert channels.calls == []


@in_virtual_time
async def test_a_failed_creation_deletes_the_record_and_an_uncertain_one_keeps_it() -> None:
    async with ACluster() as cluster:
        server, _ = await with_volume_node(cluster, invalid_request("the disk is full"))
        refusal = await create(server, NodePool="default")
        deleted_id = read(await get(server, "/v1/volumes"))
        server.server.node_channels = FakeVolumeNode(Refusal(RefusalCode.UNAVAILABLE, "it went away"))
        uncertain = await create(server, NodePool="default")
        (retained,) = read(await get(server, "/v1/volumes"))

        assert status_and_text(refusal) == (400, "volume data not created: the disk is full")
        assert (deleted_id, retained["State"]) == ([], "pending")
        assert (uncertain.status, retained["ID"] in uncertain.body.decode()) == (503, True)


@in_virtual_time
async def test_a_volume_of_an_unreachable_node_is_registered_with_a_warning() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        reply = read(await put(server, "/v1/volume/host/register", build_registration()))

        assert reply["Warnings"] == (
            "registered only on the servers: the node of the volume cannot be reached. "
            f"Register the volume again with ID {reply['Volume']['ID']} when the node is back"
        )


@in_virtual_time
async def test_a_request_without_a_volume_is_refused() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)

        for case in ("create", "register"):
            assert status_and_text(await put(server, f"/v1/volume/host/{case}", {})) == (
                400,
                "missing volume definition",
            )


@in_virtual_time
async def test_a_volume_without_a_folder_on_its_node_is_deleted() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        volume_id = await register(server)

        assert status_and_text(await delete(server, f"/v1/volume/host/{volume_id}")) == (200, "")
        assert status_and_text(await get(server, f"/v1/volume/host/{volume_id}")) == (404, "volume not found")
        assert status_and_text(await delete(server, f"/v1/volume/host/{volume_id}")) == (404, "volume not found")


@in_virtual_time
async def test_a_volume_with_a_folder_is_not_deleted_while_its_node_is_unreachable() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        volume_id = await register(server)
        stored = server.replica.get(HOST_VOLUMES, "default", volume_id)
        assert stored is not None
        await commit(server, HOST_VOLUMES.build_put(replace(stored, state=HostVolumeState.READY)))

        assert status_and_text(await delete(server, f"/v1/volume/host/{volume_id}")) == (404, "No path to node")
        assert server.replica.get(HOST_VOLUMES, "default", volume_id) is not None


@in_virtual_time
async def test_each_volume_request_needs_its_right_in_the_namespace_of_the_volume() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        volume_id = await register(server)
        enable_acl(server)
        powerless = await a_token(server)
        reader = await a_token(server, 'namespace "default" { capabilities = ["host-volume-read"] }')
        creator = await a_token(server, 'namespace "default" { capabilities = ["host-volume-create"] }')
        writer = await a_token(server, 'namespace "default" { capabilities = ["host-volume-write"] }')
        path = f"/v1/volume/host/{volume_id}"

        refusals = [
            await get(server, path, headers=powerless),
            await put(server, "/v1/volume/host/create", build_registration(), headers=reader),
            await put(server, "/v1/volume/host/register", build_registration(Name="b"), headers=creator),
            await put(
                server, "/v1/volume/host/register", build_registration(Name="b", Namespace="team"), headers=writer
            ),
            await delete(server, path, headers=creator),
        ]

        assert [status_and_text(reply) for reply in refusals] == [DENIED] * 5
        assert read(await get(server, "/v1/volumes", headers=powerless)) == []
        assert len(read(await get(server, "/v1/volumes", "namespace=*", headers=reader))) == 1
        assert (
            await put(server, "/v1/volume/host/create", build_registration(Name="b"), headers=creator)
        ).status == 400
        assert status_and_text(await delete(server, path, headers=writer)) == (200, "")


async def with_ready_volume(cluster: ACluster) -> tuple[OneServer, FakeVolumeNode, str]:
    """Return a server, the node, and the id of a volume that the node reports."""
    server, node = await with_volume_node(cluster, NodeVolumeCreated(host_path="/made/here"))
    volume_id = read(await create(server, NodePool="default"))["Volume"]["ID"]
    reported = {"data": NodeHostVolume(name="data", path="/made/here", id=volume_id)}
    record = server.replica.get(NODES, "node-1")
    volume = server.replica.get(HOST_VOLUMES, "default", volume_id)
    assert record is not None
    assert volume is not None
    await commit(
        server,
        NODES.build_put(replace(record, host_volumes=reported)),
        HOST_VOLUMES.build_put(replace(volume, state=HostVolumeState.READY)),
    )
    return server, node, volume_id


async def get_state(server: OneServer, volume_id: str) -> tuple[str, bool]:
    """Return the state of the volume, and whether it is being deleted."""
    volume = read(await get(server, f"/v1/volume/host/{volume_id}"))
    return volume["State"], volume["DeletionStarted"] > 0


@in_virtual_time
async def test_a_volume_is_unavailable_before_its_node_is_asked_to_delete_it() -> None:
    async with ACluster() as cluster:
        server, node, volume_id = await with_ready_volume(cluster)
        seen = []

        async def observe() -> None:
            seen.append(await get_state(server, volume_id))

        node.on_call = observe
        reply = await delete(server, f"/v1/volume/host/{volume_id}")

        assert (reply.status, seen) == (200, [("unavailable", True)])
        assert (await get(server, f"/v1/volume/host/{volume_id}")).status == 404


@in_virtual_time
async def test_a_volume_that_its_node_does_not_delete_is_ready_again() -> None:
    async with ACluster() as cluster:
        server, node, volume_id = await with_ready_volume(cluster)
        node.answer = invalid_request("volume is in use by allocations: a1")

        reply = await delete(server, f"/v1/volume/host/{volume_id}")

        assert reply.status == 400
        assert await get_state(server, volume_id) == ("ready", False)


@in_virtual_time
async def test_a_volume_whose_deletion_is_uncertain_is_usable_again_after_ten_minutes() -> None:
    async with ACluster() as cluster:
        server, node, volume_id = await with_ready_volume(cluster)
        node.answer = Refusal(RefusalCode.OUTCOME_UNKNOWN, "node disconnected")

        reply = await delete(server, f"/v1/volume/host/{volume_id}")
        state_before = await get_state(server, volume_id)
        await pass_time(660)

        assert reply.status >= 500
        assert b"delete it again" in reply.body
        assert (state_before, await get_state(server, volume_id)) == (("unavailable", True), ("ready", False))


@in_virtual_time
async def test_a_volume_whose_deletion_is_uncertain_can_be_deleted_again() -> None:
    async with ACluster() as cluster:
        server, node, volume_id = await with_ready_volume(cluster)
        node.answer = Refusal(RefusalCode.OUTCOME_UNKNOWN, "node disconnected")
        await delete(server, f"/v1/volume/host/{volume_id}")
        node.answer = NodeVolumeCreated(host_path="")

        assert (await delete(server, f"/v1/volume/host/{volume_id}")).status == 200


@in_virtual_time
async def test_a_folder_is_deleted_if_its_volume_was_deleted_while_it_was_created() -> None:
    async with ACluster() as cluster:
        server, node = await with_volume_node(cluster, NodeVolumeCreated(host_path="/made/here"))

        async def delete_volume() -> None:
            (volume,) = server.replica.iter_all(HOST_VOLUMES)
            assert (await delete(server, f"/v1/volume/host/{volume.id}")).status == 200

        node.on_call = delete_volume
        reply = await create(server, NodePool="default")

        assert (reply.status, b"was deleted while it was created" in reply.body) == (409, True)
        assert [verb for verb, _ in node.calls] == ["volume_create", "volume_delete", "volume_delete"]
