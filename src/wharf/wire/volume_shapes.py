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
