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

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.jobs.registration import JobWriteResult, check_eval_priority, make_deregister_evaluation
from wharf.cluster.operations.scaling import iterate_policies
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_PURGES,
    JOB_SUBMISSIONS,
    JOB_SUMMARIES,
    JOB_VERSIONS,
    JOBS,
    PERIODIC_LAUNCHES,
    SCALING_EVENTS,
    SCALING_POLICIES,
    SCALING_POLICIES_OF_JOB,
    SUBMISSIONS_OF_JOB,
    VERSIONS_OF_JOB,
)
from wharf.contract.model.allocations.allocation import Allocation, DesiredStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.jobs.job import Job, JobPurge
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.state_machines.machine import advance_state
from wharf.contract.model.state_machines.transitions import EVALUATION_STATES

JOB_DELETED_DESCRIPTION: Final = "job deleted"
JOB_PURGED_DESCRIPTION: Final = "alloc not needed since its job was purged"
MAX_JOB_CHANGES: Final = 6
"""The job, its summary, its launches, its scaling events, the evaluation that stops its work, and the intent."""


class PurgeStepResult(msgspec.Struct, frozen=True):
    """`changed` 0: there is nothing to do but to wait for nodes, or nothing at all."""

    index: int
    changed_count: int


class _Leftover(NamedTuple):
    change: PutRecord | DeleteRecord
    condition: Condition


def purge_job(
    snapshot: Replica,
    namespace: str,
    job_id: str,
    context: DecisionContext,
    *,
    max_changes: int,
    eval_priority: int = 0,
    cause: str = "",
) -> Decision[JobWriteResult]:
    """Take the job away, with as much of what it leaves as one write holds. A job that nobody knows is gone already."""
    if eval_priority > 0:
        check_eval_priority(eval_priority)
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        return Decision(None, lambda _index: JobWriteResult(0, 0))
    evaluation = make_deregister_evaluation(job, context, eval_priority=eval_priority)
    intent = JobPurge(
        namespace=namespace,
        job_id=job_id,
        job_create_index=job.create_index,
        eval_id=evaluation.id if evaluation else "",
        create_index=WRITE_INDEX,
    )
    changes = _list_job_changes(snapshot, job, evaluation)
    conditions = [snapshot.build_record_condition(JOBS, job)]
    leftovers = _leftovers(snapshot, intent, context)
    for leftover in _take_leftovers(leftovers, max_changes - MAX_JOB_CHANGES):
        changes.append(leftover.change)
        conditions.append(leftover.condition)
    if next(leftovers, None) is not None or _is_waiting(snapshot, intent):
        changes.append(JOB_PURGES.build_put(intent))
    return Decision(
        Write("job-purged", Cause(CauseKind.REQUEST, cause), changes, conditions),
        lambda index: JobWriteResult(index, index, evaluation.id if evaluation else "", index),
    )


def continue_purge(
    snapshot: Replica, job_purge: JobPurge, context: DecisionContext, *, max_changes: int
) -> Decision[PurgeStepResult]:
    """The next step of a purge; with the last one its record goes."""
    leftovers = _leftovers(snapshot, job_purge, context)
    taken = list(_take_leftovers(leftovers, max_changes - 1))
    is_last = next(leftovers, None) is None and not _is_waiting(snapshot, job_purge)
    if not taken and not is_last:
        return Decision(None, lambda index: PurgeStepResult(index, 0))
    changes = [leftover.change for leftover in taken]
    conditions = [leftover.condition for leftover in taken]
    if is_last:
        changes.append(JOB_PURGES.build_delete(job_purge.namespace, job_purge.job_id, job_purge.job_create_index))
        conditions.append(snapshot.build_record_condition(JOB_PURGES, job_purge))
    write = Write("job-purge-continued", Cause(CauseKind.TIMER, "purge"), changes, conditions)
    return Decision(write, lambda index: PurgeStepResult(index, len(changes)))


def _list_job_changes(snapshot: Replica, job: Job, evaluation: Evaluation | None) -> list[PutRecord | DeleteRecord]:
    key = (job.namespace, job.id)
    changes: list[PutRecord | DeleteRecord] = [JOBS.build_delete(*key), JOB_SUMMARIES.build_delete(*key)]
    if snapshot.get(PERIODIC_LAUNCHES, *key) is not None:
        changes.append(PERIODIC_LAUNCHES.build_delete(*key))
    if snapshot.get(SCALING_EVENTS, *key) is not None:
        changes.append(SCALING_EVENTS.build_delete(*key))
    if evaluation is not None:
        changes.append(EVALUATIONS.build_put(evaluation))
    return changes


def _take_leftovers(leftovers: Iterator[_Leftover], max_leftovers: int) -> Iterator[_Leftover]:
    # Not islice: it would take one more than it gives.
    for _ in range(max_leftovers):
        leftover = next(leftovers, None)
        if leftover is None:
            return
        yield leftover


def _is_waiting(snapshot: Replica, intent: JobPurge) -> bool:
    """For a node's word that the last of the work has ended."""
    return any(each.is_occupying for each in _allocations(snapshot, intent))


def _leftovers(snapshot: Replica, intent: JobPurge, context: DecisionContext) -> Iterator[_Leftover]:
    """What this life of the job has left and what can be done about it now. A later life's records are not touched."""
    key = (intent.namespace, intent.job_id)
    later = _later_life(snapshot, intent)
    kept = later.version if later is not None else -1  # It began again with 0, and put its own in their places.
    policies = {policy.id for policy in iterate_policies(later)} if later is not None else set()
    yield from chain(
        _closed_evaluations(snapshot, intent, context),
        _ended_allocations(snapshot, intent, context),
        (
            _Leftover(DEPLOYMENTS.build_delete(each.id), snapshot.build_record_condition(DEPLOYMENTS, each))
            for each in snapshot.list_by_index_sorted(DEPLOYMENTS_OF_JOB, *key)
            if each.job_create_index == intent.job_create_index
        ),
        (
            _Leftover(
                JOB_VERSIONS.build_delete(*key, each.version), snapshot.build_record_condition(JOB_VERSIONS, each)
            )
            for each in snapshot.list_by_index_sorted(VERSIONS_OF_JOB, *key)
            if each.create_index == intent.job_create_index
        ),
        (
            _Leftover(
                JOB_SUBMISSIONS.build_delete(*key, each.version), snapshot.build_record_condition(JOB_SUBMISSIONS, each)
            )
            for each in snapshot.list_by_index_sorted(SUBMISSIONS_OF_JOB, *key)
            if each.version > kept
        ),
        (
            _Leftover(SCALING_POLICIES.build_delete(each.id), snapshot.build_record_condition(SCALING_POLICIES, each))
            for each in snapshot.list_by_index_sorted(SCALING_POLICIES_OF_JOB, *key)
            if each.id not in policies
        ),
    )


def _later_life(snapshot: Replica, intent: JobPurge) -> Job | None:
    """The job of the same name that was registered since."""
    job = snapshot.get(JOBS, intent.namespace, intent.job_id)
    return None if job is None or job.create_index == intent.job_create_index else job


def _closed_evaluations(snapshot: Replica, intent: JobPurge, context: DecisionContext) -> Iterator[_Leftover]:
    """While nobody has registered the job again: then they are that life's, or look at it once more."""
    if _later_life(snapshot, intent) is not None:
        return
    for evaluation in snapshot.list_by_index_sorted(EVALUATIONS_OF_JOB, intent.namespace, intent.job_id):
        if evaluation.status.is_terminal or evaluation.id == intent.eval_id:
            continue
        is_blocked = evaluation.status is EvaluationStatus.BLOCKED
        status = EvaluationStatus.CANCELED if is_blocked else EvaluationStatus.COMPLETE
        closed = replace(
            evaluation,
            status=advance_state(EVALUATION_STATES, evaluation.status, status, record_id=evaluation.id),
            status_description=JOB_DELETED_DESCRIPTION,
            modify_time=max(context.now_ns, evaluation.create_time + 1),
        )
        yield _Leftover(EVALUATIONS.build_put(closed), snapshot.build_record_condition(EVALUATIONS, evaluation))


def _ended_allocations(snapshot: Replica, intent: JobPurge, context: DecisionContext) -> Iterator[_Leftover]:
    for allocation in _allocations(snapshot, intent):
        condition = snapshot.build_record_condition(ALLOCATIONS, allocation)
        if not allocation.is_occupying:
            yield _Leftover(ALLOCATIONS.build_delete(allocation.id), condition)
        elif not allocation.is_server_terminal:
            stopped = replace(
                allocation,
                desired_status=DesiredStatus.STOP,
                desired_description=JOB_PURGED_DESCRIPTION,
                alloc_modify_index=WRITE_INDEX,
                modify_time=context.now_ns,
            )
            yield _Leftover(ALLOCATIONS.build_put(stopped), condition)


def _allocations(snapshot: Replica, intent: JobPurge) -> Iterator[Allocation]:
    for allocation in snapshot.list_by_index_sorted(ALLOCATIONS_OF_JOB, intent.namespace, intent.job_id):
        if allocation.job_create_index == intent.job_create_index:
            yield allocation
