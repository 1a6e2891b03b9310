"""The best node for each allocation of one group: all nodes that can are scored, every time.

The nodes that can are taken once, in an order that chance gives (so equals are chosen by chance); a placement touches the
one row that it chose, and what it does to the spread. Nothing here loops over nodes.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import numpy as np

from wharf.model.allocated_resources import AllocatedResources
from wharf.model.group import TaskGroup
from wharf.model.job import Job, JobType
from wharf.model.metric import AllocMetric, NodeScore
from wharf.model.node import Node
from wharf.model.scheduler_configuration import SchedulerAlgorithm
from wharf.scheduling import telling
from wharf.scheduling.candidates import Candidates
from wharf.scheduling.chance import Chance
from wharf.scheduling.columns import Codes, Floats, Ints, Mask
from wharf.scheduling.devices import asked_devices, best_affinity
from wharf.scheduling.distinct import Distinctions, Neighbour
from wharf.scheduling.draft import Draft
from wharf.scheduling.feasibility import FINE, MISSING_VOLUMES, Screened
from wharf.scheduling.filling import Filling
from wharf.scheduling.fleet import NOWHERE
from wharf.scheduling.granting import Grants, Refused
from wharf.scheduling.reconcile.names import index_of
from wharf.scheduling.scoring import (
    AFFINITY,
    ANTI_AFFINITY,
    BINPACK,
    DEVICES,
    NEVER,
    PENALTY,
    SPREAD,
    affinities,
    packing,
    packing_of_one,
)
from wharf.scheduling.spreading import Alike, SpreadCount, spread_counts
from wharf.scheduling.usage import Usage, demand_of, usage_of_resources

FEW: Final = 4
"""So many values whose boost moved are worked out one by one; of more, all nodes at once."""

HasVolumes = Callable[[Node, int], bool]
"""Whether the node has the volumes that the allocation of this index asks for by its index."""


class Rules(msgspec.Struct, frozen=True):
    """How the cluster, or the job's pool, wants nodes to be chosen."""

    algorithm: str = SchedulerAlgorithm.BINPACK
    may_oversubscribe: bool = False


class Place(msgspec.Struct, frozen=True):
    """One allocation to be placed. `avoid`: nodes where it failed before; `prefer`: the node to be tried alone first."""

    name: str
    avoid: tuple[str, ...] = ()
    prefer: str = ""


class Chosen(msgspec.Struct, frozen=True):
    """A node, and what the allocation gets there."""

    node: Node
    resources: AllocatedResources
    metric: AllocMetric
    score: float = 0.0


def keeps_apart(job: Job, rules: Rules) -> bool:
    """Whether siblings on a node speak against it (ADR 61). Work that ends gains nothing from being kept apart, and where
    nodes are to be filled it would leave all of them half empty."""
    return job.type != JobType.BATCH or rules.algorithm == SchedulerAlgorithm.SPREAD


class GroupPlacing:
    """The placements of one group in one evaluation, one after the other."""

    def __init__(
        self,
        draft: Draft,
        screened: Screened,
        job: Job,
        group: TaskGroup,
        *,
        rules: Rules,
        chance: Chance,
        neighbours: Iterable[Neighbour] = (),
        has_volumes: HasVolumes | None = None,
    ) -> None:
        self._draft = draft
        self._fleet = draft.fleet
        self._screened = screened
        self._job = job
        self._group = group
        self._rules = rules
        self._chance = chance
        self._has_volumes = has_volumes
        self._grants = Grants(group, may_oversubscribe=rules.may_oversubscribe)
        self._demand = demand_of(group)
        self._failure: AllocMetric | None = None
        self._failures = 0
        self._metric: AllocMetric | None = None
        self.rows: Ints = chance.shuffled(np.flatnonzero(screened.passing))
        self._candidates = Candidates(draft, self.rows, self._grants, self._demand)
        self._seen = len(draft.touched)
        self._keeps_apart = keeps_apart(job, rules)
        is_on_every_node = job.type in (JobType.SYSTEM, JobType.SYSBATCH)
        self._distinctions = Distinctions(self._fleet, job, group, hosts=not is_on_every_node)
        self._spreads: list[SpreadCount] = spread_counts(job, group, self._fleet)
        self._spread_codes: list[Codes] = [spread.column.codes[self.rows] for spread in self._spreads]
        self._collisions: Ints = np.zeros(len(self.rows), dtype=np.int64)
        self._count_neighbours(neighbours)
        self._score()

    # -- setting out -----------------------------------------------------------------------------------------------

    def _count_neighbours(self, neighbours: Iterable[Neighbour]) -> None:
        those = list(neighbours)
        self._distinctions.count(those)
        siblings = [each.row for each in those if each.group == self._group.name]
        if self._keeps_apart and siblings:
            by_row = np.bincount(np.asarray(siblings, dtype=np.int64), minlength=len(self._fleet))
            self._collisions += by_row[self.rows]
        for spread in self._spreads:
            for row in siblings:
                spread.count(row)

    def _score(self) -> None:
        candidates = self._candidates
        self._packing = packing(
            candidates.cpu, candidates.cpu_with, candidates.memory, candidates.memory_with, self._rules.algorithm
        )
        self._fixed: dict[str, Floats] = {}
        asks = [asked for _task, asked in asked_devices(self._group)]
        if any(asked.affinities for asked in asks):
            examples = [best_affinity(node, asks) for node in self._fleet.kind_examples]
            self._fixed[DEVICES] = np.asarray(examples)[self._fleet.kind[self.rows]]
        wanted = [*(self._job.affinities or ()), *(self._group.affinities or ())]
        wanted += [affinity for task in self._group.tasks or () for affinity in task.affinities or ()]
        if wanted:
            self._fixed[AFFINITY] = affinities(self._fleet, self.rows, wanted)
        self._fixed_total: Floats = np.zeros(len(self.rows))
        for scores in self._fixed.values():
            self._fixed_total += scores
        self._total: Floats = self._packing + self._fixed_total
        self._number: Floats = np.full(len(self.rows), 1.0 + len(self._fixed))
        if self._collisions.any():
            collided = self._collisions > 0
            self._total += np.where(collided, -(self._collisions + 1) / max(1, self._group.count), 0.0)
            self._number += collided
        self._is_open: Mask = candidates.has_room.copy()
        self._is_open[list(candidates.lacking)] = False
        self._plain: Floats = self._total / self._number
        self._plain[~self._is_open] = NEVER
        """The scores as they are without spread, penalties and what must be distinct."""

    def _rescore(self, at: int) -> None:
        """One node, after something came or went there."""
        candidates = self._candidates
        packed = packing_of_one(
            int(candidates.cpu[at]),
            int(candidates.cpu_with[at]),
            int(candidates.memory[at]),
            int(candidates.memory_with[at]),
            self._rules.algorithm,
        )
        collisions = int(self._collisions[at])
        total, number = packed + float(self._fixed_total[at]), 1.0 + len(self._fixed)
        if collisions:
            total, number = total - (collisions + 1) / max(1, self._group.count), number + 1
        is_open = bool(candidates.has_room[at]) and at not in candidates.lacking
        self._packing[at], self._total[at], self._number[at] = packed, total, number
        self._is_open[at] = is_open
        self._plain[at] = total / number if is_open else NEVER

    # -- what others do meanwhile ----------------------------------------------------------------------------------

    def join(self, neighbour: Neighbour, sign: int = 1) -> None:
        """Another allocation of the job came there, or (-1) leaves."""
        self._distinctions.count((neighbour,), sign)
        if neighbour.group != self._group.name:
            return
        for spread in self._spreads:
            spread.count(neighbour.row, sign)
        at = self._candidates.at(neighbour.row)
        if at is not None:
            self._collisions[at] += sign * self._keeps_apart
            self._rescore(at)

    def _catch_up(self) -> None:
        """Rows that others of this evaluation changed."""
        for row in self._draft.touched[self._seen :]:
            at = self._candidates.at(row)
            if at is not None:
                self._candidates.look_again(at)
                self._rescore(at)
        self._seen = len(self._draft.touched)

    # -- choosing --------------------------------------------------------------------------------------------------

    def choose(self, place: Place) -> Chosen | None:
        """The best node, and the draft changed by what is put there. None: no node; `failure` says why."""
        if self._failure is not None and self._has_volumes is None:
            self._failures += 1  # One like it found no node; neither does this.
            return None
        self._catch_up()
        scores = self._scores(place)
        if place.prefer:
            at = self._at(place.prefer)
            if at is not None and scores[at] > NEVER:
                chosen = self._take(at, scores, place)
                if chosen is not None:
                    return chosen
                scores[at] = NEVER
        while len(scores):
            best = int(scores.argmax())
            if scores[best] == NEVER:
                break
            chosen = self._take(best, scores, place)
            if chosen is not None:
                return chosen
            scores[best] = NEVER
        self._failure = self._told_failure(place)
        self._failures += 1
        return None

    def choose_more(self, number: int) -> list[Chosen]:
        """After one was chosen: so many more like it, each as `choose` would choose it with nothing to avoid or to prefer.
        Fewer, where there is no room, or where only `choose` knows: then it is to be asked for the next.
        """
        metric, resources = self._metric, self._grants.shared
        if metric is None or resources is None or self._distinctions or self._has_volumes is not None:
            return []
        self._catch_up()
        filling = Filling(
            self._candidates,
            self._demand,
            fixed=self._fixed_total,
            collisions=self._collisions,
            parts=len(self._fixed),
            count=self._group.count,
            keeps_apart=self._keeps_apart,
            algorithm=self._rules.algorithm,
        )
        if self._spreads:
            self._spread_out(filling, number)
        else:
            filling.take_best(self._plain, number)
        self._write_back(filling)
        rows, nodes = self.rows[[at for at, _score in filling.chosen]].tolist(), self._fleet
        return [
            Chosen(nodes.node(row), resources, metric, score)
            for row, (_at, score) in zip(rows, filling.chosen, strict=True)
        ]

    def _spread_out(self, filling: Filling, number: int) -> None:
        """A placement moves its own row, and with it what speaks for nodes of a few values."""
        alike = Alike(self._spreads, self._spread_codes)
        total, parts = np.where(self._is_open, self._total, NEVER), self._number.copy()
        scores: Floats = np.empty(0)
        boosts: Floats = np.empty(0)
        for _ in range(number):
            before, boosts = boosts, alike.boosts()
            moved = np.flatnonzero(boosts != before) if len(before) else alike.of
            if len(moved) > FEW or not len(before):
                boost = boosts[alike.of]
                scores = (total + boost) / (parts + (boost != 0))
            else:
                for kind in {*moved.tolist(), int(alike.of[filling.chosen[-1][0]])}:
                    places, boost_of_kind = alike.members(kind), boosts[kind]
                    scores[places] = (total[places] + boost_of_kind) / (parts[places] + (boost_of_kind != 0))
            best = int(scores.argmax())
            score = float(scores[best])
            if score == NEVER:
                return
            pile = filling.put(best, score)
            total[best], parts[best] = pile.total if pile.is_open else NEVER, pile.number
            row = int(self.rows[best])
            for spread in self._spreads:
                spread.count(row)

    def _write_back(self, filling: Filling) -> None:
        """The columns as if each had been placed alone."""
        taken = filling.taken()
        if not taken:
            return
        places = np.asarray([at for at, _ in taken], dtype=np.int64)
        piles = [pile for _, pile in taken]
        numbers = np.asarray([pile.taken for pile in piles], dtype=np.int64)
        self._draft.take_amounts(self.rows[places], numbers, self._demand)
        self._seen = len(self._draft.touched)
        self._candidates.look_again_at(places)
        self._collisions[places] += numbers * self._keeps_apart
        self._packing[places] = [pile.packed for pile in piles]
        self._total[places] = [pile.total for pile in piles]
        self._number[places] = [pile.number for pile in piles]
        self._is_open[places] = [pile.is_open for pile in piles]
        self._plain[places] = [pile.score for pile in piles]

    def choose_on(self, node: Node, place: Place) -> Chosen | None:
        """That node and no other: for work that runs on every node. What fails on one says nothing of the next."""
        self._catch_up()
        at = self._at(node.id)
        if at is None:
            return None
        scores = self._scores(place)
        return None if scores[at] == NEVER else self._take(at, scores, place)

    def score_on(self, node: Node, place: Place) -> float | None:
        """How good the node is for one more; None: it cannot take it."""
        self._catch_up()
        at = self._at(node.id)
        score = NEVER if at is None else float(self._scores(place)[at])
        return None if score == NEVER else score

    @property
    def failure(self) -> AllocMetric | None:
        """Why what was left could not be placed; None: nothing failed."""
        return None if self._failure is None else telling.coalesced(self._failure, self._failures)

    def why_not_on(self, node: Node) -> AllocMetric:
        """The metric of one node that could not take it."""
        at = self._at(node.id)
        is_full = at is not None and not self._reason(at) and bool(self._candidates.lack(at))
        return telling.one_node(node, self._job, self.lack(node), is_filtered=not is_full)

    def why_nowhere(self) -> AllocMetric:
        """The metric of all nodes together, where none can take it."""
        return self._told_failure()

    def lack(self, node: Node) -> str:
        """What stands against one node now: a reason of the screening, or a dimension. Empty: nothing."""
        self._catch_up()
        row = self._fleet.row_of.get(node.id, NOWHERE)
        if row == NOWHERE:
            return "node is gone"
        at = self._at(node.id)
        if at is None:
            code = int(self._screened.reason_of[row])
            return self._screened.reasons.values[code] if code > FINE else "not ready"
        return self._reason(at) or self._candidates.lack(at)

    def is_filtered(self, node: Node) -> bool:
        """Whether the node can never run the group as it is now, full or not."""
        return self._at(node.id) is None

    def lacking_room(self) -> Ints:
        """The rows that could take one more, had they more cpu, memory or disk, and lack nothing else."""
        self._catch_up()
        able = ~self._candidates.has_room & (self._candidates.count_room > 0)
        able[list(self._candidates.lacking)] = False
        if self._distinctions:
            able &= self._distinctions.allowed(self.rows)
        rows: Ints = self.rows[able]
        return rows

    @property
    def demand(self) -> Usage:
        return self._demand

    def _at(self, node_id: str) -> int | None:
        return self._candidates.at(self._fleet.row_of.get(node_id))

    def _reason(self, at: int) -> str:
        return self._distinctions.reason(int(self.rows[at])) if self._distinctions else ""

    def _scores(self, place: Place) -> Floats:
        """For this allocation; without anything of its own these are kept from the last."""
        avoided = [at for at in map(self._at, place.avoid) if at is not None]
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
            is_open = is_open & self._distinctions.allowed(self.rows)
        if self._has_volumes is not None:
            is_open = is_open & self._having_volumes(place)
        scores: Floats = np.where(is_open, total / number, NEVER)
        return scores

    def _boost(self) -> Floats:
        boost: Floats = np.zeros(len(self.rows))
        for spread, codes in zip(self._spreads, self._spread_codes, strict=True):
            boost += spread.boosts()[codes]
        return boost

    def _having_volumes(self, place: Place) -> Mask:
        has, index = self._has_volumes, index_of(place.name)
        assert has is not None, "asked only where volumes go by index"
        found = [has(self._fleet.node(int(row)), index) for row in self.rows]
        return np.asarray(found, dtype=np.bool_)

    def _take(self, at: int, scores: Floats, place: Place) -> Chosen | None:
        row, score = int(self.rows[at]), float(scores[at])
        node = self._fleet.node(row)
        try:
            resources = self._grants.grant(node, self._draft.holdings_of(row), self._chance.below)
        except Refused as refused:
            self._candidates.lacking[at] = refused.dimension
            self._rescore(at)
            return None
        metric = self._told(scores, place)
        usage = self._demand if self._grants.is_plain else usage_of_resources(resources)
        self._draft.take(row, resources, usage)
        self._seen = len(self._draft.touched)
        self._candidates.look_again(at)
        self.join(Neighbour(row, self._group.name))
        return Chosen(node, resources, metric, score)

    # -- telling ---------------------------------------------------------------------------------------------------

    def _told(self, scores: Floats, place: Place) -> AllocMetric:
        """Siblings share what was told of the first, unless something was special about them."""
        if self._metric is not None and not place.avoid:
            return self._metric
        avoided = {self._at(node_id) for node_id in place.avoid}
        boost = self._boost() if self._spreads else None

        def shown(at: int, score: float) -> NodeScore:
            collisions = int(self._collisions[at])
            parts = {BINPACK: float(self._packing[at])}
            parts |= {name: float(each[at]) for name, each in self._fixed.items()}
            parts[ANTI_AFFINITY] = -(collisions + 1) / max(1, self._group.count) if collisions else 0.0
            parts[PENALTY] = -1.0 if at in avoided else 0.0
            if boost is not None:
                parts[SPREAD] = float(boost[at])
            return NodeScore(node_id=self._fleet.node(int(self.rows[at])).id, scores=parts, norm_score=score)

        told = telling.with_scores(telling.screening(self._fleet, self._screened, self._job), scores, shown)
        if not place.avoid:
            self._metric = told
        return told

    def _told_failure(self, place: Place | None = None) -> AllocMetric:
        def reason(at: int) -> str:
            has, row = self._has_volumes, int(self.rows[at])
            if place is not None and has is not None and not has(self._fleet.node(row), index_of(place.name)):
                return MISSING_VOLUMES
            return self._reason(at)

        told = telling.screening(self._fleet, self._screened, self._job)
        may_tell = reason if self._distinctions or self._has_volumes is not None else None
        return telling.failing(told, self._fleet, self._candidates, self._group, may_tell)
