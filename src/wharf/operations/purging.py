"""Purging a job: it is gone at once, and what it leaves is taken away in steps until nothing tells of it any more.

Resources count as used until a node says that the work has ended. So an allocation that still occupies its node is told
to stop, and its record goes when the node has said that it did. All else goes without waiting. Every step stands alone
and may be repeated; the intent lies in the log, so that a new leader goes on.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation, DesiredStatus
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.evaluation import Evaluation, EvaluationStatus
from wharf.model.job import Job
from wharf.model.machine import advance
from wharf.model.purge import JobPurge
from wharf.model.transitions import EVALUATION
from wharf.operations.decision import Decision, Moment
from wharf.operations.jobs import Registered, check_eval_priority, stopping_evaluation
from wharf.operations.scaling_policies import policies_of
from wharf.state import Replica
from wharf.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_PURGES,
    JOB_VERSIONS,
    JOBS,
    PERIODIC_LAUNCHES,
    POLICIES_OF_JOB,
    SCALING_EVENTS,
    SCALING_POLICIES,
    SUBMISSIONS,
    SUBMISSIONS_OF_JOB,
    SUMMARIES,
    VERSIONS_OF_JOB,
)

JOB_DELETED: Final = "job deleted"
ALLOCATION_STOPPED: Final = "alloc not needed since its job was purged"
OWN_CHANGES: Final = 6
"""The job, its summary, its launches, its scaling events, the evaluation that stops its work, and the intent."""


class PurgeStep(msgspec.Struct, frozen=True):
    """`changed` 0: there is nothing to do but to wait for nodes, or nothing at all."""

    index: int
    changed: int


class _Leftover(NamedTuple):
    change: Put | Drop
    condition: Condition


def purge(
    snapshot: Replica,
    namespace: str,
    job_id: str,
    moment: Moment,
    *,
    changes_max: int,
    eval_priority: int = 0,
    cause: str = "",
) -> Decision[Registered]:
    """Take the job away, with as much of what it leaves as one write holds. A job that nobody knows is gone already."""
    if eval_priority > 0:
        check_eval_priority(eval_priority)
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        return Decision(None, lambda _index: Registered(0, 0))
    evaluation = stopping_evaluation(job, moment, eval_priority=eval_priority)
    intent = JobPurge(
        namespace=namespace,
        job_id=job_id,
        job_create_index=job.create_index,
        eval_id=evaluation.id if evaluation else "",
        create_index=THIS,
    )
    changes = _own_changes(snapshot, job, evaluation)
    conditions = [snapshot.unchanged(JOBS, job)]
    leftovers = _leftovers(snapshot, intent, moment)
    for leftover in _taken(leftovers, changes_max - OWN_CHANGES):
        changes.append(leftover.change)
        conditions.append(leftover.condition)
    if next(leftovers, None) is not None or _is_waiting(snapshot, intent):
        changes.append(JOB_PURGES.put(intent))
    return Decision(
        Write("job-purged", Cause(CauseKind.REQUEST, cause), changes, conditions),
        lambda index: Registered(index, index, evaluation.id if evaluation else "", index),
    )


def go_on(snapshot: Replica, intent: JobPurge, moment: Moment, *, changes_max: int) -> Decision[PurgeStep]:
    """The next step of a purge; with the last one its record goes."""
    leftovers = _leftovers(snapshot, intent, moment)
    taken = list(_taken(leftovers, changes_max - 1))
    is_last = next(leftovers, None) is None and not _is_waiting(snapshot, intent)
    if not taken and not is_last:
        return Decision(None, lambda index: PurgeStep(index, 0))
    changes = [leftover.change for leftover in taken]
    conditions = [leftover.condition for leftover in taken]
    if is_last:
        changes.append(JOB_PURGES.drop(intent.namespace, intent.job_id, intent.job_create_index))
        conditions.append(snapshot.unchanged(JOB_PURGES, intent))
    write = Write("job-purge-continued", Cause(CauseKind.TIMER, "purge"), changes, conditions)
    return Decision(write, lambda index: PurgeStep(index, len(changes)))


def _own_changes(snapshot: Replica, job: Job, evaluation: Evaluation | None) -> list[Put | Drop]:
    key = (job.namespace, job.id)
    changes: list[Put | Drop] = [JOBS.drop(*key), SUMMARIES.drop(*key)]
    if snapshot.get(PERIODIC_LAUNCHES, *key) is not None:
        changes.append(PERIODIC_LAUNCHES.drop(*key))
    if snapshot.get(SCALING_EVENTS, *key) is not None:
        changes.append(SCALING_EVENTS.drop(*key))
    if evaluation is not None:
        changes.append(EVALUATIONS.put(evaluation))
    return changes


def _taken(leftovers: Iterator[_Leftover], at_most: int) -> Iterator[_Leftover]:
    # Not islice: it would take one more than it gives.
    for _ in range(at_most):
        leftover = next(leftovers, None)
        if leftover is None:
            return
        yield leftover


def _is_waiting(snapshot: Replica, intent: JobPurge) -> bool:
    """For a node's word that the last of the work has ended."""
    return any(each.is_occupying for each in _allocations(snapshot, intent))


def _leftovers(snapshot: Replica, intent: JobPurge, moment: Moment) -> Iterator[_Leftover]:
    """What this life of the job has left and what can be done about it now. A later life's records are not touched."""
    key = (intent.namespace, intent.job_id)
    later = _later_life(snapshot, intent)
    kept = later.version if later is not None else -1  # It began again with 0, and put its own in their places.
    policies = {policy.id for policy in policies_of(later)} if later is not None else set()
    yield from chain(
        _closed_evaluations(snapshot, intent, moment),
        _ended_allocations(snapshot, intent, moment),
        (
            _Leftover(DEPLOYMENTS.drop(each.id), snapshot.unchanged(DEPLOYMENTS, each))
            for each in snapshot.those_by_key(DEPLOYMENTS_OF_JOB, *key)
            if each.job_create_index == intent.job_create_index
        ),
        (
            _Leftover(JOB_VERSIONS.drop(*key, each.version), snapshot.unchanged(JOB_VERSIONS, each))
            for each in snapshot.those_by_key(VERSIONS_OF_JOB, *key)
            if each.create_index == intent.job_create_index
        ),
        (
            _Leftover(SUBMISSIONS.drop(*key, each.version), snapshot.unchanged(SUBMISSIONS, each))
            for each in snapshot.those_by_key(SUBMISSIONS_OF_JOB, *key)
            if each.version > kept
        ),
        (
            _Leftover(SCALING_POLICIES.drop(each.id), snapshot.unchanged(SCALING_POLICIES, each))
            for each in snapshot.those_by_key(POLICIES_OF_JOB, *key)
            if each.id not in policies
        ),
    )


def _later_life(snapshot: Replica, intent: JobPurge) -> Job | None:
    """The job of the same name that was registered since."""
    job = snapshot.get(JOBS, intent.namespace, intent.job_id)
    return None if job is None or job.create_index == intent.job_create_index else job


def _closed_evaluations(snapshot: Replica, intent: JobPurge, moment: Moment) -> Iterator[_Leftover]:
    """While nobody has registered the job again: then they are that life's, or look at it once more."""
    if _later_life(snapshot, intent) is not None:
        return
    for evaluation in snapshot.those_by_key(EVALUATIONS_OF_JOB, intent.namespace, intent.job_id):
        if evaluation.status.is_terminal or evaluation.id == intent.eval_id:
            continue
        is_blocked = evaluation.status is EvaluationStatus.BLOCKED
        status = EvaluationStatus.CANCELED if is_blocked else EvaluationStatus.COMPLETE
        closed = replace(
            evaluation,
            status=advance(EVALUATION, evaluation.status, status, record_id=evaluation.id),
            status_description=JOB_DELETED,
            modify_time=max(moment.now_ns, evaluation.create_time + 1),
        )
        yield _Leftover(EVALUATIONS.put(closed), snapshot.unchanged(EVALUATIONS, evaluation))


def _ended_allocations(snapshot: Replica, intent: JobPurge, moment: Moment) -> Iterator[_Leftover]:
    for allocation in _allocations(snapshot, intent):
        condition = snapshot.unchanged(ALLOCATIONS, allocation)
        if not allocation.is_occupying:
            yield _Leftover(ALLOCATIONS.drop(allocation.id), condition)
        elif not allocation.is_server_terminal:
            stopped = replace(
                allocation,
                desired_status=DesiredStatus.STOP,
                desired_description=ALLOCATION_STOPPED,
                alloc_modify_index=THIS,
                modify_time=moment.now_ns,
            )
            yield _Leftover(ALLOCATIONS.put(stopped), condition)


def _allocations(snapshot: Replica, intent: JobPurge) -> Iterator[Allocation]:
    for allocation in snapshot.those_by_key(ALLOCATIONS_OF_JOB, intent.namespace, intent.job_id):
        if allocation.job_create_index == intent.job_create_index:
            yield allocation
