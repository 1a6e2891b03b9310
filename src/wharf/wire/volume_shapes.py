"""Bodies about volumes of hosts."""

from wharf.model.host_volume import HostVolume
from wharf.model.record import Record


class HostVolumeRequest(Record):
    volume: HostVolume | None = None
    policy_override: bool = False


class HostVolumeResponse(Record):
    """The volume as it was written."""

    volume: HostVolume
    warnings: str = ""
    index: int = 0


class NodeVolume(Record):
    """What a node is told of a volume that it is to make, to take as its own, or to take away."""

    id: str
    name: str
    namespace: str = ""
    plugin_id: str = ""
    host_path: str = ""
    """Where it lies already; empty: nowhere yet."""
    capacity_min_bytes: int = 0
    capacity_max_bytes: int = 0
    parameters: dict[str, str] | None = None


class NodeVolumeMade(Record):
    """What a node says of a volume that it has made."""

    host_path: str
    capacity_bytes: int = 0


def told_to_node(volume: HostVolume) -> NodeVolume:
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
