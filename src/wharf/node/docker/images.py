"""The image of a task: pulled or loaded, with its progress told, and with a sentence where it cannot be had."""

import asyncio
from collections.abc import Callable
from typing import Final

from wharf.node.docker.config import DockerConfig
from wharf.node.docker.engine import Auth, Engine
from wharf.node.docker.errors import EngineAway, EngineRefused
from wharf.node.docker.pulls import Pulls, full_name
from wharf.node.drivers.port import CannotStart, TaskOrder
from wharf.wire.go_duration import DurationError, parse_duration_ns
from wharf.world import World

TELL_FIRST_S: Final = 5.0
SECOND_NS: Final = 1_000_000_000


class Images:
    """`say`: (run, message) for the owner of a task."""

    def __init__(self, engine: Engine, world: World, say: Callable[[str, str], None]) -> None:
        self._engine = engine
        self._world = world
        self._say = say
        self._pulls = Pulls(engine, world)

    async def ensure(self, run: str, config: DockerConfig, order: TaskOrder) -> None:
        """Raises CannotStart, EngineAway, EngineRefused."""
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
            self._say(run, f"Downloading image {full_name(config.image)}")
            telling.append(self._world.start(self._tell_progress(run, config.image), name="progress of a pull"))

        try:
            for one in (auth, None) if auth and config.auth_soft_fail else (auth,):
                try:
                    await self._pulls.ensure(
                        config.image, auth=one, always=config.force_pull, timeout_s=timeout_s, begun=begun
                    )
                    return
                except EngineRefused as error:
                    refused = error
            raise CannotStart(f"the image {full_name(config.image)} cannot be pulled: {refused}") from refused
        except EngineAway as error:
            raise CannotStart(f"the pull of {full_name(config.image)} was cut: {error}") from error
        except TimeoutError as error:
            told = str(error) or f"the registry of {full_name(config.image)} says nothing any more"
            raise CannotStart(told) from error
        finally:
            for each in telling:
                each.cancel()

    async def _tell_progress(self, run: str, image: str) -> None:
        wait_s = TELL_FIRST_S
        while True:
            await asyncio.sleep(wait_s)
            if progress := self._pulls.progress(image):
                self._say(run, f"Downloading image {full_name(image)}: {progress}")
            wait_s *= 2  # Few events are kept.

    async def _load(self, archive: str, order: TaskOrder) -> None:
        path = (order.task_folder / archive).resolve()
        if not path.is_relative_to(order.task_folder.resolve()):
            raise CannotStart(f"config: load: {archive} leads out of the task's folder", is_final=True)
        if not path.is_file():
            raise CannotStart(f"config: load: there is no file {archive} in the task's folder")
        await self._engine.load(path)


def _auth(config: DockerConfig) -> Auth | None:
    auth = config.auth
    return Auth(auth.username, auth.password, auth.email, auth.server_address) if auth is not None else None
