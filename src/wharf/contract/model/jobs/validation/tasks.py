"""Rules for tasks (jobs.md 2.3)."""

import re
from typing import Final

import msgspec

from wharf.contract.model.decoding import format_path
from wharf.contract.model.drivers.options import find_option_problems
from wharf.contract.model.jobs.groups import LifecycleHook, Task, TaskAction, TaskGroup
from wharf.contract.model.jobs.validation.constraints import check_affinities, check_constraints
from wharf.contract.model.jobs.validation.findings import ValidationReport, suggest_one_of
from wharf.contract.model.jobs.validation.group_policies import check_restart
from wharf.contract.model.jobs.validation.identities import check_identities, check_secrets, check_vault
from wharf.contract.model.jobs.validation.networks import list_port_labels
from wharf.contract.model.jobs.validation.resources import check_resources
from wharf.contract.model.jobs.validation.services import ServiceContext, check_service
from wharf.contract.model.jobs.validation.templates import check_artifacts, check_templates, is_outside_folder
from wharf.contract.model.jobs.validation.volumes import check_mounts
from wharf.contract.model.jobs.volumes import NO_PLUGINS_TEXT
from wharf.contract.model.times import format_duration
from wharf.languages.suggestions import find_nearest_name

LIFECYCLE_HOOKS: Final = tuple(str(word) for word in LifecycleHook)
HOST_VIEW_DRIVERS: Final = frozenset({"raw_exec"})
"""Drivers whose tasks see the folders of the node. For all others, `/` is the folder of the task."""
# The shared folder of an allocation has this name, next to the folders of its tasks.
RESERVED_TASK_NAMES: Final = frozenset({"alloc"})
SHELL_NAME_END: Final = "sh"
"""The end of the name of each usual shell: sh, bash, dash, zsh, ksh, fish."""
_SHELL_VARIABLE: Final = re.compile(r"\$((?:WHARF|NOMAD)_\w+)")
"""A variable of a task as only a shell replaces it; the node replaces `${NAME}`."""
_ACTION_NAME = re.compile(r"[^\s\x00]{1,128}\Z")


class TaskValidationContext(msgspec.Struct, frozen=True):
    """The facts about a group and a job that a task is checked against."""

    group: TaskGroup
    job_type: str
    services: ServiceContext  # Names of tasks and port labels, for services.
    memory_oversubscription: bool  # Whether tasks may use more memory than they reserve.


def check_task(task: Task, context: TaskValidationContext, path: str, report: ValidationReport) -> None:
    """Add each problem of a task to the report. The name of the task is not checked here."""
    if not task.driver:
        report.add_error(f"{path}.Driver", "Missing task driver", "set one, such as docker, exec or raw_exec")
    for problem in find_option_problems(task.driver, task.config or {}):
        if not problem.is_unknown:  # An unknown option is a warning about the submitted job.
            option_path = format_path(["Config", *problem.path])
            report.add_error(f"{path}.{option_path}", problem.message, problem.fix)
    if task.kill_timeout < 0:
        report.add_error(f"{path}.KillTimeout", "KillTimeout must be a positive value")
    elif context.job_type == "service":
        _check_kill_timeout(task, context.group, path, report)
    if task.shutdown_delay < 0:
        report.add_error(f"{path}.ShutdownDelay", "ShutdownDelay must be a positive value")
    check_resources(
        task.resources, f"{path}.Resources", report, memory_oversubscription=context.memory_oversubscription
    )
    check_constraints(task.constraints, path, report, allow_distinct=False)
    check_affinities(task.affinities, path, report, job_type=context.job_type)
    if task.restart_policy != context.group.restart_policy:
        # A problem in an inherited policy is reported once, for the group.
        check_restart(task.restart_policy, f"{path}.RestartPolicy", report)
    _warn_of_shell_variable(task, path, report)
    _check_logs(task, context.group, path, report)
    _check_lifecycle(task, path, report)
    _check_services(task, context, path, report)
    check_templates(task.templates, path, report)
    _check_destinations(task, path, report)
    _check_ports(task, context, path, report)
    check_artifacts(task.artifacts, path, report)
    _check_payload(task, path, report)
    check_mounts(task.volume_mounts, context.group.volumes or (), path, report)
    check_vault(task.vault, path, report)
    check_identities(task.identity, task.identities, path, report)
    check_secrets(task.secrets, path, report)
    _check_actions(task.actions, path, report)
    if task.csi_plugin_config is not None:
        report.add_error(
            f"{path}.CSIPluginConfig", NO_PLUGINS_TEXT, "delete the block, and use host volumes, which need no plug-in"
        )
    if task.scaling_policies:
        report.add_error(f"{path}.ScalingPolicies", "Scaling of a task's resources is not supported", "scale the group")
    if task.consul is not None:
        report.add_warning(f"{path}.Consul", "Consul is not supported; the block has no effect")
    if task.secrets:
        report.add_warning(
            f"{path}.Secrets",
            "no provider of secrets exists; the block has no effect",
            "store the secret with `wharf var put`, and read it in a template with `variable`",
        )
    if task.schedule:
        report.add_warning(f"{path}.Schedule", "Schedules of tasks are not supported; the block has no effect")


def _warn_of_shell_variable(task: Task, path: str, report: ValidationReport) -> None:
    """Add a warning for the first argument with a variable that a shell would replace, if no shell runs it."""
    config = task.config or {}
    command, arguments = config.get("command"), config.get("args")
    if not isinstance(command, str) or not command:
        return  # The program is that of the image, which may be a shell.
    words: list[tuple[str, object]] = [(f"{path}.Config.command", command)]
    if isinstance(arguments, list | tuple):
        words += [(f"{path}.Config.args[{position}]", word) for position, word in enumerate(arguments)]
    for word_path, word in words:
        if not isinstance(word, str):
            return
        if found := _SHELL_VARIABLE.search(word):
            report.add_warning(
                word_path,
                f'"{found[0][:80]}" reaches the program as this text, because no shell runs it',
                f"write ${{{found[1][:80]}}}, which the node replaces",
            )
            return
        if word.endswith(SHELL_NAME_END):
            return


def _check_kill_timeout(task: Task, group: TaskGroup, path: str, report: ValidationReport) -> None:
    """Add an error to the report if a task's kill timeout is longer than the progress deadline of its group."""
    deadline = group.update.progress_deadline if group.update is not None else 0
    if 0 < deadline < task.kill_timeout:
        report.add_error(
            f"{path}.KillTimeout",
            f"KillTimeout ({format_duration(task.kill_timeout)}) longer than the group's ProgressDeadline "
            f"({format_duration(deadline)})",
        )


def _check_logs(task: Task, group: TaskGroup, path: str, report: ValidationReport) -> None:
    """Add each problem of a task's log limits to the report. The logs must fit on the disk of the group."""
    logs, field_path = task.log_config, f"{path}.LogConfig"
    if logs.max_files < 1:
        report.add_error(f"{field_path}.MaxFiles", f"minimum number of files is 1; got {logs.max_files}")
    if logs.max_file_size_mb < 1:
        report.add_error(f"{field_path}.MaxFileSizeMB", f"minimum file size is 1MB; got {logs.max_file_size_mb}")
    usage, disk = logs.max_files * logs.max_file_size_mb, group.ephemeral_disk.size_mb
    if logs.max_files >= 1 and logs.max_file_size_mb >= 1 and usage >= disk:
        report.add_error(
            field_path,
            f"log storage ({usage} MB) must be less than requested disk capacity ({disk} MB)",
            "retain fewer logs, or increase EphemeralDisk.SizeMB",
        )


def _check_lifecycle(task: Task, path: str, report: ValidationReport) -> None:
    """Add an error to the report if a task's lifecycle block has no hook or an unknown one."""
    if task.lifecycle is None or task.lifecycle.hook in LIFECYCLE_HOOKS:
        return
    field_path = f"{path}.Lifecycle.Hook"
    if not task.lifecycle.hook:
        report.add_error(field_path, "no lifecycle hook provided", suggest_one_of(LIFECYCLE_HOOKS))
    else:
        report.add_error(
            field_path, f'invalid hook: "{task.lifecycle.hook}"', suggest_one_of(LIFECYCLE_HOOKS, task.lifecycle.hook)
        )


def _check_services(task: Task, context: TaskValidationContext, path: str, report: ValidationReport) -> None:
    """Add each problem of the services of a task to the report."""
    services = task.services
    if not services:
        return
    # Networks of tasks are deprecated, but services may still use their ports.
    task_network_labels = frozenset(
        port.label
        for network in task.resources.networks or ()
        for port in (*(network.reserved_ports or ()), *(network.dynamic_ports or ()))
    )
    service_context = ServiceContext(
        task.name, context.services.group_tasks, frozenset(context.services.port_labels) | task_network_labels
    )
    for position, service in enumerate(services):
        section = report.add_section(f'Service "{service.name}" validation failed')
        check_service(service, service_context, f"{path}.Services[{position}]", section)


def _check_destinations(task: Task, path: str, report: ValidationReport) -> None:
    """Add an error for each absolute destination of a template if the task sees the folders of the node, not its own `/`."""
    for position, template in enumerate(task.templates or ()):
        if task.driver in HOST_VIEW_DRIVERS and template.dest_path.startswith("/"):
            report.add_error(
                f"{path}.Templates[{position}].DestPath",
                f'template destination "{template.dest_path}" is outside of the task\'s folder',
                f"use a path in the task's folder, such as local/{template.dest_path.rpartition('/')[2] or 'app.conf'}",
            )


def _check_ports(task: Task, context: TaskValidationContext, path: str, report: ValidationReport) -> None:
    """Add an error for each port of a container that the group does not have. A network of its own needs no such ports."""
    ports = (task.config or {}).get("ports")
    mode = context.group.networks[0].mode if context.group.networks else ""
    if task.driver != "docker" or not isinstance(ports, list) or mode == "bridge" or mode.startswith("cni/"):
        return
    labels = list_port_labels(context.group.networks) | list_port_labels(task.resources.networks)
    for position, label in enumerate(ports):
        if isinstance(label, str) and label not in labels and "${" not in label:
            nearest = find_nearest_name(label, sorted(labels))
            port = label.rpartition(":")[2]
            report.add_error(
                f"{path}.Config.ports[{position}]",
                f'Port label "{label[:80]}" does not exist in the group\'s network',
                f'did you mean "{nearest}"?'
                if nearest
                else f"add a port to the network of the group with to = {port}, and write its label here"
                if port.isdecimal()
                else "add the port to the network of the group, or fix its name",
            )


def _check_payload(task: Task, path: str, report: ValidationReport) -> None:
    """Add an error to the report if the file for the dispatch payload is missing or outside of the task's folder."""
    if task.dispatch_payload is None:
        return
    file, field_path = task.dispatch_payload.file, f"{path}.DispatchPayload.File"
    if not file:
        report.add_error(field_path, "Dispatch Payload destination must be specified")
    elif is_outside_folder(file):
        report.add_error(field_path, "Dispatch Payload destination escapes the task's local directory")


def _check_actions(actions: tuple[TaskAction, ...] | None, path: str, report: ValidationReport) -> None:
    """Add each problem of the names and commands of a task's actions to the report."""
    names: set[str] = set()
    for position, action in enumerate(actions or ()):
        field_path = f"{path}.Actions[{position}]"
        if not _ACTION_NAME.match(action.name):
            report.add_error(
                f"{field_path}.Name", f'invalid action name "{action.name}"', "use 1 to 128 characters without spaces"
            )
        elif action.name in names:
            report.add_error(f"{field_path}.Name", f"Action name {action.name} defined twice")
        names.add(action.name)
        if not action.command:
            report.add_error(f"{field_path}.Command", "Missing action command")
