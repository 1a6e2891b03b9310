"""Job summaries counted anew from what is there, for whoever thinks that they are wrong.

What history alone tells is kept where it is more: allocations that are collected have ended all the same.
"""

from collections.abc import Iterable
from itertools import islice

import msgspec
from msgspec.structs import asdict, replace

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, CHILDREN_OF_JOB, JOB_SUMMARIES, JOBS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.job import ChildrenSummary, GroupSummary, Job, JobSummary
from wharf.contract.model.log import KEY_SEPARATOR, WRITE_INDEX, Cause, CauseKind, Condition, PutRecord, Write

# Which counter of a summary an allocation stands in; the last two only ever rise.
SUMMARY_COUNTERS = {
    ClientStatus.PENDING: "starting",
    ClientStatus.RUNNING: "running",
    ClientStatus.LOST: "lost",
    ClientStatus.UNKNOWN: "unknown",
    ClientStatus.COMPLETE: "complete",
    ClientStatus.FAILED: "failed",
}


def make_job_summary(job: Job) -> JobSummary:
    """All zeros, with every group of the job."""
    return JobSummary(
        job_id=job.id,
        namespace=job.namespace,
        summary={group.name: GroupSummary() for group in job.groups},
        children=ChildrenSummary(),
        create_index=WRITE_INDEX,
    )


class SummaryReconciliation(msgspec.Struct, frozen=True):
    """`written`: how many; `after`: the key to go on from, empty when every job was looked at."""

    index: int
    written_count: int = 0
    next_key: str = ""


def reconcile_summaries(
    snapshot: Replica, *, after_key: str = "", max_summaries: int, max_scanned_jobs: int = 1_000, cause: str = ""
) -> Decision[SummaryReconciliation]:
    """Write the summaries that differ from what is there, of the jobs behind `after`, as many as fit."""
    changes: list[PutRecord] = []
    conditions: list[Condition] = []
    last = ""
    for job in islice(
        snapshot.iter_by_key(JOBS, start=f"{after_key}{KEY_SEPARATOR}" if after_key else None), max_scanned_jobs
    ):
        last = JOBS.get_key(job)
        stored = snapshot.get(JOB_SUMMARIES, job.namespace, job.id)
        counted = recompute_summary(snapshot, job, stored)
        if counted == stored:
            continue
        changes.append(JOB_SUMMARIES.build_put(counted))
        conditions += [
            snapshot.build_key_condition(JOB_SUMMARIES, job.namespace, job.id),
            snapshot.build_record_condition(JOBS, job),
        ]
        if len(changes) == max_summaries:
            break
    if not changes:
        return Decision(None, lambda index: SummaryReconciliation(index, 0, last))
    write = Write("summaries-reconciled", Cause(CauseKind.REQUEST, cause), changes, conditions)
    return Decision(write, lambda index: SummaryReconciliation(index, len(changes), last))


def recompute_summary(snapshot: Replica, job: Job, stored: JobSummary | None) -> JobSummary:
    base = stored if stored is not None else make_job_summary(job)
    groups = {group.name: asdict(GroupSummary()) for group in job.groups}
    for allocation in snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id):
        if allocation.job_create_index == job.create_index:
            counters = groups.setdefault(allocation.task_group, asdict(GroupSummary()))
            counters[SUMMARY_COUNTERS[allocation.client_status]] += 1
    for name, was in base.summary.items():
        counters = groups.setdefault(name, asdict(GroupSummary()))
        # Nobody counts the queue but the scheduler, and what has ended stays so when its record is gone.
        counters["queued"] = was.queued
        counters["complete"] = max(counters["complete"], was.complete)
        counters["failed"] = max(counters["failed"], was.failed)
    summary = {name: GroupSummary(**counters) for name, counters in groups.items()}
    children = _children(snapshot, job, base) if base.children is not None else None
    return replace(base, summary=summary, children=children, create_index=base.create_index or WRITE_INDEX)


def _children(snapshot: Replica, job: Job, base: JobSummary) -> ChildrenSummary:
    standing = count_children(snapshot.list_by_index(CHILDREN_OF_JOB, job.namespace, job.id))
    was = base.children or ChildrenSummary()
    return replace(standing, dead=max(standing.dead, was.dead))


def count_children(children: Iterable[Job]) -> ChildrenSummary:
    counters = asdict(ChildrenSummary())
    for child in children:
        counters[child.status.value] += 1
    return ChildrenSummary(**counters)
