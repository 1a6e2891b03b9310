"""Job summaries counted anew from what is there, for whoever thinks that they are wrong.

What history alone tells is kept where it is more: allocations that are collected have ended all the same.
"""

from collections.abc import Iterable
from itertools import islice

import msgspec
from msgspec.structs import asdict, replace

from wharf.model.changes import SEPARATOR, THIS, Cause, CauseKind, Condition, Put, Write
from wharf.model.job import Job
from wharf.model.summary import ChildrenSummary, GroupSummary, JobSummary
from wharf.operations.decision import Decision
from wharf.operations.derived import COUNTERS, new_summary
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS_OF_JOB, CHILDREN_OF_JOB, JOBS, SUMMARIES


class SummariesReconciled(msgspec.Struct, frozen=True):
    """`written`: how many; `after`: the key to go on from, empty when every job was looked at."""

    index: int
    written: int = 0
    after: str = ""


def reconcile(
    snapshot: Replica, *, after: str = "", summaries_max: int, looked_at_max: int = 1_000, cause: str = ""
) -> Decision[SummariesReconciled]:
    """Write the summaries that differ from what is there, of the jobs behind `after`, as many as fit."""
    changes: list[Put] = []
    conditions: list[Condition] = []
    last = ""
    for job in islice(snapshot.by_key(JOBS, start=f"{after}{SEPARATOR}" if after else None), looked_at_max):
        last = JOBS.key_of(job)
        stored = snapshot.get(SUMMARIES, job.namespace, job.id)
        counted = counted_anew(snapshot, job, stored)
        if counted == stored:
            continue
        changes.append(SUMMARIES.put(counted))
        conditions += [snapshot.as_seen(SUMMARIES, job.namespace, job.id), snapshot.unchanged(JOBS, job)]
        if len(changes) == summaries_max:
            break
    if not changes:
        return Decision(None, lambda index: SummariesReconciled(index, 0, last))
    write = Write("summaries-reconciled", Cause(CauseKind.REQUEST, cause), changes, conditions)
    return Decision(write, lambda index: SummariesReconciled(index, len(changes), last))


def counted_anew(snapshot: Replica, job: Job, stored: JobSummary | None) -> JobSummary:
    base = stored if stored is not None else new_summary(job)
    groups = {group.name: asdict(GroupSummary()) for group in job.groups}
    for allocation in snapshot.those(ALLOCATIONS_OF_JOB, job.namespace, job.id):
        if allocation.job_create_index == job.create_index:
            counters = groups.setdefault(allocation.task_group, asdict(GroupSummary()))
            counters[COUNTERS[allocation.client_status]] += 1
    for name, was in base.summary.items():
        counters = groups.setdefault(name, asdict(GroupSummary()))
        # Nobody counts the queue but the scheduler, and what has ended stays so when its record is gone.
        counters["queued"] = was.queued
        counters["complete"] = max(counters["complete"], was.complete)
        counters["failed"] = max(counters["failed"], was.failed)
    summary = {name: GroupSummary(**counters) for name, counters in groups.items()}
    children = _children(snapshot, job, base) if base.children is not None else None
    return replace(base, summary=summary, children=children, create_index=base.create_index or THIS)


def _children(snapshot: Replica, job: Job, base: JobSummary) -> ChildrenSummary:
    standing = counted_children(snapshot.those(CHILDREN_OF_JOB, job.namespace, job.id))
    was = base.children or ChildrenSummary()
    return replace(standing, dead=max(standing.dead, was.dead))


def counted_children(children: Iterable[Job]) -> ChildrenSummary:
    counters = asdict(ChildrenSummary())
    for child in children:
        counters[child.status.value] += 1
    return ChildrenSummary(**counters)
