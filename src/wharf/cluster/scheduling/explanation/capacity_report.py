"""Reports why nodes cannot take one more allocation of a group, and the smallest change after which one could.

Computed from the current fleet. It places nothing.
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
from wharf.contract.model.jobs.resources import MIN_CPU_MHZ, MIN_MEMORY_MB
from wharf.contract.model.nodes.node import Node, NodeStatus

MAX_EXAMPLES: Final = 3
"""Node names that are listed as examples."""
EVERY_NODE_TYPES: Final = (JobType.SYSTEM, JobType.SYSBATCH)
FINISHED_STATUSES: Final = (ClientStatus.COMPLETE, ClientStatus.FAILED)
DIMENSION_UNITS: Final = {"cpu": "MHz", "memory": "MB", "disk": "MB"}
MAX_PROBED_NODES: Final = 1_000
"""Limits the time of a report: ports, cores and devices are checked on this many nodes only."""


class CapacityReport(msgspec.Struct, frozen=True):
    """How the nodes relate to one more allocation of the group.

    `nodes` counts the considered nodes in the job's pool and datacenters; `fitting` those that could take one more. For
    system and sysbatch jobs, nodes that have their allocation are not considered: `served_nodes` counts them, and
    `unserved_nodes` counts feasible nodes without one.
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
    """Return which nodes could take one more allocation of the group and why the others cannot.

    `allocations` are all allocations of the job.
    """
    return _CapacityExaminer(cache, snapshot, job, group, allocations).build_report()


def is_served_by(job: Job, allocation: Allocation) -> bool:
    """Return whether the allocation is the one that a system or sysbatch job requires on its node, active or done."""
    if allocation.job_create_index != job.create_index:
        return False
    is_done = job.type == JobType.SYSBATCH and allocation.client_status in FINISHED_STATUSES
    return not allocation.is_terminal or (is_done and allocation.job_version == job.version)


class _CapacityExaminer:
    """Examines the nodes for one group and builds the report."""

    def __init__(
        self, cache: SchedulerCache, snapshot: Replica, job: Job, group: TaskGroup, allocations: Iterable[Allocation]
    ) -> None:
        self._cache = cache
        self._fleet = cache.fleet
        self._snapshot = snapshot
        self._job = job
        self._group = group
        self._is_considered = cache.feasibility.select_ready_nodes(job)
        row_by_node_id = cache.fleet.row_by_node_id
        self._siblings = [
            PlacedSibling(row_by_node_id[allocation.node_id], allocation.task_group)
            for allocation in allocations
            if not allocation.is_terminal and allocation.node_id in row_by_node_id
        ]
        self._served_count = 0
        if job.type in EVERY_NODE_TYPES:
            self._exclude_served_nodes(allocations)
        rules = get_placement_rules(snapshot, job)
        self._assigner = ResourceAssigner(group, can_oversubscribe=rules.can_oversubscribe)
        self._rows = self._find_feasible_rows(job, group)
        self._candidates = self._build_candidates(group, self._rows)
        self._distinct_exclusions = self._find_distinct_exclusions(self._rows)
        if not self._assigner.has_only_amounts:
            self._probe_exclusive_resources()
        self._missing_masks = self._candidates.list_shortages()

    def build_report(self) -> CapacityReport:
        """Return the report."""
        shortages = tuple(self._iter_shortages())
        return CapacityReport(
            nodes=int(self._is_considered.sum()),
            fitting=int(self._mask_fitting().sum()),
            served_nodes=self._served_count,
            unserved_nodes=len(self._rows) if self._job.type in EVERY_NODE_TYPES else 0,
            excluded=(*self._iter_unconsidered(), *self._iter_infeasible(), *self._iter_distinct_exclusions()),
            exhausted=shortages,
            smallest_change=self._suggest_change(),
        )

    # -- examination -------------------------------------------------------------------------------------------------

    def _exclude_served_nodes(self, allocations: Iterable[Allocation]) -> None:
        """Exclude nodes that already have their allocation of a system or sysbatch job."""
        row_by_node_id, count_before = self._fleet.row_by_node_id, int(self._is_considered.sum())
        self._is_considered = self._is_considered.copy()
        for allocation in allocations:
            if (
                allocation.node_id in row_by_node_id
                and allocation.task_group == self._group.name
                and is_served_by(self._job, allocation)
            ):
                self._is_considered[row_by_node_id[allocation.node_id]] = False
        self._served_count = count_before - int(self._is_considered.sum())

    def _find_feasible_rows(self, job: Job, group: TaskGroup) -> Ints:
        """Return the rows of the nodes that are feasible for this job and group."""
        find_volume = NamespaceVolumes(self._snapshot, job.namespace)
        screened = self._cache.feasibility.screen_nodes(self._is_considered, job, group, find_volume)
        rows: Ints = np.flatnonzero(screened.feasible)
        return rows

    def _build_candidates(self, group: TaskGroup, rows: Ints) -> Candidates:
        """Return the candidate columns of these rows."""
        return Candidates(FleetDraft(self._fleet), rows, self._assigner, get_group_demand(group))

    def _probe_exclusive_resources(self) -> None:
        """Check ports, cores and devices on each node, because columns do not show them."""
        candidates, draft, chance = (
            self._candidates,
            FleetDraft(self._fleet),
            SeededRandom(self._job.id, self._snapshot.index),
        )
        for position in np.flatnonzero(candidates.has_capacity)[:MAX_PROBED_NODES]:
            row = int(self._rows[position])
            try:
                self._assigner.assign_resources(
                    self._fleet.get_node(row), draft.get_exclusive_resources(row), chance.draw_below
                )
            except InsufficientResources as shortage:
                candidates.missing_dimensions[int(position)] = shortage.dimension

    def _find_distinct_exclusions(self, rows: Ints) -> dict[int, str]:
        """Return by position why nodes may take no more allocations of the job."""
        constraints = DistinctConstraints(
            self._fleet, self._job, self._group, should_check_hosts=self._job.type not in EVERY_NODE_TYPES
        )
        if not constraints:
            return {}
        constraints.count_siblings(self._siblings)
        return {
            int(position): constraints.explain_row(int(rows[position]))
            for position in np.flatnonzero(~constraints.mask_allowed(rows))
        }

    def _mask_fitting(self) -> Mask:
        """Return which feasible nodes could take one more allocation."""
        fits: Mask = np.ones(len(self._rows), dtype=np.bool_)
        for _, is_short in self._missing_masks:
            fits &= ~is_short
        fits[list(self._distinct_exclusions)] = False
        return fits

    # -- sections of the report --------------------------------------------------------------------------------------

    def _iter_unconsidered(self) -> Iterator[Exclusion]:
        """Yield nodes of the job's pool that were not considered, by reason."""
        names_by_reason: dict[str, list[str]] = {}
        for _, node in self._fleet.iter_nodes():
            reason = _explain_unconsidered(self._job, node)
            if reason:
                names_by_reason.setdefault(reason, []).append(node.name or node.id)
        for reason, names in names_by_reason.items():
            yield Exclusion(rule=reason, nodes=len(names), examples=tuple(sorted(names)[:MAX_EXAMPLES]))

    def _iter_infeasible(self) -> Iterator[Exclusion]:
        """Yield infeasible nodes, by reason."""
        find_volume = NamespaceVolumes(self._snapshot, self._job.namespace)
        screened = self._cache.feasibility.screen_nodes(self._is_considered, self._job, self._group, find_volume)
        for code, reason in enumerate(screened.reasons.values):
            rows = np.flatnonzero(screened.reason_codes == code) if code > FEASIBLE else np.zeros(0, dtype=np.int64)
            if len(rows):
                # A constraint without a right side ends in a blank; metrics strip it too.
                yield Exclusion(rule=reason.rstrip(), nodes=len(rows), examples=self._get_example_names(rows))

    def _iter_distinct_exclusions(self) -> Iterator[Exclusion]:
        """Yield nodes that a distinct constraint excludes, by reason."""
        rows_by_reason: dict[str, list[int]] = {}
        for position, reason in self._distinct_exclusions.items():
            rows_by_reason.setdefault(reason, []).append(int(self._rows[position]))
        for reason, rows in rows_by_reason.items():
            yield Exclusion(rule=reason, nodes=len(rows), examples=self._get_example_names(rows))

    def _iter_shortages(self) -> Iterator[Shortage]:
        """Yield each exhausted dimension with the smallest missing amount."""
        for dimension, is_short in self._missing_masks:
            positions = np.flatnonzero(is_short)
            if not len(positions):
                continue
            missing = self._get_missing_amounts(dimension)
            if dimension == CORES_DIMENSION:
                missing = self._assigner.requested_cores - self._free_cores
            yield Shortage(
                dimension=dimension,
                nodes=len(positions),
                missing=int(missing[positions].min()) if missing is not None else 0,
                unit=DIMENSION_UNITS.get(dimension, CORES_DIMENSION if dimension == CORES_DIMENSION else ""),
                examples=self._get_example_names(self._rows[positions]),
            )

    def _get_missing_amounts(self, dimension: str) -> Ints | None:
        """Return the missing amount of each candidate, or `None` if the dimension has no amount."""
        candidates = self._candidates
        match dimension:
            case "cpu":
                return candidates.cpu_after - candidates.cpu
            case "memory":
                return candidates.memory_after - candidates.memory
            case "disk":
                return candidates.disk_after - candidates.disk
        return None

    def _get_example_names(self, rows: Sequence[int] | Ints) -> tuple[str, ...]:
        """Return up to `MAX_EXAMPLES` node names."""
        nodes = (self._fleet.get_node(int(row)) for row in rows[: 10 * MAX_EXAMPLES])
        return tuple(sorted(node.name or node.id for node in nodes)[:MAX_EXAMPLES])

    # -- the smallest change -----------------------------------------------------------------------------------------

    def _suggest_change(self) -> str:
        """Return a change after which one more allocation could be placed, or an empty text if none is needed."""
        if self._mask_fitting().any():
            return ""
        if not self._is_considered.any():
            return self._suggest_reachable_node()
        if not len(self._rows):
            return self._suggest_feasible_node()
        return (
            self._suggest_freeing_amounts()
            or self._suggest_feasible_node()
            or self._suggest_freeing_exclusive()
            or self._suggest_distinct()
        )

    def _suggest_reachable_node(self) -> str:
        """Suggest how to get a ready node in the job's pool and datacenters."""
        matching_nodes = [node for _, node in self._fleet.iter_nodes() if is_in_pool_and_datacenter(self._job, node)]
        if matching_nodes:
            names = ", ".join(sorted(node.name or node.id for node in matching_nodes)[:MAX_EXAMPLES])
            return (
                f"make a node of the job's pool and datacenters ready: {names} ({_get_node_state(matching_nodes[0])})"
            )
        pools = sorted({node.node_pool for _, node in self._fleet.iter_nodes()})
        datacenters = sorted({node.datacenter for _, node in self._fleet.iter_nodes()})
        if not pools:
            return "add a node: the cluster has none"
        if self._job.node_pool != "all" and self._job.node_pool not in pools:
            return (
                f'add a node to the pool "{self._job.node_pool}", '
                f"or use another pool: {', '.join(pools[:MAX_EXAMPLES])}"
            )
        return f"set a datacenter that has nodes of the job's pool: {', '.join(datacenters[:MAX_EXAMPLES])}"

    def _suggest_freeing_amounts(self) -> str:
        """Suggest to lower or free amounts, if nodes lack nothing but CPU, memory or disk."""
        amounts: list[tuple[str, Ints]] = []
        is_amount: Mask = np.ones(len(self._rows), dtype=np.bool_)
        is_amount[list(self._distinct_exclusions)] = False
        for dimension, is_short in self._missing_masks:
            missing = self._get_missing_amounts(dimension)
            if missing is None:
                is_amount &= ~is_short
            else:
                amounts.append((dimension, np.maximum(missing, 0)))
        if not is_amount.any():
            return ""
        # Shares of the requested amounts make dimensions comparable. Prefer nodes that lack fewer dimensions.
        share = np.zeros(len(self._rows))
        for dimension, missing in amounts:
            share += missing / max(1, self._get_requested(dimension)) + (missing > 0)
        share[~is_amount] = np.inf
        best = int(share.argmin())
        best_missing = [(dimension, int(missing[best])) for dimension, missing in amounts if missing[best] > 0]
        is_enough = is_amount.copy()
        for dimension, missing in amounts:
            is_enough &= missing <= dict(best_missing).get(dimension, 0)
        number = int(is_enough.sum())
        freed_amounts = " and ".join(
            f"{amount} {DIMENSION_UNITS[dimension]}{_format_dimension(dimension)}" for dimension, amount in best_missing
        )
        location = (
            f"on {self._get_example_names([int(self._rows[best])])[0]}" if number == 1 else f"on any of {number} nodes"
        )
        lowered = self._suggest_lower_request(best_missing)
        return f"{lowered}, or free {freed_amounts} {location}" if lowered else f"free {freed_amounts} {location}"

    def _get_requested(self, dimension: str) -> int:
        """Return how much one allocation requests in this dimension."""
        demand = get_group_demand(self._group)
        return {"cpu": demand.cpu, "memory": demand.memory_mb}.get(dimension, demand.disk_mb)

    def _suggest_lower_request(self, missing_amounts: Sequence[tuple[str, int]]) -> str:
        """Return the suggestion to lower the group's largest tasks, or an empty text if that is not enough."""
        group, changes = self._group, list[str]()
        for dimension, amount in missing_amounts:
            result = _lower_largest_task(group, dimension, amount)
            if result is None:
                return ""
            group, change = result
            changes.append(change)
        has_room = self._build_candidates(group, self._rows).has_capacity
        return f"lower {' and '.join(changes)}" if changes and bool(has_room.any()) else ""

    def _suggest_feasible_node(self) -> str:
        """Suggest to drop a constraint, or to provide what the fewest nodes lack."""
        best: tuple[int, str] = (0, "")
        for constraint, job, group in _iter_without_constraint(self._job, self._group):
            if constraint.operand in CROSS_ALLOCATION_OPERANDS:
                continue
            rows = self._find_feasible_rows(job, group)
            number = int(self._build_candidates(group, rows).has_capacity.sum())
            if number > best[0]:
                best = (
                    number,
                    f"drop the constraint {constraint}: {_format_nodes(number)} could then take the allocation",
                )
        if best[1]:
            return best[1]
        rules = list(self._iter_infeasible())
        if not rules or len(self._rows):
            return ""
        fewest = min(rules, key=lambda rule: rule.nodes)
        nodes = [node for _, node in self._fleet.iter_nodes() if is_in_pool_and_datacenter(self._job, node)]
        match fewest.rule:
            case checker.MISSING_DRIVERS:
                suggestion = suggest_drivers(nodes, self._group)
            case checker.MISSING_DEVICES:
                suggestion = suggest_devices(nodes, self._group)
            case _:
                suggestion = suggest_networks(nodes, self._group, fewest.rule)
        if suggestion:
            return suggestion
        location = _format_location(fewest.nodes, fewest.examples)
        if fewest.rule == checker.MISSING_VOLUMES:
            names = " and ".join(sorted({request.source for request in (self._group.volumes or {}).values()}))
            return (
                f"create the volume {names}, with the access that the job requests, {location}: "
                "use `wharf volume create`"
            )
        return f'fix "{fewest.rule}" {location}'

    def _suggest_freeing_exclusive(self) -> str:
        """Suggest to free ports, cores, devices or allocation slots."""
        exclusive_shortages = {
            dimension: is_short
            for dimension, is_short in self._missing_masks
            if is_short.any() and dimension not in DIMENSION_UNITS
        }
        if not exclusive_shortages:
            return ""
        if CORES_DIMENSION in exclusive_shortages and (suggestion := self._suggest_cores()):
            return suggestion
        fewest = min(exclusive_shortages, key=lambda dimension: int(exclusive_shortages[dimension].sum()))
        positions = np.flatnonzero(exclusive_shortages[fewest])
        return suggest_freeing_resource(
            fewest, _format_location(len(positions), self._get_example_names(self._rows[positions]))
        )

    def _suggest_cores(self) -> str:
        """Suggest to lower the cores of the largest task to what one node has free, or to free cores there."""
        requested, free = self._assigner.requested_cores, self._free_cores
        if not any(list_usable_cores(node) for _, node in self._fleet.iter_nodes()):
            return "request CPU instead of Cores: no node has cores that can be reserved for a task"
        position = int(free.argmax())
        missing = requested - int(free[position])
        name = self._get_example_names([int(self._rows[position])])[0]
        freed = (
            f"free {_format_cores(missing)} on {name}"
            if len(list_usable_cores(self._fleet.get_node(int(self._rows[position])))) >= requested
            else ""
        )
        task = max(self._group.tasks or (), key=lambda task: task.resources.cores if task.resources is not None else 0)
        cores = task.resources.cores if task.resources is not None else 0
        lowered = (
            f"lower Cores of {self._group.name}/{task.name} from {cores} to {cores - missing}"
            if cores > missing
            else ""
        )
        return ", or ".join(text for text in (lowered, freed) if text)

    @functools.cached_property
    def _free_cores(self) -> Ints:
        """Free cores by position. Nodes beyond `MAX_PROBED_NODES` count as having none."""
        free: Ints = np.zeros(len(self._rows), dtype=np.int64)
        draft = FleetDraft(self._fleet)
        for position, row in enumerate(self._rows[:MAX_PROBED_NODES].tolist()):
            held = draft.get_exclusive_resources(row).cores
            free[position] = sum(core not in held for core in list_usable_cores(self._fleet.get_node(row)))
        return free

    def _suggest_distinct(self) -> str:
        """Suggest a node that the distinct constraints allow."""
        if not self._distinct_exclusions:
            return "add a node with enough free resources"
        return suggest_distinct_node(self._job, self._group, next(iter(self._distinct_exclusions.values())))


def _explain_unconsidered(job: Job, node: Node) -> str:
    """Return why a node of the job's pool is not considered, or an empty text."""
    if job.node_pool not in ("", "all", node.node_pool):
        return ""  # Nodes of other pools are not reported.
    if not is_in_pool_and_datacenter(job, node):
        return f"datacenter {node.datacenter} is not in the job's list"
    return "" if node.is_ready_for_placements else f"node is {_get_node_state(node)}"


def _get_node_state(node: Node) -> str:
    """Return the state of the node that keeps it from placements."""
    if node.status is not NodeStatus.READY:
        return node.status.value
    return "draining" if node.drain_strategy is not None else "ineligible"


def _format_dimension(dimension: str) -> str:
    return " of disk" if dimension == "disk" else ""


def _format_location(number: int, examples: Sequence[str]) -> str:
    return f"on {examples[0]}" if number == 1 else f"on one of {_format_nodes(number)} ({', '.join(examples)})"


def _format_cores(number: int) -> str:
    return "1 core" if number == 1 else f"{number} cores"


def _format_nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _lower_largest_task(group: TaskGroup, dimension: str, amount: int) -> tuple[TaskGroup, str] | None:
    """Return the group with its largest task lowered by the amount, and the text for it.

    Return `None` if the task has too little.
    """
    if dimension == "disk":
        size = group.ephemeral_disk.size_mb
        if size <= amount:
            return None
        lowered = replace(group, ephemeral_disk=replace(group.ephemeral_disk, size_mb=size - amount))
        return lowered, f"the disk of {group.name} from {size} to {size - amount}"
    name, label, minimum = (
        ("cpu", "CPU", MIN_CPU_MHZ) if dimension == "cpu" else ("memory_mb", "MemoryMB", MIN_MEMORY_MB)
    )
    tasks = list(group.tasks or ())
    requested = [getattr(task.resources, name) if task.resources is not None else 0 for task in tasks]
    if not requested or max(requested) - amount < minimum:
        return None
    position = requested.index(max(requested))
    resources = tasks[position].resources
    assert resources is not None, "a task with requests has resources"
    tasks[position] = replace(tasks[position], resources=replace(resources, **{name: requested[position] - amount}))
    text = (
        f"{label} of {group.name}/{tasks[position].name} from {requested[position]} to {requested[position] - amount}"
    )
    return replace(group, tasks=tuple(tasks)), text


def _iter_without_constraint(job: Job, group: TaskGroup) -> Iterator[tuple[Constraint, Job, TaskGroup]]:
    """Yield each constraint with copies of job and group that lack this constraint."""
    for constraint in job.constraints or ():
        yield constraint, replace(job, constraints=tuple(c for c in job.constraints or () if c != constraint)), group
    for constraint in group.constraints or ():
        yield constraint, job, replace(group, constraints=tuple(c for c in group.constraints or () if c != constraint))
    for task in group.tasks or ():
        for constraint in task.constraints or ():
            changed_task = replace(task, constraints=tuple(c for c in task.constraints or () if c != constraint))
            tasks = tuple(changed_task if other is task else other for other in group.tasks or ())
            yield constraint, job, replace(group, tasks=tasks)
