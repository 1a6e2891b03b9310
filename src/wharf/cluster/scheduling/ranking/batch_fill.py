"""Places many allocations of one group that need only CPU, memory and disk.

It works on copies of the columns as plain numbers, so that a placement costs a few sums instead of a pass over columns.
At the end, the result is written to the columns. The choices equal those of single placements, because the score
formula is the same. Ports, cores, devices, distinct hosts and volumes are not supported.
"""

from heapq import heappop, heappush

import numpy as np

from wharf.cluster.scheduling.fleet.columns import Ints
from wharf.cluster.scheduling.ranking.candidates import Candidates
from wharf.cluster.scheduling.ranking.score_columns import ScoreColumns
from wharf.cluster.scheduling.ranking.scoring import UNAVAILABLE_SCORE, find_best_positions, score_node_packing
from wharf.contract.model.resource_usage import Usage


class NodeFill:
    """A candidate node in a batch: its capacity, its use with one more allocation, and the parts of its score.

    All fields are plain numbers, copied from the columns of `Candidates` and `ScoreColumns`, because single numbers are
    faster to change than entries of numpy arrays. CPU is in MHz, memory and disk are in MB.
    """

    __slots__ = (
        "allocations_left", "constant_score", "cpu", "cpu_after", "disk", "disk_after", "is_available", "memory",
        "memory_after", "packing_score", "part_count", "placed_count", "score_sum", "sibling_count",
    )  # fmt: skip

    def __init__(self, *amounts: int, constant_score: float) -> None:
        # `cpu` is the capacity of the node, `cpu_after` the CPU in use with one more allocation of the group.
        self.cpu, self.cpu_after, self.memory, self.memory_after, self.disk, self.disk_after = amounts[:6]
        self.allocations_left, self.sibling_count = amounts[6:]
        """How many more allocations the node's limit admits, and how many allocations of the group it has."""
        self.constant_score = constant_score
        """The sum of the score parts that placements do not change, such as affinities."""
        self.placed_count = 0
        """How many allocations the batch has placed on the node."""
        self.packing_score = self.score_sum = self.part_count = 0.0
        """How full the node is, from 0 to 1; the sum of all score parts; and the number of these parts."""
        self.is_available = True
        """Whether one more allocation fits."""

    @property
    def score(self) -> float:
        """The node's score for the next allocation: the mean of the score parts.

        `UNAVAILABLE_SCORE` (minus infinity) if no further allocation fits.
        """
        return self.score_sum / self.part_count if self.is_available else UNAVAILABLE_SCORE


class BatchFill:
    """Places allocations of one group one after the other, each on the node with the best score at that time.

    It counts on plain numbers (`NodeFill`). The columns do not change until `write_scores` is called.
    """

    def __init__(self, candidates: Candidates, columns: ScoreColumns, demand: Usage) -> None:
        """`demand` is the CPU, memory and disk that one allocation of the group uses."""
        self._columns = columns
        self._candidate_columns = (
            candidates.cpu, candidates.cpu_after, candidates.memory, candidates.memory_after, candidates.disk,
            candidates.disk_after, candidates.allocations_left, columns.sibling_counts,
        )  # fmt: skip
        self._demand = demand
        self._constant_scores = columns.constant_sums
        self._constant_part_count = len(columns.constant_parts)
        self._group_count = columns.group_count
        self._has_anti_affinity = columns.has_anti_affinity
        self._algorithm = columns.algorithm
        self.node_fills: dict[int, NodeFill] = {}
        """The loaded nodes by candidate position, with and without new allocations."""
        self.choices: list[tuple[int, float]] = []
        """Candidate positions in the order in which they were chosen, each with its score."""

    def load_nodes(self, positions: Ints) -> None:
        """Create the `NodeFill` of each candidate in `positions`.

        It reads each column once for all nodes, which is cheaper than reading every column for each node.
        """
        rows = zip(*(column[positions].tolist() for column in self._candidate_columns), strict=True)
        for position, values, constant_score in zip(
            positions.tolist(), rows, self._constant_scores[positions].tolist(), strict=True
        ):
            self.node_fills[position] = NodeFill(*values, constant_score=constant_score)

    def place_on_node(self, position: int, score: float) -> NodeFill:
        """Place one allocation on the candidate at this position and return its `NodeFill` with the new score.

        `score` is the node's score before the placement; it is recorded in `choices` with the position. A node that is
        not in `node_fills` yet is loaded first. The caller has checked that the allocation fits.
        """
        node_fill = self.node_fills.get(position)
        if node_fill is None:
            node_fill = NodeFill(
                *(column.item(position) for column in self._candidate_columns),
                constant_score=self._constant_scores.item(position),
            )
            self.node_fills[position] = node_fill
        self.choices.append((position, score))
        demand = self._demand
        node_fill.placed_count += 1
        node_fill.sibling_count += self._has_anti_affinity
        node_fill.allocations_left -= 1
        node_fill.cpu_after += demand.cpu
        node_fill.memory_after += demand.memory_mb
        node_fill.disk_after += demand.disk_mb
        node_fill.packing_score = score_node_packing(
            node_fill.cpu, node_fill.cpu_after, node_fill.memory, node_fill.memory_after, self._algorithm
        )
        score_sum, part_count = node_fill.packing_score + node_fill.constant_score, 1.0 + self._constant_part_count
        if node_fill.sibling_count:
            score_sum, part_count = score_sum - (node_fill.sibling_count + 1) / self._group_count, part_count + 1
        node_fill.score_sum, node_fill.part_count = score_sum, part_count
        node_fill.is_available = (
            node_fill.cpu_after <= node_fill.cpu
            and node_fill.memory_after <= node_fill.memory
            and node_fill.disk_after <= node_fill.disk
            and node_fill.allocations_left > 0
        )
        return node_fill

    def place_best(self, max_count: int) -> None:
        """Place up to `max_count` allocations, each on the candidate with the best score at that time.

        Of equal scores, the lowest position wins. It places fewer allocations if capacity runs out.

        A placement changes only the score of the chosen node. So the best nodes are sorted once (`ranked`). A chosen
        node that still has capacity enters a heap (`chosen_before`) with its new score. The next node is the better of
        two: the next one in `ranked` and the top of the heap. Scores are negated, because a heap returns its minimum.
        """
        scores = self._columns.scores
        best_positions = find_best_positions(scores, max_count)
        self.load_nodes(best_positions)
        ranked = list(zip((-scores[best_positions]).tolist(), best_positions.tolist(), strict=True))
        chosen_before: list[tuple[float, int]] = []
        next_rank = 0
        for _ in range(max_count):
            if next_rank < len(ranked) and not (chosen_before and chosen_before[0] < ranked[next_rank]):
                negated_score, position = ranked[next_rank]
                next_rank += 1
            elif chosen_before:
                negated_score, position = heappop(chosen_before)
            else:
                return
            node_fill = self.place_on_node(position, -negated_score)
            if node_fill.is_available:
                heappush(chosen_before, (-node_fill.score, position))

    def write_scores(self) -> tuple[Ints, Ints]:
        """Write the new scores of the nodes that got allocations to the score columns, with sibling counts and parts.

        Return two arrays of equal length: the candidate positions of these nodes, and how many allocations the batch
        placed on each.
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
