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
    """The actions that a rendering requires of the task. A restart makes the other actions unnecessary."""

    is_restart_required: bool = False
    signals: tuple[str, ...] = ()
    scripts: tuple[ChangeScript, ...] = ()

    def __bool__(self) -> bool:
        return self.is_restart_required or bool(self.signals) or bool(self.scripts)


class TaskSources:
    """The data for one rendering of a task's templates.

    Data that have not arrived yet count as empty and are added to `unresolved_keys`: the caller must wait for them and
    render again.
    """

    def __init__(self, world: World, context: TaskContext, cluster: ClusterQueries) -> None:
        self._world = world
        self._context = context
        self._cluster = cluster
        self.unresolved_keys: dict[QueryKey, None] = {}
        """Recorded during the lookup, because the result may arrive before the rendering is over."""

    def now_ns(self) -> int:
        """Return the wall clock time in nanoseconds."""
        return self._world.now_ns()

    def environment(self, name: str) -> str | None:
        """Return the value of a variable of the task; `None` if it is not set."""
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
        """Return the items of a cluster variable; empty if they have not arrived yet.

        Raises `MissingSource` if it does not exist or may not be read.
        """
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
        """Return the cluster variables below a path; empty if they have not arrived yet.

        Raises `MissingSource` if the query was refused.
        """
        return self._list_result("variables", prefix)

    def services(self) -> Sequence[Mapping[str, object]]:
        """Return all services of the namespace; empty if they have not arrived yet.

        Raises `MissingSource` if the query was refused.
        """
        return self._list_result("services", "")

    def service(self, name: str) -> Sequence[Mapping[str, object]]:
        """Return the instances of a service; empty if they have not arrived yet.

        Raises `MissingSource` if the query was refused.
        """
        return self._list_result("service", name)

    def _list_result(self, query_type: str, name: str) -> Sequence[Mapping[str, object]]:
        """Return the list that a query returned; empty if it has not arrived yet.

        Raises `MissingSource` if the query was refused.
        """
        result = self._find_result(query_type, name)
        if result is not None and result.error_text:
            # An empty list instead would produce a wrong file.
            raise MissingSource(f"{query_type}({name}): {result.error_text}")
        return result.value if result is not None and isinstance(result.value, list) else []

    def _find_result(self, query_type: str, name: str) -> QueryResult | None:
        """Return the result of a query.

        If it has not arrived yet, return `None` and add the query to `unresolved_keys`.
        """
        result = self._cluster.find_result(query_type, name)
        if result is None:
            self.unresolved_keys[QueryKey(query_type, name)] = None
        return result


class TaskTemplates:
    """The templates of one task. Close it when the task has ended."""

    def __init__(
        self, world: World, context: TaskContext, build_queries: Callable[[Callable[[], None]], ClusterQueries]
    ) -> None:
        """Create the templates. `build_queries` creates the cluster queries.

        Its argument is a function that is called when a result of a query changes.
        """
        self._world = world
        self._context = context
        self._has_changed = asyncio.Event()
        self._cluster = build_queries(self._has_changed.set)
        self._templates = context.task.templates or ()
        self._parsed_templates: dict[int, ParsedTemplate] = {}
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
        """Wait until a rendered file has changed, write it, and wait for the configured random delay (splay).

        Return what the task must do. Raises `TaskSetupError`.
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

    async def _render(self, template_index: int) -> RenderResult:
        """Return the rendered template with this index, after waiting for the results of its queries.

        Raises `TaskSetupError`.
        """
        try:
            parsed_template = self._get_parsed(template_index)
            while True:
                sources = TaskSources(self._world, self._context, self._cluster)
                results = await asyncio.to_thread(parsed_template.render, None, sources)
                if not sources.unresolved_keys:
                    return results
                await self._cluster.wait_for_results(list(sources.unresolved_keys))
        except TemplateError as error:
            name = self._templates[template_index].dest_path or f"number {template_index}"
            raise build_render_error(f"template {name}: {error}") from error

    def _get_parsed(self, template_index: int) -> ParsedTemplate:
        """Return the parsed template with this index; it is parsed on first use. Raises `TaskSetupError`."""
        template = self._templates[template_index]
        if template_index not in self._parsed_templates:
            source = template.embedded_tmpl
            if not source and template.source_path:
                try:
                    source = read_allocation_file(self._context, template.source_path)
                except Refusal as refusal:
                    raise build_render_error(f"template source {template.source_path}: {refusal.text}") from refusal
            self._parsed_templates[template_index] = ParsedTemplate(
                source, left=template.left_delim, right=template.right_delim, is_strict=template.err_missing_key
            )
        return self._parsed_templates[template_index]

    def _write_all(self, results: Sequence[RenderResult | None], *, is_first: bool) -> TemplateChange:
        """Write all rendered files, and return what the task must do because of those that have changed.

        A result of `None` leaves its file unchanged. Also updates the variables that templates define. Raises
        `TaskSetupError`.
        """
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
        """Write the file of a template. Return whether its content has changed. Raises `TaskSetupError`."""
        destination = self._context.resolve_path(template.dest_path)
        owner = None
        if template.uid is not None or template.gid is not None:
            owner = (-1 if template.uid is None else template.uid, -1 if template.gid is None else template.gid)
        try:
            mode = int(template.perms or "0644", 8)
            folder = ConfinedFolder(destination.root, owner)
            with contextlib.suppress(ConfinedPathError, OSError):  # Missing, or replaced by the task.
                if folder.read_file(destination.path, len(data)) == data:
                    return False
            folder.replace_file(destination.path, data, mode)
        except ValueError as error:
            raise build_render_error(
                f"template {template.dest_path}: perms {template.perms} is not an octal number"
            ) from error
        except (ConfinedPathError, OSError) as error:
            raise build_render_error(f"cannot write template {template.dest_path}: {error}") from error
        return True


def build_render_error(reason: str) -> TaskSetupError:
    """Return the error for a template that another attempt could not render either."""
    return TaskSetupError(reason, is_final=True)


def read_allocation_file(context: TaskContext, path: str) -> str:
    """Return the content of a file of the allocation, at most `MAX_SOURCE_BYTES`.

    Raises `Refusal` if it does not exist, is secret or is outside of the allocation's folders.
    """
    destination = context.resolve_path(path)
    descriptor = ReadOnlyFolder(destination.root).open_file(destination.path)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(MAX_SOURCE_BYTES).decode(errors="replace")


def parse_environment(text: str, template_path: str) -> dict[str, str]:
    """Return the variables in lines of `NAME=value`; a value may be quoted. Raises `TaskSetupError`.

    `template_path` is the template's path, for error messages. Empty lines and comments are skipped.
    """
    variables = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip().removeprefix("export ")
        if not line or line.startswith("#"):
            continue
        key, separator, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not separator or not key:
            raise build_render_error(
                f"template {template_path}, line {number} of its output: not a variable of the form NAME=value"
            )
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        variables[key] = value
    return variables
