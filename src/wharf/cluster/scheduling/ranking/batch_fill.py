"""Places many allocations of one group that need only CPU, memory and disk.

It works on copies of the columns as plain numbers, so that a placement costs a few sums instead of a pass over columns.
The result is written to the columns in one step. The choices equal those made one by one, because the formula is the
same. Ports, cores, devices, distinct hosts and volumes are not supported.
"""

from heapq import heappop, heappush

import numpy as np

from wharf.cluster.scheduling.fleet.columns import Ints
from wharf.cluster.scheduling.ranking.candidates import Candidates
from wharf.cluster.scheduling.ranking.score_columns import ScoreColumns
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
    """Places allocations of one group one after the other, each on the best node."""

    def __init__(self, candidates: Candidates, columns: ScoreColumns, demand: Usage) -> None:
        self._columns = columns
        self._candidate_columns = (
            candidates.cpu, candidates.cpu_after, candidates.memory, candidates.memory_after, candidates.disk,
            candidates.disk_after, candidates.free_slots, columns.sibling_counts,
        )  # fmt: skip
        self._demand = demand
        self._fixed_scores = columns.fixed_sums
        self._fixed_part_count = len(columns.fixed)
        self._group_count = columns.group_count
        self._has_anti_affinity = columns.has_anti_affinity
        self._algorithm = columns.algorithm
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
        """Place one allocation on the node at this candidate position and return the node with its new score.

        `score` is the node's score before the placement. It is stored in `choices`.
        """
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

    def place_best(self, max_count: int) -> None:
        """Place up to `max_count` allocations, each on the node that is then best. Ties go to the first position.

        A node's score changes only when it is chosen. So the best nodes are sorted once, and chosen nodes return
        through a heap.
        """
        scores = self._columns.scores
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

    def write_scores(self) -> tuple[Ints, Ints]:
        """Write the new scores of the chosen nodes to the columns.

        Return their positions, and how many allocations each of them got.
        """
        filled = {position: node_fill for position, node_fill in self.node_fills.items() if node_fill.placed_count}
        node_fills, columns = filled.values(), self._columns
        positions: Ints = np.asarray([*filled], dtype=np.int64)
        placed_counts: Ints = np.asarray([node_fill.placed_count for node_fill in node_fills], dtype=np.int64)
        columns.sibling_counts[positions] += placed_counts * self._has_anti_affinity
        columns.packing[positions] = [node_fill.packing_score for node_fill in node_fills]
        columns.sums[positions] = [node_fill.score_sum for node_fill in node_fills]
        columns.part_counts[positions] = [node_fill.part_count for node_fill in node_fills]
        columns.is_available[positions] = [node_fill.is_available for node_fill in node_fills]
        columns.scores[positions] = [node_fill.score for node_fill in node_fills]
        return positions, placed_counts
