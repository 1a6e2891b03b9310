"""Provides the images of tasks: pulls or loads them and reports progress. Concurrent requests share one pull."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from wharf.contract.model.drivers.docker import DockerConfig
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import SECOND, DurationError, parse_duration_ns
from wharf.node.drivers.docker import responses
from wharf.node.drivers.docker.engine import ContainerEngine, RegistryAuth
from wharf.node.drivers.docker.errors import EngineRejected, EngineUnreachable
from wharf.node.drivers.port import CannotStart, TaskOrder
from wharf.node.files import ReadOnlyFolder
from wharf.node.files.folder import PATH_ESCAPES_MESSAGE
from wharf.world import World
from wharf.world.tasks import start_supervised

PULL_IDLE_TIMEOUT_S: Final = 120.0
"""Seconds without progress after which a pull is canceled."""


def normalize_image_name(image: str) -> str:
    """Return the name of an image with a tag: `web` becomes `web:latest`.

    A name with a digest is unchanged. A leading `https://` or `http://` is removed.
    """
    image = image.removeprefix("https://").removeprefix("http://")
    return image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"


class PullProgress:
    """The progress of an image pull; `str` gives it as one line of text."""

    def __init__(self) -> None:
        self._layers: dict[str, responses.LayerProgress] = {}
        self._last = ""

    def add_line(self, line: responses.PullProgressLine) -> None:
        """Update the progress from a line that the engine sent."""
        if line.id and line.progress_detail and line.progress_detail.total:
            self._layers[line.id] = line.progress_detail
        self._last = (line.status or line.stream).strip() or self._last

    def __str__(self) -> str:
        total = sum(layer.total for layer in self._layers.values())
        if not total:
            return self._last or "started"
        current = sum(min(layer.current, layer.total) for layer in self._layers.values())
        return f"{current / 1e6:.0f} of {total / 1e6:.0f} MB in {len(self._layers)} layers"


class _Pull:
    """A running pull of an image, with the number of callers that wait for it.

    It is canceled when no caller waits.
    """

    def __init__(self, task: asyncio.Task[None], progress: PullProgress) -> None:
        self.task = task
        self.progress = progress
        self.waiters = 0


class ImagePuller:
    """Pulls images; callers that request the same image at the same time share one pull."""

    def __init__(self, engine: ContainerEngine, world: World, *, idle_timeout_s: float = PULL_IDLE_TIMEOUT_S) -> None:
        self._engine = engine
        self._world = world
        self._idle_timeout_s = idle_timeout_s
        self._running: dict[tuple[str, RegistryAuth | None], _Pull] = {}

    async def ensure_image(
        self,
        image: str,
        *,
        auth: RegistryAuth | None = None,
        should_always_pull: bool = False,
        timeout_s: float = 300.0,
        on_pull_started: Callable[[], None] = lambda: None,
    ) -> responses.ImageInfo:
        """Return the image, after pulling it if the engine does not have it.

        It is always pulled if `should_always_pull` or if its tag is `latest`. `on_pull_started` is called before the
        wait for a pull. A pull that no caller waits for is canceled. Raises EngineUnreachable, EngineRejected and
        TimeoutError.
        """
        name = normalize_image_name(image)
        if not should_always_pull and not name.endswith(":latest"):
            existing = await self._engine.find_image(name)
            if existing is not None:
                return existing
        on_pull_started()
        try:
            await self._wait_for_pull(name, auth, timeout_s)
        except EngineRejected:
            # If the registry is unreachable, an image that the engine already has is good enough, unless a pull is forced.
            existing = None if should_always_pull else await self._engine.find_image(name)
            if existing is None:
                raise
            return existing
        existing = await self._engine.find_image(name)
        if existing is None:
            raise EngineRejected(404, f"the engine pulled {name} but does not have it")
        return existing

    def format_progress(self, image: str) -> str:
        """Return the progress of the running pull of this image; empty if there is none."""
        name = normalize_image_name(image)
        return next((str(pull.progress) for (pulled_name, _), pull in self._running.items() if pulled_name == name), "")

    async def _wait_for_pull(self, name: str, auth: RegistryAuth | None, timeout_s: float) -> None:
        """Wait for the running pull of an image, or start one.

        The pull is canceled when the last waiting caller leaves. Raises TimeoutError, EngineUnreachable and
        EngineRejected.
        """
        pull = self._running.get((name, auth))
        if pull is None:
            progress = PullProgress()
            task = self._start_task(self._pull(name, auth, progress), name)
            pull = self._running[name, auth] = _Pull(task, progress)
        pull.waiters += 1
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(pull.task)
        except TimeoutError:
            raise TimeoutError(f"pulling {name} took longer than {timeout_s:.0f} s: {pull.progress}") from None
        finally:
            pull.waiters -= 1
            if not pull.waiters:
                # Removed before the cancellation, so that later requests start a new pull.
                self._running.pop((name, auth), None)
                pull.task.cancel()
                await asyncio.wait([pull.task])

    def _start_task(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start the coroutine as an asyncio task, named after the image, and return that task."""
        return self._world.start_task(coroutine, name=f"pull {name}")

    async def _pull(self, name: str, auth: RegistryAuth | None, progress: PullProgress) -> None:
        """Pull the image and update `progress`.

        Raises TimeoutError if there is no progress for the idle timeout, and EngineUnreachable and EngineRejected.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._idle_timeout_s) as idle_timeout:

            def on_line(line: responses.PullProgressLine) -> None:
                """Record the progress and restart the idle timeout."""
                progress.add_line(line)
                idle_timeout.reschedule(loop.time() + self._idle_timeout_s)

            await self._engine.pull_image(name, auth=auth, on_progress=on_line)


FIRST_PROGRESS_DELAY_S: Final = 5.0
"""Seconds until the first report of progress; the delay then doubles."""


class TaskImages:
    """Provides the images of tasks: pulls or loads them, and reports the progress.

    `report_message` is called with the name of a run and a message for the users of the task.
    """

    def __init__(self, engine: ContainerEngine, world: World, report_message: Callable[[str, str], None]) -> None:
        self._engine = engine
        self._world = world
        self._report_message = report_message
        self._pulls = ImagePuller(engine, world)

    async def ensure_image(self, run: str, config: DockerConfig, order: TaskOrder) -> None:
        """Pull the task's image, or load it from an archive if the config names one.

        With `auth_soft_fail`, a pull that is rejected is repeated without credentials. Raises CannotStart,
        EngineUnreachable and EngineRejected.
        """
        if config.load:
            await self._load(config.load, order)
            return
        auth = _build_auth(config)
        try:
            timeout_s = parse_duration_ns(config.image_pull_timeout) / SECOND
        except DurationError as error:
            raise CannotStart(f"config: image_pull_timeout: {error}", is_final=True) from error
        progress_tasks: list[asyncio.Task[None]] = []

        def on_pull_started() -> None:
            """Report that the download begins, and start to report its progress."""
            self._report_message(run, f"Downloading image {normalize_image_name(config.image)}")
            progress_tasks.append(
                start_supervised(self._world, self._report_progress(run, config.image), name="progress of a pull")
            )

        try:
            for credentials in (auth, None) if auth and config.auth_soft_fail else (auth,):
                try:
                    await self._pulls.ensure_image(
                        config.image,
                        auth=credentials,
                        should_always_pull=config.force_pull,
                        timeout_s=timeout_s,
                        on_pull_started=on_pull_started,
                    )
                    return
                except EngineRejected as error:
                    rejection = error
            raise CannotStart(
                f"image {normalize_image_name(config.image)} cannot be pulled: {rejection}"
            ) from rejection
        except EngineUnreachable as error:
            raise CannotStart(f"the pull of {normalize_image_name(config.image)} was interrupted: {error}") from error
        except TimeoutError as error:
            why = str(error) or f"the registry of {normalize_image_name(config.image)} sends no data"
            raise CannotStart(why) from error
        finally:
            for task in progress_tasks:
                task.cancel()

    async def _report_progress(self, run: str, image: str) -> None:
        """Report the progress of a pull at growing intervals, until canceled."""
        wait_s = FIRST_PROGRESS_DELAY_S
        while True:
            await asyncio.sleep(wait_s)
            if progress := self._pulls.format_progress(image):
                self._report_message(run, f"Downloading image {normalize_image_name(image)}: {progress}")
            wait_s *= 2  # Growing intervals, because only few events of a task are stored.

    async def _load(self, archive: str, order: TaskOrder) -> None:
        """Load the image from an archive in the task's folder.

        Raises CannotStart, EngineUnreachable and EngineRejected.
        """
        try:
            descriptor = ReadOnlyFolder(order.task_folder).open_file(archive)
        except Refusal as refusal:
            if refusal.text == PATH_ESCAPES_MESSAGE or archive.startswith("/"):
                raise CannotStart(f"config: load: {archive} leads out of the task's folder", is_final=True) from refusal
            raise CannotStart(f"config: load: file {archive} does not exist in the task's folder") from refusal
        with os.fdopen(descriptor, "rb") as file:
            await self._engine.load_image(file)


def _build_auth(config: DockerConfig) -> RegistryAuth | None:
    """Return the credentials of the config's block `auth`; None if it has none."""
    auth = config.auth
    return RegistryAuth(auth.username, auth.password, auth.email, auth.server_address) if auth is not None else None
