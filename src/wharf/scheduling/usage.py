"""How much a node has and how much work takes of it."""

from collections.abc import Iterable

import msgspec

from wharf.model.allocation import Allocation
from wharf.model.group import TaskGroup
from wharf.model.node import Node


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Amounts that add up: MHz, memory, disk."""

    cpu: int = 0
    memory_mb: int = 0
    disk_mb: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.cpu + other.cpu, self.memory_mb + other.memory_mb, self.disk_mb + other.disk_mb)

    @staticmethod
    def total(usages: Iterable["Usage"]) -> "Usage":
        return sum(usages, Usage())

    def fits_in(self, room: "Usage") -> bool:
        return not self.exceeded(room)

    def exceeded(self, room: "Usage") -> str:
        """The first dimension in which this is more than the room, or nothing."""
        if self.cpu > room.cpu:
            return "cpu"
        if self.memory_mb > room.memory_mb:
            return "memory"
        return "disk" if self.disk_mb > room.disk_mb else ""


def room_of(node: Node) -> Usage:
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


def usage_of(allocation: Allocation) -> Usage:
    resources = allocation.allocated_resources
    if resources is None:
        return Usage()
    tasks = (resources.tasks or {}).values()
    return Usage(
        sum(task.cpu.cpu_shares for task in tasks),
        sum(task.memory.memory_mb for task in tasks),
        resources.shared.disk_mb,
    )


def demand_of(group: TaskGroup) -> Usage:
    """What one allocation of the group takes."""
    asked = [task.resources for task in group.tasks or () if task.resources is not None]
    return Usage(
        sum(resources.cpu for resources in asked),
        sum(resources.memory_mb for resources in asked),
        group.ephemeral_disk.size_mb,
    )
