"""Client methods for host volumes."""

from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, ReadOptions, ReadSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.model.volumes import HostVolume, HostVolumeStub
from wharf.contract.wire import volumes


class VolumeMethods(MethodGroup[M]):
    """The methods of `client.host_volumes`. Each describes a call, which the client then sends."""

    @list_method("host_volume.list")
    def list(
        self, *, node_id: str = "", node_pool: str = "", **options: Unpack[ListOptions]
    ) -> ListSpec[HostVolumeStub]:
        """List the host volumes that the caller may read, optionally only those on one node or in one node pool."""
        return ListSpec(options, type="host", node_id=node_id, node_pool=node_pool)

    @read_method("host_volume.read")
    def read(self, volume_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[HostVolume]:
        """Read the host volume with this ID."""
        return ReadSpec(options, volume_id)

    @call_method("host_volume.create")
    def create(
        self, volume: HostVolume, *, policy_override: bool = False, **options: Unpack[WriteOptions]
    ) -> CallSpec[volumes.HostVolumeResponse]:
        """Create a host volume on a node. `policy_override` has no effect."""
        return CallSpec(options, body=volumes.HostVolumeRequest(volume=volume, policy_override=policy_override))

    @call_method("host_volume.register")
    def register(
        self, volume: HostVolume, *, policy_override: bool = False, **options: Unpack[WriteOptions]
    ) -> CallSpec[volumes.HostVolumeResponse]:
        """Register a folder that already exists on a node as a host volume. `policy_override` has no effect."""
        return CallSpec(options, body=volumes.HostVolumeRequest(volume=volume, policy_override=policy_override))

    @call_method("host_volume.delete")
    def delete(self, volume_id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the host volume with this ID, which must not be in use."""
        return CallSpec(options, volume_id)
