"""Rules of a job as a whole (jobs.md 2.1), and the door to those of its parts.

Everything that is wrong is told at once. Rules that need to know of other records are in `surroundings`.
"""

from typing import Final

from wharf.model.durations import say_duration
from wharf.model.group import TaskGroup
from wharf.model.job import Job, JobType
from wharf.model.job_settings import PRIORITY_CEILING, JobSettings
from wharf.model.policies import UpdatePolicy
from wharf.model.validation.findings import Findings, Problem, Report, one_of
from wharf.model.validation.group import check_group
from wharf.model.validation.placement import check_affinities, check_constraints, check_spreads
from wharf.model.validation.schedule import check_children

STANDARD_SETTINGS: Final = JobSettings()
TYPES: Final = ("service", "batch", "system", "sysbatch")
DESCRIPTION_MAX_BYTES: Final = 1_000
VERSION_MAX: Final = 2**53
"""So that every later version is a number that all readers of JSON keep exactly."""


def validate(job: Job, settings: JobSettings = STANDARD_SETTINGS) -> Findings:
    """Judges a canonical job."""
    report = Report()
    _check_identity(job, report)
    _check_kind(job, report, settings)
    check_constraints(job.constraints, "", report)
    check_affinities(job.affinities, "", report, job_type=job.type)
    check_spreads(job.spreads, "", report, job_type=job.type)
    _check_texts(job, report)
    _check_update(job.update, job, report)
    check_children(job, report)
    _check_groups(job, report, settings)
    return report.findings()


def submission_warnings(job: Job) -> tuple[Problem, ...]:
    """Warnings about what canonical form replaces: to be asked of the job as it was read."""
    report = Report()
    for position, group in enumerate(job.groups):
        path = f"TaskGroups[{position}]"
        for name, given in (
            ("StopAfterClientDisconnect", group.stop_after_client_disconnect is not None),
            ("MaxClientDisconnect", group.max_client_disconnect is not None),
            ("PreventRescheduleOnLost", group.prevent_reschedule_on_lost),
        ):
            if given:
                report.warn(f"{path}.{name}", f"{name} is deprecated", "use the disconnect block")
    return report.findings().warnings


def _check_identity(job: Job, report: Report) -> None:
    if not job.id:
        report.error("ID", "Missing job ID")
    if " " in job.id:
        report.error("ID", "Job ID contains a space")
    if "\x00" in job.id:
        report.error("ID", "Job ID contains a null character")
    if not job.name:
        report.error("Name", "Missing job name")
    if "\x00" in job.name:
        report.error("Name", "Job Name contains a null character")
    if not job.namespace:
        report.error("Namespace", "Job must be in a namespace")
    if not job.region:
        report.error("Region", "Missing job region")


def _check_kind(job: Job, report: Report, settings: JobSettings) -> None:
    if job.type == JobType.CORE:
        report.error("Type", "job type cannot be core")
    elif job.type not in TYPES:
        report.error("Type", f'Invalid job type: "{job.type}"', one_of(TYPES))
    most = min(settings.max_priority, PRIORITY_CEILING)
    if not 1 <= job.priority <= most:
        report.error("Priority", f"job priority must be between [1, {most}]; got {job.priority}")
    if not job.datacenters:
        report.error("Datacenters", "Missing job datacenters")
    for position, datacenter in enumerate(job.datacenters or ()):
        if not datacenter:
            report.error(f"Datacenters[{position}]", "Job datacenter must be non-empty string")
    if job.payload and not job.dispatched:
        report.error("Payload", "job can't be submitted with a payload, only dispatched")
    if job.version < 0:
        report.error("Version", f"job version must not be negative; got {job.version}")
    if job.version > VERSION_MAX:
        report.error("Version", f"job version must not be greater than {VERSION_MAX}; got {job.version}")
    if job.multiregion is not None:
        report.error("Multiregion", "Multiregion jobs are not supported", "submit the job to each region")


def _check_texts(job: Job, report: Report) -> None:
    if job.ui is not None and len(job.ui.description.encode()) > DESCRIPTION_MAX_BYTES:
        report.error("UI.Description", f"UI description must be under {DESCRIPTION_MAX_BYTES} characters")
    if job.version_tag is not None and len(job.version_tag.description.encode()) > DESCRIPTION_MAX_BYTES:
        report.error(
            "VersionTag.Description", f"version tag description must be under {DESCRIPTION_MAX_BYTES} characters"
        )


def _check_update(update: UpdatePolicy | None, job: Job, report: Report) -> None:
    if update is None or job.type not in TYPES:
        return
    if job.type in ("batch", "sysbatch"):
        report.error("Update", f'Job type "{job.type}" does not allow update block')
        return
    if update.max_parallel < 0:
        report.error("Update.MaxParallel", f"Max parallel can not be less than zero: {update.max_parallel} < 0")
    if update.stagger <= 0:
        report.error("Update.Stagger", f"Stagger must be greater than zero: {say_duration(update.stagger)}")


def _check_groups(job: Job, report: Report, settings: JobSettings) -> None:
    if not job.groups:
        report.error("TaskGroups", "Missing job task groups")
    first_of_name: dict[str, int] = {}
    total = 0
    for position, group in enumerate(job.groups):
        path = f"TaskGroups[{position}]"
        _check_group_name(group, position, first_of_name, report)
        if job.type == JobType.SYSTEM and group.count > 1:
            report.error(
                f"{path}.Count",
                f"Job task group {group.name} has count {group.count}. Count cannot exceed 1 with system scheduler",
            )
        total += max(group.count, 0)
        inner = report.section(f"Task group {group.name} validation failed")
        check_group(group, path, inner, job_type=job.type, settings=settings)
    if 0 < settings.max_count < total:
        report.error(
            "TaskGroups", f"total count was greater than configured job_max_count: {total} > {settings.max_count}"
        )
    _check_auto_promote(job, report)


def _check_group_name(group: TaskGroup, position: int, first_of_name: dict[str, int], report: Report) -> None:
    path = f"TaskGroups[{position}].Name"
    if not group.name:
        report.error(path, f"Job task group {position + 1} missing name")
    elif (first := first_of_name.setdefault(group.name, position)) != position:
        report.error(path, f"Job task group {position + 1} redefines '{group.name}' from group {first + 1}")
    if "\x00" in group.name:
        report.error(path, "Task group name contains a null character")


def _check_auto_promote(job: Job, report: Report) -> None:
    promotes = [group.update is not None and group.update.auto_promote for group in job.groups]
    if any(promotes) and not all(promotes):
        position = promotes.index(False)
        report.warn(
            f"TaskGroups[{position}].Update.AutoPromote",
            "auto_promote must be true for all groups to enable automatic promotion",
        )
