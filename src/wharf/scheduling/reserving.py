"""Room that is kept for work that has waited too long: so that small work, which fits wherever a little comes free, does not
keep big work waiting for ever.

One node is kept for one allocation at a time. What runs there goes on to its end; what comes free there is given to nobody
of the same or a lower priority until there is enough for the one that waits. So whoever is given a node is placed at the
latest when what ran there has ended. It says who may have a node and which; it writes nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from wharf.model.durations import SECOND
from wharf.model.evaluation import Evaluation, EvaluationTrigger
from wharf.model.group import TaskGroup
from wharf.model.job import Job, JobType
from wharf.scheduling.columns import Ints
from wharf.scheduling.distinct import Distinctions, Neighbour
from wharf.scheduling.ground import Ground, Volumes
from wharf.scheduling.reservation import Reservation, group_that_waits
from wharf.scheduling.usage import Usage, demand_of, usage_of
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS_OF_JOB, ALLOCATIONS_ON_NODE, JOBS, NODES

RESERVED_AFTER_NS: Final = 120 * SECOND
"""Whoever has waited so long for room is given a node."""

NODES_PER_RESERVATION: Final = 10
"""Of so many nodes one may be kept, and in any cluster one."""

NODES_LOOKED_AT: Final = 64
"""Those that lack least are asked what of their work ends by itself."""

ENDING_TYPES: Final = (JobType.BATCH, JobType.SYSBATCH)


def may_be_reserved_for(snapshot: Replica, evaluation: Evaluation) -> bool:
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
    return job.type in (JobType.SERVICE, JobType.BATCH) and group_that_waits(job, evaluation) is not None


def reservations_most(ground: Ground) -> int:
    """How many nodes may be kept at the same time."""
    return max(1, len(ground.fleet.row_of) // NODES_PER_RESERVATION)


def who_is_next(
    snapshot: Replica, ground: Ground, waiting: Iterable[Evaluation], reserved: Iterable[Reservation], now_ns: int
) -> list[Evaluation]:
    """Those to whom a node is due: the most urgent, of these the one that waits longest; of a namespace one at a time."""
    standing = list(reserved)
    served = {each.namespace for each in standing}
    found: list[Evaluation] = []
    due = (each for each in waiting if each.waits_since_ns + RESERVED_AFTER_NS <= now_ns)
    for evaluation in sorted(due, key=lambda each: (-each.priority, each.waits_since_ns, each.create_index, each.id)):
        if len(standing) + len(found) >= reservations_most(ground):
            break
        if evaluation.namespace not in served and may_be_reserved_for(snapshot, evaluation):
            served.add(evaluation.namespace)
            found.append(evaluation)
    return found


def node_for(snapshot: Replica, ground: Ground, evaluation: Evaluation, reserved: Iterable[Reservation]) -> str:
    """The node that lacks least for it, of those where enough ends by itself; empty: there is none."""
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    group = None if job is None else group_that_waits(job, evaluation)
    if job is None or group is None:
        return ""
    taken = {each.node_id for each in reserved}
    demand, rows = demand_of(group), _rows_for(snapshot, ground, job, group)
    for row in _least_lacking_first(ground, rows, demand):
        node = ground.fleet.node(row)
        if node.id not in taken and _comes_free(snapshot, ground, row, demand):
            return node.id
    return ""


def is_still_of_use(snapshot: Replica, ground: Ground, reservation: Reservation) -> bool:
    """Whether its node takes work, and enough of what is there ends by itself."""
    node = snapshot.get(NODES, reservation.node_id)
    row = ground.fleet.row_of.get(reservation.node_id)
    if node is None or row is None or not node.is_ready_for_placements:
        return False
    return _comes_free(snapshot, ground, row, reservation.demand)


def _rows_for(snapshot: Replica, ground: Ground, job: Job, group: TaskGroup) -> Ints:
    feasibility, fleet = ground.feasibility, ground.fleet
    screened = feasibility.screen(feasibility.in_reach(job), job, group, Volumes(snapshot, job.namespace))
    rows: Ints = np.flatnonzero(screened.passing)
    distinct = Distinctions(fleet, job, group, hosts=True)
    if distinct and len(rows):
        there = snapshot.those(ALLOCATIONS_OF_JOB, job.namespace, job.id)
        distinct.count(
            Neighbour(fleet.row_of[each.node_id], each.task_group)
            for each in there
            if not each.is_terminal and each.node_id in fleet.row_of
        )
        rows = rows[distinct.allowed(rows)]
    return rows


def _least_lacking_first(ground: Ground, rows: Ints, demand: Usage) -> Sequence[int]:
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
    order = np.argsort(lacking, kind="stable")[:NODES_LOOKED_AT]
    return [int(row) for row in rows[order]]


def _comes_free(snapshot: Replica, ground: Ground, row: int, demand: Usage) -> bool:
    """Whether the node has room for it once all has ended there that ends by itself, or is told to."""
    fleet = ground.fleet
    node = fleet.node(row)
    stays = Usage.total(
        usage_of(each)
        for each in snapshot.those(ALLOCATIONS_ON_NODE, node.id)
        if each.is_occupying and not each.is_server_terminal and not _ends(snapshot, each.namespace, each.job_id)
    )
    room = Usage(int(fleet.cpu[row]), int(fleet.memory[row]), int(fleet.disk[row]))
    return (stays + demand).fits_in(room)


def _ends(snapshot: Replica, namespace: str, job_id: str) -> bool:
    job = snapshot.get(JOBS, namespace, job_id)
    return job is None or job.stop or job.type in ENDING_TYPES


def unreserved(
    snapshot: Replica, ground: Ground, waiting: Iterable[Evaluation], now_ns: int, slack_ns: int
) -> list[str]:
    """For whoever checks: those that have waited longer than the bound and the slack, could be given a node, and were not."""
    waiting = list(waiting)
    reserved = list(ground.reservations.values())
    late = who_is_next(snapshot, ground, waiting, reserved, now_ns - slack_ns)
    return [
        f"{each.namespace}/{each.job_id} waits since {each.waits_since_ns} and no node is kept for it"
        for each in late
        if not each.reserved_node_id and node_for(snapshot, ground, each, reserved)
    ]
