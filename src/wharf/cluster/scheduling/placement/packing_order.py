"""The order in which allocations of several groups of one job are placed, so that together they fill nodes (ADR 61).

Each allocation still goes to the node with the best score. Only the order is decided here. The groups are packed on
imaginary, empty and equal nodes by a few rules, and the rule that needs the fewest nodes decides the order. The cost
depends on the number of different node fillings, not on the number of nodes.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from wharf.cluster.scheduling.fleet.columns import Mask
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.scheduling.resources.usage import get_group_demand
from wharf.contract.model.jobs.groups import TaskGroup

SHARE_TOLERANCE: Final = 1e-9
"""Shares that differ by less than this count as equal, because sums of shares have rounding errors."""

WASTE_DIGITS: Final = 3
"""Decimal digits to which waste is compared. If the waste is equal, the largest demand comes first."""

MAX_STEP_SHARE: Final = 0.01
"""Limits the time for tiny demands: they are added in steps of up to this share of a node."""

MAX_KINDS: Final = 16
"""Limits the time of the search: with more different demands, the order is largest first."""


class GroupDemand(msgspec.Struct, frozen=True):
    """How many allocations of a group are needed, and the share of a node that each uses."""

    count: int
    cpu: float
    memory: float

    @property
    def size(self) -> float:
        """The larger of the CPU share and the memory share."""
        return max(self.cpu, self.memory)


class _ImaginaryNode(msgspec.Struct):
    """An imaginary node: free shares, allocations of each group on it, and the demand that is still to be placed."""

    cpu: float
    memory: float
    counts: list[int]
    remaining_cpu: float
    remaining_memory: float

    def can_fit(self, demand: GroupDemand) -> bool:
        """Return whether one allocation of this demand fits."""
        return demand.cpu <= self.cpu + SHARE_TOLERANCE and demand.memory <= self.memory + SHARE_TOLERANCE

    def get_step_count(self, demand: GroupDemand, remaining: int) -> int:
        """Return how many allocations to add in one step. Large demands are added one by one."""
        if demand.size > MAX_STEP_SHARE / 2:
            return 1
        free_and_requested = ((self.cpu, demand.cpu), (self.memory, demand.memory))
        fitting = min(
            (int((free + SHARE_TOLERANCE) / share) for free, share in free_and_requested if share > SHARE_TOLERANCE),
            default=remaining,
        )
        return max(1, min(remaining, fitting, int(MAX_STEP_SHARE / max(demand.size, SHARE_TOLERANCE))))

    def add(self, group_index: int, demand: GroupDemand, count: int) -> None:
        """Add allocations of the group with this index."""
        self.counts[group_index] += count
        self.cpu -= count * demand.cpu
        self.memory -= count * demand.memory
        self.remaining_cpu -= count * demand.cpu
        self.remaining_memory -= count * demand.memory


PackingRule = Callable[[_ImaginaryNode, GroupDemand], tuple[float, ...]]
"""Returns the sort key of a demand on a node. The demand with the smallest key is placed next."""


def _prefer_largest(_node: _ImaginaryNode, demand: GroupDemand) -> tuple[float, ...]:
    """Return a sort key that prefers the demand with the largest share of a node."""
    return (-demand.size,)


def _prefer_smallest_remainder(node: _ImaginaryNode, demand: GroupDemand) -> tuple[float, ...]:
    """Return a sort key that prefers the demand that leaves the least CPU and memory free on the node.

    Each free share is squared and weighted by how much of the resource is still needed.
    """
    largest_demand = max(node.remaining_cpu, node.remaining_memory, SHARE_TOLERANCE)
    cpu, memory = node.cpu - demand.cpu, node.memory - demand.memory
    return (node.remaining_cpu / largest_demand * cpu**2 + node.remaining_memory / largest_demand * memory**2,)


def _prefer_least_stranded_scarce(node: _ImaginaryNode, demand: GroupDemand) -> tuple[float, ...]:
    """Return a sort key that prefers the demand that wastes the least of the scarcer resource.

    The scarcer resource is the one of CPU and memory of which the allocations that are still to be placed need
    more. The part of it that would stay free on the node is wasted if those allocations cannot use it, because
    the other resource runs out first. Example: 0.3 of the memory is free, but no CPU.
    """
    cpu, memory = node.remaining_cpu - demand.cpu, node.remaining_memory - demand.memory
    scarce_demand, other_demand = (cpu, memory) if cpu >= memory else (memory, cpu)
    if scarce_demand <= SHARE_TOLERANCE:
        return (0.0, -demand.size)
    free_scarce, free_other = node.cpu - demand.cpu, node.memory - demand.memory
    if memory > cpu:
        free_scarce, free_other = free_other, free_scarce
    usable = min(
        free_scarce / scarce_demand, free_other / other_demand if other_demand > SHARE_TOLERANCE else float("inf")
    )
    return (round(free_scarce - usable * scarce_demand, WASTE_DIGITS), -demand.size)


def _prefer_least_stranded_both(node: _ImaginaryNode, demand: GroupDemand) -> tuple[float, ...]:
    """Return a sort key that prefers the demand that wastes the least of CPU and memory together.

    A free share of one resource is wasted if the allocations that are still to be placed cannot use it, because
    the other resource runs out first. Each wasted share is weighted by how much of the resource is still needed.
    """
    cpu, memory = node.remaining_cpu - demand.cpu, node.remaining_memory - demand.memory
    largest_demand = max(cpu, memory)
    if largest_demand <= SHARE_TOLERANCE:
        return (0.0, -demand.size)
    free_cpu, free_memory = node.cpu - demand.cpu, node.memory - demand.memory
    usable = min(
        free / remaining_demand
        for free, remaining_demand in ((free_cpu, cpu), (free_memory, memory))
        if remaining_demand > SHARE_TOLERANCE
    )
    stranded = (free_cpu - usable * cpu) * cpu + (free_memory - usable * memory) * memory
    return (round(stranded / largest_demand, WASTE_DIGITS), -demand.size)


PACKING_RULES: Final[tuple[PackingRule, ...]] = (
    _prefer_largest,
    _prefer_smallest_remainder,
    _prefer_least_stranded_scarce,
    _prefer_least_stranded_both,
)


def order_groups_for_fleet(
    fleet: Fleet, is_considered: Mask, groups: Sequence[TaskGroup], counts: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the placement order for nodes of median size. `is_considered` masks the fleet rows."""
    rows = np.flatnonzero(is_considered)
    if len(groups) < 2 or not len(rows):
        return list(enumerate(counts))
    cpu, memory = max(1.0, float(np.median(fleet.cpu[rows]))), max(1.0, float(np.median(fleet.memory[rows])))
    demands = map(get_group_demand, groups)
    return order_groups([
        GroupDemand(count, demand.cpu / cpu, demand.memory_mb / memory)
        for count, demand in zip(counts, demands, strict=True)
    ])  # fmt: skip


def order_groups(groups: Sequence[GroupDemand]) -> list[tuple[int, int]]:
    """Return group indexes and counts in placement order. Demands larger than a node come first."""
    members: dict[tuple[float, float], list[int]] = {}
    for index, demand in enumerate(groups):
        members.setdefault((demand.cpu, demand.memory), []).append(index)
    indexes_by_size = sorted(members.values(), key=lambda indexes: -groups[indexes[0]].size)
    distinct_demands = [
        msgspec.structs.replace(groups[indexes[0]], count=sum(groups[index].count for index in indexes))
        for indexes in indexes_by_size
    ]
    queues = [deque((index, groups[index].count) for index in indexes) for indexes in indexes_by_size]
    return [
        step for index, count in _order_demands(distinct_demands) for step in _take_from_queue(queues[index], count)
    ]


def _take_from_queue(queue: deque[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    """Yield `count` allocations from groups with equal demands, one group after the other."""
    while count:
        index, available = queue.popleft()
        step_count = min(available, count)
        if step_count:
            yield index, step_count
        if available > step_count:
            queue.appendleft((index, available - step_count))
        count -= step_count


def _order_demands(demands: Sequence[GroupDemand]) -> list[tuple[int, int]]:
    """Return demand indexes and counts in placement order. The demands are sorted, largest first."""
    largest_first_order = [(index, demand.count) for index, demand in enumerate(demands)]
    if len(demands) > MAX_KINDS:
        return largest_first_order
    too_large = [(index, demand.count) for index, demand in enumerate(demands) if demand.size > 1]
    fitting = [demand if demand.size <= 1 else msgspec.structs.replace(demand, count=0) for demand in demands]
    fillings = [_fill_nodes(fitting, rule) for rule in PACKING_RULES]
    node_counts = [sum(count for count, _ in nodes) for nodes in fillings]
    lowest_count = min(node_counts)
    if lowest_count == node_counts[0]:
        return largest_first_order
    return too_large + [
        (index, count)
        for number, counts in fillings[node_counts.index(lowest_count)]
        for _ in range(number)
        for index, count in enumerate(counts)
        if count
    ]


def _fill_nodes(groups: Sequence[GroupDemand], rule: PackingRule) -> list[tuple[int, list[int]]]:
    """Pack all groups by the rule. Return how many nodes have each filling, and the count of each group in it."""
    remaining = [group.count for group in groups]
    fillings = []
    while any(remaining):
        filling = _fill_node(groups, remaining, rule)
        number = min(remaining[index] // count for index, count in enumerate(filling) if count)
        fillings.append((number, filling))
        remaining = [count_before - number * count for count_before, count in zip(remaining, filling, strict=True)]
    return fillings


def _fill_node(groups: Sequence[GroupDemand], remaining: Sequence[int], rule: PackingRule) -> list[int]:
    """Fill one imaginary node and return the count of each group on it."""
    remaining_demand = [
        (group.cpu * count, group.memory * count) for group, count in zip(groups, remaining, strict=True)
    ]
    node = _ImaginaryNode(
        1.0,
        1.0,
        [0] * len(groups),
        sum(cpu for cpu, _ in remaining_demand),
        sum(memory for _, memory in remaining_demand),
    )
    while True:
        fitting = [
            index for index, group in enumerate(groups) if node.counts[index] < remaining[index] and node.can_fit(group)
        ]
        if not fitting:
            return node.counts
        index = min(fitting, key=lambda index: rule(node, groups[index]))
        node.add(index, groups[index], node.get_step_count(groups[index], remaining[index] - node.counts[index]))
