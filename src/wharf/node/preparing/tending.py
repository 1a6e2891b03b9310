"""Has each task prepared before it starts, and its files kept true while it runs.

Of every task it is told when it is to be prepared, that it runs, and that it is over; each may be said twice.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from wharf.client import AsyncClient
from wharf.model.task_state import TaskEventType
from wharf.model.template import ChangeScript
from wharf.node.preparing.cluster import Cluster
from wharf.node.preparing.fetching import fetch_artifacts, put_payload
from wharf.node.preparing.rendering import Change, TaskTemplates
from wharf.node.preparing.work import NotReady, TaskWork
from wharf.world import World

log = logging.getLogger(__name__)

RENDERED_ANEW = "Template re-rendered"
RESTARTED = "Template with change_mode restart re-rendered"
NO_FILES = "templates cannot be rendered any more"


class Tells(Protocol):
    """What can be done about one task."""

    def say(self, kind: TaskEventType, message: str = "", **details: str) -> None: ...

    def restart(self, reason: str) -> None: ...

    def signal(self, name: str, reason: str) -> None:
        """If it runs."""
        ...

    async def run(self, command: tuple[str, ...], *, within_s: float) -> tuple[int, str]:
        """A command beside it. Raises TimeoutError, OSError."""
        ...


class _Tended:
    def __init__(self, templates: TaskTemplates, tells: Tells) -> None:
        self.templates = templates
        self.tells = tells
        self.keeping: asyncio.Task[None] | None = None


class Tending:
    def __init__(self, world: World, client_of: Callable[[TaskWork], AsyncClient]) -> None:
        """`client_of`: servers, asked in the name of the task."""
        self._world = world
        self._client_of = client_of
        self._tended: dict[tuple[str, str], _Tended] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def environment(self, allocation_id: str, task: str) -> dict[str, str]:
        """What its files add to the variables of a task."""
        tended = self._tended.get((allocation_id, task))
        return dict(tended.templates.environment) if tended is not None else {}

    async def prepare(self, work: TaskWork, tells: Tells) -> None:
        """Until all is there. Raises NotReady."""
        await put_payload(work)
        await fetch_artifacts(work, tells.say)
        if work.task.templates:
            tended = self._tend(work, tells)
            change = await tended.templates.render_first(tells.say)
            await self._run_scripts(tells, change.scripts)

    def keep(self, of: Callable[[], TaskWork], allocation_id: str, task: str, tells: Tells) -> None:
        """It runs, perhaps since before this agent began: follow what its files were made from."""
        key = (allocation_id, task)
        tended = self._tended.get(key)
        if tended is not None and tended.keeping is not None:
            return
        is_new = tended is None
        if tended is None:
            tended = self._tend(of(), tells)
        tended.keeping = self._world.start(self._keep(tended, is_new=is_new), name=f"templates of {task}")

    def end(self, allocation_id: str, task: str) -> None:
        tended = self._tended.pop((allocation_id, task), None)
        if tended is None:
            return
        if tended.keeping is not None:
            tended.keeping.cancel()
        ending = self._world.start(tended.templates.close(), name=f"end of the templates of {task}")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        for allocation_id, task in list(self._tended):
            self.end(allocation_id, task)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _tend(self, work: TaskWork, tells: Tells) -> _Tended:
        key = (work.allocation_id, work.task.name)
        if key not in self._tended:
            templates = TaskTemplates(
                self._world,
                work,
                lambda on_change: Cluster(self._world, self._client_of(work), work.namespace, on_change),
            )
            self._tended[key] = _Tended(templates, tells)
        return self._tended[key]

    async def _keep(self, tended: _Tended, *, is_new: bool) -> None:
        try:
            if is_new:
                # What has changed while nobody looked is told as every other change.
                await self._act(tended.tells, await tended.templates.render_first(lambda *_, **__: None))
            while True:
                await self._act(tended.tells, await tended.templates.next_change())
        except NotReady as error:
            log.warning("%s: %s", NO_FILES, error)
            tended.tells.say(TaskEventType.TEMPLATE, f"{NO_FILES}: {error}")

    async def _act(self, tells: Tells, change: Change) -> None:
        if change.restarts:
            tells.restart(RESTARTED)
            return
        for signal in change.signals:
            tells.signal(signal, RENDERED_ANEW)
        await self._run_scripts(tells, change.scripts)

    async def _run_scripts(self, tells: Tells, scripts: tuple[ChangeScript, ...]) -> None:
        for script in scripts:
            command = (script.command, *(script.args or ()))
            try:
                code, output = await tells.run(command, within_s=script.timeout / 1_000_000_000)
                said = f"exit code {code}: {output[:200]}" if code else ""
            except TimeoutError:
                said = "it did not end in time"
            except OSError as error:
                said = str(error)
            if said:
                tells.say(TaskEventType.HOOK_FAILED, f"Template ran script {script.command}: {said}")
                if script.fail_on_error:
                    tells.restart(f"Template script {script.command} failed")
            else:
                tells.say(TaskEventType.HOOK_MESSAGE, f"Template successfully ran script {script.command}")
