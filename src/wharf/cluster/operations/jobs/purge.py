"""Purge a job: delete it at once, and its remaining records in steps.

An allocation that still occupies its node keeps its resources until the node reports that it ended: it is stopped
first, and deleted after that report. All other records are deleted at once. Each step can be repeated; the purge is
stored in the log, so that a new leader continues it.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.jobs.arrays import list_attempt_deletions
from wharf.cluster.operations.jobs.job_outcomes import make_job_result
from wharf.cluster.operations.jobs.registration import JobWriteResult, check_eval_priority, make_deregister_evaluation
from wharf.cluster.operations.scaling import iterate_policies
from wharf.cluster.operations.write_sizes import take_part
from wharf.cluster.scheduling.capacity.locks import may_hold_lock
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    ATTEMPTS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_PURGES,
    JOB_RESULTS,
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
MAX_JOB_CHANGES: Final = 7
"""Changes reserved for the job itself: job, summary, launch, scaling events, evaluation, result and the purge record."""


class PurgeStepResult(msgspec.Struct, frozen=True):
    """The result of one step of a purge."""

    index: int  # The log index of the step's write.
    changed_count: int  # How many records it changed. 0: the purge waits for nodes.


class _Leftover(NamedTuple):
    """A change that stops or deletes one record that a purged job left, with the condition under which it is committed."""

    change: PutRecord | DeleteRecord
    condition: Condition  # The record must not change before the commit.

    @property
    def record(self) -> Any:
        """The record that the change stores, or `None` if it deletes one."""
        return self.change.record if isinstance(self.change, PutRecord) else None


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
    """Return the decision that deletes the job and as many of its records as fit in `max_changes`.

    If records remain, the write also stores the purge, so that the leader continues it. A job that does not exist
    changes nothing. `eval_priority` is the priority of the evaluation that stops allocations; 0: that of the job.
    """
    if eval_priority > 0:
        check_eval_priority(eval_priority)
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        return Decision(None, lambda _index: JobWriteResult(0, 0))
    evaluation = make_deregister_evaluation(job, context, eval_priority=eval_priority)
    job_purge = JobPurge(
        namespace=namespace,
        job_id=job_id,
        job_create_index=job.create_index,
        eval_id=evaluation.id if evaluation else "",
        parent_id=job.parent_id,
        create_index=WRITE_INDEX,
    )
    changes = _list_job_changes(snapshot, job, evaluation)
    result = make_job_result(snapshot, job, context.now_ns)
    if result is not None:
        changes.append(result)
    conditions = [snapshot.build_record_condition(JOBS, job)]
    if result is not None:
        conditions.append(snapshot.build_key_condition(JOB_RESULTS, job.namespace, job.id))
    leftovers = _iter_leftovers(snapshot, job_purge, context)
    for leftover in _take_leftovers(leftovers, max_changes - MAX_JOB_CHANGES):
        changes.append(leftover.change)
        conditions.append(leftover.condition)
    if next(leftovers, None) is not None or _has_occupying_allocations(snapshot, job_purge):
        changes.append(JOB_PURGES.build_put(job_purge))
    return Decision(
        Write("job-purged", Cause(CauseKind.REQUEST, cause), changes, conditions),
        lambda index: JobWriteResult(index, index, evaluation.id if evaluation else "", index),
    )


def continue_purge(
    snapshot: Replica, job_purge: JobPurge, context: DecisionContext, *, max_changes: int
) -> Decision[PurgeStepResult]:
    """Return the decision of the next step of a purge. The last step also deletes the record of the purge.

    It writes nothing while only allocations are left that their nodes have not stopped yet.
    """
    leftovers = _iter_leftovers(snapshot, job_purge, context)
    step = list(_take_leftovers(leftovers, max_changes - 1))
    is_last = next(leftovers, None) is None and not _has_occupying_allocations(snapshot, job_purge)
    if not step and not is_last:
        return Decision(None, lambda index: PurgeStepResult(index, 0))
    changes = [leftover.change for leftover in step]
    conditions = [leftover.condition for leftover in step]
    if is_last:
        changes.append(JOB_PURGES.build_delete(job_purge.namespace, job_purge.job_id, job_purge.job_create_index))
        conditions.append(snapshot.build_record_condition(JOB_PURGES, job_purge))
    write = Write("job-purge-continued", Cause(CauseKind.TIMER, "purge"), changes, conditions)
    return Decision(write, lambda index: PurgeStepResult(index, len(changes)))


def _list_job_changes(snapshot: Replica, job: Job, evaluation: Evaluation | None) -> list[PutRecord | DeleteRecord]:
    """Return the changes that delete the job itself, its summary, launches and scaling events, and that store its
    evaluation.

    The evaluation, if any, makes the scheduler stop the job's allocations.
    """
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
    """Yield the next changes for records of the purged job from the iterator, as many as fit in one write."""
    return take_part(leftovers, max_leftovers, lambda leftover: leftover.record)


def _has_occupying_allocations(snapshot: Replica, job_purge: JobPurge) -> bool:
    """Return whether an allocation of the purged job still occupies a node, so that the purge must wait for its end."""
    return any(record.is_occupying for record in _iter_allocations(snapshot, job_purge))


def _iter_leftovers(snapshot: Replica, job_purge: JobPurge, context: DecisionContext) -> Iterator[_Leftover]:
    """Yield the changes that are possible now for the records that the purged job left.

    These are evaluations, allocations, deployments, versions, sources and scaling policies. Records of a later job of
    the same name are not touched.
    """
    key = (job_purge.namespace, job_purge.job_id)
    later_job = _find_later_job(snapshot, job_purge)
    last_replaced_version = (
        later_job.version if later_job is not None else -1
    )  # Its versions start at 0 and replaced older records.
    policies = {policy.id for policy in iterate_policies(later_job)} if later_job is not None else set()
    yield from chain(
        _iter_open_evaluations(snapshot, job_purge, context),
        _iter_allocation_changes(snapshot, job_purge, context),
        _iter_attempts(snapshot, job_purge),
        (
            _Leftover(DEPLOYMENTS.build_delete(record.id), snapshot.build_record_condition(DEPLOYMENTS, record))
            for record in snapshot.list_by_index_sorted(DEPLOYMENTS_OF_JOB, *key)
            if record.job_create_index == job_purge.job_create_index
        ),
        (
            _Leftover(
                JOB_VERSIONS.build_delete(*key, record.version), snapshot.build_record_condition(JOB_VERSIONS, record)
            )
            for record in snapshot.list_by_index_sorted(VERSIONS_OF_JOB, *key)
            if record.create_index == job_purge.job_create_index
        ),
        (
            _Leftover(
                JOB_SUBMISSIONS.build_delete(*key, record.version),
                snapshot.build_record_condition(JOB_SUBMISSIONS, record),
            )
            for record in snapshot.list_by_index_sorted(SUBMISSIONS_OF_JOB, *key)
            if record.version > last_replaced_version
        ),
        (
            _Leftover(
                SCALING_POLICIES.build_delete(record.id), snapshot.build_record_condition(SCALING_POLICIES, record)
            )
            for record in snapshot.list_by_index_sorted(SCALING_POLICIES_OF_JOB, *key)
            if record.id not in policies
        ),
    )


def _find_later_job(snapshot: Replica, job_purge: JobPurge) -> Job | None:
    """Return the job of the same name that was registered after the purged one, or `None`."""
    job = snapshot.get(JOBS, job_purge.namespace, job_purge.job_id)
    return None if job is None or job.create_index == job_purge.job_create_index else job


def _iter_open_evaluations(snapshot: Replica, job_purge: JobPurge, context: DecisionContext) -> Iterator[_Leftover]:
    """Yield the changes that end the open evaluations of the purged job.

    Yield nothing if the job was registered again: the evaluations then belong to the new job.
    """
    if _find_later_job(snapshot, job_purge) is not None:
        return
    for evaluation in snapshot.list_by_index_sorted(EVALUATIONS_OF_JOB, job_purge.namespace, job_purge.job_id):
        if evaluation.status.is_terminal or evaluation.id == job_purge.eval_id:
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


def _iter_allocation_changes(snapshot: Replica, job_purge: JobPurge, context: DecisionContext) -> Iterator[_Leftover]:
    """Yield the changes that stop the job's allocations that occupy a node and delete the others.

    A lost allocation that holds a lock is left to garbage collection, because its node may still run it.
    """
    for allocation in _iter_allocations(snapshot, job_purge):
        condition = snapshot.build_record_condition(ALLOCATIONS, allocation)
        if not allocation.is_occupying:
            if not may_hold_lock(snapshot, allocation):
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


def _iter_attempts(snapshot: Replica, job_purge: JobPurge) -> Iterator[_Leftover]:
    """Yield the changes that delete the attempts of the arrays of the purged job: first the results of each."""
    for attempt in snapshot.list_by_index_sorted(ATTEMPTS_OF_JOB, job_purge.namespace, job_purge.job_id):
        if attempt.job_create_index == job_purge.job_create_index:
            for change in list_attempt_deletions(snapshot, attempt):
                condition = Condition(
                    change.table, change.key, snapshot.get_version(snapshot.tables[change.table], change.key)
                )
                yield _Leftover(change, condition)


def _iter_allocations(snapshot: Replica, job_purge: JobPurge) -> Iterator[Allocation]:
    """Yield the allocations of the purged job, without those of a later job of the same name."""
    for allocation in snapshot.list_by_index_sorted(ALLOCATIONS_OF_JOB, job_purge.namespace, job_purge.job_id):
        if allocation.job_create_index == job_purge.job_create_index:
            yield allocation
