"""Endpoints of volumes of hosts."""

from typing import Final

from wharf.model import need
from wharf.model.host_volume import HostVolume, HostVolumeStub
from wharf.wire.endpoints.endpoint import Decides, Endpoint, Lists, reads, text, writes
from wharf.wire.volume_shapes import HostVolumeRequest, HostVolumeResponse

ID: Final = "{volume_id}"

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "host_volume.list", "/v1/volumes", need=need.ANY_TOKEN,
        summary="List the volumes of hosts that the caller may read.",
        lists=Lists(record=HostVolume, hidden=frozenset({"Parameters"})), returns=list[HostVolumeStub],
        parameters=(
            text("type", "The type of volumes: `host`, which is the only one here."),
            text("node_id", "Only those on this node; the beginning of its ID is enough."),
            text("node_pool", "Only those on nodes of this pool."),
        ),
    ),
    reads(
        "host_volume.read", f"/v1/volume/host/{ID}", need=need.READ_HOST_VOLUME, summary="Read a volume of a host.",
        returns=HostVolume,
    ),
    writes(
        "host_volume.create", "/v1/volume/host/create", need=need.CREATE_HOST_VOLUME, decides=Decides.OBJECT,
        summary="Have a node make a volume.", body=HostVolumeRequest, returns=HostVolumeResponse,
    ),
    writes(
        "host_volume.register", "/v1/volume/host/register", need=need.REGISTER_HOST_VOLUME, decides=Decides.OBJECT,
        summary="Make a volume known that a node has already.", body=HostVolumeRequest, returns=HostVolumeResponse,
    ),
    writes(
        "host_volume.delete", f"/v1/volume/host/{ID}", method="DELETE", need=need.DELETE_HOST_VOLUME,
        summary="Delete a volume that nothing uses.",
    ),
)  # fmt: skip
