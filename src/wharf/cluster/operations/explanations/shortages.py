"""Why nodes cannot take one more allocation of a group. The explanation of a job and the plan of a job use the same texts."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from wharf.cluster.operations.array_views import count_elements
from wharf.cluster.operations.explanations.text import describe_shortage
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.explanation.capacity_report import CapacityReport, report_capacity
from wharf.cluster.scheduling.explanation.smallest_change import AMOUNT_CHANGES
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, JOBS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.explanations import GroupExplanation
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job

MAX_EXPLAINED_GROUPS: Final = 10
"""Groups of a plan that are explained. Each examines all nodes; the limit protects the time of a dry run."""


def add_shortage(
    base: GroupExplanation, job: Job, group: TaskGroup, report: CapacityReport, *, quota_name: str
) -> GroupExplanation:
    """Return the explanation of a group with the reasons why nodes cannot take one more allocation, and what would help.

    `quota_name` is the used-up quota, or empty.
    """
    desired, unplaced = base.wanted, base.unplaced
    if job.runs_on_every_node:
        # If no node can run it, one allocation is missing nevertheless.
        unplaced = report.unserved_nodes or int(not desired)
        desired += unplaced
    elif unplaced > 1 and report.smallest_change.startswith(AMOUNT_CHANGES):
        report = replace(report, smallest_change=f"for one more allocation: {report.smallest_change}")
    return replace(
        base,
        wanted=desired,
        unplaced=unplaced,
        text=describe_shortage(
            group,
            max(1, unplaced),
            report,
            quota_name=quota_name,
            is_all_or_nothing=job.all_at_once and not job.runs_on_every_node,
        ),
        nodes=report.nodes,
        fitting=report.fitting,
        excluded=report.excluded,
        exhausted=report.exhausted,
        smallest_change=report.smallest_change,
    )


def _count_elements(
    snapshot: Replica, job: Job, group: TaskGroup, remaining: Sequence[Allocation], started: Sequence[Allocation]
) -> GroupExplanation:
    """Return how many elements of an array have not ended, run and wait after a plan.

    The scheduler plans a part of a large array, and stops at the first element that no node can run (record 0365).
    """
    open_count = group.total_count
    if (stored := snapshot.get(JOBS, job.namespace, job.id)) is not None and stored.version == job.version:
        counts = count_elements(snapshot, job, group)
        open_count = counts.waiting + counts.starting + counts.running
    alive = sum(each.task_group == group.name and not each.is_client_terminal for each in remaining)
    placed = sum(each.task_group == group.name for each in started)
    return GroupExplanation(
        group=group.name, wanted=open_count, running=alive - placed, unplaced=max(0, open_count - alive), is_array=True
    )


def explain_plan(
    cache: SchedulerCache, snapshot: Replica, plan: Plan, failed_groups: Mapping[str, AllocMetric]
) -> dict[str, GroupExplanation]:
    """Return for each group that the plan cannot place in full why nodes cannot take one more allocation.

    The changes of the plan count as made. A group that a quota or preemption delays is left out, because the metric of
    its failed placement has the reason.
    """
    job = plan.job
    if job is None:
        return {}
    started = tuple(allocation for placed in plan.placements.values() for allocation in placed)
    stopped_ids = {allocation.id for allocation in plan.stops}
    stored = snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
    remaining = [*(each for each in stored if each.id not in stopped_ids), *started]
    explanations: dict[str, GroupExplanation] = {}
    for group in job.groups:
        metric = failed_groups.get(group.name)
        if metric is None or metric.quota_exhausted or len(explanations) == MAX_EXPLAINED_GROUPS:
            continue
        report = report_capacity(cache, snapshot, job, group, remaining, started=started, stopped=plan.stops)
        base = GroupExplanation(group=group.name, wanted=group.count, unplaced=metric.coalesced_failures + 1)
        if group.array is not None:
            base = _count_elements(snapshot, job, group, remaining, started)
        explanations[group.name] = add_shortage(base, job, group, report, quota_name="")
    return explanations
