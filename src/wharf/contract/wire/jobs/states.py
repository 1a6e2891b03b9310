"""The state of a job as commands and pages show it to users. The API and `--json` keep the status of the servers.

Loads nothing at import, because the commands that name these states must start quickly.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from wharf.contract.wire.jobs.messages import JobStub


class JobState(StrEnum):
    """The state of a job in one word."""

    PENDING = "pending"  # Nothing of it is placed.
    WAITING = "waiting"  # A service has fewer allocations than it requests, or a child of the job is not placed.
    STARTING = "starting"  # It has its allocations, but not all run.
    RUNNING = "running"
    SCHEDULED = "scheduled"  # A periodic job that launches children.
    READY = "ready"  # A parameterized job that can be dispatched.
    COMPLETE = "complete"
    WITH_FAILURES = "succeeded with failures"  # A run whose steps succeeded, apart from some that may fail.
    FAILED = "failed"  # It has ended; allocations failed or were lost, and were not replaced successfully.
    CANCELED = "canceled"  # A run that was canceled before all of its steps had ended.
    SKIPPED = "skipped"  # A run none of whose steps ran.
    STOPPING = "stopping"  # It was stopped, and allocations still run.
    STOPPED = "stopped"
    DEAD = "dead"  # It has ended without an allocation.


_STATES_BY_OUTCOME: Final = {
    "succeeded": JobState.COMPLETE,
    "succeeded-with-failures": JobState.WITH_FAILURES,
    "failed": JobState.FAILED,
    "canceled": JobState.CANCELED,
    "skipped": JobState.SKIPPED,
}
"""The states by `JobEnding`, which loads too much here."""
ENDED_STATES: Final = frozenset({*_STATES_BY_OUTCOME.values(), JobState.STOPPED, JobState.DEAD})


class AllocationCounts(NamedTuple):
    """The numbers of allocations of a job, over all its groups."""

    requested: int
    queued: int
    starting: int
    running: int
    complete: int
    failed: int
    lost: int
    unknown: int

    @property
    def live(self) -> int:
        """Allocations that were placed and have not ended, as far as servers know."""
        return self.starting + self.running + self.unknown


def is_parent(job: "JobStub") -> bool:
    """Return whether only the children of the job have allocations: it is periodic or parameterized."""
    return job.periodic or job.parameterized_job


def count_allocations(job: "JobStub") -> AllocationCounts:
    """Return the numbers of allocations of a job.

    Allocations of a batch job end, and the number of a system job depends on the nodes: all that exist are requested.
    """
    groups = list(job.job_summary.summary.values()) if job.job_summary else []
    queued, starting, running, complete, failed, lost, unknown = (
        sum(getattr(group, name) for group in groups) for name in AllocationCounts._fields[1:]
    )
    existing = queued + starting + running
    is_counted = job.type == "service" and not job.stop and not is_parent(job) and job.status != "dead"
    # Servers of an older version do not send the count.
    requested = (job.group_count_sum or existing) if is_counted else existing
    return AllocationCounts(requested, queued, starting, running, complete, failed, lost, unknown)


def describe_job_state(job: "JobStub") -> JobState:
    """Return the state of a job for users.

    Servers report `running` as soon as a job has a deployment or allocations, as Nomad does, and `dead` for every job that
    has ended. Users see whether a service has what it requests, and whether the allocations of an ended job failed.
    """
    counts = count_allocations(job)
    if job.stop:
        return JobState.STOPPING if counts.live else JobState.STOPPED
    if is_parent(job):
        return _describe_parent(job)
    if job.status == "dead":
        return _describe_end(job, counts)
    if job.status == "pending" or (counts.requested and not counts.live):
        return JobState.PENDING
    if job.type == "service" and counts.running < counts.requested:
        return JobState.STARTING if counts.starting + counts.running >= counts.requested else JobState.WAITING
    return JobState.STARTING if counts.starting and not counts.running else JobState.RUNNING


def _describe_parent(job: "JobStub") -> JobState:
    if job.status == "dead":
        return JobState.STOPPED
    children = job.job_summary.children if job.job_summary else None
    if children is not None and children.pending:
        return JobState.WAITING
    return JobState.SCHEDULED if job.periodic else JobState.READY


def _describe_end(job: "JobStub", counts: AllocationCounts) -> JobState:
    """Return how a job ended. Failed allocations count only if their replacements did not complete either.

    The servers store the outcome when a job ends. Counts of allocations show it only for jobs that ended before servers did
    so: they also count the allocations of earlier versions.
    """
    if job.job_summary and (state := _STATES_BY_OUTCOME.get(job.job_summary.outcome)):
        return state
    has_failed = bool(counts.failed + counts.lost)
    if job.type not in ("system", "sysbatch"):
        has_failed = has_failed and counts.complete < job.group_count_sum
    if has_failed:
        return JobState.FAILED
    return JobState.COMPLETE if counts.complete else JobState.DEAD


def matches_state(job: "JobStub", state: str) -> bool:
    """Return whether a job has a state; `dead` matches every job that has ended."""
    shown = describe_job_state(job)
    return shown in ENDED_STATES if state == JobState.DEAD else shown == state


def get_listed_name(job_id: str, name: str) -> str:
    """Return the name of a job for lists; empty if its ID begins with it, such as `train-370ed7` for `train`."""
    return "" if job_id.startswith(name) else name


def describe_children(job: "JobStub") -> str:
    """Return the numbers of a job's children, such as `2 running, 40 ended`; empty for a job that has no children."""
    children = job.job_summary.children if job.job_summary else None
    if children is None or not is_parent(job):
        return ""
    counts = ((children.pending, "pending"), (children.running, "running"), (children.dead, "ended"))
    return ", ".join(f"{count} {word}" for count, word in counts if count) or "none"
