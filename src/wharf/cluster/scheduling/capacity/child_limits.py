"""Child limits: at most `max_running` children of a parent job run at the same time; the others wait.

A child runs while it has an active allocation. The child that has waited longest starts next;
`controllers.blocked_queue` chooses it.
"""

from collections.abc import Iterable

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOB_SUMMARIES, JOBS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.job import Job, JobStatus


def get_max_running(parent: Job) -> int:
    """Return how many children of a periodic or parameterized job may run at the same time. 0: no limit."""
    limits = [settings.max_running for settings in (parent.periodic, parent.parameterized_job) if settings is not None]
    return min((limit for limit in limits if limit > 0), default=0)


def explain_child_limit(snapshot: Replica, job: Job, allocations: Iterable[Allocation]) -> str:
    """Return why the job may not start yet because too many children of its parent job run.

    The text is empty if it may start or has started already. `allocations` are those of the job.
    """
    parent = snapshot.get(JOBS, job.namespace, job.parent_id) if job.parent_id else None
    limit = 0 if parent is None else get_max_running(parent)
    if not limit or job.status is JobStatus.RUNNING or any(not allocation.is_terminal for allocation in allocations):
        return ""
    running = count_running_children(snapshot, job.namespace, job.parent_id)
    return f"max_running of {job.parent_id} exhausted ({running} running, limit {limit})" if running >= limit else ""


def count_running_children(snapshot: Replica, namespace: str, parent_id: str) -> int:
    """Return how many children of this parent job are running, from its job summary; 0 if it has none."""
    summary = snapshot.get(JOB_SUMMARIES, namespace, parent_id)
    return 0 if summary is None or summary.children is None else summary.children.running
