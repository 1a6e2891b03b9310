"""Functions that ask the sources: environment, files, variables, services, the time. What they asked is noted, so that
the template is rendered anew when the answer changes. The names are those that existing job files use, and shorter
ones of our own."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from wharf.templates.errors import Wrong
from wharf.templates.functions.layouts import format_time
from wharf.templates.parser import Arity
from wharf.templates.sources import Missing, Sources
from wharf.templates.values import Entries, Fields, shown


class Rendering(Protocol):
    @property
    def sources(self) -> Sources: ...

    def note(self, kind: str, name: str) -> None: ...

    def miss(self, missing: Missing) -> None: ...

    def include(self, name: str, value: Any) -> str: ...


def _environment(rendering: Rendering, name: Any) -> str:
    rendering.note("environment", shown(name))
    return rendering.sources.environment(shown(name)) or ""


def _environment_or(rendering: Rendering, name: Any, default: Any) -> str:
    return _environment(rendering, name) or shown(default)


def _environment_must(rendering: Rendering, name: Any) -> str:
    value = _environment(rendering, name)
    if not value:
        raise Wrong(f"the environment variable {shown(name)} is not set")
    return value


def _file(rendering: Rendering, path: Any) -> str:
    rendering.note("file", shown(path))
    try:
        return rendering.sources.file(shown(path))
    except Missing as missing:
        rendering.miss(missing)
        return ""


def _variable(rendering: Rendering, path: Any) -> Entries | None:
    rendering.note("variable", shown(path))
    try:
        return Entries(rendering.sources.variable(shown(path)), {"Path": shown(path)})
    except Missing as missing:
        rendering.miss(missing)
        return None


def _variable_exists(rendering: Rendering, path: Any) -> bool:
    rendering.note("variable", shown(path))
    try:
        rendering.sources.variable(shown(path))
    except Missing:
        return False
    return True


def _variables(rendering: Rendering, prefix: Any = "") -> list[Fields]:
    """None that fit is an answer, too."""
    rendering.note("variables", shown(prefix))
    try:
        return [Fields(found) for found in rendering.sources.variables(shown(prefix))]
    except Missing:
        return []


def _variables_or_wait(rendering: Rendering, prefix: Any = "") -> list[Fields]:
    found = _variables(rendering, prefix)
    if not found:
        rendering.miss(Missing(f"variables under {shown(prefix) or 'the root'}"))
    return found


def _services(rendering: Rendering) -> list[Fields]:
    rendering.note("services", "")
    return _told(rendering, rendering.sources.services)


def _service(rendering: Rendering, *arguments: Any) -> list[Fields]:
    """`service "db"`, or `service 2 "a key" "db"`: the same two of all, for the same key, as long as they are there."""
    match arguments:
        case (name,):
            count, key = None, ""
        case (int(count), key, name):
            pass
        case _:
            raise Wrong('service takes a name, or a count, a key and a name: service 1 "key" "name"')
    rendering.note("service", shown(name))
    found = _told(rendering, lambda: rendering.sources.service(shown(name)))
    return found if count is None else _chosen(found, shown(key))[: max(count, 0)]


def _told(rendering: Rendering, ask: Callable[[], Iterable[Mapping[str, object]]]) -> list[Fields]:
    """None is an answer, too; that it may not be known is none."""
    try:
        return [Fields(found) for found in ask()]
    except Missing as missing:
        rendering.miss(missing)
        return []


def _chosen(found: Sequence[Fields], key: str) -> list[Fields]:
    """By the highest hash of key and instance: an instance that comes or goes moves only what it wins or had."""
    return sorted(found, key=lambda one: hashlib.sha256(f"{key}\0{one.get('ID', '')}".encode()).digest(), reverse=True)


def _timestamp(rendering: Rendering, layout: Any = "2006-01-02T15:04:05Z07:00") -> str:
    now_ns = rendering.sources.now_ns()
    match layout:
        case "unix":
            return str(now_ns // 1_000_000_000)
        case "unixMilli":
            return str(now_ns // 1_000_000)
        case "unixNano":
            return str(now_ns)
        case _:
            return format_time(now_ns, shown(layout))


def _include(rendering: Rendering, name: Any, value: Any = None) -> str:
    return rendering.include(shown(name), value)


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], Arity]]] = {
    "env": (_environment, Arity(1, 1)),
    "envOrDefault": (_environment_or, Arity(2, 2)),
    "mustEnv": (_environment_must, Arity(1, 1)),
    "file": (_file, Arity(1, 1)),
    "variable": (_variable, Arity(1, 1)),
    "variableExists": (_variable_exists, Arity(1, 1)),
    "variables": (_variables, Arity(0, 1)),
    "nomadVar": (_variable, Arity(1, 1)),
    "nomadVarExists": (_variable_exists, Arity(1, 1)),
    "nomadVarList": (_variables, Arity(0, 1)),
    "nomadVarListSafe": (_variables_or_wait, Arity(0, 1)),
    "services": (_services, Arity(0, 0)),
    "service": (_service, Arity(1, 3)),
    "nomadServices": (_services, Arity(0, 0)),
    "nomadService": (_service, Arity(1, 3)),
    "timestamp": (_timestamp, Arity(0, 1)),
    "executeTemplate": (_include, Arity(1, 2)),
}
