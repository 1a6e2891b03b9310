"""Moves what stands better elsewhere, a few of each group at a time: as many as its `migrate` lets go, as in a drain.

What is moved is marked, with the node that it is to have; the scheduler places it there if there is still room, and else
where it finds the best. Which moves are worth it is decided by `scheduling.rebalancing`.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.controllers.drainer import least_well, well_by_group
from wharf.model.allocation import Allocation, DesiredTransition
from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.evaluation import EvaluationTrigger
from wharf.model.job import Job
from wharf.model.moment import Moment
from wharf.model.rebalancing import Move
from wharf.operations.decision import Decision
from wharf.operations.evaluations import new_evaluation
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, EVALUATIONS, JOBS

REBALANCED: Final = "allocations-rebalanced"


class Begun(msgspec.Struct, frozen=True):
    """How many moves were begun."""

    index: int
    moving: int


def begin(
    snapshot: Replica, moves: Sequence[Move], moment: Moment, *, changes_max: int, cause: str = ""
) -> Decision[Begun]:
    """As many of these as may go now. What has changed since they were found is left alone."""
    marked: list[tuple[Allocation, Allocation]] = []
    jobs: dict[tuple[str, str], Job] = {}
    for key, those in _by_job(moves).items():
        job = snapshot.get(JOBS, *key)
        if job is None or job.stop:
            continue
        going = _may_go(snapshot, job, those)
        if len(marked) + len(going) + len(jobs) + 1 > changes_max:
            break
        if going:
            jobs[key] = job
            marked += [(each, _marked(each, move, moment)) for each, move in going]
    if not marked:
        return Decision(None, lambda index: Begun(index, 0))
    evaluations = [new_evaluation(job, moment, EvaluationTrigger.ALLOC_STOP) for job in jobs.values()]
    write = Write(
        REBALANCED,
        Cause(CauseKind.REQUEST, cause),
        [*(ALLOCATIONS.put(after) for _, after in marked), *map(EVALUATIONS.put, evaluations)],
        [snapshot.unchanged(ALLOCATIONS, before) for before, _ in marked],
    )
    return Decision(write, lambda index: Begun(index, len(marked)))


def _by_job(moves: Sequence[Move]) -> dict[tuple[str, str], list[Move]]:
    found: dict[tuple[str, str], list[Move]] = {}
    for move in moves:
        found.setdefault((move.namespace, move.job_id), []).append(move)
    return found


def _may_go(snapshot: Replica, job: Job, moves: Sequence[Move]) -> list[tuple[Allocation, Move]]:
    """So many of each group that `count` less `max_parallel` of it stay well."""
    well = well_by_group(snapshot.those(ALLOCATIONS_OF_JOB, job.namespace, job.id))
    going = []
    for move in moves:
        allocation, group = snapshot.get(ALLOCATIONS, move.alloc_id), job.group(move.task_group)
        if allocation is None or group is None or allocation.is_terminal or allocation.is_to_migrate:
            continue
        if allocation.node_id != move.from_node_id or well.get(group.name, 0) <= least_well(group):
            continue
        well[group.name] -= 1
        going.append((allocation, move))
    return going


def _marked(allocation: Allocation, move: Move, moment: Moment) -> Allocation:
    transition = replace(allocation.desired_transition or DesiredTransition(), migrate=True, move_to=move.to_node_id)
    return replace(allocation, desired_transition=transition, alloc_modify_index=THIS, modify_time=moment.now_ns)
