"""The driver that runs a program of the machine as it is, without walls around it: by the supervisor.

Keys: `command` (required), `args`, `work_dir` (absolute), `oom_score_adj` (0 or more), `denied_envvars` (names that are not
handed on, `*` for any text). The program gets a session and a process group of its own, and bounds on memory and
processor where the machine lets control groups be made.
"""

import fnmatch
import os
import pwd
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from wharf.node.agent.keeper_link import KeeperLink
from wharf.node.drivers import processes_beside
from wharf.node.drivers.beside import Command, CommandOrder
from wharf.node.drivers.port import CannotStart, Health, TaskOrder, View
from wharf.node.drivers.supervised import Supervised, log_order
from wharf.node.measuring.tasks import group_of, groups_of
from wharf.node.supervisor.messages import Limits, RunOrder, StartRun
from wharf.node.supervisor.run import AS_USER, IN_NETWORK, SHELL
from wharf.node.walls.launching import ENTER

MOST_OOM_SCORE: Final = 1_000
NEEDED: Final = ("/bin/dash", "/bin/sleep", "/usr/bin/setsid", "/usr/bin/env")


class RawExec(Supervised):
    name = "raw_exec"
    view = View.HOST

    def __init__(self, link: KeeperLink, *, is_allowed: bool, bounds_memory: bool = True) -> None:
        super().__init__(link)
        self._is_allowed = is_allowed
        self._bounds_memory = bounds_memory

    async def probe(self) -> Health:
        if not self._is_allowed:
            return Health(is_healthy=False, why="disabled: client.drivers.raw_exec.enabled = true allows it")
        missing = [path for path in NEEDED if not os.access(path, os.X_OK)]
        if missing:
            return Health(is_healthy=False, why=f"the machine lacks {', '.join(missing)}", is_there=False)
        bounds = [bound for bound in self._link.bounds if self._bounds_memory or bound != "memory"]
        return Health(is_healthy=True, attributes={"driver.raw_exec.bounds": ",".join(bounds) or "none"})

    async def start(self, order: TaskOrder) -> None:
        command, arguments, work_folder = read_config(order.config)
        folder = work_folder or str(order.task_folder)
        program = find_program(command, folder, order.environment.get("PATH", os.defpath))
        user, group = find_user(order.user)
        limits = Limits(
            memory_mb=(order.given.memory_max_mb or order.given.memory_mb) if self._bounds_memory else 0,
            cpu_shares=order.given.cpu_mhz,
            oom_score=read_oom_score(order.config),
            cores=order.given.cores,
        )
        environment = without(order.environment, order.config)
        self._link.say(
            StartRun(
                RunOrder(
                    order.run,
                    (program, *arguments),
                    environment,
                    work_folder=folder,
                    log=log_order(order),
                    limits=limits,
                    user=user,
                    group=group,
                    network=order.network.namespace if order.network is not None else "",
                )
            )
        )

    async def run_beside(self, order: CommandOrder) -> Command:
        pid = self._link.pid_of(order.run)
        if pid is None:
            raise CannotStart("the task does not run")
        program = find_program(order.command[0], order.folder, order.environment.get("PATH", os.defpath))
        if is_elsewhere(pid):
            return await enter_network(order, pid)
        return await processes_beside.start(order, program, owner=Path(f"/proc/{pid}"), group=group_of(pid, order.run))


def is_elsewhere(pid: int) -> bool:
    """Whether it is in a network that is not ours. Raises CannotStart where it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    except OSError as error:
        raise CannotStart("the task does not run") from error


async def enter_network(order: CommandOrder, pid: int) -> Command:
    """Raises CannotStart."""
    groups = [str(group / "cgroup.procs") for group in groups_of(pid, order.run)]
    words = [SHELL, ENTER, *groups, "--", IN_NETWORK, f"--net=/proc/{pid}/ns/net", "--", *_as_who_runs(pid)]
    environment = {**order.environment, processes_beside.MARK: order.name}
    way = processes_beside.Entry(tuple(words), environment, order.folder)
    return await processes_beside.enter(order, way, owner=Path(f"/proc/{pid}"))


def _as_who_runs(pid: int) -> list[str]:
    """Raises CannotStart."""
    try:
        found = os.stat(f"/proc/{pid}")
    except OSError as error:
        raise CannotStart("the task does not run") from error
    if found.st_uid == os.geteuid():
        return []
    return [AS_USER, f"--reuid={found.st_uid}", f"--regid={found.st_gid}", "--init-groups"]


def read_config(config: Mapping[str, object]) -> tuple[str, list[str], str]:
    """Command, arguments, folder to work in. Raises CannotStart."""
    command, arguments, work_folder = (config.get(name) for name in ("command", "args", "work_dir"))
    if not isinstance(command, str) or not command:
        raise CannotStart("config: `command` is missing: the program to run", is_final=True)
    if "=" in command:
        raise CannotStart(f"config: a command may not hold `=`: {command}", is_final=True)
    arguments = [] if arguments is None else arguments
    if not isinstance(arguments, list | tuple) or not all(isinstance(each, str) for each in arguments):
        raise CannotStart("config: `args` is to be a list of texts", is_final=True)
    if work_folder is not None and not (isinstance(work_folder, str) and os.path.isabs(work_folder)):
        raise CannotStart("config: `work_dir` is to be an absolute path", is_final=True)
    return command, list(arguments), work_folder or ""


def read_oom_score(config: Mapping[str, object]) -> int:
    """Raises CannotStart."""
    score = config.get("oom_score_adj")
    if score is None:
        return 0
    if not isinstance(score, int) or isinstance(score, bool) or not 0 <= score <= MOST_OOM_SCORE:
        raise CannotStart(f"config: `oom_score_adj` is to be a number from 0 to {MOST_OOM_SCORE}", is_final=True)
    return score


def without(environment: dict[str, str], config: Mapping[str, object]) -> dict[str, str]:
    """The environment without the names that the job does not want. Raises CannotStart."""
    denied = config.get("denied_envvars") or ()
    if not isinstance(denied, list | tuple) or not all(isinstance(each, str) for each in denied):
        raise CannotStart("config: `denied_envvars` is to be a list of names", is_final=True)
    if not denied:
        return environment
    return {n: value for n, value in environment.items() if not any(fnmatch.fnmatchcase(n, each) for each in denied)}


def find_user(name: str) -> tuple[str, str]:
    """The numbers of the user and of its group; nothing where the program runs as we do. Raises CannotStart."""
    if not name:
        return "", ""
    try:
        found = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        raise CannotStart(f"this machine has no user {name}", is_final=True) from None
    if found.pw_uid == os.geteuid():
        return "", ""
    if os.geteuid() != 0:
        raise CannotStart(f"the node may not run programs as {name}: it does not run as root", is_final=True)
    if not os.access(AS_USER, os.X_OK):
        raise CannotStart(f"the node cannot run programs as {name}: the machine lacks {AS_USER}", is_final=True)
    return str(found.pw_uid), str(found.pw_gid)


def find_program(command: str, folder: str, path: str) -> str:
    """The program that the command means, in the folder where it is to work. Raises CannotStart."""
    if not os.path.isdir(folder):
        raise CannotStart(f"work_dir {folder} is no folder")
    if os.sep in command:
        program = Path(folder, command)
        if not program.is_file():
            raise CannotStart(f"there is no program {program}")
        if not os.access(program, os.X_OK):
            raise CannotStart(f"{program} may not be executed")
        return str(program)
    found = shutil.which(command, path=path)
    if found is None:
        raise CannotStart(f"the program {command} is not found in PATH ({path})")
    return found
