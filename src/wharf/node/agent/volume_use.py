"""Which volumes of the host tasks ask for, by their names on the node, and who uses one."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from wharf.model.job import Job
from wharf.model.node import NodeHostVolume
from wharf.model.task import Task
from wharf.model.volume import VolumeRequest, VolumeType
from wharf.node.core.record import AllocationRecord
from wharf.node.drivers.port import CannotStart, GivenVolume
from wharf.wire.shapes import DesiredAllocation, DesiredWork


def asked_for(work: DesiredWork, job: Job) -> Mapping[str, tuple[str, VolumeRequest]]:
    """By their names in the job: the name on the node, and how it is asked for."""
    group = job.group(work.task_group)
    requests = (group.volumes or {}) if group is not None else {}
    slot = work.name[work.name.rfind("[") :]
    return {
        name: (request.source + slot if request.per_alloc else request.source, request)
        for name, request in requests.items()
        if request.type == VolumeType.HOST
    }


def volumes_of(
    work: DesiredWork, job: Job, task: Task, volumes: Mapping[str, NodeHostVolume]
) -> tuple[GivenVolume, ...]:
    """What the task mounts. Raises CannotStart where a volume is not here."""
    if not task.volume_mounts:
        return ()
    asked = asked_for(work, job)
    found = []
    for mount in task.volume_mounts:
        name, request = asked.get(mount.volume, (mount.volume, None))
        known = volumes.get(name)
        if request is None or known is None:
            raise CannotStart(f"the host volume {name} is not on this node")
        is_read_only = known.read_only or request.read_only or mount.read_only
        found.append(GivenVolume(known.path, mount.destination, is_read_only))
    return tuple(found)


class Work(Protocol):
    record: AllocationRecord

    @property
    def order(self) -> DesiredAllocation: ...


class Works(Protocol):
    def known(self) -> list[str]: ...

    def find(self, allocation_id: str) -> Work | None: ...


def users_of(works: Works, volume: str) -> list[str]:
    """The allocations here that ask for it and are not over."""
    return list(_users_of(works, volume))


def _users_of(works: Works, volume: str) -> Iterator[str]:
    for id in works.known():
        work = works.find(id)
        if work is None or work.record.is_over or work.order.job is None:
            continue
        if volume in [name for name, _ in asked_for(work.order.allocation, work.order.job).values()]:
            yield id
