"""Examines the nodes for one more allocation of a group: which could take it, and what each of the others lacks.

Computed from the current fleet. It places nothing.
"""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.constraints import CROSS_ALLOCATION_OPERANDS, list_group_constraints
from wharf.cluster.scheduling.feasibility.checker import (
    FEASIBLE,
    MISSING_DRIVERS,
    explain_missing_driver,
    has_healthy_driver,
)
from wharf.cluster.scheduling.feasibility.distinct import DistinctConstraints, list_placed_siblings
from wharf.cluster.scheduling.feasibility.location import is_in_pool_and_datacenter
from wharf.cluster.scheduling.feasibility.volumes import NamespaceVolumes
from wharf.cluster.scheduling.fleet.columns import Ints, Mask
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.ranking.candidates import Candidates
from wharf.cluster.scheduling.ranking.rules import get_placement_rules
from wharf.cluster.scheduling.ranking.seeded_random import SeededRandom
from wharf.cluster.scheduling.resources.assignment import InsufficientResources, ResourceAssigner, list_usable_cores
from wharf.cluster.scheduling.unreported_nodes import is_full_report_due
from wharf.cluster.state import Replica
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.explanations import Exclusion
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.nodes.node import Node, NodeStatus
from wharf.contract.model.resource_usage import get_group_demand

MAX_EXAMPLES: Final = 3
"""How many node names are listed as examples."""
MAX_DRIVER_REASONS: Final = 3
"""How many reasons are given why nodes lack drivers; keeps the text readable."""
MAX_CLOSED_NODES: Final = 50
"""Limits the time of a report: each of these nodes is checked alone."""
FINISHED_STATUSES: Final = (ClientStatus.COMPLETE, ClientStatus.FAILED)
"""Client statuses of an allocation whose tasks have ended."""
MAX_SEPARATE_CONSTRAINTS: Final = 20
"""Limits the time of a report: each constraint is checked alone on all kinds of nodes."""
MAX_PROBED_NODES: Final = 1_000
"""Limits the time of a report: ports, cores and devices are checked on this many nodes only."""


def is_served_by(job: Job, allocation: Allocation) -> bool:
    """Return whether this allocation is the one that a system or sysbatch job requires on its node.

    It is active, or, for a sysbatch job, has completed or failed in the current version.
    """
    if allocation.job_create_index != job.create_index:
        return False
    is_done = job.type == JobType.SYSBATCH and allocation.client_status in FINISHED_STATUSES
    return not allocation.is_terminal or (is_done and allocation.job_version == job.version)


class ExaminedNodes:
    """All nodes, examined for one more allocation of a group."""

    def __init__(
        self,
        cache: SchedulerCache,
        snapshot: Replica,
        job: Job,
        group: TaskGroup,
        allocations: Iterable[Allocation],
        *,
        started: Sequence[Allocation] = (),
        stopped: Sequence[Allocation] = (),
    ) -> None:
        self._cache = cache
        self.fleet = cache.fleet
        self._started = started
        self._stopped = stopped
        self._snapshot = snapshot
        self.job = job
        self.group = group
        self.is_considered = cache.feasibility.select_ready_nodes(job)
        """By row of the fleet, whether the node is in the job's pool and datacenters and accepts placements.

        For system jobs, without the nodes that have their allocation.
        """
        self._siblings = list_placed_siblings(allocations, cache.fleet.row_by_node_id)
        self.served_count = 0  # For system jobs, how many nodes have their allocation.
        if job.runs_on_every_node:
            self._exclude_served_nodes(allocations)
        rules = get_placement_rules(snapshot, job)
        self.assigner = ResourceAssigner(group, can_oversubscribe=rules.can_oversubscribe)
        self.rows = self.find_feasible_rows(job, group)
        """The rows of the feasible nodes in the fleet.

        Other columns have one entry for each of them, in the same order; "position" means the index of an entry.
        """
        self.candidates = self.build_candidates(group, self.rows)
        """Capacity and use of these nodes after one more allocation."""
        self.distinct_exclusions = self._find_distinct_exclusions(self.rows)
        """By position, why a constraint `distinct_hosts` or `distinct_property` excludes the node."""
        if not self.assigner.has_only_amounts:
            self._probe_exclusive_resources(self.candidates, self.rows)
        self.missing_masks = self.candidates.list_shortages()  # By resource, which of these nodes lack it.

    def _exclude_served_nodes(self, allocations: Iterable[Allocation]) -> None:
        """Exclude the nodes that already have their allocation of a system or sysbatch job, and count them."""
        row_by_node_id, count_before = self.fleet.row_by_node_id, int(self.is_considered.sum())
        self.is_considered = self.is_considered.copy()
        for allocation in allocations:
            if (
                allocation.node_id in row_by_node_id
                and allocation.task_group == self.group.name
                and is_served_by(self.job, allocation)
            ):
                self.is_considered[row_by_node_id[allocation.node_id]] = False
        self.served_count = count_before - int(self.is_considered.sum())

    @property
    def find_volume(self) -> NamespaceVolumes:
        """The lookup of host volumes of the job's namespace."""
        return NamespaceVolumes(self._snapshot, self.job.namespace)

    def find_feasible_rows(self, job: Job, group: TaskGroup) -> Ints:
        """Return the rows of the considered nodes that are feasible for this job and group, which may be changed
        copies.
        """
        find_volume = NamespaceVolumes(self._snapshot, job.namespace)
        screened = self._cache.feasibility.screen_nodes(self.is_considered, job, group, find_volume)
        rows: Ints = np.flatnonzero(screened.feasible)
        return rows

    def list_closed_nodes(self) -> list[Node]:
        """Return the nodes that operators have closed for new allocations, and that could take this one otherwise."""
        closed = np.zeros(len(self.is_considered), dtype=np.bool_)
        for row, node in self.fleet.iter_nodes():
            closed[row] = (
                node.status is NodeStatus.READY
                and not node.is_ready_for_placements
                and is_in_pool_and_datacenter(self.job, node)
                and not self.is_full_report_due(node)
            )
        if not closed.any() or self.job.runs_on_every_node:
            return []
        find_volume = NamespaceVolumes(self._snapshot, self.job.namespace)
        screened = self._cache.feasibility.screen_nodes(closed, self.job, self.group, find_volume)
        feasible = np.flatnonzero(screened.feasible)
        # Those that would fit are counted one by one, because counting says only how many there are.
        return [
            self.fleet.get_node(int(row))
            for row in feasible[:MAX_CLOSED_NODES]
            if self.count_fitting_rows(self.group, np.array([row], dtype=np.int64))
        ]

    def build_candidates(self, group: TaskGroup, rows: Ints) -> Candidates:
        """Return capacity and use of the nodes in these rows after one more allocation of this group."""
        return Candidates(self._make_draft(), rows, self.assigner, get_group_demand(group))

    def build_probed_candidates(self, group: TaskGroup) -> Candidates:
        """Return capacity and use of the first `MAX_PROBED_NODES` feasible nodes after one more allocation of this group.

        The group is a copy of the examined one that requests other resources, such as fewer cores.
        """
        rules = get_placement_rules(self._snapshot, self.job)
        assigner = ResourceAssigner(group, can_oversubscribe=rules.can_oversubscribe)
        return Candidates(self._make_draft(), self.rows[:MAX_PROBED_NODES], assigner, get_group_demand(group))

    def _make_draft(self) -> FleetDraft:
        """Return the resources in use on each node, with the planned allocations and without those to be stopped."""
        draft = FleetDraft(self.fleet)
        for allocation in self._stopped:
            row = self.fleet.row_by_node_id.get(allocation.node_id)
            if row is not None and allocation.allocated_resources is not None:
                draft.remove_allocation(row, allocation.allocated_resources)
        for allocation in self._started:
            row = self.fleet.row_by_node_id.get(allocation.node_id)
            if row is not None and allocation.allocated_resources is not None:
                draft.restore_allocation(row, allocation.allocated_resources)
        return draft

    def _probe_exclusive_resources(self, candidates: Candidates, rows: Ints) -> None:
        """Try to assign ports, cores and devices on each node that has enough CPU, memory and disk.

        Store what is missing first on a node in `missing_dimensions` of the candidates. At most `MAX_PROBED_NODES`
        nodes are tried.
        """
        draft = self._make_draft()
        random = SeededRandom(self.job.id, self._snapshot.index)
        for position in np.flatnonzero(candidates.has_capacity)[:MAX_PROBED_NODES]:
            row = int(rows[position])
            try:
                self.assigner.assign_resources(
                    self.fleet.get_node(row), draft.get_exclusive_resources(row), random.draw_below
                )
            except InsufficientResources as shortage:
                candidates.missing_dimensions[int(position)] = shortage.dimension

    def _find_distinct_exclusions(self, rows: Ints) -> dict[int, str]:
        """Return why `distinct_hosts` and `distinct_property` exclude nodes, by the position of the node in `rows`."""
        constraints = DistinctConstraints(
            self.fleet, self.job, self.group, should_check_hosts=not self.job.runs_on_every_node
        )
        if not constraints:
            return {}
        constraints.count_siblings(self._siblings)
        return {
            int(position): constraints.explain_row(int(rows[position]))
            for position in np.flatnonzero(~constraints.mask_allowed(rows))
        }

    def is_full_report_due(self, node: Node) -> bool:
        """Return whether the node must report all its allocations before anything is placed on it."""
        return is_full_report_due(self._snapshot, node)

    def mask_fitting(self) -> Mask:
        """Return a mask of the feasible nodes that could take one more allocation."""
        fits: Mask = np.ones(len(self.rows), dtype=np.bool_)
        for _, is_short in self.missing_masks:
            fits &= ~is_short
        fits[list(self.distinct_exclusions)] = False
        return fits

    def count_fitting_rows(self, group: TaskGroup, rows: Ints) -> int:
        """Return how many nodes in these rows, which may be infeasible now, could take an allocation of the group."""
        candidates = self.build_candidates(group, rows)
        if not self.assigner.has_only_amounts:
            self._probe_exclusive_resources(candidates, rows)
        fits: Mask = np.ones(len(rows), dtype=np.bool_)
        for _, is_short in candidates.list_shortages():
            fits &= ~is_short
        fits[list(self._find_distinct_exclusions(rows))] = False
        return int(fits.sum())

    def iter_infeasible(self) -> Iterator[Exclusion]:
        """Yield the considered nodes that are not feasible, by reason. A node with several unmet constraints counts for each."""
        for job, group in _separate_constraints(self.job, self.group):
            yield from self._iter_infeasible(job, group)

    def _iter_infeasible(self, job: Job, group: TaskGroup) -> Iterator[Exclusion]:
        """Yield the considered nodes that are not feasible, by the first reason of each."""
        find_volume = NamespaceVolumes(self._snapshot, self.job.namespace)
        screened = self._cache.feasibility.screen_nodes(self.is_considered, job, group, find_volume)
        for code, reason in enumerate(screened.reasons.values):
            rows = np.flatnonzero(screened.reason_codes == code) if code > FEASIBLE else np.zeros(0, dtype=np.int64)
            if len(rows):
                # A constraint without a right side ends in a blank; metrics strip it too.
                text = self._describe_missing_drivers(rows) if reason == MISSING_DRIVERS else ""
                examples = self.get_example_names(rows)
                yield Exclusion(rule=reason.rstrip(), nodes=len(rows), examples=examples, text=text)

    def _describe_missing_drivers(self, rows: Ints) -> str:
        """Return which driver the nodes in these rows lack, with the reasons that the nodes give.

        A node that lacks several drivers counts for the first of them.
        """
        drivers = sorted({task.driver for task in self.group.tasks or ()})
        counts: Counter[tuple[str, str]] = Counter()
        for row in rows.tolist():
            node = self.fleet.get_node(row)
            driver = next(name for name in drivers if not has_healthy_driver(node, name))
            counts[driver, explain_missing_driver(node, driver)] += 1
        total = int(self.is_considered.sum())
        texts = []
        for (driver, why), count in counts.most_common(MAX_DRIVER_REASONS):
            state, _, details = why.partition(" ")
            texts.append(f"driver {driver}: {state} on {count} of {format_nodes(total)} {details}")
        more = len(counts) - MAX_DRIVER_REASONS
        return "; ".join(texts) + (f"; and {more} other reasons" if more > 0 else "")

    def get_missing_amounts(self, dimension: str) -> Ints | None:
        """Return how much of CPU, memory or disk each feasible node lacks for one more allocation.

        Amounts are MHz or MB, and negative if the node has more than enough. Return `None` if the dimension has no
        amount.
        """
        candidates = self.candidates
        match dimension:
            case "cpu":
                return candidates.cpu_after - candidates.cpu
            case "memory":
                return candidates.memory_after - candidates.memory
            case "disk":
                return candidates.disk_after - candidates.disk
        return None

    def get_example_names(self, rows: Sequence[int] | Ints) -> tuple[str, ...]:
        """Return the names of up to `MAX_EXAMPLES` nodes in these rows, sorted."""
        nodes = (self.fleet.get_node(int(row)) for row in rows[: 10 * MAX_EXAMPLES])
        return tuple(sorted(node.name or node.id for node in nodes)[:MAX_EXAMPLES])

    @functools.cached_property
    def usable_cores(self) -> Ints:
        """The number of cores of each feasible node that tasks can reserve, free or not."""
        nodes = (self.fleet.get_node(row) for row in self.rows.tolist())
        return np.array([len(list_usable_cores(node)) for node in nodes], dtype=np.int64)

    @functools.cached_property
    def free_cores(self) -> Ints:
        """The number of free cores of each feasible node.

        Nodes beyond `MAX_PROBED_NODES` are not examined and have 0.
        """
        free: Ints = np.zeros(len(self.rows), dtype=np.int64)
        draft = self._make_draft()
        for position, row in enumerate(self.rows[:MAX_PROBED_NODES].tolist()):
            in_use = draft.get_exclusive_resources(row).cores
            free[position] = sum(core not in in_use for core in list_usable_cores(self.fleet.get_node(row)))
        return free


def without_constraints(
    job: Job, group: TaskGroup, dropped: Collection[Constraint] | None = None
) -> tuple[Job, TaskGroup]:
    """Return copies of job and group without these constraints, or without any. Tasks have constraints, too."""

    def keep(constraints: Sequence[Constraint] | None) -> tuple[Constraint, ...]:
        return tuple(each for each in constraints or () if dropped is not None and each not in dropped)

    tasks = tuple(replace(task, constraints=keep(task.constraints)) for task in group.tasks or ())
    return (
        replace(job, constraints=keep(job.constraints)),
        replace(group, constraints=keep(group.constraints), tasks=tasks),
    )


def list_node_constraints(job: Job, group: TaskGroup) -> list[Constraint]:
    """Return the constraints of job, group and tasks that depend on the node alone, each once."""
    constraints = (*(job.constraints or ()), *list_group_constraints(group))
    return list(dict.fromkeys(each for each in constraints if each.operand not in CROSS_ALLOCATION_OPERANDS))


def _separate_constraints(job: Job, group: TaskGroup) -> Iterator[tuple[Job, TaskGroup]]:
    """Yield job and group without constraints, and with each constraint alone, so that each unmet requirement is found.

    Yield them unchanged if they have no constraint or too many. Then each node has its first unmet requirement only.
    """
    constraints = list_node_constraints(job, group)
    if not 0 < len(constraints) <= MAX_SEPARATE_CONSTRAINTS:
        yield job, group
        return
    bare_job, bare_group = without_constraints(job, group)
    empty_group = TaskGroup(name=group.name)
    for constraint in constraints:
        yield replace(bare_job, constraints=(constraint,)), empty_group
    yield bare_job, bare_group


def get_node_state(node: Node) -> str:
    """Return the state of a node that prevents placements, such as "down", "draining" or "ineligible"."""
    if node.status is not NodeStatus.READY:
        return node.status.value
    return "draining" if node.drain_strategy is not None else "ineligible"


def format_nodes(count: int) -> str:
    """Return the count with the word "node" or "nodes"."""
    return "1 node" if count == 1 else f"{count} nodes"
