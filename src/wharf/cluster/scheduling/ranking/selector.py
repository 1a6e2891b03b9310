"""The best node for each allocation of one group: all nodes that can are scored, every time.

The nodes that can are taken once, in an order that chance gives (so equals are chosen by chance); a placement touches the
one row that it chose, and what it does to the spread. Nothing here loops over nodes.
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
"""So many values whose boost moved are worked out one by one; of more, all nodes at once."""

VolumeCheck = Callable[[Node, int], bool]
"""Whether the node has the volumes that the allocation of this index asks for by its index."""


class PlacementRules(msgspec.Struct, frozen=True):
    """How the cluster, or the job's pool, wants nodes to be chosen."""

    algorithm: str = SchedulerAlgorithm.BINPACK
    can_oversubscribe: bool = False


class NodePreferences(msgspec.Struct, frozen=True):
    """One allocation to be placed. `avoid`: nodes where it failed before; `prefer`: the node to be tried alone first."""

    allocation_name: str
    avoided_node_ids: tuple[str, ...] = ()
    preferred_node_id: str = ""


class NodeChoice(msgspec.Struct, frozen=True):
    """A node, and what the allocation gets there."""

    node: Node
    resources: AllocatedResources
    metric: AllocMetric
    score: float = 0.0


def has_job_anti_affinity(job: Job, rules: PlacementRules) -> bool:
    """Whether siblings on a node speak against it (ADR 61). Work that ends gains nothing from being kept apart, and where
    nodes are to be filled it would leave all of them half empty."""
    return job.type != JobType.BATCH or rules.algorithm == SchedulerAlgorithm.SPREAD


class NodeSelector:
    """The placements of one group in one evaluation, one after the other."""

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
        self._chance = random
        self._has_volumes = volume_check
        self._grants = ResourceAssigner(group, can_oversubscribe=rules.can_oversubscribe)
        self._demand = get_group_demand(group)
        self._failure: AllocMetric | None = None
        self._failures = 0
        self._metric: AllocMetric | None = None
        self.rows: Ints = random.shuffle_values(np.flatnonzero(screened.feasible))
        self._candidates = Candidates(draft, self.rows, self._grants, self._demand)
        self._seen = len(draft.changed_rows)
        self._keeps_apart = has_job_anti_affinity(job, rules)
        is_on_every_node = job.type in (JobType.SYSTEM, JobType.SYSBATCH)
        self._distinctions = DistinctConstraints(self._fleet, job, group, should_check_hosts=not is_on_every_node)
        self._spreads: list[SpreadCount] = build_spread_counts(job, group, self._fleet)
        self._spread_codes: list[Codes] = [spread.column.codes[self.rows] for spread in self._spreads]
        self._collisions: Ints = np.zeros(len(self.rows), dtype=np.int64)
        self._count_neighbours(siblings)
        self._score()

    # -- setting out -----------------------------------------------------------------------------------------------

    def _count_neighbours(self, neighbours: Iterable[PlacedSibling]) -> None:
        those = list(neighbours)
        self._distinctions.count_siblings(those)
        siblings = [each.row for each in those if each.group == self._group.name]
        if self._keeps_apart and siblings:
            by_row = np.bincount(np.asarray(siblings, dtype=np.int64), minlength=len(self._fleet))
            self._collisions += by_row[self.rows]
        for spread in self._spreads:
            for row in siblings:
                spread.count_allocation(row)

    def _score(self) -> None:
        candidates = self._candidates
        self._packing = score_packing(
            candidates.cpu, candidates.cpu_after, candidates.memory, candidates.memory_after, self._rules.algorithm
        )
        self._fixed: dict[str, Floats] = {}
        asks = [asked for _task, asked in list_device_requests(self._group)]
        if any(asked.affinities for asked in asks):
            examples = [score_best_devices(node, asks) for node in self._fleet.kind_examples]
            self._fixed[DEVICES] = np.asarray(examples)[self._fleet.kind[self.rows]]
        wanted = [*(self._job.affinities or ()), *(self._group.affinities or ())]
        wanted += [affinity for task in self._group.tasks or () for affinity in task.affinities or ()]
        if wanted:
            self._fixed[AFFINITY] = score_affinities(self._fleet, self.rows, wanted)
        self._fixed_total: Floats = np.zeros(len(self.rows))
        for scores in self._fixed.values():
            self._fixed_total += scores
        self._total: Floats = self._packing + self._fixed_total
        self._number: Floats = np.full(len(self.rows), 1.0 + len(self._fixed))
        if self._collisions.any():
            collided = self._collisions > 0
            self._total += np.where(collided, -(self._collisions + 1) / max(1, self._group.count), 0.0)
            self._number += collided
        self._is_open: Mask = candidates.has_capacity.copy()
        self._is_open[list(candidates.missing_dimensions)] = False
        self._plain: Floats = self._total / self._number
        self._plain[~self._is_open] = UNAVAILABLE_SCORE
        """The scores as they are without spread, penalties and what must be distinct."""

    def _rescore(self, at: int) -> None:
        """One node, after something came or went there."""
        candidates = self._candidates
        packed = score_node_packing(
            int(candidates.cpu[at]),
            int(candidates.cpu_after[at]),
            int(candidates.memory[at]),
            int(candidates.memory_after[at]),
            self._rules.algorithm,
        )
        collisions = int(self._collisions[at])
        total, number = packed + float(self._fixed_total[at]), 1.0 + len(self._fixed)
        if collisions:
            total, number = total - (collisions + 1) / max(1, self._group.count), number + 1
        is_open = bool(candidates.has_capacity[at]) and at not in candidates.missing_dimensions
        self._packing[at], self._total[at], self._number[at] = packed, total, number
        self._is_open[at] = is_open
        self._plain[at] = total / number if is_open else UNAVAILABLE_SCORE

    # -- what others do meanwhile ----------------------------------------------------------------------------------

    def count_sibling(self, neighbour: PlacedSibling, sign: int = 1) -> None:
        """Another allocation of the job came there, or (-1) leaves."""
        self._distinctions.count_siblings((neighbour,), sign)
        if neighbour.group != self._group.name:
            return
        for spread in self._spreads:
            spread.count_allocation(neighbour.row, sign)
        at = self._candidates.find_position(neighbour.row)
        if at is not None:
            self._collisions[at] += sign * self._keeps_apart
            self._rescore(at)

    def _catch_up(self) -> None:
        """Rows that others of this evaluation changed."""
        for row in self._draft.changed_rows[self._seen :]:
            at = self._candidates.find_position(row)
            if at is not None:
                self._candidates.refresh_node(at)
                self._rescore(at)
        self._seen = len(self._draft.changed_rows)

    # -- choosing --------------------------------------------------------------------------------------------------

    def choose_node(self, place: NodePreferences) -> NodeChoice | None:
        """The best node, and the draft changed by what is put there. None: no node; `failure` says why."""
        if self._failure is not None and self._has_volumes is None:
            self._failures += 1  # One like it found no node; neither does this.
            return None
        self._catch_up()
        scores = self._scores(place)
        if place.preferred_node_id:
            at = self._at(place.preferred_node_id)
            if at is not None and scores[at] > UNAVAILABLE_SCORE:
                chosen = self._take(at, scores, place)
                if chosen is not None:
                    return chosen
                scores[at] = UNAVAILABLE_SCORE
        while len(scores):
            best = int(scores.argmax())
            if scores[best] == UNAVAILABLE_SCORE:
                break
            chosen = self._take(best, scores, place)
            if chosen is not None:
                return chosen
            scores[best] = UNAVAILABLE_SCORE
        self._failure = self._told_failure(place)
        self._failures += 1
        return None

    def choose_nodes(self, number: int) -> list[NodeChoice]:
        """After one was chosen: so many more like it, each as `choose` would choose it with nothing to avoid or to prefer.
        Fewer, where there is no room, or where only `choose` knows: then it is to be asked for the next.
        """
        metric, resources = self._metric, self._grants.shared_resources
        if metric is None or resources is None or self._distinctions or self._has_volumes is not None:
            return []
        self._catch_up()
        filling = BatchFill(
            self._candidates,
            self._demand,
            fixed_scores=self._fixed_total,
            collisions=self._collisions,
            fixed_part_count=len(self._fixed),
            group_count=self._group.count,
            has_anti_affinity=self._keeps_apart,
            algorithm=self._rules.algorithm,
        )
        if self._spreads:
            self._spread_out(filling, number)
        else:
            filling.place_best(self._plain, number)
        self._write_back(filling)
        rows, nodes = self.rows[[at for at, _score in filling.choices]].tolist(), self._fleet
        return [
            NodeChoice(nodes.get_node(row), resources, metric, score)
            for row, (_at, score) in zip(rows, filling.choices, strict=True)
        ]

    def _spread_out(self, filling: BatchFill, number: int) -> None:
        """A placement moves its own row, and with it what speaks for nodes of a few values."""
        alike = SpreadClasses(self._spreads, self._spread_codes)
        total, parts = np.where(self._is_open, self._total, UNAVAILABLE_SCORE), self._number.copy()
        scores: Floats = np.empty(0)
        boosts: Floats = np.empty(0)
        for _ in range(number):
            before, boosts = boosts, alike.compute_boosts()
            moved = np.flatnonzero(boosts != before) if len(before) else alike.class_codes
            if len(moved) > MAX_SINGLE_RESCORES or not len(before):
                boost = boosts[alike.class_codes]
                scores = (total + boost) / (parts + (boost != 0))
            else:
                for kind in {*moved.tolist(), int(alike.class_codes[filling.choices[-1][0]])}:
                    places, boost_of_kind = alike.list_members(kind), boosts[kind]
                    scores[places] = (total[places] + boost_of_kind) / (parts[places] + (boost_of_kind != 0))
            best = int(scores.argmax())
            score = float(scores[best])
            if score == UNAVAILABLE_SCORE:
                return
            pile = filling.place_one(best, score)
            total[best], parts[best] = pile.total if pile.is_open else UNAVAILABLE_SCORE, pile.number
            row = int(self.rows[best])
            for spread in self._spreads:
                spread.count_allocation(row)

    def _write_back(self, filling: BatchFill) -> None:
        """The columns as if each had been placed alone."""
        taken = filling.list_filled_nodes()
        if not taken:
            return
        places = np.asarray([at for at, _ in taken], dtype=np.int64)
        piles = [pile for _, pile in taken]
        numbers = np.asarray([pile.taken for pile in piles], dtype=np.int64)
        self._draft.add_amounts(self.rows[places], numbers, self._demand)
        self._seen = len(self._draft.changed_rows)
        self._candidates.refresh_nodes(places)
        self._collisions[places] += numbers * self._keeps_apart
        self._packing[places] = [pile.packed for pile in piles]
        self._total[places] = [pile.total for pile in piles]
        self._number[places] = [pile.number for pile in piles]
        self._is_open[places] = [pile.is_open for pile in piles]
        self._plain[places] = [pile.score for pile in piles]

    def try_node(self, node: Node, place: NodePreferences) -> NodeChoice | None:
        """That node and no other: for work that runs on every node. What fails on one says nothing of the next."""
        self._catch_up()
        at = self._at(node.id)
        if at is None:
            return None
        scores = self._scores(place)
        return None if scores[at] == UNAVAILABLE_SCORE else self._take(at, scores, place)

    def score_node(self, node: Node, place: NodePreferences) -> float | None:
        """How good the node is for one more; None: it cannot take it."""
        self._catch_up()
        at = self._at(node.id)
        score = UNAVAILABLE_SCORE if at is None else float(self._scores(place)[at])
        return None if score == UNAVAILABLE_SCORE else score

    @property
    def failure_metric(self) -> AllocMetric | None:
        """Why what was left could not be placed; None: nothing failed."""
        return None if self._failure is None else metrics.coalesce_failures(self._failure, self._failures)

    def explain_node_failure(self, node: Node) -> AllocMetric:
        """The metric of one node that could not take it."""
        at = self._at(node.id)
        is_full = at is not None and not self._reason(at) and bool(self._candidates.find_shortage(at))
        return metrics.build_node_metric(node, self._job, self.find_obstacle(node), is_filtered=not is_full)

    def explain_failure(self) -> AllocMetric:
        """The metric of all nodes together, where none can take it."""
        return self._told_failure()

    def find_obstacle(self, node: Node) -> str:
        """What stands against one node now: a reason of the screening, or a dimension. Empty: nothing."""
        self._catch_up()
        row = self._fleet.row_by_node_id.get(node.id, MISSING_CODE)
        if row == MISSING_CODE:
            return "node is gone"
        at = self._at(node.id)
        if at is None:
            code = int(self._screened.reason_codes[row])
            return self._screened.reasons.values[code] if code > FEASIBLE else "not ready"
        return self._reason(at) or self._candidates.find_shortage(at)

    def is_infeasible(self, node: Node) -> bool:
        """Whether the node can never run the group as it is now, full or not."""
        return self._at(node.id) is None

    def list_full_rows(self) -> Ints:
        """The rows that could take one more, had they more cpu, memory or disk, and lack nothing else."""
        self._catch_up()
        able = ~self._candidates.has_capacity & (self._candidates.free_slots > 0)
        able[list(self._candidates.missing_dimensions)] = False
        if self._distinctions:
            able &= self._distinctions.mask_allowed(self.rows)
        rows: Ints = self.rows[able]
        return rows

    @property
    def demand(self) -> Usage:
        return self._demand

    def _at(self, node_id: str) -> int | None:
        return self._candidates.find_position(self._fleet.row_by_node_id.get(node_id))

    def _reason(self, at: int) -> str:
        return self._distinctions.explain_row(int(self.rows[at])) if self._distinctions else ""

    def _scores(self, place: NodePreferences) -> Floats:
        """For this allocation; without anything of its own these are kept from the last."""
        avoided = [at for at in map(self._at, place.avoided_node_ids) if at is not None]
        if not (avoided or self._spreads or self._distinctions or self._has_volumes):
            return self._plain
        total, number = self._total, self._number
        if self._spreads:
            boost = self._boost()
            total, number = total + boost, number + (boost != 0)
        if avoided:
            total, number = total.copy(), number.copy()
            total[avoided] -= 1
            number[avoided] += 1
        is_open = self._is_open
        if self._distinctions:
            is_open = is_open & self._distinctions.mask_allowed(self.rows)
        if self._has_volumes is not None:
            is_open = is_open & self._having_volumes(place)
        scores: Floats = np.where(is_open, total / number, UNAVAILABLE_SCORE)
        return scores

    def _boost(self) -> Floats:
        boost: Floats = np.zeros(len(self.rows))
        for spread, codes in zip(self._spreads, self._spread_codes, strict=True):
            boost += spread.compute_boosts()[codes]
        return boost

    def _having_volumes(self, place: NodePreferences) -> Mask:
        has, index = self._has_volumes, parse_index(place.allocation_name)
        assert has is not None, "asked only where volumes go by index"
        found = [has(self._fleet.get_node(int(row)), index) for row in self.rows]
        return np.asarray(found, dtype=np.bool_)

    def _take(self, at: int, scores: Floats, place: NodePreferences) -> NodeChoice | None:
        row, score = int(self.rows[at]), float(scores[at])
        node = self._fleet.get_node(row)
        try:
            resources = self._grants.assign_resources(
                node, self._draft.get_exclusive_resources(row), self._chance.draw_below
            )
        except InsufficientResources as refused:
            self._candidates.missing_dimensions[at] = refused.dimension
            self._rescore(at)
            return None
        metric = self._told(scores, place)
        usage = self._demand if self._grants.has_only_amounts else get_resources_usage(resources)
        self._draft.add_allocation(row, resources, usage)
        self._seen = len(self._draft.changed_rows)
        self._candidates.refresh_node(at)
        self.count_sibling(PlacedSibling(row, self._group.name))
        return NodeChoice(node, resources, metric, score)

    # -- telling ---------------------------------------------------------------------------------------------------

    def _told(self, scores: Floats, place: NodePreferences) -> AllocMetric:
        """Siblings share what was told of the first, unless something was special about them."""
        if self._metric is not None and not place.avoided_node_ids:
            return self._metric
        avoided = {self._at(node_id) for node_id in place.avoided_node_ids}
        boost = self._boost() if self._spreads else None

        def shown(at: int, score: float) -> NodeScore:
            collisions = int(self._collisions[at])
            parts = {BINPACK: float(self._packing[at])}
            parts |= {name: float(each[at]) for name, each in self._fixed.items()}
            parts[ANTI_AFFINITY] = -(collisions + 1) / max(1, self._group.count) if collisions else 0.0
            parts[PENALTY] = -1.0 if at in avoided else 0.0
            if boost is not None:
                parts[SPREAD] = float(boost[at])
            return NodeScore(node_id=self._fleet.get_node(int(self.rows[at])).id, scores=parts, norm_score=score)

        told = metrics.add_scores(metrics.build_screening_metric(self._fleet, self._screened, self._job), scores, shown)
        if not place.avoided_node_ids:
            self._metric = told
        return told

    def _told_failure(self, place: NodePreferences | None = None) -> AllocMetric:
        def reason(at: int) -> str:
            has, row = self._has_volumes, int(self.rows[at])
            if (
                place is not None
                and has is not None
                and not has(self._fleet.get_node(row), parse_index(place.allocation_name))
            ):
                return MISSING_VOLUMES
            return self._reason(at)

        told = metrics.build_screening_metric(self._fleet, self._screened, self._job)
        may_tell = reason if self._distinctions or self._has_volumes is not None else None
        return metrics.add_failure_reasons(told, self._fleet, self._candidates, self._group, may_tell)
