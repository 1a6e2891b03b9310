"""Look-ups that follow a reference from one record to another and check that it is still meant."""

from wharf.cluster.state.replica import Replica
from wharf.cluster.state.tables import JOB_VERSIONS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.job import Job


def find_allocation_job(snapshot: Replica, allocation: Allocation) -> Job | None:
    """Return the job version that the allocation runs, or `None` if it is no longer stored.

    The version of a later job with the same ID, registered after a purge, is another job: its tasks may differ.
    """
    job = snapshot.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
    return job if job is not None and job.create_index == allocation.job_create_index else None
