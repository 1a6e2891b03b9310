"""Look-ups that follow a reference from one record to another and check that it is still meant."""

from wharf.cluster.state.replica import Replica
from wharf.cluster.state.tables import (
    ARRAY_RESULTS,
    ATTEMPTS_OF_JOB,
    ELEMENTS_OF_GROUP,
    JOB_VERSIONS,
    ElementPhase,
)
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.array_attempts import ArrayAttempt, ElementStates, select_attempts
from wharf.contract.model.jobs.job import Job


def find_allocation_job(snapshot: Replica, allocation: Allocation) -> Job | None:
    """Return the job version that the allocation runs, or `None` if it is no longer stored.

    The version of a later job with the same ID, registered after a purge, is another job: its tasks may differ.
    """
    job = snapshot.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
    return job if job is not None and job.create_index == allocation.job_create_index else None


def list_attempts(snapshot: Replica, job: Job) -> list[ArrayAttempt]:
    """Return the attempts of the arrays of a job, oldest first, without those of an earlier job with the same ID."""
    return [
        attempt
        for attempt in snapshot.list_by_index_sorted(ATTEMPTS_OF_JOB, job.namespace, job.id)
        if attempt.job_create_index == job.create_index
    ]


def read_element_states(snapshot: Replica, job: Job, group: str) -> ElementStates:
    """Return the states of the elements of a group with an array."""
    attempts = snapshot.list_by_index(ATTEMPTS_OF_JOB, job.namespace, job.id)
    return ElementStates(
        group,
        select_attempts(attempts, job.create_index, group),
        lambda attempt, name, chunk: snapshot.get(ARRAY_RESULTS, job.namespace, job.id, attempt, name, chunk),
    )


def list_elements(snapshot: Replica, job: Job, group: str, *phases: ElementPhase) -> list[Allocation]:
    """Return the allocations of an array in these phases, or in all. They may be outdated, but not of an earlier job."""
    return [
        allocation
        for phase in phases or ElementPhase
        for allocation in snapshot.list_by_index(
            ELEMENTS_OF_GROUP, job.namespace, job.id, job.create_index, group, phase
        )
    ]
