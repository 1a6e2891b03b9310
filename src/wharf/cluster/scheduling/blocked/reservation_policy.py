"""Room that is kept for work that has waited too long: so that small work, which fits wherever a little comes free, does not
keep big work waiting for ever.

One node is kept for one allocation at a time. What runs there goes on to its end; what comes free there is given to nobody
of the same or a lower priority until there is enough for the one that waits. So whoever is given a node is placed at the
latest when what ran there has ended. It says who may have a node and which; it writes nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from wharf.cluster.scheduling.cache import NamespaceVolumes, SchedulerCache
from wharf.cluster.scheduling.capacity.reservation import Reservation, find_largest_waiting_group
from wharf.cluster.scheduling.feasibility.distinct import DistinctConstraints, PlacedSibling
from wharf.cluster.scheduling.fleet.columns import Ints
from wharf.cluster.scheduling.resources.usage import Usage, get_allocation_usage, get_group_demand
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, ALLOCATIONS_ON_NODE, JOBS, NODES
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.times import SECOND

RESERVATION_DELAY_NS: Final = 120 * SECOND
"""Whoever has waited so long for room is given a node."""

NODES_PER_RESERVATION: Final = 10
"""Of so many nodes one may be kept, and in any cluster one."""

MAX_SCANNED_NODES: Final = 64
"""Those that lack least are asked what of their work ends by itself."""

FINITE_JOB_TYPES: Final = (JobType.BATCH, JobType.SYSBATCH)


def can_reserve_node(snapshot: Replica, evaluation: Evaluation) -> bool:
    """Whether what it waits for is room on any one node. Work for every node has its nodes already, and what must be placed
    at once, or waits for its quota, is not helped by one.
    """
    if (
        evaluation.quota_limit_reached
        or evaluation.waits_behind
        or evaluation.triggered_by is EvaluationTrigger.MAX_PLAN_ATTEMPTS
    ):
        return False
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    if job is None or job.stop or job.all_at_once:
        return False
    return job.type in (JobType.SERVICE, JobType.BATCH) and find_largest_waiting_group(job, evaluation) is not None


def get_max_reservations(cache: SchedulerCache) -> int:
    """How many nodes may be kept at the same time."""
    return max(1, len(cache.fleet.row_by_node_id) // NODES_PER_RESERVATION)


def select_evaluations_to_reserve(
    snapshot: Replica,
    cache: SchedulerCache,
    waiting: Iterable[Evaluation],
    reserved: Iterable[Reservation],
    now_ns: int,
) -> list[Evaluation]:
    """Those to whom a node is due: the most urgent, of these the one that waits longest; of a namespace one at a time."""
    standing = list(reserved)
    served = {each.namespace for each in standing}
    found: list[Evaluation] = []
    due = (each for each in waiting if each.waiting_since_ns + RESERVATION_DELAY_NS <= now_ns)
    for evaluation in sorted(due, key=lambda each: (-each.priority, each.waiting_since_ns, each.create_index, each.id)):
        if len(standing) + len(found) >= get_max_reservations(cache):
            break
        if evaluation.namespace not in served and can_reserve_node(snapshot, evaluation):
            served.add(evaluation.namespace)
            found.append(evaluation)
    return found


def find_node_to_reserve(
    snapshot: Replica, cache: SchedulerCache, evaluation: Evaluation, reserved: Iterable[Reservation]
) -> str:
    """The node that lacks least for it, of those where enough ends by itself; empty: there is none."""
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    group = None if job is None else find_largest_waiting_group(job, evaluation)
    if job is None or group is None:
        return ""
    taken = {each.node_id for each in reserved}
    demand, rows = get_group_demand(group), _rows_for(snapshot, cache, job, group)
    for row in _least_lacking_first(cache, rows, demand):
        node = cache.fleet.get_node(row)
        if node.id not in taken and _comes_free(snapshot, cache, row, demand):
            return node.id
    return ""


def is_reservation_useful(snapshot: Replica, cache: SchedulerCache, reservation: Reservation) -> bool:
    """Whether its node takes work, and enough of what is there ends by itself."""
    node = snapshot.get(NODES, reservation.node_id)
    row = cache.fleet.row_by_node_id.get(reservation.node_id)
    if node is None or row is None or not node.is_ready_for_placements:
        return False
    return _comes_free(snapshot, cache, row, reservation.demand)


def _rows_for(snapshot: Replica, ground: SchedulerCache, job: Job, group: TaskGroup) -> Ints:
    feasibility, fleet = ground.feasibility, ground.fleet
    screened = feasibility.screen_nodes(
        feasibility.select_ready_nodes(job), job, group, NamespaceVolumes(snapshot, job.namespace)
    )
    rows: Ints = np.flatnonzero(screened.feasible)
    distinct = DistinctConstraints(fleet, job, group, should_check_hosts=True)
    if distinct and len(rows):
        there = snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
        distinct.count_siblings(
            PlacedSibling(fleet.row_by_node_id[each.node_id], each.task_group)
            for each in there
            if not each.is_terminal and each.node_id in fleet.row_by_node_id
        )
        rows = rows[distinct.mask_allowed(rows)]
    return rows


def _least_lacking_first(ground: SchedulerCache, rows: Ints, demand: Usage) -> Sequence[int]:
    fleet = ground.fleet
    is_large_enough = (
        (fleet.cpu[rows] >= demand.cpu)
        & (fleet.memory[rows] >= demand.memory_mb)
        & (fleet.disk[rows] >= demand.disk_mb)
    )
    rows = rows[is_large_enough]
    if not len(rows):
        return []
    lacking = np.zeros(len(rows), dtype=np.float64)
    for has, used, asked in (
        (fleet.cpu, fleet.cpu_used, demand.cpu),
        (fleet.memory, fleet.memory_used, demand.memory_mb),
        (fleet.disk, fleet.disk_used, demand.disk_mb),
    ):
        if asked:
            lacking = np.maximum(lacking, (used[rows] + asked - has[rows]) / asked)
    order = np.argsort(lacking, kind="stable")[:MAX_SCANNED_NODES]
    return [int(row) for row in rows[order]]


def _comes_free(snapshot: Replica, ground: SchedulerCache, row: int, demand: Usage) -> bool:
    """Whether the node has room for it once all has ended there that ends by itself, or is told to."""
    fleet = ground.fleet
    node = fleet.get_node(row)
    stays = Usage.sum_usages(
        get_allocation_usage(each)
        for each in snapshot.list_by_index(ALLOCATIONS_ON_NODE, node.id)
        if each.is_occupying and not each.is_server_terminal and not _ends(snapshot, each.namespace, each.job_id)
    )
    room = Usage(int(fleet.cpu[row]), int(fleet.memory[row]), int(fleet.disk[row]))
    return (stays + demand).fits_in(room)


def _ends(snapshot: Replica, namespace: str, job_id: str) -> bool:
    job = snapshot.get(JOBS, namespace, job_id)
    return job is None or job.stop or job.type in FINITE_JOB_TYPES


def list_missed_reservations(
    snapshot: Replica, cache: SchedulerCache, waiting: Iterable[Evaluation], now_ns: int, slack_ns: int
) -> list[str]:
    """For whoever checks: those that have waited longer than the bound and the slack, could be given a node, and were not."""
    waiting = list(waiting)
    reserved = list(cache.reservations.values())
    late = select_evaluations_to_reserve(snapshot, cache, waiting, reserved, now_ns - slack_ns)
    return [
        f"{each.namespace}/{each.job_id} waits since {each.waiting_since_ns} and no node is kept for it"
        for each in late
        if not each.reserved_node_id and find_node_to_reserve(snapshot, cache, each, reserved)
    ]
