"""In which order new work of several groups of one job is placed, so that together it fills nodes (ADR 61).

Each allocation still goes to the node that is best for it: only who comes next is told here. Nodes are imagined to be
empty and alike; they are filled one after the other by a few rules, and the rule that needs the fewest is followed. It
costs a few sums for each kind of imagined node, however many there are of it.
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
"""Sums of shares are no truer than this."""

WASTE_DIGITS: Final = 3
"""Digits to which what is spoilt on a node counts: of those that spoil as much the largest comes first."""


MAX_STEP_SHARE: Final = 0.01
"""What is tiny is imagined by handfuls, each of this share of a node at most: else a node of thousands would take as long as
thousands of nodes."""

MAX_KINDS: Final = 16
"""Of more kinds the largest come first, and that is all: looking for better would take longer than placing."""


class GroupDemand(msgspec.Struct, frozen=True):
    """So many of a group, each with its shares of a node."""

    count: int
    cpu: float
    memory: float

    @property
    def size(self) -> float:
        return max(self.cpu, self.memory)


class _Node(msgspec.Struct):
    """An imagined node: what is free on it, how many of each group it holds, and how much of everything is still to come."""

    cpu: float
    memory: float
    held: list[int]
    cpu_to_come: float
    memory_to_come: float

    def has_room_for(self, asked: GroupDemand) -> bool:
        return asked.cpu <= self.cpu + SHARE_TOLERANCE and asked.memory <= self.memory + SHARE_TOLERANCE

    def handful(self, asked: GroupDemand, left: int) -> int:
        """How many of so many are taken at once."""
        if asked.size > MAX_STEP_SHARE / 2:
            return 1
        shares = ((self.cpu, asked.cpu), (self.memory, asked.memory))
        room = min(
            (int((free + SHARE_TOLERANCE) / share) for free, share in shares if share > SHARE_TOLERANCE), default=left
        )
        return max(1, min(left, room, int(MAX_STEP_SHARE / max(asked.size, SHARE_TOLERANCE))))

    def take(self, at: int, asked: GroupDemand, number: int) -> None:
        self.held[at] += number
        self.cpu -= number * asked.cpu
        self.memory -= number * asked.memory
        self.cpu_to_come -= number * asked.cpu
        self.memory_to_come -= number * asked.memory


PackingRule = Callable[[_Node, GroupDemand], tuple[float, ...]]
"""Who comes next on a node: the least of these."""


def _largest(_node: _Node, asked: GroupDemand) -> tuple[float, ...]:
    return (-asked.size,)


def _nearest(node: _Node, asked: GroupDemand) -> tuple[float, ...]:
    """Who leaves the least, where what is asked for more in all weighs more."""
    most = max(node.cpu_to_come, node.memory_to_come, SHARE_TOLERANCE)
    cpu, memory = node.cpu - asked.cpu, node.memory - asked.memory
    return (node.cpu_to_come / most * cpu**2 + node.memory_to_come / most * memory**2,)


def _sparing(node: _Node, asked: GroupDemand) -> tuple[float, ...]:
    """Who spoils the least of what is scarce: so much stays free that the rest, as it is mixed, cannot use with the other."""
    cpu, memory = node.cpu_to_come - asked.cpu, node.memory_to_come - asked.memory
    scarce, other = (cpu, memory) if cpu >= memory else (memory, cpu)
    if scarce <= SHARE_TOLERANCE:
        return (0.0, -asked.size)
    free_scarce, free_other = node.cpu - asked.cpu, node.memory - asked.memory
    if memory > cpu:
        free_scarce, free_other = free_other, free_scarce
    usable = min(free_scarce / scarce, free_other / other if other > SHARE_TOLERANCE else float("inf"))
    return (round(free_scarce - usable * scarce, WASTE_DIGITS), -asked.size)


def _sparing_both(node: _Node, asked: GroupDemand) -> tuple[float, ...]:
    """Who spoils the least of both, each as far as it is scarce: for what is asked for nearly as much of one as of the other."""
    cpu, memory = node.cpu_to_come - asked.cpu, node.memory_to_come - asked.memory
    most = max(cpu, memory)
    if most <= SHARE_TOLERANCE:
        return (0.0, -asked.size)
    free_cpu, free_memory = node.cpu - asked.cpu, node.memory - asked.memory
    usable = min(free / rest for free, rest in ((free_cpu, cpu), (free_memory, memory)) if rest > SHARE_TOLERANCE)
    spoilt = (free_cpu - usable * cpu) * cpu + (free_memory - usable * memory) * memory
    return (round(spoilt / most, WASTE_DIGITS), -asked.size)


PACKING_RULES: Final[tuple[PackingRule, ...]] = (_largest, _nearest, _sparing, _sparing_both)


def order_groups_for_fleet(
    fleet: Fleet, in_reach: Mask, groups: Sequence[TaskGroup], counts: Sequence[int]
) -> list[tuple[int, int]]:
    """The order for nodes as most of these are."""
    rows = np.flatnonzero(in_reach)
    if len(groups) < 2 or not len(rows):
        return list(enumerate(counts))
    cpu, memory = max(1.0, float(np.median(fleet.cpu[rows]))), max(1.0, float(np.median(fleet.memory[rows])))
    demands = map(get_group_demand, groups)
    return order_groups([
        GroupDemand(count, demand.cpu / cpu, demand.memory_mb / memory)
        for count, demand in zip(counts, demands, strict=True)
    ])  # fmt: skip


def order_groups(groups: Sequence[GroupDemand]) -> list[tuple[int, int]]:
    """Which group comes next with how many, until all have come. What is larger than a node comes first and alone."""
    members: dict[tuple[float, float], list[int]] = {}
    for at, each in enumerate(groups):
        members.setdefault((each.cpu, each.memory), []).append(at)
    largest_first = sorted(members.values(), key=lambda alike: -groups[alike[0]].size)
    kinds = [
        msgspec.structs.replace(groups[alike[0]], count=sum(groups[at].count for at in alike))
        for alike in largest_first
    ]
    queues = [deque((at, groups[at].count) for at in alike) for alike in largest_first]
    return [each for at, number in _order_of_kinds(kinds) for each in _next(queues[at], number)]


def _next(queue: deque[tuple[int, int]], number: int) -> Iterator[tuple[int, int]]:
    """So many of groups that ask for the same, one group after the other."""
    while number:
        at, count = queue.popleft()
        taken = min(count, number)
        if taken:
            yield at, taken
        if count > taken:
            queue.appendleft((at, count - taken))
        number -= taken


def _order_of_kinds(kinds: Sequence[GroupDemand]) -> list[tuple[int, int]]:
    """The same of kinds, of which the largest is the first."""
    plain = [(at, kind.count) for at, kind in enumerate(kinds)]
    if len(kinds) > MAX_KINDS:
        return plain
    too_large = [(at, kind.count) for at, kind in enumerate(kinds) if kind.size > 1]
    fitting = [kind if kind.size <= 1 else msgspec.structs.replace(kind, count=0) for kind in kinds]
    filled = [_fill(fitting, rule) for rule in PACKING_RULES]
    needed = [sum(number for number, _ in nodes) for nodes in filled]
    best = min(needed)
    if best == needed[0]:
        return plain
    return too_large + [
        (at, count)
        for number, held in filled[needed.index(best)]
        for _ in range(number)
        for at, count in enumerate(held)
        if count
    ]


def _fill(groups: Sequence[GroupDemand], rule: PackingRule) -> list[tuple[int, list[int]]]:
    """Kinds of nodes: how many there are of each, and how many of each group one of them holds."""
    left = [each.count for each in groups]
    kinds = []
    while any(left):
        held = _fill_one(groups, left, rule)
        number = min(left[at] // count for at, count in enumerate(held) if count)
        kinds.append((number, held))
        left = [there - number * count for there, count in zip(left, held, strict=True)]
    return kinds


def _fill_one(groups: Sequence[GroupDemand], left: Sequence[int], rule: PackingRule) -> list[int]:
    to_come = [(each.cpu * count, each.memory * count) for each, count in zip(groups, left, strict=True)]
    node = _Node(1.0, 1.0, [0] * len(groups), sum(cpu for cpu, _ in to_come), sum(memory for _, memory in to_come))
    while True:
        fitting = [at for at, each in enumerate(groups) if node.held[at] < left[at] and node.has_room_for(each)]
        if not fitting:
            return node.held
        at = min(fitting, key=lambda each: rule(node, groups[each]))
        node.take(at, groups[at], node.handful(groups[at], left[at] - node.held[at]))
