"""Stands where a job asks for a driver that this node has not."""

from collections.abc import Collection

from wharf.node.core.outcome import UNKNOWN
from wharf.node.drivers.port import CannotStart, Health, TaskOrder, View, Watcher


class MissingDriver:
    name = ""
    view = View.HOST

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    async def probe(self) -> Health:
        return Health(is_healthy=False, why="there is no such driver", is_there=False)

    async def start(self, _order: TaskOrder) -> None:
        raise CannotStart("this node has no such driver", is_final=True)

    async def recover(self, runs: Collection[str]) -> None:
        for run in runs:
            self._watcher.on_ended(run, UNKNOWN)

    def signal(self, run: str, name: str) -> None:
        """Nothing of it can run."""

    def give_up(self, run: str) -> None:
        """Nothing of it can run."""

    def kill(self, run: str) -> None:
        """Nothing of it can run."""

    def forget(self, run: str) -> None:
        """Nothing of it is kept."""
