"""A driver by an entry point: a kite is a file, which flies until it is told to come down. And some that are ill."""

from collections.abc import Collection, Mapping

from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.drivers.port import CannotStart, DriverHome, Health, TaskOrder, View


class Kites:
    name = "kite"
    view = View.HOST

    def __init__(self, home: DriverHome) -> None:
        self._home = home

    async def probe(self) -> Health:
        if (self._home.folder / "calm").exists():
            return Health(is_healthy=False, why="there is no wind")
        return Health(is_healthy=True, attributes={"driver.kite.wind": self._home.options.get("wind", "west")})

    async def start(self, order: TaskOrder) -> None:
        config: Mapping[str, object] = order.config
        if config.get("torn"):
            raise CannotStart("the kite is torn", is_final=True)
        if config.get("knotted"):
            raise KeyError("string")
        (self._home.folder / order.run).touch()
        self._home.watcher.on_begun(order.run)
        if "lands" in config:
            self._land(order.run, Outcome(int(str(config["lands"]))))

    async def recover(self, runs: Collection[str]) -> None:
        for run in runs:
            if (self._home.folder / run).exists():
                self._home.watcher.on_begun(run)
            else:
                self._home.watcher.on_ended(run, UNKNOWN)

    def signal(self, run: str, _name: str) -> None:
        self._land(run, Outcome(0))

    def give_up(self, run: str) -> None:
        pass

    def kill(self, run: str) -> None:
        self._land(run, Outcome(137, 9))

    def forget(self, run: str) -> None:
        (self._home.folder / f"{run}.landed").unlink(missing_ok=True)

    def processes_of(self, _run: str) -> list[int]:
        raise ValueError("kites have no processes")

    def _land(self, run: str, outcome: Outcome) -> None:
        (self._home.folder / run).rename(self._home.folder / f"{run}.landed")
        self._home.watcher.on_ended(run, outcome)


class Copycat(Kites):
    name = "raw_exec"


def nameless(_home: DriverHome) -> object:
    return object()
