"""Endpoints of volumes of hosts."""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.api.answers import Act, Done, Reading, one
from wharf.api.listing import Listing, by_namespace
from wharf.api.request import ReadOptions, Request
from wharf.model.host_volume import HostVolume, stub
from wharf.model.need import LIST_HOST_VOLUMES
from wharf.model.refusal import Code, Refusal, invalid
from wharf.operations import host_volumes
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state.tables import HOST_VOLUMES
from wharf.wire.volume_shapes import HostVolumeRequest, HostVolumeResponse

NOT_MADE_YET: Final = (
    "nodes make no volumes yet: make the folder on the node, name it in the node's configuration, and register it"
)
NO_CSI: Final = "volumes of the container storage interface are left out here: use volumes of hosts"


def volume_list(replica: Replica, request: Request, options: ReadOptions) -> Listing[HostVolume]:
    wanted = request.text("type")
    if wanted == "csi":
        raise Refusal(Code.NOT_OURS, NO_CSI)
    if wanted not in ("", "host"):
        raise invalid(f'there is no type of volumes "{wanted}": use "host"')
    return by_namespace(replica, HOST_VOLUMES, options, shown=stub, may_see=_may_see(request))


def _may_see(request: Request) -> Callable[[HostVolume], bool]:
    node_id, pool = request.text("node_id"), request.text("node_pool")

    def may_see(volume: HostVolume) -> bool:
        is_asked_for = volume.node_id.startswith(node_id) and pool in ("", volume.node_pool)
        return is_asked_for and request.may(LIST_HOST_VOLUMES, namespace=volume.namespace)

    return may_see


def volume_read(replica: Replica, request: Request, options: ReadOptions) -> Found:
    return Found(*one(replica, HOST_VOLUMES, options.namespace, request.value("volume_id"), missing="volume not found"))


READS: Final[dict[str, Reading]] = {"host_volume.list": volume_list, "host_volume.read": volume_read}


class HostVolumeWrites:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def create(self, request: Request) -> Done:
        """What is wrong is told now already; what a node would do is not done yet."""
        host_volumes.check(self._server.replica, _wanted(request), is_made=False)
        raise Refusal(Code.NOT_OURS, NOT_MADE_YET)

    async def register(self, request: Request) -> Done:
        wanted = _wanted(request)
        written = await self._server.writer.write(
            lambda snapshot, moment: host_volumes.register(snapshot, wanted, moment, cause=request.id)
        )
        return Done(HostVolumeResponse(volume=written.volume, index=written.index), written.index)

    async def delete(self, request: Request) -> Done:
        """A folder that its node has is the node's to take away; the record goes after it."""
        namespace, volume_id = request.namespace, request.value("volume_id")
        await self._server.reader.catch_up()
        volume = host_volumes.find(self._server.replica, namespace, volume_id)
        host_volumes.delete(self._server.replica, namespace, volume_id)  # Refused before anything is taken away.
        if host_volumes.needs_its_node(self._server.replica, volume):
            self._server.channels.to(volume.node_id)
            raise Refusal(
                Code.NOT_OURS, "nodes take no volumes away yet: take it out of the node's configuration first"
            )
        index = await self._server.writer.write(
            lambda snapshot, _moment: host_volumes.delete(snapshot, namespace, volume_id, cause=request.id)
        )
        return Done(index=index)


def _wanted(request: Request) -> HostVolume:
    asked = request.read_body(HostVolumeRequest)
    if asked.volume is None:
        raise invalid("missing volume definition")
    namespace = asked.volume.namespace
    if "namespace" in request.query:
        namespace = request.namespace
    request.require(namespace=namespace)
    return msgspec.structs.replace(asked.volume, namespace=namespace)


def acts_of(server: Server) -> dict[str, Act]:
    writes = HostVolumeWrites(server)
    return {
        "host_volume.create": writes.create,
        "host_volume.register": writes.register,
        "host_volume.delete": writes.delete,
    }
