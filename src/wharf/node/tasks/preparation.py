"""Prepares payload, artifacts and templates of each task before it starts, and re-renders its templates while it
runs.

Every call may be repeated: preparing, keeping rendered and releasing the same task twice has no further effect.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from wharf.contract.client import AsyncClient
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.templates import ChangeScript
from wharf.contract.model.times import SECOND
from wharf.node.tasks.artifacts import FetchPermits, fetch_artifacts, write_payload
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.templates.queries import ClusterQueries
from wharf.node.tasks.templates.renderer import TemplateRenderer
from wharf.node.tasks.templates.rendering import TaskTemplates, TemplateChange
from wharf.world import World
from wharf.world.tasks import start_supervised

log = logging.getLogger(__name__)

RERENDERED_REASON = "Template re-rendered"
"""The reason in the history of a task that is sent a signal after a change."""
RESTART_REASON = "Template with change_mode restart re-rendered"
"""The reason in the history of a task that is restarted after a change."""


class TaskControl(Protocol):
    """The operations on a task that its preparation, templates and identities may use."""

    def record_event(self, event_type: TaskEventType, message: str = "", **details: str) -> None:
        """Add an event to the history of the task."""
        ...

    def restart_task(self, reason: str) -> None:
        """Request a restart of the task; the reason appears in its history."""
        ...

    def signal_task(self, signal: str, reason: str) -> None:
        """Send a signal to the task if it runs; the reason appears in its history."""
        ...

    async def run_command(self, command: tuple[str, ...], *, timeout_s: float) -> tuple[int, str]:
        """Run a command beside the task. Return (exit code, output). Raises `TimeoutError` and `OSError`."""
        ...


class _RenderedTask:
    """The templates of one task, and the asyncio task that re-renders them."""

    def __init__(self, templates: TaskTemplates, task_control: TaskControl) -> None:
        self.templates = templates
        self.task_control = task_control
        self.rerendering: asyncio.Task[None] | None = None


class TaskPreparation:
    """Prepares payload, artifacts and templates of the node's tasks, and re-renders the templates."""

    def __init__(
        self, world: World, build_task_client: Callable[[TaskContext], AsyncClient], may_begin: asyncio.Event
    ) -> None:
        """Create the preparation. `build_task_client` returns a client that sends requests with a task's token.

        The templates of tasks that an earlier agent process started are rendered once `may_begin` is set.
        """
        self._may_begin = may_begin
        self._world = world
        self._build_task_client = build_task_client
        self._renderer = TemplateRenderer(world)
        self._fetch_permits = FetchPermits()
        self._rendered_tasks: dict[tuple[str, str], _RenderedTask] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def build_environment(self, allocation_id: str, task: str) -> dict[str, str]:
        """Return the variables that the templates of the task define."""
        rendered_task = self._rendered_tasks.get((allocation_id, task))
        return dict(rendered_task.templates.environment) if rendered_task is not None else {}

    async def prepare_task(self, context: TaskContext, task_control: TaskControl) -> None:
        """Write the payload, fetch the artifacts, render the templates and run their change scripts.

        Raises `TaskSetupError`.
        """
        await write_payload(context)
        await fetch_artifacts(context, task_control.record_event, self._fetch_permits)
        if context.task.templates:
            rendered_task = self._get_or_create(context, task_control)
            change = await rendered_task.templates.render_initial(task_control.record_event)
            await self._run_scripts(task_control, change.scripts)

    def keep_rendered(
        self, build_context: Callable[[], TaskContext], allocation_id: str, task: str, task_control: TaskControl
    ) -> None:
        """Begin to re-render the templates of a running task, which an earlier agent process may have started.

        Does nothing if they are already re-rendered.
        """
        key = (allocation_id, task)
        rendered_task = self._rendered_tasks.get(key)
        if rendered_task is not None and rendered_task.rerendering is not None:
            return
        is_new = rendered_task is None
        if rendered_task is None:
            rendered_task = self._get_or_create(build_context(), task_control)
        rendered_task.rerendering = start_supervised(
            self._world,
            self._rerender(rendered_task, is_new=is_new),
            name=f"templates of {task}",
            on_failure=lambda error: task_control.record_event(
                TaskEventType.TEMPLATE,
                f"the task's templates are no longer rendered: unexpected error of the node: {type(error).__name__}; its "
                "log has the details",
            ),
        )

    def release(self, allocation_id: str, task: str) -> None:
        """Stop re-rendering the templates of a task and begin to close their queries."""
        rendered_task = self._rendered_tasks.pop((allocation_id, task), None)
        if rendered_task is None:
            return
        if rendered_task.rerendering is not None:
            rendered_task.rerendering.cancel()
        closing = start_supervised(self._world, rendered_task.templates.close(), name=f"end of the templates of {task}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Release the templates of all tasks, and wait until their queries are closed."""
        for allocation_id, task in list(self._rendered_tasks):
            self.release(allocation_id, task)
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._renderer.close()

    def _get_or_create(self, context: TaskContext, task_control: TaskControl) -> _RenderedTask:
        """Return the templates of the task; they are created on first use."""
        key = (context.allocation_id, context.task.name)
        if key not in self._rendered_tasks:
            templates = TaskTemplates(
                self._world,
                context,
                lambda on_change: ClusterQueries(
                    self._world, self._build_task_client(context), context.namespace, on_change
                ),
                self._renderer,
            )
            self._rendered_tasks[key] = _RenderedTask(templates, task_control)
        return self._rendered_tasks[key]

    async def _rerender(self, rendered_task: _RenderedTask, *, is_new: bool) -> None:
        """Wait for changes of the templates' data and apply them to the task. Runs until canceled.

        `is_new`: this agent process has not rendered them before, so they are rendered at once.
        """
        try:
            if is_new:
                await self._may_begin.wait()
                # A change while no agent was running counts like any other change.
                await self._apply_change(
                    rendered_task.task_control, await rendered_task.templates.render_initial(lambda *_, **__: None)
                )
            while True:
                await self._apply_change(rendered_task.task_control, await rendered_task.templates.wait_for_change())
        except TaskSetupError as error:
            log.warning("failed to render templates again error=%s", error)
            rendered_task.task_control.record_event(
                TaskEventType.TEMPLATE, f"failed to render templates again: {error}"
            )

    async def _apply_change(self, task_control: TaskControl, change: TemplateChange) -> None:
        """Restart the task, or send it the signals and run the change scripts that the change requires."""
        if change.is_restart_required:
            task_control.restart_task(RESTART_REASON)
            return
        for signal in change.signals:
            task_control.signal_task(signal, RERENDERED_REASON)
        await self._run_scripts(task_control, change.scripts)

    async def _run_scripts(self, task_control: TaskControl, scripts: tuple[ChangeScript, ...]) -> None:
        """Run change scripts beside the task and add their results to its history.

        The task is restarted after a failed script if the job requires that.
        """
        for script in scripts:
            command = (script.command, *(script.args or ()))
            try:
                code, output = await task_control.run_command(command, timeout_s=script.timeout / SECOND)
                failure = f"exit code {code}: {output[:200]}" if code else ""
            except TimeoutError:
                failure = "it did not end in time"
            except OSError as error:
                failure = str(error)
            if failure:
                task_control.record_event(TaskEventType.HOOK_FAILED, f"Template ran script {script.command}: {failure}")
                if script.fail_on_error:
                    task_control.restart_task(f"Template script {script.command} failed")
            else:
                task_control.record_event(
                    TaskEventType.HOOK_MESSAGE, f"Template successfully ran script {script.command}"
                )
