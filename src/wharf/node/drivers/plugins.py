"""Loads driver plugins by entry point.

A wrapper around each plugin turns its exceptions into failures of single tasks.
"""

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
from wharf.node.plugins import NodeEventReporter, PluginError, call_plugin, list_entry_points
from wharf.node.statistics.tasks import MeasurableDriver
from wharf.world import World

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "wharf.drivers"


class RunRegistry(Watcher, Protocol):
    """The part of the allocation manager that a wrapped driver plugin uses. A run is one start of a task."""

    def is_current_run(self, run: str) -> bool:
        """Return whether the agent still tracks the run with this name."""
        ...

    def run_when_stored(self, forget: Callable[[], None]) -> None:
        """Call `forget`, which deletes a run's state, after the current state of the agent is on disk."""
        ...


class DriverPlugins:
    """The installed driver plugins of this node."""

    def __init__(
        self,
        world: World,
        runs: RunRegistry,
        *,
        options: Mapping[str, str],
        folder: Path,
        report_event: NodeEventReporter,
    ) -> None:
        """Create the loader. `folder` contains one state folder for each plugin."""
        self._world = world
        self._runs = runs
        self._options = options
        self._folder = folder
        self._report_event = report_event

    async def load_into(self, drivers: MutableMapping[str, Driver]) -> None:
        """Load the installed plugins and add them to `drivers` by name.

        A plugin that fails to load, or whose name is already used, is reported as a node event.
        """
        for point in list_entry_points(ENTRY_POINT_GROUP):
            guard = GuardedDriver(self._world, self._runs)
            try:
                guard.attach_plugin(await call_plugin(self._world, self._load_plugin(point, guard)))
            except PluginError as error:
                self._report_unused(point, f"it cannot be loaded: {error}")
                continue
            if guard.name in drivers:
                self._report_unused(point, f"another driver is named {guard.name}")
                continue
            drivers[guard.name] = guard

    async def _load_plugin(self, point: EntryPoint, watcher: Watcher) -> Driver:
        """Create the plugin's state folder and return its driver. Raises TypeError if the driver is invalid."""
        folder = self._folder / point.name
        folder.mkdir(parents=True, exist_ok=True)
        driver: Driver = point.load()(DriverHome(watcher, self._options, folder))
        if not isinstance(driver.name, str) or not driver.name or not isinstance(driver.view, View):
            raise TypeError("the driver's name or view is not valid")
        return driver

    def _report_unused(self, point: EntryPoint, why: str) -> None:
        """Record a node event that says why the plugin is not used."""
        self._report_event(f"Driver plugin {point.name} is not used", plugin=point.name, error=why)


class GuardedDriver:
    """A driver plugin, wrapped so that its exceptions are caught and its events about unknown runs are ignored."""

    name = ""
    """Set from the plugin."""
    view = View.HOST

    def __init__(self, world: World, runs: RunRegistry) -> None:
        self._world = world
        self._runs = runs
        self._plugin: Driver
        self._unrecovered: set[str] = set()
        """Runs that the plugin failed to recover; each probe tries again."""

    def attach_plugin(self, plugin: Driver) -> None:
        """Set the plugin that this object wraps.

        An optional method, such as `run_beside`, is added only if the plugin has it.
        """
        self.name, self.view, self._plugin = plugin.name, plugin.view, plugin
        # Callers detect optional methods by isinstance.
        if isinstance(plugin, CommandDriver):
            self.run_beside = self._run_beside
        if isinstance(plugin, MeasurableDriver):
            self.processes_of = self._processes_of

    # -- called by the node

    async def probe(self) -> Health:
        """Retry to recover runs that the plugin failed to recover, then return the plugin's health.

        The node is reported as unhealthy for this driver if the plugin fails.
        """
        if self._unrecovered:
            await self.recover(tuple(self._unrecovered))
        try:
            return await call_plugin(self._world, _probe_plugin(self._plugin))
        except PluginError as error:
            return Health(is_healthy=False, why=f"the plugin failed: {error}")

    async def start(self, order: TaskOrder) -> None:
        """Have the plugin start the run. Raises CannotStart, also if the plugin fails in another way."""
        try:
            await call_plugin(self._world, self._plugin.start(order), timeout_s=None, expected_errors=(CannotStart,))
        except PluginError as error:
            raise CannotStart(f"the driver {self.name} failed: {error}") from error

    async def recover(self, runs: Collection[str]) -> None:
        """Have the plugin report the state of these runs; if it fails, each probe tries again."""
        try:
            await call_plugin(self._world, self._plugin.recover(runs))
        except PluginError as error:
            # Report no end: the tasks may still be running.
            self._unrecovered.update(runs)
            log.warning("driver failed to recover its tasks driver=%s error=%s", self.name, error)
        else:
            self._unrecovered.difference_update(runs)

    def signal(self, run: str, name: str) -> None:
        self._call_in_task(lambda: self._plugin.signal(run, name))

    def give_up(self, run: str) -> None:
        self._call_in_task(lambda: self._plugin.give_up(run))

    def kill(self, run: str) -> None:
        self._call_in_task(lambda: self._plugin.kill(run))

    def forget(self, run: str) -> None:
        self._call_in_task(lambda: self._plugin.forget(run))

    async def _run_beside(self, order: CommandOrder) -> Command:
        """Have the plugin start a command in a running task. Raises CannotStart."""
        assert isinstance(self._plugin, CommandDriver), "the method is attached only for such plugins"
        try:
            return await call_plugin(
                self._world, self._plugin.run_beside(order), timeout_s=None, expected_errors=(CannotStart,)
            )
        except PluginError as error:
            raise CannotStart(f"the driver {self.name} failed: {error}") from error

    def _processes_of(self, run: str) -> list[int]:
        """Return the process ids of a run, as the plugin reports them; empty if the plugin fails."""
        assert isinstance(self._plugin, MeasurableDriver), "the method is attached only for such plugins"
        try:
            return [int(each) for each in self._plugin.processes_of(run)]
        except Exception as error:  # A plugin can raise any exception.
            log.warning("driver failed to list the processes of a task driver=%s error=%s", self.name, error)
            return []

    def _call_in_task(self, call: Callable[[], None]) -> None:
        """Run `call`, a call of the plugin, in an asyncio task, so that its exception is only logged.

        Calls are run in the order in which they are made.
        """
        task = self._world.start_task(_run_call(call), name=f"driver {self.name}")
        task.add_done_callback(self._log_failure)

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        """Log the exception of a finished call of the plugin, if it raised one."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("driver failed driver=%s", self.name, exc_info=error)

    # -- called by the plugin

    def on_begun(self, run: str) -> None:
        self._runs.on_begun(run)

    def on_refused(self, run: str, why: str) -> None:
        self._runs.on_refused(run, str(why))

    def on_ended(self, run: str, outcome: Outcome) -> None:
        """Pass the end of a run to the agent.

        If the agent no longer tracks the run, the plugin deletes the run's state once the journal is on the disk.
        """
        if self._runs.is_current_run(run):
            self._runs.on_ended(run, outcome)
        else:
            self._runs.run_when_stored(lambda: self.forget(run))

    def on_said(self, run: str, message: str) -> None:
        self._runs.on_said(run, str(message))


async def _run_call(call: Callable[[], None]) -> None:
    """Call the function; a coroutine, because asyncio tasks run only coroutines."""
    call()


async def _probe_plugin(plugin: Driver) -> Health:
    """Return the plugin's health, with all values converted to the expected types.

    The conversion runs under the plugin's error handling, so invalid values count as an error of the plugin.
    """
    health = await plugin.probe()
    attributes = {str(name): str(value) for name, value in health.attributes.items()}
    return Health(bool(health.is_healthy), str(health.why), bool(health.is_there), attributes)
