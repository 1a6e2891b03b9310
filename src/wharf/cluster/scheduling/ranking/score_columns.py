"""The scores of the candidates of one group as columns, with the parts of which each score is the mean."""

import numpy as np

from wharf.cluster.scheduling.constraints import list_group_affinities
from wharf.cluster.scheduling.fleet.columns import Floats, Ints, Mask
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.scheduling.ranking.candidates import Candidates
from wharf.cluster.scheduling.ranking.rules import PlacementRules, has_job_anti_affinity
from wharf.cluster.scheduling.ranking.scoring import (
    AFFINITY,
    ANTI_AFFINITY,
    BINPACK,
    DEVICES,
    UNAVAILABLE_SCORE,
    score_affinities,
    score_node_packing,
    score_packing,
)
from wharf.cluster.scheduling.resources.devices import list_device_requests, score_best_devices
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job


class ScoreColumns:
    """The scores of one group's candidates as columns: numpy arrays with one entry for each candidate position.

    A score is the mean of the parts that apply: packing, anti-affinity and the constant parts, which placements do not
    change. Spread boosts, reschedule penalties and distinct constraints are not included.
    """

    def __init__(self, fleet: Fleet, candidates: Candidates, job: Job, group: TaskGroup, rules: PlacementRules) -> None:
        self._candidates = candidates
        self.algorithm = rules.algorithm
        self.group_count = max(1, group.parallel_count)
        self.has_anti_affinity = has_job_anti_affinity(job, rules)
        """Whether siblings (allocations of the same group) on a node lower its score."""
        size = len(candidates)
        self.sibling_counts: Ints = np.zeros(size, dtype=np.int64)
        """How many allocations of the group each node has. Always 0 without anti-affinity."""
        self.constant_parts: dict[str, Floats] = _score_constant_parts(fleet, candidates.rows, job, group)
        """The score parts that placements do not change (devices and affinities), by name."""
        self.constant_sums: Floats = np.zeros(size)
        """The sum of the constant parts of each candidate."""
        for scores in self.constant_parts.values():
            self.constant_sums += scores
        self.packing: Floats = score_packing(
            candidates.cpu, candidates.cpu_after, candidates.memory, candidates.memory_after, self.algorithm
        )
        """How full each node is with one more allocation, from 0 to 1. With the spread algorithm, how empty."""
        self.sums: Floats = self.packing + self.constant_sums
        """The sum of all score parts of each candidate."""
        self.part_counts: Floats = np.full(size, 1.0 + len(self.constant_parts))
        """The number of score parts that apply to each candidate."""
        self.is_available: Mask = candidates.has_capacity.copy()
        """Whether the node has capacity for one more allocation and is not known to lack ports, cores or devices."""
        self.is_available[list(candidates.missing_dimensions)] = False
        self.scores: Floats = np.empty(0)
        """The mean of the parts, or `UNAVAILABLE_SCORE` (minus infinity) for nodes that are not available."""
        self._compute_scores()

    def _compute_scores(self) -> None:
        """Set `scores`: the mean of the score parts, or `UNAVAILABLE_SCORE` for candidates that are not available."""
        self.scores = self.sums / self.part_counts
        self.scores[~self.is_available] = UNAVAILABLE_SCORE

    def add_siblings(self, counts: Ints) -> None:
        """Count the allocations of the group that already have a node, and lower the scores of their nodes.

        `counts` holds their number for each candidate position. Called once, before any other change. Does nothing if
        siblings do not lower scores.
        """
        if self.has_anti_affinity and counts.any():
            self.sibling_counts += counts
            has_sibling = counts > 0
            self.sums += np.where(has_sibling, -(counts + 1) / self.group_count, 0.0)
            self.part_counts += has_sibling
            self._compute_scores()

    def count_sibling(self, position: int, sign: int) -> None:
        """Count one more, or with `sign=-1` one fewer, allocation of the group on this candidate, and rescore it."""
        self.sibling_counts[position] += sign * self.has_anti_affinity
        self.rescore_node(position)

    def rescore_node(self, position: int) -> None:
        """Recompute the score of the candidate at this position, after its use or its sibling count changed."""
        candidates = self._candidates
        packing = score_node_packing(
            int(candidates.cpu[position]),
            int(candidates.cpu_after[position]),
            int(candidates.memory[position]),
            int(candidates.memory_after[position]),
            self.algorithm,
        )
        sibling_count = int(self.sibling_counts[position])
        part_sum, part_count = packing + float(self.constant_sums[position]), 1.0 + len(self.constant_parts)
        if sibling_count:
            part_sum, part_count = part_sum - (sibling_count + 1) / self.group_count, part_count + 1
        is_available = bool(candidates.has_capacity[position]) and position not in candidates.missing_dimensions
        self.packing[position], self.sums[position], self.part_counts[position] = packing, part_sum, part_count
        self.is_available[position] = is_available
        self.scores[position] = part_sum / part_count if is_available else UNAVAILABLE_SCORE

    def get_parts(self, position: int) -> dict[str, float]:
        """Return the parts of the candidate's score by the name that metrics show, such as `binpack`."""
        sibling_count = int(self.sibling_counts[position])
        parts = {BINPACK: float(self.packing[position])}
        parts |= {name: float(column[position]) for name, column in self.constant_parts.items()}
        parts[ANTI_AFFINITY] = -(sibling_count + 1) / self.group_count if sibling_count else 0.0
        return parts


def _score_constant_parts(fleet: Fleet, rows: Ints, job: Job, group: TaskGroup) -> dict[str, Floats]:
    """Return the score parts that placements do not change, by name: `devices` and `node-affinity`.

    Each part is a column with one score for each row in `rows`. The result has no `devices` if no device request has an
    affinity, and no `node-affinity` if job, group and tasks have none. Devices are scored once for each node kind
    (nodes with equal devices and attributes), because thousands of nodes have few kinds.
    """
    parts: dict[str, Floats] = {}
    device_requests = [request for _task, request in list_device_requests(group)]
    if any(request.affinities for request in device_requests):
        examples = [score_best_devices(node, device_requests) for node in fleet.kind_examples]
        parts[DEVICES] = np.asarray(examples)[fleet.kind[rows]]
    affinities = [*(job.affinities or ()), *list_group_affinities(group)]
    if affinities:
        parts[AFFINITY] = score_affinities(fleet, rows, affinities)
    return parts
