"""Needs between jobs: which other jobs a job may need, and the end of the wait (record 0310).

A need is checked when the job is submitted. When a needed job ends, the leader decides the steps of the waiting one again.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.jobs.job_outcomes import is_needable
from wharf.cluster.operations.jobs.overlap import RunQueues, get_overlap, has_attempt_begun, waits_in_queue
from wharf.cluster.operations.run_changes import start_builder
from wharf.cluster.operations.step_states import settle_steps
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import list_attempts
from wharf.cluster.state.tables import EVALUATIONS, JOB_RESULTS, JOBS
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.job import Job, JobKey, JobStatus
from wharf.contract.model.jobs.steps import Need
from wharf.contract.model.jobs.validation.findings import Findings, ValidationReport
from wharf.contract.model.log import Cause, CauseKind, Condition
from wharf.contract.model.refusal import Refusal, RefusalCode

MAX_VISITED_JOBS: Final = 1_000
"""Jobs that are visited in the search for a circle of jobs; limits the time of a submission."""
MAX_SHOWN_JOBS: Final = 10
"""Jobs of a circle that an error names."""
CAUSE: Final = Cause(CauseKind.TIMER, "needed-job")


def check_job_needs(snapshot: Replica, job: Job) -> Findings:
    """Return the problems of the needs of a job: jobs that do not exist, that never end, or that wait for this job."""
    report = ValidationReport()
    stored = snapshot.get(JOBS, job.namespace, job.id)
    known = stored.depends if stored is not None else None
    for position, need in enumerate(job.depends or ()):
        if not need.on or need.on == job.id:
            continue  # Other rules report them.
        needed = snapshot.get(JOBS, job.namespace, need.on)
        path = f"Depends[{position}].On"
        if needed is not None:
            _check_needed(needed, path, report)
        elif not need.optional and need not in (known or ()):
            _check_result(snapshot, job, need, path, report)
    _check_circle(snapshot, job, report)
    return report.build_findings()


def _check_needed(needed: Job, path: str, report: ValidationReport) -> None:
    """Add an error to the report if nobody can wait for the end of a job."""
    if is_needable(needed):
        return
    if needed.is_periodic or needed.is_parameterized:
        kind = "periodic" if needed.is_periodic else "parameterized"
        report.add_error(path, f'The job "{needed.id}" is {kind} and never ends', "name one of its children")
    else:
        report.add_error(
            path, f'The job "{needed.id}" is a {needed.type} job and does not end by itself', "name a batch job"
        )


def _check_result(snapshot: Replica, job: Job, need: Need, path: str, report: ValidationReport) -> None:
    """Add an error to the report if nothing is known about a job that does not exist."""
    if snapshot.get(JOB_RESULTS, job.namespace, need.on) is None:
        report.add_error(
            path,
            f'The job "{need.on}" does not exist in namespace "{job.namespace}"',
            "submit it first, or set Optional if it may be missing; the result of a deleted job is known for 30 days",
        )


def _check_circle(snapshot: Replica, job: Job, report: ValidationReport) -> None:
    """Add an error to the report if the job waits for a job that waits for it, directly or through others."""
    found = _find_circle(snapshot, job)
    if found is None:
        return
    if not found.chain:
        report.add_error(
            "Depends",
            f"The job waits for more than {MAX_VISITED_JOBS} jobs, directly or through others",
            "let it wait for fewer jobs",
        )
        return
    report.add_error(
        f"Depends[{found.position}].On",
        f"Jobs wait for each other in a circle: {found.text}",
        "remove one of these needs",
    )


def require_no_circle(snapshot: Replica, job: Job) -> None:
    """Raise if a run that begins again would wait for a job that waits for it."""
    found = _find_circle(snapshot, job) if job.depends else None
    if found is not None and found.chain:
        raise Refusal(
            RefusalCode.CONFLICT,
            f'run "{job.id}" cannot run again now, because jobs would wait for each other in a circle: {found.text}: '
            f"wait for the end of {found.chain[1]}, or stop it",
        )


class _Circle(NamedTuple):
    """Jobs that wait for each other, or too many jobs to find that out."""

    chain: tuple[str, ...]
    """The jobs from the first one, which is not repeated at the end; empty: too many jobs were visited."""
    position: int
    """The position of the need of the first job."""

    @property
    def text(self) -> str:
        more = ("...",) if len(self.chain) > MAX_SHOWN_JOBS else ()
        return " -> ".join([*self.chain[:MAX_SHOWN_JOBS], *more, self.chain[0]])


def _find_circle(snapshot: Replica, job: Job) -> _Circle | None:
    """Return the jobs that wait for each other in a circle if the job waits for those that it needs, or `None`."""
    paths: dict[str, tuple[str, ...]] = {}
    queues = RunQueues(snapshot)
    waiting: list[tuple[str, tuple[str, ...], int]] = [
        (need.on, (job.id,), position) for position, need in enumerate(job.depends or ()) if need.on != job.id
    ]
    for name, chain, position in waiting:
        if name == job.id:
            return _Circle(chain, position)
        if name in paths:
            continue
        paths[name] = chain
        if len(paths) > MAX_VISITED_JOBS:
            return _Circle((), position)
        waiting += [
            (following, (*chain, name), position) for following in _list_waited_for(snapshot, queues, job, name)
        ]
    return None


def _list_waited_for(snapshot: Replica, queues: RunQueues, job: Job, name: str) -> Iterator[str]:
    """Yield the jobs for which another job of the namespace waits. A job that has begun or ended waits for nothing.

    A run that has not begun also waits for the run before it, if its flow has `Overlap`.
    """
    other = snapshot.get(JOBS, job.namespace, name)
    if other is None or other.status is JobStatus.DEAD:
        return
    if other.depends and not has_attempt_begun(next(reversed(list_attempts(snapshot, other)), None)):
        yield from (need.on for need in other.depends)
    if get_overlap(other) and waits_in_queue(other, read_snapshot_run(snapshot, other)):
        run_ahead = queues.find_run_ahead(other)
        if run_ahead:
            yield run_ahead


def list_need_conditions(snapshot: Replica, job: Job) -> list[Condition]:
    """Return the conditions that nothing changes before the commit about the jobs that a job needs.

    A server may lag behind: a job that it does not know may exist, or may have ended and been deleted.
    """
    names = [need.on for need in job.depends or ()]
    conditions = [snapshot.build_key_condition(JOBS, job.namespace, name) for name in names]
    if any(snapshot.get(JOBS, job.namespace, name) is None for name in names):
        conditions.append(snapshot.build_prefix_condition(JOB_RESULTS, job.namespace))
    return conditions


# -- the end of the wait -----------------------------------------------------------------------------------------------


def may_wait(job: Job) -> bool:
    """Return whether the end of another job may change the steps of a job."""
    return bool(job.depends) and job.is_run and not job.stop and job.status is not JobStatus.DEAD


def settle_waiting_job(snapshot: Replica, key: JobKey, context: DecisionContext) -> Decision[str] | None:
    """Return the decision that begins or ends the steps of a job whose needed jobs have ended; `None` if it changes
    nothing. The reply is the ID of the job."""
    job = snapshot.get(JOBS, *key)
    if job is None or not may_wait(job):
        return None
    builder = start_builder(snapshot, "needed-job-ended", CAUSE)
    settle_steps(builder, job, context.now_ns)
    if not builder.build_write().changes:
        return None
    for need in job.depends or ():
        builder.require_unchanged(JOBS, job.namespace, need.on)
    # Also if no step begins: the job may have ended, and its status follows from the evaluation.
    builder.put_record(EVALUATIONS, make_evaluation(job, context, EvaluationTrigger.STEP_READY))
    return Decision(builder.build_write(), lambda _index: job.id)
