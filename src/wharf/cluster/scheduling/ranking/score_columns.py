"""The scores of the candidates of one group as columns, with the parts of which each score is the mean."""

import numpy as np

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
    """Scores by candidate position, without spread, reschedule penalties and distinct constraints.

    `sibling_counts` are the allocations of the group on each node, or zeros without anti-affinity.
    """

    def __init__(self, fleet: Fleet, candidates: Candidates, job: Job, group: TaskGroup, rules: PlacementRules) -> None:
        self._candidates = candidates
        self.algorithm = rules.algorithm
        self.group_count = max(1, group.count)
        self.has_anti_affinity = has_job_anti_affinity(job, rules)
        size = len(candidates)
        self.sibling_counts: Ints = np.zeros(size, dtype=np.int64)
        self.fixed: dict[str, Floats] = _score_fixed_parts(fleet, candidates.rows, job, group)
        """The parts that placements do not change, by name."""
        self.fixed_sums: Floats = np.zeros(size)
        for scores in self.fixed.values():
            self.fixed_sums += scores
        self.packing: Floats = score_packing(
            candidates.cpu, candidates.cpu_after, candidates.memory, candidates.memory_after, self.algorithm
        )
        self.sums: Floats = self.packing + self.fixed_sums
        self.part_counts: Floats = np.full(size, 1.0 + len(self.fixed))
        self.is_available: Mask = candidates.has_capacity.copy()
        self.is_available[list(candidates.missing_dimensions)] = False
        self.scores: Floats = np.empty(0)
        self._compute_scores()

    def _compute_scores(self) -> None:
        """Compute the mean of the parts for all candidates."""
        self.scores = self.sums / self.part_counts
        self.scores[~self.is_available] = UNAVAILABLE_SCORE

    def add_siblings(self, counts: Ints) -> None:
        """Count the siblings that are placed already, by position. Called once, before any change."""
        if self.has_anti_affinity and counts.any():
            self.sibling_counts += counts
            collided = counts > 0
            self.sums += np.where(collided, -(counts + 1) / self.group_count, 0.0)
            self.part_counts += collided
            self._compute_scores()

    def count_sibling(self, position: int, sign: int) -> None:
        """Count one more, or with `sign=-1` one fewer, sibling on the candidate."""
        self.sibling_counts[position] += sign * self.has_anti_affinity
        self.rescore_node(position)

    def rescore_node(self, position: int) -> None:
        """Compute the score of one candidate again after an allocation was added or removed there."""
        candidates = self._candidates
        packing = score_node_packing(
            int(candidates.cpu[position]),
            int(candidates.cpu_after[position]),
            int(candidates.memory[position]),
            int(candidates.memory_after[position]),
            self.algorithm,
        )
        collisions = int(self.sibling_counts[position])
        total, part_count = packing + float(self.fixed_sums[position]), 1.0 + len(self.fixed)
        if collisions:
            total, part_count = total - (collisions + 1) / self.group_count, part_count + 1
        is_available = bool(candidates.has_capacity[position]) and position not in candidates.missing_dimensions
        self.packing[position], self.sums[position], self.part_counts[position] = packing, total, part_count
        self.is_available[position] = is_available
        self.scores[position] = total / part_count if is_available else UNAVAILABLE_SCORE

    def get_parts(self, position: int) -> dict[str, float]:
        """Return the parts of the candidate's score by name."""
        sibling_count = int(self.sibling_counts[position])
        parts = {BINPACK: float(self.packing[position])}
        parts |= {name: float(column[position]) for name, column in self.fixed.items()}
        parts[ANTI_AFFINITY] = -(sibling_count + 1) / self.group_count if sibling_count else 0.0
        return parts


def _score_fixed_parts(fleet: Fleet, rows: Ints, job: Job, group: TaskGroup) -> dict[str, Floats]:
    """Return the score parts that placements do not change, by name: devices and affinities.

    Each part is a column with one score for each row. A part is left out if the job requests nothing of its kind.
    """
    parts: dict[str, Floats] = {}
    device_requests = [request for _task, request in list_device_requests(group)]
    if any(request.affinities for request in device_requests):
        examples = [score_best_devices(node, device_requests) for node in fleet.kind_examples]
        parts[DEVICES] = np.asarray(examples)[fleet.kind[rows]]
    affinities = [*(job.affinities or ()), *(group.affinities or ())]
    affinities += [affinity for task in group.tasks or () for affinity in task.affinities or ()]
    if affinities:
        parts[AFFINITY] = score_affinities(fleet, rows, affinities)
    return parts
