"""The common part of drivers whose programs are run by the node's task supervisor."""

import signal
from collections.abc import Collection
from typing import Final

from wharf.node.drivers.port import TaskOrder
from wharf.node.processes import list_run_processes
from wharf.node.supervisor.client import SupervisorClient
from wharf.node.supervisor.messages import ForgetRun, KillRun, RunLogSettings, SignalRun

BYTES_PER_MB: Final = 1_000_000
DEFAULT_KILL_SIGNAL: Final = signal.SIGINT


class SupervisedDriver:
    """Base class of drivers whose runs the task supervisor holds: sends it the requests about runs.

    Subclasses start the runs. A run is one start of a task.
    """

    def __init__(self, supervisor: SupervisorClient) -> None:
        self._supervisor = supervisor

    async def recover(self, runs: Collection[str]) -> None:
        """Wait for the task supervisor, then report the state of these runs to the watcher."""
        await self._supervisor.recover_runs(runs)

    def processes_of(self, run: str) -> list[int]:
        """Return the ids of all processes of a run, for its resource statistics; empty if it does not run."""
        pid = self._supervisor.find_pid(run)
        return list_run_processes(pid, run) if pid is not None else []

    def signal(self, run: str, name: str) -> None:
        """Have the task supervisor send the signal `name` to the run; an empty name is SIGINT."""
        self._supervisor.send_message(SignalRun(run, parse_signal(name) if name else DEFAULT_KILL_SIGNAL))

    def give_up(self, run: str) -> None:
        """Do nothing: the program starts within moments, and the agent then stops it."""

    def kill(self, run: str) -> None:
        """Have the task supervisor kill the run with all its processes."""
        self._supervisor.send_message(KillRun(run))

    def forget(self, run: str) -> None:
        """Have the task supervisor delete the ended run."""
        self._supervisor.send_message(ForgetRun(run))


def build_log_settings(order: TaskOrder) -> RunLogSettings:
    """Return the folder, files and size limits with which the task supervisor stores the task's output."""
    return RunLogSettings(
        folder=str(order.log_folder),
        task=order.task,
        max_files=order.log.max_files,
        max_file_bytes=order.log.max_file_size_mb * BYTES_PER_MB,
        is_off=order.log.disabled,
    )


def parse_signal(name: str) -> int:
    """Return the number of a signal such as `SIGTERM` or `TERM`; SIGINT for an unknown name."""
    return signal.Signals[add_signal_prefix(name)] if is_signal(name) else signal.SIGINT


def is_signal(name: str) -> bool:
    """Return whether this name, with or without `SIG`, is a signal of this machine."""
    return add_signal_prefix(name) in signal.Signals.__members__


def add_signal_prefix(name: str) -> str:
    """Return the name of a signal in upper case and with `SIG`: `term` becomes `SIGTERM`."""
    name = name.upper()
    return name if name.startswith("SIG") else f"SIG{name}"
