"""The resources that a task requests: processor, memory, devices."""

from typing import ClassVar, Final

from wharf.contract.model.jobs.constraints import Affinity, Constraint
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.record import Record

MIN_CPU_MHZ: Final = 1
MIN_MEMORY_MB: Final = 10
UNLIMITED_MEMORY_MB: Final = -1
"""The value of `memory_max` that lets a task use all memory of its node."""


class RequestedDevice(Record):
    """A number of devices of one model: `type`, `vendor/type` or `vendor/type/name`."""

    name: str = ""
    count: int = 1
    constraints: tuple[Constraint, ...] | None = None
    affinities: tuple[Affinity, ...] | None = None


class NUMA(Record):
    """Whether the task's cores and devices must belong to one NUMA node."""

    affinity: str = "none"
    devices: tuple[str, ...] | None = None


class Resources(Record):
    """The resources that one task requests. `cpu` is in MHz, `cores` are whole and exclusive; one of the two is zero."""

    cpu: int = 100
    cores: int = 0
    memory_mb: int = 300
    memory_max_mb: int = 0
    disk_mb: int = 0
    secrets_mb: int = 0
    iops: int = 0
    networks: tuple[NetworkResource, ...] | None = None
    devices: tuple[RequestedDevice, ...] | None = None
    numa: NUMA | None = None

    # Disk is requested by the group, so the task's field is dropped (jobs.md 2.5a).
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"DiskMB"})

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Set `CPU` to 0 if whole cores are requested without MHz, because the default of `CPU` does not apply then."""
        if "CPU" not in submitted and submitted.get("Cores"):
            submitted["CPU"] = 0
        return submitted
