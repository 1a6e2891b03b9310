"""Which volumes of the host tasks ask for, by their names on the node, and who uses one.

A start of a task, put into the words that drivers understand.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.volumes import VolumeRequest, VolumeType
from wharf.contract.model.nodes.node import NodeHostVolume
from wharf.contract.wire.nodes.messages import AssignedAllocation, Assignment
from wharf.node.core.record import AllocationRecord
from wharf.node.devices.port import NOTHING_RESERVED, Reserved
from wharf.node.drivers.port import CannotStart, Given, GivenDevice, GivenPort, GivenVolume
from wharf.node.tasks.environment import format_ranges


def list_volume_requests(work: AssignedAllocation, job: Job) -> Mapping[str, tuple[str, VolumeRequest]]:
    """By their names in the job: the name on the node, and how it is asked for."""
    group = job.find_group(work.task_group)
    requests = (group.volumes or {}) if group is not None else {}
    slot = work.name[work.name.rfind("[") :]
    return {
        name: (request.source + slot if request.per_alloc else request.source, request)
        for name, request in requests.items()
        if request.type == VolumeType.HOST
    }


def list_granted_volumes(
    work: AssignedAllocation, job: Job, task: Task, volumes: Mapping[str, NodeHostVolume]
) -> tuple[GivenVolume, ...]:
    """What the task mounts. Raises CannotStart where a volume is not here."""
    if not task.volume_mounts:
        return ()
    asked = list_volume_requests(work, job)
    found = []
    for mount in task.volume_mounts:
        name, request = asked.get(mount.volume, (mount.volume, None))
        known = volumes.get(name)
        if request is None or known is None:
            raise CannotStart(f"the host volume {name} is not on this node")
        is_read_only = known.read_only or request.read_only or mount.read_only
        found.append(GivenVolume(known.path, mount.destination, is_read_only))
    return tuple(found)


class ManagedAllocation(Protocol):
    record: AllocationRecord

    @property
    def assignment(self) -> Assignment: ...


class AllocationManager(Protocol):
    def list_allocations(self) -> list[str]: ...

    def find(self, allocation_id: str) -> ManagedAllocation | None: ...


def list_volume_users(works: AllocationManager, volume: str) -> list[str]:
    """The allocations here that ask for it and are not over."""
    return list(_users_of(works, volume))


def _users_of(works: AllocationManager, volume: str) -> Iterator[str]:
    for id in works.list_allocations():
        work = works.find(id)
        if work is None or work.record.is_over or work.assignment.job is None:
            continue
        if volume in [
            name for name, _ in list_volume_requests(work.assignment.allocation, work.assignment.job).values()
        ]:
            yield id


def build_granted_resources(
    work: AssignedAllocation,
    job: Job,
    task: Task,
    volumes: Mapping[str, NodeHostVolume],
    *,
    total_mhz: int,
    reserved: Reserved = NOTHING_RESERVED,
) -> Given:
    """What of the node the task may use; `reserved`: for its devices. Raises CannotStart where a volume is not here."""
    mounts = tuple(GivenVolume(*mount) for mount in reserved.mounts)
    allocated = work.allocated_resources
    of_task = (allocated.tasks or {}).get(task.name) if allocated is not None else None
    ports = (allocated.shared.ports or ()) if allocated is not None else ()
    return Given(
        cpu_mhz=(of_task.cpu.cpu_shares if of_task else 0) or task.resources.cpu,
        cpu_total_mhz=total_mhz,
        memory_mb=(of_task.memory.memory_mb if of_task else 0) or task.resources.memory_mb,
        memory_max_mb=of_task.memory.memory_max_mb if of_task else 0,
        cores=format_ranges((of_task.cpu.reserved_cores or ()) if of_task else ()),
        ports=tuple(GivenPort(port.label, port.host_ip, port.value, port.to) for port in ports),
        volumes=(*list_granted_volumes(work, job, task, volumes), *mounts),
        devices=tuple(GivenDevice(path, target or path, allowed) for path, target, allowed in reserved.nodes),
    )


def build_labels(work: AssignedAllocation, job: Job, task: str, *, node_id: str, node_name: str) -> dict[str, str]:
    """What operators may have shown on containers."""
    return {
        "job_name": job.name,
        "job_id": job.id,
        "task_group_name": work.task_group,
        "task_name": task,
        "namespace": work.namespace,
        "node_id": node_id,
        "node_name": node_name,
    }
