"""Rules for task groups (jobs.md 2.2)."""

from typing import Final

from wharf.contract.model.body_limits import MAX_TASK_NAME_BYTES
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.services import Service
from wharf.contract.model.jobs.validation.arrays import check_array
from wharf.contract.model.jobs.validation.constraints import check_affinities, check_constraints, check_spreads
from wharf.contract.model.jobs.validation.findings import ValidationReport
from wharf.contract.model.jobs.validation.group_policies import check_policies
from wharf.contract.model.jobs.validation.networks import check_networks, list_port_labels
from wharf.contract.model.jobs.validation.services import ServiceContext, check_service
from wharf.contract.model.jobs.validation.steps import check_step
from wharf.contract.model.jobs.validation.tasks import RESERVED_TASK_NAMES, TaskValidationContext, check_task
from wharf.contract.model.jobs.validation.volumes import check_volumes

BATCH_JOB_TYPES: Final = ("batch", "sysbatch")


def check_group(group: TaskGroup, path: str, report: ValidationReport, *, job_type: str, settings: JobSettings) -> None:
    """Add each problem of a group and its tasks to the report. The name of the group is not checked here."""
    if group.count < 0:
        report.add_error(f"{path}.Count", "Task group count can't be negative")
    if not group.tasks:
        report.add_error(f"{path}.Tasks", "Missing tasks for task group", "add a task")
    check_constraints(group.constraints, path, report)
    check_affinities(group.affinities, path, report, job_type=job_type)
    check_spreads(group.spreads, path, report, job_type=job_type)
    check_array(group, path, report, job_type=job_type)
    check_step(group, path, report, job_type=job_type)
    check_policies(group, path, report, job_type=job_type)
    check_networks(group.networks, f"{path}.Networks", report)
    if group.consul is not None:
        report.add_warning(f"{path}.Consul", "Consul is not supported; the block has no effect")
    check_volumes(group, path, report, job_type=job_type)
    _check_times(group, path, report, job_type)
    services = _build_service_context(group)
    _check_services(group, services, path, report)
    context = TaskValidationContext(group, job_type, services, settings.memory_oversubscription)
    _check_tasks(group, context, path, report)


def _check_times(group: TaskGroup, path: str, report: ValidationReport, job_type: str) -> None:
    """Add each problem of a group's shutdown delay and maximum run duration to the report."""
    if group.shutdown_delay is not None and group.shutdown_delay < 0:
        report.add_error(f"{path}.ShutdownDelay", "ShutdownDelay must be a positive value")
    if group.max_run_duration is None:
        return
    if group.max_run_duration <= 0:
        report.add_error(f"{path}.MaxRunDuration", "MaxRunDuration must be greater than zero")
    if job_type not in BATCH_JOB_TYPES:
        report.add_error(f"{path}.MaxRunDuration", "MaxRunDuration can only be used with batch and sysbatch jobs")


def _build_service_context(group: TaskGroup) -> ServiceContext:
    """Return the facts about a group that its services are checked against: the names of its tasks and port labels."""
    names = frozenset(task.name for task in group.tasks or ())
    return ServiceContext(None, names, list_port_labels(group.networks))


def _check_services(group: TaskGroup, context: ServiceContext, path: str, report: ValidationReport) -> None:
    """Add each problem of the services of a group to the report."""
    for position, service in enumerate(group.services or ()):
        section = report.add_section(f'Service "{service.name}" validation failed')
        check_service(service, context, f"{path}.Services[{position}]", section)
    _check_services_of_all_tasks(group, path, report)


def _check_services_of_all_tasks(group: TaskGroup, path: str, report: ValidationReport) -> None:
    """Add an error to the report for each service that occurs twice in a group and its tasks."""
    services: list[tuple[str, str, Service]] = [
        ("group", f"{path}.Services[{position}]", service) for position, service in enumerate(group.services or ())
    ]
    for number, task in enumerate(group.tasks or ()):
        services.extend(
            (task.name, f"{path}.Tasks[{number}].Services[{position}]", service)
            for position, service in enumerate(task.services or ())
        )
    seen: set[tuple[str, str, str]] = set()
    for task_or_group, field_path, service in services:
        key = (service.name, task_or_group, service.port_label)
        if key in seen:
            report.add_error(
                f"{field_path}.Name", f'Services are not unique: "{service.name}" in {task_or_group} on port "{key[2]}"'
            )
        seen.add(key)


def _check_tasks(group: TaskGroup, context: TaskValidationContext, path: str, report: ValidationReport) -> None:
    """Add each problem of a group's tasks to the report.

    One of them must be a main task, and at most one the leader.
    """
    first_of_name: dict[str, int] = {}
    leaders: list[int] = []
    for position, task in enumerate(group.tasks or ()):
        field_path = f"{path}.Tasks[{position}]"
        if not task.name:
            report.add_error(f"{field_path}.Name", f"Task {position + 1} missing name")
        elif (first := first_of_name.setdefault(task.name, position)) != position:
            report.add_error(f"{field_path}.Name", f"Task {position + 1} redefines '{task.name}' from task {first + 1}")
        if task.leader:
            leaders.append(position)
        section = report.add_section(f"Task {task.name} validation failed")
        _check_task_name(task.name, field_path, section)
        check_task(task, context, field_path, section)
    if len(leaders) > 1:
        report.add_error(f"{path}.Tasks[{leaders[1]}].Leader", "Only one task may be marked as leader")
    if group.tasks and all(task.lifecycle is not None for task in group.tasks):
        report.add_error(f"{path}.Tasks", "Task group has no main task", "remove Lifecycle from at least one task")


def _check_task_name(name: str, path: str, report: ValidationReport) -> None:
    """Add an error to the report if the name of a task is reserved or contains a forbidden character."""
    if name in RESERVED_TASK_NAMES:
        report.add_error(f"{path}.Name", f'Task name "{name}" is reserved')
    if "/" in name or "\\" in name:
        report.add_error(f"{path}.Name", "Task name cannot include slashes")
    if "\x00" in name:
        report.add_error(f"{path}.Name", "Task name contains a null character")
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_TASK_NAME_BYTES:
        report.add_error(
            f"{path}.Name",
            f"Task name is {size} bytes long; a task name has at most {MAX_TASK_NAME_BYTES} bytes",
            "shorten it: the names of the task's log files contain it, such as NAME.stdout.0",
        )
