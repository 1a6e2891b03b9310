"""Volumes of hosts that one allocation at a time may write (scheduling.md 2.6).

Who uses a volume is told by the versions of the jobs that run there: allocations hold no record of it.
"""

from collections.abc import Iterable

from wharf.model.allocation import Allocation
from wharf.model.group import TaskGroup
from wharf.model.node import Node
from wharf.model.volume import AccessMode, VolumeRequest, VolumeType
from wharf.scheduling.reconcile.names import index_of
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS_ON_NODE, JOB_VERSIONS


def writes_alone(group: TaskGroup) -> list[VolumeRequest]:
    """The volumes that it wants to be the only writer of."""
    return [
        each
        for each in (group.volumes or {}).values()
        if each.type == VolumeType.HOST and each.access_mode == AccessMode.SINGLE_NODE_SINGLE_WRITER
    ]


def is_free_to_write(snapshot: Replica, node: Node, group: TaskGroup, index: int, placed: Iterable[Allocation]) -> bool:
    """Whether nobody writes the volumes on this node that the allocation of that index is to write alone. What is to stop
    writes until it has ended. `placed`: what was put there meanwhile.
    """
    wanted = {_source(each, index) for each in writes_alone(group)}
    if not wanted:
        return True
    there = [each for each in snapshot.those(ALLOCATIONS_ON_NODE, node.id) if each.is_occupying]
    return all(wanted.isdisjoint(_written(snapshot, each)) for each in (*there, *placed))


def _written(snapshot: Replica, allocation: Allocation) -> set[str]:
    job = snapshot.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
    group = job.group(allocation.task_group) if job is not None else None
    index = index_of(allocation.name)
    return {
        _source(each, index)
        for each in ((group.volumes if group is not None else None) or {}).values()
        if each.type == VolumeType.HOST and not each.read_only
    }


def _source(request: VolumeRequest, index: int) -> str:
    return f"{request.source}[{index}]" if request.per_alloc else request.source
