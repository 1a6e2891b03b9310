"""Deployments: the rollout of one version of a job, with counts for each group.

Whether a deployment continues, fails or is rolled back is decided elsewhere.
"""

import datetime
import enum

from wharf.contract.model.record import Record


class DeploymentStatus(enum.StrEnum):
    """The status of a deployment.

    The statuses `INITIALIZING`, `PENDING`, `BLOCKED` and `UNBLOCKING` occur only in jobs of several regions.
    """

    INITIALIZING = "initializing"
    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    BLOCKED = "blocked"
    UNBLOCKING = "unblocking"
    SUCCESSFUL = "successful"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the deployment has ended."""
        return self in (DeploymentStatus.SUCCESSFUL, DeploymentStatus.FAILED, DeploymentStatus.CANCELLED)


class DeploymentGroup(Record):
    """The settings and the progress of one group in a deployment."""

    auto_revert: bool = False  # Return to the last stable version on failure.
    auto_promote: bool = False  # Promote healthy canaries without an operator.
    progress_deadline: int = 0  # ns; the longest time until another allocation is healthy.
    require_progress_by: datetime.datetime | None = None  # When the deployment fails without progress.
    promoted: bool = False  # Canaries may replace the old allocations.
    placed_canaries: tuple[str, ...] | None = None  # Allocation IDs.
    desired_canaries: int = 0
    desired_total: int = 0
    placed_allocs: int = 0
    healthy_allocs: int = 0
    unhealthy_allocs: int = 0

    @property
    def is_awaiting_promotion(self) -> bool:
        """Whether the group has canaries that were not promoted yet."""
        return self.desired_canaries > 0 and not self.promoted

    @property
    def is_rolled_out(self) -> bool:
        """Whether the group has as many healthy allocations as desired and no canaries that await promotion."""
        return self.healthy_allocs >= self.desired_total and not self.is_awaiting_promotion


class Deployment(Record):
    """The rollout of one version of a job."""

    id: str
    namespace: str = ""
    job_id: str = ""
    job_version: int = 0
    job_modify_index: int = 0  # The indexes are those of the job at its start.
    job_spec_modify_index: int = 0
    job_create_index: int = 0
    is_multiregion: bool = False  # One of several regions.
    task_groups: dict[str, DeploymentGroup] | None = None  # By group name.
    status: DeploymentStatus
    status_description: str = ""
    eval_priority: int = 0
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0  # ns since the epoch
    modify_time: int = 0

    @property
    def is_active(self) -> bool:
        """Whether the deployment has not ended yet."""
        return not self.status.is_terminal

    @property
    def is_awaiting_promotion(self) -> bool:
        """Whether at least one group has canaries that were not promoted yet."""
        return any(group.is_awaiting_promotion for group in (self.task_groups or {}).values())
