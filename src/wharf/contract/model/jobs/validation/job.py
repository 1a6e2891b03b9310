"""Rules for a job as a whole (jobs.md 2.1) and for periodic and parameterized jobs (2.12); calls the rules for its groups.

All problems are reported at once. Rules that need other records are in `context`.
"""

from typing import Final

from wharf.contract.model.body_limits import MAX_REPORTED_PROBLEMS
from wharf.contract.model.decoding import format_path
from wharf.contract.model.drivers.options import find_option_problems, may_have_unknown_options
from wharf.contract.model.jobs.cron import MAX_YEAR, CronError, load_zone, parse_cron
from wharf.contract.model.jobs.defaults import MAX_JOB_PRIORITY, JobSettings
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType, MissedLaunchPolicy, Parameterized, PayloadRequirement, Periodic
from wharf.contract.model.jobs.periodic import MAX_SCHEDULES
from wharf.contract.model.jobs.sensitive_fields import list_masked_fields
from wharf.contract.model.jobs.services import Service, ServiceProvider
from wharf.contract.model.jobs.validation.arrays import check_arrays_of_job
from wharf.contract.model.jobs.validation.constraints import check_affinities, check_constraints, check_spreads
from wharf.contract.model.jobs.validation.findings import Findings, ValidationProblem, ValidationReport, suggest_one_of
from wharf.contract.model.jobs.validation.groups import check_group
from wharf.contract.model.jobs.validation.step_outputs import check_step_outputs
from wharf.contract.model.jobs.validation.steps import check_run, has_checkable_conditions
from wharf.contract.model.times import format_duration
from wharf.languages.hcl.diagnostics import HIDDEN

PARENT_JOB_TYPES: Final = (JobType.BATCH, JobType.SYSBATCH)
PAYLOAD_REQUIREMENTS: Final = tuple(str(word) for word in PayloadRequirement)
MISSED_LAUNCH_POLICIES: Final = tuple(str(word) for word in MissedLaunchPolicy)


def check_child_launches(job: Job, report: ValidationReport) -> None:
    """Add each problem of the periodic and parameterized blocks of a job to the report.

    Only batch and sysbatch jobs may have them.
    """
    allowed = job.type in PARENT_JOB_TYPES
    if job.periodic is not None:
        if not allowed:
            report.add_error("Periodic", 'Periodic can only be used with "batch" or "sysbatch" scheduler')
        _check_periodic(job.periodic, report)
    if job.parameterized_job is not None:
        if not allowed:
            report.add_error(
                "ParameterizedJob", 'Parameterized job can only be used with "batch" or "sysbatch" scheduler'
            )
        _check_parameterized(job.parameterized_job, report)


def _check_periodic(periodic: Periodic, report: ValidationReport) -> None:
    """Add each problem of a periodic block to the report. Cron expressions are not checked if the block is disabled."""
    _check_max_running(periodic.max_running, "Periodic.MaxRunning", report)
    if periodic.missed not in MISSED_LAUNCH_POLICIES:
        report.add_error(
            "Periodic.Missed",
            f'Unknown rule for missed launches "{periodic.missed}"',
            suggest_one_of(MISSED_LAUNCH_POLICIES, periodic.missed),
        )
    if not periodic.enabled:
        return
    if periodic.spec and periodic.specs:
        report.add_error("Periodic.Spec", "Only cron or crons may be used", "keep Specs")
    elif not periodic.spec and not periodic.specs:
        report.add_error("Periodic.Specs", "Must specify a spec", 'give cron expressions, such as "0 3 * * *"')
    if periodic.spec_type != "cron":
        report.add_error(
            "Periodic.SpecType", f'Unknown periodic specification type "{periodic.spec_type}"', 'use "cron"'
        )
        return
    if periodic.spec:
        report.add_warning(
            "Periodic.Spec", "cron is deprecated and may be removed in a future release", "use crons (Specs)"
        )
        _check_spec(periodic.spec, "Periodic.Spec", report)
    specs = periodic.specs or ()
    if len(specs) > MAX_SCHEDULES:
        report.add_error(
            "Periodic.Specs",
            f"A job can have {MAX_SCHEDULES} cron specs at most; this one has {len(specs)}",
            'combine them with lists and ranges, such as "0,30 8-18 * * *", or split the job',
        )
    for position, spec in enumerate(specs[:MAX_SCHEDULES]):
        _check_spec(spec, f"Periodic.Specs[{position}]", report)
    try:
        load_zone(periodic.time_zone)
    except CronError as error:
        report.add_error("Periodic.TimeZone", f"Invalid time zone: {error}", 'use a name such as "Europe/Berlin"')


def _check_spec(spec: str, path: str, report: ValidationReport) -> None:
    """Add an error to the report if a cron expression is invalid, and a warning if it never matches.

    Jobs that are only launched on request have such an expression on purpose.
    """
    try:
        schedule = parse_cron(spec)
    except CronError as error:
        report.add_error(path, f'Invalid cron spec "{spec}": {error}')
        return
    if not schedule.has_dates():
        report.add_warning(
            path,
            f'The cron spec "{spec}" never launches the job: no selected month up to the year {MAX_YEAR} has such a day',
            "select another day, or launch the job on request",
        )


def _check_max_running(max_running: int, path: str, report: ValidationReport) -> None:
    """Add an error to the report if the limit on children that run at the same time is negative."""
    if max_running < 0:
        report.add_error(path, f"{max_running} is below 0", "use 0 for any number of children at the same time")


def _check_parameterized(parameterized: Parameterized, report: ValidationReport) -> None:
    """Add each problem of a parameterized block to the report."""
    _check_max_running(parameterized.max_running, "ParameterizedJob.MaxRunning", report)
    if parameterized.payload not in PAYLOAD_REQUIREMENTS:
        report.add_error(
            "ParameterizedJob.Payload",
            f'Unknown payload requirement: "{parameterized.payload}"',
            suggest_one_of(PAYLOAD_REQUIREMENTS, parameterized.payload),
        )
    both = sorted(set(parameterized.meta_required or ()) & set(parameterized.meta_optional or ()))
    if both:
        report.add_error(
            "ParameterizedJob.MetaOptional", f"Required and optional meta keys should be disjoint; both hold {both}"
        )


SUBMITTABLE_JOB_TYPES: Final = ("service", "batch", "system", "sysbatch")
MAX_DESCRIPTION_BYTES: Final = 1_000
MAX_JOB_VERSION: Final = 2**53
"""The largest version that all JSON parsers represent exactly."""


def validate_job(job: Job, settings: JobSettings) -> Findings:
    """Return all problems and warnings of a canonical job, including its groups and tasks."""
    report = ValidationReport()
    _check_identity(job, report)
    _check_scalars(job, report, settings)
    check_constraints(job.constraints, "", report)
    check_affinities(job.affinities, "", report, job_type=job.type)
    check_spreads(job.spreads, "", report, job_type=job.type)
    _check_texts(job, report)
    _check_update(job.update, job, report)
    check_child_launches(job, report)
    for path in list_masked_fields(job)[:MAX_REPORTED_PROBLEMS]:
        report.add_error(
            path,
            f"The value has {HIDDEN}, which outputs have in place of a secret",
            "write the value, or a reference to a variable",
        )
    _check_groups(job, report, settings)
    return report.build_findings()


def list_submission_warnings(job: Job) -> tuple[ValidationProblem, ...]:
    """Return a warning for each deprecated field that a submitted job sets, and for options that a driver does not have.

    The job must not be canonical yet, because the canonical form replaces these fields.
    """
    report = ValidationReport()
    for position, group in enumerate(job.groups):
        path = f"TaskGroups[{position}]"
        for name, is_set in (
            ("StopAfterClientDisconnect", group.stop_after_client_disconnect is not None),
            ("MaxClientDisconnect", group.max_client_disconnect is not None),
            ("PreventRescheduleOnLost", group.prevent_reschedule_on_lost),
        ):
            if is_set:
                report.add_warning(f"{path}.{name}", f"{name} is deprecated", "use the disconnect block")
        _warn_about_consul(group.services, path, report)
        for number, task in enumerate(group.tasks or ()):
            _warn_about_consul(task.services, f"{path}.Tasks[{number}]", report)
            if not may_have_unknown_options(task.driver, task.config or {}):
                continue
            for problem in find_option_problems(task.driver, task.config or {}):
                if problem.is_unknown:  # A value of a wrong type is an error of the validation.
                    option_path = format_path(["TaskGroups", position, "Tasks", number, "Config", *problem.path])
                    report.add_warning(option_path, problem.message, problem.fix)
    return report.build_findings().warnings


def _warn_about_consul(services: tuple[Service, ...] | None, path: str, report: ValidationReport) -> None:
    """Add a warning to the report for each service that names Consul, which the canonical form replaces."""
    for position, service in enumerate(services or ()):
        if service.provider == ServiceProvider.CONSUL:
            report.add_warning(
                f"{path}.Services[{position}].Provider",
                f'Wharf has no Consul: the service "{service.name}" is registered in the catalog of the cluster',
                'write provider = "nomad"',
            )


def _check_identity(job: Job, report: ValidationReport) -> None:
    """Add an error to the report for each of ID, name, namespace and region of a job that is missing or invalid."""
    if not job.id:
        report.add_error("ID", "Missing job ID")
    if " " in job.id:
        report.add_error("ID", "Job ID contains a space", f'write "{job.id.replace(" ", "-")}"')
    if "\x00" in job.id:
        report.add_error("ID", "Job ID contains a null character")
    if not job.name:
        report.add_error("Name", "Missing job name")
    if "\x00" in job.name:
        report.add_error("Name", "Job Name contains a null character")
    if not job.namespace:
        report.add_error("Namespace", "Job must be in a namespace")
    if not job.region:
        report.add_error("Region", "Missing job region")


def _check_scalars(job: Job, report: ValidationReport, settings: JobSettings) -> None:
    """Add each problem of the simple fields of a job to the report.

    These are type, priority, datacenters, payload, version and multiregion.
    """
    if job.type == JobType.CORE:
        report.add_error("Type", "job type cannot be core")
    elif job.type not in SUBMITTABLE_JOB_TYPES:
        report.add_error("Type", f'Invalid job type: "{job.type}"', suggest_one_of(SUBMITTABLE_JOB_TYPES, job.type))
    max_priority = min(settings.max_priority, MAX_JOB_PRIORITY)
    if not 1 <= job.priority <= max_priority:
        report.add_error("Priority", f"job priority must be between [1, {max_priority}]; got {job.priority}")
    if not job.datacenters:
        report.add_error("Datacenters", "Missing job datacenters")
    for position, datacenter in enumerate(job.datacenters or ()):
        if not datacenter:
            report.add_error(f"Datacenters[{position}]", "Job datacenter must be non-empty string")
    if job.payload and not job.dispatched:
        report.add_error("Payload", "job can't be submitted with a payload, only dispatched")
    if job.version < 0:
        report.add_error("Version", f"job version must not be negative; got {job.version}")
    if job.version > MAX_JOB_VERSION:
        report.add_error("Version", f"job version must not be greater than {MAX_JOB_VERSION}; got {job.version}")
    if job.multiregion is not None:
        report.add_error("Multiregion", "Multiregion jobs are not supported", "submit the job to each region")


def _check_texts(job: Job, report: ValidationReport) -> None:
    """Add an error to the report for each description of a job that is too long."""
    if job.ui is not None and len(job.ui.description.encode()) > MAX_DESCRIPTION_BYTES:
        report.add_error("UI.Description", f"UI description must be under {MAX_DESCRIPTION_BYTES} characters")
    if job.version_tag is not None and len(job.version_tag.description.encode()) > MAX_DESCRIPTION_BYTES:
        report.add_error(
            "VersionTag.Description", f"version tag description must be under {MAX_DESCRIPTION_BYTES} characters"
        )


def _check_update(update: UpdatePolicy | None, job: Job, report: ValidationReport) -> None:
    """Add each problem of the job's own update block to the report."""
    if update is None or job.type not in SUBMITTABLE_JOB_TYPES:
        return
    if job.type in ("batch", "sysbatch"):
        report.add_error("Update", f'Job type "{job.type}" does not allow update block')
        return
    if update.max_parallel < 0:
        report.add_error("Update.MaxParallel", f"Max parallel can not be less than zero: {update.max_parallel} < 0")
    if update.stagger <= 0:
        report.add_error("Update.Stagger", f"Stagger must be greater than zero: {format_duration(update.stagger)}")


def _check_groups(job: Job, report: ValidationReport, settings: JobSettings) -> None:
    """Add each problem of the groups of a job, their names and their total count to the report."""
    if not job.groups:
        report.add_error("TaskGroups", "Missing job task groups")
    first_of_name: dict[str, int] = {}
    total = 0
    for position, group in enumerate(job.groups):
        path = f"TaskGroups[{position}]"
        _check_group_name(group, position, first_of_name, report)
        if job.type == JobType.SYSTEM and group.count > 1:
            report.add_error(
                f"{path}.Count",
                f"Job task group {group.name} has count {group.count}. Count cannot exceed 1 with system scheduler",
            )
        total += max(group.count, 0)
        section = report.add_section(f"Task group {group.name} validation failed")
        check_group(group, path, section, job_type=job.type, settings=settings)
    if 0 < settings.max_count < total:
        report.add_error(
            "TaskGroups", f"total count was greater than configured job_max_count: {total} > {settings.max_count}"
        )
    check_arrays_of_job(job, report)
    check_run(job, report)
    if job.has_steps and has_checkable_conditions(job):
        check_step_outputs(job, report)
    _check_auto_promote(job, report)


def _check_group_name(
    group: TaskGroup, position: int, first_position_by_name: dict[str, int], report: ValidationReport
) -> None:
    """Add an error to the report if the name of a group is missing, invalid or used by an earlier group.

    A new name is added to `first_position_by_name`.
    """
    path = f"TaskGroups[{position}].Name"
    if not group.name:
        report.add_error(path, f"Job task group {position + 1} missing name")
    elif (first := first_position_by_name.setdefault(group.name, position)) != position:
        report.add_error(path, f"Job task group {position + 1} redefines '{group.name}' from group {first + 1}")
    if "\x00" in group.name:
        report.add_error(path, "Task group name contains a null character")


def _check_auto_promote(job: Job, report: ValidationReport) -> None:
    """Add a warning to the report if some groups of a job are promoted automatically and others are not."""
    promotes = [group.update is not None and group.update.auto_promote for group in job.groups]
    if any(promotes) and not all(promotes):
        position = promotes.index(False)
        report.add_warning(
            f"TaskGroups[{position}].Update.AutoPromote",
            "auto_promote must be true for all groups to enable automatic promotion",
        )
