"""The driver that runs a program of the machine within walls: by the supervisor, and by `wharf.node.sandbox`.

Keys: `command` (required), `args`, `work_dir` (absolute, as the task sees it), `pid_mode` and `ipc_mode` (`private` or
`host`), `cap_add`, `cap_drop`. The program sees its own folder as `/`, those folders of the machine that the operator names
(only to read), its own processes and no others. It is `nobody` unless the task names a user, and can gain no rights.
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
"""Variables of the agent that tell who it is: a task is somebody else."""
TRIAL_TIMEOUT_S: Final = 20.0


class ProgramConfig(NamedTuple):
    """What a job says of the program, looked through."""

    command: str
    arguments: tuple[str, ...]
    work_folder: str
    has_own_pids: bool
    has_own_ipc: bool
    privileges: ProcessPrivileges


class ExecDriver(SupervisedDriver):
    name = "exec"
    view = View.WALLED

    def __init__(
        self, link: SupervisorClient, settings: ExecSettings, folders: Mapping[str, str], state_folder: Path
    ) -> None:
        """`folders`: of the machine that tasks see, with where they see them. `state`: for a trial."""
        super().__init__(link)
        self._settings = settings
        self._folders = folders
        self._state = state_folder
        self._works = False

    async def probe(self) -> Health:
        if os.geteuid() != 0:
            return Health(is_healthy=False, why="walls need a node that runs as root", is_there=False)
        missing = [path for path in REQUIRED_PROGRAMS if not os.access(path, os.X_OK)]
        if missing:
            return Health(is_healthy=False, why=f"the machine lacks {', '.join(missing)}", is_there=False)
        if not self._works:
            # Whether a machine lets namespaces and mounts be made is known for sure only by trying.
            if why := await self._trial():
                return Health(is_healthy=False, why=why)
            self._works = True
        return Health(
            is_healthy=True, attributes={"driver.exec.bounds": ",".join(self._link.enforced_limits) or "none"}
        )

    async def start(self, order: TaskOrder) -> None:
        asked = self._asked(order.config, order.user)
        given = order.given
        volumes = [BindMount(each.path, each.target, each.is_read_only) for each in given.volumes]
        network = order.network
        root = RootFilesystem(
            order.task_folder,
            order.shared_folder,
            [*self._bindings(), *volumes],
            files=[BindMount(source, target) for source, target in network.files] if network is not None else [],
            has_own_ipc=asked.has_own_ipc,
        )
        environment = set_user_variables(order.environment, asked.privileges)
        try:
            program = root.find_program(asked.command, asked.work_folder, environment["PATH"])
            inside = SandboxSpec(
                environment,
                asked.privileges,
                asked.work_folder,
                hostname=network.hostname if network is not None else "",
                has_own_ipc=asked.has_own_ipc,
                devices=tuple(
                    SandboxDevice(each.path, each.target, _mode_of(each.permissions)) for each in given.devices
                ),
            )
            launched = build_launch_command(root, inside, (program, *asked.arguments))
        except RootFilesystemError as error:
            raise CannotStart(str(error)) from error
        limits = RunLimits(
            memory_mb=given.memory_max_mb or given.memory_mb,
            cpu_shares=given.cpu_mhz,
            processes=self._settings.pids_limit,
            cores=given.cores,
        )
        self._link.send_message(
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
                    has_own_pids=asked.has_own_pids,
                    papers=launched.inputs,
                )
            )
        )

    async def run_beside(self, order: CommandOrder) -> Command:
        pid = self._link.find_pid(order.run)
        if pid is None:
            raise CannotStart("the task does not run")
        try:
            rights = read_process_privileges(pid)
        except OSError as error:
            raise CannotStart("the task does not run") from error
        environment = {
            **set_user_variables(order.environment, rights),
            command_process.COMMAND_MARK_VARIABLE: order.name,
        }
        inside = SandboxSpec(environment, rights, "/")
        paper = os.memfd_create("paper")
        try:
            leads = command_process.TERMINAL_SESSION_COMMAND if order.is_tty else ()
            way_in = build_entry_command(
                pid, inside, list_cgroups(pid, order.run), input_descriptor=paper, session_command=leads
            )
            os.write(paper, way_in.input_text.encode())
            between = {**LAUNCH_ENVIRONMENT, command_process.COMMAND_MARK_VARIABLE: order.name}
            through = command_process.NamespaceEntry(
                way_in.command_prefix, between, input_descriptors=(paper,), is_taking_terminal=order.is_tty
            )
            return await command_process.start_command_in_namespace(order, through, owner=Path(f"/proc/{pid}"))
        finally:
            os.close(paper)

    def _asked(self, config: Mapping[str, object], user: str) -> ProgramConfig:
        """Raises CannotStart."""
        command, arguments, work_folder = parse_program_config(config, CONFIG_KEYS, self.name)
        try:
            rights = resolve_privileges(
                user,
                add=_texts(config, "cap_add"),
                drop=_texts(config, "cap_drop"),
                allowed=self._settings.allow_caps,
            )
        except PrivilegeError as error:
            raise CannotStart(f"config: {error}", is_final=True) from error
        pids = _mode(config, "pid_mode", self._settings.default_pid_mode)
        ipc = _mode(config, "ipc_mode", self._settings.default_ipc_mode)
        return ProgramConfig(
            command, tuple(arguments), work_folder or "/", pids == PRIVATE_MODE, ipc == PRIVATE_MODE, rights
        )

    def _bindings(self) -> list[BindMount]:
        return [BindMount(source, target) for source, target in self._folders.items()]

    async def _trial(self) -> str:
        """Why a program cannot be run within walls here; nothing where it can."""
        with tempfile.TemporaryDirectory(prefix="trial-", dir=self._state) as made:
            try:
                root = self._root_of_trial(Path(made))
                rights = resolve_privileges("", add=(), drop=(), allowed=())
                return await _run_trial(root, SandboxSpec({"PATH": DEFAULT_PATH}, rights, "/"))
            except (RootFilesystemError, PrivilegeError, OSError) as error:
                return str(error)

    def _root_of_trial(self, made: Path) -> RootFilesystem:
        """Raises RootFilesystemError."""
        for name in ("task", "alloc"):
            (made / name).mkdir()
        root = RootFilesystem(made / "task", made / "alloc", self._bindings())
        if missing := [path for path in REQUIRED_SANDBOX_PROGRAMS if not os.path.lexists(root.resolve_host_path(path))]:
            raise RootFilesystemError(f"the folders of client.chroot_env lack {', '.join(missing)}")
        return root


async def _run_trial(root: RootFilesystem, inside: SandboxSpec) -> str:
    """What it says when it fails. Raises RootFilesystemError."""
    made = (os.memfd_create("paper"), os.memfd_create("paper"))
    try:
        tried = build_launch_command(root, inside, ("/usr/bin/env", "true"), input_descriptors=made)
        for handle, paper in zip(made, tried.inputs, strict=True):
            os.write(handle, paper.encode())
        process = await asyncio.create_subprocess_exec(
            *PID_NAMESPACE_COMMAND, SHELL, "-c", '( exec "$@" ) & wait "$!"', "trial", *tried.command,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env=LAUNCH_ENVIRONMENT, pass_fds=made,
        )  # fmt: skip
        try:
            async with asyncio.timeout(TRIAL_TIMEOUT_S):
                said, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"a trial of walls did not end within {TRIAL_TIMEOUT_S:g} s"
    finally:
        for handle in made:
            os.close(handle)
    return said.decode(errors="replace").strip() or "a trial of walls failed" if process.returncode else ""


def set_user_variables(environment: Mapping[str, str], rights: ProcessPrivileges) -> dict[str, str]:
    """What tells of the agent's user tells of the task's, unless the job itself says so."""
    found = {
        name: value
        for name, value in environment.items()
        if name not in USER_VARIABLES or value != os.environ.get(name)
    }
    found.setdefault("PATH", DEFAULT_PATH)
    for name, value in (("HOME", rights.home), ("USER", rights.name), ("LOGNAME", rights.name)):
        found.setdefault(name, value)
    return found


def _mode_of(permissions: str) -> str:
    """Of a device's file, from the letters that control groups have."""
    letters = "".join(letter for letter in "rw" if letter in permissions)
    return f"u={letters},go="


def _texts(config: Mapping[str, object], name: str) -> list[str]:
    """Raises CannotStart."""
    found = config.get(name) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise CannotStart(f"config: `{name}` is to be a list of names", is_final=True)
    return list(found)


def _mode(config: Mapping[str, object], name: str, default: str) -> str:
    """Raises CannotStart."""
    found = config.get(name) or default
    if found not in NAMESPACE_MODES:
        raise CannotStart(f'config: `{name}` is to be "private" or "host"', is_final=True)
    return str(found)
