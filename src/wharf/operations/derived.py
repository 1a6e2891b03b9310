"""What follows from a write: the status of jobs, their summaries, how far deployments have come. The leader's brain is
their one writer.

`with_derived` adds to a write what its other changes make true, so that both become true at one index. What others
wrote without it (a registration, decided on any server) the brain settles in a write that follows.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation, ClientStatus
from wharf.model.changes import THIS, Cause, Condition, Put, Write, join_key
from wharf.model.deployment import Deployment
from wharf.model.evaluation import Evaluation, EvaluationStatus
from wharf.model.job import Job, JobStatus, JobType
from wharf.model.machine import advance
from wharf.model.summary import ChildrenSummary, GroupSummary, JobSummary
from wharf.model.transitions import DEPLOYMENT, JOB
from wharf.operations.deployment_counts import Moved, counted
from wharf.state import Index, Replica, Table
from wharf.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOBS,
    SUMMARIES,
)

JobKey = tuple[str, str]  # namespace, id

# Which counter of a summary an allocation stands in; the last two only ever rise.
COUNTERS = {
    ClientStatus.PENDING: "starting",
    ClientStatus.RUNNING: "running",
    ClientStatus.LOST: "lost",
    ClientStatus.UNKNOWN: "unknown",
    ClientStatus.COMPLETE: "complete",
    ClientStatus.FAILED: "failed",
}
NEVER_FALLING = ("complete", "failed")


class After:
    """The snapshot as a write will leave it, with what follows from the write as it is found out."""

    def __init__(self, snapshot: Replica, write: Write) -> None:
        self.snapshot = snapshot
        self._changed: dict[str, dict[str, Any]] = {}
        self._write = write
        self._changes = {(change.table, change.key): change for change in write.changes}
        self._conditions = {(condition.table, condition.key): condition for condition in write.conditions}
        for change in write.changes:
            record = change.record if isinstance(change, Put) else None
            self._changed.setdefault(change.table, {})[change.key] = record

    def changes(self, table: Table[Any]) -> dict[str, Any]:
        """Key to new record, or to None where it goes."""
        return self._changed.get(table.name, {})

    def get(self, table: Table[Any], *key: str) -> Any:
        changed = self.changes(table)
        joined = join_key(*key)
        return changed[joined] if joined in changed else self.snapshot.get(table, *key)

    def those(self, table: Table[Any], index: Index[Any], value: JobKey) -> Iterator[Any]:
        changed = self.changes(table)
        for record in changed.values():
            if record is not None and index.value_of(record) == value:
                yield record
        # One after the other: who asks whether there is any seldom reads them all, and a job may have a million.
        for key, record in self.snapshot.each_of(index, *value):
            if key not in changed:
                yield record

    def drops_any(self, table: Table[Any], index: Index[Any], value: JobKey) -> bool:
        """Whether the write takes away a record with this value."""
        gone = [self.snapshot.get(table, key) for key, record in self.changes(table).items() if record is None]
        return any(record is not None and index.value_of(record) == value for record in gone)

    def put(self, table: Table[Any], record: Any) -> None:
        """This follows too. It rests on the record that stands there now."""
        change = table.put(record)
        place = (table.name, change.key)
        self._changed.setdefault(table.name, {})[change.key] = record
        self._changes[place] = change
        version = self.snapshot.version(table, change.key)
        self._conditions.setdefault(place, Condition(table.name, change.key, version))

    def write(self) -> Write:
        """The write with all that follows."""
        return replace(self._write, changes=tuple(self._changes.values()), conditions=tuple(self._conditions.values()))


def with_derived(snapshot: Replica, write: Write) -> Write:
    """The write, and with it every job status, summary and count of a deployment that its changes move."""
    after = After(snapshot, write)
    _count_deployments(after)
    for key in _jobs_touched(after):
        _settle(after, key)
    return after.write()


def settling(snapshot: Replica, jobs: Iterable[JobKey], cause: Cause) -> Write | None:
    """The write that makes statuses of these jobs true where somebody else's write left them behind."""
    after = After(snapshot, Write("jobs-settled", cause, ()))
    for key in jobs:
        _settle(after, key)
    write = after.write()
    return write if write.changes else None


def _settle(after: After, key: JobKey) -> None:
    stood: Job | None = after.snapshot.get(JOBS, *key)
    job: Job | None = after.get(JOBS, *key)
    was = stood.status if stood is not None else None
    if job is None:
        # Purged. A child that had not ended counts as dead from now on.
        if stood is not None and stood.status is not JobStatus.DEAD:
            _count_child(after, stood, was, JobStatus.DEAD)
        return
    summary: JobSummary | None = after.get(SUMMARIES, *key)
    counted = _summary_after(after, job, summary)
    if counted != summary:
        after.put(SUMMARIES, counted)
    status = status_of(after, job)
    if status is not job.status:
        after.put(JOBS, replace(job, status=advance(JOB, job.status, status, record_id=f"{key[0]}/{key[1]}")))
    if status is not was:
        _count_child(after, job, was, status)


def _count_deployments(after: After) -> None:
    """Deployments count what their allocations become."""
    moved: dict[str, list[Moved]] = {}
    for key, allocation in after.changes(ALLOCATIONS).items():
        if allocation is not None and allocation.deployment_id:
            moved.setdefault(allocation.deployment_id, []).append((after.snapshot.get(ALLOCATIONS, key), allocation))
    for deployment_id, allocations in moved.items():
        deployment: Deployment | None = after.get(DEPLOYMENTS, deployment_id)
        if deployment is None:
            continue
        after_them = counted(deployment, allocations)
        if after_them != deployment:
            after.put(DEPLOYMENTS, after_them)


def _count_child(after: After, child: Job, was: JobStatus | None, now: JobStatus) -> None:
    """Keep the parent's count of its children."""
    parent: JobSummary | None = after.get(SUMMARIES, child.namespace, child.parent_id) if child.parent_id else None
    if parent is not None:
        after.put(SUMMARIES, _with_child(parent, was, now))


def _jobs_touched(after: After) -> dict[JobKey, None]:
    touched: dict[JobKey, None] = {}
    for table in (EVALUATIONS, ALLOCATIONS, DEPLOYMENTS):
        for key, record in after.changes(table).items():
            record = record if record is not None else after.snapshot.get(table, key)
            if record is not None and record.job_id:
                touched[record.namespace, record.job_id] = None
    for key, record in after.changes(JOBS).items():
        record = record if record is not None else after.snapshot.get(JOBS, key)
        if record is not None:
            touched[record.namespace, record.id] = None
    return touched


def status_of(after: After, job: Job) -> JobStatus:
    """The reference's table (jobs.md 4), first match wins."""
    key = (job.namespace, job.id)
    if job.type == JobType.SYSTEM or job.is_parameterized or job.is_periodic:
        return JobStatus.DEAD if job.stop else JobStatus.RUNNING
    deployments: Iterator[Deployment] = after.those(DEPLOYMENTS, DEPLOYMENTS_OF_JOB, key)
    if any(deployment.status not in DEPLOYMENT.terminal for deployment in deployments):
        return JobStatus.RUNNING
    allocations: Iterator[Allocation] = after.those(ALLOCATIONS, ALLOCATIONS_OF_JOB, key)
    if any(not allocation.is_terminal for allocation in allocations):
        return JobStatus.RUNNING
    evaluations: list[Evaluation] = list(after.those(EVALUATIONS, EVALUATIONS_OF_JOB, key))
    if any(not evaluation.status.is_terminal for evaluation in evaluations):
        return JobStatus.PENDING
    if evaluations or job.stop or job.status is JobStatus.DEAD:
        return JobStatus.DEAD
    if after.drops_any(EVALUATIONS, EVALUATIONS_OF_JOB, key):
        return JobStatus.DEAD
    return JobStatus.PENDING


def new_summary(job: Job) -> JobSummary:
    """All zeros, with every group of the job."""
    return JobSummary(
        job_id=job.id,
        namespace=job.namespace,
        summary={group.name: GroupSummary() for group in job.groups},
        children=ChildrenSummary(),
        create_index=THIS,
    )


def _summary_after(after: After, job: Job, summary: JobSummary | None) -> JobSummary:
    counted = summary if summary is not None else new_summary(job)
    groups = {name: msgspec.structs.asdict(group) for name, group in counted.summary.items()}
    for group in job.groups:
        groups.setdefault(group.name, msgspec.structs.asdict(GroupSummary()))
    for key, allocation in after.changes(ALLOCATIONS).items():
        if allocation is not None and _is_of(allocation, job):
            _count(groups, after.snapshot.get(ALLOCATIONS, key), allocation)
    for key, evaluation in after.changes(EVALUATIONS).items():
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
        left = COUNTERS[old.client_status]
        if left not in NEVER_FALLING:
            counters[left] = max(0, counters[left] - 1)
    elif counters["queued"]:
        counters["queued"] -= 1
    counters[COUNTERS[new.client_status]] += 1


def _with_child(summary: JobSummary, was: JobStatus | None, now: JobStatus) -> JobSummary:
    counters = msgspec.structs.asdict(summary.children or ChildrenSummary())
    if was is not None:
        counters[was.value] = max(0, counters[was.value] - 1)
    counters[now.value] += 1
    return replace(summary, children=ChildrenSummary(**counters))
