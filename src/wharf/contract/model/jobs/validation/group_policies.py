"""Rules for the policies (jobs.md 2.4) and the scaling (2.10) of a group."""

from typing import Final

from wharf.contract.model.jobs.group_policies import (
    DelayFunction,
    DisconnectPolicy,
    EphemeralDisk,
    HealthCheck,
    MigratePolicy,
    ReconcileStrategy,
    ReschedulePolicy,
    RestartMode,
    RestartPolicy,
    UpdatePolicy,
)
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.validation.findings import ValidationReport, suggest_one_of
from wharf.contract.model.jobs.validation.resources import check_largest_amount
from wharf.contract.model.scaling import ScalingKind, ScalingPolicy
from wharf.contract.model.times import SECOND, format_duration

MIN_RESTART_INTERVAL_NS: Final = 5 * SECOND
MIN_RESCHEDULE_INTERVAL_NS: Final = 15 * SECOND
MIN_RESCHEDULE_DELAY_NS: Final = 5 * SECOND
MIN_DISK_MB: Final = 10

UPDATE_HEALTH_CHECKS: Final = tuple(str(word) for word in HealthCheck)
MIGRATE_HEALTH_CHECKS: Final = ("checks", "task_states")
RESTART_MODES: Final = tuple(str(word) for word in RestartMode)
DELAY_FUNCTIONS: Final = tuple(str(word) for word in DelayFunction)
RECONCILE_STRATEGIES: Final = tuple(str(word) for word in ReconcileStrategy)


def check_policies(group: TaskGroup, path: str, report: ValidationReport, *, job_type: str) -> None:
    """Add each problem of a group's policies to the report.

    The policies are restart, reschedule, update, migrate, disconnect, disk and scaling. `path` is the path of the
    group.
    """
    check_restart(group.restart_policy, f"{path}.RestartPolicy", report)
    _check_reschedule(group.reschedule_policy, f"{path}.ReschedulePolicy", report, job_type)
    _check_update(group.update, group, f"{path}.Update", report, job_type)
    _check_migrate(group.migrate, f"{path}.Migrate", report, job_type)
    _check_disconnect(group.disconnect, f"{path}.Disconnect", report, job_type)
    _check_disk(group.ephemeral_disk, f"{path}.EphemeralDisk", report)
    _check_scaling(group.scaling, group, f"{path}.Scaling", report)


def check_restart(policy: RestartPolicy | None, path: str, report: ValidationReport) -> None:
    """Add each problem of the restart policy of a group or a task to the report. `path` is the path of the policy."""
    if policy is None:
        report.add_error(path, "Missing restart policy")
        return
    if policy.mode not in RESTART_MODES:
        report.add_error(
            f"{path}.Mode", f'Unsupported restart mode: "{policy.mode}"', suggest_one_of(RESTART_MODES, policy.mode)
        )
    if policy.attempts < 0:
        report.add_error(f"{path}.Attempts", f"Restart attempts must not be negative; got {policy.attempts}")
    if policy.attempts == 0 and policy.mode == RestartMode.DELAY:
        report.add_error(f"{path}.Mode", 'Restart mode "delay" with 0 attempts is ambiguous', 'use "fail"')
    if policy.delay < 0:
        report.add_error(f"{path}.Delay", "Restart delay must not be negative")
    if policy.interval < MIN_RESTART_INTERVAL_NS:
        report.add_error(
            f"{path}.Interval", f"Restart interval can not be less than 5s; got {format_duration(policy.interval)}"
        )
    elif policy.attempts * policy.delay > policy.interval:
        report.add_error(
            f"{path}.Attempts",
            f"{policy.attempts} restarts with a delay of {format_duration(policy.delay)} do not fit in an interval of "
            f"{format_duration(policy.interval)}",
            f"set the interval to at least {format_duration(policy.attempts * policy.delay)}",
        )


def _check_reschedule(policy: ReschedulePolicy | None, path: str, report: ValidationReport, job_type: str) -> None:
    """Add each problem of a group's reschedule policy to the report.

    If reschedules are limited, all attempts with their delays must fit in the interval.
    """
    if policy is None:
        return
    if job_type in ("system", "sysbatch"):
        report.add_error(path, f'Job type "{job_type}" does not allow reschedule block')
        return
    if not policy.is_enabled:
        return
    if policy.delay_function not in DELAY_FUNCTIONS:
        report.add_error(
            f"{path}.DelayFunction",
            f'Invalid delay function "{policy.delay_function}"',
            suggest_one_of(DELAY_FUNCTIONS, policy.delay_function),
        )
    delay_is_valid = policy.delay >= MIN_RESCHEDULE_DELAY_NS
    if not delay_is_valid:
        report.add_error(f"{path}.Delay", f"Delay cannot be less than 5s; got {format_duration(policy.delay)}")
    if policy.delay_function != DelayFunction.CONSTANT:
        if policy.max_delay < MIN_RESCHEDULE_DELAY_NS:
            report.add_error(
                f"{path}.MaxDelay", f"Max Delay cannot be less than 5s; got {format_duration(policy.max_delay)}"
            )
            delay_is_valid = False
        if policy.max_delay < policy.delay:
            report.add_error(f"{path}.MaxDelay", "Max Delay cannot be less than Delay")
            delay_is_valid = False
    if policy.attempts > 0 and policy.unlimited:
        report.add_error(
            f"{path}.Attempts", "Reschedule with both Attempts and Unlimited is ambiguous", "set Unlimited to false"
        )
    if policy.unlimited:
        return
    if policy.interval < MIN_RESCHEDULE_INTERVAL_NS:
        report.add_error(
            f"{path}.Interval", f"Interval cannot be less than 15s; got {format_duration(policy.interval)}"
        )
    elif delay_is_valid and (total_delay := sum_reschedule_delays(policy)) > policy.interval:
        report.add_error(
            f"{path}.Interval",
            f"{policy.attempts} attempts do not fit in an interval of {format_duration(policy.interval)} with an initial "
            f'delay of {format_duration(policy.delay)} and delay function "{policy.delay_function}"',
            f"set the interval to at least {format_duration(total_delay)}",
        )


def sum_reschedule_delays(policy: ReschedulePolicy) -> int:
    """Return the sum of the delays before all attempts that a reschedule policy allows, in ns."""
    if policy.delay_function == DelayFunction.CONSTANT:
        return policy.attempts * policy.delay
    total, delay, next_delay = 0, policy.delay, policy.delay
    for attempt in range(policy.attempts):
        if delay >= policy.max_delay:
            # All further attempts have the maximum delay. They are not looped over, because there may be billions.
            return total + (policy.attempts - attempt) * policy.max_delay
        total += delay
        if policy.delay_function == DelayFunction.EXPONENTIAL:
            delay *= 2
        else:
            delay, next_delay = next_delay, delay + next_delay
    return total


def _check_update(
    policy: UpdatePolicy | None, group: TaskGroup, path: str, report: ValidationReport, job_type: str
) -> None:
    """Add each problem of a group's update policy to the report.

    A policy that replaces all allocations at once gets a warning.
    """
    if policy is None:
        return
    if job_type not in ("service", "system"):
        report.add_error(path, f'Job type "{job_type}" does not allow update block')
        return
    if policy.health_check not in UPDATE_HEALTH_CHECKS:
        report.add_error(
            f"{path}.HealthCheck",
            f'Invalid health check given: "{policy.health_check}"',
            suggest_one_of(UPDATE_HEALTH_CHECKS, policy.health_check),
        )
    if policy.max_parallel < 0:
        report.add_error(f"{path}.MaxParallel", f"Max parallel can not be less than zero: {policy.max_parallel} < 0")
    if policy.canary < 0:
        report.add_error(f"{path}.Canary", f"Canary count can not be less than zero: {policy.canary} < 0")
    if policy.canary == 0 and policy.auto_promote:
        report.add_error(f"{path}.AutoPromote", "Auto Promote requires a Canary count greater than zero")
    if policy.min_healthy_time < 0:
        report.add_error(f"{path}.MinHealthyTime", "Minimum healthy time may not be less than zero")
    if policy.healthy_deadline <= 0:
        report.add_error(f"{path}.HealthyDeadline", "Healthy deadline must be greater than zero")
    elif policy.min_healthy_time >= policy.healthy_deadline:
        report.add_error(
            f"{path}.MinHealthyTime",
            f"Minimum healthy time must be less than healthy deadline: {format_duration(policy.min_healthy_time)} >= "
            f"{format_duration(policy.healthy_deadline)}",
        )
    if policy.progress_deadline < 0:
        report.add_error(f"{path}.ProgressDeadline", "Progress deadline must be zero or greater")
    elif 0 < policy.progress_deadline <= policy.healthy_deadline:
        report.add_error(
            f"{path}.HealthyDeadline",
            f"Healthy deadline must be less than progress deadline: {format_duration(policy.healthy_deadline)} >= "
            f"{format_duration(policy.progress_deadline)}",
        )
    if policy.stagger <= 0:
        report.add_error(f"{path}.Stagger", "Stagger must be greater than zero")
    if 0 < group.count < policy.max_parallel:
        report.add_warning(
            f"{path}.MaxParallel",
            f"Update max parallel count is greater than task group count ({policy.max_parallel} > {group.count}); "
            "a destructive change would replace all allocations at once",
        )


def _check_migrate(policy: MigratePolicy | None, path: str, report: ValidationReport, job_type: str) -> None:
    """Add each problem of a group's migrate policy to the report. Only service jobs may have one."""
    if policy is None:
        return
    if job_type != "service":
        report.add_error(path, f'Job type "{job_type}" does not allow migrate block')
        return
    if policy.max_parallel < 0:
        report.add_error(f"{path}.MaxParallel", f"MaxParallel must be >= 0 but found {policy.max_parallel}")
    if policy.health_check not in MIGRATE_HEALTH_CHECKS and not (policy.max_parallel == 0 and not policy.health_check):
        report.add_error(
            f"{path}.HealthCheck",
            f'Invalid HealthCheck: "{policy.health_check}"',
            suggest_one_of(MIGRATE_HEALTH_CHECKS, policy.health_check),
        )
    if policy.min_healthy_time < 0:
        report.add_error(f"{path}.MinHealthyTime", "MinHealthyTime must not be negative")
    if policy.healthy_deadline < 0:
        report.add_error(f"{path}.HealthyDeadline", "HealthyDeadline must not be negative")
    if policy.min_healthy_time > policy.healthy_deadline:
        report.add_error(f"{path}.MinHealthyTime", "MinHealthyTime must be less than HealthyDeadline")


def _check_disconnect(policy: DisconnectPolicy | None, path: str, report: ValidationReport, job_type: str) -> None:
    """Add each problem of a group's disconnect policy to the report."""
    if policy is None:
        return
    if policy.lost_after < 0:
        report.add_error(f"{path}.LostAfter", "lost_after cannot be a negative duration")
    if policy.stop_on_client_after is not None:
        if policy.stop_on_client_after < 0:
            report.add_error(f"{path}.StopOnClientAfter", "stop_on_client_after cannot be a negative duration")
        if job_type not in ("service", "batch"):
            report.add_error(
                f"{path}.StopOnClientAfter", "stop_on_client_after can only be used with service and batch job types"
            )
        if policy.lost_after > 0:
            report.add_error(
                f"{path}.StopOnClientAfter", "stop_on_client_after and lost_after may not be used together"
            )
    if policy.reconcile not in RECONCILE_STRATEGIES:
        report.add_error(
            f"{path}.Reconcile",
            f'Invalid reconcile option "{policy.reconcile}"',
            suggest_one_of(RECONCILE_STRATEGIES, policy.reconcile),
        )


def _check_disk(disk: EphemeralDisk, path: str, report: ValidationReport) -> None:
    """Add an error to the report if the ephemeral disk of a group is too small or too large."""
    check_largest_amount("DiskMB", disk.size_mb, f"{path}.SizeMB", report)
    if disk.size_mb < MIN_DISK_MB:
        report.add_error(f"{path}.SizeMB", f"minimum DiskMB value is {MIN_DISK_MB}; got {disk.size_mb}")


def _check_scaling(policy: ScalingPolicy | None, group: TaskGroup, path: str, report: ValidationReport) -> None:
    """Add each problem of a group's scaling policy to the report, such as a group count outside of its limits."""
    if policy is None:
        return
    if policy.type != ScalingKind.HORIZONTAL:
        report.add_error(f"{path}.Type", f'Scaling policy type "{policy.type}" is not supported', 'use "horizontal"')
    if policy.max < 0:
        report.add_error(f"{path}.Max", "Scaling policy invalid: maximum count must be specified and non-negative")
        return
    if policy.min < 0:
        report.add_error(f"{path}.Min", "Scaling policy invalid: minimum count must be specified and non-negative")
    elif policy.min > policy.max:
        report.add_error(f"{path}.Min", "Scaling policy invalid: maximum count must not be less than minimum count")
    elif group.count < policy.min:
        report.add_error(
            f"{path}.Min",
            f"Scaling policy invalid: task group count must not be less than minimum count: {group.count} < {policy.min}",
        )
    elif group.count > policy.max:
        report.add_error(
            f"{path}.Max",
            "Scaling policy invalid: task group count must not be greater than maximum count: "
            f"{group.count} > {policy.max}",
        )
