"""The resources that an allocation uses on its node: CPU shares, memory, cores, devices, networks and ports."""

from collections.abc import Iterable

import msgspec

from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.record import Record, SparseRecord


class AllocatedCpu(Record):
    """The processor time and the exclusive cores that are assigned to a task."""

    cpu_shares: int = msgspec.field(name="CpuShares", default=0)  # MHz
    reserved_cores: tuple[int, ...] | None = None


class AllocatedMemory(Record):
    """The memory that is assigned to a task. `memory_max_mb` is the limit above its reservation; 0 if it has none."""

    memory_mb: int = 0
    memory_max_mb: int = 0


class AllocatedDevice(Record):
    """The device instances that are assigned to a task, all of one model."""

    vendor: str = ""
    type: str = ""
    name: str = ""
    device_ids: tuple[str, ...] | None = None  # The assigned instances.


class AllocatedTaskResources(Record):
    """The resources that are assigned to one task."""

    cpu: AllocatedCpu = msgspec.field(name="Cpu", default=AllocatedCpu())
    memory: AllocatedMemory = AllocatedMemory()
    networks: tuple[NetworkResource, ...] | None = None
    devices: tuple[AllocatedDevice, ...] | None = None


class AllocatedPort(SparseRecord):
    """A host port that is assigned to the group. Static ports come first, then dynamic ones in the order of the job."""

    label: str = ""
    value: int = 0  # The port on the host.
    to: int = 0  # The port inside the network namespace; 0: the same.
    host_ip: str = ""
    ignore_collision: bool = False  # Other allocations may use the port too.


class AllocatedSharedResources(Record):
    """The disk, networks and ports that all tasks of an allocation share."""

    disk_mb: int = 0
    networks: tuple[NetworkResource, ...] | None = None
    ports: tuple[AllocatedPort, ...] | None = None


class TaskLifecycle(Record):
    """When a task runs in relation to the main tasks."""

    hook: str = ""  # Such as "prestart".
    sidecar: bool = False  # Runs as long as the main tasks.


class AllocatedResources(Record):
    """All resources that are assigned to one allocation.

    Allocations with equal resources share one such object in memory.
    """

    tasks: dict[str, AllocatedTaskResources] | None = None  # By task name.
    task_lifecycles: dict[str, TaskLifecycle | None] | None = None  # By task name; null for a main task.
    shared: AllocatedSharedResources = AllocatedSharedResources()


# -- the fields `Resources`, `SharedResources` and `TaskResources` of an allocation in replies, which older clients read


def build_task_resources(allocated: AllocatedResources) -> dict[str, Resources]:
    """Return the resources of each task, by task name."""
    return {name: _convert_task(task) for name, task in (allocated.tasks or {}).items()}


def build_shared_resources(allocated: AllocatedResources) -> Resources:
    """Return the disk and networks that all tasks share."""
    return Resources(cpu=0, memory_mb=0, disk_mb=allocated.shared.disk_mb, networks=allocated.shared.networks)


def sum_resources(allocated: AllocatedResources) -> Resources:
    """Return the resources of all tasks together, with the shared disk and networks."""
    tasks = [_convert_task(task) for task in (allocated.tasks or {}).values()]
    return Resources(
        cpu=sum(task.cpu for task in tasks),
        cores=sum(task.cores for task in tasks),
        memory_mb=sum(task.memory_mb for task in tasks),
        memory_max_mb=sum(task.memory_max_mb for task in tasks),
        disk_mb=allocated.shared.disk_mb,
        networks=_join_networks([allocated.shared.networks, *(task.networks for task in tasks)]),
    )


def _convert_task(task: AllocatedTaskResources) -> Resources:
    """Return the resources of one task. Without a limit above the reservation, the limit equals the reservation."""
    return Resources(
        cpu=task.cpu.cpu_shares,
        cores=len(task.cpu.reserved_cores or ()),
        memory_mb=task.memory.memory_mb,
        memory_max_mb=task.memory.memory_max_mb or task.memory.memory_mb,
        networks=task.networks,
    )


def _join_networks(parts: Iterable[tuple[NetworkResource, ...] | None]) -> tuple[NetworkResource, ...] | None:
    """Return the networks of all parts, or `None` if there are none."""
    return tuple(network for part in parts for network in part or ()) or None
