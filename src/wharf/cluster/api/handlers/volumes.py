"""Endpoints of volumes of hosts."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from wharf.cluster.api.lists.listing import Listing, list_by_namespace
from wharf.cluster.api.relay.members import relay_to_node_holder
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler, find_record
from wharf.cluster.operations import volumes
from wharf.cluster.server.log.preview import forbid_in_preview
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.node_channels.port import NodeCall, NodeChannel, NoNodePath, build_no_node_path
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import HOST_VOLUMES
from wharf.contract.model.acl.permissions import LIST_HOST_VOLUMES
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.volumes import HostVolume, make_host_volume_stub
from wharf.contract.wire.volumes import HostVolumeRequest, HostVolumeResponse, NodeVolumeCreated, build_node_volume

NODE_NOT_INFORMED_TEXT: Final = (
    "its node cannot be reached and does not know of it: register it again, with the ID {}, when it is back"
)
UNCERTAIN_CODES: Final = frozenset({RefusalCode.UNAVAILABLE, RefusalCode.OUTCOME_UNKNOWN})
"""The node may have done it, or may not."""
NO_CSI_TEXT: Final = "volumes of the container storage interface are left out here: use volumes of hosts"


def list_volumes(replica: Replica, request: Request, options: QueryOptions) -> Listing[HostVolume]:
    wanted = request.get_text("type")
    if wanted == "csi":
        raise Refusal(RefusalCode.NOT_IMPLEMENTED, NO_CSI_TEXT)
    if wanted not in ("", "host"):
        raise invalid_request(f'there is no type of volumes "{wanted}": use "host"')
    return list_by_namespace(
        replica, HOST_VOLUMES, options, build_view=make_host_volume_stub, is_visible=_may_see(request)
    )


def _may_see(request: Request) -> Callable[[HostVolume], bool]:
    node_id, pool = request.get_text("node_id"), request.get_text("node_pool")

    def may_see(volume: HostVolume) -> bool:
        is_asked_for = volume.node_id.startswith(node_id) and pool in ("", volume.node_pool)
        return is_asked_for and request.has_permission(LIST_HOST_VOLUMES, namespace=volume.namespace)

    return may_see


def read_volume(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    return ReadResult(
        *find_record(
            replica,
            HOST_VOLUMES,
            options.namespace,
            request.get_path_value("volume_id"),
            missing_text="volume not found",
        )
    )


READ_HANDLERS: Final[dict[str, ReadHandler]] = {"host_volume.list": list_volumes, "host_volume.read": read_volume}


class HostVolumeActions:
    """What a node must do is asked of it by whoever holds its channel: the request goes there, before anything is written."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def create_volume(self, request: Request) -> ActionResult:
        wanted = _wanted(request)
        server = self._server
        await server.reader.catch_up()
        volumes.check_volume(server.replica, wanted, has_folder=False)
        for node in volumes.list_candidate_nodes(server.replica, wanted):
            try:
                channel = server.node_channels.channel_to(node.id)
            except NoNodePath:
                chosen = HostVolumeRequest(volume=msgspec.structs.replace(wanted, node_id=node.id))
                passed = msgspec.structs.replace(request, body=msgspec.json.encode(chosen))
                with suppress(NoNodePath):
                    return await relay_to_node_holder(server, passed, node.id)
            else:
                return await self._make(request, wanted, node.id, channel)
        raise build_no_node_path()

    async def _make(self, request: Request, wanted: HostVolume, node_id: str, channel: NodeChannel) -> ActionResult:
        forbid_in_preview()
        server = self._server
        begun = await server.writer.execute(
            lambda snapshot, moment: volumes.begin_volume_creation(snapshot, wanted, node_id, moment, cause=request.id)
        )
        volume = begun.volume
        try:
            made = msgspec.json.decode(await self._ask(channel, "volume_create", volume), type=NodeVolumeCreated)
        except Refusal as refusal:
            if refusal.code in UNCERTAIN_CODES:
                text = f"whether volume {volume.id} was made is not known: {refusal.text}; create it again with this ID"
                raise Refusal(refusal.code, text) from refusal
            if not wanted.id:
                await self._forget(volume, request)
            raise Refusal(refusal.code, f"volume {wanted.name} cannot be made: {refusal.text}") from refusal
        written = await server.writer.execute(
            lambda snapshot, moment: volumes.finish_volume_creation(
                snapshot,
                volume.namespace,
                volume.id,
                host_path=made.host_path,
                capacity_bytes=made.capacity_bytes,
                context=moment,
                cause=request.id,
            )
        )
        return ActionResult(HostVolumeResponse(volume=written.volume, index=written.index), written.index)

    async def register_volume(self, request: Request) -> ActionResult:
        wanted, server = _wanted(request), self._server
        volumes.check_volume(server.replica, wanted, has_folder=True)
        try:
            channel: NodeChannel | None = server.node_channels.channel_to(wanted.node_id)
        except NoNodePath:
            channel = None
            with suppress(NoNodePath):
                return await relay_to_node_holder(server, request, wanted.node_id)
        if channel is not None:
            forbid_in_preview()
        written = await server.writer.execute(
            lambda snapshot, moment: volumes.register_volume(snapshot, wanted, moment, cause=request.id)
        )
        warnings = "" if channel is not None else NODE_NOT_INFORMED_TEXT.format(written.volume.id)
        if channel is not None:
            try:
                await self._ask(channel, "volume_register", written.volume)
            except Refusal as refusal:
                if not wanted.id and refusal.code not in UNCERTAIN_CODES:
                    await self._forget(written.volume, request)
                raise Refusal(refusal.code, f"volume {wanted.name} cannot be registered: {refusal.text}") from refusal
        return ActionResult(
            HostVolumeResponse(volume=written.volume, index=written.index, warnings=warnings), written.index
        )

    async def delete_volume(self, request: Request) -> ActionResult:
        """A folder that its node has is the node's to take away; the record goes after it."""
        namespace, volume_id, server = request.namespace, request.get_path_value("volume_id"), self._server
        await server.reader.catch_up()
        volume = volumes.get_volume(server.replica, namespace, volume_id)
        volumes.delete_volume(server.replica, namespace, volume_id)  # Refused before anything is taken away.
        try:
            channel = server.node_channels.channel_to(volume.node_id)
            forbid_in_preview()
            await self._ask(channel, "volume_delete", volume)
        except NoNodePath:
            try:
                return await relay_to_node_holder(server, request, volume.node_id)
            except NoNodePath:
                if volumes.has_folder_on_node(server.replica, volume):
                    raise
        index = await server.writer.execute(
            lambda snapshot, _moment: volumes.delete_volume(snapshot, namespace, volume_id, cause=request.id)
        )
        return ActionResult(index=index)

    async def _forget(self, volume: HostVolume, request: Request) -> None:
        await self._server.writer.execute(
            lambda snapshot, _moment: volumes.delete_volume(snapshot, volume.namespace, volume.id, cause=request.id)
        )

    @staticmethod
    async def _ask(channel: NodeChannel, verb: str, volume: HostVolume) -> bytes:
        """Raises Refusal."""
        question = NodeCall(verb, volume.id, body=msgspec.json.encode(build_node_volume(volume)))
        return (await channel.call(question)).body


def _wanted(request: Request) -> HostVolume:
    asked = request.decode_body(HostVolumeRequest)
    if asked.volume is None:
        raise invalid_request("missing volume definition")
    namespace = asked.volume.namespace
    if "namespace" in request.query:
        namespace = request.namespace
    request.require_permission(namespace=namespace)
    return msgspec.structs.replace(asked.volume, namespace=namespace)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    writes = HostVolumeActions(server)
    return {
        "host_volume.create": writes.create_volume,
        "host_volume.register": writes.register_volume,
        "host_volume.delete": writes.delete_volume,
    }
