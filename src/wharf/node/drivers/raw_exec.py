"""The `raw_exec` driver: runs a host program without a sandbox, started by the supervisor.

`RawExecConfig` describes its options. The program has its own session and process group. Memory and CPU are
limited if the machine permits control groups. For another user, the environment is set only after the switch to that
user: the programs before it run as root and must not read variables that the job controls.
"""

import fnmatch
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from wharf.contract.model.drivers.options import convert_options
from wharf.contract.model.drivers.programs import RawExecConfig
from wharf.node.drivers import command_process
from wharf.node.drivers.config_keys import describe_unknown_keys
from wharf.node.drivers.port import CannotStart, Command, CommandOrder, Health, TaskOrder, View
from wharf.node.drivers.supervised import SupervisedDriver, build_log_settings
from wharf.node.missing_programs import describe_missing_program
from wharf.node.processes import list_cgroups
from wharf.node.sandbox.launcher import ENTER_SCRIPT_PATH, LAUNCH_ENVIRONMENT, SETSID_PATH, build_user_command
from wharf.node.sandbox.privileges import find_user
from wharf.node.supervisor.client import SupervisorClient
from wharf.node.supervisor.messages import RunLimits, RunRequest
from wharf.node.supervisor.run import NSENTER_PATH, SHELL

SETPRIV_PATH: Final = "/usr/bin/setpriv"
MAX_OOM_SCORE: Final = 1_000
"""The kernel's maximum of oom_score_adj."""
CONFIG_KEYS: Final = RawExecConfig.__struct_fields__
REQUIRED_PROGRAMS: Final = ("/bin/dash", "/bin/sleep", "/usr/bin/setsid", "/usr/bin/env")


class RawExecDriver(SupervisedDriver):
    """The driver that runs host programs without isolation; disabled by default."""

    name = "raw_exec"
    view = View.HOST

    def __init__(self, supervisor: SupervisorClient, *, is_allowed: bool, is_memory_limited: bool = True) -> None:
        """Create the driver. `is_allowed`: the operator enabled it. `is_memory_limited`: memory limits are applied."""
        super().__init__(supervisor)
        self._is_allowed = is_allowed
        self._is_memory_limited = is_memory_limited

    async def probe(self) -> Health:
        """Return whether the operator enabled the driver and its programs exist, and which limits it can enforce."""
        if not self._is_allowed:
            return Health(is_healthy=False, why="disabled; client.drivers.raw_exec.enabled = true enables it")
        missing = [path for path in REQUIRED_PROGRAMS if not os.access(path, os.X_OK)]
        if missing:
            return Health(is_healthy=False, why=f"the machine lacks {', '.join(missing)}", is_there=False)
        enforced_limits = [
            limit for limit in self._supervisor.enforced_limits if self._is_memory_limited or limit != "memory"
        ]
        return Health(is_healthy=True, attributes={"driver.raw_exec.bounds": ",".join(enforced_limits) or "none"})

    async def start(self, order: TaskOrder) -> None:
        """Send the start of the program to the task supervisor; does not wait for it. Raises CannotStart.

        The program runs as the user that the task names, if any.
        """
        config = convert_options(self.name, order.config)
        command, arguments, work_folder = parse_program_config(config, CONFIG_KEYS, self.name)
        folder = work_folder or str(order.task_folder)
        program = find_program(command, folder, order.environment.get("PATH", os.defpath))
        user_switch = build_user_switch(order.user)
        limits = RunLimits(
            memory_mb=order.given.memory_limit_mb if self._is_memory_limited else 0,
            cpu_shares=order.given.cpu_mhz,
            oom_score=parse_oom_score(config),
            cores=order.given.cores,
        )
        run = RunRequest(
            order.run,
            (program, *arguments),
            remove_denied_variables(order.environment, config),
            work_folder=folder,
            log=build_log_settings(order),
            limits=limits,
            network=order.network.namespace if order.network is not None else "",
        )
        if user_switch:
            launch = build_user_command(user_switch, run.environment, (SETSID_PATH, *run.command))
            run = replace(
                run,
                command=launch.command_prefix,
                environment=LAUNCH_ENVIRONMENT,
                input_texts=(launch.input_text,),
                is_session_leader=True,
            )
        self._supervisor.start_run(run)

    async def run_beside(self, order: CommandOrder) -> Command:
        """Start a command as the task's user, in its network and control groups. Raises CannotStart."""
        pid = self._supervisor.find_pid(order.run)
        if pid is None:
            raise CannotStart("the task is not running")
        program = find_program(order.command[0], order.folder, order.environment.get("PATH", os.defpath))
        if is_in_other_network(pid):
            return await start_command_in_network(order, pid)
        return await command_process.start_command(
            order, program, proc_folder=Path(f"/proc/{pid}"), cgroup=next(iter(list_cgroups(pid, order.run)), None)
        )


def is_in_other_network(pid: int) -> bool:
    """Return whether the process has another network namespace than this node agent.

    Raises CannotStart if the process no longer exists.
    """
    try:
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    except OSError as error:
        raise CannotStart("the task is not running") from error


async def start_command_in_network(order: CommandOrder, pid: int) -> Command:
    """Start a command as the user of process `pid`, in its network namespace and control groups.

    Raises CannotStart.
    """
    groups = [str(group / "cgroup.procs") for group in list_cgroups(pid, order.run)]
    enter_command = [SHELL, ENTER_SCRIPT_PATH, *groups, "--", NSENTER_PATH, f"--net=/proc/{pid}/ns/net", "--"]
    environment = {**order.environment, command_process.COMMAND_MARK_VARIABLE: order.name}
    user_switch = _build_switch_to_user_of(pid)
    proc_folder = Path(f"/proc/{pid}")
    if not user_switch:
        entry = command_process.NamespaceEntry(tuple(enter_command), environment, order.folder)
        return await command_process.start_command_in_namespace(order, entry, proc_folder=proc_folder)
    launch = build_user_command(user_switch, environment, ())
    launch_environment = {**LAUNCH_ENVIRONMENT, command_process.COMMAND_MARK_VARIABLE: order.name}
    entry = command_process.NamespaceEntry(
        (*enter_command, *launch.command_prefix), launch_environment, order.folder, input_texts=(launch.input_text,)
    )
    return await command_process.start_command_in_namespace(order, entry, proc_folder=proc_folder)


def _build_switch_to_user_of(pid: int) -> list[str]:
    """Return the command prefix that switches to the user of process `pid`; empty if that is the node's user.

    Raises CannotStart.
    """
    try:
        status = os.stat(f"/proc/{pid}")
    except OSError as error:
        raise CannotStart("the task is not running") from error
    if status.st_uid == os.geteuid():
        return []
    return _build_setpriv_command(status.st_uid, status.st_gid)


def _build_setpriv_command(uid: int, gid: int) -> list[str]:
    """Return the command prefix that switches to the user `uid`, the group `gid` and the user's further groups."""
    return [SETPRIV_PATH, f"--reuid={uid}", f"--regid={gid}", "--init-groups", "--"]


def parse_program_config(
    config: Mapping[str, object], known_keys: Collection[str], driver: str
) -> tuple[str, list[str], str]:
    """Return (command, arguments, working folder) from a task's config; the folder is empty if it is not set.

    `known_keys` are the keys that `driver` knows; any other key is an error. Raises CannotStart.
    """
    if unknown := describe_unknown_keys(config, known_keys, driver):
        raise CannotStart(f"config: {'; '.join(unknown)}", is_final=True)
    command, arguments, work_folder = (config.get(name) for name in ("command", "args", "work_dir"))
    if command is None or command == "":
        raise CannotStart("config: `command` is missing: the program to run", is_final=True)
    if not isinstance(command, str):
        raise CannotStart("config: `command` must be a text: put arguments into `args`", is_final=True)
    if "=" in command:
        raise CannotStart(f"config: `command` must not contain `=`: {command}", is_final=True)
    arguments = [] if arguments is None else arguments
    if not isinstance(arguments, list | tuple) or not all(isinstance(each, str) for each in arguments):
        raise CannotStart("config: `args` must be a list of texts", is_final=True)
    if work_folder is not None and not (isinstance(work_folder, str) and os.path.isabs(work_folder)):
        raise CannotStart("config: `work_dir` must be an absolute path", is_final=True)
    return command, list(arguments), work_folder or ""


def parse_oom_score(config: Mapping[str, object]) -> int:
    """Return the value of `oom_score_adj` in the config; 0 if it is not set. Raises CannotStart if it is invalid."""
    score = config.get("oom_score_adj")
    if score is None:
        return 0
    if not isinstance(score, int) or isinstance(score, bool) or not 0 <= score <= MAX_OOM_SCORE:
        raise CannotStart(f"config: `oom_score_adj` must be a number from 0 to {MAX_OOM_SCORE}", is_final=True)
    return score


def remove_denied_variables(environment: dict[str, str], config: Mapping[str, object]) -> dict[str, str]:
    """Return the environment without the variables that the config's `denied_envvars` names.

    A name may contain `*`, which matches any text. Raises CannotStart if the list is invalid.
    """
    denied = config.get("denied_envvars") or ()
    if not isinstance(denied, list | tuple) or not all(isinstance(each, str) for each in denied):
        raise CannotStart("config: `denied_envvars` must be a list of names", is_final=True)
    if not denied:
        return environment
    return {
        name: value
        for name, value in environment.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in denied)
    }


def build_user_switch(user_name: str) -> list[str]:
    """Return the command prefix that switches to the named user.

    Empty if no user is named, or if it is the node's own user. Raises CannotStart.
    """
    if not user_name:
        return []
    user = find_user(user_name)
    if user is None:
        raise CannotStart(f"user {user_name} does not exist on this machine", is_final=True)
    if user.pw_uid == os.geteuid():
        return []
    if os.geteuid() != 0:
        raise CannotStart(f"the node cannot run programs as {user_name}: it does not run as root", is_final=True)
    if not os.access(SETPRIV_PATH, os.X_OK):
        raise CannotStart(
            f"the node cannot run programs as {user_name}: the machine lacks {SETPRIV_PATH}", is_final=True
        )
    return _build_setpriv_command(user.pw_uid, user.pw_gid)


def find_program(command: str, folder: str, search_path: str) -> str:
    """Return the path of the program. Raises CannotStart if it does not exist or is not executable.

    A command with `/` is relative to `folder`; otherwise it is searched in `search_path`, a list of folders such as PATH.
    """
    if not os.path.isdir(folder):
        raise CannotStart(f"work_dir {folder} is not a folder")
    if os.sep in command:
        program = Path(folder, command)
        if program.is_dir():
            raise CannotStart(f"{program} is a folder, not a program")
        if not program.is_file():
            raise CannotStart(describe_missing_program(str(program)))
        if not os.access(program, os.X_OK):
            raise CannotStart(f"program {program} is not executable")
        return str(program)
    program_path = shutil.which(command, path=search_path)
    if program_path is None:
        raise CannotStart(describe_missing_program(command))
    return program_path
