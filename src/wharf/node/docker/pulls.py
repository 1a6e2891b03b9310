"""Images, asked for by many and pulled once: whoever asks for what is on its way waits for the same pull."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from wharf.node.docker import shapes
from wharf.node.docker.engine import Auth, Engine
from wharf.node.docker.errors import EngineRefused
from wharf.world import World

# An engine that says nothing for so long pulls nothing.
SILENT_S: Final = 120.0


def full_name(image: str) -> str:
    """With a tag: `web` is `web:latest`. What is named by its digest is left so."""
    image = image.removeprefix("https://").removeprefix("http://")
    return image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"


class Progress:
    """How far a pull is, in one line."""

    def __init__(self) -> None:
        self._layers: dict[str, shapes.Layer] = {}
        self._last = ""

    def hear(self, line: shapes.PullLine) -> None:
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
    def __init__(self, task: asyncio.Task[None], progress: Progress) -> None:
        self.task = task
        self.progress = progress
        self.waiters = 0


class Pulls:
    def __init__(self, engine: Engine, world: World, *, silent_s: float = SILENT_S) -> None:
        self._engine = engine
        self._world = world
        self._silent_s = silent_s
        self._running: dict[tuple[str, Auth | None], _Pull] = {}

    async def ensure(
        self,
        image: str,
        *,
        auth: Auth | None = None,
        always: bool = False,
        timeout_s: float = 300.0,
        begun: Callable[[], None] = lambda: None,
    ) -> shapes.Image:
        """The image, pulled where it is not there (or `always`, or its tag is `latest`). `begun` is called before one
        waits for a pull. Raises EngineAway, EngineRefused, TimeoutError. What nobody waits for any more is given up."""
        name = full_name(image)
        if not always and not name.endswith(":latest"):
            found = await self._engine.image(name)
            if found is not None:
                return found
        begun()
        try:
            await self._wait_for(name, auth, timeout_s)
        except EngineRefused:
            # A registry that is away should not stop what is here already, unless just the newest will do.
            found = None if always else await self._engine.image(name)
            if found is None:
                raise
            return found
        found = await self._engine.image(name)
        if found is None:
            raise EngineRefused(404, f"{name} was pulled, and is not there")
        return found

    def progress(self, image: str) -> str:
        """Of the pull that is on its way; empty if there is none."""
        name = full_name(image)
        return next((str(pull.progress) for (one, _), pull in self._running.items() if one == name), "")

    async def _wait_for(self, name: str, auth: Auth | None, timeout_s: float) -> None:
        pull = self._running.get((name, auth))
        if pull is None:
            progress = Progress()
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
        return self._world.start(work, name=f"pull {name}")

    async def _pull(self, name: str, auth: Auth | None, progress: Progress) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._silent_s) as silence:

            def tell(line: shapes.PullLine) -> None:
                progress.hear(line)
                silence.reschedule(loop.time() + self._silent_s)

            await self._engine.pull(name, auth=auth, tell=tell)
