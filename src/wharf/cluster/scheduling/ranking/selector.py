"""Chooses the best node for each allocation of one group. All feasible nodes are scored for every placement.

Candidates are taken once, in random order, so that ties are broken at random. A placement changes the row of the chosen
node and the spread counts. Everything else is computed on columns, without a loop over nodes.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import numpy as np

from wharf.cluster.scheduling.feasibility.checker import FEASIBLE, MISSING_VOLUMES, ScreeningResult
from wharf.cluster.scheduling.feasibility.distinct import DistinctConstraints, PlacedSibling
from wharf.cluster.scheduling.fleet.columns import Codes, Floats, Ints, Mask
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.fleet.fleet import MISSING_CODE
from wharf.cluster.scheduling.ranking import metrics
from wharf.cluster.scheduling.ranking.batch_fill import BatchFill
from wharf.cluster.scheduling.ranking.candidates import Candidates
from wharf.cluster.scheduling.ranking.scoring import (
    AFFINITY,
    ANTI_AFFINITY,
    BINPACK,
    DEVICES,
    PENALTY,
    SPREAD,
    UNAVAILABLE_SCORE,
    score_affinities,
    score_node_packing,
    score_packing,
)
from wharf.cluster.scheduling.ranking.seeded_random import SeededRandom
from wharf.cluster.scheduling.ranking.spread import SpreadClasses, SpreadCount, build_spread_counts
from wharf.cluster.scheduling.reconcile.names import parse_index
from wharf.cluster.scheduling.resources.assignment import InsufficientResources, ResourceAssigner
from wharf.cluster.scheduling.resources.devices import list_device_requests, score_best_devices
from wharf.cluster.scheduling.resources.usage import Usage, get_group_demand, get_resources_usage
from wharf.contract.model.allocations.metrics import AllocMetric, NodeScore
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.operator.scheduler_configuration import SchedulerAlgorithm

MAX_SINGLE_RESCORES: Final = 4
"""If more spread values than this change their boost, all nodes are scored again at once instead of value by value."""

VolumeCheck = Callable[[Node, int], bool]
"""Checks whether a node has the volumes that the allocation with this index requests."""


class PlacementRules(msgspec.Struct, frozen=True):
    """Placement options of the cluster or of the job's node pool."""

    algorithm: str = SchedulerAlgorithm.BINPACK
    can_oversubscribe: bool = False


class NodePreferences(msgspec.Struct, frozen=True):
    """One allocation that needs a node.

    Nodes in `avoided_node_ids` get a lower score because the allocation failed there. `preferred_node_id` is tried
    first.
    """

    allocation_name: str
    avoided_node_ids: tuple[str, ...] = ()
    preferred_node_id: str = ""


class NodeChoice(msgspec.Struct, frozen=True):
    """The chosen node and the resources that the allocation is assigned there."""

    node: Node
    resources: AllocatedResources
    metric: AllocMetric
    score: float = 0.0


def has_job_anti_affinity(job: Job, rules: PlacementRules) -> bool:
    """Return whether siblings on a node lower its score (ADR 61).

    Finite jobs gain nothing from separate nodes. With bin packing, anti-affinity would leave all nodes half empty.
    """
    return job.type != JobType.BATCH or rules.algorithm == SchedulerAlgorithm.SPREAD


class NodeSelector:
    """Chooses nodes for the allocations of one group in one evaluation, one after the other."""

    def __init__(
        self,
        draft: FleetDraft,
        screened: ScreeningResult,
        job: Job,
        group: TaskGroup,
        *,
        rules: PlacementRules,
        random: SeededRandom,
        siblings: Iterable[PlacedSibling] = (),
        volume_check: VolumeCheck | None = None,
    ) -> None:
        self._draft = draft
        self._fleet = draft.fleet
        self._screened = screened
        self._job = job
        self._group = group
        self._rules = rules
        self._random = random
        self._volume_check = volume_check
        self._assigner = ResourceAssigner(group, can_oversubscribe=rules.can_oversubscribe)
        self._demand = get_group_demand(group)
        self._failure: AllocMetric | None = None
        self._failure_count = 0
        self._metric: AllocMetric | None = None
        self.rows: Ints = random.shuffle_values(np.flatnonzero(screened.feasible))
        self._candidates = Candidates(draft, self.rows, self._assigner, self._demand)
        self._seen_changes = len(draft.changed_rows)
        self._has_anti_affinity = has_job_anti_affinity(job, rules)
        is_on_every_node = job.type in (JobType.SYSTEM, JobType.SYSBATCH)
        self._distinct_constraints = DistinctConstraints(
            self._fleet, job, group, should_check_hosts=not is_on_every_node
        )
        self._spreads: list[SpreadCount] = build_spread_counts(job, group, self._fleet)
        self._spread_code_columns: list[Codes] = [spread.column.codes[self.rows] for spread in self._spreads]
        self._sibling_counts: Ints = np.zeros(len(self.rows), dtype=np.int64)
        self._count_siblings(siblings)
        self._compute_scores()

    # -- preparation -------------------------------------------------------------------------------------------------

    def _count_siblings(self, siblings: Iterable[PlacedSibling]) -> None:
        """Count the allocations of the job that are already placed."""
        siblings = list(siblings)
        self._distinct_constraints.count_siblings(siblings)
        group_rows = [sibling.row for sibling in siblings if sibling.group == self._group.name]
        if self._has_anti_affinity and group_rows:
            by_row = np.bincount(np.asarray(group_rows, dtype=np.int64), minlength=len(self._fleet))
            self._sibling_counts += by_row[self.rows]
        for spread in self._spreads:
            for row in group_rows:
                spread.count_allocation(row)

    def _compute_scores(self) -> None:
        """Compute the score columns of all candidates."""
        candidates = self._candidates
        self._packing_scores = score_packing(
            candidates.cpu, candidates.cpu_after, candidates.memory, candidates.memory_after, self._rules.algorithm
        )
        self._fixed_scores: dict[str, Floats] = {}
        device_requests = [request for _task, request in list_device_requests(self._group)]
        if any(request.affinities for request in device_requests):
            examples = [score_best_devices(node, device_requests) for node in self._fleet.kind_examples]
            self._fixed_scores[DEVICES] = np.asarray(examples)[self._fleet.kind[self.rows]]
        affinities = [*(self._job.affinities or ()), *(self._group.affinities or ())]
        affinities += [affinity for task in self._group.tasks or () for affinity in task.affinities or ()]
        if affinities:
            self._fixed_scores[AFFINITY] = score_affinities(self._fleet, self.rows, affinities)
        self._fixed_score_sum: Floats = np.zeros(len(self.rows))
        for scores in self._fixed_scores.values():
            self._fixed_score_sum += scores
        self._score_sums: Floats = self._packing_scores + self._fixed_score_sum
        self._part_counts: Floats = np.full(len(self.rows), 1.0 + len(self._fixed_scores))
        if self._sibling_counts.any():
            collided = self._sibling_counts > 0
            self._score_sums += np.where(collided, -(self._sibling_counts + 1) / max(1, self._group.count), 0.0)
            self._part_counts += collided
        self._is_available: Mask = candidates.has_capacity.copy()
        self._is_available[list(candidates.missing_dimensions)] = False
        self._plain_scores: Floats = self._score_sums / self._part_counts
        self._plain_scores[~self._is_available] = UNAVAILABLE_SCORE
        """The scores without spread, reschedule penalties and distinct constraints."""

    def _rescore_node(self, position: int) -> None:
        """Compute the score of one candidate again after an allocation was added or removed there."""
        candidates = self._candidates
        packing = score_node_packing(
            int(candidates.cpu[position]),
            int(candidates.cpu_after[position]),
            int(candidates.memory[position]),
            int(candidates.memory_after[position]),
            self._rules.algorithm,
        )
        collisions = int(self._sibling_counts[position])
        total, part_count = packing + float(self._fixed_score_sum[position]), 1.0 + len(self._fixed_scores)
        if collisions:
            total, part_count = total - (collisions + 1) / max(1, self._group.count), part_count + 1
        is_available = bool(candidates.has_capacity[position]) and position not in candidates.missing_dimensions
        self._packing_scores[position], self._score_sums[position], self._part_counts[position] = (
            packing,
            total,
            part_count,
        )
        self._is_available[position] = is_available
        self._plain_scores[position] = total / part_count if is_available else UNAVAILABLE_SCORE

    # -- changes by other selectors ----------------------------------------------------------------------------------

    def count_sibling(self, neighbour: PlacedSibling, sign: int = 1) -> None:
        """Count one more, or with `sign=-1` one fewer, allocation of the job on a node."""
        self._distinct_constraints.count_siblings((neighbour,), sign)
        if neighbour.group != self._group.name:
            return
        for spread in self._spreads:
            spread.count_allocation(neighbour.row, sign)
        position = self._candidates.find_position(neighbour.row)
        if position is not None:
            self._sibling_counts[position] += sign * self._has_anti_affinity
            self._rescore_node(position)

    def _catch_up(self) -> None:
        """Refresh the rows that other selectors of this evaluation changed."""
        for row in self._draft.changed_rows[self._seen_changes :]:
            position = self._candidates.find_position(row)
            if position is not None:
                self._candidates.refresh_node(position)
                self._rescore_node(position)
        self._seen_changes = len(self._draft.changed_rows)

    # -- choosing ----------------------------------------------------------------------------------------------------

    def choose_node(self, preferences: NodePreferences) -> NodeChoice | None:
        """Choose the best node and record the placement in the draft.

        Return `None` if no node can take the allocation. `failure_metric` then says why.
        """
        if self._failure is not None and self._volume_check is None:
            self._failure_count += 1  # A sibling with the same requirements found no node, so this one will not either.
            return None
        self._catch_up()
        scores = self._compute_preferred_scores(preferences)
        if preferences.preferred_node_id:
            position = self._find_position(preferences.preferred_node_id)
            if position is not None and scores[position] > UNAVAILABLE_SCORE:
                chosen = self._assign(position, scores, preferences)
                if chosen is not None:
                    return chosen
                scores[position] = UNAVAILABLE_SCORE
        while len(scores):
            best = int(scores.argmax())
            if scores[best] == UNAVAILABLE_SCORE:
                break
            chosen = self._assign(best, scores, preferences)
            if chosen is not None:
                return chosen
            scores[best] = UNAVAILABLE_SCORE
        self._failure = self._build_failure_metric(preferences)
        self._failure_count += 1
        return None

    def choose_nodes(self, max_count: int) -> list[NodeChoice]:
        """Choose nodes for up to `max_count` more allocations like the one that was chosen before.

        Each choice equals what `choose_node` returns without avoided and preferred nodes. Returns fewer choices if
        capacity runs out, and none if the group needs checks that only `choose_node` makes.
        """
        metric, resources = self._metric, self._assigner.shared_resources
        if metric is None or resources is None or self._distinct_constraints or self._volume_check is not None:
            return []
        self._catch_up()
        fill = BatchFill(
            self._candidates,
            self._demand,
            fixed_scores=self._fixed_score_sum,
            collisions=self._sibling_counts,
            fixed_part_count=len(self._fixed_scores),
            group_count=self._group.count,
            has_anti_affinity=self._has_anti_affinity,
            algorithm=self._rules.algorithm,
        )
        if self._spreads:
            self._fill_with_spread(fill, max_count)
        else:
            fill.place_best(self._plain_scores, max_count)
        self._write_back(fill)
        rows, fleet = self.rows[[position for position, _ in fill.choices]].tolist(), self._fleet
        return [
            NodeChoice(fleet.get_node(row), resources, metric, score)
            for row, (_, score) in zip(rows, fill.choices, strict=True)
        ]

    def _fill_with_spread(self, fill: BatchFill, max_count: int) -> None:
        """Choose nodes one by one and rescore only the nodes whose own row or spread boost changed."""
        spread_classes = SpreadClasses(self._spreads, self._spread_code_columns)
        total, part_counts = np.where(self._is_available, self._score_sums, UNAVAILABLE_SCORE), self._part_counts.copy()
        scores: Floats = np.empty(0)
        boosts: Floats = np.empty(0)
        for _ in range(max_count):
            before, boosts = boosts, spread_classes.compute_boosts()
            moved = np.flatnonzero(boosts != before) if len(before) else spread_classes.class_codes
            if len(moved) > MAX_SINGLE_RESCORES or not len(before):
                boost = boosts[spread_classes.class_codes]
                scores = (total + boost) / (part_counts + (boost != 0))
            else:
                for class_code in {*moved.tolist(), int(spread_classes.class_codes[fill.choices[-1][0]])}:
                    positions, class_boost = spread_classes.list_members(class_code), boosts[class_code]
                    scores[positions] = (total[positions] + class_boost) / (part_counts[positions] + (class_boost != 0))
            position = int(scores.argmax())
            score = float(scores[position])
            if score == UNAVAILABLE_SCORE:
                return
            node_fill = fill.place_one(position, score)
            total[position], part_counts[position] = (
                node_fill.score_sum if node_fill.is_available else UNAVAILABLE_SCORE,
                node_fill.part_count,
            )
            row = int(self.rows[position])
            for spread in self._spreads:
                spread.count_allocation(row)

    def _write_back(self, fill: BatchFill) -> None:
        """Update the columns as if each allocation had been placed alone."""
        filled = fill.list_filled_nodes()
        if not filled:
            return
        positions = np.asarray([position for position, _ in filled], dtype=np.int64)
        node_fills = [node_fill for _, node_fill in filled]
        placed_counts = np.asarray([node_fill.placed_count for node_fill in node_fills], dtype=np.int64)
        self._draft.add_amounts(self.rows[positions], placed_counts, self._demand)
        self._seen_changes = len(self._draft.changed_rows)
        self._candidates.refresh_nodes(positions)
        self._sibling_counts[positions] += placed_counts * self._has_anti_affinity
        self._packing_scores[positions] = [node_fill.packing_score for node_fill in node_fills]
        self._score_sums[positions] = [node_fill.score_sum for node_fill in node_fills]
        self._part_counts[positions] = [node_fill.part_count for node_fill in node_fills]
        self._is_available[positions] = [node_fill.is_available for node_fill in node_fills]
        self._plain_scores[positions] = [node_fill.score for node_fill in node_fills]

    def try_node(self, node: Node, preferences: NodePreferences) -> NodeChoice | None:
        """Place the allocation on this node or nowhere, for jobs that run on every node.

        A failure says nothing about other nodes.
        """
        self._catch_up()
        position = self._find_position(node.id)
        if position is None:
            return None
        scores = self._compute_preferred_scores(preferences)
        return None if scores[position] == UNAVAILABLE_SCORE else self._assign(position, scores, preferences)

    def score_node(self, node: Node, preferences: NodePreferences) -> float | None:
        """Return the score of the node for one more allocation, or `None` if the node cannot take it."""
        self._catch_up()
        position = self._find_position(node.id)
        score = UNAVAILABLE_SCORE if position is None else float(self._compute_preferred_scores(preferences)[position])
        return None if score == UNAVAILABLE_SCORE else score

    @property
    def failure_metric(self) -> AllocMetric | None:
        """Why allocations could not be placed, or `None` if nothing failed."""
        return None if self._failure is None else metrics.coalesce_failures(self._failure, self._failure_count)

    def explain_node_failure(self, node: Node) -> AllocMetric:
        """Return the metric of one node that could not take the allocation."""
        position = self._find_position(node.id)
        is_full = (
            position is not None
            and not self._explain_distinct(position)
            and bool(self._candidates.find_shortage(position))
        )
        return metrics.build_node_metric(node, self._job, self.find_obstacle(node), is_filtered=not is_full)

    def explain_failure(self) -> AllocMetric:
        """Return the metric of all nodes when none can take the allocation."""
        return self._build_failure_metric()

    def find_obstacle(self, node: Node) -> str:
        """Return why the node cannot take one more allocation now, or an empty text.

        The text is a feasibility reason or the dimension that is exhausted.
        """
        self._catch_up()
        row = self._fleet.row_by_node_id.get(node.id, MISSING_CODE)
        if row == MISSING_CODE:
            return "node is gone"
        position = self._find_position(node.id)
        if position is None:
            code = int(self._screened.reason_codes[row])
            return self._screened.reasons.values[code] if code > FEASIBLE else "not ready"
        return self._explain_distinct(position) or self._candidates.find_shortage(position)

    def is_infeasible(self, node: Node) -> bool:
        """Return whether the node can never run the group, whether or not it is full."""
        return self._find_position(node.id) is None

    def list_full_rows(self) -> Ints:
        """Return the rows that lack only CPU, memory or disk for one more allocation."""
        self._catch_up()
        able = ~self._candidates.has_capacity & (self._candidates.free_slots > 0)
        able[list(self._candidates.missing_dimensions)] = False
        if self._distinct_constraints:
            able &= self._distinct_constraints.mask_allowed(self.rows)
        rows: Ints = self.rows[able]
        return rows

    @property
    def demand(self) -> Usage:
        """What one allocation of the group uses."""
        return self._demand

    def _find_position(self, node_id: str) -> int | None:
        """Return the candidate position of the node, or `None`."""
        return self._candidates.find_position(self._fleet.row_by_node_id.get(node_id))

    def _explain_distinct(self, position: int) -> str:
        """Return the distinct constraint that excludes this candidate, or an empty text."""
        return self._distinct_constraints.explain_row(int(self.rows[position])) if self._distinct_constraints else ""

    def _compute_preferred_scores(self, preferences: NodePreferences) -> Floats:
        """Return the scores for this allocation. Without its own preferences they are the shared plain scores."""
        avoided = [
            position for position in map(self._find_position, preferences.avoided_node_ids) if position is not None
        ]
        if not (avoided or self._spreads or self._distinct_constraints or self._volume_check):
            return self._plain_scores
        total, part_count = self._score_sums, self._part_counts
        if self._spreads:
            boost = self._compute_boost_column()
            total, part_count = total + boost, part_count + (boost != 0)
        if avoided:
            total, part_count = total.copy(), part_count.copy()
            total[avoided] -= 1
            part_count[avoided] += 1
        is_available = self._is_available
        if self._distinct_constraints:
            is_available = is_available & self._distinct_constraints.mask_allowed(self.rows)
        if self._volume_check is not None:
            is_available = is_available & self._mask_nodes_with_volumes(preferences)
        scores: Floats = np.where(is_available, total / part_count, UNAVAILABLE_SCORE)
        return scores

    def _compute_boost_column(self) -> Floats:
        """Return the sum of all spread boosts for each candidate."""
        boost: Floats = np.zeros(len(self.rows))
        for spread, codes in zip(self._spreads, self._spread_code_columns, strict=True):
            boost += spread.compute_boosts()[codes]
        return boost

    def _mask_nodes_with_volumes(self, preferences: NodePreferences) -> Mask:
        """Return which candidates have the volumes that this allocation requests by its index."""
        check, index = self._volume_check, parse_index(preferences.allocation_name)
        assert check is not None, "called only if volumes are requested by index"
        found = [check(self._fleet.get_node(int(row)), index) for row in self.rows]
        return np.asarray(found, dtype=np.bool_)

    def _assign(self, position: int, scores: Floats, preferences: NodePreferences) -> NodeChoice | None:
        """Assign resources on the candidate and record the placement.

        Return `None` if the node lacks ports, cores or devices.
        """
        row, score = int(self.rows[position]), float(scores[position])
        node = self._fleet.get_node(row)
        try:
            resources = self._assigner.assign_resources(
                node, self._draft.get_exclusive_resources(row), self._random.draw_below
            )
        except InsufficientResources as shortage:
            self._candidates.missing_dimensions[position] = shortage.dimension
            self._rescore_node(position)
            return None
        metric = self._get_metric(scores, preferences)
        usage = self._demand if self._assigner.has_only_amounts else get_resources_usage(resources)
        self._draft.add_allocation(row, resources, usage)
        self._seen_changes = len(self._draft.changed_rows)
        self._candidates.refresh_node(position)
        self.count_sibling(PlacedSibling(row, self._group.name))
        return NodeChoice(node, resources, metric, score)

    # -- metrics -----------------------------------------------------------------------------------------------------

    def _get_metric(self, scores: Floats, preferences: NodePreferences) -> AllocMetric:
        """Return the placement metric. Siblings share the metric of the first one, unless they avoid nodes."""
        if self._metric is not None and not preferences.avoided_node_ids:
            return self._metric
        avoided = {self._find_position(node_id) for node_id in preferences.avoided_node_ids}
        boost = self._compute_boost_column() if self._spreads else None

        def build_node_score(position: int, score: float) -> NodeScore:
            sibling_count = int(self._sibling_counts[position])
            parts = {BINPACK: float(self._packing_scores[position])}
            parts |= {name: float(column[position]) for name, column in self._fixed_scores.items()}
            parts[ANTI_AFFINITY] = -(sibling_count + 1) / max(1, self._group.count) if sibling_count else 0.0
            parts[PENALTY] = -1.0 if position in avoided else 0.0
            if boost is not None:
                parts[SPREAD] = float(boost[position])
            return NodeScore(node_id=self._fleet.get_node(int(self.rows[position])).id, scores=parts, norm_score=score)

        metric = metrics.add_scores(
            metrics.build_screening_metric(self._fleet, self._screened, self._job), scores, build_node_score
        )
        if not preferences.avoided_node_ids:
            self._metric = metric
        return metric

    def _build_failure_metric(self, preferences: NodePreferences | None = None) -> AllocMetric:
        """Return the metric that says what each candidate lacks."""

        def explain(position: int) -> str:
            check, row = self._volume_check, int(self.rows[position])
            if (
                preferences is not None
                and check is not None
                and not check(self._fleet.get_node(row), parse_index(preferences.allocation_name))
            ):
                return MISSING_VOLUMES
            return self._explain_distinct(position)

        metric = metrics.build_screening_metric(self._fleet, self._screened, self._job)
        explain_candidate = explain if self._distinct_constraints or self._volume_check is not None else None
        return metrics.add_failure_reasons(metric, self._fleet, self._candidates, self._group, explain_candidate)
