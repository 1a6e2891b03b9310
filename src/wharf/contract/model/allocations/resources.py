"""The resources that an allocation uses on its node: CPU shares, memory, cores, devices, networks and ports."""

import msgspec

from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.record import Record, SparseRecord


class AllocatedCpu(Record):
    cpu_shares: int = msgspec.field(name="CpuShares", default=0)  # MHz
    reserved_cores: tuple[int, ...] | None = None


class AllocatedMemory(Record):
    memory_mb: int = 0
    memory_max_mb: int = 0


class AllocatedDevice(Record):
    """Instances of one device model."""

    vendor: str = ""
    type: str = ""
    name: str = ""
    device_ids: tuple[str, ...] | None = None


class AllocatedTaskResources(Record):
    cpu: AllocatedCpu = msgspec.field(name="Cpu", default=AllocatedCpu())
    memory: AllocatedMemory = AllocatedMemory()
    networks: tuple[NetworkResource, ...] | None = None
    devices: tuple[AllocatedDevice, ...] | None = None


class AllocatedPort(SparseRecord):
    """A host port assigned to the group. Static ports come first, then dynamic ones in the job's order."""

    label: str = ""
    value: int = 0
    to: int = 0
    host_ip: str = ""
    ignore_collision: bool = False


class AllocatedSharedResources(Record):
    """Resources that the tasks of a group share."""

    disk_mb: int = 0
    networks: tuple[NetworkResource, ...] | None = None
    ports: tuple[AllocatedPort, ...] | None = None


class TaskLifecycle(Record):
    hook: str = ""
    sidecar: bool = False


class AllocatedResources(Record):
    """All resources of one allocation. The allocations of a group share one such object in memory."""

    tasks: dict[str, AllocatedTaskResources] | None = None
    task_lifecycles: dict[str, TaskLifecycle | None] | None = None
    shared: AllocatedSharedResources = AllocatedSharedResources()
