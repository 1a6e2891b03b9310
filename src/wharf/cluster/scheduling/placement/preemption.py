"""Preemption: which allocations of lower priority are stopped for a job that finds no resources (scheduling.md 4).

Resources count as used until their node reports that the task has ended. So nothing is placed yet: victims are stopped,
and what they free is held for a while against jobs that are less urgent than the preempting job. Only CPU, memory and
disk are considered: no allocation is preempted for its ports or devices.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Final

import msgspec

from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import find_allocation_job
from wharf.cluster.state.tables import JOBS, SCHEDULER_CONFIGURATION, UNFINISHED_ALLOCATIONS_ON_NODE
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.operator.scheduler_configuration import PreemptionConfig
from wharf.contract.model.resource_usage import Usage, get_allocation_usage, get_node_capacity

MIN_PRIORITY_GAP: Final = 10
"""A job can only preempt jobs whose priority is lower by at least this much."""

MAX_SCANNED_NODES: Final = 200
"""Limits the time of a search: at most this many nodes are examined for one placement."""
MAX_VICTIMS: Final = 32
"""Limits the size of the plan: one evaluation preempts at most this many allocations."""

EXCESS_VICTIM_COST: Final = 50.0
"""Added to the cost of a victim for each allocation of its group that is preempted beyond `migrate.max_parallel`."""


class _Candidate(msgspec.Struct, frozen=True):
    """An allocation that may be preempted."""

    allocation: Allocation
    priority: int
    """The current priority of its job."""
    usage: Usage
    """The CPU, memory and disk that its end would free."""
    max_parallel: int
    """How many allocations of its group may be down at once. 0: no limit is set."""


def is_preemption_enabled(snapshot: Replica, job: Job) -> bool:
    """Return whether the scheduler configuration allows jobs of this type to preempt."""
    configuration = snapshot.get(SCHEDULER_CONFIGURATION)
    if configuration is None:
        return False
    return _READ_PREEMPTION_SETTING[job.type](configuration.preemption_config)


_READ_PREEMPTION_SETTING: Final[Mapping[str, Callable[[PreemptionConfig], bool]]] = {
    JobType.SERVICE: attrgetter("service_scheduler_enabled"),
    JobType.BATCH: attrgetter("batch_scheduler_enabled"),
    JobType.SYSTEM: attrgetter("system_scheduler_enabled"),
    JobType.SYSBATCH: attrgetter("sys_batch_scheduler_enabled"),
}
"""By job type, the function that reads the setting for preemption by such jobs."""


def is_preemptible_by(priority: int, preemptor_priority: int) -> bool:
    """Return whether a job with `preemptor_priority` may preempt allocations of a job with `priority`."""
    return priority <= preemptor_priority - MIN_PRIORITY_GAP


class VictimSearch:
    """Finds the allocations to preempt (victims) for the failed placements of one evaluation.

    What a placement will use on a node is recorded there, so that a later placement does not count on the same
    resources.
    """

    def __init__(self, snapshot: Replica, draft: FleetDraft, job: Job) -> None:
        self._snapshot = snapshot
        self._draft = draft
        self._job = job
        self._promised_usage: dict[int, Usage] = {}
        """By fleet row, what earlier placements of this evaluation will use once their victims have ended."""
        self._chosen_ids: dict[str, None] = {}
        """Ids of the victims of earlier placements, as an ordered set."""
        self._victims_by_group: Counter[tuple[str, str, str]] = Counter()
        """Number of victims by namespace, job id and group name."""

    def find_victims(self, rows: Iterable[int], demand: Usage) -> tuple[Allocation, ...]:
        """Return the allocations to preempt for one placement, all on the node where preemption costs least.

        `rows` are the fleet rows to examine, `demand` is what the placement uses. The demand is recorded as promised on
        the chosen node. The result is empty if no node can be freed, or if allocations that are already stopping will
        free enough on one of the nodes.
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
        """Return the allocations whose preemption frees the demand on the node in this fleet row at the lowest cost.

        The list is empty if free resources and allocations that are already stopping suffice. `None`: even the
        preemption of all candidates frees too little.
        """
        capacity, used = get_node_capacity(self._draft.fleet.get_node(row)), self._get_usage(row)
        allocations = self._snapshot.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, self._draft.fleet.get_node(row).id)
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
        """Return what is used on the node in this fleet row, with what was promised to earlier failed placements."""
        draft = self._draft
        used = Usage(int(draft.cpu_used[row]), int(draft.memory_used[row]), int(draft.disk_used[row]))
        return used + self._promised_usage.get(row, Usage())

    def _make_candidate(self, allocation: Allocation) -> _Candidate | None:
        """Return the allocation as a candidate for preemption.

        Return `None` if it belongs to the preempting job, its job is deleted, or its priority is too high.
        """
        job = self._snapshot.get(JOBS, allocation.namespace, allocation.job_id)
        if job is None or (job.namespace, job.id) == (self._job.namespace, self._job.id):
            return None
        if not is_preemptible_by(job.priority, self._job.priority):
            return None
        version = find_allocation_job(self._snapshot, allocation) or job
        group = version.find_group(allocation.task_group)
        max_parallel = group.migrate.max_parallel if group is not None and group.migrate is not None else 0
        return _Candidate(allocation, job.priority, get_allocation_usage(allocation), max_parallel)

    def _choose_cheapest(self, candidates: list[_Candidate], demand: Usage, free: Usage) -> list[_Candidate] | None:
        """Return the candidates to preempt, so that the demand fits in what is then free on their node.

        Candidates of the lowest priority come first; of equal priorities, the one whose usage is closest to what is
        still missing. At the end, candidates that are not needed after all are dropped. `free` is what is free without
        preemption. Return `None` if even the preemption of all candidates frees too little.
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
        # The candidates that were chosen last may make earlier ones unnecessary.
        for candidate in sorted(chosen, key=lambda candidate: _compute_distance(demand, candidate.usage), reverse=True):
            free_without = _subtract(free, candidate.usage)
            if demand.fits_in(free_without):
                chosen.remove(candidate)
                free = free_without
        return chosen

    def _compute_excess_cost(self, candidate: _Candidate, chosen: list[_Candidate]) -> float:
        """Return the extra cost of preempting the candidate because its group loses many allocations.

        It is 0 while the group loses at most `migrate.max_parallel`, or has no such limit, and `EXCESS_VICTIM_COST` for
        each allocation beyond. `chosen` are the candidates that were chosen for the current placement.
        """
        group = _get_group_key(candidate.allocation)
        stopped_count = self._victims_by_group[group] + sum(
            _get_group_key(victim.allocation) == group for victim in chosen
        )
        if not candidate.max_parallel or stopped_count < candidate.max_parallel:
            return 0.0
        return EXCESS_VICTIM_COST * (stopped_count + 1 - candidate.max_parallel)


def _get_group_key(allocation: Allocation) -> tuple[str, str, str]:
    """Return the key of the allocation's group: namespace, job id and group name."""
    return allocation.namespace, allocation.job_id, allocation.task_group


def _subtract(total: Usage, used: Usage) -> Usage:
    """Return `total` minus `used`. Amounts may be negative."""
    return Usage(total.cpu - used.cpu, total.memory_mb - used.memory_mb, total.disk_mb - used.disk_mb)


def _compute_distance(needed: Usage, victim_usage: Usage) -> float:
    """Return how far the victim's usage is from the needed amounts: 0 if it equals them.

    It is the Euclidean distance of CPU, memory and disk, each relative to the needed amount. What is not needed is
    ignored.
    """
    pairs = (
        (needed.cpu, victim_usage.cpu),
        (needed.memory_mb, victim_usage.memory_mb),
        (needed.disk_mb, victim_usage.disk_mb),
    )
    return math.sqrt(
        sum(
            ((needed_amount - victim_amount) / needed_amount) ** 2
            for needed_amount, victim_amount in pairs
            if needed_amount > 0
        )
    )


def _compute_preemption_cost(victims: Iterable[_Candidate]) -> float:
    """Return the cost of preempting these victims, which must not be empty.

    It is the highest of their priorities, plus the sum of their priorities divided by the highest. So the highest
    priority decides, and each further victim adds at most 1.
    """
    priorities = [victim.priority for victim in victims]
    highest = max(priorities)
    return highest + sum(priorities) / max(1, highest)
