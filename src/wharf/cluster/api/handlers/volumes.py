"""Endpoints of host volumes. The node of a volume creates, registers and deletes its folder."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from wharf.cluster.api.lists.listing import Listing, list_by_namespace
from wharf.cluster.api.relay.members import relay_to_node_holder
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler, find_record
from wharf.cluster.operations import volumes
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.log.preview import forbid_in_preview
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.node_channels.port import NodeCall, NodeChannel, NoNodePath, build_no_node_path
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import HOST_VOLUMES, NODES
from wharf.contract.model.acl.permissions import LIST_HOST_VOLUMES
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.volumes import HostVolume, make_host_volume_stub
from wharf.contract.wire.volumes import HostVolumeRequest, HostVolumeResponse, NodeVolumeCreated, build_node_volume

NODE_NOT_INFORMED_TEXT: Final = (
    "registered only on the servers: the node of the volume cannot be reached. "
    "Register the volume again with ID {} when the node is back"
)
UNCERTAIN_CODES: Final = frozenset({RefusalCode.UNAVAILABLE, RefusalCode.OUTCOME_UNKNOWN})
"""Refusals after which it is unknown whether the node executed the request."""
MANY_CONSTRAINTS_ADVICE: Final = "use fewer constraints, or name the node of the volume"
NO_CSI_TEXT: Final = "CSI volumes are not supported: use host volumes"


def list_volumes(replica: Replica, request: Request, options: QueryOptions) -> Listing[HostVolume]:
    """List host volumes. Raises `Refusal` for other types."""
    volume_type = request.get_text("type")
    if volume_type == "csi":
        raise Refusal(RefusalCode.NOT_IMPLEMENTED, NO_CSI_TEXT)
    if volume_type not in ("", "host"):
        raise invalid_request(f'unknown volume type "{volume_type}": use "host"')
    return list_by_namespace(
        replica, HOST_VOLUMES, options, build_view=make_host_volume_stub, is_visible=_build_visibility_test(request)
    )


def _build_visibility_test(request: Request) -> Callable[[HostVolume], bool]:
    """Return a test of whether a volume is on the requested node and in the requested pool, and the caller may list it."""
    node_id, pool = request.get_text("node_id"), request.get_text("node_pool")

    def is_visible(volume: HostVolume) -> bool:
        is_requested = volume.node_id.startswith(node_id) and pool in ("", volume.node_pool)
        return is_requested and request.has_permission(LIST_HOST_VOLUMES, namespace=volume.namespace)

    return is_visible


def read_volume(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """Return the volume by namespace and id."""
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


async def _find_candidates(replica: Replica, desired: HostVolume, work: SlicedWork) -> list[Node]:
    """Return the nodes that can create the volume, the best ones first. Raises `Refusal` if none can."""
    search = volumes.VolumeNodeSearch(desired)
    requested_node = replica.get(NODES, desired.node_id) if desired.node_id else None
    for nodes in [[requested_node]] if requested_node is not None else replica.iter_all_in_steps(NODES):
        for node in nodes:
            search.add(node)
            if work.is_slice_over():
                await work.pause()
    return search.list_candidates()


class HostVolumeActions:
    """Creates, registers and deletes host volumes: writes their records and calls the nodes that have their folders.

    A request is relayed to the process that holds the node's connection before anything is written.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    async def create_volume(self, request: Request) -> ActionResult:
        """Create the volume of the body on the first suitable node that can be reached.

        Raises `Refusal` if none can.
        """
        desired = _decode_volume(request)
        server = self._server
        await server.reader.catch_up()
        volumes.check_volume(server.replica, desired, has_folder=False)
        budget = server.read_limits.make_view_budget(MANY_CONSTRAINTS_ADVICE)
        work = SlicedWork(server.world, server.off_loop, budget, request.caller.owner_key)
        work.restart()
        for node in await _find_candidates(server.replica, desired, work):
            if work.is_slice_over():
                await work.pause()
            try:
                channel = server.node_channels.channel_to(node.id)
            except NoNodePath:
                body = HostVolumeRequest(volume=msgspec.structs.replace(desired, node_id=node.id))
                relayed_request = msgspec.structs.replace(request, body=msgspec.json.encode(body))
                with suppress(NoNodePath):
                    return await relay_to_node_holder(server, relayed_request, node.id)
            else:
                return await self._create_on_node(request, desired, node.id, channel)
        raise build_no_node_path()

    async def _create_on_node(
        self, request: Request, desired: HostVolume, node_id: str, channel: NodeChannel
    ) -> ActionResult:
        """Write a record, have the node create the folder, then complete the record with the folder's path and size.

        If the node refuses, a record that did not exist before is deleted again.
        """
        forbid_in_preview()
        server = self._server
        creation = await server.writer.execute(
            lambda snapshot, context: volumes.begin_volume_creation(
                snapshot, desired, node_id, context, cause=request.id
            )
        )
        volume = creation.volume
        try:
            reply = await self._call_node(channel, "volume_create", volume)
            folder = msgspec.json.decode(reply, type=NodeVolumeCreated)
        except Refusal as refusal:
            if refusal.code in UNCERTAIN_CODES:
                text = f"volume {volume.id} may not have been created: {refusal.text}; create it again with this ID"
                raise Refusal(refusal.code, text) from refusal
            if not desired.id:
                await self._delete_record(volume, request)
            raise Refusal(refusal.code, f"volume {desired.name} not created: {refusal.text}") from refusal
        try:
            result = await server.writer.execute(
                lambda snapshot, context: volumes.finish_volume_creation(
                    snapshot,
                    volume.namespace,
                    volume.id,
                    host_path=folder.host_path,
                    capacity_bytes=folder.capacity_bytes,
                    context=context,
                    cause=request.id,
                )
            )
        except Refusal as refusal:
            if refusal.code is not RefusalCode.NOT_FOUND:
                raise
            # Another request deleted the volume before the node received the request to create it.
            await self._call_node(channel, "volume_delete", volume)
            raise Refusal(RefusalCode.CONFLICT, f"volume {volume.id} was deleted while it was created") from refusal
        return ActionResult(HostVolumeResponse(volume=result.volume, index=result.index), result.index)

    async def register_volume(self, request: Request) -> ActionResult:
        """Register a folder that exists on a node as a volume.

        If the node cannot be reached, the reply contains a warning.
        """
        desired, server = _decode_volume(request), self._server
        await server.reader.catch_up()
        volumes.check_volume(server.replica, desired, has_folder=True)
        try:
            channel: NodeChannel | None = server.node_channels.channel_to(desired.node_id)
        except NoNodePath:
            channel = None
            with suppress(NoNodePath):
                return await relay_to_node_holder(server, request, desired.node_id)
        if channel is not None:
            forbid_in_preview()
        result = await server.writer.execute(
            lambda snapshot, context: volumes.register_volume(snapshot, desired, context, cause=request.id)
        )
        warnings = "" if channel is not None else NODE_NOT_INFORMED_TEXT.format(result.volume.id)
        if channel is not None:
            try:
                await self._call_node(channel, "volume_register", result.volume)
            except Refusal as refusal:
                if not desired.id and refusal.code not in UNCERTAIN_CODES:
                    await self._delete_record(result.volume, request)
                raise Refusal(refusal.code, f"volume {desired.name} not registered: {refusal.text}") from refusal
        return ActionResult(
            HostVolumeResponse(volume=result.volume, index=result.index, warnings=warnings), result.index
        )

    async def delete_volume(self, request: Request) -> ActionResult:
        """Mark the volume as being deleted, have the node delete the folder, then delete the record.

        If the node does not delete the folder, the mark is removed again. If that is unknown, the mark ends after
        `MAX_DELETION_NS`; the caller can delete the volume again at once.
        """
        namespace, volume_id, server = request.namespace, request.get_path_value("volume_id"), self._server
        await server.reader.catch_up()
        volume = volumes.get_volume(server.replica, namespace, volume_id)
        volumes.delete_volume(server.replica, namespace, volume_id)  # A preview: refuse before anything is done.
        try:
            channel = server.node_channels.channel_to(volume.node_id)
        except NoNodePath:
            try:
                return await relay_to_node_holder(server, request, volume.node_id)
            except NoNodePath:
                if volumes.has_folder_on_node(server.replica, volume):
                    raise
            delete = volumes.delete_volume
        else:
            forbid_in_preview()
            await self._delete_folder(request, channel, volume)
            delete = volumes.finish_volume_deletion
        index = await server.writer.execute(
            lambda snapshot, _context: delete(snapshot, namespace, volume_id, cause=request.id)
        )
        return ActionResult(index=index)

    async def _delete_folder(self, request: Request, channel: NodeChannel, volume: HostVolume) -> None:
        """Have the node delete the folder of the volume, which is marked as being deleted meanwhile. Raises `Refusal`."""
        await self._server.writer.execute(
            lambda snapshot, context: volumes.begin_volume_deletion(
                snapshot, volume.namespace, volume.id, context, cause=request.id
            )
        )
        try:
            await self._call_node(channel, "volume_delete", volume)
        except Refusal as refusal:
            if refusal.code in UNCERTAIN_CODES:
                text = f"volume {volume.id} may not have been deleted: {refusal.text}; delete it again"
                raise Refusal(refusal.code, text) from refusal
            await self._server.writer.execute(
                lambda snapshot, context: volumes.cancel_volume_deletion(
                    snapshot, volume.namespace, volume.id, context, cause=request.id
                )
            )
            raise

    async def _delete_record(self, volume: HostVolume, request: Request) -> None:
        """Delete the record of a volume whose creation or registration failed."""
        await self._server.writer.execute(
            lambda snapshot, _context: volumes.delete_volume(snapshot, volume.namespace, volume.id, cause=request.id)
        )

    @staticmethod
    async def _call_node(channel: NodeChannel, verb: str, volume: HostVolume) -> bytes:
        """Send a request about the volume to its node, such as `volume_create`.

        Return the body of the reply. Raises `Refusal`.
        """
        call = NodeCall(verb, volume.id, body=msgspec.json.encode(build_node_volume(volume)))
        return (await channel.call(call)).body


def _decode_volume(request: Request) -> HostVolume:
    """Return the volume of the body, with its namespace replaced by that of the query, if the query has one.

    Raises `Refusal` if the body has no volume or the caller lacks access to the namespace.
    """
    volume = request.decode_body(HostVolumeRequest).volume
    if volume is None:
        raise invalid_request("missing volume definition")
    namespace = volume.namespace
    if "namespace" in request.query:
        namespace = request.namespace
    request.require_permission(namespace=namespace)
    return msgspec.structs.replace(volume, namespace=namespace)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = HostVolumeActions(server)
    return {
        "host_volume.create": actions.create_volume,
        "host_volume.register": actions.register_volume,
        "host_volume.delete": actions.delete_volume,
    }
