"""Amounts of CPU, memory and disk: what nodes have and what allocations use.

The tasks of a group run in three lifecycle phases: before, with and after its main tasks. Tasks of different phases do
not run at the same time, so a group uses the maximum over the phases (scheduling.md 3.1). Reserved cores are counted in
all phases.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.resources import AllocatedResources, AllocatedTaskResources
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.nodes.resources import NodeResources, ReservedResources

MAX_AMOUNT: Final = 2**40
"""The largest amount of one node or allocation, in MHz or MB. A larger one counts as this one.

The amounts come from jobs and nodes, and the columns of the fleet add them up in 64 bits. A server that cannot add up a
stored record can no longer follow the log.
"""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """An amount of CPU, memory and disk: what an allocation uses, or what a node has."""

    cpu: int = 0
    """In MHz."""
    memory_mb: int = 0
    disk_mb: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.cpu + other.cpu, self.memory_mb + other.memory_mb, self.disk_mb + other.disk_mb)

    @staticmethod
    def sum_usages(usages: Iterable["Usage"]) -> "Usage":
        """Return the sum of the usages."""
        return sum(usages, Usage())

    def fits_in(self, capacity: "Usage") -> bool:
        """Return whether neither CPU, memory nor disk exceeds the capacity."""
        return not self.find_exceeded_dimension(capacity)

    def find_exceeded_dimension(self, capacity: "Usage") -> str:
        """Return which amount exceeds the capacity: `cpu`, `memory` or `disk`, in this order; empty if none does."""
        if self.cpu > capacity.cpu:
            return "cpu"
        if self.memory_mb > capacity.memory_mb:
            return "memory"
        return "disk" if self.disk_mb > capacity.disk_mb else ""


class _PhaseUsage:
    """Adds up the CPU and memory of a group's tasks for each of the three lifecycle phases.

    The phases are before, with and after the main tasks.
    """

    __slots__ = ("_core_cpu", "_cpu", "_memory_mb")

    def __init__(self) -> None:
        self._cpu = [0, 0, 0]
        """MHz by phase, without reserved cores."""
        self._memory_mb = [0, 0, 0]
        self._core_cpu = 0
        """MHz of the reserved cores, which are counted in all phases."""

    def add_task(self, *, hook: str, sidecar: bool, cpu: int, memory_mb: int, has_cores: bool) -> None:
        """Add the CPU (MHz) and memory of one task to the phases in which it runs.

        `hook` is `prestart`, `poststart` or `poststop`, and empty for a main task. With `has_cores`, `cpu` is the speed
        of the cores that the task reserves; it is counted in all phases.
        """
        if has_cores:
            self._core_cpu += cpu
            cpu = 0
        for phase in _list_phases(hook, sidecar=sidecar):
            self._cpu[phase] += cpu
            self._memory_mb[phase] += memory_mb

    def get_maximum(self, disk_mb: int) -> Usage:
        """Return what an allocation of the group uses, with this amount of disk.

        CPU and memory are each the maximum over the phases. The CPU of reserved cores is added.
        """
        return _build_usage(max(self._cpu) + self._core_cpu, max(self._memory_mb), disk_mb)


def _build_usage(cpu: int, memory_mb: int, disk_mb: int) -> Usage:
    """Return the amounts, each limited to `MAX_AMOUNT`."""
    return Usage(limit_amount(cpu), limit_amount(memory_mb), limit_amount(disk_mb))


def limit_amount(amount: int) -> int:
    """Return the amount, or the nearest one from `-MAX_AMOUNT` to `MAX_AMOUNT`."""
    return max(-MAX_AMOUNT, min(amount, MAX_AMOUNT))


def _list_phases(hook: str, *, sidecar: bool) -> tuple[int, ...]:
    """Return the lifecycle phases in which a task with this hook runs: 0 before, 1 with, 2 after the main tasks.

    A prestart task that is a sidecar runs in 0 and 1.
    """
    if hook == "prestart":
        return (0, 1) if sidecar else (0,)
    return (2,) if hook == "poststop" else (1,)


def get_node_capacity(node: Node) -> Usage:
    """Return the CPU, memory and disk that the node has for allocations: its resources minus what it reserves.

    All are 0 if the node reports no resources.
    """
    return get_capacity(node.node_resources, node.reserved_resources)


def get_capacity(total: NodeResources | None, reserved: ReservedResources | None) -> Usage:
    """Return the CPU, memory and disk of a node for allocations: its resources minus what it reserves."""
    if total is None:
        return Usage()
    if reserved is None:
        return _build_usage(total.cpu.cpu_shares, total.memory.memory_mb, total.disk.disk_mb)
    return _build_usage(
        total.cpu.cpu_shares - reserved.cpu.cpu_shares,
        total.memory.memory_mb - reserved.memory.memory_mb,
        total.disk.disk_mb - reserved.disk.disk_mb,
    )


def get_allocation_usage(allocation: Allocation) -> Usage:
    """Return the CPU, memory and disk that the allocation uses; all are 0 if it has no resource record."""
    resources = allocation.allocated_resources
    return Usage() if resources is None else get_resources_usage(resources)


def get_resources_usage(resources: AllocatedResources) -> Usage:
    """Return the CPU, memory and disk that an allocation with these resources uses.

    If it has several tasks, the phase before, with or after the main tasks that needs the most counts.
    """
    tasks = resources.tasks or {}
    lifecycles = resources.task_lifecycles or {}
    if len(tasks) == 1:  # Nearly all groups have one task, so no phases need to be compared.
        for task in tasks.values():
            return _build_usage(task.cpu.cpu_shares, task.memory.memory_mb, resources.shared.disk_mb)
    phases = _PhaseUsage()
    for name, task in tasks.items():
        lifecycle = lifecycles.get(name)
        phases.add_task(
            hook="" if lifecycle is None else lifecycle.hook,
            sidecar=lifecycle is not None and lifecycle.sidecar,
            cpu=task.cpu.cpu_shares,
            memory_mb=task.memory.memory_mb,
            has_cores=has_cores(task),
        )
    return phases.get_maximum(resources.shared.disk_mb)


def has_cores(task: AllocatedTaskResources) -> bool:
    """Return whether the task has reserved cores, which no other task may use."""
    return bool(task.cpu.reserved_cores)


def get_group_demand(group: TaskGroup) -> Usage:
    """Return the CPU, memory and disk that one allocation of the group uses.

    The MHz of reserved cores are left out, because they depend on the node.
    """
    phases = _PhaseUsage()
    for task in group.tasks or ():
        requested = task.resources
        if requested is not None:
            lifecycle = task.lifecycle
            phases.add_task(
                hook="" if lifecycle is None else lifecycle.hook,
                sidecar=lifecycle is not None and lifecycle.sidecar,
                cpu=0 if requested.cores else requested.cpu,
                memory_mb=get_task_memory_mb(task),
                has_cores=bool(requested.cores),
            )
    return phases.get_maximum(group.ephemeral_disk.size_mb)


def get_task_memory_mb(task: Task) -> int:
    """Return the memory that the task reserves, with its secrets folder, which is in memory too."""
    assert task.resources is not None, "a task in canonical form has resources"
    return task.resources.memory_mb + task.resources.secrets_mb
