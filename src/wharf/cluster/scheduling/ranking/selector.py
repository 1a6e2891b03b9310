"""Chooses the best node for each allocation of one group. All feasible nodes are scored for every placement.

The feasible nodes are listed once, in random order, so that one of several best nodes is chosen at random. A placement
changes the column entries of the chosen node and the spread counts. Scores are computed on numpy columns, without a
loop over nodes.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import msgspec
import numpy as np

from wharf.cluster.scheduling.feasibility.checker import FEASIBLE, MISSING_VOLUMES, ScreeningResult
from wharf.cluster.scheduling.feasibility.distinct import DistinctConstraints, PlacedSibling
from wharf.cluster.scheduling.feasibility.volumes import VolumeCheck
from wharf.cluster.scheduling.fleet.columns import Codes, Floats, Ints, Mask
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.fleet.fleet import MISSING_CODE
from wharf.cluster.scheduling.ranking import metrics
from wharf.cluster.scheduling.ranking.batch_fill import BatchFill
from wharf.cluster.scheduling.ranking.candidates import Candidates
from wharf.cluster.scheduling.ranking.rules import PlacementRules
from wharf.cluster.scheduling.ranking.score_columns import ScoreColumns
from wharf.cluster.scheduling.ranking.scoring import PENALTY, SPREAD, UNAVAILABLE_SCORE
from wharf.cluster.scheduling.ranking.seeded_random import SeededRandom
from wharf.cluster.scheduling.ranking.spread import SpreadClasses, SpreadCount, build_spread_counts
from wharf.cluster.scheduling.resources.assignment import InsufficientResources, ResourceAssigner
from wharf.contract.model.allocations.metrics import AllocMetric, NodeScore
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.resource_usage import Usage, get_group_demand, get_resources_usage

MAX_SINGLE_RESCORES: Final = 4
"""If more spread classes than this change their boost, all nodes are rescored at once instead of class by class."""


class NodeChoice(msgspec.Struct, frozen=True):
    """The node that was chosen for one allocation, and the resources that the allocation is assigned there."""

    node: Node
    resources: AllocatedResources
    metric: AllocMetric
    """How the node was chosen: node counts and the scores of the best nodes."""
    score: float = 0.0
    """The score of the node before this placement; 1 is the best possible score."""


class NodeSelector:
    """Chooses nodes for the allocations of one group in one evaluation, one after the other.

    Each choice is recorded in the draft (the evaluation's copy of the resources in use), so it counts for the next one.
    """

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
        """`screened` says which nodes are feasible for the group. `siblings` are the job's allocations with a node."""
        self._draft = draft
        self._fleet = draft.fleet
        self._screened = screened
        self._job = job
        self._group = group
        self._random = random
        self._volume_check = volume_check
        self._rules = rules
        self._failure: AllocMetric | None = None
        """The metric of the last failed search of `choose_node`. `None`: none has failed."""
        self._failure_count = 0
        """How many calls of `choose_node` have failed."""
        self._is_exhausted = False
        """Whether the last search found no node, and no allocation has left a node since.

        Further calls of `choose_node` then fail without a search.
        """
        self._metric: AllocMetric | None = None
        """The metric that all placements without avoided nodes share. `None`: nothing is placed yet."""
        (rows,) = screened.feasible.nonzero()
        self.rows: Ints = random.shuffle_values(rows) if len(rows) else rows
        """The fleet rows of the candidates (feasible nodes), in random order. The index is the candidate position."""
        if len(rows):
            self._build_columns(rules, siblings)

    # -- preparation -------------------------------------------------------------------------------------------------

    @cached_property
    def _assigner(self) -> ResourceAssigner:
        """Assigns resources to the allocations of the group. Built on first use: without candidates, nobody needs it."""
        return ResourceAssigner(self._group, can_oversubscribe=self._rules.can_oversubscribe)

    @cached_property
    def _demand(self) -> Usage:
        """The CPU, memory and disk that one allocation of the group uses. Computed on first use."""
        return get_group_demand(self._group)

    def _build_columns(self, rules: PlacementRules, siblings: Iterable[PlacedSibling]) -> None:
        """Build the columns of the candidates: resources, scores, distinct constraints and spreads.

        Not called without candidates: a job that no node can run has a metric, and needs no columns.
        """
        draft, job, group = self._draft, self._job, self._group
        self._candidates = Candidates(draft, self.rows, self._assigner, self._demand)
        self._seen_change_count = len(draft.changed_rows)
        """How many entries of the draft's `changed_rows` the columns of this selector take into account."""
        self._seen_freed_count = len(draft.freed_rows)
        """How many entries of the draft's `freed_rows` this selector takes into account."""
        self._seen_departure_count = draft.departure_count
        """How many departures of allocations this selector takes into account."""
        self._columns = ScoreColumns(self._fleet, self._candidates, job, group, rules)
        self._distinct_constraints = DistinctConstraints(
            self._fleet, job, group, should_check_hosts=not job.runs_on_every_node
        )
        self._spreads: list[SpreadCount] = build_spread_counts(job, group, self._fleet)
        self._spread_code_columns: list[Codes] = [spread.column.codes[self.rows] for spread in self._spreads]
        self._count_siblings(siblings)

    def _count_siblings(self, siblings: Iterable[PlacedSibling]) -> None:
        """Count the job's allocations that already have a node, for distinct constraints, anti-affinity and spreads."""
        siblings = list(siblings)
        self._distinct_constraints.count_siblings(siblings)
        group_rows = [sibling.row for sibling in siblings if sibling.group == self._group.name]
        if group_rows:
            by_row = np.bincount(np.asarray(group_rows, dtype=np.int64), minlength=len(self._fleet))
            self._columns.add_siblings(by_row[self.rows])
        for spread in self._spreads:
            for row in group_rows:
                spread.count_allocation(row)

    # -- changes by other selectors ----------------------------------------------------------------------------------

    def count_sibling(self, sibling: PlacedSibling, sign: int = 1) -> None:
        """Count one more, or with `sign=-1` one fewer, allocation of the job on the sibling's node.

        It changes scores and distinct constraints. The resources in use do not change.
        """
        if not len(self.rows):
            return
        if sign < 0:
            self._is_exhausted = False  # A distinct constraint may now allow a node again, also one of the whole job.
        self._distinct_constraints.count_siblings((sibling,), sign)
        if sibling.group != self._group.name:
            return
        for spread in self._spreads:
            spread.count_allocation(sibling.row, sign)
        position = self._candidates.find_position(sibling.row)
        if position is not None:
            self._columns.count_sibling(position, sign)

    def _refresh_changed_nodes(self) -> None:
        """Recompute columns and scores of the candidates whose resources in use changed since the last call.

        They change, for example, when the selector of another group places an allocation on the same node.
        """
        if not len(self.rows):
            return
        for row in self._draft.freed_rows[self._seen_freed_count :]:
            self._is_exhausted = False
            position = self._candidates.find_position(row)
            if position is not None:
                self._candidates.clear_missing_dimension(position)
        self._seen_freed_count = len(self._draft.freed_rows)
        if self._seen_departure_count != self._draft.departure_count:
            self._seen_departure_count = self._draft.departure_count
            self._is_exhausted = False  # Allocations of other groups leave without a call of `count_sibling`.
        for row in self._draft.changed_rows[self._seen_change_count :]:
            position = self._candidates.find_position(row)
            if position is not None:
                self._candidates.refresh_node(position)
                self._columns.rescore_node(position)
        self._seen_change_count = len(self._draft.changed_rows)

    # -- choosing ----------------------------------------------------------------------------------------------------

    def choose_node(self, name: str, *, avoided: Sequence[str] = (), preferred: str = "") -> NodeChoice | None:
        """Choose the best node for the allocation with this name, assign resources there, and record the placement.

        The nodes with the ids in `avoided` get a lower score, because the allocation failed there. The node with the id
        `preferred` is tried first. Return `None` if no node can take the allocation; `failure_metric` then says why.

        The placement is recorded in the draft (the evaluation's copy of the resources in use) and in the scores. After
        a failure, later calls fail without a search until an allocation of the job leaves a node or resources are
        freed, unless volumes depend on the name of the allocation.
        """
        self._refresh_changed_nodes()
        if not len(self.rows):
            if self._failure is None:
                self._failure = self._build_failure_metric(name)
            self._failure_count += 1
            return None
        if self._is_exhausted and self._volume_check is None:
            self._failure_count += 1  # Another allocation of the group found no node, so this one will not either.
            return None
        scores = self._compute_scores_for(name, avoided)
        if preferred:
            position = self._find_position(preferred)
            if position is not None and scores[position] > UNAVAILABLE_SCORE:
                chosen = self._assign(position, scores, avoided)
                if chosen is not None:
                    return chosen
                scores[position] = UNAVAILABLE_SCORE
        while len(scores):
            best = int(scores.argmax())
            if scores[best] == UNAVAILABLE_SCORE:
                break
            chosen = self._assign(best, scores, avoided)
            if chosen is not None:
                return chosen
            scores[best] = UNAVAILABLE_SCORE
        self._failure = self._build_failure_metric(name)
        self._failure_count += 1
        self._is_exhausted = True
        return None

    def choose_nodes(self, max_count: int) -> list[NodeChoice]:
        """Choose nodes for up to `max_count` more allocations of the group, and record the placements.

        Each choice equals what `choose_node` returns without avoided or preferred nodes. The list is shorter if
        capacity runs out. It is empty before the first successful `choose_node`, and if the group requests ports,
        cores, devices, volumes by index or distinct nodes, which only `choose_node` checks.
        """
        metric, resources = self._metric, self._assigner.shared_resources
        if metric is None or resources is None or self._distinct_constraints or self._volume_check is not None:
            return []
        self._refresh_changed_nodes()
        fill = BatchFill(self._candidates, self._columns, self._demand)
        if self._spreads:
            self._fill_with_spread(fill, max_count)
        else:
            fill.place_best(max_count)
        self._write_back(fill)
        rows, fleet = self.rows[[position for position, _ in fill.choices]].tolist(), self._fleet
        return [
            NodeChoice(fleet.get_node(row), resources, metric, score)
            for row, (_, score) in zip(rows, fill.choices, strict=True)
        ]

    def _fill_with_spread(self, fill: BatchFill, max_count: int) -> None:
        """Place up to `max_count` allocations in `fill`, each on the node with the best score, spread boost included.

        A placement changes the score of the chosen node and of nodes whose spread boost changed. All nodes of a spread
        class (nodes with equal values of the spread attributes) have the same boost. So only the classes whose boost
        changed and the class of the chosen node are rescored; if many classes changed, all nodes are.
        """
        spread_classes = SpreadClasses(self._spreads, self._spread_code_columns)
        columns = self._columns
        part_sums, part_counts = (
            np.where(columns.is_available, columns.sums, UNAVAILABLE_SCORE),
            columns.part_counts.copy(),
        )
        scores: Floats = np.empty(0)
        boosts: Floats = np.empty(0)
        for _ in range(max_count):
            old_boosts, boosts = boosts, spread_classes.compute_boosts()
            changed = np.flatnonzero(boosts != old_boosts) if len(old_boosts) else spread_classes.class_codes
            if len(changed) > MAX_SINGLE_RESCORES or not len(old_boosts):
                boost = boosts[spread_classes.class_codes]
                scores = (part_sums + boost) / (part_counts + (boost != 0))
            else:
                for class_code in {*changed.tolist(), int(spread_classes.class_codes[fill.choices[-1][0]])}:
                    positions, class_boost = spread_classes.list_members(class_code), boosts[class_code]
                    scores[positions] = (part_sums[positions] + class_boost) / (
                        part_counts[positions] + (class_boost != 0)
                    )
            position = int(scores.argmax())
            score = float(scores[position])
            if score == UNAVAILABLE_SCORE:
                return
            node_fill = fill.place_on_node(position, score)
            part_sums[position], part_counts[position] = (
                node_fill.score_sum if node_fill.is_available else UNAVAILABLE_SCORE,
                node_fill.part_count,
            )
            row = int(self.rows[position])
            for spread in self._spreads:
                spread.count_allocation(row)

    def _write_back(self, fill: BatchFill) -> None:
        """Write the placements of the batch `fill` to the draft, the candidate columns and the score columns.

        Afterwards all of them are as if `choose_node` had placed each allocation.
        """
        positions, placed_counts = fill.write_scores()
        if len(positions):
            self._draft.add_amounts(self.rows[positions], placed_counts, self._demand)
            self._seen_change_count = len(self._draft.changed_rows)
            self._candidates.refresh_nodes(positions)

    def try_node(self, node: Node, name: str) -> NodeChoice | None:
        """Choose this node for the allocation with this name and record the placement.

        Return `None` if the node cannot take the allocation. For allocations that may run on one node only, such as
        those of system jobs. `failure_metric` does not include the failure, because it says nothing about other nodes.
        """
        self._refresh_changed_nodes()
        position = self._find_position(node.id)
        if position is None:
            return None
        scores = self._compute_scores_for(name)
        return None if scores[position] == UNAVAILABLE_SCORE else self._assign(position, scores)

    def score_node(self, node: Node, name: str) -> float | None:
        """Return the score of the node for an allocation with this name, or `None` if the node cannot take it."""
        self._refresh_changed_nodes()
        position = self._find_position(node.id)
        score = UNAVAILABLE_SCORE if position is None else float(self._compute_scores_for(name)[position])
        return None if score == UNAVAILABLE_SCORE else score

    @property
    def failure_metric(self) -> AllocMetric | None:
        """Why `choose_node` found no node, with the number of failures, or `None` if it has never failed."""
        return None if self._failure is None else metrics.coalesce_failures(self._failure, self._failure_count)

    def explain_node_failure(self, node: Node) -> AllocMetric:
        """Return the metric that says why this node cannot take one more allocation.

        The node counts as exhausted if it only lacks free resources, and as filtered otherwise.
        """
        position = self._find_position(node.id)
        is_full = (
            position is not None
            and not self._explain_distinct(position)
            and bool(self._candidates.find_shortage(position))
        )
        return metrics.build_node_metric(node, self._job, self.find_obstacle(node), is_filtered=not is_full)

    def explain_failure(self) -> AllocMetric:
        """Return the metric that says for all nodes why they cannot take one more allocation. No node can take one."""
        return self._build_failure_metric()

    def find_obstacle(self, node: Node) -> str:
        """Return why the node cannot take one more allocation now, or an empty text.

        The text is a requirement that the node does not meet, such as `missing drivers`, or the dimension that is
        exhausted, such as `cpu`.
        """
        self._refresh_changed_nodes()
        row = self._fleet.row_by_node_id.get(node.id, MISSING_CODE)
        if row == MISSING_CODE:
            return "node is gone"
        position = self._find_position(node.id)
        if position is None:
            code = int(self._screened.reason_codes[row])
            return self._screened.reasons.values[code] if code > FEASIBLE else "not ready"
        return self._explain_distinct(position) or self._candidates.find_shortage(position)

    def is_infeasible(self, node: Node) -> bool:
        """Return whether the node does not meet the requirements of the group, or accepts no placements.

        Free resources do not matter.
        """
        return self._find_position(node.id) is None

    def list_full_rows(self) -> Ints:
        """Return the fleet rows of the nodes that lack only CPU, memory or disk for one more allocation.

        Preemption could free these resources.
        """
        if not len(self.rows):
            return self.rows
        self._refresh_changed_nodes()
        is_full = ~self._candidates.has_capacity & (self._candidates.allocations_left > 0)
        is_full[list(self._candidates.missing_dimensions)] = False
        if self._distinct_constraints:
            is_full &= self._distinct_constraints.mask_allowed(self.rows)
        rows: Ints = self.rows[is_full]
        return rows

    @property
    def demand(self) -> Usage:
        """The CPU, memory and disk that one allocation of the group uses, without the MHz of reserved cores."""
        return self._demand

    def _find_position(self, node_id: str) -> int | None:
        """Return the candidate position of the node with this id, or `None` if it is not a candidate."""
        if not len(self.rows):
            return None
        return self._candidates.find_position(self._fleet.row_by_node_id.get(node_id))

    def _explain_distinct(self, position: int) -> str:
        """Return the reason text of the distinct constraint that excludes this candidate, or an empty text."""
        return self._distinct_constraints.explain_row(int(self.rows[position])) if self._distinct_constraints else ""

    def _compute_scores_for(self, name: str, avoided: Sequence[str] = ()) -> Floats:
        """Return the score of each candidate for the allocation with this name.

        To the score columns it adds spread boosts, a penalty on the nodes with the ids in `avoided`, distinct
        constraints and volumes that depend on the name. If none of them apply, the result is the column of
        `ScoreColumns` itself, not a copy.
        """
        avoided_positions = [position for position in map(self._find_position, avoided) if position is not None]
        if not (avoided_positions or self._spreads or self._distinct_constraints or self._volume_check):
            return self._columns.scores
        part_sums, part_counts = self._columns.sums, self._columns.part_counts
        if self._spreads:
            boost = self._compute_boost_column()
            part_sums, part_counts = part_sums + boost, part_counts + (boost != 0)
        if avoided_positions:
            part_sums, part_counts = part_sums.copy(), part_counts.copy()
            part_sums[avoided_positions] -= 1
            part_counts[avoided_positions] += 1
        is_available = self._columns.is_available
        if self._distinct_constraints:
            is_available = is_available & self._distinct_constraints.mask_allowed(self.rows)
        if self._volume_check is not None:
            is_available = is_available & self._mask_nodes_with_volumes(name)
        scores: Floats = np.where(is_available, part_sums / part_counts, UNAVAILABLE_SCORE)
        return scores

    def _compute_boost_column(self) -> Floats:
        """Return for each candidate the sum of its spread boosts: what spreads add to its score."""
        boost: Floats = np.zeros(len(self.rows))
        for spread, codes in zip(self._spreads, self._spread_code_columns, strict=True):
            boost += spread.compute_boosts()[codes]
        return boost

    def _mask_nodes_with_volumes(self, name: str) -> Mask:
        """Return the mask of the candidates whose nodes have the volumes that the allocation with this name requests.

        The volumes depend on the index in the name: `web[2]`, for example, may request the volume `data[2]`.
        """
        check, index = self._volume_check, parse_index(name)
        assert check is not None, "called only if volumes are requested by index"
        found = [check(self._fleet.get_node(int(row)), index) for row in self.rows]
        return np.asarray(found, dtype=np.bool_)

    def _assign(self, position: int, scores: Floats, avoided: Sequence[str] = ()) -> NodeChoice | None:
        """Assign resources on the candidate at this position, and count the placement in draft, columns and spreads.

        Return `None` if the node lacks ports, cores or devices; they are then recorded as its missing dimension.
        `scores` and `avoided` are those of the allocation, for its metric.
        """
        row, score = int(self.rows[position]), float(scores[position])
        node = self._fleet.get_node(row)
        try:
            resources = self._assigner.assign_resources(
                node, self._draft.get_exclusive_resources(row), self._random.draw_below
            )
        except InsufficientResources as shortage:
            self._candidates.missing_dimensions[position] = shortage.dimension
            self._columns.rescore_node(position)
            return None
        metric = self._get_metric(scores, avoided)
        usage = self._demand if self._assigner.has_only_amounts else get_resources_usage(resources)
        self._draft.add_allocation(row, resources, usage)
        self._seen_change_count = len(self._draft.changed_rows)
        self._candidates.refresh_node(position)
        self.count_sibling(PlacedSibling(row, self._group.name))
        return NodeChoice(node, resources, metric, score)

    # -- metrics -----------------------------------------------------------------------------------------------------

    def _get_metric(self, scores: Floats, avoided: Sequence[str]) -> AllocMetric:
        """Return the metric of a placement: node counts and the scores of the best nodes.

        It is built for the first placement, and all others of the group share it. A placement with nodes in `avoided`
        gets its own.
        """
        if self._metric is not None and not avoided:
            return self._metric
        avoided_positions = {self._find_position(node_id) for node_id in avoided}
        boost = self._compute_boost_column() if self._spreads else None

        def build_node_score(position: int, score: float) -> NodeScore:
            """Return the score of the candidate's node with its parts, as the metric stores it."""
            parts = self._columns.get_parts(position)
            parts[PENALTY] = -1.0 if position in avoided_positions else 0.0
            if boost is not None:
                parts[SPREAD] = float(boost[position])
            return NodeScore(node_id=self._fleet.get_node(int(self.rows[position])).id, scores=parts, norm_score=score)

        metric = metrics.add_scores(
            metrics.build_screening_metric(self._fleet, self._screened, self._job), scores, build_node_score
        )
        if not avoided:
            self._metric = metric
        return metric

    def _build_failure_metric(self, name: str | None = None) -> AllocMetric:
        """Return the metric that says why no node can take the allocation with this name.

        With `name=None`, volumes that depend on the index in the name are not checked.
        """
        metric = metrics.build_screening_metric(self._fleet, self._screened, self._job)
        if not len(self.rows):
            return metric
        index = None if name is None else parse_index(name)

        def explain_exclusion(position: int) -> str:
            """Return why volumes or a distinct constraint exclude the candidate, or an empty text."""
            check, row = self._volume_check, int(self.rows[position])
            if index is not None and check is not None and not check(self._fleet.get_node(row), index):
                return MISSING_VOLUMES
            return self._explain_distinct(position)

        explain_candidate = explain_exclusion if self._distinct_constraints or self._volume_check is not None else None
        return metrics.add_failure_reasons(metric, self._fleet, self._candidates, self._group, explain_candidate)
