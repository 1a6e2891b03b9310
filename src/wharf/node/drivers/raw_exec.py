"""The driver that runs a program of the machine as it is, without walls around it: by the supervisor.

Keys: `command` (required), `args`, `work_dir` (absolute). The program gets a session and a process group of its own.
"""

import os
import shutil
import signal
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from wharf.node.agent.keeper_link import KeeperLink
from wharf.node.drivers import processes_beside
from wharf.node.drivers.beside import Command, CommandOrder
from wharf.node.drivers.port import CannotStart, Health, TaskOrder, View
from wharf.node.measuring.tasks import group_of, processes_of
from wharf.node.supervisor.messages import ForgetRun, KillRun, LogOrder, RunOrder, SignalRun, StartRun

MB: Final = 1_000_000
NEEDED: Final = ("/bin/dash", "/bin/mv", "/usr/bin/setsid", "/usr/bin/env")
KILL_SIGNAL: Final = signal.SIGINT


class RawExec:
    name = "raw_exec"
    view = View.HOST

    def __init__(self, link: KeeperLink, *, is_allowed: bool) -> None:
        self._link = link
        self._is_allowed = is_allowed

    async def probe(self) -> Health:
        if not self._is_allowed:
            return Health(is_healthy=False, why="disabled: client.drivers.raw_exec.enabled = true allows it")
        missing = [path for path in NEEDED if not os.access(path, os.X_OK)]
        if missing:
            return Health(is_healthy=False, why=f"the machine lacks {', '.join(missing)}", is_there=False)
        return Health(is_healthy=True)

    async def start(self, order: TaskOrder) -> None:
        command, arguments, work_folder = read_config(order.config)
        folder = work_folder or str(order.task_folder)
        program = find_program(command, folder, order.environment.get("PATH", os.defpath))
        log = LogOrder(
            folder=str(order.log_folder),
            task=order.task,
            max_files=order.log.max_files,
            max_file_bytes=order.log.max_file_size_mb * MB,
            is_off=order.log.disabled,
        )
        self._link.say(
            StartRun(RunOrder(order.run, (program, *arguments), order.environment, work_folder=folder, log=log))
        )

    async def recover(self, runs: Collection[str]) -> None:
        await self._link.recover(runs)

    def processes_of(self, run: str) -> list[int]:
        """For those who measure."""
        pid = self._link.pid_of(run)
        return processes_of(pid, run) if pid is not None else []

    async def run_beside(self, order: CommandOrder) -> Command:
        pid = self._link.pid_of(order.run)
        if pid is None:
            raise CannotStart("the task does not run")
        program = find_program(order.command[0], order.folder, order.environment.get("PATH", os.defpath))
        return await processes_beside.start(order, program, owner=Path(f"/proc/{pid}"), group=group_of(pid, order.run))

    def signal(self, run: str, name: str) -> None:
        self._link.say(SignalRun(run, number_of(name) if name else KILL_SIGNAL))

    def give_up(self, run: str) -> None:
        """It begins in a moment, and is told to end then."""

    def kill(self, run: str) -> None:
        self._link.say(KillRun(run))

    def forget(self, run: str) -> None:
        self._link.say(ForgetRun(run))


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


def number_of(name: str) -> int:
    """Of a signal, as `SIGTERM` or `TERM`; one that nobody knows is SIGINT."""
    name = name.upper()
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except KeyError:
        return signal.SIGINT
