"""Marks that people leave on a job's allocations by way of the job: hurry when you stop; try again wherever you failed.

A job may have more allocations than one write takes, so marks are left in steps. Each step stands alone, and one that is
repeated marks nothing twice.
"""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, JOBS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredTransition
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write


class MarkingProgress(msgspec.Struct, frozen=True):
    """How many are still to be marked."""

    index: int
    remaining_count: int


MarkingOperation = Callable[[Replica, DecisionContext], Decision[MarkingProgress]]


def skip_shutdown_delays(
    snapshot: Replica, namespace: str, job_id: str, context: DecisionContext, *, max_allocations: int, cause: str = ""
) -> Decision[MarkingProgress]:
    """What runs is to be stopped without its shutdown delay."""
    waiting = [
        allocation
        for allocation in snapshot.list_by_index_sorted(ALLOCATIONS_OF_JOB, namespace, job_id)
        if allocation.is_occupying and not _transition(allocation).no_shutdown_delay
    ]
    return _mark_allocations(
        snapshot, waiting, context, max_allocations=max_allocations, cause=cause, no_shutdown_delay=True
    )


def force_reschedule_allocations(
    snapshot: Replica, namespace: str, job_id: str, context: DecisionContext, *, max_allocations: int, cause: str = ""
) -> Decision[MarkingProgress]:
    """What failed, and was replaced by nothing yet, is to be tried again now, where its group reschedules at all."""
    job = snapshot.get(JOBS, namespace, job_id)
    groups = {
        group.name: None
        for group in (job.groups if job is not None else ())
        if group.reschedule_policy is not None and group.reschedule_policy.is_enabled
    }
    waiting = [
        allocation
        for allocation in snapshot.list_by_index_sorted(ALLOCATIONS_OF_JOB, namespace, job_id)
        if allocation.client_status is ClientStatus.FAILED
        and not allocation.next_allocation
        and not _transition(allocation).force_reschedule
        and allocation.task_group in groups
    ]
    return _mark_allocations(
        snapshot, waiting, context, max_allocations=max_allocations, cause=cause, force_reschedule=True
    )


def _transition(allocation: Allocation) -> DesiredTransition:
    return allocation.desired_transition or DesiredTransition()


def _mark_allocations(
    snapshot: Replica,
    waiting: Sequence[Allocation],
    context: DecisionContext,
    *,
    max_allocations: int,
    cause: str,
    **mark: bool,
) -> Decision[MarkingProgress]:
    if not waiting:
        return Decision(None, lambda index: MarkingProgress(index, 0))
    marked = waiting[:max_allocations]
    changes = [
        ALLOCATIONS.build_put(
            replace(
                allocation,
                desired_transition=replace(_transition(allocation), **mark),
                alloc_modify_index=WRITE_INDEX,
                modify_time=context.now_ns,
            )
        )
        for allocation in marked
    ]
    conditions = [snapshot.build_record_condition(ALLOCATIONS, allocation) for allocation in marked]
    count = len(waiting) - len(marked)
    write = Write("allocations-marked", Cause(CauseKind.REQUEST, cause), changes, conditions)
    return Decision(write, lambda index: MarkingProgress(index, count))
