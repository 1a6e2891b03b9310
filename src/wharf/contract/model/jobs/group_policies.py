"""The policies of a task group: restart, reschedule, update, migrate and disconnect.

The field defaults are those of a service job; `defaults` has the defaults of each job type. All durations are nanoseconds.
"""

from enum import StrEnum

from wharf.contract.model.record import Record
from wharf.contract.model.times import HOUR, MINUTE, SECOND


class RestartMode(StrEnum):
    """What happens to a task that failed more often than the restart policy allows in an interval."""

    FAIL = "fail"  # The allocation fails and may be rescheduled.
    DELAY = "delay"  # The task is restarted when the interval has ended.


class RestartPolicy(Record):
    """How often a failed task is restarted on the same node. Durations are in ns."""

    attempts: int = 2  # Restarts allowed in one interval.
    interval: int = 30 * MINUTE
    delay: int = 15 * SECOND  # Time between a failure and the restart.
    mode: str = RestartMode.FAIL  # A `RestartMode`.
    render_templates: bool = False  # Render the templates again at a restart.


class DelayFunction(StrEnum):
    """How the delay grows from one reschedule of a failed allocation to the next."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"
    FIBONACCI = "fibonacci"


class ReschedulePolicy(Record):
    """How often a failed allocation is replaced, usually on another node. Durations are in ns."""

    attempts: int = 0  # Replacements allowed in one interval.
    interval: int = 0
    delay: int = 30 * SECOND  # Time before the first replacement.
    delay_function: str = DelayFunction.EXPONENTIAL  # A `DelayFunction`.
    max_delay: int = HOUR  # Limit of growing delays.
    unlimited: bool = True  # Ignore `attempts` and `interval`.

    @property
    def is_enabled(self) -> bool:
        """Whether failed allocations are rescheduled at all."""
        return self.unlimited or self.attempts > 0


class HealthCheck(StrEnum):
    """How the health of an allocation is determined during a deployment or a drain."""

    CHECKS = "checks"  # Tasks run and the checks of services pass.
    TASK_STATES = "task_states"  # Tasks run.
    MANUAL = "manual"  # An operator or a program reports the health.


class UpdatePolicy(Record):
    """How a new version of a job replaces the old one. Durations are in ns."""

    stagger: int = 30 * SECOND  # Time between two replacements of system jobs.
    max_parallel: int = 1  # Allocations replaced at a time; 0: all at once, without a deployment.
    health_check: str = HealthCheck.CHECKS  # A `HealthCheck`.
    min_healthy_time: int = 10 * SECOND  # How long an allocation must be healthy to count.
    healthy_deadline: int = 5 * MINUTE  # How long an allocation may take to become healthy.
    progress_deadline: int = 10 * MINUTE  # How long a deployment may run without another healthy allocation.
    auto_revert: bool = False  # Return to the last stable version on failure.
    auto_promote: bool = False  # Promote healthy canaries without an operator.
    canary: int = 0  # Number of canaries: allocations of the new version beside the old ones.


class MigratePolicy(Record):
    """How allocations are moved off a draining node. Durations are in ns."""

    max_parallel: int = 1  # Allocations moved at a time.
    health_check: str = HealthCheck.CHECKS  # "checks" or "task_states".
    min_healthy_time: int = 10 * SECOND  # How long a replacement must be healthy to count.
    healthy_deadline: int = 5 * MINUTE  # How long a replacement may take to become healthy.


class ReconcileStrategy(StrEnum):
    """Which allocation continues when a disconnected node returns: the original or its replacement."""

    BEST_SCORE = "best_score"  # The one with the higher placement score.
    LONGEST_RUNNING = "longest_running"
    KEEP_ORIGINAL = "keep_original"
    KEEP_REPLACEMENT = "keep_replacement"


class DisconnectPolicy(Record):
    """What happens to an allocation whose node is out of contact. Durations are in ns."""

    lost_after: int = 0  # The allocation stays in status unknown for this time; 0: it is lost at once.
    stop_on_client_after: int | None = None  # The node itself stops it after this time; null: never.
    replace: bool = True  # Place a replacement while the node is away.
    reconcile: str = ReconcileStrategy.BEST_SCORE  # A `ReconcileStrategy`.


class EphemeralDisk(Record):
    """The disk that the tasks of an allocation share."""

    sticky: bool = False  # Place a replacement on the same node, with the data.
    size_mb: int = 300
    migrate: bool = False  # Copy the data to the node of the replacement.
