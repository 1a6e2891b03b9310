"""The `docker` driver: runs each task as a container, through the engine's HTTP API.

Each container has its run's name as a label and survives the agent. The label finds the container of an earlier start,
so that a run never has two containers. `ContainerStarter` creates containers and `ContainerWatcher` watches them; this
module sends signals to them and removes them.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, Final

from wharf.node.drivers.docker.config import DockerSettings
from wharf.node.drivers.docker.container import LOG_LABEL_NAMES, NODE_FOLDER_LABEL, NODE_LABEL, RUN_LABEL
from wharf.node.drivers.docker.container_starter import CONFLICT_STATUS, ContainerStarter
from wharf.node.drivers.docker.container_watcher import ContainerRun, ContainerWatcher
from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.errors import EngineNotFound, EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.exec_command import start_container_command
from wharf.node.drivers.docker.images import TaskImages
from wharf.node.drivers.docker.responses import ContainerListItem, EngineVersion
from wharf.node.drivers.port import CannotStart, Command, CommandOrder, Health, TaskOrder, View, Watcher
from wharf.node.drivers.supervised import add_signal_prefix
from wharf.node.node_mark import MarkedContainer, NodeMark
from wharf.node.processes import list_container_processes
from wharf.world import World
from wharf.world.tasks import cancel_tasks, start_supervised

log = logging.getLogger(__name__)

DEFAULT_SOCKET_PATHS: Final = ("/var/run/docker.sock", "/run/podman/podman.sock")
RETRY_DELAY_S: Final = 1.0
"""Seconds before a request is repeated."""
PROBE_TIMEOUT_S: Final = 5.0
DEFAULT_KILL_SIGNAL: Final = "SIGTERM"
FORCED_KILL_SIGNAL: Final = "SIGKILL"


class DockerDriver:
    """The driver that runs each task as a container of Docker or Podman."""

    name = "docker"
    view = View.OWN

    def __init__(
        self,
        world: World,
        watcher: Watcher,
        *,
        socket: Path,
        settings: DockerSettings,
        owner: NodeMark,
        folder: Path,
        is_current_run: Callable[[str], bool],
    ) -> None:
        """Create the driver for the engine at `socket`.

        `owner` marks the containers. `folder` is for files with the position up to which each container's output was
        copied. `is_current_run` returns whether the agent tracks a run with this name.
        """
        self._world = world
        self._watcher = watcher
        self._socket = socket
        self._engine = ContainerEngine(socket)
        self._version: tuple[tuple[str, ...], EngineVersion] | None = None
        """The version of the engine, and what the engine's pings identify it by."""
        self._starter = ContainerStarter(
            world,
            self._engine,
            TaskImages(self._engine, world, watcher.on_said),
            settings,
            owner=owner,
            progress_folder=folder,
        )
        self._container_watcher = ContainerWatcher(world, self._engine, watcher, folder)
        self._node_id = owner.node_id
        self._folder = folder
        self._is_current_run = is_current_run
        self._runs: dict[str, ContainerRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- the port `Driver`

    async def probe(self) -> Health:
        """Return whether the engine answers, with its version as attributes. Store whether it can share networks.

        The version is requested once, and again after the engine was away or was replaced. Podman starts about ten
        processes to answer that request.
        """
        if not self._socket.exists():
            self._version = None
            return Health(is_healthy=False, is_there=False, why=f"no container engine at {self._socket}")
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                identification = await self._engine.ping()
                if self._version is None or self._version[0] != identification:
                    self._version = (identification, await self._engine.read_version())
        except TimeoutError:
            self._version = None
            return Health(
                is_healthy=False, why=f"the engine at {self._socket} did not answer within {PROBE_TIMEOUT_S:g} s"
            )
        except (EngineUnreachable, EngineRejected) as error:
            self._version = None
            return Health(is_healthy=False, why=str(error))
        version = self._version[1]
        self._starter.can_join_namespaces = version.is_podman
        attributes = {"driver.docker.version": version.version, "driver.docker.os_type": version.os}
        return Health(is_healthy=True, attributes={name: value for name, value in attributes.items() if value})

    async def start(self, order: TaskOrder) -> None:
        """Start a container for the task and watch it. Returns when it runs; `give_up` cancels the start.

        Does nothing if the run is already tracked. Raises CannotStart.
        """
        if order.run in self._runs:
            return
        run = self._runs[order.run] = ContainerRun(order.run)
        run.start_task = self._world.start_task(self._start_and_watch(run, order), name=f"container {order.run}")
        try:
            await asyncio.shield(run.start_task)
        except asyncio.CancelledError:
            if not run.is_start_canceled:
                raise
            self._discard_start(run)
            raise CannotStart("the task was stopped before it had begun") from None
        except CannotStart:
            self._discard_start(run)
            raise
        finally:
            run.start_task = None

    async def _start_and_watch(self, run: ContainerRun, order: TaskOrder) -> None:
        """Start the container, report its start, and begin to watch it in the background. Raises CannotStart."""
        await self._starter.start(run, order)
        self._watcher.on_begun(run.name)
        run.watch_task = self._start_task(self._watch(run))

    async def recover(self, runs: Collection[str]) -> None:
        """Begin to watch the containers of these runs, and remove containers of unknown runs, in the background."""
        for name in runs:
            run = self._runs[name] = ContainerRun(name)
            run.watch_task = self._start_task(self._recover(run))
        self._start_task(self._remove_unknown_containers())

    async def _watch(self, run: ContainerRun) -> None:
        """Watch a container until it has ended. After an unexpected error, begin again: its end must be noticed."""
        while True:
            try:
                await self._container_watcher.watch(run)
            except Exception:
                log.exception("watching a container failed unexpectedly; watching it again run=%s", run.name)
                await asyncio.sleep(RETRY_DELAY_S)
            else:
                return

    async def _recover(self, run: ContainerRun) -> None:
        """Find the container of a run and watch it until it has ended; begin again after an unexpected error."""
        while True:
            try:
                await self._container_watcher.recover(run)
            except Exception:
                log.exception("watching a container failed unexpectedly; watching it again run=%s", run.name)
                await asyncio.sleep(RETRY_DELAY_S)
            else:
                return

    def signal(self, run: str, name: str) -> None:
        """Send the signal `name` to the run in the background; an empty name is SIGTERM."""
        self._signal_in_background(run, add_signal_prefix(name or DEFAULT_KILL_SIGNAL))

    def give_up(self, run: str) -> None:
        """Cancel the start of a run, unless its container is already being created."""
        tracked = self._runs.get(run)
        # A container that is being created is not interrupted; it is stopped after its start.
        if tracked is not None and tracked.start_task is not None and not tracked.container:
            tracked.is_start_canceled = True
            tracked.start_task.cancel()

    def kill(self, run: str) -> None:
        """Send SIGKILL to the run in the background."""
        self._signal_in_background(run, FORCED_KILL_SIGNAL)

    async def run_beside(self, order: CommandOrder) -> Command:
        """Start a command in the container of a running task. Raises CannotStart."""
        tracked = self._runs.get(order.run)
        if tracked is None or not tracked.is_found.is_set():
            raise CannotStart("the task is not running")
        return await start_container_command(self._world, self._engine, tracked.container, order)

    def processes_of(self, run: str) -> list[int]:
        """Return the ids of all processes of a run, for its resource statistics; empty if it does not run."""
        tracked = self._runs.get(run)
        return list_container_processes(tracked.pid, tracked.container) if tracked is not None and tracked.pid else []

    def forget(self, run: str) -> None:
        """Stop tracking a run and remove its container in the background."""
        tracked = self._runs.pop(run, None) or ContainerRun(run)
        self._start_task(self._remove(tracked))

    def has_run(self, run: str) -> bool:
        """Return whether the driver tracks this run."""
        return run in self._runs

    async def close(self) -> None:
        """Cancel all background work and close the connection to the engine. Containers keep running."""
        await cancel_tasks(*self._tasks)
        await self._engine.close()

    # -- signals

    def _signal_in_background(self, run: str, signal: str) -> None:
        """Send a signal to the container of a tracked run in the background; ignored for unknown runs."""
        if (tracked := self._runs.get(run)) is not None:
            tracked.signal_task = self._start_task(self._send_signal(tracked, tracked.signal_task, signal))

    async def _send_signal(self, run: ContainerRun, previous_task: asyncio.Task[None] | None, signal: str) -> None:
        """Send a signal to the run's container, and repeat it until the engine answers.

        `previous_task` sends the run's previous signal; SIGKILL cancels it.
        """
        if previous_task is not None and signal == FORCED_KILL_SIGNAL:
            previous_task.cancel()
        while run.name in self._runs:
            await run.is_found.wait()
            try:
                await self._engine.signal_container(run.container, signal)
                return
            except EngineRejected as error:
                # The container may have ended meanwhile; `ContainerWatcher` reports that.
                if not isinstance(error, EngineNotFound) and error.status != CONFLICT_STATUS:
                    log.warning("signal to container failed run=%s signal=%s error=%s", run.name, signal, error)
                return
            except EngineUnreachable:
                await asyncio.sleep(RETRY_DELAY_S)

    # -- removal

    def _discard_start(self, run: ContainerRun) -> None:
        """Stop tracking a run whose start failed, and remove its container in the background."""
        self._runs.pop(run.name, None)
        self._start_task(self._remove(run))

    async def _remove(self, run: ContainerRun) -> None:
        """Remove the containers and the progress file of a run that is no longer tracked.

        Repeated while the engine is unreachable, unless the engine's socket does not exist and no container was
        created.
        """
        for task in (run.watch_task, run.signal_task):
            if task is not None:
                task.cancel()
        while run.name not in self._runs:
            try:
                for container in await self._engine.list_containers(f"{RUN_LABEL}={run.name}"):
                    await self._engine.remove_container(container.id)
                (self._folder / run.name).unlink(missing_ok=True)
                return
            except EngineRejected as error:
                log.warning("container removal failed run=%s error=%s", run.name, error)
                return
            except EngineUnreachable:
                if not self._socket.exists() and not run.container:
                    return
                await asyncio.sleep(RETRY_DELAY_S)

    async def _remove_unknown_containers(self) -> None:
        """Remove the containers of this node whose run the agent does not track.

        Repeated while the engine is unreachable.
        """
        while True:
            try:
                for container in await self._engine.list_containers(f"{NODE_LABEL}={self._node_id}"):
                    run = (container.labels or {}).get(RUN_LABEL, "")
                    if run not in self._runs and not self._is_current_run(run):
                        log.warning("removing container of unknown run run=%s", run)
                        await self._engine.remove_container(container.id)
                return
            except EngineRejected as error:
                log.warning("listing containers failed error=%s", error)
                return
            except EngineUnreachable:
                await asyncio.sleep(RETRY_DELAY_S)

    async def list_foreign_containers(self) -> list[MarkedContainer]:
        """Return the containers of other nodes; empty without an engine."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                containers = await self._engine.list_containers(NODE_LABEL) if self._socket.exists() else []
        except (TimeoutError, EngineUnreachable, EngineRejected):
            return []
        found = [_read_container_mark(container) for container in containers]
        return [container for container in found if container.owner.node_id != self._node_id]

    async def remove_lost_container(self, container: str) -> None:
        """Remove a container. Errors are logged."""
        try:
            await self._engine.remove_container(container)
        except (EngineUnreachable, EngineRejected) as error:
            log.warning("removal of a lost container failed container=%s error=%s", container, error)

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start the coroutine as an asyncio task, which `close` cancels, and return that task."""
        task = start_supervised(self._world, coroutine, name="container step")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _read_container_mark(container: ContainerListItem) -> MarkedContainer:
    labels = container.labels or {}
    owner = NodeMark(labels.get(NODE_LABEL, ""), labels.get(NODE_FOLDER_LABEL, ""))
    return MarkedContainer(container.id, owner, labels.get(LOG_LABEL_NAMES[0], ""))


def find_socket(configured_path: str) -> Path:
    """Return the engine's socket: the configured path, or else the first default path that exists."""
    paths = [Path(configured_path)] if configured_path else [Path(path) for path in DEFAULT_SOCKET_PATHS]
    return next((path for path in paths if path.exists()), paths[0])
