"""Preemption: which allocations of lower priority are stopped for a job that finds no resources (scheduling.md 4).

Resources count as used until their node reports that the task has ended. So nothing is placed yet: victims are stopped,
and what they free is held for a while against jobs that are less urgent than the preempting job. Only amounts are
considered: no allocation is preempted for its ports or devices.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.resources.usage import Usage, get_allocation_usage, get_node_capacity
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_ON_NODE, JOB_VERSIONS, JOBS, SCHEDULER_CONFIGURATION
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.job import Job, JobType

MIN_PRIORITY_GAP: Final = 10
"""A job can only preempt jobs whose priority is lower by at least this much."""

MAX_SCANNED_NODES: Final = 200
"""Limits the time of a search: nodes that are examined."""
MAX_VICTIMS: Final = 32
"""Limits the size of the plan: victims of one evaluation."""

EXCESS_VICTIM_COST: Final = 50.0
"""Added to the cost of a victim for each allocation of its group that is preempted beyond `migrate.max_parallel`."""


class _Candidate(msgspec.Struct, frozen=True):
    """An allocation that may be preempted."""

    allocation: Allocation
    priority: int
    usage: Usage
    max_parallel: int
    """How many allocations of its group may be down at once. 0: no limit is set."""


def is_preemption_enabled(snapshot: Replica, job: Job) -> bool:
    """Return whether the scheduler configuration allows jobs of this type to preempt."""
    configuration = snapshot.get(SCHEDULER_CONFIGURATION)
    if configuration is None:
        return False
    allowed = configuration.preemption_config
    return {
        JobType.SERVICE: allowed.service_scheduler_enabled,
        JobType.BATCH: allowed.batch_scheduler_enabled,
        JobType.SYSTEM: allowed.system_scheduler_enabled,
        JobType.SYSBATCH: allowed.sys_batch_scheduler_enabled,
    }[JobType(job.type)]


def is_preemptible_by(priority: int, preemptor_priority: int) -> bool:
    """Return whether a job with this priority can be preempted by a job with priority `preemptor_priority`."""
    return priority <= preemptor_priority - MIN_PRIORITY_GAP


class VictimSearch:
    """Finds the victims of one evaluation. Free resources that it expects on a node are promised only once."""

    def __init__(self, snapshot: Replica, draft: FleetDraft, job: Job) -> None:
        self._snapshot = snapshot
        self._draft = draft
        self._job = job
        self._promised_usage: dict[int, Usage] = {}
        self._chosen_ids: dict[str, None] = {}
        self._victims_by_group: Counter[tuple[str, str, str]] = Counter()

    def find_victims(self, rows: Iterable[int], demand: Usage) -> tuple[Allocation, ...]:
        """Return the victims on the node where preemption costs least, and promise the demand there.

        Empty: no node can be freed, or allocations that are already stopping free enough on one of them.
        """
        best: tuple[float, int, list[_Candidate]] | None = None
        for row, _ in zip(rows, range(MAX_SCANNED_NODES), strict=False):
            candidates = self._select_victims_on_row(row, demand)
            if candidates is None or len(self._chosen_ids) + len(candidates) > MAX_VICTIMS:
                continue
            if not candidates:
                best = 0.0, row, candidates
                break
            cost = _compute_preemption_cost(candidates)
            if best is None or cost < best[0]:
                best = cost, row, candidates
        if best is None:
            return ()
        _, row, candidates = best
        victims = tuple(candidate.allocation for candidate in candidates)
        self._promised_usage[row] = self._promised_usage.get(row, Usage()) + demand
        for victim in victims:
            self._chosen_ids[victim.id] = None
            self._victims_by_group[_get_group_key(victim)] += 1
        return victims

    def _select_victims_on_row(self, row: int, demand: Usage) -> list[_Candidate] | None:
        """Return the cheapest victims on the node.

        The list is empty if pending stops free enough. `None`: even all candidates free too little.
        """
        capacity, used = get_node_capacity(self._draft.fleet.get_node(row)), self._get_usage(row)
        allocations = self._snapshot.list_by_index(ALLOCATIONS_ON_NODE, self._draft.fleet.get_node(row).id)
        free = _subtract(capacity, used)
        candidates = []
        for allocation in allocations:
            if not allocation.is_occupying:
                continue
            if allocation.is_server_terminal or allocation.id in self._chosen_ids:
                free = free + get_allocation_usage(allocation)
            elif (candidate := self._make_candidate(allocation)) is not None:
                candidates.append(candidate)
        return self._choose_cheapest(candidates, demand, free)

    def _get_usage(self, row: int) -> Usage:
        """Return what is used on the node, including what was promised to earlier placements of this evaluation."""
        draft = self._draft
        used = Usage(int(draft.cpu_used[row]), int(draft.memory_used[row]), int(draft.disk_used[row]))
        return used + self._promised_usage.get(row, Usage())

    def _make_candidate(self, allocation: Allocation) -> _Candidate | None:
        """Return the allocation as a candidate, or `None` if it belongs to this job or its priority is too high."""
        job = self._snapshot.get(JOBS, allocation.namespace, allocation.job_id)
        if job is None or (job.namespace, job.id) == (self._job.namespace, self._job.id):
            return None
        if not is_preemptible_by(job.priority, self._job.priority):
            return None
        version = self._snapshot.get(JOB_VERSIONS, job.namespace, job.id, allocation.job_version) or job
        group = version.find_group(allocation.task_group)
        max_parallel = group.migrate.max_parallel if group is not None and group.migrate is not None else 0
        return _Candidate(allocation, job.priority, get_allocation_usage(allocation), max_parallel)

    def _choose_cheapest(self, candidates: list[_Candidate], demand: Usage, free: Usage) -> list[_Candidate] | None:
        """Return victims of the lowest priorities, and of one priority those whose usage is closest to the demand.

        `None`: even all candidates free too little.
        """
        chosen: list[_Candidate] = []
        for priority in sorted({candidate.priority for candidate in candidates}):
            remaining = [candidate for candidate in candidates if candidate.priority == priority]
            while remaining and not demand.fits_in(free):
                needed = _subtract(demand, free)
                nearest = min(
                    remaining,
                    key=lambda candidate: (
                        _compute_distance(needed, candidate.usage) + self._compute_excess_cost(candidate, chosen)
                    ),
                )
                remaining.remove(nearest)
                chosen.append(nearest)
                free = free + nearest.usage
        if not demand.fits_in(free):
            return None
        # The last victims may have made the first ones superfluous.
        for candidate in sorted(chosen, key=lambda candidate: _compute_distance(demand, candidate.usage), reverse=True):
            free_without = _subtract(free, candidate.usage)
            if demand.fits_in(free_without):
                chosen.remove(candidate)
                free = free_without
        return chosen

    def _compute_excess_cost(self, candidate: _Candidate, chosen: list[_Candidate]) -> float:
        """Return the extra cost if the candidate's group would lose more than `migrate.max_parallel` allocations."""
        group = _get_group_key(candidate.allocation)
        stopped_count = self._victims_by_group[group] + sum(
            _get_group_key(victim.allocation) == group for victim in chosen
        )
        if not candidate.max_parallel or stopped_count < candidate.max_parallel:
            return 0.0
        return EXCESS_VICTIM_COST * (stopped_count + 1 - candidate.max_parallel)


def _get_group_key(allocation: Allocation) -> tuple[str, str, str]:
    """Return the key of the allocation's group."""
    return allocation.namespace, allocation.job_id, allocation.task_group


def _subtract(total: Usage, used: Usage) -> Usage:
    """Return the difference of two usages."""
    return Usage(total.cpu - used.cpu, total.memory_mb - used.memory_mb, total.disk_mb - used.disk_mb)


def _compute_distance(needed: Usage, victim: Usage) -> float:
    """Return the distance between the victim's usage and the missing amounts, relative to the missing amounts."""
    pairs = (
        (needed.cpu, victim.cpu),
        (needed.memory_mb, victim.memory_mb),
        (needed.disk_mb, victim.disk_mb),
    )
    return math.sqrt(
        sum(
            ((needed_amount - victim_amount) / needed_amount) ** 2
            for needed_amount, victim_amount in pairs
            if needed_amount > 0
        )
    )


def _compute_preemption_cost(victims: Iterable[_Candidate]) -> float:
    """Return the cost of preempting these victims: the highest priority, plus a small amount for their number."""
    priorities = [victim.priority for victim in victims]
    highest = max(priorities)
    return highest + sum(priorities) / max(1, highest)
