"""The `exec` driver: runs a host program in a sandbox (`wharf.node.sandbox`), started by the supervisor.

`ExecConfig` describes its options. The program sees its task folder as `/`, read-only those host folders that the operator
lists, and only its own processes. It runs as `nobody` unless the task names a user, and cannot gain privileges.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from wharf.contract.model.drivers.options import convert_options
from wharf.contract.model.drivers.programs import ExecConfig
from wharf.contract.model.jobs.implied_constraints import EXEC_HOST_IPC_ATTRIBUTE, EXEC_HOST_PID_ATTRIBUTE
from wharf.node.drivers import command_process
from wharf.node.drivers.port import CannotStart, Command, CommandOrder, Health, TaskOrder, View
from wharf.node.drivers.raw_exec import parse_program_config
from wharf.node.drivers.supervised import SupervisedDriver, build_log_settings
from wharf.node.drivers.task_terminal import open_task_terminal
from wharf.node.processes import list_cgroups, read_environment
from wharf.node.sandbox import (
    BindMount,
    LaunchCommand,
    PrivilegeError,
    ProcessPrivileges,
    RootFilesystem,
    RootFilesystemError,
    SandboxSpec,
    build_entry_command,
    build_launch_command,
    read_process_privileges,
    resolve_privileges,
)
from wharf.node.sandbox.launcher import (
    DEFAULT_PATH,
    LAUNCH_ENVIRONMENT,
    REQUIRED_PROGRAMS,
    REQUIRED_SANDBOX_PROGRAMS,
    SHELL,
)
from wharf.node.settings import ExecSettings
from wharf.node.subprocesses import run_program
from wharf.node.supervisor.client import SupervisorClient
from wharf.node.supervisor.messages import RunLimits, RunRequest
from wharf.node.supervisor.run import PID_NAMESPACE_COMMAND

CONFIG_KEYS: Final = ExecConfig.__struct_fields__
PRIVATE_MODE: Final = "private"
HOST_MODE: Final = "host"
NAMESPACE_MODES: Final = (PRIVATE_MODE, HOST_MODE)
DEFAULT_HOME: Final = "/local"
"""The home folder of a user whose own one is not in the sandbox, such as that of `nobody`. Each task can write there."""
USER_VARIABLES: Final = ("HOME", "USER", "LOGNAME", "MAIL", "SHELL", "PWD", "OLDPWD")
"""Variables that describe the agent's user. They are replaced, because the task runs as another user."""
TRIAL_TIMEOUT_S: Final = 20.0
"""Seconds that the sandbox trial may take before the driver is reported as unhealthy."""


class ProgramConfig(NamedTuple):
    """The validated `config` of a task with the exec driver."""

    command: str
    arguments: tuple[str, ...]
    work_folder: str  # an absolute path in the sandbox
    has_own_pids: bool  # it sees only its own processes
    has_own_ipc: bool  # it has an IPC namespace of its own
    privileges: ProcessPrivileges


class ExecDriver(SupervisedDriver):
    """The driver that runs host programs in a sandbox."""

    name = "exec"
    view = View.WALLED

    def __init__(
        self, supervisor: SupervisorClient, settings: ExecSettings, folders: Mapping[str, str], state_folder: Path
    ) -> None:
        """Create the driver. `folders` are the host folders that tasks see, with their paths in the sandbox.

        `state_folder` is the node's folder in which the trial of the sandbox creates its files.
        """
        super().__init__(supervisor)
        self._settings = settings
        self._host_folders = folders
        self._state_folder = state_folder
        self._is_trial_passed = False

    async def probe(self) -> Health:
        """Return whether this machine can run a program in a sandbox, and which limits it can enforce.

        A program is run as a trial until it has succeeded once.
        """
        if os.geteuid() != 0:
            return Health(is_healthy=False, why="the sandbox requires a node that runs as root", is_there=False)
        programs = (*REQUIRED_PROGRAMS, sys.executable)
        missing = [path for path in programs if not os.access(path, os.X_OK)]
        if missing:
            return Health(is_healthy=False, why=f"the machine lacks {', '.join(missing)}", is_there=False)
        if not self._is_trial_passed:
            # Only a trial shows whether this machine permits namespaces and mounts.
            if why := await self._find_trial_error():
                return Health(is_healthy=False, why=why)
            self._is_trial_passed = True
        attributes = {"driver.exec.bounds": ",".join(self._supervisor.enforced_limits) or "none"}
        for attribute, default in (
            (EXEC_HOST_PID_ATTRIBUTE, self._settings.default_pid_mode),
            (EXEC_HOST_IPC_ATTRIBUTE, self._settings.default_ipc_mode),
        ):
            attributes[attribute] = "true" if self._may_share(default) else "false"
        return Health(is_healthy=True, attributes=attributes)

    async def start(self, order: TaskOrder) -> None:
        """Send the start of the program in a sandbox to the task supervisor; does not wait for it.

        Raises CannotStart.
        """
        config = self._parse_config(convert_options(self.name, order.config), order.user)
        try:
            launch = self._build_launch_command(order, config)
        except RootFilesystemError as error:
            raise CannotStart(str(error)) from error
        request = RunRequest(
            order.run,
            launch.command,
            LAUNCH_ENVIRONMENT,
            work_folder="/",
            log=build_log_settings(order),
            limits=RunLimits(
                memory_mb=order.given.memory_limit_mb,
                cpu_shares=order.given.cpu_mhz,
                processes=self._settings.pids_limit,
                cores=order.given.cores,
            ),
            network=order.network.namespace if order.network is not None else "",
            is_session_leader=True,
            has_sandbox=True,
            has_own_pids=config.has_own_pids,
            input_texts=launch.inputs,
        )
        self._supervisor.start_run(request)

    def _build_launch_command(self, order: TaskOrder, config: ProgramConfig) -> LaunchCommand:
        """Return the command that creates the task's sandbox and runs its program. Raises RootFilesystemError."""
        network = order.network
        root = RootFilesystem(
            order.task_folder,
            order.shared_folder,
            [
                *self._list_host_folders(),
                *(BindMount(volume.path, volume.target, volume.is_read_only) for volume in order.given.volumes),
            ],
            files=[BindMount(source, target) for source, target in network.files] if network is not None else [],
            has_own_ipc=config.has_own_ipc,
        )
        home = config.privileges.home if root.may_exist(config.privileges.home) else DEFAULT_HOME
        environment = set_user_variables(order.environment, config.privileges, home)
        program = root.find_program(config.command, config.work_folder, environment["PATH"])
        spec = SandboxSpec(
            environment,
            config.privileges,
            config.work_folder,
            hostname=network.hostname if network is not None else "",
            has_own_ipc=config.has_own_ipc,
            devices=order.given.devices,
        )
        return build_launch_command(root, spec, (program, *config.arguments))

    async def run_beside(self, order: CommandOrder) -> Command:
        """Start a command in the namespaces of the running task, with the task's privileges. Raises CannotStart."""
        pid = self._supervisor.find_pid(order.run)
        if pid is None:
            raise CannotStart("the task is not running")
        try:
            privileges = read_process_privileges(pid)
        except OSError as error:
            raise CannotStart("the task is not running") from error
        environment = {
            **set_user_variables(order.environment, privileges, _find_home(pid) or DEFAULT_HOME),
            command_process.COMMAND_MARK_VARIABLE: order.name,
        }
        sandbox_spec = SandboxSpec(environment, privileges, "/")
        session_command = command_process.TERMINAL_SESSION_COMMAND if order.is_tty else ()
        entry = build_entry_command(pid, sandbox_spec, list_cgroups(pid, order.run), session_command=session_command)
        launch_environment = {**LAUNCH_ENVIRONMENT, command_process.COMMAND_MARK_VARIABLE: order.name}
        namespace_entry = command_process.NamespaceEntry(
            entry.command_prefix,
            launch_environment,
            input_texts=(entry.input_text,),
            is_taking_terminal=order.is_tty,
            open_terminal=partial(open_task_terminal, f"/proc/{pid}/root"),
        )
        return await command_process.start_command_in_namespace(
            order, namespace_entry, proc_folder=Path(f"/proc/{pid}")
        )

    def _parse_config(self, config: Mapping[str, object], user: str) -> ProgramConfig:
        """Return the validated config of the task. Raises CannotStart.

        `user` is the user that the task names; empty: the default user.
        """
        command, arguments, work_folder = parse_program_config(config, CONFIG_KEYS, self.name)
        try:
            privileges = resolve_privileges(
                user,
                add=_parse_names(config, "cap_add"),
                drop=_parse_names(config, "cap_drop"),
                allowed=self._settings.allow_caps,
            )
        except PrivilegeError as error:
            raise CannotStart(f"config: {error}", is_final=True) from error
        pids = self._parse_namespace_mode(config, "pid_mode", self._settings.default_pid_mode)
        ipc = self._parse_namespace_mode(config, "ipc_mode", self._settings.default_ipc_mode)
        return ProgramConfig(
            command, tuple(arguments), work_folder or "/", pids == PRIVATE_MODE, ipc == PRIVATE_MODE, privileges
        )

    def _parse_namespace_mode(self, config: Mapping[str, object], name: str, default: str) -> str:
        """Return `private` or `host` under the key `name` of the config, or `default` if it is not set.

        Raises CannotStart for another value, and for a mode that the operator does not allow.
        """
        mode = config.get(name) or default
        if mode not in NAMESPACE_MODES:
            raise CannotStart(f'config: `{name}` must be "private" or "host"', is_final=True)
        if mode == HOST_MODE and not self._may_share(default):
            raise CannotStart(
                f'config: `{name}` = "host" is not allowed on this node; leave it out, or ask the operator to set '
                "client.drivers.exec.allow_host_namespaces",
                is_final=True,
            )
        return str(mode)

    def _may_share(self, default: str) -> bool:
        """Return whether tasks may share a namespace with the host; `default` is its mode in the settings."""
        return self._settings.allow_host_namespaces or default == HOST_MODE

    def _list_host_folders(self) -> list[BindMount]:
        """Return the bind mounts of the host folders that all tasks see."""
        return [BindMount(source, target) for source, target in self._host_folders.items()]

    async def _find_trial_error(self) -> str:
        """Run a program in a sandbox as a trial. Return why it failed; empty if it succeeded."""
        with tempfile.TemporaryDirectory(prefix="trial-", dir=self._state_folder) as trial_folder:
            try:
                root = self._create_trial_root(Path(trial_folder))
                privileges = resolve_privileges("", add=(), drop=(), allowed=())
                return await _run_trial(root, SandboxSpec({"PATH": DEFAULT_PATH}, privileges, "/"))
            except (RootFilesystemError, PrivilegeError, OSError) as error:
                return str(error)

    def _create_trial_root(self, trial_folder: Path) -> RootFilesystem:
        """Create the folders and the root file system for the trial of the sandbox.

        Raises RootFilesystemError if programs that the sandbox requires are missing.
        """
        for name in ("task", "alloc"):
            (trial_folder / name).mkdir()
        root = RootFilesystem(trial_folder / "task", trial_folder / "alloc", self._list_host_folders())
        if missing := [path for path in REQUIRED_SANDBOX_PROGRAMS if not os.path.lexists(root.resolve_host_path(path))]:
            raise RootFilesystemError(f"the folders of client.chroot_env lack {', '.join(missing)}")
        return root


async def _run_trial(root: RootFilesystem, sandbox_spec: SandboxSpec) -> str:
    """Run `true` in the sandbox and return its error text; empty on success. Raises RootFilesystemError."""
    launch = build_launch_command(root, sandbox_spec, ("/usr/bin/env", "true"))
    try:
        result = await run_program(
            [*PID_NAMESPACE_COMMAND, SHELL, "-c", '( exec "$@" ) & wait "$!"', "trial", *launch.command],
            environment=LAUNCH_ENVIRONMENT,
            input_texts=launch.inputs,
            timeout_s=TRIAL_TIMEOUT_S,
        )
    except TimeoutError:
        return f"the sandbox trial did not end within {TRIAL_TIMEOUT_S:g} s"
    if not result.exit_code:
        return ""
    return (result.errors + result.output).decode(errors="replace").strip() or "the sandbox trial failed"


def _find_home(pid: int) -> str:
    """Return the variable HOME with which a process was started; empty if it had none."""
    prefix = b"HOME="
    return next((os.fsdecode(each[len(prefix) :]) for each in read_environment(pid) if each.startswith(prefix)), "")


def set_user_variables(environment: Mapping[str, str], privileges: ProcessPrivileges, home: str) -> dict[str, str]:
    """Return `environment` with variables such as HOME and USER for the task's user. `home` is the home folder.

    Values that equal the agent's own environment are replaced; values set by the job stay.
    """
    variables = {
        name: value
        for name, value in environment.items()
        if name not in USER_VARIABLES or value != os.environ.get(name)
    }
    variables.setdefault("PATH", DEFAULT_PATH)
    for name, value in (("HOME", home), ("USER", privileges.name), ("LOGNAME", privileges.name)):
        variables.setdefault(name, value)
    return variables


def _parse_names(config: Mapping[str, object], key: str) -> list[str]:
    """Return the list of names under the key `key` of the config; empty if it is not set. Raises CannotStart."""
    names = config.get(key) or ()
    if not isinstance(names, list | tuple) or not all(isinstance(each, str) for each in names):
        raise CannotStart(f"config: `{key}` must be a list of names", is_final=True)
    return list(names)
