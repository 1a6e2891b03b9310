"""Images, asked for by many and pulled once: whoever asks for what is on its way waits for the same pull.

The image of a task: pulled or loaded, with its progress told, and with a sentence where it cannot be had.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from wharf.contract.wire.times import DurationError, parse_duration_ns
from wharf.node.drivers.docker import responses
from wharf.node.drivers.docker.config import DockerConfig
from wharf.node.drivers.docker.engine import ContainerEngine, RegistryAuth
from wharf.node.drivers.docker.errors import EngineRejected, EngineUnreachable
from wharf.node.drivers.port import CannotStart, TaskOrder
from wharf.world import World

# An engine that says nothing for so long pulls nothing.
PULL_IDLE_TIMEOUT_S: Final = 120.0


def normalize_image_name(image: str) -> str:
    """With a tag: `web` is `web:latest`. What is named by its digest is left so."""
    image = image.removeprefix("https://").removeprefix("http://")
    return image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"


class PullProgress:
    """How far a pull is, in one line."""

    def __init__(self) -> None:
        self._layers: dict[str, responses.LayerProgress] = {}
        self._last = ""

    def add_line(self, line: responses.PullProgressLine) -> None:
        if line.id and line.progress_detail and line.progress_detail.total:
            self._layers[line.id] = line.progress_detail
        self._last = (line.status or line.stream).strip() or self._last

    def __str__(self) -> str:
        total = sum(layer.total for layer in self._layers.values())
        if not total:
            return self._last or "begun"
        current = sum(min(layer.current, layer.total) for layer in self._layers.values())
        return f"{current / 1e6:.0f} of {total / 1e6:.0f} MB in {len(self._layers)} layers"


class _Pull:
    def __init__(self, task: asyncio.Task[None], progress: PullProgress) -> None:
        self.task = task
        self.progress = progress
        self.waiters = 0


class ImagePuller:
    def __init__(self, engine: ContainerEngine, world: World, *, idle_timeout_s: float = PULL_IDLE_TIMEOUT_S) -> None:
        self._engine = engine
        self._world = world
        self._silent_s = idle_timeout_s
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
        """The image, pulled where it is not there (or `always`, or its tag is `latest`). `begun` is called before one
        waits for a pull. Raises EngineAway, EngineRefused, TimeoutError. What nobody waits for any more is given up."""
        name = normalize_image_name(image)
        if not should_always_pull and not name.endswith(":latest"):
            found = await self._engine.find_image(name)
            if found is not None:
                return found
        on_pull_started()
        try:
            await self._wait_for(name, auth, timeout_s)
        except EngineRejected:
            # A registry that is away should not stop what is here already, unless just the newest will do.
            found = None if should_always_pull else await self._engine.find_image(name)
            if found is None:
                raise
            return found
        found = await self._engine.find_image(name)
        if found is None:
            raise EngineRejected(404, f"{name} was pulled, and is not there")
        return found

    def format_progress(self, image: str) -> str:
        """Of the pull that is on its way; empty if there is none."""
        name = normalize_image_name(image)
        return next((str(pull.progress) for (one, _), pull in self._running.items() if one == name), "")

    async def _wait_for(self, name: str, auth: RegistryAuth | None, timeout_s: float) -> None:
        pull = self._running.get((name, auth))
        if pull is None:
            progress = PullProgress()
            task = self._start(self._pull(name, auth, progress), name)
            pull = self._running[name, auth] = _Pull(task, progress)
        pull.waiters += 1
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(pull.task)
        except TimeoutError:
            raise TimeoutError(f"{name} is not pulled after {timeout_s:.0f} s: {pull.progress}") from None
        finally:
            pull.waiters -= 1
            if not pull.waiters:
                # Before anything else: who asks from now on begins a new one.
                self._running.pop((name, auth), None)
                pull.task.cancel()
                await asyncio.wait([pull.task])

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._world.start_task(work, name=f"pull {name}")

    async def _pull(self, name: str, auth: RegistryAuth | None, progress: PullProgress) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._silent_s) as silence:

            def tell(line: responses.PullProgressLine) -> None:
                progress.add_line(line)
                silence.reschedule(loop.time() + self._silent_s)

            await self._engine.pull_image(name, auth=auth, on_progress=tell)


FIRST_PROGRESS_DELAY_S: Final = 5.0
SECOND_NS: Final = 1_000_000_000


class TaskImages:
    """`say`: (run, message) for the owner of a task."""

    def __init__(self, engine: ContainerEngine, world: World, report_message: Callable[[str, str], None]) -> None:
        self._engine = engine
        self._world = world
        self._say = report_message
        self._pulls = ImagePuller(engine, world)

    async def ensure_image(self, run: str, config: DockerConfig, order: TaskOrder) -> None:
        """Raises CannotStart, EngineUnreachable, EngineRejected."""
        if config.load:
            await self._load(config.load, order)
            return
        auth = _auth(config)
        try:
            timeout_s = parse_duration_ns(config.image_pull_timeout) / SECOND_NS
        except DurationError as error:
            raise CannotStart(f"config: image_pull_timeout: {error}", is_final=True) from error
        telling: list[asyncio.Task[None]] = []

        def begun() -> None:
            self._say(run, f"Downloading image {normalize_image_name(config.image)}")
            telling.append(self._world.start_task(self._tell_progress(run, config.image), name="progress of a pull"))

        try:
            for one in (auth, None) if auth and config.auth_soft_fail else (auth,):
                try:
                    await self._pulls.ensure_image(
                        config.image,
                        auth=one,
                        should_always_pull=config.force_pull,
                        timeout_s=timeout_s,
                        on_pull_started=begun,
                    )
                    return
                except EngineRejected as error:
                    refused = error
            raise CannotStart(
                f"the image {normalize_image_name(config.image)} cannot be pulled: {refused}"
            ) from refused
        except EngineUnreachable as error:
            raise CannotStart(f"the pull of {normalize_image_name(config.image)} was cut: {error}") from error
        except TimeoutError as error:
            told = str(error) or f"the registry of {normalize_image_name(config.image)} says nothing any more"
            raise CannotStart(told) from error
        finally:
            for each in telling:
                each.cancel()

    async def _tell_progress(self, run: str, image: str) -> None:
        wait_s = FIRST_PROGRESS_DELAY_S
        while True:
            await asyncio.sleep(wait_s)
            if progress := self._pulls.format_progress(image):
                self._say(run, f"Downloading image {normalize_image_name(image)}: {progress}")
            wait_s *= 2  # Few events are kept.

    async def _load(self, archive: str, order: TaskOrder) -> None:
        path = (order.task_folder / archive).resolve()
        if not path.is_relative_to(order.task_folder.resolve()):
            raise CannotStart(f"config: load: {archive} leads out of the task's folder", is_final=True)
        if not path.is_file():
            raise CannotStart(f"config: load: there is no file {archive} in the task's folder")
        await self._engine.load_image(path)


def _auth(config: DockerConfig) -> RegistryAuth | None:
    auth = config.auth
    return RegistryAuth(auth.username, auth.password, auth.email, auth.server_address) if auth is not None else None
