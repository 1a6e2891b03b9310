"""How jobs ended, for the needs between jobs, and the records that outlive deleted jobs (record 0310).

The outcome of a job that exists follows from its records. Only the deletion of a job stores it.
"""

from collections.abc import Iterable
from typing import Final

from wharf.cluster.operations.derived_write_builder import DerivedWriteBuilder
from wharf.cluster.scheduling.steps.decider import judge_run
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state import Replica
from wharf.cluster.state.formats import get_active_format
from wharf.cluster.state.lookups import list_attempts, read_element_states
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, JOB_RESULTS, JOB_SUMMARIES, JOBS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.array_attempts import FAILED, SUCCEEDED
from wharf.contract.model.jobs.job import Job, JobStatus, JobType
from wharf.contract.model.jobs.job_results import JobResult
from wharf.contract.model.jobs.step_states import StepCauseKind, StepOutcome, StepPhase
from wharf.contract.model.jobs.steps import Need
from wharf.contract.model.log import WRITE_INDEX, PutRecord

MAX_READ_ALLOCATIONS: Final = 1_000
"""The outcome of a job with more allocations follows from the counters of its summary."""
_FAILED_STATUSES: Final = (ClientStatus.FAILED, ClientStatus.LOST)


def is_needable(job: Job) -> bool:
    """Return whether other jobs can wait for the end of a job: it ends by itself, and is no parent of other jobs."""
    return job.is_finite and not job.is_periodic and not job.is_parameterized


def find_outcome(builder: DerivedWriteBuilder, namespace: str, need: Need) -> StepOutcome | None:
    """Return how the job of a need ended, as the write will leave it; `None` if nothing is known about the job.

    A job that the need may lack counts as skipped by its own condition.
    """
    job: Job | None = builder.get_record(JOBS, namespace, need.on)
    if job is not None and is_needable(job):
        return judge_job(builder.snapshot, job)
    result: JobResult | None = builder.get_record(JOB_RESULTS, namespace, need.on)
    if result is not None and job is None:
        return result.outcome
    return StepOutcome.SKIPPED_BY_CONDITION if need.optional else None


def judge_job(snapshot: Replica, job: Job) -> StepOutcome:
    """Return how a job ended, or that it has not."""
    return judge_ended_job(snapshot, job) if job.status is JobStatus.DEAD else StepOutcome.OPEN


def judge_ended_job(snapshot: Replica, job: Job) -> StepOutcome:
    """Return how a job ended that will not run any further. Whatever has not ended counts as canceled."""
    if job.is_run:
        return _judge_run(snapshot, job)
    outcomes = {_judge_array(snapshot, job, group.name) for group in job.groups if group.array is not None}
    if not all(group.array is not None for group in job.groups):
        outcomes.add(_judge_allocations(snapshot, job))
    return _join_outcomes(outcomes)


def _join_outcomes(outcomes: Iterable[StepOutcome]) -> StepOutcome:
    """Return the outcome of a job from those of its parts: the worst one."""
    found = set(outcomes)
    if found == {StepOutcome.CANCELED_BEFORE_BEGIN, StepOutcome.SUCCEEDED}:
        return StepOutcome.CANCELED_WHILE_RUNNING
    order = (StepOutcome.FAILED, StepOutcome.CANCELED_WHILE_RUNNING, StepOutcome.CANCELED_BEFORE_BEGIN)
    return next((each for each in order if each in found), StepOutcome.SUCCEEDED)


def _judge_run(snapshot: Replica, job: Job) -> StepOutcome:
    facts = list(read_snapshot_run(snapshot, job).iter_facts())
    match judge_run(facts).outcome:
        case "succeeded":
            return StepOutcome.SUCCEEDED
        case "failed":
            return StepOutcome.FAILED
        case "skipped":
            causes = {
                each.state.cause.kind for each in facts if each.state.phase is StepPhase.SKIPPED and each.state.cause
            }
            is_own = StepCauseKind.CONDITION in causes and StepCauseKind.JOB not in causes
            return StepOutcome.SKIPPED_BY_CONDITION if is_own else StepOutcome.SKIPPED_BY_NEED
    has_begun = any(each.state.began_at for each in facts)
    return StepOutcome.CANCELED_WHILE_RUNNING if has_begun else StepOutcome.CANCELED_BEFORE_BEGIN


def _judge_array(snapshot: Replica, job: Job, group: str) -> StepOutcome:
    states = read_element_states(snapshot, job, group).states
    if FAILED in states:
        return StepOutcome.FAILED
    if states and states == SUCCEEDED * len(states):
        return StepOutcome.SUCCEEDED
    has_begun = SUCCEEDED in states or _count_begun(snapshot, job, group)
    return StepOutcome.CANCELED_WHILE_RUNNING if has_begun else StepOutcome.CANCELED_BEFORE_BEGIN


def _count_begun(snapshot: Replica, job: Job, group: str) -> int:
    """Return how many allocations of a group have ever begun, as far as the summary of the job has them."""
    summary = snapshot.get(JOB_SUMMARIES, job.namespace, job.id)
    counts = summary.summary.get(group) if summary is not None else None
    if counts is None:
        return 0
    return counts.complete + counts.failed + counts.lost + counts.running + counts.unknown


def _judge_allocations(snapshot: Replica, job: Job) -> StepOutcome:
    """Return how the groups without an array ended, from the newest allocation of each name, or else from counters."""
    groups = [group for group in job.groups if group.array is None]
    newest = _list_newest(snapshot, job)
    statuses = {each.client_status for each in newest}
    requested = sum(group.count for group in groups)
    has_stopped = job.stop or job.status is not JobStatus.DEAD
    if has_stopped and not (newest and all(_has_completed(each) for each in newest)):
        has_begun = any(_count_begun(snapshot, job, group.name) for group in groups)
        return StepOutcome.CANCELED_WHILE_RUNNING if has_begun else StepOutcome.CANCELED_BEFORE_BEGIN
    if newest and (job.type == JobType.SYSBATCH or len(newest) >= requested):
        return StepOutcome.FAILED if statuses & {*_FAILED_STATUSES} else StepOutcome.SUCCEEDED
    summary = snapshot.get(JOB_SUMMARIES, job.namespace, job.id)
    counters = [summary.summary[group.name] for group in groups if summary and group.name in summary.summary]
    complete = sum(each.complete for each in counters)
    failed = sum(each.failed + each.lost for each in counters)
    if failed and (job.type == JobType.SYSBATCH or complete < requested):
        return StepOutcome.FAILED
    return StepOutcome.SUCCEEDED if complete else StepOutcome.CANCELED_BEFORE_BEGIN


def _has_completed(allocation: Allocation) -> bool:
    """Return whether an allocation completed before the job was stopped."""
    return allocation.client_status is ClientStatus.COMPLETE and not allocation.is_server_terminal


def _list_newest(snapshot: Replica, job: Job) -> list[Allocation]:
    """Return the newest allocation of each name, and of each node in a sysbatch job; none if there are too many."""
    key = (job.namespace, job.id)
    if snapshot.count_by_index(ALLOCATIONS_OF_JOB, *key) > MAX_READ_ALLOCATIONS:
        return []
    newest: dict[tuple[str, str], Allocation] = {}
    for allocation in snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key):
        if allocation.job_create_index != job.create_index:
            continue
        place = (allocation.name, allocation.node_id if job.type == JobType.SYSBATCH else "")
        former = newest.get(place)
        if former is None or former.create_index < allocation.create_index:
            newest[place] = allocation
    arrays = {group.name for group in job.groups if group.array is not None}
    return [each for each in newest.values() if each.task_group not in arrays]


# -- records of deleted jobs -------------------------------------------------------------------------------------------


def make_job_result(snapshot: Replica, job: Job, now_ns: int, *, is_collected: bool = False) -> PutRecord | None:
    """Return the change that stores how a job ended that is deleted; `None` if no job can wait for it, or it is stored.

    `is_collected`: garbage collection deletes it. It may delete the records of a job in several writes, the result first.
    """
    if not is_needable(job) or get_active_format(snapshot) < JOB_RESULTS.since_format:
        return None
    stored = snapshot.get(JOB_RESULTS, job.namespace, job.id)
    if stored is not None and stored.job_create_index == job.create_index and not _has_run_since(snapshot, job, stored):
        return None
    return JOB_RESULTS.build_put(
        JobResult(
            namespace=job.namespace,
            job_id=job.id,
            outcome=judge_ended_job(snapshot, job),
            job_create_index=job.create_index,
            delete_time=now_ns,
            is_collected=is_collected,
            create_index=WRITE_INDEX,
        )
    )


def _has_run_since(snapshot: Replica, job: Job, result: JobResult) -> bool:
    """Return whether a job ran again after a collection had stored its result and deleted a part of its records."""
    newest = next(reversed(list_attempts(snapshot, job)), None)
    return max(job.submit_time, newest.create_time if newest is not None else 0) > result.delete_time
