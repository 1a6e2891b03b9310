"""What drivers have in common whose programs are started and kept by the node's supervisor."""

import signal
from collections.abc import Collection
from typing import Final

from wharf.node.agent.keeper_link import KeeperLink
from wharf.node.drivers.port import TaskOrder
from wharf.node.measuring.tasks import processes_of
from wharf.node.supervisor.messages import ForgetRun, KillRun, LogOrder, SignalRun

MB: Final = 1_000_000
KILL_SIGNAL: Final = signal.SIGINT


class Supervised:
    def __init__(self, link: KeeperLink) -> None:
        self._link = link

    async def recover(self, runs: Collection[str]) -> None:
        await self._link.recover(runs)

    def processes_of(self, run: str) -> list[int]:
        """For those who measure."""
        pid = self._link.pid_of(run)
        return processes_of(pid, run) if pid is not None else []

    def signal(self, run: str, name: str) -> None:
        self._link.say(SignalRun(run, number_of(name) if name else KILL_SIGNAL))

    def give_up(self, run: str) -> None:
        """It begins in a moment, and is told to end then."""

    def kill(self, run: str) -> None:
        self._link.say(KillRun(run))

    def forget(self, run: str) -> None:
        self._link.say(ForgetRun(run))


def log_order(order: TaskOrder) -> LogOrder:
    return LogOrder(
        folder=str(order.log_folder),
        task=order.task,
        max_files=order.log.max_files,
        max_file_bytes=order.log.max_file_size_mb * MB,
        is_off=order.log.disabled,
    )


def number_of(name: str) -> int:
    """Of a signal, as `SIGTERM` or `TERM`; one that nobody knows is SIGINT."""
    return signal.Signals[_whole(name)] if is_signal(name) else signal.SIGINT


def is_signal(name: str) -> bool:
    return _whole(name) in signal.Signals.__members__


def _whole(name: str) -> str:
    name = name.upper()
    return name if name.startswith("SIG") else f"SIG{name}"
