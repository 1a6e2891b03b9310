"""What drivers have in common whose programs are started and kept by the node's supervisor."""

import signal
from collections.abc import Collection
from typing import Final

from wharf.node.drivers.port import TaskOrder
from wharf.node.statistics.tasks import list_run_processes
from wharf.node.supervisor.client import SupervisorClient
from wharf.node.supervisor.messages import ForgetRun, KillRun, RunLogSettings, SignalRun

BYTES_PER_MB: Final = 1_000_000
DEFAULT_KILL_SIGNAL: Final = signal.SIGINT


class SupervisedDriver:
    def __init__(self, link: SupervisorClient) -> None:
        self._link = link

    async def recover(self, runs: Collection[str]) -> None:
        await self._link.recover_runs(runs)

    def processes_of(self, run: str) -> list[int]:
        """For those who measure."""
        pid = self._link.find_pid(run)
        return list_run_processes(pid, run) if pid is not None else []

    def signal(self, run: str, name: str) -> None:
        self._link.send_message(SignalRun(run, parse_signal(name) if name else DEFAULT_KILL_SIGNAL))

    def give_up(self, run: str) -> None:
        """It begins in a moment, and is told to end then."""

    def kill(self, run: str) -> None:
        self._link.send_message(KillRun(run))

    def forget(self, run: str) -> None:
        self._link.send_message(ForgetRun(run))


def build_log_settings(order: TaskOrder) -> RunLogSettings:
    return RunLogSettings(
        folder=str(order.log_folder),
        task=order.task,
        max_files=order.log.max_files,
        max_file_bytes=order.log.max_file_size_mb * BYTES_PER_MB,
        is_off=order.log.disabled,
    )


def parse_signal(name: str) -> int:
    """Of a signal, as `SIGTERM` or `TERM`; one that nobody knows is SIGINT."""
    return signal.Signals[_whole(name)] if is_signal(name) else signal.SIGINT


def is_signal(name: str) -> bool:
    return _whole(name) in signal.Signals.__members__


def _whole(name: str) -> str:
    name = name.upper()
    return name if name.startswith("SIG") else f"SIG{name}"
