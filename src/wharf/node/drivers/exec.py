"""The `exec` driver: runs a host program in a sandbox (`wharf.node.sandbox`), started by the supervisor.

Keys: `command` (required), `args`, `work_dir` (absolute path sandbox_spec the sandbox), `pid_mode` and `ipc_mode` (`private`
or `host`), `cap_add`, `cap_drop`. The program sees its task folder as `/`, read-only those host folders that the
operator lists, and only its own processes. It runs as `nobody` unless the task names a user, and cannot gain
privileges.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from wharf.node.drivers import command_process
from wharf.node.drivers.port import CannotStart, Command, CommandOrder, Health, TaskOrder, View
from wharf.node.drivers.raw_exec import parse_program_config
from wharf.node.drivers.supervised import SupervisedDriver, build_log_settings
from wharf.node.sandbox import (
    BindMount,
    PrivilegeError,
    ProcessPrivileges,
    RootFilesystem,
    RootFilesystemError,
    SandboxDevice,
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
from wharf.node.statistics.tasks import list_cgroups
from wharf.node.supervisor.client import SupervisorClient
from wharf.node.supervisor.messages import RunLimits, RunRequest, StartRun
from wharf.node.supervisor.run import PID_NAMESPACE_COMMAND

CONFIG_KEYS: Final = ("command", "args", "work_dir", "pid_mode", "ipc_mode", "cap_add", "cap_drop")
PRIVATE_MODE: Final = "private"
NAMESPACE_MODES: Final = (PRIVATE_MODE, "host")
USER_VARIABLES: Final = ("HOME", "USER", "LOGNAME", "MAIL", "SHELL", "PWD", "OLDPWD")
"""Variables that describe the agent's user. They are replaced, because the task runs as another user."""
TRIAL_TIMEOUT_S: Final = 20.0
"""Seconds that the sandbox trial may take before the driver is reported as unhealthy."""


class ProgramConfig(NamedTuple):
    """A task's `config`, validated."""

    command: str
    arguments: tuple[str, ...]
    work_folder: str
    has_own_pids: bool
    has_own_ipc: bool
    privileges: ProcessPrivileges


class ExecDriver(SupervisedDriver):
    """Runs host programs in a sandbox."""

    name = "exec"
    view = View.WALLED

    def __init__(
        self, supervisor: SupervisorClient, settings: ExecSettings, folders: Mapping[str, str], state_folder: Path
    ) -> None:
        """`folders`: host folders that tasks see, with their paths in the sandbox.

        `state_folder`: where the trial runs.
        """
        super().__init__(supervisor)
        self._settings = settings
        self._folders = folders
        self._state = state_folder
        self._works = False

    async def probe(self) -> Health:
        if os.geteuid() != 0:
            return Health(is_healthy=False, why="the sandbox requires a node that runs as root", is_there=False)
        missing = [path for path in REQUIRED_PROGRAMS if not os.access(path, os.X_OK)]
        if missing:
            return Health(is_healthy=False, why=f"the machine lacks {', '.join(missing)}", is_there=False)
        if not self._works:
            # Only a trial shows whether this machine permits namespaces and mounts.
            if why := await self._find_trial_error():
                return Health(is_healthy=False, why=why)
            self._works = True
        return Health(
            is_healthy=True, attributes={"driver.exec.bounds": ",".join(self._supervisor.enforced_limits) or "none"}
        )

    async def start(self, order: TaskOrder) -> None:
        program_config = self._parse_config(order.config, order.user)
        given = order.given
        volumes = [BindMount(each.path, each.target, each.is_read_only) for each in given.volumes]
        network = order.network
        root = RootFilesystem(
            order.task_folder,
            order.shared_folder,
            [*self._list_host_folders(), *volumes],
            files=[BindMount(source, target) for source, target in network.files] if network is not None else [],
            has_own_ipc=program_config.has_own_ipc,
        )
        environment = set_user_variables(order.environment, program_config.privileges)
        try:
            program = root.find_program(program_config.command, program_config.work_folder, environment["PATH"])
            sandbox_spec = SandboxSpec(
                environment,
                program_config.privileges,
                program_config.work_folder,
                hostname=network.hostname if network is not None else "",
                has_own_ipc=program_config.has_own_ipc,
                devices=tuple(
                    SandboxDevice(each.path, each.target, _convert_device_permissions(each.permissions))
                    for each in given.devices
                ),
            )
            launched = build_launch_command(root, sandbox_spec, (program, *program_config.arguments))
        except RootFilesystemError as error:
            raise CannotStart(str(error)) from error
        limits = RunLimits(
            memory_mb=given.memory_max_mb or given.memory_mb,
            cpu_shares=given.cpu_mhz,
            processes=self._settings.pids_limit,
            cores=given.cores,
        )
        self._supervisor.send_message(
            StartRun(
                RunRequest(
                    order.run,
                    launched.command,
                    LAUNCH_ENVIRONMENT,
                    work_folder="/",
                    log=build_log_settings(order),
                    limits=limits,
                    network=network.namespace if network is not None else "",
                    leads_itself=True,
                    has_walls=True,
                    has_own_pids=program_config.has_own_pids,
                    papers=launched.inputs,
                )
            )
        )

    async def run_beside(self, order: CommandOrder) -> Command:
        pid = self._supervisor.find_pid(order.run)
        if pid is None:
            raise CannotStart("the task does not run")
        try:
            privileges = read_process_privileges(pid)
        except OSError as error:
            raise CannotStart("the task does not run") from error
        environment = {
            **set_user_variables(order.environment, privileges),
            command_process.COMMAND_MARK_VARIABLE: order.name,
        }
        sandbox_spec = SandboxSpec(environment, privileges, "/")
        input_descriptor = os.memfd_create("paper")
        try:
            leads = command_process.TERMINAL_SESSION_COMMAND if order.is_tty else ()
            entry = build_entry_command(
                pid,
                sandbox_spec,
                list_cgroups(pid, order.run),
                input_descriptor=input_descriptor,
                session_command=leads,
            )
            os.write(input_descriptor, entry.input_text.encode())
            launch_environment = {**LAUNCH_ENVIRONMENT, command_process.COMMAND_MARK_VARIABLE: order.name}
            namespace_entry = command_process.NamespaceEntry(
                entry.command_prefix,
                launch_environment,
                input_descriptors=(input_descriptor,),
                is_taking_terminal=order.is_tty,
            )
            return await command_process.start_command_in_namespace(order, namespace_entry, owner=Path(f"/proc/{pid}"))
        finally:
            os.close(input_descriptor)

    def _parse_config(self, config: Mapping[str, object], user: str) -> ProgramConfig:
        """Validate the task's config. Raises CannotStart."""
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
        pids = _parse_namespace_mode(config, "pid_mode", self._settings.default_pid_mode)
        ipc = _parse_namespace_mode(config, "ipc_mode", self._settings.default_ipc_mode)
        return ProgramConfig(
            command, tuple(arguments), work_folder or "/", pids == PRIVATE_MODE, ipc == PRIVATE_MODE, privileges
        )

    def _list_host_folders(self) -> list[BindMount]:
        """Return the read-only bind mounts of the configured host folders."""
        return [BindMount(source, target) for source, target in self._folders.items()]

    async def _find_trial_error(self) -> str:
        """Return why a program cannot run in a sandbox on this machine; empty if it can."""
        with tempfile.TemporaryDirectory(prefix="trial-", dir=self._state) as trial_folder:
            try:
                root = self._create_trial_root(Path(trial_folder))
                privileges = resolve_privileges("", add=(), drop=(), allowed=())
                return await _run_trial(root, SandboxSpec({"PATH": DEFAULT_PATH}, privileges, "/"))
            except (RootFilesystemError, PrivilegeError, OSError) as error:
                return str(error)

    def _create_trial_root(self, trial_folder: Path) -> RootFilesystem:
        """Create the root filesystem of the trial. Raises RootFilesystemError."""
        for name in ("task", "alloc"):
            (trial_folder / name).mkdir()
        root = RootFilesystem(trial_folder / "task", trial_folder / "alloc", self._list_host_folders())
        if missing := [path for path in REQUIRED_SANDBOX_PROGRAMS if not os.path.lexists(root.resolve_host_path(path))]:
            raise RootFilesystemError(f"the folders of client.chroot_env lack {', '.join(missing)}")
        return root


async def _run_trial(root: RootFilesystem, sandbox_spec: SandboxSpec) -> str:
    """Run `true` in the sandbox and return its error text; empty on success. Raises RootFilesystemError."""
    descriptors = (os.memfd_create("paper"), os.memfd_create("paper"))
    try:
        launch = build_launch_command(root, sandbox_spec, ("/usr/bin/env", "true"), input_descriptors=descriptors)
        for handle, text in zip(descriptors, launch.inputs, strict=True):
            os.write(handle, text.encode())
        process = await asyncio.create_subprocess_exec(
            *PID_NAMESPACE_COMMAND, SHELL, "-c", '( exec "$@" ) & wait "$!"', "trial", *launch.command,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env=LAUNCH_ENVIRONMENT, pass_fds=descriptors,
        )  # fmt: skip
        try:
            async with asyncio.timeout(TRIAL_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"the sandbox trial did not end within {TRIAL_TIMEOUT_S:g} s"
    finally:
        for handle in descriptors:
            os.close(handle)
    return output.decode(errors="replace").strip() or "the sandbox trial failed" if process.returncode else ""


def set_user_variables(environment: Mapping[str, str], privileges: ProcessPrivileges) -> dict[str, str]:
    """Return `environment` with variables such as HOME and USER of the task's user.

    Values that come from the agent's own environment are replaced; values set by the job stay.
    """
    found = {
        name: value
        for name, value in environment.items()
        if name not in USER_VARIABLES or value != os.environ.get(name)
    }
    found.setdefault("PATH", DEFAULT_PATH)
    for name, value in (("HOME", privileges.home), ("USER", privileges.name), ("LOGNAME", privileges.name)):
        found.setdefault(name, value)
    return found


def _convert_device_permissions(permissions: str) -> str:
    """Return chmod's mode for a device file, from cgroup permission letters (`r`, `w`, `m`)."""
    letters = "".join(letter for letter in "rw" if letter in permissions)
    return f"u={letters},go="


def _parse_names(config: Mapping[str, object], name: str) -> list[str]:
    """Return the list of names under a key of the config; empty if not set. Raises CannotStart."""
    found = config.get(name) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise CannotStart(f"config: `{name}` must be a list of names", is_final=True)
    return list(found)


def _parse_namespace_mode(config: Mapping[str, object], name: str, default: str) -> str:
    """Return `private` or `host`, or `default` if the key is not set. Raises CannotStart."""
    found = config.get(name) or default
    if found not in NAMESPACE_MODES:
        raise CannotStart(f'config: `{name}` is to be "private" or "host"', is_final=True)
    return str(found)
