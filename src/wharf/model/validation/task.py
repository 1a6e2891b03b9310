"""Rules of one task (jobs.md 2.3)."""

import re
from typing import Final

import msgspec

from wharf.model.durations import say_duration
from wharf.model.group import TaskGroup
from wharf.model.task import Action, CSIPluginConfig, LifecycleHook, Task
from wharf.model.validation.findings import Report, one_of
from wharf.model.validation.identity import check_identities, check_secrets, check_vault
from wharf.model.validation.placement import check_affinities, check_constraints
from wharf.model.validation.policies import check_restart
from wharf.model.validation.resources import check_resources
from wharf.model.validation.service import ServicePlace, check_service
from wharf.model.validation.template import check_artifacts, check_templates, escapes
from wharf.model.validation.volume import check_mounts

HOOKS: Final = tuple(str(word) for word in LifecycleHook)
PLUGIN_TYPES: Final = ("node", "controller", "monolith")
# The folder that the tasks of an allocation share has this name.
RESERVED_NAMES: Final = frozenset({"alloc"})
_ACTION_NAME = re.compile(r"[^\s\x00]{1,128}\Z")


class TaskPlace(msgspec.Struct, frozen=True):
    """What the rules of a task need to know of its group and job."""

    group: TaskGroup
    job_type: str
    services: ServicePlace
    memory_oversubscription: bool


def check_task(task: Task, place: TaskPlace, path: str, report: Report) -> None:
    """One task, its name apart (that belongs to its group)."""
    if not task.driver:
        report.error(f"{path}.Driver", "Missing task driver")
    if task.kill_timeout < 0:
        report.error(f"{path}.KillTimeout", "KillTimeout must be a positive value")
    elif place.job_type == "service":
        _check_kill_timeout(task, place.group, path, report)
    if task.shutdown_delay < 0:
        report.error(f"{path}.ShutdownDelay", "ShutdownDelay must be a positive value")
    check_resources(task.resources, f"{path}.Resources", report, memory_oversubscription=place.memory_oversubscription)
    check_constraints(task.constraints, path, report, allow_distinct=False)
    check_affinities(task.affinities, path, report, job_type=place.job_type)
    if task.restart_policy != place.group.restart_policy:
        # What a task only inherits is told where it was said.
        check_restart(task.restart_policy, f"{path}.RestartPolicy", report)
    _check_logs(task, place.group, path, report)
    _check_lifecycle(task, path, report)
    _check_services(task, place, path, report)
    check_templates(task.templates, path, report)
    check_artifacts(task.artifacts, path, report)
    _check_payload(task, path, report)
    check_mounts(task.volume_mounts, place.group.volumes or (), path, report)
    check_vault(task.vault, path, report)
    check_identities(task.identity, task.identities, path, report)
    check_secrets(task.secrets, path, report)
    _check_actions(task.actions, path, report)
    _check_plugin(task.csi_plugin_config, f"{path}.CSIPluginConfig", report)
    if task.scaling_policies:
        report.error(f"{path}.ScalingPolicies", "Scaling of a task's resources is not supported", "scale the group")
    if task.schedule:
        report.warn(f"{path}.Schedule", "Schedules of tasks are not supported; the block has no effect")


def _check_kill_timeout(task: Task, group: TaskGroup, path: str, report: Report) -> None:
    deadline = group.update.progress_deadline if group.update is not None else 0
    if 0 < deadline < task.kill_timeout:
        report.error(
            f"{path}.KillTimeout",
            f"KillTimeout ({say_duration(task.kill_timeout)}) longer than the group's ProgressDeadline "
            f"({say_duration(deadline)})",
        )


def _check_logs(task: Task, group: TaskGroup, path: str, report: Report) -> None:
    logs, where = task.log_config, f"{path}.LogConfig"
    if logs.max_files < 1:
        report.error(f"{where}.MaxFiles", f"minimum number of files is 1; got {logs.max_files}")
    if logs.max_file_size_mb < 1:
        report.error(f"{where}.MaxFileSizeMB", f"minimum file size is 1MB; got {logs.max_file_size_mb}")
    usage, disk = logs.max_files * logs.max_file_size_mb, group.ephemeral_disk.size_mb
    if logs.max_files >= 1 and logs.max_file_size_mb >= 1 and usage >= disk:
        report.error(
            where,
            f"log storage ({usage} MB) must be less than requested disk capacity ({disk} MB)",
            "keep fewer logs, or raise EphemeralDisk.SizeMB",
        )


def _check_lifecycle(task: Task, path: str, report: Report) -> None:
    if task.lifecycle is None or task.lifecycle.hook in HOOKS:
        return
    where = f"{path}.Lifecycle.Hook"
    if not task.lifecycle.hook:
        report.error(where, "no lifecycle hook provided", one_of(HOOKS))
    else:
        report.error(where, f'invalid hook: "{task.lifecycle.hook}"', one_of(HOOKS))


def _check_services(task: Task, place: TaskPlace, path: str, report: Report) -> None:
    services = task.services
    if not services:
        return
    # Task networks are deprecated, yet their ports may be named.
    legacy = frozenset(
        port.label
        for network in task.resources.networks or ()
        for port in (*(network.reserved_ports or ()), *(network.dynamic_ports or ()))
    )
    stands = ServicePlace(task.name, place.services.tasks_of_group, frozenset(place.services.port_labels) | legacy)
    for position, service in enumerate(services):
        inner = report.section(f'Service "{service.name}" validation failed')
        check_service(service, stands, f"{path}.Services[{position}]", inner)
    if not task.shutdown_delay and not place.group.shutdown_delay:
        report.warn(
            f"{path}.ShutdownDelay",
            f'task "{task.name}" announces services but has no shutdown delay',
            "set one, so that callers can turn away before it stops",
        )


def _check_payload(task: Task, path: str, report: Report) -> None:
    if task.dispatch_payload is None:
        return
    file, where = task.dispatch_payload.file, f"{path}.DispatchPayload.File"
    if not file:
        report.error(where, "Dispatch Payload destination must be specified")
    elif escapes(file):
        report.error(where, "Dispatch Payload destination escapes the task's local directory")


def _check_actions(actions: tuple[Action, ...] | None, path: str, report: Report) -> None:
    names: set[str] = set()
    for position, action in enumerate(actions or ()):
        where = f"{path}.Actions[{position}]"
        if not _ACTION_NAME.match(action.name):
            report.error(
                f"{where}.Name", f'invalid action name "{action.name}"', "use 1 to 128 characters without spaces"
            )
        elif action.name in names:
            report.error(f"{where}.Name", f"Action name {action.name} defined twice")
        names.add(action.name)
        if not action.command:
            report.error(f"{where}.Command", "Missing action command")


def _check_plugin(plugin: CSIPluginConfig | None, path: str, report: Report) -> None:
    if plugin is None:
        return
    if not plugin.id:
        report.error(f"{path}.ID", "CSIPluginConfig must have a non-empty PluginID")
    if plugin.type not in PLUGIN_TYPES:
        report.error(
            f"{path}.Type", f'CSIPluginConfig PluginType must be known; got "{plugin.type}"', one_of(PLUGIN_TYPES)
        )
    if plugin.health_timeout < 0:
        report.error(f"{path}.HealthTimeout", "CSIPluginConfig HealthTimeout must not be negative")
