"""Marks that people leave on a job's allocations by way of the job: hurry when you stop; try again wherever you failed.

A job may have more allocations than one write takes, so marks are left in steps. Each step stands alone, and one that is
repeated marks nothing twice.
"""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation, ClientStatus, DesiredTransition
from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.evaluation import EvaluationTrigger
from wharf.model.refusal import invalid, unknown
from wharf.operations.decision import Decision, Moment
from wharf.operations.evaluations import new_evaluation
from wharf.operations.jobs import Registered
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, EVALUATIONS, JOBS


class Left(msgspec.Struct, frozen=True):
    """How many are still to be marked."""

    index: int
    count: int


Marking = Callable[[Replica, Moment], Decision[Left]]


def mark_to_hurry(
    snapshot: Replica, namespace: str, job_id: str, moment: Moment, *, at_most: int, cause: str = ""
) -> Decision[Left]:
    """What runs is to be stopped without its shutdown delay."""
    waiting = [
        allocation
        for allocation in snapshot.those_by_key(ALLOCATIONS_OF_JOB, namespace, job_id)
        if allocation.is_occupying and not _transition(allocation).no_shutdown_delay
    ]
    return _mark(snapshot, waiting, moment, at_most=at_most, cause=cause, no_shutdown_delay=True)


def mark_to_reschedule(
    snapshot: Replica, namespace: str, job_id: str, moment: Moment, *, at_most: int, cause: str = ""
) -> Decision[Left]:
    """What failed, and was replaced by nothing yet, is to be tried again now, where its group reschedules at all."""
    job = snapshot.get(JOBS, namespace, job_id)
    groups = {
        group.name: None
        for group in (job.groups if job is not None else ())
        if group.reschedule_policy is not None and group.reschedule_policy.is_enabled
    }
    waiting = [
        allocation
        for allocation in snapshot.those_by_key(ALLOCATIONS_OF_JOB, namespace, job_id)
        if allocation.client_status is ClientStatus.FAILED
        and not allocation.next_allocation
        and not _transition(allocation).force_reschedule
        and allocation.task_group in groups
    ]
    return _mark(snapshot, waiting, moment, at_most=at_most, cause=cause, force_reschedule=True)


def evaluate(
    snapshot: Replica, namespace: str, job_id: str, moment: Moment, *, cause: str = ""
) -> Decision[Registered]:
    """Have the job looked at again."""
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        raise unknown("job not found")
    if job.is_periodic:
        raise invalid("can't evaluate periodic job")
    if job.is_parameterized:
        raise invalid("can't evaluate parameterized job")
    evaluation = new_evaluation(job, moment, EvaluationTrigger.JOB_REGISTER)
    return Decision(
        Write(
            "job-evaluated",
            Cause(CauseKind.REQUEST, cause),
            [EVALUATIONS.put(evaluation)],
            [snapshot.unchanged(JOBS, job)],
        ),
        lambda index: Registered(index, job.modify_index, evaluation.id, index),
    )


def _transition(allocation: Allocation) -> DesiredTransition:
    return allocation.desired_transition or DesiredTransition()


def _mark(
    snapshot: Replica, waiting: Sequence[Allocation], moment: Moment, *, at_most: int, cause: str, **mark: bool
) -> Decision[Left]:
    if not waiting:
        return Decision(None, lambda index: Left(index, 0))
    marked = waiting[:at_most]
    changes = [
        ALLOCATIONS.put(
            replace(
                allocation,
                desired_transition=replace(_transition(allocation), **mark),
                alloc_modify_index=THIS,
                modify_time=moment.now_ns,
            )
        )
        for allocation in marked
    ]
    conditions = [snapshot.unchanged(ALLOCATIONS, allocation) for allocation in marked]
    count = len(waiting) - len(marked)
    write = Write("allocations-marked", Cause(CauseKind.REQUEST, cause), changes, conditions)
    return Decision(write, lambda index: Left(index, count))
