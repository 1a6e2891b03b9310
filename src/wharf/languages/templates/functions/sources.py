"""Times by an example: `2006-01-02 15:04:05` is how the second of January 2006 would be written. In UTC.

Functions that ask the sources: environment, files, variables, services, the time. What they asked is noted, so that
the template is rendered anew when the answer changes. The names are those that existing job files use, and shorter
ones of our own.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from wharf.languages.templates.errors import EvaluationError
from wharf.languages.templates.parser import Arity
from wharf.languages.templates.sources import MissingSource, TemplateSources
from wharf.languages.templates.values import RecordFields, VariableEntries, format_value

_PARTS: Final = re.compile(
    r"2006|January|Jan|Monday|Mon|MST|Z07:00|Z0700|-07:00|-0700|-07|002|01|02|03|04|05|06|_2|15|PM|pm|[.,][09]+(?!\d)|1|2|3|4|5"
)
_FORMS: Final = {
    "2006": "%Y", "06": "%y", "January": "%B", "Jan": "%b", "01": "%m", "Monday": "%A", "Mon": "%a",
    "002": "%j", "02": "%d", "15": "%H", "03": "%I", "04": "%M", "05": "%S", "PM": "%p",
}  # fmt: skip
_FIXED: Final = {"MST": "UTC", "Z07:00": "Z", "Z0700": "Z", "-07:00": "+00:00", "-0700": "+0000", "-07": "+00"}


def format_time(now_ns: int, layout: str) -> str:
    moment = datetime.fromtimestamp(now_ns // 1_000_000_000, UTC)
    nanoseconds = f"{now_ns % 1_000_000_000:09}"

    def put(found: re.Match[str]) -> str:
        part = found[0]
        if part in _FORMS:
            return moment.strftime(_FORMS[part])
        if part in _FIXED:
            return _FIXED[part]
        match part:
            case "1":
                return str(moment.month)
            case "2":
                return str(moment.day)
            case "_2":
                return f"{moment.day:2}"
            case "3":
                return str(moment.hour % 12 or 12)
            case "4":
                return str(moment.minute)
            case "5":
                return str(moment.second)
            case "pm":
                return moment.strftime("%p").lower()
        digits = nanoseconds[: len(part) - 1]
        if "9" in part:  # Nines leave zeros at the end away.
            digits = digits.rstrip("0")
        return part[0] + digits if digits else ""

    return _PARTS.sub(put, layout)


class RenderingContext(Protocol):
    @property
    def sources(self) -> TemplateSources: ...

    def record_query(self, kind: str, name: str) -> None: ...

    def record_missing(self, missing: MissingSource) -> None: ...

    def render_named_template(self, name: str, value: Any) -> str: ...


def _environment(rendering: RenderingContext, name: Any) -> str:
    rendering.record_query("environment", format_value(name))
    return rendering.sources.environment(format_value(name)) or ""


def _environment_or(rendering: RenderingContext, name: Any, default: Any) -> str:
    return _environment(rendering, name) or format_value(default)


def _environment_must(rendering: RenderingContext, name: Any) -> str:
    value = _environment(rendering, name)
    if not value:
        raise EvaluationError(f"the environment variable {format_value(name)} is not set")
    return value


def _file(rendering: RenderingContext, path: Any) -> str:
    rendering.record_query("file", format_value(path))
    try:
        return rendering.sources.file(format_value(path))
    except MissingSource as missing:
        rendering.record_missing(missing)
        return ""


def _variable(rendering: RenderingContext, path: Any) -> VariableEntries | None:
    rendering.record_query("variable", format_value(path))
    try:
        return VariableEntries(rendering.sources.variable(format_value(path)), {"Path": format_value(path)})
    except MissingSource as missing:
        rendering.record_missing(missing)
        return None


def _variable_exists(rendering: RenderingContext, path: Any) -> bool:
    rendering.record_query("variable", format_value(path))
    try:
        rendering.sources.variable(format_value(path))
    except MissingSource:
        return False
    return True


def _variables(rendering: RenderingContext, prefix: Any = "") -> list[RecordFields]:
    """None that fit is an answer, too."""
    rendering.record_query("variables", format_value(prefix))
    try:
        return [RecordFields(found) for found in rendering.sources.variables(format_value(prefix))]
    except MissingSource:
        return []


def _variables_or_wait(rendering: RenderingContext, prefix: Any = "") -> list[RecordFields]:
    found = _variables(rendering, prefix)
    if not found:
        rendering.record_missing(MissingSource(f"variables under {format_value(prefix) or 'the root'}"))
    return found


def _services(rendering: RenderingContext) -> list[RecordFields]:
    rendering.record_query("services", "")
    return _told(rendering, rendering.sources.services)


def _service(rendering: RenderingContext, *arguments: Any) -> list[RecordFields]:
    """`service "db"`, or `service 2 "a key" "db"`: the same two of all, for the same key, as long as they are there."""
    match arguments:
        case (name,):
            count, key = None, ""
        case (int(count), key, name):
            pass
        case _:
            raise EvaluationError('service takes a name, or a count, a key and a name: service 1 "key" "name"')
    rendering.record_query("service", format_value(name))
    found = _told(rendering, lambda: rendering.sources.service(format_value(name)))
    return found if count is None else _chosen(found, format_value(key))[: max(count, 0)]


def _told(rendering: RenderingContext, ask: Callable[[], Iterable[Mapping[str, object]]]) -> list[RecordFields]:
    """None is an answer, too; that it may not be known is none."""
    try:
        return [RecordFields(found) for found in ask()]
    except MissingSource as missing:
        rendering.record_missing(missing)
        return []


def _chosen(found: Sequence[RecordFields], key: str) -> list[RecordFields]:
    """By the highest hash of key and instance: an instance that comes or goes moves only what it wins or had."""
    return sorted(found, key=lambda one: hashlib.sha256(f"{key}\0{one.get('ID', '')}".encode()).digest(), reverse=True)


def _timestamp(rendering: RenderingContext, layout: Any = "2006-01-02T15:04:05Z07:00") -> str:
    now_ns = rendering.sources.now_ns()
    match layout:
        case "unix":
            return str(now_ns // 1_000_000_000)
        case "unixMilli":
            return str(now_ns // 1_000_000)
        case "unixNano":
            return str(now_ns)
        case _:
            return format_time(now_ns, format_value(layout))


def _include(rendering: RenderingContext, name: Any, value: Any = None) -> str:
    return rendering.render_named_template(format_value(name), value)


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
