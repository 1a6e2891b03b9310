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

    name: str = ""
    """Which devices the task needs: a type, a vendor with a type, or one model, with the names that device plugins
    report.

    In HCL, it is the label of the block `device`.

    Default: none; required
    Limits: `type`, `vendor/type` or `vendor/type/name`
    Example: nvidia/gpu
    """
    count: int = 1
    """How many such devices the task needs.

    Servers assign each device to one task at a time.

    Unit: devices
    Limits: 1 to 1,000,000,000
    Example: 2
    """
    constraints: tuple[Constraint, ...] | None = None
    """Conditions that the devices must satisfy, such as on `${device.attr.memory}`.

    `distinct_hosts` and `distinct_property` are not allowed here.
    """
    affinities: tuple[Affinity, ...] | None = None
    """Preferences for devices."""


class NUMA(Record):
    """Whether the task's cores and devices must belong to one NUMA node: a processor with its own memory."""

    affinity: str = "none"
    """Whether the task's cores and devices must belong to the same NUMA node.

    Values:
        none: they may belong to any
        prefer: they should belong to one
        require: they must belong to one
    Example: prefer
    Effect: none, because the scheduler does not know NUMA nodes
    """
    devices: tuple[str, ...] | None = None
    """The names of requested devices that must belong to the same NUMA node as the cores.

    Default: none
    Limits: names of `Devices`
    Example: ["nvidia/gpu"]
    Effect: none, because the scheduler does not know NUMA nodes
    """


class Resources(Record):
    """The resources that one task requests. Either `cpu` or `cores` is zero."""

    cpu: int = 100
    """The processor time that the task is assured of, as a share of the clock rates of all cores of the node.

    Free time of other tasks can be used too, unless the driver limits it. Use `Cores` for whole cores of its
    own.

    Unit: MHz
    Default: 100; 0 if `Cores` is set
    Limits: 1 to 1,000,000,000; 0 with `Cores`
    Example: 500
    """
    cores: int = 0
    """How many whole cores are reserved for the task alone.

    Use it for programs that must not share a core. `CPU` must then be 0 or missing.

    Unit: cores
    Limits: 0 to 1,000,000,000
    Example: 2
    """
    memory_mb: int = 300
    """The memory that is reserved for the task on its node.

    A task that uses more is killed by the kernel, unless `MemoryMaxMB` allows it. The event of its end then
    says `out of memory`.

    Unit: MiB
    Limits: 10 to 1,000,000,000
    Example: 256
    """
    memory_max_mb: int = 0
    """How much memory the task may use if its node has free memory.

    The amount above `MemoryMB` is not reserved. -1 lets it use all memory of the node, and 0 means no more than
    `MemoryMB`. It has an effect only if the cluster or the node pool allows oversubscription of memory;
    otherwise a submission returns a warning.

    Unit: MiB
    Limits: -1, 0, or `MemoryMB` to 1,000,000,000
    Example: 512
    """
    disk_mb: int = 0
    """The disk space of the task.

    It is dropped, because the group requests disk space with `EphemeralDisk`.

    Unit: MiB
    Example: 0
    Effect: none, because the group requests disk space
    Deprecated: use the group's `EphemeralDisk.SizeMB`
    """
    secrets_mb: int = 0
    """The memory for the task's folder `secrets/`, in addition to `MemoryMB`.

    Unit: MiB
    Limits: 0 to `MemoryMB`
    Example: 4
    """
    iops: int = 0
    """How many disk operations the task needs in a second.

    Example: 0
    Effect: none
    Deprecated: leave it out
    """
    networks: tuple[NetworkResource, ...] | None = None
    """The networks of the task.

    Its ports can still be used by services of the task.

    Deprecated: use `Networks` of the group
    """
    devices: tuple[RequestedDevice, ...] | None = None
    """The devices that the task needs, such as GPUs.

    Device plugins of the nodes report what exists.
    """
    numa: NUMA | None = None
    """Whether cores and devices must be near each other.

    Effect: none, because the scheduler does not know NUMA nodes
    """

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
