"""Endpoints and messages of host volumes."""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.record import Record
from wharf.contract.model.volumes import HostVolume, HostVolumeStub
from wharf.contract.wire.endpoint import (
    SMALL_BODY_BYTES,
    Endpoint,
    ListFeatures,
    ScopeSource,
    define_read,
    define_write,
    text,
)


class HostVolumeRequest(Record):
    """A request to create or register a host volume: a folder of a node that jobs can mount."""

    volume: HostVolume | None = None
    policy_override: bool = False  # Accepted for Nomad's clients.


class HostVolumeResponse(Record):
    """The host volume as it was stored."""

    volume: HostVolume
    warnings: str = ""
    index: int = 0  # Log index of the write.


class NodeVolume(Record):
    """A host volume in a server's request to a node to create, register or delete it."""

    id: str
    name: str
    namespace: str = ""
    plugin_id: str = ""  # The plugin that creates the folder, such as `mkdir`.
    host_path: str = ""
    """The path of an existing folder; empty if the volume is not created yet."""
    capacity_min_bytes: int = 0
    capacity_max_bytes: int = 0
    parameters: dict[str, str] | None = None  # Settings for the plugin.


class NodeVolumeCreated(Record):
    """A node's reply after it has created a host volume."""

    host_path: str  # The path of the folder.
    capacity_bytes: int = 0


def build_node_volume(volume: HostVolume) -> NodeVolume:
    """Return the fields of a host volume that its node needs to create, register or delete it."""
    return NodeVolume(
        id=volume.id,
        name=volume.name,
        namespace=volume.namespace,
        plugin_id=volume.plugin_id,
        host_path=volume.host_path,
        capacity_min_bytes=volume.requested_capacity_min_bytes,
        capacity_max_bytes=volume.requested_capacity_max_bytes,
        parameters=volume.parameters,
    )


VOLUME_ID_PARAMETER: Final = "{volume_id}"

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "host_volume.list", "/v1/volumes", need=permissions.ANY_TOKEN,
        summary="List the host volumes that the caller may read.",
        list_features=ListFeatures(
            record=HostVolume, hidden_fields=frozenset({"Parameters"}), filtering_parameters=("node_id", "node_pool")
        ),
        reply_type=list[HostVolumeStub],
        parameters=(
            text("type", "The type of volumes. Only `host` is supported."),
            text("node_id", "Only volumes on this node; a prefix of its ID is enough."),
            text("node_pool", "Only volumes on nodes of this pool."),
        ),
    ),
    define_read(
        "host_volume.read", f"/v1/volume/host/{VOLUME_ID_PARAMETER}", need=permissions.READ_HOST_VOLUME, summary="Read a host volume.",
        reply_type=HostVolume,
    ),
    define_write(
        "host_volume.create", "/v1/volume/host/create", need=permissions.CREATE_HOST_VOLUME, scope_source=ScopeSource.OBJECT,
        summary="Create a host volume on a node.", max_body_bytes=SMALL_BODY_BYTES, body_type=HostVolumeRequest, reply_type=HostVolumeResponse,
    ),
    define_write(
        "host_volume.register", "/v1/volume/host/register", need=permissions.REGISTER_HOST_VOLUME, scope_source=ScopeSource.OBJECT,
        summary="Register a folder that already exists on a node as a host volume.", max_body_bytes=SMALL_BODY_BYTES, body_type=HostVolumeRequest, reply_type=HostVolumeResponse,
    ),
    define_write(
        "host_volume.delete", f"/v1/volume/host/{VOLUME_ID_PARAMETER}", method="DELETE", need=permissions.DELETE_HOST_VOLUME,
        summary="Delete a host volume that is not in use.",
    ),
)  # fmt: skip
