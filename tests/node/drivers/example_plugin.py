"""Driver plugins for tests: one whose tasks are files, and some that cannot be loaded."""

from collections.abc import Collection, Mapping

from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.drivers.port import CannotStart, DriverHome, Health, TaskOrder, View


class FileDriver:
    """A driver whose running task is a file in its folder."""

    name = "file"
    view = View.HOST

    def __init__(self, home: DriverHome) -> None:
        self._home = home

    async def probe(self) -> Health:
        if (self._home.folder / "unhealthy").exists():
            return Health(is_healthy=False, why="the file server is down")
        return Health(is_healthy=True, attributes={"driver.file.mode": self._home.options.get("mode", "plain")})

    async def start(self, order: TaskOrder) -> None:
        """Start a task, which is a file; some configs are refused or fail."""
        config: Mapping[str, object] = order.config
        if config.get("refused"):
            raise CannotStart("the task is refused", is_final=True)
        if config.get("faulty"):
            raise KeyError("missing")
        (self._home.folder / order.run).touch()
        self._home.watcher.on_begun(order.run)
        if "exit_code" in config:
            self._end(order.run, Outcome(int(str(config["exit_code"]))))

    async def recover(self, runs: Collection[str]) -> None:
        for run in runs:
            if (self._home.folder / run).exists():
                self._home.watcher.on_begun(run)
            else:
                self._home.watcher.on_ended(run, UNKNOWN)

    def signal(self, run: str, _name: str) -> None:
        self._end(run, Outcome(0))

    def give_up(self, run: str) -> None:
        pass

    def kill(self, run: str) -> None:
        self._end(run, Outcome(137, 9))

    def forget(self, run: str) -> None:
        (self._home.folder / f"{run}.ended").unlink(missing_ok=True)

    def processes_of(self, _run: str) -> list[int]:
        raise ValueError("file tasks have no processes")

    def _end(self, run: str, outcome: Outcome) -> None:
        (self._home.folder / run).rename(self._home.folder / f"{run}.ended")
        self._home.watcher.on_ended(run, outcome)


class DuplicateDriver(FileDriver):
    """Has the name of a built-in driver."""

    name = "raw_exec"


def build_nameless_driver(_home: DriverHome) -> object:
    """Return something that is not a driver."""
    return object()
