"""Whose turn it is among the children of one job: at most `max_running` of them run at the same time, the others wait.

A child runs as long as it has work that is not over. It says who may begin; who begins next is the one that waits longest.
"""

from collections.abc import Iterable

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOB_SUMMARIES, JOBS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.job import Job, JobStatus


def get_max_running(parent: Job) -> int:
    """How many children of the job may run at the same time; 0: any number."""
    limits = [each.max_running for each in (parent.periodic, parent.parameterized_job) if each is not None]
    return min((limit for limit in limits if limit > 0), default=0)


def explain_child_limit(snapshot: Replica, job: Job, allocations: Iterable[Allocation]) -> str:
    """Why nothing of the job may be placed yet; empty: it is its turn, or it has begun already."""
    parent = snapshot.get(JOBS, job.namespace, job.parent_id) if job.parent_id else None
    limit = 0 if parent is None else get_max_running(parent)
    if not limit or job.status is JobStatus.RUNNING or any(not each.is_terminal for each in allocations):
        return ""
    running = count_running_children(snapshot, job.namespace, job.parent_id)
    return f"max_running of {job.parent_id} exhausted ({running} run, {limit} may)" if running >= limit else ""


def count_running_children(snapshot: Replica, namespace: str, parent_id: str) -> int:
    summary = snapshot.get(JOB_SUMMARIES, namespace, parent_id)
    return 0 if summary is None or summary.children is None else summary.children.running
