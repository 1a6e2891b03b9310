"""Rules of periodic and parameterized jobs (jobs.md 2.12)."""

from typing import Final

from wharf.model.cron import CronError, load_zone, parse_cron
from wharf.model.job import Job, JobType, MissedLaunches, Parameterized, PayloadRequirement, Periodic
from wharf.model.validation.findings import Report, one_of

TYPES_WITH_CHILDREN: Final = (JobType.BATCH, JobType.SYSBATCH)
PAYLOADS: Final = tuple(str(word) for word in PayloadRequirement)
MISSED: Final = tuple(str(word) for word in MissedLaunches)


def check_children(job: Job, report: Report) -> None:
    """Whether and when the job makes children."""
    allowed = job.type in TYPES_WITH_CHILDREN
    if job.periodic is not None:
        if not allowed:
            report.error("Periodic", 'Periodic can only be used with "batch" or "sysbatch" scheduler')
        _check_periodic(job.periodic, report)
    if job.parameterized_job is not None:
        if not allowed:
            report.error("ParameterizedJob", 'Parameterized job can only be used with "batch" or "sysbatch" scheduler')
        _check_parameterized(job.parameterized_job, report)


def _check_periodic(periodic: Periodic, report: Report) -> None:
    _check_max_running(periodic.max_running, "Periodic.MaxRunning", report)
    if periodic.missed not in MISSED:
        report.error("Periodic.Missed", f'Unknown rule for missed launches "{periodic.missed}"', one_of(MISSED))
    if not periodic.enabled:
        return
    if periodic.spec and periodic.specs:
        report.error("Periodic.Spec", "Only cron or crons may be used", "keep Specs")
    elif not periodic.spec and not periodic.specs:
        report.error("Periodic.Specs", "Must specify a spec", 'give cron expressions, such as "0 3 * * *"')
    if periodic.spec_type != "cron":
        report.error("Periodic.SpecType", f'Unknown periodic specification type "{periodic.spec_type}"', 'use "cron"')
        return
    if periodic.spec:
        report.warn("Periodic.Spec", "cron is deprecated and may be removed in a future release", "use crons (Specs)")
        _check_spec(periodic.spec, "Periodic.Spec", report)
    for position, spec in enumerate(periodic.specs or ()):
        _check_spec(spec, f"Periodic.Specs[{position}]", report)
    try:
        load_zone(periodic.time_zone)
    except CronError as error:
        report.error("Periodic.TimeZone", f"Invalid time zone: {error}", 'use a name such as "Europe/Berlin"')


def _check_spec(spec: str, path: str, report: Report) -> None:
    try:
        parse_cron(spec)
    except CronError as error:
        report.error(path, f'Invalid cron spec "{spec}": {error}')


def _check_max_running(max_running: int, path: str, report: Report) -> None:
    if max_running < 0:
        report.error(path, f"{max_running} is below 0", "use 0 for any number of children at the same time")


def _check_parameterized(parameterized: Parameterized, report: Report) -> None:
    _check_max_running(parameterized.max_running, "ParameterizedJob.MaxRunning", report)
    if parameterized.payload not in PAYLOADS:
        report.error(
            "ParameterizedJob.Payload", f'Unknown payload requirement: "{parameterized.payload}"', one_of(PAYLOADS)
        )
    both = sorted(set(parameterized.meta_required or ()) & set(parameterized.meta_optional or ()))
    if both:
        report.error(
            "ParameterizedJob.MetaOptional", f"Required and optional meta keys should be disjoint; both hold {both}"
        )
