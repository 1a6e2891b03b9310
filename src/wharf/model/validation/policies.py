"""Rules of a group's policies (jobs.md 2.4) and of its scaling (2.10)."""

from typing import Final

from wharf.model.durations import SECOND, say_duration
from wharf.model.group import TaskGroup
from wharf.model.policies import (
    DelayFunction,
    DisconnectPolicy,
    EphemeralDisk,
    HealthCheck,
    MigratePolicy,
    Reconcile,
    ReschedulePolicy,
    RestartMode,
    RestartPolicy,
    UpdatePolicy,
)
from wharf.model.scaling import ScalingKind, ScalingPolicy
from wharf.model.validation.findings import Report, one_of

RESTART_INTERVAL_MIN: Final = 5 * SECOND
RESCHEDULE_INTERVAL_MIN: Final = 15 * SECOND
RESCHEDULE_DELAY_MIN: Final = 5 * SECOND
DISK_MIN_MB: Final = 10

UPDATE_HEALTH_CHECKS: Final = tuple(str(word) for word in HealthCheck)
MIGRATE_HEALTH_CHECKS: Final = ("checks", "task_states")
RESTART_MODES: Final = tuple(str(word) for word in RestartMode)
DELAY_FUNCTIONS: Final = tuple(str(word) for word in DelayFunction)
RECONCILES: Final = tuple(str(word) for word in Reconcile)


def check_policies(group: TaskGroup, path: str, report: Report, *, job_type: str) -> None:
    """All policies of a group."""
    check_restart(group.restart_policy, f"{path}.RestartPolicy", report)
    _check_reschedule(group.reschedule_policy, f"{path}.ReschedulePolicy", report, job_type)
    _check_update(group.update, group, f"{path}.Update", report, job_type)
    _check_migrate(group.migrate, f"{path}.Migrate", report, job_type)
    _check_disconnect(group.disconnect, f"{path}.Disconnect", report, job_type)
    _check_disk(group.ephemeral_disk, f"{path}.EphemeralDisk", report)
    _check_scaling(group.scaling, group, f"{path}.Scaling", report)


def check_restart(policy: RestartPolicy | None, path: str, report: Report) -> None:
    """Restarts of a group or of one task."""
    if policy is None:
        report.error(path, "Missing restart policy")
        return
    if policy.mode not in RESTART_MODES:
        report.error(f"{path}.Mode", f'Unsupported restart mode: "{policy.mode}"', one_of(RESTART_MODES))
    if policy.attempts < 0:
        report.error(f"{path}.Attempts", f"Restart attempts must not be negative; got {policy.attempts}")
    if policy.attempts == 0 and policy.mode == RestartMode.DELAY:
        report.error(f"{path}.Mode", 'Restart mode "delay" with 0 attempts is ambiguous', 'use "fail"')
    if policy.delay < 0:
        report.error(f"{path}.Delay", "Restart delay must not be negative")
    if policy.interval < RESTART_INTERVAL_MIN:
        report.error(
            f"{path}.Interval", f"Restart interval can not be less than 5s; got {say_duration(policy.interval)}"
        )
    elif policy.attempts * policy.delay > policy.interval:
        report.error(
            f"{path}.Attempts",
            f"{policy.attempts} restarts with a delay of {say_duration(policy.delay)} do not fit in an interval of "
            f"{say_duration(policy.interval)}",
            f"set the interval to at least {say_duration(policy.attempts * policy.delay)}",
        )


def _check_reschedule(policy: ReschedulePolicy | None, path: str, report: Report, job_type: str) -> None:
    if policy is None:
        return
    if job_type in ("system", "sysbatch"):
        report.error(path, f'Job type "{job_type}" does not allow reschedule block')
        return
    if not policy.is_enabled:
        return
    if policy.delay_function not in DELAY_FUNCTIONS:
        report.error(
            f"{path}.DelayFunction", f'Invalid delay function "{policy.delay_function}"', one_of(DELAY_FUNCTIONS)
        )
    delay_is_valid = policy.delay >= RESCHEDULE_DELAY_MIN
    if not delay_is_valid:
        report.error(f"{path}.Delay", f"Delay cannot be less than 5s; got {say_duration(policy.delay)}")
    if policy.delay_function != DelayFunction.CONSTANT:
        if policy.max_delay < RESCHEDULE_DELAY_MIN:
            report.error(f"{path}.MaxDelay", f"Max Delay cannot be less than 5s; got {say_duration(policy.max_delay)}")
            delay_is_valid = False
        if policy.max_delay < policy.delay:
            report.error(f"{path}.MaxDelay", "Max Delay cannot be less than Delay")
            delay_is_valid = False
    if policy.attempts > 0 and policy.unlimited:
        report.error(
            f"{path}.Attempts", "Reschedule with both Attempts and Unlimited is ambiguous", "set Unlimited to false"
        )
    if policy.unlimited:
        return
    if policy.interval < RESCHEDULE_INTERVAL_MIN:
        report.error(f"{path}.Interval", f"Interval cannot be less than 15s; got {say_duration(policy.interval)}")
    elif delay_is_valid and (needed := reschedule_span(policy)) > policy.interval:
        report.error(
            f"{path}.Interval",
            f"{policy.attempts} attempts do not fit in an interval of {say_duration(policy.interval)} with an initial "
            f'delay of {say_duration(policy.delay)} and delay function "{policy.delay_function}"',
            f"set the interval to at least {say_duration(needed)}",
        )


def reschedule_span(policy: ReschedulePolicy) -> int:
    """How long all attempts take, delays only."""
    if policy.delay_function == DelayFunction.CONSTANT:
        return policy.attempts * policy.delay
    total, delay, following = 0, policy.delay, policy.delay
    for attempt in range(policy.attempts):
        if delay >= policy.max_delay:
            # From here on each one waits the longest time; attempts may be given in billions.
            return total + (policy.attempts - attempt) * policy.max_delay
        total += delay
        if policy.delay_function == DelayFunction.EXPONENTIAL:
            delay *= 2
        else:
            delay, following = following, delay + following
    return total


def _check_update(policy: UpdatePolicy | None, group: TaskGroup, path: str, report: Report, job_type: str) -> None:
    if policy is None:
        return
    if job_type not in ("service", "system"):
        report.error(path, f'Job type "{job_type}" does not allow update block')
        return
    if policy.health_check not in UPDATE_HEALTH_CHECKS:
        report.error(
            f"{path}.HealthCheck", f'Invalid health check given: "{policy.health_check}"', one_of(UPDATE_HEALTH_CHECKS)
        )
    if policy.max_parallel < 0:
        report.error(f"{path}.MaxParallel", f"Max parallel can not be less than zero: {policy.max_parallel} < 0")
    if policy.canary < 0:
        report.error(f"{path}.Canary", f"Canary count can not be less than zero: {policy.canary} < 0")
    if policy.canary == 0 and policy.auto_promote:
        report.error(f"{path}.AutoPromote", "Auto Promote requires a Canary count greater than zero")
    if policy.min_healthy_time < 0:
        report.error(f"{path}.MinHealthyTime", "Minimum healthy time may not be less than zero")
    if policy.healthy_deadline <= 0:
        report.error(f"{path}.HealthyDeadline", "Healthy deadline must be greater than zero")
    elif policy.min_healthy_time >= policy.healthy_deadline:
        report.error(
            f"{path}.MinHealthyTime",
            f"Minimum healthy time must be less than healthy deadline: {say_duration(policy.min_healthy_time)} >= "
            f"{say_duration(policy.healthy_deadline)}",
        )
    if policy.progress_deadline < 0:
        report.error(f"{path}.ProgressDeadline", "Progress deadline must be zero or greater")
    elif 0 < policy.progress_deadline <= policy.healthy_deadline:
        report.error(
            f"{path}.HealthyDeadline",
            f"Healthy deadline must be less than progress deadline: {say_duration(policy.healthy_deadline)} >= "
            f"{say_duration(policy.progress_deadline)}",
        )
    if policy.stagger <= 0:
        report.error(f"{path}.Stagger", "Stagger must be greater than zero")
    if 0 < group.count < policy.max_parallel:
        report.warn(
            f"{path}.MaxParallel",
            f"Update max parallel count is greater than task group count ({policy.max_parallel} > {group.count}); "
            "a destructive change would replace all allocations at once",
        )


def _check_migrate(policy: MigratePolicy | None, path: str, report: Report, job_type: str) -> None:
    if policy is None:
        return
    if job_type != "service":
        report.error(path, f'Job type "{job_type}" does not allow migrate block')
        return
    if policy.max_parallel < 0:
        report.error(f"{path}.MaxParallel", f"MaxParallel must be >= 0 but found {policy.max_parallel}")
    if policy.health_check not in MIGRATE_HEALTH_CHECKS and not (policy.max_parallel == 0 and not policy.health_check):
        report.error(
            f"{path}.HealthCheck", f'Invalid HealthCheck: "{policy.health_check}"', one_of(MIGRATE_HEALTH_CHECKS)
        )
    if policy.min_healthy_time < 0:
        report.error(f"{path}.MinHealthyTime", "MinHealthyTime must not be negative")
    if policy.healthy_deadline < 0:
        report.error(f"{path}.HealthyDeadline", "HealthyDeadline must not be negative")
    if policy.min_healthy_time > policy.healthy_deadline:
        report.error(f"{path}.MinHealthyTime", "MinHealthyTime must be less than HealthyDeadline")


def _check_disconnect(policy: DisconnectPolicy | None, path: str, report: Report, job_type: str) -> None:
    if policy is None:
        return
    if policy.lost_after < 0:
        report.error(f"{path}.LostAfter", "lost_after cannot be a negative duration")
    if policy.stop_on_client_after is not None:
        if policy.stop_on_client_after < 0:
            report.error(f"{path}.StopOnClientAfter", "stop_on_client_after cannot be a negative duration")
        if job_type not in ("service", "batch"):
            report.error(
                f"{path}.StopOnClientAfter", "stop_on_client_after can only be used with service and batch job types"
            )
        if policy.lost_after > 0:
            report.error(f"{path}.StopOnClientAfter", "stop_on_client_after and lost_after may not be used together")
    if policy.reconcile not in RECONCILES:
        report.error(f"{path}.Reconcile", f'Invalid reconcile option "{policy.reconcile}"', one_of(RECONCILES))


def _check_disk(disk: EphemeralDisk, path: str, report: Report) -> None:
    if disk.size_mb < DISK_MIN_MB:
        report.error(f"{path}.SizeMB", f"minimum DiskMB value is {DISK_MIN_MB}; got {disk.size_mb}")


def _check_scaling(policy: ScalingPolicy | None, group: TaskGroup, path: str, report: Report) -> None:
    if policy is None:
        return
    if policy.type != ScalingKind.HORIZONTAL:
        report.error(f"{path}.Type", f'Scaling policy type "{policy.type}" is not supported', 'use "horizontal"')
    if policy.max < 0:
        report.error(f"{path}.Max", "Scaling policy invalid: maximum count must be specified and non-negative")
        return
    if policy.min < 0:
        report.error(f"{path}.Min", "Scaling policy invalid: minimum count must be specified and non-negative")
    elif policy.min > policy.max:
        report.error(f"{path}.Min", "Scaling policy invalid: maximum count must not be less than minimum count")
    elif group.count < policy.min:
        report.error(
            f"{path}.Min",
            f"Scaling policy invalid: task group count must not be less than minimum count: {group.count} < {policy.min}",
        )
    elif group.count > policy.max:
        report.error(
            f"{path}.Max",
            "Scaling policy invalid: task group count must not be greater than maximum count: "
            f"{group.count} > {policy.max}",
        )
