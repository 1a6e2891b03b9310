"""Which volumes work with sticky volumes comes back to (scheduling.md 2.6): a claim is held by the newest allocation of a
name, alive or over, for as long as its record, its node and the volumes there are known.

So there is no record of a claim beside the allocation: the collection of what is over leaves holders alone.
"""

from collections.abc import Iterable

from wharf.model.allocation import Allocation
from wharf.model.group import TaskGroup
from wharf.model.host_volume import HostVolume
from wharf.model.job import Job
from wharf.model.node import Node
from wharf.model.volume import VolumeType
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS_OF_JOB, HOST_VOLUMES_ON_NODE, NODES


def is_sticky(group: TaskGroup) -> bool:
    """Whether its allocations come back to the volumes that they had."""
    return bool(_sources(group))


def _sources(group: TaskGroup) -> list[str]:
    asked = (group.volumes or {}).values()
    return [each.source for each in asked if each.type == VolumeType.HOST and each.sticky]


def home_of(snapshot: Replica, group: TaskGroup, holder: Allocation) -> Node | None:
    """The node to which whoever takes this one's place comes back, if its volumes are still known there."""
    return snapshot.get(NODES, holder.node_id) if volumes_claimed(snapshot, group, holder) else None


def volumes_claimed(snapshot: Replica, group: TaskGroup, holder: Allocation) -> list[HostVolume]:
    """Those on its node that the group asks for; empty where one of them is gone: no claim is left then."""
    there = {
        each.name: each
        for each in snapshot.those(HOST_VOLUMES_ON_NODE, holder.node_id)
        if each.namespace == holder.namespace
    }
    sources = _sources(group)
    return [there[name] for name in sources] if all(name in there for name in sources) else []


def holder_of(allocations: Iterable[Allocation], group_name: str, name: str) -> Allocation | None:
    """Of all of a job: who holds the claim of that name."""
    of_name = (each for each in allocations if each.name == name and each.task_group == group_name)
    return max(of_name, key=lambda each: (each.create_index, each.id), default=None)


def holds_claim(snapshot: Replica, allocation: Allocation, job: Job) -> bool:
    """Whether the data of the job would be lost from sight without the allocation's record."""
    group = job.group(allocation.task_group)
    if group is None or not is_sticky(group) or not volumes_claimed(snapshot, group, allocation):
        return False
    everyone = snapshot.those(ALLOCATIONS_OF_JOB, job.namespace, job.id)
    return holder_of(everyone, group.name, allocation.name) == allocation
