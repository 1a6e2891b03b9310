"""What a run waits for besides its own steps: the jobs that its job needs, and earlier runs of its flow.

It is computed from the records of jobs, and not by the product's code about needs and queues.
"""

from collections.abc import Iterator

from simulation.run_moments import judge_ended_run, read_moments
from simulation.step_model import CANCELED_EARLY, OWN_SKIP, ModelNeed
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import CHILDREN_OF_JOB, JOB_RESULTS, JOBS, PURGED_CHILDREN_OF_JOB
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.steps import Need


def may_wait_for_others(job: Job) -> bool:
    """Return whether a run may wait for other jobs or for other runs of its flow."""
    return bool(job.depends) or bool(get_overlap(job) and job.parent_id)


def get_overlap(job: Job) -> str:
    return job.flow.overlap if job.flow is not None else ""


# -- needs of jobs -----------------------------------------------------------------------------------------------------


def find_ends(replica: Replica, namespace: str, need: Need) -> set[str]:
    """Return how the job of a need may have ended, in the words of the model; empty if it has not ended."""
    job = replica.get(JOBS, namespace, need.on)
    if job is not None:
        assert job.is_run, "simulated jobs need runs only"
        return judge_ended_run(read_moments(replica, job)) if job.status is JobStatus.DEAD else set()
    result = replica.get(JOB_RESULTS, namespace, need.on)
    if result is not None:
        return {result.outcome.value}
    return {OWN_SKIP if need.optional else CANCELED_EARLY}


def allows_job(need: Need, ends: set[str]) -> bool:
    """Return whether a need of a job holds if the other job ended in one of these ways."""
    return any(ModelNeed(need.on, need.when, optional=need.optional).allows(end) for end in ends)


# -- the queue of a flow -----------------------------------------------------------------------------------------------


def iterate_other_runs(replica: Replica, run: Job) -> Iterator[Job]:
    """Yield the other runs of the flow of a run that have not ended."""
    for other in replica.list_by_index(CHILDREN_OF_JOB, run.namespace, run.parent_id):
        if other.id != run.id and other.status is not JobStatus.DEAD:
            yield other


def find_run_before(replica: Replica, run: Job) -> str:
    """Return an earlier run of the same flow that has not ended, or whose purge has not; empty if there is none."""
    for other in iterate_other_runs(replica, run):
        if other.create_index < run.create_index:
            return other.id
    for purge in replica.list_by_index(PURGED_CHILDREN_OF_JOB, run.namespace, run.parent_id):
        if purge.job_create_index < run.create_index:
            return purge.job_id
    return ""


def find_awaited_job(replica: Replica, job: Job) -> str:
    """Return a job that must end before a run continues; empty if it waits for none."""
    for need in job.depends or ():
        needed = replica.get(JOBS, job.namespace, need.on)
        if needed is not None and needed.status is not JobStatus.DEAD:
            return need.on
    return find_run_before(replica, job) if get_overlap(job) and job.parent_id else ""
