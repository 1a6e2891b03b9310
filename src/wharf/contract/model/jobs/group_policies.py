"""The policies of a task group: restart, reschedule, update, migrate and disconnect.

The field defaults are those of a service job; `defaults` has the defaults of each job type. All durations are nanoseconds.
"""

from enum import StrEnum

from wharf.contract.model.record import Record
from wharf.contract.model.times import HOUR, MINUTE, SECOND, DurationNs


class RestartMode(StrEnum):
    """What happens to a task that failed more often than the restart policy allows in an interval."""

    FAIL = "fail"  # The allocation fails and may be rescheduled.
    DELAY = "delay"  # The task is restarted when the interval has ended.


class RestartPolicy(Record):
    """How often a failed task is restarted on the same node."""

    attempts: int = 2
    """How many restarts are allowed within one `Interval`.

    When they are used up, `Mode` decides what happens.

    Unit: restarts
    Limits: at least 0; all restarts with their `Delay` must fit in `Interval`
    Example: 3
    """
    interval: DurationNs = 30 * MINUTE
    """The time in which the restarts are counted.

    It begins with the first failure that counts.

    Limits: at least 5s
    Example: 10m
    """
    delay: DurationNs = 15 * SECOND
    """How long the node waits between a failure and the restart.

    The actual time is up to a quarter longer, so that not all tasks restart at once.

    Limits: at least 0s
    Example: 15s
    """
    mode: str = RestartMode.FAIL
    """What happens when the restarts of an interval are used up.

    Values:
        fail: the task fails, and its allocation with it; a reschedule policy can replace the allocation
        delay: the task is restarted when the interval has ended
    Limits: not `delay` with 0 attempts
    Example: delay
    """
    render_templates: bool = False
    """Whether the templates of the task are rendered again before a restart.

    Effect: none, because changed data always lead to a new file
    """


class DelayFunction(StrEnum):
    """How the delay grows from one reschedule of a failed allocation to the next."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"
    FIBONACCI = "fibonacci"


class ReschedulePolicy(Record):
    """When and how often a failed allocation is replaced, usually on another node."""

    attempts: int = 0
    """How many times a failed allocation may be replaced within one `Interval`.

    It counts only if `Unlimited` is false. 0 then means never.

    Unit: replacements
    Limits: 0 if `Unlimited` is true; all attempts with their delays must fit in `Interval`
    Example: 3
    """
    interval: DurationNs = 0
    """The time in which the attempts are counted.

    Limits: at least 15s, unless `Unlimited` is true
    Example: 1h
    """
    delay: DurationNs = 30 * SECOND
    """How long the scheduler waits before the first replacement.

    `DelayFunction` decides about the following ones.

    Limits: at least 5s
    Example: 15s
    """
    delay_function: str = DelayFunction.EXPONENTIAL
    """How the delay grows from one replacement to the next.

    Values:
        constant: it stays the same
        exponential: it doubles each time
        fibonacci: it is the sum of the two before
    Example: constant
    """
    max_delay: DurationNs = HOUR
    """The longest delay.

    A growing delay stays at this value.

    Limits: at least 5s and at least `Delay`, unless `DelayFunction` is `constant`
    Example: 10m
    """
    unlimited: bool = True
    """Whether failed allocations are replaced without limit.

    `Attempts` must then be 0.
    """

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
    """How a new version of a job replaces the old one."""

    stagger: DurationNs = 30 * SECOND
    """How long older versions of Nomad wait between two replacements.

    In Wharf, `MaxParallel` and the health of allocations decide.

    Limits: more than 0s
    Example: 30s
    Effect: none; it is stored for clients that read it
    """
    max_parallel: int = 1
    """How many allocations are replaced at a time.

    The next ones follow when these are healthy. 0 replaces all at once, without a deployment.

    Unit: allocations
    Limits: at least 0; more than the count of the group returns a warning
    Example: 2
    """
    health_check: str = HealthCheck.CHECKS
    """How the servers find out whether a new allocation is healthy.

    Values:
        checks: its tasks run, and the checks of its services pass
        task_states: its tasks run
        manual: an operator or a program reports it with `PUT /v1/deployment/allocation-health/ID`
    Example: task_states
    """
    min_healthy_time: DurationNs = 10 * SECOND
    """How long a new allocation must be healthy without interruption before it counts as healthy.

    Limits: at least 0s, and less than `HealthyDeadline`
    Example: 30s
    """
    healthy_deadline: DurationNs = 5 * MINUTE
    """How long a new allocation may take to become healthy.

    After this time it counts as failed and is replaced.

    Limits: more than 0s, and less than `ProgressDeadline` unless that is 0s
    Example: 5m
    """
    progress_deadline: DurationNs = 10 * MINUTE
    """How long a deployment may run without another allocation becoming healthy.

    After this time it fails. With 0s, the first failed allocation lets the deployment fail.

    Limits: at least 0s
    Example: 10m
    """
    auto_revert: bool = False
    """Whether a failed deployment returns the job to its newest stable version.

    Without it, the new version stays as far as it was deployed.
    """
    auto_promote: bool = False
    """Whether healthy canaries are promoted without an operator.

    All groups of the job need it.

    Limits: needs a `Canary` of at least 1
    """
    canary: int = 0
    """How many canaries a deployment begins with: allocations of the new version beside all old ones.

    The deployment continues when they are promoted. 0 means no canaries.

    Unit: allocations
    Limits: at least 0
    Example: 1
    """


class MigratePolicy(Record):
    """How allocations are moved off a draining node."""

    max_parallel: int = 1
    """How many allocations of the group are moved at a time.

    The next ones follow when the replacements are healthy.

    Unit: allocations
    Limits: at least 0
    Example: 2
    """
    health_check: str = HealthCheck.CHECKS
    """How the servers find out whether a replacement is healthy.

    Values:
        checks: its tasks run, and the checks of its services pass
        task_states: its tasks run
    Example: task_states
    """
    min_healthy_time: DurationNs = 10 * SECOND
    """How long a replacement must be healthy without interruption before it counts as healthy.

    Limits: at least 0s, and at most `HealthyDeadline`
    Example: 30s
    """
    healthy_deadline: DurationNs = 5 * MINUTE
    """How long a replacement may take to become healthy.

    Limits: at least 0s
    Example: 5m
    """


class ReconcileStrategy(StrEnum):
    """Which allocation continues when a disconnected node returns: the original or its replacement."""

    BEST_SCORE = "best_score"  # The one with the higher placement score.
    LONGEST_RUNNING = "longest_running"
    KEEP_ORIGINAL = "keep_original"
    KEEP_REPLACEMENT = "keep_replacement"


class DisconnectPolicy(Record):
    """What happens to an allocation whose node is out of contact."""

    lost_after: DurationNs = 0
    """How long an allocation stays in the status unknown after its node has lost contact.

    In this time it continues if its node returns. After this time it is lost. With 0s it is lost as soon as the
    node is down.

    Limits: at least 0s; not together with `StopOnClientAfter`
    Example: 6h
    """
    stop_on_client_after: DurationNs | None = None
    """After which time without contact the node itself stops the allocation.

    Use it for programs of which two must never run at the same time.

    Default: never
    Limits: at least 0s; only for `service` and `batch` jobs; not together with `LostAfter`
    Example: 5m
    """
    replace: bool = True
    """Whether a replacement runs on another node while the node of the allocation is out of contact."""
    reconcile: str = ReconcileStrategy.BEST_SCORE
    """Which allocation continues when the node returns: the original or its replacement.

    The other one is stopped.

    Values:
        best_score: the one with the higher placement score
        longest_running: the one that has run for longer
        keep_original: the original
        keep_replacement: the replacement
    Example: keep_original
    """


class EphemeralDisk(Record):
    """The disk that the tasks of an allocation share."""

    sticky: bool = False
    """Whether a replacement of an allocation prefers the same node, and gets the data of its predecessor there.

    Use it for caches.
    """
    size_mb: int = 300
    """The disk space that the allocation needs: logs, and what its tasks write into `/alloc` and `local/`.

    The scheduler reserves it. The node does not enforce it as a limit.

    Unit: MiB
    Limits: 10 to 1,000,000,000
    Example: 1000
    """
    migrate: bool = False
    """Whether the data of the allocation (`alloc/data` and `local/`) are copied to the node of its replacement.

    It works as long as the old node can be reached.
    """
