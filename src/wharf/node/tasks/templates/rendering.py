"""Renders the templates of one task before it starts, and again whenever their data change."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.templates import ChangeMode, ChangeScript, Template
from wharf.contract.model.times import SECOND
from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError
from wharf.node.tasks.artifacts import TaskEventRecorder
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.templates.messages import QueryAnswer, RenderedFile, RenderOrder, TemplateOrder
from wharf.node.tasks.templates.queries import ClusterQueries, QueryKey
from wharf.node.tasks.templates.renderer import RenderingFailed, RenderOwner, TemplateRenderer
from wharf.world import World

MISSING_NOTICE_DELAY_S: Final = 3.0
"""Seconds of waiting after which the task's history shows which data are missing; most data arrive sooner."""
FILE_POLL_INTERVAL_S: Final = 1.0
"""Seconds between attempts while a template reads files, because nothing reports new files."""
SETTLE_DELAY_S: Final = 0.2
"""Seconds to wait after a change, so that changes that happen together are rendered together."""


MAX_FILE_MODE: Final = 0o7777
MAX_OWNER_ID: Final = 2**32 - 2
"""The largest number of a user or group in Linux."""


class TemplateChange(msgspec.Struct, frozen=True):
    """The actions that a rendering requires of the task. A restart makes the other actions unnecessary."""

    is_restart_required: bool = False
    signals: tuple[str, ...] = ()
    scripts: tuple[ChangeScript, ...] = ()

    def __bool__(self) -> bool:
        return self.is_restart_required or bool(self.signals) or bool(self.scripts)


class _RenderOutcome(NamedTuple):
    """The outcome of one rendering: what the task must do, or what is missing."""

    change: TemplateChange = TemplateChange()
    missing: tuple[str, ...] = ()
    reads_files: bool = False


class TaskTemplates:
    """The templates of one task. Close it when the task has ended."""

    def __init__(
        self,
        world: World,
        context: TaskContext,
        build_queries: Callable[[Callable[[], None]], ClusterQueries],
        renderer: TemplateRenderer,
    ) -> None:
        """Create the templates. `build_queries` creates the cluster queries.

        Its argument is a function that is called when a result of a query changes.
        """
        self._world = world
        self._context = context
        self._renderer = renderer
        self._owner = RenderOwner(context.namespace, context.job_id or context.allocation_id)
        self._has_changed = asyncio.Event()
        self._cluster = build_queries(self._has_changed.set)
        self._templates = context.task.templates or ()
        self.environment: dict[str, str] = {}
        """The variables that templates with `envvars` define."""

    async def close(self) -> None:
        """Stop following the cluster queries of the templates."""
        await self._cluster.close()

    async def render_initial(self, record_event: TaskEventRecorder) -> TemplateChange:
        """Wait until all data of the templates exist, then write the files. Return what the task must do.

        A longer wait is added to the task's history. Raises `TaskSetupError`.
        """
        recorded: tuple[str, ...] = ()
        began_s = self._world.monotonic_s()
        while True:
            self._has_changed.clear()
            rendering = await self._render_and_write(range(len(self._templates)), is_first=True)
            if not rendering.missing:
                return rendering.change
            missing = rendering.missing
            # Most missing data arrive soon; only a longer wait is shown in the task's history.
            if recorded != missing and self._world.monotonic_s() - began_s >= MISSING_NOTICE_DELAY_S:
                recorded = missing
                record_event(TaskEventType.TEMPLATE, f"Missing: {', '.join(missing)}")
            wait_s = MISSING_NOTICE_DELAY_S - (self._world.monotonic_s() - began_s) if recorded != missing else None
            if rendering.reads_files:  # Nothing reports a new file.
                wait_s = FILE_POLL_INTERVAL_S if wait_s is None else min(wait_s, FILE_POLL_INTERVAL_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._has_changed.wait()

    async def wait_for_change(self) -> TemplateChange:
        """Wait until a rendered file has changed, write it, and wait for the configured random delay (splay).

        Return what the task must do. Raises `TaskSetupError`.
        """
        while True:
            await self._has_changed.wait()
            await asyncio.sleep(SETTLE_DELAY_S)
            self._has_changed.clear()
            numbers = [number for number, template in enumerate(self._templates) if not template.once]
            # While data are missing, nothing changes: the old files stay until all data exist again.
            rendering = await self._render_and_write(numbers, is_first=False)
            if rendering.change:
                splay_s = max((template.splay for template in self._templates), default=0) / SECOND
                await asyncio.sleep(self._world.random.uniform(0.0, splay_s))
                return rendering.change

    async def _render_and_write(self, numbers: Sequence[int], *, is_first: bool) -> _RenderOutcome:
        """Render the templates with these numbers, after waiting for the results of their queries, and write the files.

        If data are missing, nothing is written. Raises `TaskSetupError`.
        """
        if not numbers:
            return _RenderOutcome()
        while True:
            try:
                async with self._renderer.render(self._owner, self._build_order(numbers)) as reply:
                    if not reply.unresolved and not reply.missing:
                        return _RenderOutcome(await self._write_all(numbers, reply.files, is_first=is_first))
            except RenderingFailed as error:
                raise TaskSetupError(str(error), is_final=error.is_final) from error
            if not reply.unresolved:
                return _RenderOutcome(missing=reply.missing, reads_files=reply.reads_files)
            await self._cluster.wait_for_results([QueryKey(kind, name) for kind, name in reply.unresolved])

    def _build_order(self, numbers: Sequence[int]) -> RenderOrder:
        """Return the order to render the templates with these numbers, with all data that have arrived."""
        context = self._context
        templates = [(number, self._templates[number]) for number in numbers]
        return RenderOrder(
            templates=tuple(
                TemplateOrder(
                    name=template.dest_path or f"number {number}",
                    source=template.embedded_tmpl,
                    source_path=template.source_path,
                    left_delimiter=template.left_delim,
                    right_delimiter=template.right_delim,
                    is_strict=template.err_missing_key,
                    defines_variables=template.envvars,
                )
                for number, template in templates
            ),
            namespace=context.namespace,
            region=context.region,
            task_folder=str(context.folders.task),
            shared_folder=str(context.folders.shared),
            view=context.view.value,
            environment=context.environment,
            references=context.reference_values.values,
            answers=tuple(
                QueryAnswer(key.kind, key.name, result.value, result.error_text)
                for key, result in self._cluster.list_results()
            ),
            now_ns=self._world.now_ns(),
        )

    async def _write_all(
        self, numbers: Sequence[int], files: Sequence[RenderedFile], *, is_first: bool
    ) -> TemplateChange:
        """Write all rendered files, and return what the task must do because of those that have changed.

        Also updates the variables that templates define. Raises `TaskSetupError`.
        """
        is_restart_required, signals, scripts = False, [], []
        for number, rendered in zip(numbers, files, strict=True):
            template = self._templates[number]
            self.environment |= rendered.variables
            is_new = await self._renderer.run_in_thread(partial(self._write_file, template, rendered.data))
            script = template.change_script
            if template.change_mode == ChangeMode.SCRIPT and script is not None:
                if is_new and (not is_first or script.run_on_first_render):
                    scripts.append(script)
            elif is_new and template.change_mode == ChangeMode.RESTART:
                is_restart_required = True
            elif is_new and template.change_mode == ChangeMode.SIGNAL:
                signals.append((template.change_signal or "SIGHUP").upper())
        return TemplateChange(is_restart_required, tuple(dict.fromkeys(signals)), tuple(scripts))

    def _write_file(self, template: Template, data: bytes) -> bool:
        """Write the file of a template. Return whether its content has changed. Raises `TaskSetupError`."""
        destination = self._context.resolve_path(template.dest_path, "the destination of a template")
        owner = None
        if template.uid is not None or template.gid is not None:
            owner = (-1 if template.uid is None else template.uid, -1 if template.gid is None else template.gid)
        _check_owner_ids(template)
        mode = _parse_permissions(template)
        try:
            if ConfinedFolder(destination.root).has_content(destination.path, data):
                return False
            ConfinedFolder(destination.root, owner).replace_file(destination.path, data, mode)
        except (ConfinedPathError, OSError) as error:
            raise build_render_error(f"cannot write template {template.dest_path}: {error}") from error
        return True


def _parse_permissions(template: Template) -> int:
    """Return the permission bits of a template's file. Raises `TaskSetupError`."""
    with contextlib.suppress(ValueError):
        if 0 <= (mode := int(template.perms or "0644", 8)) <= MAX_FILE_MODE:
            return mode
    raise build_render_error(
        f"template {template.dest_path[:200]}: perms {template.perms[:50]} is not an octal number up to {MAX_FILE_MODE:o}"
    )


def _check_owner_ids(template: Template) -> None:
    """Raise `TaskSetupError` if the user or group of a template's file is not a number of a user or group."""
    for name, number in (("uid", template.uid), ("gid", template.gid)):
        if number is not None and not -1 <= number <= MAX_OWNER_ID:
            raise build_render_error(
                f"template {template.dest_path[:200]}: {name} {number} is not a number from 0 to {MAX_OWNER_ID}"
            )


def build_render_error(reason: str) -> TaskSetupError:
    """Return the error for a template that another attempt could not render either."""
    return TaskSetupError(reason, is_final=True)
