"""The resources that a task requests: processor, memory, devices."""

from typing import ClassVar, Final

from wharf.contract.model.jobs.constraints import Affinity, Constraint
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.record import Record

MIN_CPU_MHZ: Final = 1
MIN_MEMORY_MB: Final = 10
MAX_RESOURCE_AMOUNT: Final = 1_000_000_000
"""The largest amount of MHz, cores, MB or devices that a job may request: more than any machine has.

It protects the scheduler, which adds up amounts in 64 bits. A memory limit is never compared with a node, so it needs a
limit of its own.
"""
UNLIMITED_MEMORY_MB: Final = -1
"""The value of `memory_max` that lets a task use all memory of its node."""


class RequestedDevice(Record):
    """A request for a number of devices of one model, such as GPUs."""

    name: str = ""  # `type`, `vendor/type` or `vendor/type/name`.
    count: int = 1
    constraints: tuple[Constraint, ...] | None = None
    affinities: tuple[Affinity, ...] | None = None


class NUMA(Record):
    """Whether the task's cores and devices must belong to one NUMA node: a processor with its own memory."""

    affinity: str = "none"  # "none", "prefer" or "require".
    devices: tuple[str, ...] | None = None  # Names of requested devices.


class Resources(Record):
    """The resources that one task requests. Either `cpu` or `cores` is zero."""

    cpu: int = 100  # MHz.
    cores: int = 0  # Whole cores for this task only.
    memory_mb: int = 300
    memory_max_mb: int = 0  # Limit above the reservation; 0: none, -1: all memory of the node.
    disk_mb: int = 0  # Always 0: the group requests disk.
    secrets_mb: int = 0  # Size of the folder for secrets.
    iops: int = 0  # Deprecated, without effect.
    networks: tuple[NetworkResource, ...] | None = None  # Deprecated: the group requests networks.
    devices: tuple[RequestedDevice, ...] | None = None
    numa: NUMA | None = None

    # Disk is requested by the group, so the task's field is dropped (jobs.md 2.5a).
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({"DiskMB"})

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Set `CPU` to 0 if a submitted task requests whole cores but no MHz.

        Otherwise the default of `CPU` would apply. Modifies and returns the JSON object.
        """
        if "CPU" not in submitted and submitted.get("Cores"):
            submitted["CPU"] = 0
        return submitted
