"""Derives from an allocation the node's resources that a driver must provide to a task: volumes, ports, devices, CPU
and memory.
"""

from collections.abc import Mapping

from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.volumes import VolumeRequest, VolumeType
from wharf.contract.model.nodes.node import NodeHostVolume
from wharf.contract.wire.nodes.messages import AssignedAllocation
from wharf.node.devices.port import NOTHING_RESERVED, Reserved
from wharf.node.drivers.port import CannotStart, Given, GivenDevice, GivenPort, GivenVolume
from wharf.node.tasks.environment import format_ranges


def list_volume_requests(allocation: AssignedAllocation, job: Job) -> Mapping[str, tuple[str, VolumeRequest]]:
    """Return (name of the volume on the node, request) for each host volume of the group, by its name in the job."""
    group = job.find_group(allocation.task_group)
    requests = (group.volumes or {}) if group is not None else {}
    slot = allocation.name[allocation.name.rfind("[") :]
    return {
        name: (request.source + slot if request.per_alloc else request.source, request)
        for name, request in requests.items()
        if request.type == VolumeType.HOST
    }


def list_granted_volumes(
    allocation: AssignedAllocation, job: Job, task: Task, volumes: Mapping[str, NodeHostVolume]
) -> tuple[GivenVolume, ...]:
    """Return the host volumes that the task mounts. Raises `CannotStart` if this node lacks one."""
    if not task.volume_mounts:
        return ()
    requests = list_volume_requests(allocation, job)
    granted = []
    for mount in task.volume_mounts:
        name, request = requests.get(mount.volume, (mount.volume, None))
        volume = volumes.get(name)
        if request is None or volume is None:
            raise CannotStart(f"this node has no host volume {name}")
        is_read_only = volume.read_only or request.read_only or mount.read_only
        granted.append(GivenVolume(volume.path, mount.destination, is_read_only))
    return tuple(granted)


def build_granted_resources(
    allocation: AssignedAllocation,
    job: Job,
    task: Task,
    volumes: Mapping[str, NodeHostVolume],
    *,
    total_mhz: int,
    reserved: Reserved = NOTHING_RESERVED,
) -> Given:
    """Return the resources of the node that the task may use. Raises `CannotStart` if this node lacks a volume.

    `reserved` is what the task's devices require.
    """
    mounts = tuple(GivenVolume(mount.path, mount.target, mount.is_read_only) for mount in reserved.mounts)
    allocated = allocation.allocated_resources
    task_resources = (allocated.tasks or {}).get(task.name) if allocated is not None else None
    ports = (allocated.shared.ports or ()) if allocated is not None else ()
    return Given(
        cpu_mhz=(task_resources.cpu.cpu_shares if task_resources else 0) or task.resources.cpu,
        cpu_total_mhz=total_mhz,
        memory_mb=(task_resources.memory.memory_mb if task_resources else 0) or task.resources.memory_mb,
        memory_max_mb=task_resources.memory.memory_max_mb if task_resources else 0,
        cores=format_ranges((task_resources.cpu.reserved_cores or ()) if task_resources else ()),
        ports=tuple(GivenPort(port.label, port.host_ip, port.value, port.to) for port in ports),
        volumes=(*list_granted_volumes(allocation, job, task, volumes), *mounts),
        devices=tuple(GivenDevice(path, target or path, allowed) for path, target, allowed in reserved.nodes),
    )


def build_labels(
    allocation: AssignedAllocation, job: Job, task: str, *, node_id: str, node_name: str
) -> dict[str, str]:
    """Return all labels of a task from which operators can select those for its container."""
    return {
        "job_name": job.name,
        "job_id": job.id,
        "task_group_name": allocation.task_group,
        "task_name": task,
        "namespace": allocation.namespace,
        "node_id": node_id,
        "node_name": node_name,
    }
