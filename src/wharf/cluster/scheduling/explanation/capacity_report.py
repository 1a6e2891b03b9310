"""How the nodes stand to a group that finds no room: which rule leaves out how many, what there is too little of, and the
smallest change with which one more would be placed. Computed from the fleet as it is now; it places nothing.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from wharf.cluster.scheduling.cache import NamespaceVolumes, SchedulerCache, get_placement_rules
from wharf.cluster.scheduling.constraints import CROSS_ALLOCATION_OPERANDS
from wharf.cluster.scheduling.explanation.suggestions import (
    suggest_devices,
    suggest_distinct_node,
    suggest_drivers,
    suggest_freeing_resource,
    suggest_networks,
)
from wharf.cluster.scheduling.feasibility import checker
from wharf.cluster.scheduling.feasibility.checker import FEASIBLE
from wharf.cluster.scheduling.feasibility.distinct import DistinctConstraints, PlacedSibling
from wharf.cluster.scheduling.feasibility.location import is_in_pool_and_datacenter
from wharf.cluster.scheduling.fleet.columns import Ints, Mask
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.ranking.candidates import CORES_DIMENSION, Candidates
from wharf.cluster.scheduling.ranking.seeded_random import SeededRandom
from wharf.cluster.scheduling.resources.assignment import InsufficientResources, ResourceAssigner, list_usable_cores
from wharf.cluster.scheduling.resources.usage import get_group_demand
from wharf.cluster.state import Replica
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.explanations import Exclusion, Shortage
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.nodes.node import Node, NodeStatus

MAX_EXAMPLES: Final = 3
EVERY_NODE_TYPES: Final = (JobType.SYSTEM, JobType.SYSBATCH)
FINISHED_STATUSES: Final = (ClientStatus.COMPLETE, ClientStatus.FAILED)
DIMENSION_UNITS: Final = {"cpu": "MHz", "memory": "MB", "disk": "MB"}
MAX_PROBED_NODES: Final = 1_000
"""Nodes whose ports and devices are tried. A reason that holds on so many is reason enough."""

MIN_MEMORY_MB: Final = 10
MIN_CPU_MHZ: Final = 1


class CapacityReport(msgspec.Struct, frozen=True):
    """`nodes`: those in the job's pool and datacenters that were looked at; `fitting`: those that would take one more.
    Of work for every node those that have theirs are not looked at: `served` are so many, and `lacking` could have one.
    """

    nodes: int
    fitting: int
    served_nodes: int = 0
    unserved_nodes: int = 0
    excluded: tuple[Exclusion, ...] = ()
    exhausted: tuple[Shortage, ...] = ()
    smallest_change: str = ""


def report_capacity(
    cache: SchedulerCache, snapshot: Replica, job: Job, group: TaskGroup, allocations: Iterable[Allocation]
) -> CapacityReport:
    """How the nodes stand to one more of the group. `allocations`: those of the job."""
    return _Look(cache, snapshot, job, group, allocations).tell()


def is_served_by(job: Job, allocation: Allocation) -> bool:
    """Whether this is what a job for every node wants on the allocation's node: it goes on there, or is done there."""
    if allocation.job_create_index != job.create_index:
        return False
    is_done = job.type == JobType.SYSBATCH and allocation.client_status in FINISHED_STATUSES
    return not allocation.is_terminal or (is_done and allocation.job_version == job.version)


class _Look:
    def __init__(
        self, ground: SchedulerCache, snapshot: Replica, job: Job, group: TaskGroup, allocations: Iterable[Allocation]
    ) -> None:
        self._ground = ground
        self._fleet = ground.fleet
        self._snapshot = snapshot
        self._job = job
        self._group = group
        self._in_reach = ground.feasibility.select_ready_nodes(job)
        row_of = ground.fleet.row_by_node_id
        self._neighbours = [
            PlacedSibling(row_of[each.node_id], each.task_group)
            for each in allocations
            if not each.is_terminal and each.node_id in row_of
        ]
        self._served = 0
        if job.type in EVERY_NODE_TYPES:
            self._leave_out_those_that_have_theirs(allocations)
        rules = get_placement_rules(snapshot, job)
        self._grants = ResourceAssigner(group, can_oversubscribe=rules.can_oversubscribe)
        self._rows = self._passing(job, group)
        self._candidates = self._measured(group, self._rows)
        self._distinct = self._distinct_reasons(self._rows)
        if not self._grants.has_only_amounts:
            self._try_what_is_held_one_by_one()
        self._lacks = self._candidates.list_shortages()

    def tell(self) -> CapacityReport:
        shortages = tuple(self._shortages())
        return CapacityReport(
            nodes=int(self._in_reach.sum()),
            fitting=int(self._is_fitting().sum()),
            served_nodes=self._served,
            unserved_nodes=len(self._rows) if self._job.type in EVERY_NODE_TYPES else 0,
            excluded=(*self._out_of_reach(), *self._screened_out(), *self._not_distinct()),
            exhausted=shortages,
            smallest_change=self._smallest_change(),
        )

    # -- looking ---------------------------------------------------------------------------------------------------

    def _leave_out_those_that_have_theirs(self, allocations: Iterable[Allocation]) -> None:
        row_of, before = self._fleet.row_by_node_id, int(self._in_reach.sum())
        self._in_reach = self._in_reach.copy()
        for each in allocations:
            if each.node_id in row_of and each.task_group == self._group.name and is_served_by(self._job, each):
                self._in_reach[row_of[each.node_id]] = False
        self._served = before - int(self._in_reach.sum())

    def _passing(self, job: Job, group: TaskGroup) -> Ints:
        volume_of = NamespaceVolumes(self._snapshot, job.namespace)
        screened = self._ground.feasibility.screen_nodes(self._in_reach, job, group, volume_of)
        rows: Ints = np.flatnonzero(screened.feasible)
        return rows

    def _measured(self, group: TaskGroup, rows: Ints) -> Candidates:
        return Candidates(FleetDraft(self._fleet), rows, self._grants, get_group_demand(group))

    def _try_what_is_held_one_by_one(self) -> None:
        """Ports, cores and devices: only the node itself can tell whether they can be had."""
        candidates, draft, chance = (
            self._candidates,
            FleetDraft(self._fleet),
            SeededRandom(self._job.id, self._snapshot.index),
        )
        for at in np.flatnonzero(candidates.has_capacity)[:MAX_PROBED_NODES]:
            row = int(self._rows[at])
            try:
                self._grants.assign_resources(
                    self._fleet.get_node(row), draft.get_exclusive_resources(row), chance.draw_below
                )
            except InsufficientResources as refused:
                candidates.missing_dimensions[int(at)] = refused.dimension

    def _distinct_reasons(self, rows: Ints) -> dict[int, str]:
        """By place, of those that may take no more of this job."""
        found = DistinctConstraints(
            self._fleet, self._job, self._group, should_check_hosts=self._job.type not in EVERY_NODE_TYPES
        )
        if not found:
            return {}
        found.count_siblings(self._neighbours)
        return {int(at): found.explain_row(int(rows[at])) for at in np.flatnonzero(~found.mask_allowed(rows))}

    def _is_fitting(self) -> Mask:
        fits: Mask = np.ones(len(self._rows), dtype=np.bool_)
        for _, lacks in self._lacks:
            fits &= ~lacks
        fits[list(self._distinct)] = False
        return fits

    # -- telling ---------------------------------------------------------------------------------------------------

    def _out_of_reach(self) -> Iterator[Exclusion]:
        """Nodes that were not looked at, though they are in the job's pool."""
        found: dict[str, list[str]] = {}
        for _, node in self._fleet.iter_nodes():
            why = _why_out_of_reach(self._job, node)
            if why:
                found.setdefault(why, []).append(node.name or node.id)
        for why, names in found.items():
            yield Exclusion(rule=why, nodes=len(names), examples=tuple(sorted(names)[:MAX_EXAMPLES]))

    def _screened_out(self) -> Iterator[Exclusion]:
        volume_of = NamespaceVolumes(self._snapshot, self._job.namespace)
        screened = self._ground.feasibility.screen_nodes(self._in_reach, self._job, self._group, volume_of)
        for code, reason in enumerate(screened.reasons.values):
            rows = np.flatnonzero(screened.reason_codes == code) if code > FEASIBLE else np.zeros(0, dtype=np.int64)
            if len(rows):
                # A constraint without a right side ends in the blank before it, as metrics name it.
                yield Exclusion(rule=reason.rstrip(), nodes=len(rows), examples=self._names(rows))

    def _not_distinct(self) -> Iterator[Exclusion]:
        found: dict[str, list[int]] = {}
        for at, reason in self._distinct.items():
            found.setdefault(reason, []).append(int(self._rows[at]))
        for reason, rows in found.items():
            yield Exclusion(rule=reason, nodes=len(rows), examples=self._names(rows))

    def _shortages(self) -> Iterator[Shortage]:
        for dimension, lacks in self._lacks:
            places = np.flatnonzero(lacks)
            if not len(places):
                continue
            missing = self._missing(dimension)
            if dimension == CORES_DIMENSION:
                missing = self._grants.requested_cores - self._free_cores
            yield Shortage(
                dimension=dimension,
                nodes=len(places),
                missing=int(missing[places].min()) if missing is not None else 0,
                unit=DIMENSION_UNITS.get(dimension, CORES_DIMENSION if dimension == CORES_DIMENSION else ""),
                examples=self._names(self._rows[places]),
            )

    def _missing(self, dimension: str) -> Ints | None:
        candidates = self._candidates
        match dimension:
            case "cpu":
                return candidates.cpu_after - candidates.cpu
            case "memory":
                return candidates.memory_after - candidates.memory
            case "disk":
                return candidates.disk_after - candidates.disk
        return None

    def _names(self, rows: Sequence[int] | Ints) -> tuple[str, ...]:
        nodes = (self._fleet.get_node(int(row)) for row in rows[: 10 * MAX_EXAMPLES])
        return tuple(sorted(node.name or node.id for node in nodes)[:MAX_EXAMPLES])

    # -- the smallest change ---------------------------------------------------------------------------------------

    def _smallest_change(self) -> str:
        """With which one more would be placed; empty where one would be already."""
        if self._is_fitting().any():
            return ""
        if not self._in_reach.any():
            return self._to_be_in_reach()
        if not len(self._rows):
            return self._to_pass()
        return self._to_have_room() or self._to_pass() or self._to_be_free() or self._to_be_distinct()

    def _to_be_in_reach(self) -> str:
        named = [node for _, node in self._fleet.iter_nodes() if is_in_pool_and_datacenter(self._job, node)]
        if named:
            names = ", ".join(sorted(node.name or node.id for node in named)[:MAX_EXAMPLES])
            return f"bring a node back to work that the job may use: {names} ({_standing(named[0])})"
        pools = sorted({node.node_pool for _, node in self._fleet.iter_nodes()})
        datacenters = sorted({node.datacenter for _, node in self._fleet.iter_nodes()})
        if not pools:
            return "add a node: there is none"
        if self._job.node_pool != "all" and self._job.node_pool not in pools:
            return f'add a node to the pool "{self._job.node_pool}", or name another: {", ".join(pools[:MAX_EXAMPLES])}'
        return f"name a datacenter that has nodes of the job's pool: {', '.join(datacenters[:MAX_EXAMPLES])}"

    def _to_have_room(self) -> str:
        """Where amounts are all that is missing: less of them, or so much freed."""
        amounts: list[tuple[str, Ints]] = []
        is_amount: Mask = np.ones(len(self._rows), dtype=np.bool_)
        is_amount[list(self._distinct)] = False
        for dimension, lacks in self._lacks:
            missing = self._missing(dimension)
            if missing is None:
                is_amount &= ~lacks
            else:
                amounts.append((dimension, np.maximum(missing, 0)))
        if not is_amount.any():
            return ""
        # Shares of what is asked for make amounts of different things comparable; fewest of them first.
        share = np.zeros(len(self._rows))
        for dimension, missing in amounts:
            share += missing / max(1, self._asked(dimension)) + (missing > 0)
        share[~is_amount] = np.inf
        best = int(share.argmin())
        wanted = [(dimension, int(missing[best])) for dimension, missing in amounts if missing[best] > 0]
        enough = is_amount.copy()
        for dimension, missing in amounts:
            enough &= missing <= dict(wanted).get(dimension, 0)
        number = int(enough.sum())
        freed = " and ".join(
            f"{amount} {DIMENSION_UNITS[dimension]}{_of_what(dimension)}" for dimension, amount in wanted
        )
        where = f"on {self._names([int(self._rows[best])])[0]}" if number == 1 else f"on any of {number} nodes"
        lowered = self._lowered(wanted)
        return f"{lowered}, or free {freed} {where}" if lowered else f"free {freed} {where}"

    def _asked(self, dimension: str) -> int:
        demand = get_group_demand(self._group)
        return {"cpu": demand.cpu, "memory": demand.memory_mb}.get(dimension, demand.disk_mb)

    def _lowered(self, wanted: Sequence[tuple[str, int]]) -> str:
        """The group's largest tasks lowered by what is missing; empty where that is more than they have."""
        group, said = self._group, list[str]()
        for dimension, amount in wanted:
            found = _lower(group, dimension, amount)
            if found is None:
                return ""
            group, words = found
            said.append(words)
        has_room = self._measured(group, self._rows).has_capacity
        return f"lower {' and '.join(said)}" if said and bool(has_room.any()) else ""

    def _to_pass(self) -> str:
        """A constraint without which nodes would take it."""
        best: tuple[int, str] = (0, "")
        for constraint, job, group in _without_each(self._job, self._group):
            if constraint.operand in CROSS_ALLOCATION_OPERANDS:
                continue
            rows = self._passing(job, group)
            number = int(self._measured(group, rows).has_capacity.sum())
            if number > best[0]:
                best = (number, f"drop the constraint {constraint}: {_nodes(number)} would take it then")
        if best[1]:
            return best[1]
        rules = list(self._screened_out())
        if not rules or len(self._rows):
            return ""
        fewest = min(rules, key=lambda each: each.nodes)
        nodes = [node for _, node in self._fleet.iter_nodes() if is_in_pool_and_datacenter(self._job, node)]
        match fewest.rule:
            case checker.MISSING_DRIVERS:
                known = suggest_drivers(nodes, self._group)
            case checker.MISSING_DEVICES:
                known = suggest_devices(nodes, self._group)
            case _:
                known = suggest_networks(nodes, self._group, fewest.rule)
        if known:
            return known
        where = _on_one_of(fewest.nodes, fewest.examples)
        if fewest.rule == checker.MISSING_VOLUMES:
            names = " and ".join(sorted({each.source for each in (self._group.volumes or {}).values()}))
            return f"have the volume {names}, usable as the job asks, {where}: `wharf volume create` makes one"
        return f'mend "{fewest.rule}" {where}'

    def _to_be_free(self) -> str:
        held = {
            dimension: lacks for dimension, lacks in self._lacks if lacks.any() and dimension not in DIMENSION_UNITS
        }
        if not held:
            return ""
        if CORES_DIMENSION in held and (fewer := self._to_have_cores()):
            return fewer
        fewest = min(held, key=lambda each: int(held[each].sum()))
        places = np.flatnonzero(held[fewest])
        return suggest_freeing_resource(fewest, _on_one_of(len(places), self._names(self._rows[places])))

    def _to_have_cores(self) -> str:
        """As many as one node has free, of the task that asks for most."""
        asked, free = self._grants.requested_cores, self._free_cores
        if not any(list_usable_cores(node) for _, node in self._fleet.iter_nodes()):
            return "ask for CPU instead of Cores: no node has cores that may be kept for one task"
        at = int(free.argmax())
        missing = asked - int(free[at])
        name = self._names([int(self._rows[at])])[0]
        freed = (
            f"free {_cores(missing)} on {name}"
            if len(list_usable_cores(self._fleet.get_node(int(self._rows[at])))) >= asked
            else ""
        )
        task = max(self._group.tasks or (), key=lambda each: each.resources.cores if each.resources is not None else 0)
        cores = task.resources.cores if task.resources is not None else 0
        lowered = (
            f"lower Cores of {self._group.name}/{task.name} from {cores} to {cores - missing}"
            if cores > missing
            else ""
        )
        return ", or ".join(each for each in (lowered, freed) if each)

    @functools.cached_property
    def _free_cores(self) -> Ints:
        """By place; of those that were not tried none."""
        free: Ints = np.zeros(len(self._rows), dtype=np.int64)
        draft = FleetDraft(self._fleet)
        for at, row in enumerate(self._rows[:MAX_PROBED_NODES].tolist()):
            held = draft.get_exclusive_resources(row).cores
            free[at] = sum(core not in held for core in list_usable_cores(self._fleet.get_node(row)))
        return free

    def _to_be_distinct(self) -> str:
        if not self._distinct:
            return "add a node with room for it"
        return suggest_distinct_node(self._job, self._group, next(iter(self._distinct.values())))


def _why_out_of_reach(job: Job, node: Node) -> str:
    if job.node_pool not in ("", "all", node.node_pool):
        return ""  # Nodes of other pools are nobody's business here.
    if not is_in_pool_and_datacenter(job, node):
        return f"datacenter {node.datacenter} is not asked for"
    return "" if node.is_ready_for_placements else f"node is {_standing(node)}"


def _standing(node: Node) -> str:
    if node.status is not NodeStatus.READY:
        return node.status.value
    return "draining" if node.drain_strategy is not None else "ineligible"


def _of_what(dimension: str) -> str:
    return " of disk" if dimension == "disk" else ""


def _on_one_of(number: int, examples: Sequence[str]) -> str:
    return f"on {examples[0]}" if number == 1 else f"on one of {_nodes(number)} ({', '.join(examples)})"


def _cores(number: int) -> str:
    return "1 core" if number == 1 else f"{number} cores"


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _lower(group: TaskGroup, dimension: str, amount: int) -> tuple[TaskGroup, str] | None:
    """The group with its largest task lowered, and the words for it; None: it has not so much."""
    if dimension == "disk":
        size = group.ephemeral_disk.size_mb
        if size <= amount:
            return None
        lowered = replace(group, ephemeral_disk=replace(group.ephemeral_disk, size_mb=size - amount))
        return lowered, f"the disk of {group.name} from {size} to {size - amount}"
    name, word, least = ("cpu", "CPU", MIN_CPU_MHZ) if dimension == "cpu" else ("memory_mb", "MemoryMB", MIN_MEMORY_MB)
    tasks = list(group.tasks or ())
    asked = [getattr(task.resources, name) if task.resources is not None else 0 for task in tasks]
    if not asked or max(asked) - amount < least:
        return None
    at = asked.index(max(asked))
    resources = tasks[at].resources
    assert resources is not None, "what asks for something has resources"
    tasks[at] = replace(tasks[at], resources=replace(resources, **{name: asked[at] - amount}))
    words = f"{word} of {group.name}/{tasks[at].name} from {asked[at]} to {asked[at] - amount}"
    return replace(group, tasks=tuple(tasks)), words


def _without_each(job: Job, group: TaskGroup) -> Iterator[tuple[Constraint, Job, TaskGroup]]:
    """The job and the group without one of their constraints, each in turn."""
    for constraint in job.constraints or ():
        yield constraint, replace(job, constraints=tuple(c for c in job.constraints or () if c != constraint)), group
    for constraint in group.constraints or ():
        yield constraint, job, replace(group, constraints=tuple(c for c in group.constraints or () if c != constraint))
    for task in group.tasks or ():
        for constraint in task.constraints or ():
            left = replace(task, constraints=tuple(c for c in task.constraints or () if c != constraint))
            tasks = tuple(left if each is task else each for each in group.tasks or ())
            yield constraint, job, replace(group, tasks=tasks)
