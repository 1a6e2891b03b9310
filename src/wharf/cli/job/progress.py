"""What a followed job has reached: its state at one time, and whether that is the end of its rollout or batch work.

Reads only. Printing is the task of `progress_view`, waiting that of `follower`.
"""

import contextlib
import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from wharf.cli.common.errors import CliError
from wharf.cli.common.times import to_nanoseconds

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from wharf.cli.common.failures import FailureText
    from wharf.cli.common.server_commands import Session
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.allocations.metrics import AllocMetric
    from wharf.contract.model.deployments import Deployment
    from wharf.contract.model.evaluations import Evaluation
    from wharf.contract.model.explanations import GroupExplanation
    from wharf.contract.model.jobs.array_views import ArrayView
    from wharf.contract.model.jobs.job import Job
    from wharf.contract.model.jobs.run_views import RunView
    from wharf.contract.model.jobs.step_outputs import StepOutputsView

_DEPLOYMENT_END_TEXTS: Final = {"failed": "failed", "cancelled": "canceled"}


DELETED_TEXT: Final = "the job was purged or garbage-collected in the meantime; `wharf job status` lists all jobs"
JOB_NOT_FOUND_TEXT: Final = "job not found"
"""The text with which servers refuse a request for a job that does not exist."""
MAX_ARRAY_ALLOCATIONS: Final = 1_000
"""Allocations of a job with arrays that are read, the newest ones; limits the size of each reply while it is followed."""


class ExitCode(enum.IntEnum):
    """Exit codes of commands that follow a job."""

    SUCCESS = 0
    FAILED = 1
    NOT_PLACED = 2
    NO_PROGRESS = 3
    """The command stopped following, because nothing changed for the time of `--progress-timeout`."""


class JobProgress(NamedTuple):
    """The state of a job and its records at one time. `version` is the job version that is followed."""

    job: "Job"
    version: int
    allocations: "tuple[AllocationStub, ...]"
    evaluations: "tuple[Evaluation, ...]"
    deployment: "Deployment | None"
    unplaced: "Mapping[str, AllocMetric]"
    """Groups that wait for capacity, with the metric of their failed placement."""
    explanations: "Mapping[str, GroupExplanation]"
    """Groups that wait for capacity, with the reasons of `wharf job explain`."""
    snapshot_index: int
    """The log index of the allocations, for the next blocking query."""
    arrays: "tuple[ArrayView, ...]" = ()
    """The arrays of the job. Only the newest allocations of such a job are read."""
    outputs: "tuple[StepOutputsView, ...]" = ()
    """The text outputs of its steps."""
    run: "RunView | None" = None
    """How a job with steps has ended; `None` before its end, and for other jobs."""
    has_stable_version: bool = False
    """Whether a version before the followed one is stable, so that `wharf job revert` can return to it."""

    @property
    def current_allocations(self) -> "list[AllocationStub]":
        """The newest allocation of each name (and node, for system jobs) in the followed version."""
        newest: dict[str, AllocationStub] = {}
        for allocation in sorted(self.allocations, key=lambda allocation: allocation.create_index):
            if allocation.job_version == self.version:
                newest[f"{allocation.name} {allocation.node_id if self.is_per_node else ''}"] = allocation
        return list(newest.values())

    @property
    def failures(self) -> "list[FailureText]":
        """Why allocations of the followed version failed, newest first."""
        from wharf.cli.common.failures import list_failures

        current = [allocation for allocation in self.allocations if allocation.job_version == self.version]
        return list_failures(current, is_per_node=self.is_per_node)

    @property
    def steps(self) -> "Hashable":
        """A value that changes whenever the job makes progress. A repeated evaluation alone changes nothing."""
        groups = (self.deployment.task_groups or {}) if self.deployment else {}
        return (
            frozenset(
                (allocation.id, allocation.client_status, allocation.desired_status, _read_health(allocation))
                for allocation in self.allocations
            ),
            self.deployment.status if self.deployment else "",
            tuple(sorted((name, group.placed_allocs, group.healthy_allocs) for name, group in groups.items())),
        )

    def has_own_deadline(self, now_ns: int) -> bool:
        """Whether the job needs no limit of the command now: tasks of a batch job are at work, the deployment has a
        progress deadline, or a retry is due at a known time.
        """
        if self.is_batch and any(not each.client_status.is_terminal for each in self.current_allocations):
            return True
        groups = (self.deployment.task_groups or {}).values() if self.deployment else ()
        times = [group.require_progress_by for group in groups]
        times += [each.wait_until for each in self.evaluations if each.status == "pending"]
        return any(to_nanoseconds(time) > now_ns for time in times)

    @property
    def is_batch(self) -> bool:
        return self.job.type in ("batch", "sysbatch")

    @property
    def is_per_node(self) -> bool:
        return self.job.type in ("system", "sysbatch")

    @property
    def is_evaluated(self) -> bool:
        """Whether the job has evaluations and none of them is pending."""
        return bool(self.evaluations) and all(evaluation.status != "pending" for evaluation in self.evaluations)

    @property
    def is_awaiting_promotion(self) -> bool:
        """Whether all canaries are healthy and an operator must promote them."""
        groups = (self.deployment.task_groups or {}).values() if self.deployment else ()
        waiting = [group for group in groups if group.is_awaiting_promotion and not group.auto_promote]
        return bool(waiting) and all(group.healthy_allocs >= group.desired_canaries for group in waiting)


class JobDeleted(CliError):
    """A job that the command has read before no longer exists."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"{job_id}: {DELETED_TEXT}")


class JobOutcome(NamedTuple):
    """How a followed job ended: exit code of the command and text for the user."""

    exit: ExitCode
    text: str
    task_exit_code: int = 0
    """The exit code of the failed tasks of a batch job, if all have the same; else 0."""


def read_job(session: "Session", job_id: str, namespace: str) -> "Job":
    """Read a job that the command has read or written before. Raises `JobDeleted`."""
    with report_deleted_job(job_id):
        return session.client.jobs.read(job_id, namespace=namespace).value


@contextlib.contextmanager
def report_deleted_job(job_id: str) -> "Iterator[None]":
    """Raise `JobDeleted` if a server replies that the job does not exist: its text does not name the job."""
    from wharf.contract.client.errors import NotFound

    try:
        yield
    except NotFound as error:
        if error.text != JOB_NOT_FOUND_TEXT:
            raise
        raise JobDeleted(job_id) from error


def fetch_progress(
    session: "Session", job_id: str, namespace: str, version: int, *, previous: JobProgress | None = None
) -> JobProgress:
    """Read the job with its evaluations, deployments and allocations from the server.

    The explanations of `previous` are reused while the failed placements are the same: an explanation examines all nodes.
    Raises `JobDeleted` if the job does not exist, or if it is another one of the same id as in `previous`.
    """
    with report_deleted_job(job_id):
        progress = _fetch_progress(session, job_id, namespace, version, previous)
    if previous is not None and previous.job.create_index != progress.job.create_index:
        raise JobDeleted(job_id)
    return progress


def _fetch_progress(
    session: "Session", job_id: str, namespace: str, version: int, previous: JobProgress | None
) -> JobProgress:
    from wharf.cli.common.failures import fetch_explanations

    client = session.client
    # Each reply is at least as new as the one before. A record is therefore read before the records that its end changes: a
    # failed deployment is never shown with the job from before its rollback, nor a finished one with older allocations.
    evaluations = client.jobs.evaluations(job_id, namespace=namespace).value
    deployments = client.jobs.deployments(job_id, namespace=namespace).value
    job = client.jobs.read(job_id, namespace=namespace).value
    allocations = client.jobs.allocations(job_id, newest=_get_newest(job), namespace=namespace)
    arrays = client.jobs.arrays(job_id, namespace=namespace).value.arrays if job.has_arrays else ()
    has_outputs = any(group.outputs is not None and group.outputs.text for group in job.groups)
    outputs = client.jobs.outputs(job_id, namespace=namespace).value.steps if has_outputs else ()
    has_ended_run = job.is_run and job.status == "dead"
    run = client.flows.read_run(job_id, namespace=namespace).value if has_ended_run else None
    version_deployments = [
        deployment
        for deployment in deployments
        if deployment.job_version == version and deployment.job_create_index == job.create_index
    ]
    unplaced = find_unplaced(evaluations)
    if previous is not None and previous.unplaced == unplaced:
        explanations = previous.explanations
    else:
        explanations = fetch_explanations(session, job_id, namespace) if unplaced else {}
    if previous is not None:
        has_stable_version = previous.has_stable_version
    else:
        has_stable_version = version > 0 and job.type == "service" and _has_stable_version(session, job, version)
    return JobProgress(
        job=job,
        version=version,
        allocations=tuple(allocations.value),
        evaluations=tuple(evaluations),
        deployment=max(version_deployments, key=lambda deployment: deployment.create_index, default=None),
        unplaced=unplaced,
        explanations=explanations,
        snapshot_index=allocations.index,
        arrays=arrays,
        outputs=outputs,
        run=run,
        has_stable_version=has_stable_version,
    )


def _has_stable_version(session: "Session", job: "Job", version: int) -> bool:
    """Return whether a version of the job before this one is stable."""
    versions = session.client.jobs.versions(job.id, namespace=job.namespace).value.versions
    return any(each.stable for each in versions if each.version < version)


def _get_newest(job: "Job") -> int | None:
    """Return how many allocations of a job are read; `None`: all. An array may have 100,000."""
    return MAX_ARRAY_ALLOCATIONS if job.has_arrays else None


def fetch_next_progress(session: "Session", previous: JobProgress, *, wait_s: float) -> JobProgress:
    """Wait up to `wait_s` for a change of the job's allocations, and read its progress."""
    job = previous.job
    session.client.jobs.allocations(
        job.id, newest=_get_newest(job), namespace=job.namespace, index=previous.snapshot_index, wait_s=wait_s
    )
    return fetch_progress(session, job.id, job.namespace, previous.version, previous=previous)


def find_unplaced(evaluations: "list[Evaluation]") -> "Mapping[str, AllocMetric]":
    from wharf.cli.common.failures import find_unplaced_groups

    return find_unplaced_groups(evaluations)


def find_outcome(progress: JobProgress) -> JobOutcome | None:
    """Return how the followed job ended, or None if it still makes progress."""
    if progress.deployment is not None:
        if not progress.deployment.status.is_terminal:
            return None
        if progress.deployment.status == "successful":
            return JobOutcome(ExitCode.SUCCESS, "deployment succeeded")
        reason = progress.deployment.status_description or progress.deployment.status
        return JobOutcome(
            ExitCode.NOT_PLACED if progress.unplaced else ExitCode.FAILED,
            f"deployment {_DEPLOYMENT_END_TEXTS[progress.deployment.status]}: {reason}{describe_way_back(progress)}",
        )
    if progress.job.version != progress.version:
        return JobOutcome(ExitCode.FAILED, f"version {progress.job.version} was submitted in the meantime")
    if progress.job.stop:
        return JobOutcome(ExitCode.FAILED, "the job was stopped in the meantime")
    if not progress.is_evaluated:
        return None
    return _find_batch_outcome(progress) if progress.is_batch else _find_outcome_without_deployment(progress)


def describe_way_back(progress: JobProgress) -> str:
    """Return the command that undoes an update of a service that made no progress; empty if there is nothing to undo.

    Without an earlier stable version, `wharf job revert` fails. A job that was rolled back already has a newer version.
    """
    job = progress.job
    if not progress.has_stable_version or job.version != progress.version or job.type != "service" or job.stop:
        return ""
    return f"; `wharf job revert {job.id}` returns to the last stable version"


def _find_batch_outcome(progress: JobProgress) -> JobOutcome | None:
    """Return the outcome of a batch job: success, or failure if any allocation failed.

    Return None until the job is dead.
    """
    if progress.job.status != "dead":
        return None
    if progress.run is not None:
        return _find_run_outcome(progress, progress.run)
    ended = progress.current_allocations
    if progress.arrays and all(group.array is not None for group in progress.job.groups):
        return _find_array_outcome(progress)
    failed = [allocation for allocation in ended if allocation.client_status in ("failed", "lost")]
    if failed:
        from wharf.cli.common.failures import find_common_exit_code

        text = f"{len(failed)} of {len(ended)} allocations failed"
        return JobOutcome(ExitCode.FAILED, text, find_common_exit_code(failed))
    return JobOutcome(ExitCode.SUCCESS, f"{len(ended)} of {len(ended)} allocations complete")


def _find_run_outcome(progress: JobProgress, run: "RunView") -> JobOutcome:
    """Return the outcome of a run that has ended, with the exit code of the first step that failed."""
    from wharf.cli.flow.status import advise_retry, find_failed_code

    if run.is_success:
        return JobOutcome(ExitCode.SUCCESS, run.text)
    code = find_failed_code(run, progress.current_allocations)
    return JobOutcome(ExitCode.FAILED, f"{run.text}{advise_retry(run)}", code)


def _find_array_outcome(progress: JobProgress) -> JobOutcome:
    """Return the outcome of a job that consists of arrays and is dead."""
    from wharf.cli.common.failures import find_common_exit_code
    from wharf.cli.job.arrays import describe_results

    text = describe_results(progress.arrays)
    if not any(each.counts.failed + each.counts.canceled for each in progress.arrays):
        return JobOutcome(ExitCode.SUCCESS, text)
    failed = [each for each in progress.current_allocations if each.client_status in ("failed", "lost")]
    remedy = f"`wharf job rerun {progress.job.id} --failed` runs these again"
    return JobOutcome(ExitCode.FAILED, f"{text}; {remedy}", find_common_exit_code(failed) if failed else 0)


def _find_outcome_without_deployment(progress: JobProgress) -> JobOutcome | None:
    """Return the outcome of a job that has no deployment, once none of its allocations is pending."""
    current = progress.current_allocations
    if any(allocation.client_status == "pending" for allocation in current):
        return None
    failed = [allocation for allocation in current if allocation.client_status in ("failed", "lost")]
    if failed:
        return JobOutcome(ExitCode.FAILED, f"{len(failed)} of {len(current)} allocations failed")
    if progress.unplaced:
        return JobOutcome(
            ExitCode.NOT_PLACED, "not all allocations were placed; the rest is placed when capacity is free"
        )
    # The deployment of a new service job is created shortly after its allocations: wait for it.
    expects_deployment = progress.job.type == "service" and any(
        group.count and group.update is not None and group.update.max_parallel for group in progress.job.groups
    )
    if expects_deployment and current and progress.version == 0 and not _are_all_running(progress):
        return None
    count = len(current)
    return JobOutcome(ExitCode.SUCCESS, "1 allocation running" if count == 1 else f"{count} allocations running")


def _read_health(allocation: "AllocationStub") -> bool | None:
    return allocation.deployment_status.healthy if allocation.deployment_status else None


def _are_all_running(progress: JobProgress) -> bool:
    return all(allocation.client_status == "running" for allocation in progress.current_allocations)
