"""Drivers that others bring, found by an entry point: each behind a guard that keeps its faults its own."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, MutableMapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final, Protocol

from wharf.node.core.outcome import Outcome
from wharf.node.drivers.port import (
    CannotStart,
    Command,
    CommandDriver,
    CommandOrder,
    Driver,
    DriverHome,
    Health,
    TaskOrder,
    View,
    Watcher,
)
from wharf.node.plugins import PluginError, call_plugin, list_entry_points
from wharf.node.statistics.tasks import MeasurableDriver
from wharf.world import World

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "wharf.drivers"

NodeEventReporter = Callable[..., None]
"""(message, **details): an event of the node."""


class RunRegistry(Watcher, Protocol):
    def is_current_run(self, run: str) -> bool: ...

    def run_when_stored(self, forget: Callable[[], None]) -> None: ...


class DriverPlugins:
    def __init__(
        self,
        world: World,
        runs: RunRegistry,
        *,
        options: Mapping[str, str],
        folder: Path,
        report_event: NodeEventReporter,
    ) -> None:
        """`folder`: where each has one of its own."""
        self._world = world
        self._runs = runs
        self._options = options
        self._folder = folder
        self._tell = report_event

    async def load_into(self, drivers: MutableMapping[str, Driver]) -> None:
        """Those that are installed, under their own names. One that takes another's name is left out."""
        for point in list_entry_points(ENTRY_POINT_GROUP):
            guard = GuardedDriver(self._world, self._runs)
            try:
                guard.attach_plugin(await call_plugin(self._world, self._loaded(point, guard)))
            except PluginError as error:
                self._refuse(point, f"it cannot be loaded: {error}")
                continue
            if guard.name in drivers:
                self._refuse(point, f"there is a driver {guard.name} already")
                continue
            drivers[guard.name] = guard

    async def _loaded(self, point: EntryPoint, watcher: Watcher) -> Driver:
        folder = self._folder / point.name
        folder.mkdir(parents=True, exist_ok=True)
        found: Driver = point.load()(DriverHome(watcher, self._options, folder))
        if not isinstance(found.name, str) or not found.name or not isinstance(found.view, View):
            raise TypeError("it has no name and no view as the port wants them")
        return found

    def _refuse(self, point: EntryPoint, why: str) -> None:
        self._tell(f"The driver {point.name} is not used", plugin=point.name, error=why)


class GuardedDriver:
    """Looks like the plugin to the node, and like the node to the plugin."""

    name = ""
    view = View.HOST

    def __init__(self, world: World, runs: RunRegistry) -> None:
        self._world = world
        self._runs = runs
        self._plugin: Driver
        self._unknown: set[str] = set()
        """Runs of which it could not tell what became of them: it is asked again."""

    def attach_plugin(self, plugin: Driver) -> None:
        self.name, self.view, self._plugin = plugin.name, plugin.view, plugin
        # What a driver need not have is there only if it has it.
        if isinstance(plugin, CommandDriver):
            self.run_beside = self._run_beside
        if isinstance(plugin, MeasurableDriver):
            self.processes_of = self._processes_of

    # -- as the node sees it

    async def probe(self) -> Health:
        if self._unknown:
            await self.recover(tuple(self._unknown))
        try:
            return await call_plugin(self._world, _healthy(self._plugin))
        except PluginError as error:
            return Health(is_healthy=False, why=f"its plugin failed: {error}")

    async def start(self, order: TaskOrder) -> None:
        try:
            await call_plugin(self._world, self._plugin.start(order), timeout_s=None, expected_errors=(CannotStart,))
        except PluginError as error:
            raise CannotStart(f"the driver {self.name} failed: {error}") from error

    async def recover(self, runs: Collection[str]) -> None:
        try:
            await call_plugin(self._world, self._plugin.recover(runs))
        except PluginError as error:
            # Nobody guesses that they have ended: they may run on.
            self._unknown.update(runs)
            log.warning("a driver does not tell what became of its tasks: %s", error, extra={"driver": self.name})
        else:
            self._unknown.difference_update(runs)

    def signal(self, run: str, name: str) -> None:
        self._have(lambda: self._plugin.signal(run, name))

    def give_up(self, run: str) -> None:
        self._have(lambda: self._plugin.give_up(run))

    def kill(self, run: str) -> None:
        self._have(lambda: self._plugin.kill(run))

    def forget(self, run: str) -> None:
        self._have(lambda: self._plugin.forget(run))

    async def _run_beside(self, order: CommandOrder) -> Command:
        assert isinstance(self._plugin, CommandDriver), "else nobody is led here"
        try:
            return await call_plugin(
                self._world, self._plugin.run_beside(order), timeout_s=None, expected_errors=(CannotStart,)
            )
        except PluginError as error:
            raise CannotStart(f"the driver {self.name} failed: {error}") from error

    def _processes_of(self, run: str) -> list[int]:
        assert isinstance(self._plugin, MeasurableDriver), "else nobody is led here"
        try:
            return [int(each) for each in self._plugin.processes_of(run)]
        except Exception as error:  # Where a plugin's code begins, as at the top of a task.
            log.warning("a driver does not tell the processes of a task: %s", error, extra={"driver": self.name})
            return []

    def _have(self, do: Callable[[], None]) -> None:
        """One after the other, as they were asked for."""
        task = self._world.start_task(_done(do), name=f"driver {self.name}")
        task.add_done_callback(self._look_at)

    def _look_at(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a driver failed", exc_info=error, extra={"driver": self.name})

    # -- as the plugin sees it

    def on_begun(self, run: str) -> None:
        self._runs.on_begun(run)

    def on_refused(self, run: str, why: str) -> None:
        self._runs.on_refused(run, str(why))

    def on_ended(self, run: str, outcome: Outcome) -> None:
        if self._runs.is_current_run(run):
            self._runs.on_ended(run, outcome)
        else:
            self._runs.run_when_stored(lambda: self.forget(run))

    def on_said(self, run: str, message: str) -> None:
        self._runs.on_said(run, str(message))


async def _done(do: Callable[[], None]) -> None:
    do()


async def _healthy(plugin: Driver) -> Health:
    """Put into our words in its own task, too: it may say what is none of its words."""
    said = await plugin.probe()
    attributes = {str(name): str(value) for name, value in said.attributes.items()}
    return Health(bool(said.is_healthy), str(said.why), bool(said.is_there), attributes)
