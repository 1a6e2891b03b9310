"""Watches running containers: copies their output to the task's log files and reports how they ended."""

import asyncio
import logging
import os
from functools import partial
from pathlib import Path
from typing import Final

from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.drivers.docker import responses
from wharf.node.drivers.docker.container import LOG_LABEL_NAMES, LOG_STREAMS, RUN_LABEL
from wharf.node.drivers.docker.container_events import ContainerEvents
from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.errors import EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.logs import LogFollower
from wharf.node.drivers.port import Watcher
from wharf.node.log_folder import LogFolder
from wharf.node.rotated_files import RotatedFiles
from wharf.world import World
from wharf.world.tasks import cancel_tasks, start_supervised

log = logging.getLogger(__name__)

RETRY_DELAY_S: Final = 1.0
"""Seconds before a request is repeated."""
RECHECK_DELAY_S: Final = 0.5
"""Seconds before a container is checked again that still runs after an event, or that was killed."""
REMOVAL_S: Final = 2.0
"""Seconds in which an engine that killed a container in order to remove it does so; half a second if it is not busy."""
UNENDED_STATUSES: Final = ("created", "restarting", "stopping", "removing")
"""States of a container that does not count as running, but whose end is not final: its exit code is not known yet."""
KILLED_EXIT_CODE: Final = 137
"""The exit code of a container that was killed by signal 9."""
CONTAINER_GONE_MESSAGE: Final = (
    "the container does not exist any more: it was removed by something other than this node, and its exit code is lost"
)


class ContainerRun:
    """The container of one run (one start of a task), and the agent's asyncio tasks for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.container = ""
        """The container's id; empty before it is created."""
        self.pid = 0
        """Process id of the container's first process; 0 if it is not known to run."""
        self.is_found = asyncio.Event()
        """Set when the container exists."""
        self.start_task: asyncio.Task[None] | None = None
        self.watch_task: asyncio.Task[None] | None = None
        self.signal_task: asyncio.Task[None] | None = None
        """Sends the latest signal."""
        self.is_start_canceled = False


async def find_run_container(engine: ContainerEngine, run: str) -> responses.ContainerListItem | None:
    """Return the container of a run; None if it has none. Raises EngineUnreachable and EngineRejected."""
    return next(iter(await engine.list_containers(f"{RUN_LABEL}={run}")), None)


class ContainerWatcher:
    """Watches running containers: copies their output and reports their ends to `watcher`.

    `progress_folder` is for files with the position up to which each container's output was copied.
    """

    def __init__(self, world: World, engine: ContainerEngine, watcher: Watcher, progress_folder: Path) -> None:
        self._world = world
        self._engine = engine
        self._watcher = watcher
        self._progress_folder = progress_folder
        self._events = ContainerEvents(world, engine)

    async def recover(self, run: ContainerRun) -> None:
        """Find the container of a run that was active when the agent ended, and watch it until its end.

        If it does not exist, an unknown outcome is reported.
        """
        while True:
            try:
                container = await find_run_container(self._engine, run.name)
                break
            except (EngineUnreachable, EngineRejected) as error:
                log.warning("container lookup failed; retrying run=%s error=%s", run.name, error)
                await asyncio.sleep(RETRY_DELAY_S)
        if container is None:
            self._watcher.on_ended(run.name, build_outcome(None))
            return
        run.container = container.id
        run.is_found.set()
        self._watcher.on_begun(run.name)
        await self.watch(run)

    async def watch(self, run: ContainerRun) -> None:
        """Copy the container's output until it ends, then report its outcome.

        The outcome is reported after all output is written.
        """
        info = await self._inspect(run)
        if info is None:
            self._watcher.on_ended(run.name, build_outcome(None))
            return
        run.pid = info.state.pid
        follower = self._build_log_follower(run, info)
        follow_task = (
            start_supervised(self._world, follower.follow(), name=f"output of {run.name}") if follower else None
        )
        try:
            ended = await self._wait_for_end(run)
        finally:
            run.pid = 0
            if follow_task is not None:
                await cancel_tasks(follow_task)
        if follower is not None and ended is not None:
            await self._copy_remaining_output(follower)
        self._watcher.on_ended(run.name, build_outcome(ended))

    async def _inspect(self, run: ContainerRun) -> responses.ContainerInfo | None:
        """Return the container's details; None if it was removed. The request is repeated until the engine answers."""
        while True:
            try:
                return await self._engine.find_container(run.container)
            except (EngineUnreachable, EngineRejected):
                await asyncio.sleep(RETRY_DELAY_S)

    async def _wait_for_end(self, run: ContainerRun) -> responses.ContainerInfo | None:
        """Wait until the container has ended. Return its final details; None if it was removed.

        Waits as long as the engine is unreachable.
        """
        was_woken = False
        with self._events.subscribe(run.container) as may_have_ended:
            while True:
                may_have_ended.clear()
                info = await self._inspect(run)
                if info is None:
                    return None
                if not info.state.running and info.state.status not in UNENDED_STATUSES:
                    return await self._confirm_kill(run, info)
                # An engine may send the event shortly before it stores the new state.
                wait_s = RECHECK_DELAY_S if was_woken else self._events.check_interval_s
                try:
                    async with asyncio.timeout(wait_s):
                        was_woken = await may_have_ended.wait()
                except TimeoutError:
                    was_woken = False

    async def _confirm_kill(self, run: ContainerRun, ended: responses.ContainerInfo) -> responses.ContainerInfo | None:
        """Return the details of an ended container; `None` if it was killed in order to be removed.

        An engine that removes a running container first kills it.
        """
        if ended.state.exit_code != KILLED_EXIT_CODE or ended.state.oom_killed:
            return ended
        latest: responses.ContainerInfo | None = ended
        for _ in range(round(REMOVAL_S / RECHECK_DELAY_S)):
            await asyncio.sleep(RECHECK_DELAY_S)
            latest = await self._inspect(run)
            if latest is None:
                break
        return latest

    def _build_log_follower(self, run: ContainerRun, info: responses.ContainerInfo) -> LogFollower | None:
        """Return the object that copies the container's output to the log files.

        None if the container has no label with a log folder, or the folder does not exist.
        """
        labels = info.config.labels or {}
        folder, task, max_files, max_file_bytes = (labels.get(name, "") for name in LOG_LABEL_NAMES)
        if not folder or not Path(folder).is_dir():
            return None
        log_folder = LogFolder(Path(folder), should_create=True)
        files = {
            stream: RotatedFiles(
                log_folder,
                task,
                stream,
                max_files=int(max_files),
                max_file_bytes=int(max_file_bytes),
                open_flags=os.O_APPEND,
            )
            for stream in LOG_STREAMS
        }
        progress_file = self._progress_folder / run.name
        return LogFollower(
            self._engine,
            run.container,
            is_tty=info.config.tty,
            files=files,
            progress_file=progress_file,
            report=partial(self._watcher.on_said, run.name),
        )

    async def _copy_remaining_output(self, follower: LogFollower) -> None:
        """Copy the rest of an ended container's output; repeat until it succeeds or the engine rejects the request."""
        last_error = ""
        while True:
            try:
                await follower.catch_up()
                return
            except EngineRejected as error:
                log.warning("rest of container output cannot be read error=%s", error)
                return
            except (EngineUnreachable, OSError) as error:
                if str(error) != last_error:  # Log each error once.
                    last_error = str(error)
                    log.warning("rest of container output cannot be read; retrying error=%s", error)
                await asyncio.sleep(RETRY_DELAY_S)


def build_outcome(ended: responses.ContainerInfo | None) -> Outcome:
    """Return the outcome of an ended container; the unknown outcome if it is None because it was removed."""
    if ended is None:
        return Outcome(UNKNOWN.exit_code, is_known=False, message=CONTAINER_GONE_MESSAGE)
    state = ended.state
    return Outcome(state.exit_code, is_out_of_memory=state.oom_killed, message=state.error)
