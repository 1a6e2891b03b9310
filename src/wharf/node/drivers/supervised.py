"""The common part of drivers whose programs are run by the node's supervisor."""

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
    """Sends requests about runs to the supervisor. Subclasses start the runs."""

    def __init__(self, supervisor: SupervisorClient) -> None:
        self._supervisor = supervisor

    async def recover(self, runs: Collection[str]) -> None:
        await self._supervisor.recover_runs(runs)

    def processes_of(self, run: str) -> list[int]:
        """Return the process ids of a run, for its resource statistics."""
        pid = self._supervisor.find_pid(run)
        return list_run_processes(pid, run) if pid is not None else []

    def signal(self, run: str, name: str) -> None:
        self._supervisor.send_message(SignalRun(run, parse_signal(name) if name else DEFAULT_KILL_SIGNAL))

    def give_up(self, run: str) -> None:
        """Do nothing: the program starts within moments, and the agent then signals it."""

    def kill(self, run: str) -> None:
        self._supervisor.send_message(KillRun(run))

    def forget(self, run: str) -> None:
        self._supervisor.send_message(ForgetRun(run))


def build_log_settings(order: TaskOrder) -> RunLogSettings:
    """Return where and how much of the task's output the supervisor stores."""
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
    """Return the upper-case name with `SIG`."""
    name = name.upper()
    return name if name.startswith("SIG") else f"SIG{name}"
