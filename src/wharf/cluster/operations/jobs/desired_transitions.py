"""Set the desired transition of a job's allocations: skip the shutdown delay, or reschedule failed ones now.

A job may have more allocations than fit in one write, so they are marked in steps. Each step can be repeated.
"""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.write_sizes import take_part
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, JOBS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredTransition
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write


class MarkingProgress(msgspec.Struct, frozen=True):
    """The result of one write that marks allocations of a job."""

    index: int  # The log index of the write.
    remaining_count: int  # How many allocations a next write must still mark.


MarkingOperation = Callable[[Replica, DecisionContext], Decision[MarkingProgress]]
"""A function that marks the next allocations of a job. It is repeated until none remain."""


def skip_shutdown_delays(
    snapshot: Replica, namespace: str, job_id: str, context: DecisionContext, *, max_allocations: int, cause: str = ""
) -> Decision[MarkingProgress]:
    """Return the decision that lets the job's allocations on nodes stop without their shutdown delay.

    One write marks up to `max_allocations` of them.
    """
    unmarked = [
        allocation
        for allocation in snapshot.list_by_index_sorted(ALLOCATIONS_OF_JOB, namespace, job_id)
        if allocation.is_occupying and not _get_desired_transition(allocation).no_shutdown_delay
    ]
    return _mark_allocations(
        snapshot, unmarked, context, max_allocations=max_allocations, cause=cause, no_shutdown_delay=True
    )


def force_reschedule_allocations(
    snapshot: Replica, namespace: str, job_id: str, context: DecisionContext, *, max_allocations: int, cause: str = ""
) -> Decision[MarkingProgress]:
    """Return the decision that lets the scheduler replace failed allocations of the job now.

    One write marks up to `max_allocations` of them. Allocations that have a replacement, and groups without
    rescheduling, are left out.
    """
    job = snapshot.get(JOBS, namespace, job_id)
    groups = {
        group.name: None
        for group in (job.groups if job is not None else ())
        if group.reschedule_policy is not None and group.reschedule_policy.is_enabled
    }
    unmarked = [
        allocation
        for allocation in snapshot.list_by_index_sorted(ALLOCATIONS_OF_JOB, namespace, job_id)
        if allocation.client_status is ClientStatus.FAILED
        and not allocation.next_allocation
        and not _get_desired_transition(allocation).force_reschedule
        and allocation.task_group in groups
    ]
    return _mark_allocations(
        snapshot, unmarked, context, max_allocations=max_allocations, cause=cause, force_reschedule=True
    )


def _get_desired_transition(allocation: Allocation) -> DesiredTransition:
    """Return what operators requested for the allocation, or an empty request."""
    return allocation.desired_transition or DesiredTransition()


def _mark_allocations(
    snapshot: Replica,
    unmarked: Sequence[Allocation],
    context: DecisionContext,
    *,
    max_allocations: int,
    cause: str,
    **transition_fields: bool,
) -> Decision[MarkingProgress]:
    """Return the decision that sets these fields of the desired transition of the first allocations, as many as fit in one write."""
    if not unmarked:
        return Decision(None, lambda index: MarkingProgress(index, 0))
    marked = list(take_part(iter(unmarked), max_allocations, lambda allocation: allocation))
    changes = [
        ALLOCATIONS.build_put(
            replace(
                allocation,
                desired_transition=replace(_get_desired_transition(allocation), **transition_fields),
                alloc_modify_index=WRITE_INDEX,
                modify_time=context.now_ns,
            )
        )
        for allocation in marked
    ]
    conditions = [snapshot.build_record_condition(ALLOCATIONS, allocation) for allocation in marked]
    count = len(unmarked) - len(marked)
    write = Write("allocations-marked", Cause(CauseKind.REQUEST, cause), changes, conditions)
    return Decision(write, lambda index: MarkingProgress(index, count))
