"""Create job summaries, and recompute them from the stored records.

Allocations and children that were garbage-collected cannot be counted again, so the larger of both counts is kept
for ended ones.
"""

from collections.abc import Iterable
from itertools import islice

import msgspec
from msgspec.structs import asdict, replace

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, CHILDREN_OF_JOB, JOB_SUMMARIES, JOBS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.job import ChildrenSummary, GroupSummary, Job, JobStatus, JobSummary
from wharf.contract.model.log import KEY_SEPARATOR, WRITE_INDEX, Cause, CauseKind, Condition, PutRecord, Write

# The counter of a summary for each client status. The last two are never decremented.
SUMMARY_COUNTERS = {
    ClientStatus.PENDING: "starting",
    ClientStatus.RUNNING: "running",
    ClientStatus.LOST: "lost",
    ClientStatus.UNKNOWN: "unknown",
    ClientStatus.COMPLETE: "complete",
    ClientStatus.FAILED: "failed",
}


def choose_counter(allocation: Allocation) -> str:
    """Return the name of the counter of a summary that counts an allocation.

    An interrupted one counts as lost: its work is not done, although its tasks ended without a failure.
    """
    return "lost" if allocation.is_interrupted else SUMMARY_COUNTERS[allocation.client_status]


def make_job_summary(job: Job) -> JobSummary:
    """Return a summary with all counters 0 for every group of the job."""
    return JobSummary(
        job_id=job.id,
        namespace=job.namespace,
        summary={group.name: GroupSummary() for group in job.groups},
        children=ChildrenSummary(),
        create_index=WRITE_INDEX,
    )


class SummaryReconciliation(msgspec.Struct, frozen=True):
    """The result of one step that corrects job summaries."""

    index: int  # The log index of the write.
    written_count: int = 0  # How many summaries were corrected.
    next_key: str = ""  # The key of the last scanned job; the next step starts after it. Empty: all jobs were scanned.


def reconcile_summaries(
    snapshot: Replica, *, after_key: str = "", max_summaries: int, max_scanned_jobs: int, cause: str = ""
) -> Decision[SummaryReconciliation]:
    """Return the decision that corrects up to `max_summaries` job summaries that differ from the stored records.

    It scans at most `max_scanned_jobs` jobs, in key order, starting after `after_key`.
    """
    changes: list[PutRecord] = []
    conditions: list[Condition] = []
    last_key = ""
    for job in islice(
        snapshot.iter_by_key(JOBS, start=f"{after_key}{KEY_SEPARATOR}" if after_key else None), max_scanned_jobs
    ):
        last_key = JOBS.get_key(job)
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
        return Decision(None, lambda index: SummaryReconciliation(index, 0, last_key))
    write = Write("summaries-reconciled", Cause(CauseKind.REQUEST, cause), changes, conditions)
    return Decision(write, lambda index: SummaryReconciliation(index, len(changes), last_key))


def recompute_summary(snapshot: Replica, job: Job, stored: JobSummary | None) -> JobSummary:
    """Return the summary of the job, counted from its stored allocations and children.

    Some counters cannot be recomputed and are taken from the summary `stored`: queued allocations, and ended ones whose
    records were garbage-collected.
    """
    base = stored if stored is not None else make_job_summary(job)
    groups = {group.name: asdict(GroupSummary()) for group in job.groups}
    for allocation in snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id):
        if allocation.job_create_index == job.create_index:
            counters = groups.get(allocation.task_group)
            if counters is None:
                counters = groups[allocation.task_group] = asdict(GroupSummary())
            counters[choose_counter(allocation)] += 1
    for name, stored_counts in base.summary.items():
        counters = groups.setdefault(name, asdict(GroupSummary()))
        # Only the scheduler knows the queued count; ended allocations stay counted after their records are collected.
        counters["queued"] = stored_counts.queued
        counters["complete"] = max(counters["complete"], stored_counts.complete)
        counters["failed"] = max(counters["failed"], stored_counts.failed)
    summary = {name: GroupSummary(**counters) for name, counters in groups.items()}
    children = _recount_children(snapshot, job, base) if base.children is not None else None
    return replace(base, summary=summary, children=children, create_index=base.create_index or WRITE_INDEX)


def _recount_children(snapshot: Replica, job: Job, base: JobSummary) -> ChildrenSummary:
    """Return the counts of the job's children by status.

    At least as many are dead as in the stored summary, because dead children may have been garbage-collected.
    """
    current = count_children(snapshot.list_by_index(CHILDREN_OF_JOB, job.namespace, job.id))
    stored_counts = base.children or ChildrenSummary()
    return replace(current, dead=max(current.dead, stored_counts.dead))


def count_children(children: Iterable[Job]) -> ChildrenSummary:
    """Return how many children have each status."""
    counters = asdict(ChildrenSummary())
    for child in children:
        counters[child.status.value] += 1
    return ChildrenSummary(**counters)


def move_child(summary: JobSummary, old_status: JobStatus | None, new_status: JobStatus) -> JobSummary:
    """Return the parent's summary with one child moved from its old status to the new one.

    An old status of `None`: it is new.
    """
    counters = asdict(summary.children or ChildrenSummary())
    if old_status is not None:
        counters[old_status.value] = max(0, counters[old_status.value] - 1)
    counters[new_status.value] += 1
    return replace(summary, children=ChildrenSummary(**counters))
