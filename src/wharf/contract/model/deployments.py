"""Deployments: the rollout of one version of a job, with counts for each group.

Whether a deployment continues, fails or is rolled back is decided elsewhere.
"""

import datetime
import enum

from wharf.contract.model.record import Record


class DeploymentStatus(enum.StrEnum):
    """The status of a deployment."""

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
        return self in (DeploymentStatus.SUCCESSFUL, DeploymentStatus.FAILED, DeploymentStatus.CANCELLED)


class DeploymentGroup(Record):
    """The progress of one group of the job."""

    auto_revert: bool = False
    auto_promote: bool = False
    progress_deadline: int = 0  # ns
    require_progress_by: datetime.datetime | None = None
    promoted: bool = False
    placed_canaries: tuple[str, ...] | None = None
    desired_canaries: int = 0
    desired_total: int = 0
    placed_allocs: int = 0
    healthy_allocs: int = 0
    unhealthy_allocs: int = 0

    @property
    def is_awaiting_promotion(self) -> bool:
        return self.desired_canaries > 0 and not self.promoted


class Deployment(Record):
    """The rollout of one version of a job."""

    id: str
    namespace: str = ""
    job_id: str = ""
    job_version: int = 0
    job_modify_index: int = 0
    job_spec_modify_index: int = 0
    job_create_index: int = 0
    is_multiregion: bool = False
    task_groups: dict[str, DeploymentGroup] | None = None
    status: DeploymentStatus
    status_description: str = ""
    eval_priority: int = 0
    create_index: int = 0
    modify_index: int = 0
    create_time: int = 0  # ns since the epoch
    modify_time: int = 0

    @property
    def is_active(self) -> bool:
        return not self.status.is_terminal

    @property
    def is_awaiting_promotion(self) -> bool:
        return any(group.is_awaiting_promotion for group in (self.task_groups or {}).values())
