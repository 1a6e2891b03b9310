"""The policies of a task group: restart, reschedule, update, migrate and disconnect.

The field defaults are those of a service job; `defaults` has the defaults of each job type. All durations are nanoseconds.
"""

from enum import StrEnum

from wharf.contract.model.record import Record
from wharf.contract.model.times import HOUR, MINUTE, SECOND


class RestartMode(StrEnum):
    """What happens when the attempts of an interval are used up."""

    FAIL = "fail"
    DELAY = "delay"


class RestartPolicy(Record):
    """How often a failed task is restarted on the same node."""

    attempts: int = 2
    interval: int = 30 * MINUTE
    delay: int = 15 * SECOND
    mode: str = RestartMode.FAIL
    render_templates: bool = False


class DelayFunction(StrEnum):
    """How the delay before a reschedule grows."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"
    FIBONACCI = "fibonacci"


class ReschedulePolicy(Record):
    """How often a failed allocation is replaced, usually on another node."""

    attempts: int = 0
    interval: int = 0
    delay: int = 30 * SECOND
    delay_function: str = DelayFunction.EXPONENTIAL
    max_delay: int = HOUR
    unlimited: bool = True

    @property
    def is_enabled(self) -> bool:
        """Whether failed allocations are rescheduled at all."""
        return self.unlimited or self.attempts > 0


class HealthCheck(StrEnum):
    """How the health of an allocation is determined."""

    CHECKS = "checks"
    TASK_STATES = "task_states"
    MANUAL = "manual"


class UpdatePolicy(Record):
    """How a new version replaces the old one. `max_parallel` 0 replaces all allocations at once, without a deployment."""

    stagger: int = 30 * SECOND
    max_parallel: int = 1
    health_check: str = HealthCheck.CHECKS
    min_healthy_time: int = 10 * SECOND
    healthy_deadline: int = 5 * MINUTE
    progress_deadline: int = 10 * MINUTE
    auto_revert: bool = False
    auto_promote: bool = False
    canary: int = 0


class MigratePolicy(Record):
    """How allocations are moved off a draining node."""

    max_parallel: int = 1
    health_check: str = HealthCheck.CHECKS
    min_healthy_time: int = 10 * SECOND
    healthy_deadline: int = 5 * MINUTE


class ReconcileStrategy(StrEnum):
    """Which allocation continues when a disconnected node returns: the original or its replacement."""

    BEST_SCORE = "best_score"
    LONGEST_RUNNING = "longest_running"
    KEEP_ORIGINAL = "keep_original"
    KEEP_REPLACEMENT = "keep_replacement"


class DisconnectPolicy(Record):
    """What happens to an allocation whose node is disconnected."""

    lost_after: int = 0
    stop_on_client_after: int | None = None
    replace: bool = True
    reconcile: str = ReconcileStrategy.BEST_SCORE


class EphemeralDisk(Record):
    """The disk that the tasks of an allocation share."""

    sticky: bool = False
    size_mb: int = 300
    migrate: bool = False
