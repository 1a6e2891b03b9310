"""Endpoints of volumes of hosts."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from wharf.api.answers import Act, Done, Reading, one
from wharf.api.listing import Listing, by_namespace
from wharf.api.onward import passed_to_holder
from wharf.api.request import ReadOptions, Request
from wharf.model.host_volume import HostVolume, stub
from wharf.model.need import LIST_HOST_VOLUMES
from wharf.model.refusal import Code, Refusal, invalid
from wharf.operations import host_volumes
from wharf.server.node_channels import NodeChannel, NodeQuestion, NoPath, no_path
from wharf.server.reading import Found
from wharf.server.rehearsal import forbid_in_rehearsal
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state.tables import HOST_VOLUMES
from wharf.wire.volume_shapes import HostVolumeRequest, HostVolumeResponse, NodeVolumeMade, told_to_node

NOT_TOLD: Final = (
    "its node cannot be reached and does not know of it: register it again, with the ID {}, when it is back"
)
UNSURE: Final = frozenset({Code.UNAVAILABLE, Code.UNDECIDED})
"""The node may have done it, or may not."""
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
    """What a node must do is asked of it by whoever holds its channel: the request goes there, before anything is written."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def create(self, request: Request) -> Done:
        wanted = _wanted(request)
        server = self._server
        await server.reader.catch_up()
        host_volumes.check(server.replica, wanted, is_made=False)
        for node in host_volumes.places_for(server.replica, wanted):
            try:
                channel = server.channels.to(node.id)
            except NoPath:
                chosen = HostVolumeRequest(volume=msgspec.structs.replace(wanted, node_id=node.id))
                passed = msgspec.structs.replace(request, body=msgspec.json.encode(chosen))
                with suppress(NoPath):
                    return await passed_to_holder(server, passed, node.id)
            else:
                return await self._make(request, wanted, node.id, channel)
        raise no_path()

    async def _make(self, request: Request, wanted: HostVolume, node_id: str, channel: NodeChannel) -> Done:
        forbid_in_rehearsal()
        server = self._server
        begun = await server.writer.write(
            lambda snapshot, moment: host_volumes.begin_making(snapshot, wanted, node_id, moment, cause=request.id)
        )
        volume = begun.volume
        try:
            made = msgspec.json.decode(await self._ask(channel, "volume_create", volume), type=NodeVolumeMade)
        except Refusal as refusal:
            if refusal.code in UNSURE:
                text = f"whether volume {volume.id} was made is not known: {refusal.text}; create it again with this ID"
                raise Refusal(refusal.code, text) from refusal
            if not wanted.id:
                await self._forget(volume, request)
            raise Refusal(refusal.code, f"volume {wanted.name} cannot be made: {refusal.text}") from refusal
        written = await server.writer.write(
            lambda snapshot, moment: host_volumes.end_making(
                snapshot,
                volume.namespace,
                volume.id,
                host_path=made.host_path,
                capacity_bytes=made.capacity_bytes,
                moment=moment,
                cause=request.id,
            )
        )
        return Done(HostVolumeResponse(volume=written.volume, index=written.index), written.index)

    async def register(self, request: Request) -> Done:
        wanted, server = _wanted(request), self._server
        host_volumes.check(server.replica, wanted, is_made=True)
        try:
            channel: NodeChannel | None = server.channels.to(wanted.node_id)
        except NoPath:
            channel = None
            with suppress(NoPath):
                return await passed_to_holder(server, request, wanted.node_id)
        if channel is not None:
            forbid_in_rehearsal()
        written = await server.writer.write(
            lambda snapshot, moment: host_volumes.register(snapshot, wanted, moment, cause=request.id)
        )
        warnings = "" if channel is not None else NOT_TOLD.format(written.volume.id)
        if channel is not None:
            try:
                await self._ask(channel, "volume_register", written.volume)
            except Refusal as refusal:
                if not wanted.id and refusal.code not in UNSURE:
                    await self._forget(written.volume, request)
                raise Refusal(refusal.code, f"volume {wanted.name} cannot be registered: {refusal.text}") from refusal
        return Done(HostVolumeResponse(volume=written.volume, index=written.index, warnings=warnings), written.index)

    async def delete(self, request: Request) -> Done:
        """A folder that its node has is the node's to take away; the record goes after it."""
        namespace, volume_id, server = request.namespace, request.value("volume_id"), self._server
        await server.reader.catch_up()
        volume = host_volumes.find(server.replica, namespace, volume_id)
        host_volumes.delete(server.replica, namespace, volume_id)  # Refused before anything is taken away.
        try:
            channel = server.channels.to(volume.node_id)
            forbid_in_rehearsal()
            await self._ask(channel, "volume_delete", volume)
        except NoPath:
            try:
                return await passed_to_holder(server, request, volume.node_id)
            except NoPath:
                if host_volumes.needs_its_node(server.replica, volume):
                    raise
        index = await server.writer.write(
            lambda snapshot, _moment: host_volumes.delete(snapshot, namespace, volume_id, cause=request.id)
        )
        return Done(index=index)

    async def _forget(self, volume: HostVolume, request: Request) -> None:
        await self._server.writer.write(
            lambda snapshot, _moment: host_volumes.delete(snapshot, volume.namespace, volume.id, cause=request.id)
        )

    @staticmethod
    async def _ask(channel: NodeChannel, verb: str, volume: HostVolume) -> bytes:
        """Raises Refusal."""
        question = NodeQuestion(verb, volume.id, body=msgspec.json.encode(told_to_node(volume)))
        return (await channel.ask(question)).body


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
