"""A start of a task, put into the words that drivers understand."""

from collections.abc import Mapping

from wharf.model.job import Job
from wharf.model.node import NodeHostVolume
from wharf.model.task import Task
from wharf.node.agent.environment import as_ranges
from wharf.node.agent.volume_use import volumes_of
from wharf.node.devices.port import NOTHING_RESERVED, Reserved
from wharf.node.drivers.port import Given, GivenDevice, GivenPort, GivenVolume
from wharf.wire.shapes import DesiredWork


def given_to(
    work: DesiredWork,
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
        cores=as_ranges((of_task.cpu.reserved_cores or ()) if of_task else ()),
        ports=tuple(GivenPort(port.label, port.host_ip, port.value, port.to) for port in ports),
        volumes=(*volumes_of(work, job, task, volumes), *mounts),
        devices=tuple(GivenDevice(path, target or path, allowed) for path, target, allowed in reserved.nodes),
    )


def labels_of(work: DesiredWork, job: Job, task: str, *, node_id: str, node_name: str) -> dict[str, str]:
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
