"""What one task asks of its node: processor, memory, devices."""

from typing import ClassVar

from wharf.contract.model.jobs.constraints import Affinity, Constraint
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.record import Record


class RequestedDevice(Record):
    """A number of devices of one kind: `type`, `vendor/type` or `vendor/type/name`."""

    name: str = ""
    count: int = 1
    constraints: tuple[Constraint, ...] | None = None
    affinities: tuple[Affinity, ...] | None = None


class NUMA(Record):
    """Whether the task's cores and devices must lie on one memory node."""

    affinity: str = "none"
    devices: tuple[str, ...] | None = None


class Resources(Record):
    """What one task asks for. `cpu` is in MHz, `cores` are whole and exclusive; one of the two is zero."""

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

    # A task's disk belongs to its group; the field is read and dropped (jobs.md 2.5a).
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"DiskMB"})

    @classmethod
    def complete_submission(cls, given: dict[str, object]) -> dict[str, object]:
        """Whole cores stand in the place of MHz, so the default of MHz does not apply beside them."""
        if "CPU" not in given and given.get("Cores"):
            given["CPU"] = 0
        return given
