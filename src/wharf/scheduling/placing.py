"""The best node for each allocation of one group: all nodes that can are scored, every time.

The nodes that can are taken once, in an order that chance gives (so equals are chosen by chance); a placement touches the
one row that it chose, and what it does to the spread. Nothing here loops over nodes.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from wharf.model.allocated_resources import AllocatedResources
from wharf.model.allocation import Allocation
from wharf.model.group import TaskGroup
from wharf.model.job import Job
from wharf.model.metric import AllocMetric, NodeScore
from wharf.model.node import Node
from wharf.model.placement import Constraint, Operand
from wharf.model.resources import Resources
from wharf.model.scheduler_configuration import SchedulerAlgorithm
from wharf.scheduling.chance import Chance
from wharf.scheduling.columns import Codes, Floats, Ints, Mask
from wharf.scheduling.devices import asked_devices, best_affinity
from wharf.scheduling.draft import Draft
from wharf.scheduling.feasibility import FINE, Screened
from wharf.scheduling.fleet import NOWHERE, Property
from wharf.scheduling.granting import Grants, Refused, core_mhz, usable_cores
from wharf.scheduling.operands import asks_for_distinct_hosts
from wharf.scheduling.ports import static_ports
from wharf.scheduling.scoring import (
    AFFINITY,
    ANTI_AFFINITY,
    BINPACK,
    DEVICES,
    PENALTY,
    SPREAD,
    affinities,
    packing,
    packing_of_one,
)
from wharf.scheduling.spreading import SpreadCount, spreads_of
from wharf.scheduling.usage import Usage, demand_of, usage_of_resources

SHOWN: Final = 5
"""Scores kept in a metric: those of the best nodes."""

DISTINCT_HOSTS: Final = "distinct_hosts"
NEVER: Final = -np.inf


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


class Neighbours(msgspec.Struct, frozen=True):
    """Where the job's own allocations are, by row: of all its groups, and of this one. One entry for each of them."""

    of_job: Sequence[int] = ()
    of_group: Sequence[int] = ()


class _Distinct:
    """A `distinct_property`: how many allocations each value has, and may have."""

    def __init__(self, constraint: Constraint, column: Property, there: Iterable[int]) -> None:
        self.constraint = constraint
        self.column = column
        self.allowed = int(constraint.r_target) if constraint.r_target.isdigit() else 1
        self.used = np.zeros(len(column.words) + 1, dtype=np.int64)
        for row in there:
            self.used[column.codes[row]] += 1
        self.used[NOWHERE] = self.allowed  # Whoever does not have the property has no room.

    def may_take(self, rows: Ints) -> Mask:
        mask: Mask = self.used[self.column.codes[rows]] < self.allowed
        return mask

    def reason(self, row: int) -> str:
        code = int(self.column.codes[row])
        if code == NOWHERE:
            return f'missing property "{self.constraint.l_target}"'
        value = self.column.words.values[code]
        return f"distinct_property: {self.constraint.l_target}={value} used by {self.used[code]} allocs"


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
        neighbours: Neighbours = Neighbours(),  # noqa: B008  # frozen
    ) -> None:
        self._draft = draft
        self._fleet = draft.fleet
        self._screened = screened
        self._job = job
        self._group = group
        self._rules = rules
        self._chance = chance
        self._grants = Grants(group, may_oversubscribe=rules.may_oversubscribe)
        self._demand = demand_of(group)
        self._failure: AllocMetric | None = None
        self._metric: AllocMetric | None = None
        self.rows: Ints = chance.shuffled(np.flatnonzero(screened.passing))
        self._place_of_row = {int(row): place for place, row in enumerate(self.rows)} if len(self.rows) < 64 else None
        self._gather()
        self._ask_about_neighbours(neighbours)
        self._score()

    # -- setting out -----------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        fleet, draft, rows, demand = self._fleet, self._draft, self.rows, self._demand
        self._cpu, self._memory = fleet.cpu[rows], fleet.memory[rows]
        self._cpu_asked: Ints = np.full(len(rows), demand.cpu, dtype=np.int64)
        self._lacking: dict[int, str] = {}
        """By place: what the node has not got, of what only it could tell."""
        if self._grants.cores_asked:
            self._ask_for_cores()
        self._cpu_with = draft.cpu_used[rows] + self._cpu_asked
        self._memory_with = draft.memory_used[rows] + demand.memory_mb
        self._disk_with = draft.disk_used[rows] + demand.disk_mb
        self._disk = fleet.disk[rows]
        most = fleet.count_most[rows]
        self._count_room = np.where(most > 0, most - draft.count[rows], np.iinfo(np.int64).max)
        self._has_room: Mask = (
            (self._cpu_with <= self._cpu)
            & (self._memory_with <= self._memory)
            & (self._disk_with <= self._disk)
            & (self._count_room > 0)
        )
        for port in static_ports(self._grants.networks):
            self._rule_out_holders(port)

    def _ask_for_cores(self) -> None:
        for place, row in enumerate(self.rows):
            node = self._fleet.node(int(row))
            free = [core for core in usable_cores(node) if core not in self._draft.holdings_of(int(row)).cores]
            wanted = free[: self._grants.cores_asked]
            if len(wanted) < self._grants.cores_asked:
                self._lacking[place] = "cores"
            self._cpu_asked[place] += sum(core_mhz(node, core) for core in wanted)

    def _rule_out_holders(self, port: int) -> None:
        """A quick look that may leave a node in that has no such port free; whoever is chosen is asked exactly."""
        holders = list(self._draft.rows_holding_port(port))
        if not holders:
            return
        for place in np.flatnonzero(np.isin(self.rows, holders)):
            if not self._has_several_addresses(int(place)):
                self._lacking.setdefault(int(place), f"network: reserved port collision {self._label_of(port)}={port}")

    def _has_several_addresses(self, place: int) -> bool:
        resources = self._fleet.node(int(self.rows[place])).node_resources
        networks = (resources.node_networks if resources is not None else None) or ()
        return sum(len(network.addresses or ()) for network in networks) > 1

    def _label_of(self, number: int) -> str:
        ports = [port for network in self._grants.networks for port in network.reserved_ports or ()]
        return next(port.label for port in ports if port.value == number)

    def _ask_about_neighbours(self, neighbours: Neighbours) -> None:
        size = len(self._fleet)
        of_group = np.bincount(np.asarray(neighbours.of_group, dtype=np.int64), minlength=size)
        self._collisions: Ints = of_group[self.rows]
        own = [*(self._group.constraints or ()), *(c for t in self._group.tasks or () for c in t.constraints or ())]
        self._distinct_hosts: Mask | None = None
        self._is_alone_wanted = False
        for constraints, there in ((self._job.constraints or (), neighbours.of_job), (own, neighbours.of_group)):
            if any(c.operand == Operand.DISTINCT_HOSTS and asks_for_distinct_hosts(c.r_target) for c in constraints):
                mask = np.ones(size, dtype=np.bool_)
                mask[np.asarray(there, dtype=np.int64)] = False
                taken = mask[self.rows]
                self._distinct_hosts = taken if self._distinct_hosts is None else self._distinct_hosts & taken
        self._distinct = [
            _Distinct(constraint, self._fleet.property(constraint.l_target), there)
            for constraints, there in ((self._job.constraints or (), neighbours.of_job), (own, neighbours.of_group))
            for constraint in constraints
            if constraint.operand == Operand.DISTINCT_PROPERTY
        ]
        spreads = spreads_of(self._job, self._group)
        weights = sum(spread.weight for spread in spreads)
        self._spreads = [
            SpreadCount(
                spread,
                self._fleet.property(spread.attribute),
                count=self._group.count,
                weight_share=spread.weight / weights if weights else 0.0,
            )
            for spread in spreads
        ]
        for spread in self._spreads:
            for row in neighbours.of_group:
                code = int(spread.column.codes[row])
                if code != NOWHERE:
                    spread.add(spread.column.words.values[code])
        self._spread_codes = [spread.column.codes[self.rows] for spread in self._spreads]

    def _score(self) -> None:
        rules = self._rules
        self._packing = packing(self._cpu, self._cpu_with, self._memory, self._memory_with, rules.algorithm)
        self._fixed: dict[str, Floats] = {}
        asks = [asked for _task, asked in asked_devices(self._group)]
        if any(asked.affinities for asked in asks):
            examples = [best_affinity(node, asks) for node in self._fleet.kind_examples]
            self._fixed[DEVICES] = np.asarray(examples)[self._fleet.kind[self.rows]]
        tasks = self._group.tasks or ()
        wanted = [*(self._job.affinities or ()), *(self._group.affinities or ())]
        wanted += [affinity for task in tasks for affinity in task.affinities or ()]
        if wanted:
            self._fixed[AFFINITY] = affinities(self._fleet, self.rows, wanted)
        anti = self._anti_affinity()
        total: Floats = np.asarray(self._packing + anti, dtype=np.float64)
        for scores in self._fixed.values():
            total += scores
        self._total = total
        self._number: Floats = np.asarray(1.0 + len(self._fixed) + (self._collisions > 0), dtype=np.float64)
        self._is_open: Mask = self._has_room.copy()
        self._is_open[list(self._lacking)] = False
        if self._distinct_hosts is not None:
            self._is_open &= self._distinct_hosts
        self._plain: Floats = np.where(self._is_open, self._total / self._number, NEVER)
        """The scores as they are without spread and penalties."""

    def _anti_affinity(self) -> Floats:
        count = max(1, self._group.count)
        anti: Floats = np.where(self._collisions > 0, -(self._collisions + 1) / count, 0.0)
        return anti

    # -- choosing --------------------------------------------------------------------------------------------------

    def choose(self, place: Place) -> Chosen | None:
        """The best node, and the draft changed by what is put there. None: no node; `failure` says why."""
        if self._failure is not None:
            self._failure = msgspec.structs.replace(
                self._failure, coalesced_failures=self._failure.coalesced_failures + 1
            )
            return None
        scores = self._scores(place)
        if place.prefer:
            at = self._at(place.prefer)
            if at is not None and scores[at] > NEVER:
                chosen = self._take(at, scores)
                if chosen is not None:
                    return chosen
        while len(scores):
            best = int(scores.argmax())
            if scores[best] == NEVER:
                break
            chosen = self._take(best, scores)
            if chosen is not None:
                return chosen
            if scores is not self._plain:
                scores[best] = NEVER
        self._failure = self._told_failure()
        return None

    def choose_on(self, node: Node, place: Place) -> Chosen | None:
        """That node and no other: for work that runs on every node. What fails on one says nothing of the next."""
        at = self._at(node.id)
        if at is None:
            return None
        scores = self._scores(place)
        return None if scores[at] == NEVER else self._take(at, scores)

    @property
    def failure(self) -> AllocMetric | None:
        """Why nothing more could be placed; None: nothing failed."""
        return self._failure

    def why_not_on(self, node: Node) -> AllocMetric:
        """The metric of one node that could not take it."""
        lack = self.lack(node)
        at = self._at(node.id)
        is_filtered = at is None or not self._dimension(at)
        shown = {node.node_class: 1} if node.node_class else None
        return AllocMetric(
            nodes_evaluated=1,
            nodes_filtered=int(is_filtered),
            nodes_in_pool=1,
            node_pool=self._job.node_pool,
            nodes_available={node.datacenter: 1},
            constraint_filtered={lack: 1} if is_filtered and lack else None,
            class_filtered=shown if is_filtered else None,
            nodes_exhausted=int(not is_filtered),
            class_exhausted=None if is_filtered else shown,
            dimension_exhausted=None if is_filtered else {lack: 1},
        )

    def why_nowhere(self) -> AllocMetric:
        """The metric of all nodes together, where none can take it."""
        return self._told_failure()

    def lack(self, node: Node) -> str:
        """What stands against one node now: a reason of the screening, or a dimension. Empty: nothing."""
        row = self._fleet.row_of.get(node.id, NOWHERE)
        if row == NOWHERE:
            return "node is gone"
        at = self._at(node.id)
        if at is None:
            code = int(self._screened.reason_of[row])
            return self._screened.reasons.values[code] if code > FINE else "not ready"
        return self._dimension(at) or self._distinct_reason(at)

    def is_filtered(self, node: Node) -> bool:
        """Whether the node can never run the group as it is now, full or not."""
        return self._at(node.id) is None

    def _at(self, node_id: str) -> int | None:
        row = self._fleet.row_of.get(node_id)
        if row is None or row >= len(self._screened.passing) or not self._screened.passing[row]:
            return None
        if self._place_of_row is None:
            self._place_of_row = {int(each): place for place, each in enumerate(self.rows)}
        return self._place_of_row.get(row)

    def _scores(self, place: Place) -> Floats:
        """For this allocation; without spread, penalty and distinct properties these are kept from the last."""
        avoided = [at for at in map(self._at, place.avoid) if at is not None]
        if not (avoided or self._spreads or self._distinct):
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
        for distinct in self._distinct:
            is_open = is_open & distinct.may_take(self.rows)
        scores: Floats = np.where(is_open, total / number, NEVER)
        return scores

    def _boost(self) -> Floats:
        boost: Floats = np.zeros(len(self.rows))
        for spread, codes in zip(self._spreads, self._spread_codes, strict=True):
            boost += spread.boosts()[codes]
        return boost

    def _take(self, at: int, scores: Floats) -> Chosen | None:
        row = int(self.rows[at])
        node = self._fleet.node(row)
        try:
            resources = self._grants.grant(node, self._draft.holdings_of(row), self._chance.below)
        except Refused as refused:
            self._rule_out(at, refused.dimension)
            return None
        if self._metric is None:
            self._metric = self._told(scores)
        usage = self._demand if self._grants.is_plain else usage_of_resources(resources)
        self._draft.take(row, resources, usage)
        self._change(at, row, usage)
        return Chosen(node, resources, self._metric)

    def _rule_out(self, at: int, dimension: str) -> None:
        self._lacking[at] = dimension
        self._is_open[at] = False
        self._plain[at] = NEVER

    def _change(self, at: int, row: int, usage: Usage) -> None:
        """What the placement does to the row that it chose, and to the spread."""
        cpu = int(self._cpu_with[at]) + usage.cpu
        memory = int(self._memory_with[at]) + usage.memory_mb
        disk = int(self._disk_with[at]) + usage.disk_mb
        self._cpu_with[at], self._memory_with[at], self._disk_with[at] = cpu, memory, disk
        self._count_room[at] -= 1
        room_cpu, room_memory = int(self._cpu[at]), int(self._memory[at])
        has_room = cpu <= room_cpu and memory <= room_memory and disk <= self._disk[at] and self._count_room[at] > 0
        self._has_room[at] = has_room
        packed = packing_of_one(room_cpu, cpu, room_memory, memory, self._rules.algorithm)
        collisions = int(self._collisions[at]) + 1
        self._collisions[at] = collisions
        fixed = sum(float(scores[at]) for scores in self._fixed.values())
        self._packing[at] = packed
        total = packed + fixed - (collisions + 1) / max(1, self._group.count)
        number = 2.0 + len(self._fixed)
        self._total[at], self._number[at] = total, number
        if self._distinct_hosts is not None:
            self._distinct_hosts[at] = False
            has_room = False
        self._is_open[at] = has_room
        self._plain[at] = total / number if has_room else NEVER
        for spread in self._spreads:
            code = int(spread.column.codes[row])
            if code != NOWHERE:
                spread.add(spread.column.words.values[code])
        for distinct in self._distinct:
            distinct.used[distinct.column.codes[row]] += 1
            distinct.used[NOWHERE] = distinct.allowed

    # -- telling ---------------------------------------------------------------------------------------------------

    def _counted(self) -> AllocMetric:
        """What was looked at and left out for good."""
        fleet, screened = self._fleet, self._screened
        rows = np.flatnonzero(screened.looked_at)
        by_reason = np.bincount(screened.reason_of[rows], minlength=len(screened.reasons))
        filtered = {
            reason: int(by_reason[code])
            for code, reason in enumerate(screened.reasons.values)
            if code > FINE and by_reason[code]
        }
        return AllocMetric(
            nodes_evaluated=len(rows),
            nodes_filtered=sum(filtered.values()),
            nodes_in_pool=len(rows),
            node_pool=self._job.node_pool,
            nodes_available=nodes_available(fleet.datacenter[rows], fleet.datacenters.values),
            class_filtered=self._classes(np.flatnonzero(screened.looked_at & ~screened.passing)) or None,
            constraint_filtered=filtered or None,
        )

    def _classes(self, rows: Ints) -> dict[str, int]:
        """How many of the rows have each class that people gave to nodes."""
        found: dict[str, int] = {}
        by_kind = np.bincount(self._fleet.kind[rows], minlength=len(self._fleet.kind_examples))
        for kind, example in enumerate(self._fleet.kind_examples):
            if example.node_class and by_kind[kind]:
                found[example.node_class] = found.get(example.node_class, 0) + int(by_kind[kind])
        return found

    def _told(self, scores: Floats) -> AllocMetric:
        """The metric of a placement: the best nodes with what each scorer gave them."""
        best = np.argpartition(scores, -SHOWN)[-SHOWN:] if len(scores) > SHOWN else np.arange(len(scores))
        best = best[np.argsort(-scores[best], kind="stable")]
        shown = tuple(self._shown(int(at), float(scores[at])) for at in best if scores[at] > NEVER)
        return msgspec.structs.replace(self._counted(), score_meta_data=shown)

    def _shown(self, at: int, score: float) -> NodeScore:
        parts = {BINPACK: float(self._packing[at])}
        parts |= {name: float(scores[at]) for name, scores in self._fixed.items()}
        collisions = int(self._collisions[at])
        parts[ANTI_AFFINITY] = -(collisions + 1) / max(1, self._group.count) if collisions else 0.0
        parts[PENALTY] = 0.0
        if self._spreads:
            parts[SPREAD] = float(self._boost()[at])
        return NodeScore(node_id=self._fleet.node(int(self.rows[at])).id, scores=parts, norm_score=score)

    def _told_failure(self) -> AllocMetric:
        counted = self._counted()
        exhausted: dict[str, int] = {}
        filtered = dict(counted.constraint_filtered or {})
        is_full = np.zeros(len(self.rows), dtype=np.bool_)
        for dimension, lacks in self._dimensions():
            lacks_first = lacks & ~is_full
            number = int(lacks_first.sum())
            if number:
                exhausted[dimension] = exhausted.get(dimension, 0) + number
                is_full |= lacks_first
        for at in np.flatnonzero(~is_full):
            reason = self._distinct_reason(int(at))
            if reason:
                filtered[reason] = filtered.get(reason, 0) + 1
        full = self.rows[is_full]
        more_filtered = sum(filtered.values()) - sum((counted.constraint_filtered or {}).values())
        return msgspec.structs.replace(
            counted,
            nodes_filtered=counted.nodes_filtered + more_filtered,
            constraint_filtered=filtered or None,
            nodes_exhausted=sum(exhausted.values()),
            class_exhausted=self._classes(full) or None,
            dimension_exhausted=exhausted or None,
            resources_exhausted=self._resources_exhausted(exhausted) or None,
        )

    def _dimensions(self) -> list[tuple[str, Mask]]:
        """What nodes have too little of, in the reference's order: the first that a node lacks is the one that counts."""
        told: dict[str, list[int]] = {}
        for at, dimension in self._lacking.items():
            told.setdefault(dimension, []).append(at)
        lacking = []
        for dimension, places in told.items():
            mask = np.zeros(len(self.rows), dtype=np.bool_)
            mask[places] = True
            lacking.append((dimension, mask))
        return [
            *((dimension, mask) for dimension, mask in lacking if dimension == "cores"),
            ("cpu", self._cpu_with > self._cpu),
            ("memory", self._memory_with > self._memory),
            ("disk", self._disk_with > self._disk),
            ("max allocation exceeded", self._count_room <= 0),
            *((dimension, mask) for dimension, mask in lacking if dimension != "cores"),
        ]

    def _dimension(self, at: int) -> str:
        return next((dimension for dimension, lacks in self._dimensions() if lacks[at]), "")

    def _distinct_reason(self, at: int) -> str:
        if self._distinct_hosts is not None and not self._distinct_hosts[at]:
            return DISTINCT_HOSTS
        one = self.rows[at : at + 1]
        for distinct in self._distinct:
            if not distinct.may_take(one)[0]:
                return distinct.reason(int(one[0]))
        return ""

    def _resources_exhausted(self, exhausted: dict[str, int]) -> dict[str, Resources]:
        found = {}
        for task in self._group.tasks or ():
            if task.resources is not None and ("cpu" in exhausted or "memory" in exhausted):
                found[task.name] = Resources(
                    cpu=task.resources.cpu if "cpu" in exhausted else 0,
                    memory_mb=task.resources.memory_mb if "memory" in exhausted else 0,
                )
        return found


def nodes_available(codes: Codes, names: Sequence[str]) -> dict[str, int] | None:
    counts = np.bincount(codes, minlength=len(names))
    return {name: int(counts[code]) for code, name in enumerate(names) if counts[code]} or None


def neighbours_of(draft: Draft, allocations: Iterable[Allocation], group: TaskGroup) -> Neighbours:
    """Where the job's allocations stand that are not over, for anti-affinity, spread and what must be distinct."""
    rows = [(draft.fleet.row_of.get(each.node_id, NOWHERE), each.task_group) for each in allocations]
    there = [(row, name) for row, name in rows if row != NOWHERE]
    return Neighbours([row for row, _ in there], [row for row, name in there if name == group.name])
