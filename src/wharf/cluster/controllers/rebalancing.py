"""Starts proposed moves, a few allocations of each group at a time, within the limits of `migrate`, as in a drain.

A moved allocation is marked to migrate, with its new node. The scheduler places it there if there is still capacity,
else on the best node. Which moves are worthwhile is decided in `scheduling.rebalancing`.
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
"""The name of the write in the log."""


class MovesStarted(msgspec.Struct, frozen=True):
    """The result of a request to move allocations to other nodes."""

    index: int  # The log index of the write; of the snapshot if nothing was written.
    move_count: int  # How many moves were started.


def start_moves(
    snapshot: Replica, moves: Sequence[AllocationMove], context: DecisionContext, *, max_changes: int, cause: str = ""
) -> Decision[MovesStarted]:
    """Return the decision that marks the allocations of as many of these moves as may start now, and evaluates their
    jobs.

    The first job whose moves do not fit in `max_changes`, and those after it, are left out. Moves of allocations that
    changed since the proposal are skipped.
    """
    marked: list[tuple[Allocation, Allocation]] = []
    jobs: dict[tuple[str, str], Job] = {}
    for key, job_moves in _group_by_job(moves).items():
        job = snapshot.get(JOBS, *key)
        if job is None or job.stop:
            continue
        startable = _select_startable(snapshot, job, job_moves)
        if len(marked) + len(startable) + len(jobs) + 1 > max_changes:
            break
        if startable:
            jobs[key] = job
            marked += [(allocation, _mark_for_move(allocation, move, context)) for allocation, move in startable]
    if not marked:
        return Decision(None, lambda index: MovesStarted(index, 0))
    evaluations = [make_evaluation(job, context, EvaluationTrigger.ALLOC_STOP) for job in jobs.values()]
    write = Write(
        REBALANCED_WRITE_KIND,
        Cause(CauseKind.REQUEST, cause),
        [*(ALLOCATIONS.build_put(after) for _, after in marked), *map(EVALUATIONS.build_put, evaluations)],
        [snapshot.build_record_condition(ALLOCATIONS, before) for before, _ in marked],
    )
    return Decision(write, lambda index: MovesStarted(index, len(marked)))


def _group_by_job(moves: Sequence[AllocationMove]) -> dict[tuple[str, str], list[AllocationMove]]:
    """Return the moves by (namespace, job id)."""
    moves_by_job: dict[tuple[str, str], list[AllocationMove]] = {}
    for move in moves:
        moves_by_job.setdefault((move.namespace, move.job_id), []).append(move)
    return moves_by_job


def _select_startable(
    snapshot: Replica, job: Job, moves: Sequence[AllocationMove]
) -> list[tuple[Allocation, AllocationMove]]:
    """Return the moves that may start now, each with its allocation.

    Enough healthy allocations of the group must remain (`migrate.max_parallel`). An allocation that has ended, is
    marked to migrate or is on another node is skipped.
    """
    healthy_counts = count_healthy_by_group(snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id))
    startable = []
    for move in moves:
        allocation, group = snapshot.get(ALLOCATIONS, move.alloc_id), job.find_group(move.task_group)
        if allocation is None or group is None or allocation.is_terminal or allocation.should_migrate:
            continue
        if allocation.node_id != move.from_node_id or healthy_counts.get(group.name, 0) <= min_healthy(group):
            continue
        healthy_counts[group.name] -= 1
        startable.append((allocation, move))
    return startable


def _mark_for_move(allocation: Allocation, move: AllocationMove, context: DecisionContext) -> Allocation:
    """Return the allocation, marked to migrate to the node that the move names."""
    transition = replace(allocation.desired_transition or DesiredTransition(), migrate=True, move_to=move.to_node_id)
    return replace(
        allocation, desired_transition=transition, alloc_modify_index=WRITE_INDEX, modify_time=context.now_ns
    )
