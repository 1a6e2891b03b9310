"""Stands in for a driver that a job requests and that this node does not have."""

from collections.abc import Collection

from wharf.node.core.outcome import UNKNOWN
from wharf.node.drivers.port import CannotStart, Health, TaskOrder, View, Watcher


class MissingDriver:
    """The stand-in for drivers that this node lacks: rejects every start, and cannot recover any run."""

    name = ""
    view = View.HOST

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    async def probe(self) -> Health:
        return Health(is_healthy=False, why="this node has no such driver", is_there=False)

    async def start(self, _order: TaskOrder) -> None:
        raise CannotStart("this node has no such driver", is_final=True)

    async def recover(self, runs: Collection[str]) -> None:
        for run in runs:
            self._watcher.on_ended(run, UNKNOWN)

    def signal(self, run: str, name: str) -> None:
        """Do nothing: no run exists."""

    def give_up(self, run: str) -> None:
        """Do nothing: no start is in progress."""

    def kill(self, run: str) -> None:
        """Do nothing: no run exists."""

    def forget(self, run: str) -> None:
        """Do nothing: no state is stored."""
