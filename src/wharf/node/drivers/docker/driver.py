"""The `docker` driver: runs each task as a container, through the engine's HTTP API.

Each container has its run's name as a label and survives the agent. The label finds the container of an earlier start,
so that a run never has two containers. Requests wait and are repeated while the engine is unreachable.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, Final

from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.drivers.docker import responses
from wharf.node.drivers.docker.config import DockerConfig, DockerConfigError, DockerSettings, parse_config
from wharf.node.drivers.docker.container import (
    ALLOCATION_LABEL,
    ContainerContext,
    ContainerPort,
    build_container_body,
    make_container_name,
)
from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.errors import EngineNotFound, EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.exec_command import start_container_command
from wharf.node.drivers.docker.images import TaskImages, normalize_image_name
from wharf.node.drivers.docker.logs import LOG_STREAMS, LogFiles, LogFollower
from wharf.node.drivers.port import CannotStart, Command, CommandOrder, Health, TaskOrder, View, Watcher
from wharf.node.statistics.tasks import list_container_processes
from wharf.world import World

log = logging.getLogger(__name__)

RUN_LABEL: Final = "wharf.run"
NODE_LABEL: Final = "wharf.node"
LOG_LABEL_NAMES: Final = ("wharf.log.folder", "wharf.log.task", "wharf.log.files", "wharf.log.bytes")
"""Labels with the log settings, so that a restarted agent can resume writing the logs."""
DEFAULT_SOCKET_PATHS: Final = ("/var/run/docker.sock", "/run/podman/podman.sock")
RETRY_DELAY_S: Final = 1.0
PROBE_TIMEOUT_S: Final = 5.0
ENGINE_WAIT_S: Final = 60.0
"""Seconds that a start waits for an unreachable engine."""
CONFLICT_STATUS: Final = 409
BYTES_PER_MB: Final = 1_000_000
CONTAINER_GONE_MESSAGE: Final = (
    "the container is gone: something else than this node removed it, and its exit code with it"
)


class ContainerRun:
    """The container of one run, while the agent tracks the run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.container = ""
        self.pid = 0
        """Process id of the container's first process; 0 if it is not known to run."""
        self.is_found = asyncio.Event()
        self.starting: asyncio.Task[None] | None = None
        self.watching: asyncio.Task[None] | None = None
        self.signaling: asyncio.Task[None] | None = None
        self.is_start_canceled = False


class DockerDriver:
    """Creates, watches and removes the containers of this node."""

    name = "docker"
    view = View.OWN

    def __init__(
        self,
        world: World,
        watcher: Watcher,
        *,
        socket: Path,
        settings: DockerSettings,
        node_id: str,
        folder: Path,
        is_current_run: Callable[[str], bool],
    ) -> None:
        """`folder`: stores how much output of each container was read.

        `is_current_run`: whether the agent tracks a run.
        """
        self._world = world
        self._watcher = watcher
        self._socket = socket
        self._engine = ContainerEngine(socket)
        self._images = TaskImages(self._engine, world, watcher.on_said)
        self._settings = settings
        self._node_id = node_id
        self._folder = folder
        self._is_current_run = is_current_run
        self._runs: dict[str, ContainerRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._joins_namespaces = True

    # -- the port `Driver`

    async def probe(self) -> Health:
        if not self._socket.exists():
            return Health(is_healthy=False, is_there=False, why=f"there is no container engine at {self._socket}")
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                version = await self._engine.read_version()
        except TimeoutError:
            return Health(
                is_healthy=False, why=f"the engine at {self._socket} did not answer within {PROBE_TIMEOUT_S:g} s"
            )
        except (EngineUnreachable, EngineRejected) as error:
            return Health(is_healthy=False, why=str(error))
        self._joins_namespaces = version.is_podman
        attributes = {"driver.docker.version": version.version, "driver.docker.os_type": version.os}
        return Health(is_healthy=True, attributes={name: value for name, value in attributes.items() if value})

    async def start(self, order: TaskOrder) -> None:
        if order.run in self._runs:
            return
        run = self._runs[order.run] = ContainerRun(order.run)
        run.starting = self._world.start_task(self._start(run, order), name=f"container {order.run}")
        try:
            await asyncio.shield(run.starting)
        except asyncio.CancelledError:
            if not run.is_start_canceled:
                raise
            self._discard_start(run)
            raise CannotStart("the task was stopped before it had begun") from None
        except CannotStart:
            self._discard_start(run)
            raise
        finally:
            run.starting = None

    async def recover(self, runs: Collection[str]) -> None:
        for name in runs:
            run = self._runs[name] = ContainerRun(name)
            run.watching = self._start_task(self._recover_run(run))
        self._start_task(self._sweep())

    def signal(self, run: str, name: str) -> None:
        if (known := self._runs.get(run)) is not None:
            known.signaling = self._start_task(
                self._send_signal(known, known.signaling, _add_signal_prefix(name or "SIGTERM"))
            )

    def give_up(self, run: str) -> None:
        known = self._runs.get(run)
        # A container that is being created is not interrupted; it is stopped after its start.
        if known is not None and known.starting is not None and not known.container:
            known.is_start_canceled = True
            known.starting.cancel()

    def kill(self, run: str) -> None:
        if (known := self._runs.get(run)) is not None:
            known.signaling = self._start_task(self._send_signal(known, known.signaling, "SIGKILL"))

    async def run_beside(self, order: CommandOrder) -> Command:
        known = self._runs.get(order.run)
        if known is None or not known.is_found.is_set():
            raise CannotStart("the task does not run")
        return await start_container_command(self._world, self._engine, known.container, order)

    def processes_of(self, run: str) -> list[int]:
        """Return the process ids of a run, for its resource statistics."""
        known = self._runs.get(run)
        return list_container_processes(known.pid, known.container) if known is not None and known.pid else []

    def forget(self, run: str) -> None:
        known = self._runs.pop(run, None) or ContainerRun(run)
        self._start_task(self._remove(known))

    def has_run(self, run: str) -> bool:
        """Return whether the driver tracks this run."""
        return run in self._runs

    async def close(self) -> None:
        """Stop watching. Containers keep running."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._engine.close()

    # -- start

    async def _start(self, run: ContainerRun, order: TaskOrder) -> None:
        """Create and start the container, or continue an earlier start of this run. Raises CannotStart."""
        config = self._parse_config(order)
        deadline_s = self._world.monotonic_s() + ENGINE_WAIT_S
        while True:
            try:
                found = await self._find_container(run.name)
                if found is None:
                    await self._images.ensure_image(run.name, config, order)
                    run.container = "?"  # Marks that the engine may have created it, even if the request fails.
                    run.container = await self._create_container(config, order)
                else:
                    run.container = found.id
                run.is_found.set()
                if found is None or found.state == "created":
                    await self._engine.start_container(run.container)
                break
            except EngineUnreachable as error:
                if self._world.monotonic_s() > deadline_s:
                    raise CannotStart(str(error)) from error
                await asyncio.sleep(RETRY_DELAY_S)
            except EngineRejected as error:
                raise CannotStart(f"the container engine refuses: {error}") from error
        self._watcher.on_begun(run.name)
        run.watching = self._start_task(self._watch(run))

    def _parse_config(self, order: TaskOrder) -> DockerConfig:
        """Parse the task's config. Raises CannotStart."""
        try:
            return parse_config(order.config, self._settings)
        except DockerConfigError as error:
            raise CannotStart(f"config: {error}", is_final=True) from error

    async def _find_container(self, run: str) -> responses.ContainerListItem | None:
        """Return the container of a run; None if it has none."""
        return next(iter(await self._engine.list_containers(f"{RUN_LABEL}={run}")), None)

    async def _create_container(self, config: DockerConfig, order: TaskOrder) -> str:
        """Create the container and return its id.

        Removes the container of an earlier run of the same task. Raises CannotStart and EngineRejected.
        """
        if order.network is not None and not self._joins_namespaces:
            why = "this engine cannot join the group's network: use Podman, or set the group's network mode to `host`"
            raise CannotStart(why, is_final=True)
        context = self._build_context(order)
        if unknown_ports := [label for label in config.ports if all(port.label != label for port in context.ports)]:
            known_ports = ", ".join(port.label for port in context.ports) or "none"
            why = f"config: ports: the group has no port {', '.join(unknown_ports)}; it has {known_ports}"
            raise CannotStart(why, is_final=True)
        body = build_container_body(config, context)
        body["Image"] = normalize_image_name(config.image)
        name = make_container_name(context)
        for attempt in range(max(1, config.container_exists_attempts)):
            try:
                return (await self._engine.create_container(name, body)).id
            except EngineRejected as error:
                if isinstance(error, EngineNotFound):
                    raise CannotStart(
                        f"the image {normalize_image_name(config.image)} is not there: {error}"
                    ) from error
                existing = await self._engine.find_container(name)
                if existing is None and error.status != CONFLICT_STATUS:
                    raise
                if existing is not None:
                    labels = existing.config.labels or {}
                    if labels.get(ALLOCATION_LABEL) != order.allocation_id or labels.get(RUN_LABEL) == order.run:
                        raise
                    # The container of an earlier run of this task, not removed yet.
                    await self._engine.remove_container(existing.id)
                elif attempt:
                    await asyncio.sleep(RETRY_DELAY_S)
        raise CannotStart(f"the container name {name} is in use by another container")

    def _build_context(self, order: TaskOrder) -> ContainerContext:
        """Collect what the node adds to the task's config."""
        given, folder = order.given, self._folder / order.run
        folder.parent.mkdir(parents=True, exist_ok=True)
        log_settings = (
            str(order.log_folder) if not order.log.disabled else "",
            order.task,
            str(order.log.max_files),
            str(order.log.max_file_size_mb * BYTES_PER_MB),
        )
        own_labels = {
            RUN_LABEL: order.run,
            NODE_LABEL: self._node_id,
            **dict(zip(LOG_LABEL_NAMES, log_settings, strict=True)),
        }
        selected_labels = {name: value for name, value in order.labels.items() if name in self._settings.extra_labels}
        return ContainerContext(
            allocation_id=order.allocation_id,
            task=order.task,
            labels={**selected_labels, **own_labels},
            environment=order.environment,
            allocation_folder=str(order.shared_folder),
            local_folder=str(order.task_folder / "local"),
            secrets_folder=str(order.task_folder / "secrets"),
            memory_mb=given.memory_mb,
            memory_max_mb=given.memory_max_mb,
            cpu_mhz=given.cpu_mhz,
            cpu_total_mhz=given.cpu_total_mhz,
            cores=given.cores,
            ports=tuple(ContainerPort(*port) for port in given.ports),
            volumes=tuple((volume.path, volume.target, volume.is_read_only) for volume in given.volumes),
            user=order.user,
            network=order.network.namespace if order.network is not None else "",
            files=order.network.files if order.network is not None else (),
            hostname=order.network.hostname if order.network is not None else "",
            devices=tuple((device.path, device.target, device.permissions) for device in given.devices),
            log_mb=len(LOG_STREAMS) * order.log.max_files * order.log.max_file_size_mb,
        )

    # -- watch

    async def _recover_run(self, run: ContainerRun) -> None:
        """Watch the container of a run that was active when the agent ended."""
        while True:
            try:
                found = await self._find_container(run.name)
                break
            except (EngineUnreachable, EngineRejected) as error:
                log.warning("container lookup failed; retrying run=%s error=%s", run.name, error)
                await asyncio.sleep(RETRY_DELAY_S)
        if found is None:
            self._watcher.on_ended(run.name, Outcome(UNKNOWN.exit_code, is_known=False, message=CONTAINER_GONE_MESSAGE))
            return
        run.container = found.id
        run.is_found.set()
        self._watcher.on_begun(run.name)
        await self._watch(run)

    async def _watch(self, run: ContainerRun) -> None:
        """Copy the container's output and report its end after all output is written."""
        known = await self._inspect_container(run)
        if known is None:
            self._watcher.on_ended(run.name, Outcome(UNKNOWN.exit_code, is_known=False, message=CONTAINER_GONE_MESSAGE))
            return
        run.pid = known.state.pid
        follower = self._create_log_follower(run, known)
        following = self._world.start_task(follower.follow(), name=f"output of {run.name}") if follower else None
        try:
            ended = await self._wait_for_end(run)
        finally:
            run.pid = 0
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        if follower is not None and ended is not None:
            await self._catch_up(follower)
        self._watcher.on_ended(run.name, build_outcome(ended))

    async def _inspect_container(self, run: ContainerRun) -> responses.ContainerInfo | None:
        """Return the container's state; None if it was removed. Repeats the request until the engine answers."""
        while True:
            try:
                return await self._engine.find_container(run.container)
            except (EngineUnreachable, EngineRejected):
                await asyncio.sleep(RETRY_DELAY_S)

    async def _wait_for_end(self, run: ContainerRun) -> responses.ContainerInfo | None:
        """Wait for the container's end and return its final state; None if it was removed.

        Waits as long as the engine is unreachable.
        """
        while True:
            try:
                await self._engine.wait_for_exit(run.container)
            except EngineNotFound:
                return None
            except (EngineUnreachable, EngineRejected):
                await asyncio.sleep(RETRY_DELAY_S)
            known = await self._inspect_container(run)
            if known is None or (not known.state.running and known.state.status not in ("created", "restarting")):
                return known

    def _create_log_follower(self, run: ContainerRun, known: responses.ContainerInfo) -> LogFollower | None:
        """Return what copies the container's output to the log files; None if it has no log folder."""
        labels = known.config.labels or {}
        folder, task, count, size = (labels.get(name, "") for name in LOG_LABEL_NAMES)
        if not folder or not Path(folder).is_dir():
            return None
        files = {
            stream: LogFiles(Path(folder), task, stream, max_files=int(count), max_file_bytes=int(size))
            for stream in LOG_STREAMS
        }
        return LogFollower(
            self._engine, run.container, is_tty=known.config.tty, files=files, progress_file=self._folder / run.name
        )

    async def _catch_up(self, follower: LogFollower) -> None:
        """Copy the rest of an ended container's output."""
        while True:
            try:
                await follower.catch_up()
                return
            except EngineRejected as error:
                log.warning("rest of container output cannot be read error=%s", error)
                return
            except (EngineUnreachable, OSError) as error:
                log.warning("rest of container output cannot be read; retrying error=%s", error)
                await asyncio.sleep(RETRY_DELAY_S)

    async def _send_signal(self, run: ContainerRun, before: asyncio.Task[None] | None, signal: str) -> None:
        """Send a signal, and repeat it until the engine answers.

        `before`: the task of the run's previous signal, which SIGKILL cancels.
        """
        if before is not None and signal == "SIGKILL":
            before.cancel()
        while run.name in self._runs:
            await run.is_found.wait()
            try:
                await self._engine.signal_container(run.container, signal)
                return
            except EngineRejected as error:
                if error.status not in (
                    404,
                    CONFLICT_STATUS,
                ):  # The container does not run any more; its end is reported by `_watch`.
                    log.warning("signal to container failed run=%s signal=%s error=%s", run.name, signal, error)
                return
            except EngineUnreachable:
                await asyncio.sleep(RETRY_DELAY_S)

    # -- remove

    def _discard_start(self, run: ContainerRun) -> None:
        """Remove what a failed start left behind."""
        self._runs.pop(run.name, None)
        self._start_task(self._remove(run))

    async def _remove(self, run: ContainerRun) -> None:
        """Remove the containers and the stored state of a run that is no longer tracked."""
        for task in (run.watching, run.signaling):
            if task is not None:
                task.cancel()
        while run.name not in self._runs:
            try:
                for found in await self._engine.list_containers(f"{RUN_LABEL}={run.name}"):
                    await self._engine.remove_container(found.id)
                (self._folder / run.name).unlink(missing_ok=True)
                return
            except EngineRejected as error:
                log.warning("container removal failed run=%s error=%s", run.name, error)
                return
            except EngineUnreachable:
                if not self._socket.exists() and not run.container:
                    return
                await asyncio.sleep(RETRY_DELAY_S)

    async def _sweep(self) -> None:
        """Remove containers of this node whose run the agent does not track."""
        while True:
            try:
                for found in await self._engine.list_containers(f"{NODE_LABEL}={self._node_id}"):
                    run = (found.labels or {}).get(RUN_LABEL, "")
                    if run not in self._runs and not self._is_current_run(run):
                        log.warning("removing container of unknown run run=%s", run)
                        await self._engine.remove_container(found.id)
                return
            except EngineRejected as error:
                log.warning("listing containers failed error=%s", error)
                return
            except EngineUnreachable:
                await asyncio.sleep(RETRY_DELAY_S)

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in a task that `close` cancels."""
        task = self._world.start_task(coroutine, name="container step")
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Log an unexpected exception of a task."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("container step failed unexpectedly", exc_info=error)


def find_socket(configured_path: str) -> Path:
    """Return the engine's socket: the configured path, or else the first default path that exists."""
    known = [Path(configured_path)] if configured_path else [Path(path) for path in DEFAULT_SOCKET_PATHS]
    return next((path for path in known if path.exists()), known[0])


def _add_signal_prefix(name: str) -> str:
    """Return the upper-case name with `SIG`."""
    name = name.upper()
    return name if name.startswith("SIG") else f"SIG{name}"


def build_outcome(ended: responses.ContainerInfo | None) -> Outcome:
    """Return the outcome of an ended container; unknown if it was removed."""
    if ended is None:
        return Outcome(UNKNOWN.exit_code, is_known=False, message=CONTAINER_GONE_MESSAGE)
    state = ended.state
    return Outcome(state.exit_code, is_out_of_memory=state.oom_killed, message=state.error)
