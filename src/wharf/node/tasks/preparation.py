"""Has each task prepared before it starts, and its files kept true while it runs.

Of every task it is told when it is to be prepared, that it runs, and that it is over; each may be said twice.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from wharf.contract.client import AsyncClient
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.templates import ChangeScript
from wharf.node.tasks.artifacts import fetch_artifacts, write_payload
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.templates.queries import ClusterQueries
from wharf.node.tasks.templates.rendering import TaskTemplates, TemplateChange
from wharf.world import World

log = logging.getLogger(__name__)

RERENDERED_REASON = "Template re-rendered"
RESTART_REASON = "Template with change_mode restart re-rendered"
RENDERING_STOPPED_MESSAGE = "templates cannot be rendered any more"


class TaskControl(Protocol):
    """What can be done about one task."""

    def record_event(self, kind: TaskEventType, message: str = "", **details: str) -> None: ...

    def restart_task(self, reason: str) -> None: ...

    def signal_task(self, name: str, reason: str) -> None:
        """If it runs."""
        ...

    async def run_command(self, command: tuple[str, ...], *, timeout_s: float) -> tuple[int, str]:
        """A command beside it. Raises TimeoutError, OSError."""
        ...


class _Tended:
    def __init__(self, templates: TaskTemplates, tells: TaskControl) -> None:
        self.templates = templates
        self.tells = tells
        self.keeping: asyncio.Task[None] | None = None


class TaskPreparation:
    def __init__(self, world: World, build_task_client: Callable[[TaskContext], AsyncClient]) -> None:
        """`client_of`: servers, asked in the name of the task."""
        self._world = world
        self._client_of = build_task_client
        self._tended: dict[tuple[str, str], _Tended] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def build_environment(self, allocation_id: str, task: str) -> dict[str, str]:
        """What its files add to the variables of a task."""
        tended = self._tended.get((allocation_id, task))
        return dict(tended.templates.environment) if tended is not None else {}

    async def prepare_task(self, work: TaskContext, tells: TaskControl) -> None:
        """Until all is there. Raises TaskSetupError."""
        await write_payload(work)
        await fetch_artifacts(work, tells.record_event)
        if work.task.templates:
            tended = self._tend(work, tells)
            change = await tended.templates.render_initial(tells.record_event)
            await self._run_scripts(tells, change.scripts)

    def keep_rendered(
        self, build_context: Callable[[], TaskContext], allocation_id: str, task: str, tells: TaskControl
    ) -> None:
        """It runs, perhaps since before this agent began: follow what its files were made from."""
        key = (allocation_id, task)
        tended = self._tended.get(key)
        if tended is not None and tended.keeping is not None:
            return
        is_new = tended is None
        if tended is None:
            tended = self._tend(build_context(), tells)
        tended.keeping = self._world.start_task(self._keep(tended, is_new=is_new), name=f"templates of {task}")

    def release(self, allocation_id: str, task: str) -> None:
        tended = self._tended.pop((allocation_id, task), None)
        if tended is None:
            return
        if tended.keeping is not None:
            tended.keeping.cancel()
        ending = self._world.start_task(tended.templates.close(), name=f"end of the templates of {task}")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        for allocation_id, task in list(self._tended):
            self.release(allocation_id, task)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _tend(self, work: TaskContext, tells: TaskControl) -> _Tended:
        key = (work.allocation_id, work.task.name)
        if key not in self._tended:
            templates = TaskTemplates(
                self._world,
                work,
                lambda on_change: ClusterQueries(self._world, self._client_of(work), work.namespace, on_change),
            )
            self._tended[key] = _Tended(templates, tells)
        return self._tended[key]

    async def _keep(self, tended: _Tended, *, is_new: bool) -> None:
        try:
            if is_new:
                # What has changed while nobody looked is told as every other change.
                await self._act(tended.tells, await tended.templates.render_initial(lambda *_, **__: None))
            while True:
                await self._act(tended.tells, await tended.templates.wait_for_change())
        except TaskSetupError as error:
            log.warning("%s: %s", RENDERING_STOPPED_MESSAGE, error)
            tended.tells.record_event(TaskEventType.TEMPLATE, f"{RENDERING_STOPPED_MESSAGE}: {error}")

    async def _act(self, tells: TaskControl, change: TemplateChange) -> None:
        if change.is_restart_required:
            tells.restart_task(RESTART_REASON)
            return
        for signal in change.signals:
            tells.signal_task(signal, RERENDERED_REASON)
        await self._run_scripts(tells, change.scripts)

    async def _run_scripts(self, tells: TaskControl, scripts: tuple[ChangeScript, ...]) -> None:
        for script in scripts:
            command = (script.command, *(script.args or ()))
            try:
                code, output = await tells.run_command(command, timeout_s=script.timeout / 1_000_000_000)
                said = f"exit code {code}: {output[:200]}" if code else ""
            except TimeoutError:
                said = "it did not end in time"
            except OSError as error:
                said = str(error)
            if said:
                tells.record_event(TaskEventType.HOOK_FAILED, f"Template ran script {script.command}: {said}")
                if script.fail_on_error:
                    tells.restart_task(f"Template script {script.command} failed")
            else:
                tells.record_event(TaskEventType.HOOK_MESSAGE, f"Template successfully ran script {script.command}")
