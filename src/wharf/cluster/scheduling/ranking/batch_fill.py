"""Places many allocations of one group that need only CPU, memory and disk.

It works on plain numbers of its own, so that a placement costs a few sums instead of a pass over columns. The caller
writes the result back in one step. The choices equal those made one by one, because the formula is the same. Ports,
cores, devices, distinct hosts and volumes are not supported.
"""

from heapq import heappop, heappush

from wharf.cluster.scheduling.fleet.columns import Floats, Ints
from wharf.cluster.scheduling.ranking.candidates import Candidates
from wharf.cluster.scheduling.ranking.scoring import UNAVAILABLE_SCORE, find_best_positions, score_node_packing
from wharf.cluster.scheduling.resources.usage import Usage


class NodeFill:
    """One node with the allocations that the batch placed there.

    The fields are the values of its `Candidates` row and the parts of its score.
    """

    __slots__ = (
        "cpu", "cpu_after", "disk", "disk_after", "fixed_score", "free_slots", "is_available", "memory", "memory_after",
        "packing_score", "part_count", "placed_count", "score_sum", "sibling_count",
    )  # fmt: skip

    def __init__(self, *amounts: int, fixed_score: float) -> None:
        self.cpu, self.cpu_after, self.memory, self.memory_after, self.disk, self.disk_after = amounts[:6]
        self.free_slots, self.sibling_count = amounts[6:]
        self.fixed_score = fixed_score
        self.placed_count = 0
        self.packing_score = self.score_sum = self.part_count = 0.0
        self.is_available = True

    @property
    def score(self) -> float:
        """The mean of the score parts, or `UNAVAILABLE_SCORE` if the node is full."""
        return self.score_sum / self.part_count if self.is_available else UNAVAILABLE_SCORE


class BatchFill:
    """Places allocations of one group one after the other, each on the best node.

    `fixed_scores` holds the sum of the parts that placements do not change, by candidate position. `fixed_part_count`
    is the number of these parts.
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
        self._candidate_columns = (
            candidates.cpu, candidates.cpu_after, candidates.memory, candidates.memory_after, candidates.disk,
            candidates.disk_after, candidates.free_slots, collisions,
        )  # fmt: skip
        self._demand = demand
        self._fixed_scores = fixed_scores
        self._fixed_part_count = fixed_part_count
        self._group_count = max(1, group_count)
        self._has_anti_affinity = has_anti_affinity
        self._algorithm = algorithm
        self.node_fills: dict[int, NodeFill] = {}
        """The examined nodes by candidate position."""
        self.choices: list[tuple[int, float]] = []
        """Candidate positions in the order in which they were chosen, each with its score."""

    def load_nodes(self, positions: Ints) -> None:
        """Load the rows of many nodes at once, which is cheaper than one by one."""
        rows = zip(*(column[positions].tolist() for column in self._candidate_columns), strict=True)
        for position, values, fixed in zip(
            positions.tolist(), rows, self._fixed_scores[positions].tolist(), strict=True
        ):
            self.node_fills[position] = NodeFill(*values, fixed_score=fixed)

    def place_one(self, position: int, score: float) -> NodeFill:
        """Place one allocation on the node at this position."""
        node_fill = self.node_fills.get(position)
        if node_fill is None:
            node_fill = NodeFill(
                *(column.item(position) for column in self._candidate_columns),
                fixed_score=self._fixed_scores.item(position),
            )
            self.node_fills[position] = node_fill
        self.choices.append((position, score))
        demand = self._demand
        node_fill.placed_count += 1
        node_fill.sibling_count += self._has_anti_affinity
        node_fill.free_slots -= 1
        node_fill.cpu_after += demand.cpu
        node_fill.memory_after += demand.memory_mb
        node_fill.disk_after += demand.disk_mb
        node_fill.packing_score = score_node_packing(
            node_fill.cpu, node_fill.cpu_after, node_fill.memory, node_fill.memory_after, self._algorithm
        )
        total, number = node_fill.packing_score + node_fill.fixed_score, 1.0 + self._fixed_part_count
        if node_fill.sibling_count:
            total, number = total - (node_fill.sibling_count + 1) / self._group_count, number + 1
        node_fill.score_sum, node_fill.part_count = total, number
        node_fill.is_available = (
            node_fill.cpu_after <= node_fill.cpu
            and node_fill.memory_after <= node_fill.memory
            and node_fill.disk_after <= node_fill.disk
            and node_fill.free_slots > 0
        )
        return node_fill

    def place_best(self, scores: Floats, max_count: int) -> None:
        """Place up to `max_count` allocations, each on the node that is then best. Ties go to the first position.

        A node's score changes only when it is chosen. So the best nodes are sorted once, and chosen nodes return
        through a heap.
        """
        order = find_best_positions(scores, max_count)
        self.load_nodes(order)
        ranked = list(zip((-scores[order]).tolist(), order.tolist(), strict=True))
        reentered: list[tuple[float, int]] = []
        next_rank = 0
        for _ in range(max_count):
            if next_rank < len(ranked) and not (reentered and reentered[0] < ranked[next_rank]):
                negated_score, position = ranked[next_rank]
                next_rank += 1
            elif reentered:
                negated_score, position = heappop(reentered)
            else:
                return
            node_fill = self.place_one(position, -negated_score)
            if node_fill.is_available:
                heappush(reentered, (-node_fill.score, position))

    def list_filled_nodes(self) -> list[tuple[int, NodeFill]]:
        """Return the nodes that were chosen, with their new values."""
        return [(position, node_fill) for position, node_fill in self.node_fills.items() if node_fill.placed_count]
