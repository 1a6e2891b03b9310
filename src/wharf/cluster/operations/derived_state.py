"""Derived state: the status of jobs, job summaries and deployment counts, which follow from other changes of a write.

Only the leader's scheduler process writes them. `add_derived_changes` extends a write with everything that its
changes imply, so that both become visible at one index. `build_derived_write` repairs jobs after a write that was
decided elsewhere, such as a registration. Whether a deployment continues, fails or succeeds is not decided here
(scheduling.md 7.3).
"""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.array_results import (
    add_element_results,
    derive_outcome,
    has_active_elements,
    has_open_elements,
)
from wharf.cluster.operations.derived_write_builder import DerivedWriteBuilder
from wharf.cluster.operations.jobs.summaries import choose_counter, make_job_summary, move_child
from wharf.cluster.state import Replica
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    ARRAY_ATTEMPTS,
    ATTEMPTS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_SUMMARIES,
    JOBS,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.deployments import Deployment, DeploymentGroup
from wharf.contract.model.evaluations import ELEMENT_TRIGGERS, Evaluation, EvaluationStatus
from wharf.contract.model.jobs.job import (
    GroupSummary,
    Job,
    JobEnding,
    JobKey,
    JobStatus,
    JobSummary,
    JobType,
)
from wharf.contract.model.log import Cause, Write
from wharf.contract.model.state_machines.machine import advance_state
from wharf.contract.model.state_machines.transitions import DEPLOYMENT_STATES, JOB_STATES
from wharf.contract.model.times import to_datetime

AllocationChangePair = tuple[Allocation | None, Allocation]
"""An allocation before the write (None if it is new) and after it."""


def update_deployment_counts(deployment: Deployment, changes: Sequence[AllocationChangePair]) -> Deployment:
    """Return the deployment with the effect of these allocation changes on its counts, canaries and progress deadlines.

    Return the same object if nothing changes.
    """
    groups = dict(deployment.task_groups or {})
    for old, new in changes:
        group = groups.get(new.task_group)
        if group is not None:
            counted = _remove_stopped_canary(_count_placement(group, deployment.id, old, new), new)
            groups[new.task_group] = _count_health(counted, deployment, old, new)
    if groups == (deployment.task_groups or {}):
        return deployment
    latest_change_ns = max(new.modify_time for _, new in changes)
    return replace(deployment, task_groups=groups, modify_time=max(deployment.modify_time, latest_change_ns))


def _count_placement(
    group: DeploymentGroup, deployment_id: str, old: Allocation | None, new: Allocation
) -> DeploymentGroup:
    """Return the group with a newly placed allocation counted; unchanged if the allocation was counted before.

    The first placement starts the group's progress deadline.
    """
    if old is not None and old.deployment_id == deployment_id:
        return group
    group = replace(group, placed_allocs=group.placed_allocs + 1)
    if _is_canary(new):
        group = replace(group, placed_canaries=(*(group.placed_canaries or ()), new.id))
    if group.progress_deadline and group.require_progress_by is None:
        # Not the creation time: an allocation that is updated in place was created long ago.
        placed_at = to_datetime(new.modify_time)
        group = replace(group, require_progress_by=add_duration(placed_at, group.progress_deadline))
    return group


def _remove_stopped_canary(group: DeploymentGroup, allocation: Allocation) -> DeploymentGroup:
    """Return the group without a canary that the servers stopped and that has ended, such as one on a draining node.

    Its deployment places another one, which the list holds in its place. After the promotion the list does not change.
    """
    placed = group.placed_canaries or ()
    has_ended = allocation.is_server_terminal and allocation.is_client_terminal
    if group.promoted or not has_ended or allocation.id not in placed:
        return group
    return replace(group, placed_canaries=tuple(each for each in placed if each != allocation.id))


def _count_health(
    group: DeploymentGroup, deployment: Deployment, old: Allocation | None, new: Allocation
) -> DeploymentGroup:
    """Return the group with a change of one allocation's health counted.

    While the deployment is active, an allocation that stops or ends no longer counts as healthy (ADR 74). A newly
    healthy allocation extends the group's progress deadline. So does a healthy one that stops or ends: its replacement
    gets the whole time to become healthy (ADR 101).
    """
    if old is not None and old.deployment_id != deployment.id:
        old = None  # Its health counted for another deployment.
    was_healthy, is_healthy = get_allocation_health(old), get_allocation_health(new)
    if was_healthy is False:
        return group  # An allocation that was unhealthy once stays counted as unhealthy.
    if is_healthy is False:
        group = replace(group, unhealthy_allocs=group.unhealthy_allocs + 1)
    was_counted = bool(was_healthy) and not _has_left(deployment, old)
    is_counted = bool(is_healthy) and not _has_left(deployment, new)
    if was_counted is is_counted:
        return group
    group = replace(group, healthy_allocs=group.healthy_allocs + (1 if is_counted else -1))
    changed_at = to_datetime(new.modify_time)
    if is_counted:
        reported_at = new.deployment_status.timestamp if new.deployment_status is not None else None
        if reported_at is None:
            return group
        # Limit the node's timestamp: a node whose clock is ahead must not extend the deadline of its deployment.
        changed_at = min(reported_at, changed_at)
    if not group.progress_deadline:
        return group
    deadline = add_duration(changed_at, group.progress_deadline)
    is_later = group.require_progress_by is None or deadline > group.require_progress_by
    return replace(group, require_progress_by=deadline) if is_later else group


def _has_left(deployment: Deployment, allocation: Allocation | None) -> bool:
    """Return whether the allocation has stopped or ended while its deployment is active."""
    return allocation is not None and allocation.is_terminal and deployment.is_active


def get_allocation_health(allocation: Allocation | None) -> bool | None:
    """Return whether the allocation is healthy, or `None` if its health was not reported yet."""
    if allocation is None or allocation.deployment_status is None:
        return None
    return allocation.deployment_status.healthy


def _is_canary(allocation: Allocation) -> bool:
    """Return whether the allocation is marked as a canary of its deployment."""
    return allocation.deployment_status is not None and allocation.deployment_status.canary


def add_duration(time: datetime.datetime, duration_ns: int) -> datetime.datetime:
    """Return the time this many nanoseconds later, rounded down to microseconds."""
    return time + datetime.timedelta(microseconds=duration_ns // 1_000)


CUMULATIVE_COUNTERS = ("complete", "failed")
"""Counters of a job summary that only grow: allocations that ended in these states stay counted."""


def add_derived_changes(snapshot: Replica, write: Write) -> Write:
    """Return the write extended by every job status, job summary and deployment count that its changes affect."""
    builder = DerivedWriteBuilder(snapshot, write)
    _add_deployment_changes(builder)
    for key in _list_affected_jobs(builder):
        _add_job_changes(builder, key)
    return builder.build_write()


def build_derived_write(snapshot: Replica, jobs: Iterable[JobKey], cause: Cause) -> Write | None:
    """Return a write that corrects the status and summary of these jobs, or `None` if they are correct.

    Used after a write that contained no derived changes, such as a registration by another process.
    """
    builder = DerivedWriteBuilder(snapshot, Write("jobs-settled", cause, ()))
    for key in jobs:
        _add_job_changes(builder, key)
    write = builder.build_write()
    return write if write.changes else None


def is_settled_registration(snapshot: Replica, changes: Sequence[AppliedChange]) -> bool:
    """Return whether the changes of one write register a new job with the status and the summary that follow from them.

    Most registrations do, and then `build_derived_write` finds nothing to correct. `snapshot` contains the changes. `False` means
    that the state of the job must be computed: the job already exists, is of a kind whose status does not only follow from its
    evaluation, or has the name of an earlier job whose records are not all deleted.
    """
    created: dict[str, Any] = {}
    for table, _, before, after in changes:
        if table in DECISIVE_TABLES:
            if before is not None or after is None or table in created:
                return False
            created[table] = after
    if created.keys() != REGISTERED_TABLES:
        return False
    job: Job = created[JOBS.name]
    evaluation: Evaluation = created[EVALUATIONS.name]
    summary: JobSummary = created[JOB_SUMMARIES.name]
    key = (job.namespace, job.id)
    return (
        job.status is JobStatus.PENDING
        and evaluation.status is EvaluationStatus.PENDING
        and key == (evaluation.namespace, evaluation.job_id) == (summary.namespace, summary.job_id)
        and job.type != JobType.SYSTEM
        and not (job.is_periodic or job.is_parameterized or job.has_arrays)
        and summary.outcome == JobEnding.NONE
        and summary.summary.keys() >= {group.name for group in job.groups}
        and not snapshot.count_by_index(DEPLOYMENTS_OF_JOB, *key)
        and not snapshot.count_by_index(ALLOCATIONS_OF_JOB, *key)
    )


REGISTERED_TABLES: Final = frozenset({JOBS.name, JOB_SUMMARIES.name, EVALUATIONS.name})
"""Of `DECISIVE_TABLES`, those in which the registration of a new job creates one record each."""
DECISIVE_TABLES: Final = REGISTERED_TABLES | {ALLOCATIONS.name, DEPLOYMENTS.name, ARRAY_ATTEMPTS.name}
"""The tables from which the status and the summary of a job follow, and those that hold them."""


def _add_job_changes(builder: DerivedWriteBuilder, key: JobKey) -> None:
    """Add to the write the job's derived status and summary where they differ, and the new child counts of its parent."""
    stored: Job | None = builder.snapshot.get(JOBS, *key)
    job: Job | None = builder.get_record(JOBS, *key)
    old_status = stored.status if stored is not None else None
    if job is None:
        # The job was purged. A child that had not ended counts as dead from now on.
        if stored is not None and stored.status is not JobStatus.DEAD:
            _add_parent_change(builder, stored, old_status, JobStatus.DEAD)
        return
    add_element_results(builder, job)
    summary: JobSummary | None = builder.get_record(JOB_SUMMARIES, *key)
    status = derive_job_status(builder, job)
    counted = _update_summary(builder, job, summary)
    counted = replace(counted, outcome=_derive_outcome(builder, job, status, counted.outcome))
    if counted != summary:
        builder.put_record(JOB_SUMMARIES, counted)
    if status is not job.status:
        builder.put_record(
            JOBS, replace(job, status=advance_state(JOB_STATES, job.status, status, record_id=f"{key[0]}/{key[1]}"))
        )
    # An operation that begins a child again has counted it among those of its parent, with the status in the write.
    is_counted = (
        stored is not None
        and bool(job.parent_id)
        and builder.is_stored_by_operation(JOB_SUMMARIES, job.namespace, job.parent_id)
    )
    counted_status = job.status if is_counted else old_status
    if status is not counted_status:
        _add_parent_change(builder, job, counted_status, status)


def _derive_outcome(builder: DerivedWriteBuilder, job: Job, status: JobStatus, stored: str) -> str:
    """Return how the job ended. The stored outcome stays while garbage collection deletes what it follows from."""
    if status is not JobStatus.DEAD:
        return JobEnding.NONE.value
    key = (job.namespace, job.id)
    is_affected = (
        job.status is not status
        or builder.list_stored(ARRAY_ATTEMPTS, ATTEMPTS_OF_JOB, key)
        or builder.list_stored(ALLOCATIONS, ALLOCATIONS_OF_JOB, key)
    )
    if not is_affected:
        return stored
    return (derive_outcome(builder, job) or _derive_allocations_outcome(builder, job)).value


def _derive_allocations_outcome(builder: DerivedWriteBuilder, job: Job) -> JobEnding:
    """Return how the allocations of an ended job without elements ended: the newest one of each name decides.

    An allocation that failed was replaced by a newer one of its name, or failed for good. Counters of allocations do not
    show which: they also count the allocations of earlier versions of the job (decision record 0321).
    """
    counts = {group.name: group.count for group in job.groups if group.array is None}
    if job.stop or job.is_periodic or job.is_parameterized or len(counts) < len(job.groups):
        return JobEnding.NONE
    newest: dict[tuple[str, str], Allocation] = {}
    for allocation in builder.iterate_index(ALLOCATIONS, ALLOCATIONS_OF_JOB, (job.namespace, job.id)):
        if allocation.job_create_index != job.create_index or (
            not job.runs_on_every_node and parse_index(allocation.name) >= counts.get(allocation.task_group, 0)
        ):
            continue  # Of an earlier job of this ID, or no longer requested.
        # Allocations of all nodes have the same name if the job runs on each node.
        key = allocation.name, allocation.node_id if job.runs_on_every_node else ""
        known = newest.get(key)
        if known is None or (known.create_index, known.id) < (allocation.create_index, allocation.id):
            newest[key] = allocation
    if any(each.client_status in (ClientStatus.FAILED, ClientStatus.LOST) for each in newest.values()):
        return JobEnding.FAILED
    is_complete = any(each.client_status is ClientStatus.COMPLETE for each in newest.values())
    return JobEnding.SUCCEEDED if is_complete else JobEnding.NONE


def _add_deployment_changes(builder: DerivedWriteBuilder) -> None:
    """Add to the write the new counts of all deployments whose allocations the write changes."""
    changes_by_deployment: dict[str, list[AllocationChangePair]] = {}
    for key, allocation in builder.get_changes(ALLOCATIONS).items():
        if allocation is not None and allocation.deployment_id:
            changes_by_deployment.setdefault(allocation.deployment_id, []).append(
                (builder.snapshot.get(ALLOCATIONS, key), allocation)
            )
    for deployment_id, allocations in changes_by_deployment.items():
        deployment: Deployment | None = builder.get_record(DEPLOYMENTS, deployment_id)
        if deployment is None:
            continue
        counted = update_deployment_counts(deployment, allocations)
        if counted != deployment:
            builder.put_record(DEPLOYMENTS, counted)


def _add_parent_change(
    builder: DerivedWriteBuilder, child: Job, old_status: JobStatus | None, new_status: JobStatus
) -> None:
    """Update the child counts in the summary of the job's parent, if it has one, for a child whose status changed."""
    parent: JobSummary | None = (
        builder.get_record(JOB_SUMMARIES, child.namespace, child.parent_id) if child.parent_id else None
    )
    if parent is not None:
        builder.put_record(JOB_SUMMARIES, move_child(parent, old_status, new_status))


def _list_affected_jobs(builder: DerivedWriteBuilder) -> dict[JobKey, None]:
    """Return the keys of the jobs that the write changes, or of which it changes an evaluation, an allocation, a
    deployment or an attempt.

    The keys are in a dictionary, which preserves their order.
    """
    job_keys: dict[JobKey, None] = {}
    for table in (EVALUATIONS, ALLOCATIONS, DEPLOYMENTS, ARRAY_ATTEMPTS):
        for key, record in builder.get_changes(table).items():
            record = record if record is not None else builder.snapshot.get(table, key)
            if record is not None and record.job_id:
                job_keys[record.namespace, record.job_id] = None
    for key, record in builder.get_changes(JOBS).items():
        record = record if record is not None else builder.snapshot.get(JOBS, key)
        if record is not None:
            job_keys[record.namespace, record.id] = None
    return job_keys


def derive_job_status(builder: DerivedWriteBuilder, job: Job) -> JobStatus:
    """Return the status of the job that follows from its records as the write will leave them.

    The first rule that matches applies (jobs.md 4).
    """
    key = (job.namespace, job.id)
    if job.type == JobType.SYSTEM or job.is_parameterized or job.is_periodic:
        return JobStatus.DEAD if job.stop else JobStatus.RUNNING
    deployments: Iterator[Deployment] = builder.iterate_index(DEPLOYMENTS, DEPLOYMENTS_OF_JOB, key)
    if any(deployment.status not in DEPLOYMENT_STATES.terminal_states for deployment in deployments):
        return JobStatus.RUNNING
    if has_active_elements(builder, job):
        return JobStatus.RUNNING
    if not all(group.array is not None for group in job.groups):
        allocations: Iterator[Allocation] = builder.iterate_index(ALLOCATIONS, ALLOCATIONS_OF_JOB, key)
        if any(not allocation.is_terminal for allocation in allocations):
            return JobStatus.RUNNING
    evaluations: list[Evaluation] = list(builder.iterate_index(EVALUATIONS, EVALUATIONS_OF_JOB, key))
    open_evaluations = [evaluation for evaluation in evaluations if not evaluation.status.is_terminal]
    if open_evaluations:
        return JobStatus.RUNNING if _begins_elements(job, open_evaluations) else JobStatus.PENDING
    if not job.stop and has_open_elements(builder, job):
        return JobStatus.PENDING
    if evaluations or job.stop or job.status is JobStatus.DEAD:
        return JobStatus.DEAD
    if builder.has_deleted(EVALUATIONS, EVALUATIONS_OF_JOB, key):
        return JobStatus.DEAD
    return JobStatus.PENDING


def _begins_elements(job: Job, open_evaluations: Sequence[Evaluation]) -> bool:
    """Return whether a running job goes on at once: an evaluation is about to begin its next elements or steps.

    Otherwise each step of a run would change the status, and so the whole job, twice (decision record 0332).
    """
    return (
        job.status is JobStatus.RUNNING
        and not job.stop
        and any(
            evaluation.triggered_by in ELEMENT_TRIGGERS and evaluation.status is EvaluationStatus.PENDING
            for evaluation in open_evaluations
        )
    )


def _update_summary(builder: DerivedWriteBuilder, job: Job, summary: JobSummary | None) -> JobSummary:
    """Return the summary of the job, updated for the allocations and processed evaluations that the write changes."""
    counted = summary if summary is not None else make_job_summary(job)
    key = (job.namespace, job.id)
    allocations: Sequence[Allocation] = builder.list_stored(ALLOCATIONS, ALLOCATIONS_OF_JOB, key)
    evaluations: Sequence[Evaluation] = builder.list_stored(EVALUATIONS, EVALUATIONS_OF_JOB, key)
    if not allocations and not evaluations and all(group.name in counted.summary for group in job.groups):
        return counted
    groups = {name: msgspec.structs.asdict(group) for name, group in counted.summary.items()}
    for group in job.groups:
        groups.setdefault(group.name, msgspec.structs.asdict(GroupSummary()))
    for allocation in allocations:
        if allocation.job_create_index == job.create_index:  # Else it belongs to a predecessor of the same name.
            _count_allocation(groups, builder.snapshot.get(ALLOCATIONS, allocation.id), allocation)
    for evaluation in evaluations:
        if _is_processed(builder.snapshot.get(EVALUATIONS, evaluation.id), evaluation):
            for name, queued in (evaluation.queued_allocations or {}).items():
                groups.setdefault(name, msgspec.structs.asdict(GroupSummary()))["queued"] = queued
    return replace(counted, summary={name: GroupSummary(**counters) for name, counters in groups.items()})


def _is_processed(old: Evaluation | None, new: Evaluation) -> bool:
    """Return whether the write stores the result of a scheduling pass of this evaluation.

    Only then are its counts of queued allocations current; a later change of the evaluation may carry outdated ones.
    """
    was_open = old is None or old.status is EvaluationStatus.PENDING
    return was_open and new.status in (EvaluationStatus.COMPLETE, EvaluationStatus.BLOCKED, EvaluationStatus.FAILED)


def _count_allocation(groups: dict[str, dict[str, int]], old: Allocation | None, new: Allocation) -> None:
    """Move an allocation from the counter of its old client status to the counter of the new one, in the summary
    `groups`.

    `groups` maps group names to counters. A new allocation also lowers the counter of queued ones.
    """
    counters = groups.setdefault(new.task_group, msgspec.structs.asdict(GroupSummary()))
    if old is not None and old.client_status is new.client_status:
        return
    if old is not None:
        old_counter = choose_counter(old)
        if old_counter not in CUMULATIVE_COUNTERS:
            counters[old_counter] = max(0, counters[old_counter] - 1)
    elif counters["queued"]:
        counters["queued"] -= 1
    counters[choose_counter(new)] += 1
