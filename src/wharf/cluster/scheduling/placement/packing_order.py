"""The order in which allocations of several groups of one job are placed, so that together they fill nodes (ADR 61).

Each allocation still goes to the node with the best score. Only the order is decided here. The groups are packed on
imaginary, empty and equal nodes by a few rules, and the rule that needs the fewest nodes decides the order. Nodes that
are filled equally are computed once, so the time does not depend on the number of nodes.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from wharf.cluster.scheduling.fleet.columns import Mask
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.resource_usage import get_group_demand

SHARE_TOLERANCE: Final = 1e-9
"""Shares that differ by less than this count as equal, because sums of shares have rounding errors."""

WASTE_DIGITS: Final = 3
"""Decimal digits to which wasted shares are compared. If they are equal, the largest demand comes first."""

MAX_STEP_SHARE: Final = 0.01
"""Limits the time for tiny demands: they are added in steps of up to this share of a node."""

MAX_DIFFERENT_DEMANDS: Final = 16
"""Limits the time of the search: with more different demands, the order is largest first."""


class GroupDemand(msgspec.Struct, frozen=True):
    """How many allocations of a group are needed, and the share of a node that each of them uses."""

    count: int
    """Allocations that are still to be placed."""
    cpu: float
    """Share of a node's CPU: 0.5 is half of it. More than 1: it does not fit on the node."""
    memory: float
    """Share of a node's memory."""

    @property
    def size(self) -> float:
        """The larger of the CPU share and the memory share."""
        return max(self.cpu, self.memory)


class _ImaginaryNode(msgspec.Struct):
    """An imaginary node that is being filled with allocations. All amounts are shares of an empty node."""

    free_cpu: float
    free_memory: float
    counts: list[int]
    """How many allocations of each group are on the node, by group index."""
    remaining_cpu: float
    """What the allocations that are not placed on any node yet need together. It may exceed 1."""
    remaining_memory: float

    def can_fit(self, demand: GroupDemand) -> bool:
        """Return whether one more allocation with this demand fits on the node."""
        return demand.cpu <= self.free_cpu + SHARE_TOLERANCE and demand.memory <= self.free_memory + SHARE_TOLERANCE

    def get_step_count(self, demand: GroupDemand, remaining: int) -> int:
        """Return how many allocations with this demand to add to the node at once; at least 1.

        Large demands are added one by one. Tiny demands are added together, up to `MAX_STEP_SHARE` of the node, as long
        as they fit and as long as `remaining` of them are left.
        """
        if demand.size > MAX_STEP_SHARE / 2:
            return 1
        free_and_requested = ((self.free_cpu, demand.cpu), (self.free_memory, demand.memory))
        fitting = min(
            (int((free + SHARE_TOLERANCE) / share) for free, share in free_and_requested if share > SHARE_TOLERANCE),
            default=remaining,
        )
        return max(1, min(remaining, fitting, int(MAX_STEP_SHARE / max(demand.size, SHARE_TOLERANCE))))

    def add(self, group_index: int, demand: GroupDemand, count: int) -> None:
        """Add `count` allocations of the group with this index to the node, each with this demand."""
        self.counts[group_index] += count
        self.free_cpu -= count * demand.cpu
        self.free_memory -= count * demand.memory
        self.remaining_cpu -= count * demand.cpu
        self.remaining_memory -= count * demand.memory


PackingRule = Callable[[_ImaginaryNode, GroupDemand], tuple[float, ...]]
"""Returns the sort key of a demand on a node. The demand with the smallest key is placed next."""


def _prefer_largest(_node: _ImaginaryNode, demand: GroupDemand) -> tuple[float, ...]:
    """Return a sort key that prefers the demand with the largest share of a node, of CPU or memory."""
    return (-demand.size,)


def _prefer_smallest_remainder(node: _ImaginaryNode, demand: GroupDemand) -> tuple[float, ...]:
    """Return a sort key that prefers the demand that leaves the least CPU and memory free on the node.

    Each free share is squared and weighted by how much of the resource is still needed.
    """
    largest_demand = max(node.remaining_cpu, node.remaining_memory, SHARE_TOLERANCE)
    free_cpu, free_memory = node.free_cpu - demand.cpu, node.free_memory - demand.memory
    return (
        node.remaining_cpu / largest_demand * free_cpu**2 + node.remaining_memory / largest_demand * free_memory**2,
    )


def _prefer_least_waste_of_scarcer_resource(node: _ImaginaryNode, demand: GroupDemand) -> tuple[float, ...]:
    """Return a sort key that prefers the demand that wastes the least of the scarcer resource.

    The scarcer resource is the one of CPU and memory of which the allocations that are still to be placed need
    more. The part of it that would stay free on the node is wasted if those allocations cannot use it, because
    the other resource runs out first. Example: 0.3 of the memory is free, but no CPU.
    """
    needed_cpu, needed_memory = node.remaining_cpu - demand.cpu, node.remaining_memory - demand.memory
    scarcer_demand, other_demand = (
        (needed_cpu, needed_memory) if needed_cpu >= needed_memory else (needed_memory, needed_cpu)
    )
    if scarcer_demand <= SHARE_TOLERANCE:
        return (0.0, -demand.size)
    free_scarcer, free_other = node.free_cpu - demand.cpu, node.free_memory - demand.memory
    if needed_memory > needed_cpu:
        free_scarcer, free_other = free_other, free_scarcer
    # Which part of the remaining allocations still fits on the node, if all of them are reduced equally.
    usable_part = min(
        free_scarcer / scarcer_demand, free_other / other_demand if other_demand > SHARE_TOLERANCE else float("inf")
    )
    return (round(free_scarcer - usable_part * scarcer_demand, WASTE_DIGITS), -demand.size)


def _prefer_least_waste_of_both_resources(node: _ImaginaryNode, demand: GroupDemand) -> tuple[float, ...]:
    """Return a sort key that prefers the demand that wastes the least of CPU and memory together.

    A free share of one resource is wasted if the allocations that are still to be placed cannot use it, because
    the other resource runs out first. Each wasted share is weighted by how much of the resource is still needed.
    """
    needed_cpu, needed_memory = node.remaining_cpu - demand.cpu, node.remaining_memory - demand.memory
    largest_demand = max(needed_cpu, needed_memory)
    if largest_demand <= SHARE_TOLERANCE:
        return (0.0, -demand.size)
    free_cpu, free_memory = node.free_cpu - demand.cpu, node.free_memory - demand.memory
    # Which part of the remaining allocations still fits on the node, if all of them are reduced equally.
    usable_part = min(
        free / remaining_demand
        for free, remaining_demand in ((free_cpu, needed_cpu), (free_memory, needed_memory))
        if remaining_demand > SHARE_TOLERANCE
    )
    weighted_waste = (free_cpu - usable_part * needed_cpu) * needed_cpu + (
        free_memory - usable_part * needed_memory
    ) * needed_memory
    return (round(weighted_waste / largest_demand, WASTE_DIGITS), -demand.size)


PACKING_RULES: Final[tuple[PackingRule, ...]] = (
    _prefer_largest,
    _prefer_smallest_remainder,
    _prefer_least_waste_of_scarcer_resource,
    _prefer_least_waste_of_both_resources,
)
"""All rules are tried. If several need the fewest nodes, the first of them decides the order."""


def order_groups_for_fleet(
    fleet: Fleet, is_considered: Mask, groups: Sequence[TaskGroup], counts: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the order in which to place `counts` allocations of these groups, as pairs of group index and count.

    Example: `[(0, 1), (1, 2)]` means one allocation of the first group, then two of the second. The order is computed
    for nodes with the median CPU and memory of the fleet rows in the mask `is_considered`. With one group or no nodes,
    the groups are placed one after the other.
    """
    rows = np.flatnonzero(is_considered) if len(groups) > 1 else ()
    if not len(rows):
        return list(enumerate(counts))
    cpu, memory = max(1.0, float(np.median(fleet.cpu[rows]))), max(1.0, float(np.median(fleet.memory[rows])))
    demands = map(get_group_demand, groups)
    return order_groups([
        GroupDemand(count, demand.cpu / cpu, demand.memory_mb / memory)
        for count, demand in zip(counts, demands, strict=True)
    ])  # fmt: skip


def order_groups(groups: Sequence[GroupDemand]) -> list[tuple[int, int]]:
    """Return the order in which to place the allocations of these groups, as pairs of group index and count.

    Groups whose allocations use equal shares of a node are treated as one. Allocations larger than a node come first.
    """
    indexes_by_demand: dict[tuple[float, float], list[int]] = {}
    for index, demand in enumerate(groups):
        indexes_by_demand.setdefault((demand.cpu, demand.memory), []).append(index)
    indexes_by_size = sorted(indexes_by_demand.values(), key=lambda indexes: -groups[indexes[0]].size)
    distinct_demands = [
        msgspec.structs.replace(groups[indexes[0]], count=sum(groups[index].count for index in indexes))
        for indexes in indexes_by_size
    ]
    queues = [deque((index, groups[index].count) for index in indexes) for indexes in indexes_by_size]
    return [
        step for index, count in _order_demands(distinct_demands) for step in _take_from_queue(queues[index], count)
    ]


def _take_from_queue(queue: deque[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    """Remove `count` allocations from the queue, and yield them as pairs of group index and count.

    The queue holds such pairs for groups with equal demands. They are used one after the other; of the last one, the
    rest returns to the queue. Example: 3 from `[(0, 2), (4, 5)]` yields `(0, 2)` and `(4, 1)`, and leaves `[(4, 4)]`.
    """
    while count:
        index, available = queue.popleft()
        step_count = min(available, count)
        if step_count:
            yield index, step_count
        if available > step_count:
            queue.appendleft((index, available - step_count))
        count -= step_count


def _order_demands(demands: Sequence[GroupDemand]) -> list[tuple[int, int]]:
    """Return the order in which to place allocations with these different demands, as pairs of demand index and count.

    The demands are sorted, largest first. This is also the order if no packing rule needs fewer nodes, or if there are
    too many demands for a search. Otherwise the order fills one node after the other, as the best rule does.
    """
    largest_first_order = [(index, demand.count) for index, demand in enumerate(demands)]
    if len(demands) > MAX_DIFFERENT_DEMANDS:
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
        for node_count, counts in fillings[node_counts.index(lowest_count)]
        for _ in range(node_count)
        for index, count in enumerate(counts)
        if count
    ]


def _fill_nodes(groups: Sequence[GroupDemand], rule: PackingRule) -> list[tuple[int, list[int]]]:
    """Pack the allocations of all groups on imaginary nodes by this rule.

    Return pairs: a number of nodes that are filled equally, and how many allocations of each group one of them holds. A
    filling is repeated as long as enough allocations of each of its groups remain.
    """
    remaining = [group.count for group in groups]
    fillings = []
    while any(remaining):
        filling = _fill_node(groups, remaining, rule)
        node_count = min(remaining[index] // count for index, count in enumerate(filling) if count)
        fillings.append((node_count, filling))
        remaining = [old_count - node_count * count for old_count, count in zip(remaining, filling, strict=True)]
    return fillings


def _fill_node(groups: Sequence[GroupDemand], remaining: Sequence[int], rule: PackingRule) -> list[int]:
    """Fill one empty imaginary node by this rule, and return how many allocations of each group it holds.

    `remaining` is how many allocations of each group are still to be placed.
    """
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
