"""What follows from a write: the status of jobs and their summaries. The leader's brain is their one writer.

`with_derived` adds to a write what its other changes make true, so that both become true at one index. What others
wrote without it (a registration, decided on any server) the brain settles in a write that follows.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation, ClientStatus
from wharf.model.changes import THIS, Cause, Condition, Put, Write, join_key
from wharf.model.deployment import Deployment
from wharf.model.evaluation import Evaluation
from wharf.model.job import Job, JobStatus, JobType
from wharf.model.machine import advance
from wharf.model.summary import ChildrenSummary, GroupSummary, JobSummary
from wharf.model.transitions import DEPLOYMENT, JOB
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
    """The snapshot as a write will leave it."""

    def __init__(self, snapshot: Replica, write: Write) -> None:
        self.snapshot = snapshot
        self._changed: dict[str, dict[str, Any]] = {}
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
        for record in self.snapshot.those(index, *value):
            if table.key_of(record) not in changed:
                yield record


def with_derived(snapshot: Replica, write: Write) -> Write:
    """The write, and with it every job status and summary that its changes move."""
    after = After(snapshot, write)
    return _settled(snapshot, after, write, list(_jobs_touched(after)))


def settling(snapshot: Replica, jobs: list[JobKey], cause: Cause) -> Write | None:
    """The write that makes statuses of these jobs true where somebody else's write left them behind."""
    nothing = Write("jobs-settled", cause, ())
    write = _settled(snapshot, After(snapshot, nothing), nothing, jobs)
    return write if write.changes else None


def _settled(snapshot: Replica, after: After, write: Write, jobs: list[JobKey]) -> Write:
    changes = {(change.table, change.key): change for change in write.changes}
    conditions = {(condition.table, condition.key): condition for condition in write.conditions}
    parents: dict[JobKey, list[tuple[JobStatus | None, JobStatus]]] = {}

    def put(table: Table[Any], record: Any) -> None:
        change = table.put(record)
        changes[table.name, change.key] = change
        conditions.setdefault(
            (table.name, change.key), Condition(table.name, change.key, snapshot.version(table, change.key))
        )

    for key in jobs:
        job: Job | None = after.get(JOBS, *key)
        if job is None:
            continue
        summary: JobSummary | None = after.get(SUMMARIES, *key)
        counted = _summary_after(after, job, summary)
        if counted != summary:
            put(SUMMARIES, counted)
        stood = snapshot.get(JOBS, *key)
        status = status_of(after, job)
        if status is not job.status:
            put(JOBS, replace(job, status=advance(JOB, job.status, status, record_id=f"{key[0]}/{key[1]}")))
        was = stood.status if stood is not None else None
        if job.parent_id and status is not was:
            parents.setdefault((job.namespace, job.parent_id), []).append((was, status))
    for key, moves in parents.items():
        parent_summary: JobSummary | None = after.get(SUMMARIES, *key)
        if parent_summary is not None:
            put(SUMMARIES, _with_children(parent_summary, moves))
    return replace(write, changes=tuple(changes.values()), conditions=tuple(conditions.values()))


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
    return JobStatus.PENDING


def new_summary(job: Job) -> JobSummary:
    """All zeros, with every group of the job."""
    is_parent = job.is_periodic or job.is_parameterized
    return JobSummary(
        job_id=job.id,
        namespace=job.namespace,
        summary={group.name: GroupSummary() for group in job.groups},
        children=ChildrenSummary() if is_parent else None,
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
    for evaluation in after.changes(EVALUATIONS).values():
        if evaluation is not None and (evaluation.namespace, evaluation.job_id) == (job.namespace, job.id):
            for name, queued in (evaluation.queued_allocations or {}).items():
                groups.setdefault(name, msgspec.structs.asdict(GroupSummary()))["queued"] = queued
    return replace(counted, summary={name: GroupSummary(**counters) for name, counters in groups.items()})


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


def _with_children(summary: JobSummary, moves: list[tuple[JobStatus | None, JobStatus]]) -> JobSummary:
    counters = msgspec.structs.asdict(summary.children or ChildrenSummary())
    for was, now in moves:
        if was is not None:
            counters[was.value] = max(0, counters[was.value] - 1)
        counters[now.value] += 1
    return replace(summary, children=ChildrenSummary(**counters))
