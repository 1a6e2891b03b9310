"""The templates of one task: rendered before it starts, and again whenever what they asked for has changed."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.templates import ChangeMode, ChangeScript
from wharf.contract.model.jobs.templates import Template as Wanted
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.languages.templates import MissingSource, ParsedTemplate, RenderResult, TemplateError
from wharf.languages.templates.errors import EvaluationError
from wharf.node.artifacts import ArtifactError
from wharf.node.artifacts.confined_folder import ConfinedFolder
from wharf.node.files import ReadOnlyFolder
from wharf.node.tasks.artifacts import TaskEventRecorder
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.templates.queries import ClusterQueries, QueryKey, QueryResult
from wharf.world import World

MISSING_NOTICE_DELAY_S: Final = 3.0
FILE_POLL_INTERVAL_S: Final = 1.0
SETTLE_DELAY_S: Final = 0.2
"""What changes together is rendered together."""
SECOND_NS: Final = 1_000_000_000
MAX_SOURCE_BYTES: Final = 4 << 20


class TemplateChange(msgspec.Struct, frozen=True):
    """What the task is to be told. A restart stands for all else."""

    is_restart_required: bool = False
    signals: tuple[str, ...] = ()
    scripts: tuple[ChangeScript, ...] = ()

    def __bool__(self) -> bool:
        return self.is_restart_required or bool(self.signals) or bool(self.scripts)


class TaskSources:
    """The port `Sources`, for one rendering. What is not known yet is nothing for now, and noted: it is to be asked for,
    and the template rendered again."""

    def __init__(self, world: World, work: TaskContext, cluster: ClusterQueries) -> None:
        self._world = world
        self._work = work
        self._cluster = cluster
        self.unresolved_keys: dict[QueryKey, None] = {}
        """Noted when it was looked for: by the time that the rendering is over it may be known."""

    def now_ns(self) -> int:
        return self._world.now_ns()

    def environment(self, name: str) -> str | None:
        return self._work.environment.get(name)

    def file(self, path: str) -> str:
        try:
            return read_allocation_file(self._work, path)
        except Refusal as refusal:
            if refusal.code is not RefusalCode.NOT_FOUND:  # It will never be otherwise.
                raise EvaluationError(refusal.text) from None
            raise MissingSource(f"file({path}): the allocation has no such file") from None

    def variable(self, path: str) -> Mapping[str, str]:
        answer = self._answer("variable", path)
        if answer is None:
            return {}
        if not isinstance(answer.value, Mapping):
            place = path if "@" in path else f"{path}@{self._work.namespace}.{self._work.region}"
            raise MissingSource(f"nomad.var.block({place})" + (f" ({answer.error_text})" if answer.error_text else ""))
        return answer.value

    def variables(self, prefix: str) -> Sequence[Mapping[str, object]]:
        return self._list("variables", prefix)

    def services(self) -> Sequence[Mapping[str, object]]:
        return self._list("services", "")

    def service(self, name: str) -> Sequence[Mapping[str, object]]:
        return self._list("service", name)

    def _list(self, kind: str, name: str) -> Sequence[Mapping[str, object]]:
        answer = self._answer(kind, name)
        if answer is not None and answer.error_text:
            # An empty list in its place would be a wrong file.
            raise MissingSource(f"{kind}({name}): {answer.error_text}")
        return answer.value if answer is not None and isinstance(answer.value, list) else []

    def _answer(self, kind: str, name: str) -> QueryResult | None:
        answer = self._cluster.find_result(kind, name)
        if answer is None:
            self.unresolved_keys[QueryKey(kind, name)] = None
        return answer


class TaskTemplates:
    """`close` it when its task is over."""

    def __init__(
        self, world: World, work: TaskContext, cluster_of: Callable[[Callable[[], None]], ClusterQueries]
    ) -> None:
        """`cluster_of` makes the cluster's answers, told whom to call when one changes."""
        self._world = world
        self._work = work
        self._has_changed = asyncio.Event()
        self._cluster = cluster_of(self._has_changed.set)
        self._wanted = work.task.templates or ()
        self._read: dict[int, ParsedTemplate] = {}
        self.environment: dict[str, str] = {}
        """What templates with `envvars` say."""

    async def close(self) -> None:
        await self._cluster.close()

    async def render_initial(self, say: TaskEventRecorder) -> TemplateChange:
        """Wait until all is there that they ask for, and write them. Raises TaskSetupError."""
        said: tuple[str, ...] = ()
        began_s = self._world.monotonic_s()
        while True:
            self._has_changed.clear()
            made = [await self._rendered(number) for number in range(len(self._wanted))]
            missing = tuple(dict.fromkeys(name for each in made for name in each.missing))
            if not missing:
                return self._write(made, is_first=True)
            # Most of what is missing comes within moments: then nobody needs to hear of it.
            if said != missing and self._world.monotonic_s() - began_s >= MISSING_NOTICE_DELAY_S:
                said = missing
                say(TaskEventType.TEMPLATE, f"Missing: {', '.join(missing)}")
            left_s = MISSING_NOTICE_DELAY_S - (self._world.monotonic_s() - began_s) if said != missing else None
            if any(kind == "file" for each in made for kind, _ in each.queries):  # Nobody tells of a file that comes.
                left_s = FILE_POLL_INTERVAL_S if left_s is None else min(left_s, FILE_POLL_INTERVAL_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_changed.wait(), left_s)

    async def wait_for_change(self) -> TemplateChange:
        """Wait until rendered files are others than before, and the splay is over. Raises TaskSetupError."""
        while True:
            await self._has_changed.wait()
            await asyncio.sleep(SETTLE_DELAY_S)
            self._has_changed.clear()
            numbers = [number for number, wanted in enumerate(self._wanted) if not wanted.once]
            made = {number: await self._rendered(number) for number in numbers}
            if any(each.missing for each in made.values()):
                continue  # What is written stays true until there is better.
            change = self._write([made.get(number) for number in range(len(self._wanted))], is_first=False)
            if change:
                splay_s = max((wanted.splay for wanted in self._wanted), default=0) / SECOND_NS
                await asyncio.sleep(self._world.random.uniform(0.0, splay_s))
                return change

    async def _rendered(self, number: int) -> RenderResult:
        try:
            template = self._template(number)
            while True:
                sources = TaskSources(self._world, self._work, self._cluster)
                made = await asyncio.to_thread(template.render, None, sources)
                if not sources.unresolved_keys:
                    return made
                await self._cluster.wait_for_results(list(sources.unresolved_keys))
        except TemplateError as error:
            name = self._wanted[number].dest_path or f"number {number}"
            raise build_render_error(f"template {name}: {error}") from error

    def _template(self, number: int) -> ParsedTemplate:
        wanted = self._wanted[number]
        if number not in self._read:
            source = wanted.embedded_tmpl
            if not source and wanted.source_path:
                try:
                    source = read_allocation_file(self._work, wanted.source_path)
                except Refusal as refusal:
                    raise build_render_error(f"template source {wanted.source_path}: {refusal.text}") from refusal
            self._read[number] = ParsedTemplate(
                source, left=wanted.left_delim, right=wanted.right_delim, is_strict=wanted.err_missing_key
            )
        return self._read[number]

    def _write(self, made: Sequence[RenderResult | None], *, is_first: bool) -> TemplateChange:
        restarts, signals, scripts = False, [], []
        for wanted, rendered in zip(self._wanted, made, strict=True):
            if rendered is None:
                continue
            if wanted.envvars:
                self.environment |= parse_environment(rendered.text, wanted.dest_path)
            is_new = self._put(wanted, rendered.text.encode())
            script = wanted.change_script
            if wanted.change_mode == ChangeMode.SCRIPT and script is not None:
                if is_new and (not is_first or script.run_on_first_render):
                    scripts.append(script)
            elif is_new and wanted.change_mode == ChangeMode.RESTART:
                restarts = True
            elif is_new and wanted.change_mode == ChangeMode.SIGNAL:
                signals.append((wanted.change_signal or "SIGHUP").upper())
        return TemplateChange(restarts, tuple(dict.fromkeys(signals)), tuple(scripts))

    def _put(self, wanted: Wanted, data: bytes) -> bool:
        """Whether it was another before. Raises TaskSetupError."""
        spot = self._work.resolve_path(wanted.dest_path)
        owner = None
        if wanted.uid is not None or wanted.gid is not None:
            owner = (-1 if wanted.uid is None else wanted.uid, -1 if wanted.gid is None else wanted.gid)
        try:
            mode = int(wanted.perms or "0644", 8)
            path = spot.root / spot.path
            if not path.is_symlink() and path.is_file() and path.read_bytes() == data:
                return False
            ConfinedFolder(spot.root, owner).replace_file(spot.path, data, mode)
        except ValueError as error:
            raise build_render_error(f"template {wanted.dest_path}: perms {wanted.perms} is no octal number") from error
        except (ArtifactError, OSError) as error:
            raise build_render_error(f"template {wanted.dest_path} cannot be written: {error}") from error
        return True


def build_render_error(why: str) -> TaskSetupError:
    return TaskSetupError(why, TaskEventType.SETUP_FAILURE, "setup_error", is_final=True)


def read_allocation_file(work: TaskContext, path: str) -> str:
    """Of the allocation, and of nothing else. Raises Refusal."""
    spot = work.resolve_path(path)
    handle = ReadOnlyFolder(spot.root).open_file(spot.path)
    with os.fdopen(handle, "rb") as file:
        return file.read(MAX_SOURCE_BYTES).decode(errors="replace")


def parse_environment(text: str, name: str) -> dict[str, str]:
    """Lines of `NAME=value`; a value may stand in quotes. Raises NotReady."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip().removeprefix("export ")
        if not line or line.startswith("#"):
            continue
        key, mark, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not mark or not key:
            raise build_render_error(
                f"template {name}, line {number} of what it makes: a variable is written NAME=value"
            )
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[key] = value
    return found
