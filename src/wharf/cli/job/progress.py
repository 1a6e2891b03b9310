"""Following a job to the end of its rollout, or of its work: what is seen of it, when that is over, and how it went.

It only looks. Whoever stops following changes nothing.
"""

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from wharf.cli.common.server_commands import Session
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.allocations.metrics import AllocMetric
    from wharf.contract.model.deployments import Deployment
    from wharf.contract.model.evaluations import Evaluation
    from wharf.contract.model.jobs.job import Job

_ENDED: Final = {"failed": "failed", "cancelled": "was given up"}


class ExitCode(enum.IntEnum):
    SUCCESS = 0
    FAILED = 1
    NOT_PLACED = 2


class JobProgress(NamedTuple):
    """What is known of a job at one moment. `version`: the one that is followed."""

    job: "Job"
    version: int
    allocations: "tuple[AllocationStub, ...]"
    evaluations: "tuple[Evaluation, ...]"
    deployment: "Deployment | None"
    unplaced: "Mapping[str, AllocMetric]"
    snapshot_index: int

    @property
    def current_allocations(self) -> "list[AllocationStub]":
        """Those of the version that is followed, the newest of each name."""
        newest: dict[str, AllocationStub] = {}
        for one in sorted(self.allocations, key=lambda one: one.create_index):
            if one.job_version == self.version:
                newest[f"{one.name} {one.node_id if self.is_per_node else ''}"] = one
        return list(newest.values())

    @property
    def is_batch(self) -> bool:
        return self.job.type in ("batch", "sysbatch")

    @property
    def is_per_node(self) -> bool:
        return self.job.type in ("system", "sysbatch")

    @property
    def is_evaluated(self) -> bool:
        """Nothing is to be decided just now."""
        return bool(self.evaluations) and all(one.status != "pending" for one in self.evaluations)

    @property
    def is_awaiting_promotion(self) -> bool:
        """The canaries are well, and a person must say so."""
        groups = (self.deployment.task_groups or {}).values() if self.deployment else ()
        waiting = [group for group in groups if group.is_awaiting_promotion and not group.auto_promote]
        return bool(waiting) and all(group.healthy_allocs >= group.desired_canaries for group in waiting)


class JobOutcome(NamedTuple):
    exit: ExitCode
    text: str
    task_exit_code: int = 0
    """Of work that failed, where all of it has the same."""


def fetch_progress(session: "Session", job_id: str, namespace: str, version: int) -> JobProgress:
    client = session.client
    job = client.jobs.read(job_id, namespace=namespace).value
    evaluations = client.jobs.evaluations(job_id, namespace=namespace).value
    deployments = client.jobs.deployments(job_id, namespace=namespace).value
    allocations = client.jobs.allocations(job_id, namespace=namespace)  # Last: no end is told before its allocations.
    mine = [one for one in deployments if one.job_version == version and one.job_create_index == job.create_index]
    return JobProgress(
        job=job,
        version=version,
        allocations=tuple(allocations.value),
        evaluations=tuple(evaluations),
        deployment=max(mine, key=lambda one: one.create_index, default=None),
        unplaced=find_unplaced(evaluations),
        snapshot_index=allocations.index,
    )


def find_unplaced(evaluations: "list[Evaluation]") -> "Mapping[str, AllocMetric]":
    from wharf.cli.common.failures import find_unplaced_groups

    return find_unplaced_groups(evaluations)


def find_outcome(progress: JobProgress) -> JobOutcome | None:
    """None while it goes on."""
    if progress.deployment is not None:
        if not progress.deployment.status.is_terminal:
            return None
        if progress.deployment.status == "successful":
            return JobOutcome(ExitCode.SUCCESS, "the rollout succeeded")
        why = progress.deployment.status_description or progress.deployment.status
        return JobOutcome(
            ExitCode.NOT_PLACED if progress.unplaced else ExitCode.FAILED,
            f"the rollout {_ENDED[progress.deployment.status]}: {why}",
        )
    if progress.job.version != progress.version:
        return JobOutcome(ExitCode.FAILED, f"version {progress.job.version} was submitted in the meantime")
    if progress.job.stop:
        return JobOutcome(ExitCode.FAILED, "the job was stopped in the meantime")
    if not progress.is_evaluated:
        return None
    return _end_of_batch(progress) if progress.is_batch else _end_without_rollout(progress)


def _end_of_batch(progress: JobProgress) -> JobOutcome | None:
    if progress.job.status != "dead":
        return None
    ended = progress.current_allocations
    failed = [one for one in ended if one.client_status in ("failed", "lost")]
    if failed:
        from wharf.cli.common.failures import find_common_exit_code

        said = f"the work failed: {len(failed)} of {len(ended)} did not come to a good end"
        return JobOutcome(ExitCode.FAILED, said, find_common_exit_code(failed))
    return JobOutcome(ExitCode.SUCCESS, f"the work is done: {len(ended)} of {len(ended)} complete")


def _end_without_rollout(progress: JobProgress) -> JobOutcome | None:
    waiting = [one for one in progress.current_allocations if one.client_status == "pending"]
    if waiting:
        return None
    failed = [one for one in progress.current_allocations if one.client_status in ("failed", "lost")]
    if failed:
        return JobOutcome(ExitCode.FAILED, f"{len(failed)} of {len(progress.current_allocations)} allocations failed")
    if progress.unplaced:
        return JobOutcome(
            ExitCode.NOT_PLACED, "not all of it was placed; what is missing is placed as soon as there is room"
        )
    needs_rollout = progress.job.type == "service" and any(
        group.count and group.update is not None and group.update.max_parallel for group in progress.job.groups
    )
    if needs_rollout and progress.current_allocations and progress.version == 0 and not _is_everyone_running(progress):
        return None
    count = len(progress.current_allocations)
    return JobOutcome(ExitCode.SUCCESS, "1 allocation runs" if count == 1 else f"{count} allocations run")


def _is_everyone_running(progress: JobProgress) -> bool:
    return all(one.client_status == "running" for one in progress.current_allocations)
