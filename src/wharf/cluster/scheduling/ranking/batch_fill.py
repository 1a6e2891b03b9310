"""A run of placements of one group that takes nothing but amounts: what each node comes to hold, and its score for one more.

It works on numbers of its own, so a placement costs a few sums and not a round over columns; whoever asked for the run
writes its outcome back in one step. What it chooses is what is chosen one by one: it knows the same formula. It never
looks at what is held one by one, at distinct hosts or at volumes.
"""

from heapq import heappop, heappush

from wharf.cluster.scheduling.fleet.columns import Floats, Ints
from wharf.cluster.scheduling.ranking.candidates import Candidates
from wharf.cluster.scheduling.ranking.scoring import UNAVAILABLE_SCORE, find_best_positions, score_node_packing
from wharf.cluster.scheduling.resources.usage import Usage


class NodeFill:
    """One node with what the run has put there: the columns of `Candidates`, and the parts of the score."""

    __slots__ = (
        "collisions", "count_room", "cpu", "cpu_with", "disk", "disk_with", "fixed", "is_open", "memory", "memory_with",
        "number", "packed", "taken", "total",
    )  # fmt: skip

    def __init__(self, *amounts: int, fixed: float) -> None:
        self.cpu, self.cpu_with, self.memory, self.memory_with, self.disk, self.disk_with = amounts[:6]
        self.count_room, self.collisions = amounts[6:]
        self.fixed = fixed
        self.taken = 0
        self.packed = self.total = self.number = 0.0
        self.is_open = True

    @property
    def score(self) -> float:
        return self.total / self.number if self.is_open else UNAVAILABLE_SCORE


class BatchFill:
    """`fixed`: by place, what neither comes nor goes with a placement; `parts`: how many parts of the score that are always there.
    `count`: of the group; `keeps_apart`: whether siblings on a node speak against it.
    """

    def __init__(
        self,
        candidates: Candidates,
        demand: Usage,
        *,
        fixed_scores: Floats,
        collisions: Ints,
        fixed_part_count: int,
        group_count: int,
        has_anti_affinity: bool,
        algorithm: str,
    ) -> None:
        self._columns = (
            candidates.cpu, candidates.cpu_after, candidates.memory, candidates.memory_after, candidates.disk,
            candidates.disk_after, candidates.free_slots, collisions,
        )  # fmt: skip
        self._demand = demand
        self._fixed = fixed_scores
        self._parts = fixed_part_count
        self._count = max(1, group_count)
        self._keeps_apart = has_anti_affinity
        self._algorithm = algorithm
        self.node_fills: dict[int, NodeFill] = {}
        """By place among the candidates: the nodes that were looked at."""
        self.choices: list[tuple[int, float]] = []
        """Places in the order in which they were taken, each with its score."""

    def load_nodes(self, places: Ints) -> None:
        """Many at once are cheaper than one by one."""
        rows = zip(*(column[places].tolist() for column in self._columns), strict=True)
        for at, amounts, fixed in zip(places.tolist(), rows, self._fixed[places].tolist(), strict=True):
            self.node_fills[at] = NodeFill(*amounts, fixed=fixed)

    def place_one(self, at: int, score: float) -> NodeFill:
        """One more there."""
        pile = self.node_fills.get(at)
        if pile is None:
            pile = NodeFill(*(column.item(at) for column in self._columns), fixed=self._fixed.item(at))
            self.node_fills[at] = pile
        self.choices.append((at, score))
        demand = self._demand
        pile.taken += 1
        pile.collisions += self._keeps_apart
        pile.count_room -= 1
        pile.cpu_with += demand.cpu
        pile.memory_with += demand.memory_mb
        pile.disk_with += demand.disk_mb
        pile.packed = score_node_packing(pile.cpu, pile.cpu_with, pile.memory, pile.memory_with, self._algorithm)
        total, number = pile.packed + pile.fixed, 1.0 + self._parts
        if pile.collisions:
            total, number = total - (pile.collisions + 1) / self._count, number + 1
        pile.total, pile.number = total, number
        pile.is_open = (
            pile.cpu_with <= pile.cpu
            and pile.memory_with <= pile.memory
            and pile.disk_with <= pile.disk
            and pile.count_room > 0
        )
        return pile

    def place_best(self, scores: Floats, number: int) -> None:
        """So many, each on the node that is best then; of equals the one that comes first. A node's score moves only when
        it is taken, so the best are sorted once, and those that were taken come back in a heap.
        """
        order = find_best_positions(scores, number)
        self.load_nodes(order)
        waiting = list(zip((-scores[order]).tolist(), order.tolist(), strict=True))
        taken: list[tuple[float, int]] = []
        following = 0
        for _ in range(number):
            if following < len(waiting) and not (taken and taken[0] < waiting[following]):
                worst, at = waiting[following]
                following += 1
            elif taken:
                worst, at = heappop(taken)
            else:
                return
            pile = self.place_one(at, -worst)
            if pile.is_open:
                heappush(taken, (-pile.score, at))

    def list_filled_nodes(self) -> list[tuple[int, NodeFill]]:
        """The nodes that were taken, with what they hold now."""
        return [(at, pile) for at, pile in self.node_fills.items() if pile.taken]
