"""Moves what stands better elsewhere, a few of each group at a time: as many as its `migrate` lets go, as in a drain.

What is moved is marked, with the node that it is to have; the scheduler places it there if there is still room, and else
where it finds the best. Which moves are worth it is decided by `scheduling.rebalancing`.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.controllers.drains import count_healthy_by_group, min_healthy
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, EVALUATIONS, JOBS
from wharf.contract.model.allocations.allocation import Allocation, DesiredTransition
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.operator.rebalancing import AllocationMove
from wharf.contract.model.times import DecisionContext

REBALANCED_WRITE_KIND: Final = "allocations-rebalanced"


class MovesStarted(msgspec.Struct, frozen=True):
    """How many moves were begun."""

    index: int
    move_count: int


def start_moves(
    snapshot: Replica, moves: Sequence[AllocationMove], moment: DecisionContext, *, max_changes: int, cause: str = ""
) -> Decision[MovesStarted]:
    """As many of these as may go now. What has changed since they were found is left alone."""
    marked: list[tuple[Allocation, Allocation]] = []
    jobs: dict[tuple[str, str], Job] = {}
    for key, those in _by_job(moves).items():
        job = snapshot.get(JOBS, *key)
        if job is None or job.stop:
            continue
        going = _may_go(snapshot, job, those)
        if len(marked) + len(going) + len(jobs) + 1 > max_changes:
            break
        if going:
            jobs[key] = job
            marked += [(each, _marked(each, move, moment)) for each, move in going]
    if not marked:
        return Decision(None, lambda index: MovesStarted(index, 0))
    evaluations = [make_evaluation(job, moment, EvaluationTrigger.ALLOC_STOP) for job in jobs.values()]
    write = Write(
        REBALANCED_WRITE_KIND,
        Cause(CauseKind.REQUEST, cause),
        [*(ALLOCATIONS.build_put(after) for _, after in marked), *map(EVALUATIONS.build_put, evaluations)],
        [snapshot.build_record_condition(ALLOCATIONS, before) for before, _ in marked],
    )
    return Decision(write, lambda index: MovesStarted(index, len(marked)))


def _by_job(moves: Sequence[AllocationMove]) -> dict[tuple[str, str], list[AllocationMove]]:
    found: dict[tuple[str, str], list[AllocationMove]] = {}
    for move in moves:
        found.setdefault((move.namespace, move.job_id), []).append(move)
    return found


def _may_go(snapshot: Replica, job: Job, moves: Sequence[AllocationMove]) -> list[tuple[Allocation, AllocationMove]]:
    """So many of each group that `count` less `max_parallel` of it stay well."""
    well = count_healthy_by_group(snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id))
    going = []
    for move in moves:
        allocation, group = snapshot.get(ALLOCATIONS, move.alloc_id), job.find_group(move.task_group)
        if allocation is None or group is None or allocation.is_terminal or allocation.should_migrate:
            continue
        if allocation.node_id != move.from_node_id or well.get(group.name, 0) <= min_healthy(group):
            continue
        well[group.name] -= 1
        going.append((allocation, move))
    return going


def _marked(allocation: Allocation, move: AllocationMove, moment: DecisionContext) -> Allocation:
    transition = replace(allocation.desired_transition or DesiredTransition(), migrate=True, move_to=move.to_node_id)
    return replace(allocation, desired_transition=transition, alloc_modify_index=WRITE_INDEX, modify_time=moment.now_ns)
