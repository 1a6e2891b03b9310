"""What follows from a write: the status of jobs, their summaries, how far deployments have come. The leader's brain is
their one writer.

`with_derived` adds to a write what its other changes make true, so that both become true at one index. What others
wrote without it (a registration, decided on any server) the brain settles in a write that follows.

How far a deployment has come, counted from what its allocations become (scheduling.md 7.3).

It only counts. Whether a deployment goes on, fails or is done is decided elsewhere.
"""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.jobs.summaries import SUMMARY_COUNTERS, make_job_summary
from wharf.cluster.state import Index, Replica, Table
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_SUMMARIES,
    JOBS,
)
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.deployments import Deployment, DeploymentGroup
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.jobs.job import ChildrenSummary, GroupSummary, Job, JobStatus, JobSummary, JobType
from wharf.contract.model.log import Cause, Condition, PutRecord, Write, join_key
from wharf.contract.model.state_machines.machine import advance_state
from wharf.contract.model.state_machines.transitions import DEPLOYMENT_STATES, JOB_STATES
from wharf.contract.model.times import to_datetime

AllocationChangePair = tuple[Allocation | None, Allocation]
"""An allocation as it stood, if it did, and as it will stand."""


def update_deployment_counts(deployment: Deployment, changes: Sequence[AllocationChangePair]) -> Deployment:
    """The deployment with these changes of its allocations counted in."""
    groups = dict(deployment.task_groups or {})
    for old, new in changes:
        group = groups.get(new.task_group)
        if group is not None:
            groups[new.task_group] = _with_health(_with_placement(group, deployment.id, old, new), old, new)
    if groups == (deployment.task_groups or {}):
        return deployment
    latest = max(new.modify_time for _, new in changes)
    return replace(deployment, task_groups=groups, modify_time=max(deployment.modify_time, latest))


def _with_placement(
    group: DeploymentGroup, deployment_id: str, old: Allocation | None, new: Allocation
) -> DeploymentGroup:
    if old is not None and old.deployment_id == deployment_id:
        return group
    group = replace(group, placed_allocs=group.placed_allocs + 1)
    if _is_canary(new):
        group = replace(group, placed_canaries=(*(group.placed_canaries or ()), new.id))
    if group.progress_deadline and group.require_progress_by is None:
        begun = to_datetime(new.modify_time)  # What is updated in place was created long ago.
        group = replace(group, require_progress_by=add_duration(begun, group.progress_deadline))
    return group


def _with_health(group: DeploymentGroup, old: Allocation | None, new: Allocation) -> DeploymentGroup:
    was, now = get_allocation_health(old), get_allocation_health(new)
    if now is None or was is now or was is False:
        return group  # What was unhealthy once stays counted as such.
    if not now:
        return replace(
            group,
            healthy_allocs=group.healthy_allocs - (1 if was else 0),
            unhealthy_allocs=group.unhealthy_allocs + 1,
        )
    group = replace(group, healthy_allocs=group.healthy_allocs + 1)
    told = new.deployment_status.timestamp if new.deployment_status is not None else None
    if not group.progress_deadline or told is None:
        return group
    # A node whose clock is ahead gives its rollout no more time.
    until = add_duration(min(told, to_datetime(new.modify_time)), group.progress_deadline)
    is_later = group.require_progress_by is None or until > group.require_progress_by
    return replace(group, require_progress_by=until) if is_later else group


def get_allocation_health(allocation: Allocation | None) -> bool | None:
    """None: nobody has decided it yet."""
    if allocation is None or allocation.deployment_status is None:
        return None
    return allocation.deployment_status.healthy


def _is_canary(allocation: Allocation) -> bool:
    return allocation.deployment_status is not None and allocation.deployment_status.canary


def add_duration(time: datetime.datetime, duration_ns: int) -> datetime.datetime:
    """The instant so many nanoseconds later, to the microsecond."""
    return time + datetime.timedelta(microseconds=duration_ns // 1_000)


JobKey = tuple[str, str]  # namespace, id

CUMULATIVE_COUNTERS = ("complete", "failed")


class DerivedWriteBuilder:
    """The snapshot as a write will leave it, with what follows from the write as it is found out."""

    def __init__(self, snapshot: Replica, write: Write) -> None:
        self.snapshot = snapshot
        self._changed: dict[str, dict[str, Any]] = {}
        self._write = write
        self._changes = {(change.table, change.key): change for change in write.changes}
        self._conditions = {(condition.table, condition.key): condition for condition in write.conditions}
        for change in write.changes:
            record = change.record if isinstance(change, PutRecord) else None
            self._changed.setdefault(change.table, {})[change.key] = record

    def get_changes(self, table: Table[Any]) -> dict[str, Any]:
        """Key to new record, or to None where it goes."""
        return self._changed.get(table.name, {})

    def get_record(self, table: Table[Any], *key: str) -> Any:
        changed = self.get_changes(table)
        joined = join_key(*key)
        return changed[joined] if joined in changed else self.snapshot.get(table, *key)

    def iterate_index(self, table: Table[Any], index: Index[Any], value: JobKey) -> Iterator[Any]:
        changed = self.get_changes(table)
        for record in changed.values():
            if record is not None and index.get_value(record) == value:
                yield record
        # One after the other: who asks whether there is any seldom reads them all, and a job may have a million.
        for key, record in self.snapshot.iter_by_index(index, *value):
            if key not in changed:
                yield record

    def has_dropped(self, table: Table[Any], index: Index[Any], value: JobKey) -> bool:
        """Whether the write takes away a record with this value."""
        gone = [self.snapshot.get(table, key) for key, record in self.get_changes(table).items() if record is None]
        return any(record is not None and index.get_value(record) == value for record in gone)

    def put_record(self, table: Table[Any], record: Any) -> None:
        """This follows too. It rests on the record that stands there now."""
        change = table.build_put(record)
        place = (table.name, change.key)
        self._changed.setdefault(table.name, {})[change.key] = record
        self._changes[place] = change
        version = self.snapshot.get_version(table, change.key)
        self._conditions.setdefault(place, Condition(table.name, change.key, version))

    def build_write(self) -> Write:
        """The write with all that follows."""
        return replace(self._write, changes=tuple(self._changes.values()), conditions=tuple(self._conditions.values()))


def add_derived_changes(snapshot: Replica, write: Write) -> Write:
    """The write, and with it every job status, summary and count of a deployment that its changes move."""
    after = DerivedWriteBuilder(snapshot, write)
    _count_deployments(after)
    for key in _jobs_touched(after):
        _settle(after, key)
    return after.build_write()


def build_derived_write(snapshot: Replica, jobs: Iterable[JobKey], cause: Cause) -> Write | None:
    """The write that makes statuses of these jobs true where somebody else's write left them behind."""
    after = DerivedWriteBuilder(snapshot, Write("jobs-settled", cause, ()))
    for key in jobs:
        _settle(after, key)
    write = after.build_write()
    return write if write.changes else None


def _settle(after: DerivedWriteBuilder, key: JobKey) -> None:
    stood: Job | None = after.snapshot.get(JOBS, *key)
    job: Job | None = after.get_record(JOBS, *key)
    was = stood.status if stood is not None else None
    if job is None:
        # Purged. A child that had not ended counts as dead from now on.
        if stood is not None and stood.status is not JobStatus.DEAD:
            _count_child(after, stood, was, JobStatus.DEAD)
        return
    summary: JobSummary | None = after.get_record(JOB_SUMMARIES, *key)
    counted = _summary_after(after, job, summary)
    if counted != summary:
        after.put_record(JOB_SUMMARIES, counted)
    status = derive_job_status(after, job)
    if status is not job.status:
        after.put_record(
            JOBS, replace(job, status=advance_state(JOB_STATES, job.status, status, record_id=f"{key[0]}/{key[1]}"))
        )
    if status is not was:
        _count_child(after, job, was, status)


def _count_deployments(after: DerivedWriteBuilder) -> None:
    """Deployments count what their allocations become."""
    moved: dict[str, list[AllocationChangePair]] = {}
    for key, allocation in after.get_changes(ALLOCATIONS).items():
        if allocation is not None and allocation.deployment_id:
            moved.setdefault(allocation.deployment_id, []).append((after.snapshot.get(ALLOCATIONS, key), allocation))
    for deployment_id, allocations in moved.items():
        deployment: Deployment | None = after.get_record(DEPLOYMENTS, deployment_id)
        if deployment is None:
            continue
        after_them = update_deployment_counts(deployment, allocations)
        if after_them != deployment:
            after.put_record(DEPLOYMENTS, after_them)


def _count_child(after: DerivedWriteBuilder, child: Job, was: JobStatus | None, now: JobStatus) -> None:
    """Keep the parent's count of its children."""
    parent: JobSummary | None = (
        after.get_record(JOB_SUMMARIES, child.namespace, child.parent_id) if child.parent_id else None
    )
    if parent is not None:
        after.put_record(JOB_SUMMARIES, _with_child(parent, was, now))


def _jobs_touched(after: DerivedWriteBuilder) -> dict[JobKey, None]:
    touched: dict[JobKey, None] = {}
    for table in (EVALUATIONS, ALLOCATIONS, DEPLOYMENTS):
        for key, record in after.get_changes(table).items():
            record = record if record is not None else after.snapshot.get(table, key)
            if record is not None and record.job_id:
                touched[record.namespace, record.job_id] = None
    for key, record in after.get_changes(JOBS).items():
        record = record if record is not None else after.snapshot.get(JOBS, key)
        if record is not None:
            touched[record.namespace, record.id] = None
    return touched


def derive_job_status(builder: DerivedWriteBuilder, job: Job) -> JobStatus:
    """The reference's table (jobs.md 4), first match wins."""
    key = (job.namespace, job.id)
    if job.type == JobType.SYSTEM or job.is_parameterized or job.is_periodic:
        return JobStatus.DEAD if job.stop else JobStatus.RUNNING
    deployments: Iterator[Deployment] = builder.iterate_index(DEPLOYMENTS, DEPLOYMENTS_OF_JOB, key)
    if any(deployment.status not in DEPLOYMENT_STATES.terminal_states for deployment in deployments):
        return JobStatus.RUNNING
    allocations: Iterator[Allocation] = builder.iterate_index(ALLOCATIONS, ALLOCATIONS_OF_JOB, key)
    if any(not allocation.is_terminal for allocation in allocations):
        return JobStatus.RUNNING
    evaluations: list[Evaluation] = list(builder.iterate_index(EVALUATIONS, EVALUATIONS_OF_JOB, key))
    if any(not evaluation.status.is_terminal for evaluation in evaluations):
        return JobStatus.PENDING
    if evaluations or job.stop or job.status is JobStatus.DEAD:
        return JobStatus.DEAD
    if builder.has_dropped(EVALUATIONS, EVALUATIONS_OF_JOB, key):
        return JobStatus.DEAD
    return JobStatus.PENDING


def _summary_after(after: DerivedWriteBuilder, job: Job, summary: JobSummary | None) -> JobSummary:
    counted = summary if summary is not None else make_job_summary(job)
    groups = {name: msgspec.structs.asdict(group) for name, group in counted.summary.items()}
    for group in job.groups:
        groups.setdefault(group.name, msgspec.structs.asdict(GroupSummary()))
    for key, allocation in after.get_changes(ALLOCATIONS).items():
        if allocation is not None and _is_of(allocation, job):
            _count(groups, after.snapshot.get(ALLOCATIONS, key), allocation)
    for key, evaluation in after.get_changes(EVALUATIONS).items():
        is_ours = evaluation is not None and (evaluation.namespace, evaluation.job_id) == (job.namespace, job.id)
        if is_ours and _is_processed(after.snapshot.get(EVALUATIONS, key), evaluation):
            for name, queued in (evaluation.queued_allocations or {}).items():
                groups.setdefault(name, msgspec.structs.asdict(GroupSummary()))["queued"] = queued
    return replace(counted, summary={name: GroupSummary(**counters) for name, counters in groups.items()})


def _is_processed(old: Evaluation | None, new: Evaluation) -> bool:
    """What an evaluation says of the queue was true when it was processed; when it is moved later it may be no longer."""
    was_open = old is None or old.status is EvaluationStatus.PENDING
    return was_open and new.status in (EvaluationStatus.COMPLETE, EvaluationStatus.BLOCKED, EvaluationStatus.FAILED)


def _is_of(allocation: Allocation, job: Job) -> bool:
    """Of this life of the job: one that was purged and registered again counts from zero."""
    same = (allocation.namespace, allocation.job_id) == (job.namespace, job.id)
    return same and allocation.job_create_index == job.create_index


def _count(groups: dict[str, dict[str, int]], old: Allocation | None, new: Allocation) -> None:
    counters = groups.setdefault(new.task_group, msgspec.structs.asdict(GroupSummary()))
    if old is not None and old.client_status is new.client_status:
        return
    if old is not None:
        left = SUMMARY_COUNTERS[old.client_status]
        if left not in CUMULATIVE_COUNTERS:
            counters[left] = max(0, counters[left] - 1)
    elif counters["queued"]:
        counters["queued"] -= 1
    counters[SUMMARY_COUNTERS[new.client_status]] += 1


def _with_child(summary: JobSummary, was: JobStatus | None, now: JobStatus) -> JobSummary:
    counters = msgspec.structs.asdict(summary.children or ChildrenSummary())
    if was is not None:
        counters[was.value] = max(0, counters[was.value] - 1)
    counters[now.value] += 1
    return replace(summary, children=ChildrenSummary(**counters))
