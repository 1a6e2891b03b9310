"""Whom a job of higher priority pushes aside where nothing else makes room (scheduling.md 4).

Resources count as used until their node says that the work has ended. So nothing is put in the victims' place yet: they are
told to go, and what they leave is kept for a while against all jobs that are not as urgent as the one they went for. It
looks at amounts only: whoever holds a port or a device that is asked for is pushed aside by nobody.
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
from wharf.contract.model.nodes.node import Node

MIN_PRIORITY_GAP: Final = 10
"""So much lower must a job's priority be for another to push it aside."""

MAX_SCANNED_NODES: Final = 200
MAX_VICTIMS: Final = 32
"""Of one evaluation, so that it stays a small step."""

EXCESS_VICTIM_COST: Final = 50.0
"""What a victim costs more for each of its group that is pushed aside beyond what that lets go at once."""


class PreemptionChoice(msgspec.Struct, frozen=True):
    """A node, and who must go there. None: enough of what is there goes already."""

    node: Node
    victims: tuple[Allocation, ...] = ()


class _Candidate(msgspec.Struct, frozen=True):
    allocation: Allocation
    priority: int
    usage: Usage
    let_go: int
    """How many of its group may be away at once; 0: nobody says."""


def is_preemption_enabled(snapshot: Replica, job: Job) -> bool:
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


def is_preemptible_by(priority: int, other: int) -> bool:
    """Whether work of this priority gives way to work of the other."""
    return priority <= other - MIN_PRIORITY_GAP


class VictimSearch:
    """What one evaluation does to others. PreemptionChoice that it waits for on a node is promised once."""

    def __init__(self, snapshot: Replica, draft: FleetDraft, job: Job) -> None:
        self._snapshot = snapshot
        self._draft = draft
        self._job = job
        self._promised: dict[int, Usage] = {}
        self._chosen: dict[str, None] = {}
        self._of_group: Counter[tuple[str, str, str]] = Counter()

    def find_victims(self, rows: Iterable[int], demand: Usage) -> PreemptionChoice | None:
        """The node where those who must go count least, and these; None: nobody who gives way makes room enough."""
        best: tuple[float, int, PreemptionChoice] | None = None
        for row, _ in zip(rows, range(MAX_SCANNED_NODES), strict=False):
            victims = self._victims_on(row, demand)
            if victims is None or len(self._chosen) + len(victims) > MAX_VICTIMS:
                continue
            room = PreemptionChoice(self._draft.fleet.get_node(row), tuple(each.allocation for each in victims))
            if not victims:
                best = 0.0, row, room
                break
            weight = _net_priority(victims)
            if best is None or weight < best[0]:
                best = weight, row, room
        if best is None:
            return None
        _, row, room = best
        self._promised[row] = self._promised.get(row, Usage()) + demand
        for victim in room.victims:
            self._chosen[victim.id] = None
            self._of_group[_group_of(victim)] += 1
        return room

    def _victims_on(self, row: int, demand: Usage) -> list[_Candidate] | None:
        """Nobody, where enough goes already; None: those who give way leave too little."""
        room, used = get_node_capacity(self._draft.fleet.get_node(row)), self._used(row)
        there = self._snapshot.list_by_index(ALLOCATIONS_ON_NODE, self._draft.fleet.get_node(row).id)
        free = _less(room, used)
        candidates = []
        for allocation in there:
            if not allocation.is_occupying:
                continue
            if allocation.is_server_terminal or allocation.id in self._chosen:
                free = free + get_allocation_usage(allocation)
            elif (candidate := self._candidate(allocation)) is not None:
                candidates.append(candidate)
        return self._least(candidates, demand, free)

    def _used(self, row: int) -> Usage:
        draft = self._draft
        used = Usage(int(draft.cpu_used[row]), int(draft.memory_used[row]), int(draft.disk_used[row]))
        return used + self._promised.get(row, Usage())

    def _candidate(self, allocation: Allocation) -> _Candidate | None:
        job = self._snapshot.get(JOBS, allocation.namespace, allocation.job_id)
        if job is None or (job.namespace, job.id) == (self._job.namespace, self._job.id):
            return None
        if not is_preemptible_by(job.priority, self._job.priority):
            return None
        version = self._snapshot.get(JOB_VERSIONS, job.namespace, job.id, allocation.job_version) or job
        group = version.find_group(allocation.task_group)
        let_go = group.migrate.max_parallel if group is not None and group.migrate is not None else 0
        return _Candidate(allocation, job.priority, get_allocation_usage(allocation), let_go)

    def _least(self, candidates: list[_Candidate], demand: Usage, free: Usage) -> list[_Candidate] | None:
        """Of the lowest priorities first, and of one priority those nearest to what is still needed."""
        chosen: list[_Candidate] = []
        for priority in sorted({each.priority for each in candidates}):
            left = [each for each in candidates if each.priority == priority]
            while left and not demand.fits_in(free):
                needed = _less(demand, free)
                nearest = min(left, key=lambda each: _distance(needed, each.usage) + self._cost(each, chosen))
                left.remove(nearest)
                chosen.append(nearest)
                free = free + nearest.usage
        if not demand.fits_in(free):
            return None
        # The last that were needed may have made the first superfluous.
        for each in sorted(chosen, key=lambda each: _distance(demand, each.usage), reverse=True):
            without = _less(free, each.usage)
            if demand.fits_in(without):
                chosen.remove(each)
                free = without
        return chosen

    def _cost(self, candidate: _Candidate, chosen: list[_Candidate]) -> float:
        group = _group_of(candidate.allocation)
        gone = self._of_group[group] + sum(_group_of(each.allocation) == group for each in chosen)
        if not candidate.let_go or gone < candidate.let_go:
            return 0.0
        return EXCESS_VICTIM_COST * (gone + 1 - candidate.let_go)


def _group_of(allocation: Allocation) -> tuple[str, str, str]:
    return allocation.namespace, allocation.job_id, allocation.task_group


def _less(room: Usage, taken: Usage) -> Usage:
    return Usage(room.cpu - taken.cpu, room.memory_mb - taken.memory_mb, room.disk_mb - taken.disk_mb)


def _distance(needed: Usage, victim: Usage) -> float:
    pairs = (
        (needed.cpu, victim.cpu),
        (needed.memory_mb, victim.memory_mb),
        (needed.disk_mb, victim.disk_mb),
    )
    return math.sqrt(sum(((want - has) / want) ** 2 for want, has in pairs if want > 0))


def _net_priority(victims: Iterable[_Candidate]) -> float:
    """How much their going counts: the highest of them, and a little for how many they are."""
    priorities = [each.priority for each in victims]
    highest = max(priorities)
    return highest + sum(priorities) / max(1, highest)
