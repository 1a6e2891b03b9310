"""Renders the templates of one task before it starts, and again whenever their data change."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.templates import ChangeMode, ChangeScript, Template
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import SECOND
from wharf.languages.templates import MissingSource, ParsedTemplate, RenderResult, TemplateError
from wharf.languages.templates.errors import EvaluationError
from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError
from wharf.node.files import ReadOnlyFolder
from wharf.node.tasks.artifacts import TaskEventRecorder
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.templates.queries import ClusterQueries, QueryKey, QueryResult
from wharf.world import World

MISSING_NOTICE_DELAY_S: Final = 3.0
"""Seconds of waiting after which the task's history shows which data are missing; most data arrive sooner."""
FILE_POLL_INTERVAL_S: Final = 1.0
"""Seconds between attempts while a template reads files, because nothing reports new files."""
SETTLE_DELAY_S: Final = 0.2
"""Seconds to wait after a change, so that changes that happen together are rendered together."""
MAX_SOURCE_BYTES: Final = 4 << 20
"""Limit of a template source and of files that templates read; protects the memory of the node."""


class TemplateChange(msgspec.Struct, frozen=True):
    """What the task must do after a rendering. A restart makes everything else unnecessary."""

    is_restart_required: bool = False
    signals: tuple[str, ...] = ()
    scripts: tuple[ChangeScript, ...] = ()

    def __bool__(self) -> bool:
        return self.is_restart_required or bool(self.signals) or bool(self.scripts)


class TaskSources:
    """The data for one rendering. Implements `TemplateSources`.

    Data that are not known yet count as empty and are noted in `unresolved_keys`: the caller must wait for them and
    render again.
    """

    def __init__(self, world: World, context: TaskContext, cluster: ClusterQueries) -> None:
        self._world = world
        self._context = context
        self._cluster = cluster
        self.unresolved_keys: dict[QueryKey, None] = {}
        """Recorded during the lookup, because the result may arrive before the rendering is over."""

    def now_ns(self) -> int:
        """Return the wall clock time."""
        return self._world.now_ns()

    def environment(self, name: str) -> str | None:
        """Return a variable of the task; `None` if it is not set."""
        return self._context.environment.get(name)

    def file(self, path: str) -> str:
        """Return the content of a file of the allocation. Raises `MissingSource` and `EvaluationError`."""
        try:
            return read_allocation_file(self._context, path)
        except Refusal as refusal:
            if refusal.code is not RefusalCode.NOT_FOUND:  # Another attempt would fail in the same way.
                raise EvaluationError(refusal.text) from None
            raise MissingSource(f"file({path}): the allocation has no such file") from None

    def variable(self, path: str) -> Mapping[str, str]:
        """Return the items of a variable. Raises `MissingSource` if it does not exist or may not be read."""
        result = self._find_result("variable", path)
        if result is None:
            return {}
        if not isinstance(result.value, Mapping):
            qualified_path = path if "@" in path else f"{path}@{self._context.namespace}.{self._context.region}"
            raise MissingSource(
                f"nomad.var.block({qualified_path})" + (f" ({result.error_text})" if result.error_text else "")
            )
        return result.value

    def variables(self, prefix: str) -> Sequence[Mapping[str, object]]:
        """Return the variables below a path."""
        return self._list("variables", prefix)

    def services(self) -> Sequence[Mapping[str, object]]:
        """Return all services of the namespace."""
        return self._list("services", "")

    def service(self, name: str) -> Sequence[Mapping[str, object]]:
        """Return the instances of a service."""
        return self._list("service", name)

    def _list(self, kind: str, name: str) -> Sequence[Mapping[str, object]]:
        """Return the list that a query gave; empty if it is not known yet. Raises `MissingSource` if it was refused."""
        result = self._find_result(kind, name)
        if result is not None and result.error_text:
            # An empty list instead would produce a wrong file.
            raise MissingSource(f"{kind}({name}): {result.error_text}")
        return result.value if result is not None and isinstance(result.value, list) else []

    def _find_result(self, kind: str, name: str) -> QueryResult | None:
        """Return the result of a query; note the query if there is no result yet."""
        result = self._cluster.find_result(kind, name)
        if result is None:
            self.unresolved_keys[QueryKey(kind, name)] = None
        return result


class TaskTemplates:
    """The templates of one task. Close it when the task is over."""

    def __init__(
        self, world: World, context: TaskContext, build_queries: Callable[[Callable[[], None]], ClusterQueries]
    ) -> None:
        """`build_queries` creates the cluster queries; its argument is called when a result changes."""
        self._world = world
        self._context = context
        self._has_changed = asyncio.Event()
        self._cluster = build_queries(self._has_changed.set)
        self._templates = context.task.templates or ()
        self._parsed_templates: dict[int, ParsedTemplate] = {}
        self.environment: dict[str, str] = {}
        """The variables that templates with `envvars` define."""

    async def close(self) -> None:
        """Stop following the queries."""
        await self._cluster.close()

    async def render_initial(self, record_event: TaskEventRecorder) -> TemplateChange:
        """Wait until all data of the templates exist, and write the files. Raises `TaskSetupError`."""
        recorded: tuple[str, ...] = ()
        began_s = self._world.monotonic_s()
        while True:
            self._has_changed.clear()
            results = [await self._render(number) for number in range(len(self._templates))]
            missing = tuple(dict.fromkeys(name for result in results for name in result.missing))
            if not missing:
                return self._write_all(results, is_first=True)
            # Most missing data arrive soon; only a longer wait is shown in the task's history.
            if recorded != missing and self._world.monotonic_s() - began_s >= MISSING_NOTICE_DELAY_S:
                recorded = missing
                record_event(TaskEventType.TEMPLATE, f"Missing: {', '.join(missing)}")
            wait_s = MISSING_NOTICE_DELAY_S - (self._world.monotonic_s() - began_s) if recorded != missing else None
            if any(kind == "file" for result in results for kind, _ in result.queries):  # Nothing reports a new file.
                wait_s = FILE_POLL_INTERVAL_S if wait_s is None else min(wait_s, FILE_POLL_INTERVAL_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_changed.wait(), wait_s)

    async def wait_for_change(self) -> TemplateChange:
        """Wait until a rendered file has changed, write it, and wait for the splay.

        Returns what the task must do. Raises `TaskSetupError`.
        """
        while True:
            await self._has_changed.wait()
            await asyncio.sleep(SETTLE_DELAY_S)
            self._has_changed.clear()
            numbers = [number for number, template in enumerate(self._templates) if not template.once]
            results = {number: await self._render(number) for number in numbers}
            if any(result.missing for result in results.values()):
                continue  # The old files stay until all data exist again.
            change = self._write_all([results.get(number) for number in range(len(self._templates))], is_first=False)
            if change:
                splay_s = max((template.splay for template in self._templates), default=0) / SECOND
                await asyncio.sleep(self._world.random.uniform(0.0, splay_s))
                return change

    async def _render(self, number: int) -> RenderResult:
        """Render one template, waiting for results of its queries. Raises `TaskSetupError`."""
        try:
            parsed_template = self._get_parsed(number)
            while True:
                sources = TaskSources(self._world, self._context, self._cluster)
                results = await asyncio.to_thread(parsed_template.render, None, sources)
                if not sources.unresolved_keys:
                    return results
                await self._cluster.wait_for_results(list(sources.unresolved_keys))
        except TemplateError as error:
            name = self._templates[number].dest_path or f"number {number}"
            raise build_render_error(f"template {name}: {error}") from error

    def _get_parsed(self, number: int) -> ParsedTemplate:
        """Return the parsed template, parsed on first use. Raises `TaskSetupError`."""
        template = self._templates[number]
        if number not in self._parsed_templates:
            source = template.embedded_tmpl
            if not source and template.source_path:
                try:
                    source = read_allocation_file(self._context, template.source_path)
                except Refusal as refusal:
                    raise build_render_error(f"template source {template.source_path}: {refusal.text}") from refusal
            self._parsed_templates[number] = ParsedTemplate(
                source, left=template.left_delim, right=template.right_delim, is_strict=template.err_missing_key
            )
        return self._parsed_templates[number]

    def _write_all(self, results: Sequence[RenderResult | None], *, is_first: bool) -> TemplateChange:
        """Write all rendered files and return what the task must do because of those that have changed."""
        is_restart_required, signals, scripts = False, [], []
        for template, rendered in zip(self._templates, results, strict=True):
            if rendered is None:
                continue
            if template.envvars:
                self.environment |= parse_environment(rendered.text, template.dest_path)
            is_new = self._write_file(template, rendered.text.encode())
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
        """Write one file. Return whether its content has changed. Raises `TaskSetupError`."""
        destination = self._context.resolve_path(template.dest_path)
        owner = None
        if template.uid is not None or template.gid is not None:
            owner = (-1 if template.uid is None else template.uid, -1 if template.gid is None else template.gid)
        try:
            mode = int(template.perms or "0644", 8)
            path = destination.root / destination.path
            if not path.is_symlink() and path.is_file() and path.read_bytes() == data:
                return False
            ConfinedFolder(destination.root, owner).replace_file(destination.path, data, mode)
        except ValueError as error:
            raise build_render_error(
                f"template {template.dest_path}: perms {template.perms} is not an octal number"
            ) from error
        except (ConfinedPathError, OSError) as error:
            raise build_render_error(f"cannot write template {template.dest_path}: {error}") from error
        return True


def build_render_error(reason: str) -> TaskSetupError:
    """Return the error for a template that can never be rendered."""
    return TaskSetupError(reason, is_final=True)


def read_allocation_file(context: TaskContext, path: str) -> str:
    """Return the content of a file of the allocation. Raises `Refusal` for anything outside of it."""
    destination = context.resolve_path(path)
    descriptor = ReadOnlyFolder(destination.root).open_file(destination.path)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(MAX_SOURCE_BYTES).decode(errors="replace")


def parse_environment(text: str, name: str) -> dict[str, str]:
    """Parse lines of `NAME=value`; a value may be quoted. Raises `TaskSetupError`."""
    variables = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip().removeprefix("export ")
        if not line or line.startswith("#"):
            continue
        key, separator, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not separator or not key:
            raise build_render_error(
                f"template {name}, line {number} of its output: not a variable of the form NAME=value"
            )
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        variables[key] = value
    return variables
