"""How much a node has and how much work takes of it.

The tasks of a group do not all run at the same time: those before the main ones, the main ones, and those after them take
turns, so a group takes the most that any of the three phases takes (scheduling.md 3.1). Whole cores take no turns.
"""

from collections.abc import Iterable

import msgspec

from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.resources import AllocatedResources, AllocatedTaskResources
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.nodes.node import Node


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Amounts that add up: MHz, memory, disk."""

    cpu: int = 0
    memory_mb: int = 0
    disk_mb: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.cpu + other.cpu, self.memory_mb + other.memory_mb, self.disk_mb + other.disk_mb)

    @staticmethod
    def sum_usages(usages: Iterable["Usage"]) -> "Usage":
        return sum(usages, Usage())

    def fits_in(self, room: "Usage") -> bool:
        return not self.find_exceeded_dimension(room)

    def find_exceeded_dimension(self, room: "Usage") -> str:
        """The first dimension in which this is more than the room, or nothing."""
        if self.cpu > room.cpu:
            return "cpu"
        if self.memory_mb > room.memory_mb:
            return "memory"
        return "disk" if self.disk_mb > room.disk_mb else ""


class _Turns:
    """The three phases of a group's life, added up task by task."""

    __slots__ = ("_cpu", "_cpu_of_cores", "_memory_mb")

    def __init__(self) -> None:
        self._cpu = [0, 0, 0]
        self._memory_mb = [0, 0, 0]
        self._cpu_of_cores = 0

    def add(self, *, hook: str, sidecar: bool, cpu: int, memory_mb: int, has_cores: bool) -> None:
        if has_cores:
            self._cpu_of_cores += cpu
            cpu = 0
        for phase in _phases(hook, sidecar=sidecar):
            self._cpu[phase] += cpu
            self._memory_mb[phase] += memory_mb

    def most(self, disk_mb: int) -> Usage:
        return Usage(max(self._cpu) + self._cpu_of_cores, max(self._memory_mb), disk_mb)


def _phases(hook: str, *, sidecar: bool) -> tuple[int, ...]:
    """Before, while, after the main tasks run. A sidecar that starts before goes on while they run."""
    if hook == "prestart":
        return (0, 1) if sidecar else (0,)
    return (2,) if hook == "poststop" else (1,)


def get_node_capacity(node: Node) -> Usage:
    """What the node has for work: all that it has less what it keeps back."""
    if node.node_resources is None:
        return Usage()
    has, kept = node.node_resources, node.reserved_resources
    if kept is None:
        return Usage(has.cpu.cpu_shares, has.memory.memory_mb, has.disk.disk_mb)
    return Usage(
        has.cpu.cpu_shares - kept.cpu.cpu_shares,
        has.memory.memory_mb - kept.memory.memory_mb,
        has.disk.disk_mb - kept.disk.disk_mb,
    )


def get_allocation_usage(allocation: Allocation) -> Usage:
    resources = allocation.allocated_resources
    return Usage() if resources is None else get_resources_usage(resources)


def get_resources_usage(resources: AllocatedResources) -> Usage:
    tasks = resources.tasks or {}
    lifecycles = resources.task_lifecycles or {}
    if len(tasks) == 1:  # Nearly all: no turns to take.
        for only in tasks.values():
            return Usage(only.cpu.cpu_shares, only.memory.memory_mb, resources.shared.disk_mb)
    turns = _Turns()
    for name, task in tasks.items():
        lifecycle = lifecycles.get(name)
        turns.add(
            hook="" if lifecycle is None else lifecycle.hook,
            sidecar=lifecycle is not None and lifecycle.sidecar,
            cpu=task.cpu.cpu_shares,
            memory_mb=task.memory.memory_mb,
            has_cores=has_cores(task),
        )
    return turns.most(resources.shared.disk_mb)


def has_cores(task: AllocatedTaskResources) -> bool:
    return bool(task.cpu.reserved_cores)


def get_group_demand(group: TaskGroup) -> Usage:
    """What one allocation of the group takes, beside the MHz of whole cores: those depend on the node."""
    turns = _Turns()
    for task in group.tasks or ():
        asked = task.resources
        if asked is not None:
            lifecycle = task.lifecycle
            turns.add(
                hook="" if lifecycle is None else lifecycle.hook,
                sidecar=lifecycle is not None and lifecycle.sidecar,
                cpu=0 if asked.cores else asked.cpu,
                memory_mb=get_task_memory_mb(task),
                has_cores=bool(asked.cores),
            )
    return turns.most(group.ephemeral_disk.size_mb)


def get_task_memory_mb(task: Task) -> int:
    """Its memory with the folder of its secrets, which lies in memory too."""
    assert task.resources is not None, "a task in canonical form has resources"
    return task.resources.memory_mb + task.resources.secrets_mb
