"""Which volumes work with sticky volumes comes back to (scheduling.md 2.6): a claim is held by the newest allocation of a
name, alive or over, for as long as its record, its node and the volumes there are known.

So there is no record of a claim beside the allocation: the collection of what is over leaves holders alone.

Volumes of hosts that one allocation at a time may write (scheduling.md 2.6).

Who uses a volume is told by the versions of the jobs that run there: allocations hold no record of it.
"""

from collections.abc import Iterable

from wharf.cluster.scheduling.reconcile.names import parse_index
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS_OF_JOB,
    ALLOCATIONS_ON_NODE,
    HOST_VOLUMES_ON_NODE,
    JOB_VERSIONS,
    NODES,
)
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.volumes import AccessMode, VolumeRequest, VolumeType
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.volumes import HostVolume


def has_sticky_volumes(group: TaskGroup) -> bool:
    """Whether its allocations come back to the volumes that they had."""
    return bool(_sources(group))


def _sources(group: TaskGroup) -> list[str]:
    asked = (group.volumes or {}).values()
    return [each.source for each in asked if each.type == VolumeType.HOST and each.sticky]


def find_claim_node(snapshot: Replica, group: TaskGroup, holder: Allocation) -> Node | None:
    """The node to which whoever takes this one's place comes back, if its volumes are still known there."""
    return snapshot.get(NODES, holder.node_id) if list_claimed_volumes(snapshot, group, holder) else None


def list_claimed_volumes(snapshot: Replica, group: TaskGroup, holder: Allocation) -> list[HostVolume]:
    """Those on its node that the group asks for; empty where one of them is gone: no claim is left then."""
    there = {
        each.name: each
        for each in snapshot.list_by_index(HOST_VOLUMES_ON_NODE, holder.node_id)
        if each.namespace == holder.namespace
    }
    sources = _sources(group)
    return [there[name] for name in sources] if all(name in there for name in sources) else []


def find_claim_holder(allocations: Iterable[Allocation], group_name: str, name: str) -> Allocation | None:
    """Of all of a job: who holds the claim of that name."""
    of_name = (each for each in allocations if each.name == name and each.task_group == group_name)
    return max(of_name, key=lambda each: (each.create_index, each.id), default=None)


def is_claim_holder(snapshot: Replica, allocation: Allocation, job: Job) -> bool:
    """Whether the data of the job would be lost from sight without the allocation's record."""
    group = job.find_group(allocation.task_group)
    if group is None or not has_sticky_volumes(group) or not list_claimed_volumes(snapshot, group, allocation):
        return False
    everyone = snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
    return find_claim_holder(everyone, group.name, allocation.name) == allocation


def list_single_writer_volumes(group: TaskGroup) -> list[VolumeRequest]:
    """The volumes that it wants to be the only writer of."""
    return [
        each
        for each in (group.volumes or {}).values()
        if each.type == VolumeType.HOST and each.access_mode == AccessMode.SINGLE_NODE_SINGLE_WRITER
    ]


def can_write_volumes(
    snapshot: Replica, node: Node, group: TaskGroup, index: int, placed: Iterable[Allocation]
) -> bool:
    """Whether nobody writes the volumes on this node that the allocation of that index is to write alone. What is to stop
    writes until it has ended. `placed`: what was put there meanwhile.
    """
    wanted = {_source(each, index) for each in list_single_writer_volumes(group)}
    if not wanted:
        return True
    there = [each for each in snapshot.list_by_index(ALLOCATIONS_ON_NODE, node.id) if each.is_occupying]
    return all(wanted.isdisjoint(_written(snapshot, each)) for each in (*there, *placed))


def _written(snapshot: Replica, allocation: Allocation) -> set[str]:
    job = snapshot.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
    group = job.find_group(allocation.task_group) if job is not None else None
    index = parse_index(allocation.name)
    return {
        _source(each, index)
        for each in ((group.volumes if group is not None else None) or {}).values()
        if each.type == VolumeType.HOST and not each.read_only
    }


def _source(request: VolumeRequest, index: int) -> str:
    return f"{request.source}[{index}]" if request.per_alloc else request.source
