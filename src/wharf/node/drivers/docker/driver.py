"""The driver that runs a task as a container, by the Engine's HTTP API.

The name of the run is a label of its container, which outlives the agent: a start is found again by it, whatever the
journal says, and is made once. Who asks for what the engine cannot do right now waits; what the engine says is told.
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
"""Where its output goes: known also to an agent that forgot the order."""
DEFAULT_SOCKET_PATHS: Final = ("/var/run/docker.sock", "/run/podman/podman.sock")
RETRY_DELAY_S: Final = 1.0
PROBE_TIMEOUT_S: Final = 5.0
ENGINE_WAIT_S: Final = 60.0
"""So long a start waits for an engine that is away."""
CONFLICT_STATUS: Final = 409
BYTES_PER_MB: Final = 1_000_000
CONTAINER_GONE_MESSAGE: Final = (
    "the container is gone: something else than this node removed it, and its exit code with it"
)


class ContainerRun:
    """One container, as long as somebody wants to know of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.container = ""
        self.pid = 0
        """Of its first process, while it is known to run."""
        self.is_found = asyncio.Event()
        self.starting: asyncio.Task[None] | None = None
        self.watching: asyncio.Task[None] | None = None
        self.signaling: asyncio.Task[None] | None = None
        self.is_start_canceled = False


class DockerDriver:
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
        """`folder`: where it keeps how far it has read outputs. `is_wanted`: whether the journal knows of a run."""
        self._world = world
        self._watcher = watcher
        self._socket = socket
        self._engine = ContainerEngine(socket)
        self._images = TaskImages(self._engine, world, watcher.on_said)
        self._settings = settings
        self._node_id = node_id
        self._folder = folder
        self._is_wanted = is_current_run
        self._runs: dict[str, ContainerRun] = {}
        self._doing: set[asyncio.Task[None]] = set()
        self._joins_namespaces = True

    # -- the port `Driver`

    async def probe(self) -> Health:
        if not self._socket.exists():
            return Health(is_healthy=False, is_there=False, why=f"there is no container engine at {self._socket}")
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                version = await self._engine.read_version()
        except TimeoutError:
            return Health(is_healthy=False, why=f"the engine at {self._socket} says nothing for {PROBE_TIMEOUT_S:g} s")
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
            self._clear(run)
            raise CannotStart("it was to end before it had begun") from None
        except CannotStart:
            self._clear(run)
            raise
        finally:
            run.starting = None

    async def recover(self, runs: Collection[str]) -> None:
        for name in runs:
            run = self._runs[name] = ContainerRun(name)
            run.watching = self._begin(self._take_up(run))
        self._begin(self._sweep())

    def signal(self, run: str, name: str) -> None:
        if (known := self._runs.get(run)) is not None:
            known.signaling = self._begin(self._ask(known, known.signaling, _signal(name or "SIGTERM")))

    def give_up(self, run: str) -> None:
        known = self._runs.get(run)
        # A container that is about to be made is left to begin: it is told to end as every other.
        if known is not None and known.starting is not None and not known.container:
            known.is_start_canceled = True
            known.starting.cancel()

    def kill(self, run: str) -> None:
        if (known := self._runs.get(run)) is not None:
            known.signaling = self._begin(self._ask(known, known.signaling, "SIGKILL"))

    async def run_beside(self, order: CommandOrder) -> Command:
        known = self._runs.get(order.run)
        if known is None or not known.is_found.is_set():
            raise CannotStart("the task does not run")
        return await start_container_command(self._world, self._engine, known.container, order)

    def processes_of(self, run: str) -> list[int]:
        """For those who measure."""
        known = self._runs.get(run)
        return list_container_processes(known.pid, known.container) if known is not None and known.pid else []

    def forget(self, run: str) -> None:
        known = self._runs.pop(run, None) or ContainerRun(run)
        self._begin(self._remove(known))

    def has_run(self, run: str) -> bool:
        return run in self._runs

    async def close(self) -> None:
        """Containers go on."""
        for task in list(self._doing):
            task.cancel()
        await asyncio.gather(*self._doing, return_exceptions=True)
        await self._engine.close()

    # -- a start

    async def _start(self, run: ContainerRun, order: TaskOrder) -> None:
        config = self._config(order)
        deadline_s = self._world.monotonic_s() + ENGINE_WAIT_S
        while True:
            try:
                found = await self._find(run.name)
                if found is None:
                    await self._images.ensure_image(run.name, config, order)
                    run.container = "?"  # From here on the engine may have it whatever we hear.
                    run.container = await self._create(config, order)
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
        run.watching = self._begin(self._watch(run))

    def _config(self, order: TaskOrder) -> DockerConfig:
        try:
            return parse_config(order.config, self._settings)
        except DockerConfigError as error:
            raise CannotStart(f"config: {error}", is_final=True) from error

    async def _find(self, run: str) -> responses.ContainerListItem | None:
        return next(iter(await self._engine.list_containers(f"{RUN_LABEL}={run}")), None)

    async def _create(self, config: DockerConfig, order: TaskOrder) -> str:
        if order.network is not None and not self._joins_namespaces:
            why = (
                "this engine joins no network that it has not made: Podman does; else let the group's network be `host`"
            )
            raise CannotStart(why, is_final=True)
        place = self._place(order)
        if strange := [label for label in config.ports if all(port.label != label for port in place.ports)]:
            there = ", ".join(port.label for port in place.ports) or "none"
            why = f"config: ports: the group has no port {', '.join(strange)}; it has {there}"
            raise CannotStart(why, is_final=True)
        body = build_container_body(config, place)
        body["Image"] = normalize_image_name(config.image)
        name = make_container_name(place)
        for attempt in range(max(1, config.container_exists_attempts)):
            try:
                return (await self._engine.create_container(name, body)).id
            except EngineRejected as error:
                if isinstance(error, EngineNotFound):
                    raise CannotStart(
                        f"the image {normalize_image_name(config.image)} is not there: {error}"
                    ) from error
                other = await self._engine.find_container(name)
                if other is None and error.status != CONFLICT_STATUS:
                    raise
                if other is not None:
                    labels = other.config.labels or {}
                    if labels.get(ALLOCATION_LABEL) != order.allocation_id or labels.get(RUN_LABEL) == order.run:
                        raise
                    # An earlier run of the same task, which was not removed yet.
                    await self._engine.remove_container(other.id)
                elif attempt:
                    await asyncio.sleep(RETRY_DELAY_S)
        raise CannotStart(f"the name {name} stays taken by another container")

    def _place(self, order: TaskOrder) -> ContainerContext:
        given, folder = order.given, self._folder / order.run
        folder.parent.mkdir(parents=True, exist_ok=True)
        log_facts = (
            str(order.log_folder) if not order.log.disabled else "",
            order.task,
            str(order.log.max_files),
            str(order.log.max_file_size_mb * BYTES_PER_MB),
        )
        ours = {RUN_LABEL: order.run, NODE_LABEL: self._node_id, **dict(zip(LOG_LABEL_NAMES, log_facts, strict=True))}
        shown = {name: value for name, value in order.labels.items() if name in self._settings.extra_labels}
        return ContainerContext(
            allocation_id=order.allocation_id,
            task=order.task,
            labels={**shown, **ours},
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

    # -- its life

    async def _take_up(self, run: ContainerRun) -> None:
        """Of a run that was under way when the agent ended."""
        while True:
            try:
                found = await self._find(run.name)
                break
            except (EngineUnreachable, EngineRejected) as error:
                log.warning("a container is looked for again: %s", error, extra={"run": run.name})
                await asyncio.sleep(RETRY_DELAY_S)
        if found is None:
            self._watcher.on_ended(run.name, Outcome(UNKNOWN.exit_code, is_known=False, message=CONTAINER_GONE_MESSAGE))
            return
        run.container = found.id
        run.is_found.set()
        self._watcher.on_begun(run.name)
        await self._watch(run)

    async def _watch(self, run: ContainerRun) -> None:
        """Until it has ended, and its output is all there."""
        known = await self._inspect(run)
        if known is None:
            self._watcher.on_ended(run.name, Outcome(UNKNOWN.exit_code, is_known=False, message=CONTAINER_GONE_MESSAGE))
            return
        run.pid = known.state.pid
        follower = self._follower(run, known)
        following = self._world.start_task(follower.follow(), name=f"output of {run.name}") if follower else None
        try:
            ended = await self._wait(run)
        finally:
            run.pid = 0
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        if follower is not None and ended is not None:
            await self._catch_up(follower)
        self._watcher.on_ended(run.name, build_outcome(ended))

    async def _inspect(self, run: ContainerRun) -> responses.ContainerInfo | None:
        while True:
            try:
                return await self._engine.find_container(run.container)
            except (EngineUnreachable, EngineRejected):
                await asyncio.sleep(RETRY_DELAY_S)

    async def _wait(self, run: ContainerRun) -> responses.ContainerInfo | None:
        """What it has become; None where it is no more. An engine that is away is waited for."""
        while True:
            try:
                await self._engine.wait_for_exit(run.container)
            except EngineNotFound:
                return None
            except (EngineUnreachable, EngineRejected):
                await asyncio.sleep(RETRY_DELAY_S)
            known = await self._inspect(run)
            if known is None or (not known.state.running and known.state.status not in ("created", "restarting")):
                return known

    def _follower(self, run: ContainerRun, known: responses.ContainerInfo) -> LogFollower | None:
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
        while True:
            try:
                await follower.catch_up()
                return
            except EngineRejected as error:
                log.warning("the end of a container's output cannot be read: %s", error)
                return
            except (EngineUnreachable, OSError) as error:
                log.warning("the end of a container's output waits: %s", error)
                await asyncio.sleep(RETRY_DELAY_S)

    async def _ask(self, run: ContainerRun, before: asyncio.Task[None] | None, signal: str) -> None:
        """Until the engine has heard it."""
        if before is not None and signal == "SIGKILL":
            before.cancel()
        while run.name in self._runs:
            await run.is_found.wait()
            try:
                await self._engine.signal_container(run.container, signal)
                return
            except EngineRejected as error:
                if error.status not in (404, CONFLICT_STATUS):  # Those do not run any more, which is told elsewhere.
                    log.warning("a container cannot be told %s: %s", signal, error, extra={"run": run.name})
                return
            except EngineUnreachable:
                await asyncio.sleep(RETRY_DELAY_S)

    # -- what is left

    def _clear(self, run: ContainerRun) -> None:
        """Of a start that failed nothing may stay, or begin later."""
        self._runs.pop(run.name, None)
        self._begin(self._remove(run))

    async def _remove(self, run: ContainerRun) -> None:
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
                log.warning("a container cannot be removed: %s", error, extra={"run": run.name})
                return
            except EngineUnreachable:
                if not self._socket.exists() and not run.container:
                    return
                await asyncio.sleep(RETRY_DELAY_S)

    async def _sweep(self) -> None:
        """Containers of this node that nobody remembers are ended, never started again."""
        while True:
            try:
                for found in await self._engine.list_containers(f"{NODE_LABEL}={self._node_id}"):
                    run = (found.labels or {}).get(RUN_LABEL, "")
                    if run not in self._runs and not self._is_wanted(run):
                        log.warning("a container that nobody remembers is removed", extra={"run": run})
                        await self._engine.remove_container(found.id)
                return
            except EngineRejected as error:
                log.warning("containers cannot be listed: %s", error)
                return
            except EngineUnreachable:
                await asyncio.sleep(RETRY_DELAY_S)

    def _begin(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._world.start_task(doing, name="a container's step")
        self._doing.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._doing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a step of a container failed by a fault of ours", exc_info=error)


def find_socket(wanted: str) -> Path:
    """Of the engine: the one that is wanted, or else the first that is where engines put theirs."""
    known = [Path(wanted)] if wanted else [Path(path) for path in DEFAULT_SOCKET_PATHS]
    return next((path for path in known if path.exists()), known[0])


def _signal(name: str) -> str:
    name = name.upper()
    return name if name.startswith("SIG") else f"SIG{name}"


def build_outcome(ended: responses.ContainerInfo | None) -> Outcome:
    if ended is None:
        return Outcome(UNKNOWN.exit_code, is_known=False, message=CONTAINER_GONE_MESSAGE)
    state = ended.state
    return Outcome(state.exit_code, is_out_of_memory=state.oom_killed, message=state.error)
