"""Rules of a task group (jobs.md 2.2)."""

from typing import Final

from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.services import Service
from wharf.contract.model.jobs.validation.constraints import check_affinities, check_constraints, check_spreads
from wharf.contract.model.jobs.validation.findings import ValidationReport
from wharf.contract.model.jobs.validation.group_policies import check_policies
from wharf.contract.model.jobs.validation.networks import check_networks, list_port_labels
from wharf.contract.model.jobs.validation.services import ServiceContext, check_service
from wharf.contract.model.jobs.validation.tasks import RESERVED_TASK_NAMES, TaskValidationContext, check_task
from wharf.contract.model.jobs.validation.volumes import check_volumes

BATCH_JOB_TYPES: Final = ("batch", "sysbatch")


def check_group(group: TaskGroup, path: str, report: ValidationReport, *, job_type: str, settings: JobSettings) -> None:
    """One group with all its tasks; its name belongs to the job."""
    if group.count < 0:
        report.add_error(f"{path}.Count", "Task group count can't be negative")
    if not group.tasks:
        report.add_error(f"{path}.Tasks", "Missing tasks for task group")
    check_constraints(group.constraints, path, report)
    check_affinities(group.affinities, path, report, job_type=job_type)
    check_spreads(group.spreads, path, report, job_type=job_type)
    check_policies(group, path, report, job_type=job_type)
    check_networks(group.networks, f"{path}.Networks", report)
    check_volumes(group, path, report, job_type=job_type)
    _check_times(group, path, report, job_type)
    _check_services(group, path, report)
    _check_tasks(group, path, report, job_type, settings)


def _check_times(group: TaskGroup, path: str, report: ValidationReport, job_type: str) -> None:
    if group.shutdown_delay is not None and group.shutdown_delay < 0:
        report.add_error(f"{path}.ShutdownDelay", "ShutdownDelay must be a positive value")
    if group.max_run_duration is None:
        return
    if group.max_run_duration <= 0:
        report.add_error(f"{path}.MaxRunDuration", "MaxRunDuration must be greater than zero")
    if job_type not in BATCH_JOB_TYPES:
        report.add_error(f"{path}.MaxRunDuration", "MaxRunDuration can only be used with batch and sysbatch jobs")


def _place_of_services(group: TaskGroup) -> ServiceContext:
    names = frozenset(task.name for task in group.tasks or ())
    return ServiceContext(None, names, list_port_labels(group.networks))


def _check_services(group: TaskGroup, path: str, report: ValidationReport) -> None:
    place = _place_of_services(group)
    for position, service in enumerate(group.services or ()):
        inner = report.add_section(f'Service "{service.name}" validation failed')
        check_service(service, place, f"{path}.Services[{position}]", inner)
    if group.services and not group.shutdown_delay:
        report.add_warning(
            f"{path}.ShutdownDelay",
            f'group "{group.name}" announces services but has no shutdown delay',
            "set one, so that callers can turn away before it stops",
        )
    _check_services_together(group, path, report)


def _check_services_together(group: TaskGroup, path: str, report: ValidationReport) -> None:
    """All services of a group use one provider, and none is there twice."""
    everywhere: list[tuple[str, str, Service]] = [
        ("group", f"{path}.Services[{position}]", service) for position, service in enumerate(group.services or ())
    ]
    for number, task in enumerate(group.tasks or ()):
        everywhere.extend(
            (task.name, f"{path}.Tasks[{number}].Services[{position}]", service)
            for position, service in enumerate(task.services or ())
        )
    seen: set[tuple[str, str, str]] = set()
    providers: set[str] = set()
    for owner, where, service in everywhere:
        key = (service.name, owner, service.port_label)
        if key in seen:
            report.add_error(
                f"{where}.Name", f'Services are not unique: "{service.name}" in {owner} on port "{key[2]}"'
            )
        seen.add(key)
        # Both names of the native provider mean the same one.
        providers.add("native" if service.is_native else service.provider)
        if len(providers) == 2:
            providers.add("told")
            report.add_error(
                f"{where}.Provider", "Multiple service providers used: task group services must use the same provider"
            )


def _check_tasks(group: TaskGroup, path: str, report: ValidationReport, job_type: str, settings: JobSettings) -> None:
    place = TaskValidationContext(group, job_type, _place_of_services(group), settings.memory_oversubscription)
    first_of_name: dict[str, int] = {}
    leaders: list[int] = []
    for position, task in enumerate(group.tasks or ()):
        where = f"{path}.Tasks[{position}]"
        if not task.name:
            report.add_error(f"{where}.Name", f"Task {position + 1} missing name")
        elif (first := first_of_name.setdefault(task.name, position)) != position:
            report.add_error(f"{where}.Name", f"Task {position + 1} redefines '{task.name}' from task {first + 1}")
        if task.leader:
            leaders.append(position)
        inner = report.add_section(f"Task {task.name} validation failed")
        _check_name(task.name, where, inner)
        check_task(task, place, where, inner)
    if len(leaders) > 1:
        report.add_error(f"{path}.Tasks[{leaders[1]}].Leader", "Only one task may be marked as leader")
    if group.tasks and all(task.lifecycle is not None for task in group.tasks):
        report.add_error(f"{path}.Tasks", "Task group has no main task", "leave out Lifecycle in at least one task")


def _check_name(name: str, path: str, report: ValidationReport) -> None:
    if name in RESERVED_TASK_NAMES:
        report.add_error(f"{path}.Name", f'Task name "{name}" is reserved')
    if "/" in name or "\\" in name:
        report.add_error(f"{path}.Name", "Task name cannot include slashes")
    if "\x00" in name:
        report.add_error(f"{path}.Name", "Task name contains a null character")
