"""Template functions that query the sources: environment, files, variables, services and the time.

Each query is recorded, so that the template can be rendered again when the result changes. Functions have the names that
existing job files use, and shorter ones.
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

_LAYOUT_PARTS: Final = re.compile(
    r"2006|January|Jan|Monday|Mon|MST|Z07:00|Z0700|-07:00|-0700|-07|002|01|02|03|04|05|06|_2|15|PM|pm|[.,][09]+(?!\d)|1|2|3|4|5"
)
_STRFTIME_BY_PART: Final = {
    "2006": "%Y", "06": "%y", "January": "%B", "Jan": "%b", "01": "%m", "Monday": "%A", "Mon": "%a",
    "002": "%j", "02": "%d", "15": "%H", "03": "%I", "04": "%M", "05": "%S", "PM": "%p",
}  # fmt: skip
_TEXT_BY_PART: Final = {"MST": "UTC", "Z07:00": "Z", "Z0700": "Z", "-07:00": "+00:00", "-0700": "+0000", "-07": "+00"}


def format_time(now_ns: int, layout: str) -> str:
    """Return a time in UTC in the notation of an example.

    The layout is the notation of 2 January 2006, 15:04:05, such as `2006-01-02 15:04`. `now_ns` is in Unix nanoseconds.
    """
    time_utc = datetime.fromtimestamp(now_ns // 1_000_000_000, UTC)
    nanoseconds = f"{now_ns % 1_000_000_000:09}"

    def format_part(match: re.Match[str]) -> str:
        """Return the time's value for one part of the layout."""
        part = match[0]
        if part in _STRFTIME_BY_PART:
            return time_utc.strftime(_STRFTIME_BY_PART[part])
        if part in _TEXT_BY_PART:
            return _TEXT_BY_PART[part]
        match part:
            case "1":
                return str(time_utc.month)
            case "2":
                return str(time_utc.day)
            case "_2":
                return f"{time_utc.day:2}"
            case "3":
                return str(time_utc.hour % 12 or 12)
            case "4":
                return str(time_utc.minute)
            case "5":
                return str(time_utc.second)
            case "pm":
                return time_utc.strftime("%p").lower()
        digits = nanoseconds[: len(part) - 1]
        if "9" in part:  # `.999` omits trailing zeros, `.000` does not.
            digits = digits.rstrip("0")
        return part[0] + digits if digits else ""

    return _LAYOUT_PARTS.sub(format_part, layout)


class RenderingContext(Protocol):
    """What functions may use of the rendering that calls them."""

    @property
    def sources(self) -> TemplateSources: ...

    def record_query(self, kind: str, name: str) -> None:
        """Record that the text depends on the result of this query."""
        ...

    def record_missing(self, missing: MissingSource) -> None:
        """Record that a queried thing does not exist, so the text must not be used."""
        ...

    def render_named_template(self, name: str, value: Any) -> str:
        """Return the text of a named template, in which the dot (`.`) stands for `value`."""
        ...


def _query_environment(context: RenderingContext, name: Any) -> str:
    context.record_query("environment", format_value(name))
    return context.sources.environment(format_value(name)) or ""


def _query_environment_or_default(context: RenderingContext, name: Any, default: Any) -> str:
    return _query_environment(context, name) or format_value(default)


def _require_environment(context: RenderingContext, name: Any) -> str:
    value = _query_environment(context, name)
    if not value:
        raise EvaluationError(f"the environment variable {format_value(name)} is not set")
    return value


def _query_file(context: RenderingContext, path: Any) -> str:
    """Return the content of a file, or "" if it is missing."""
    context.record_query("file", format_value(path))
    try:
        return context.sources.file(format_value(path))
    except MissingSource as missing:
        context.record_missing(missing)
        return ""


def _query_variable(context: RenderingContext, path: Any) -> VariableEntries | None:
    """Return the entries of a variable, or `None` if it is missing."""
    context.record_query("variable", format_value(path))
    try:
        return VariableEntries(context.sources.variable(format_value(path)), {"Path": format_value(path)})
    except MissingSource as missing:
        context.record_missing(missing)
        return None


def _query_variable_exists(context: RenderingContext, path: Any) -> bool:
    """Return whether a variable exists. A variable that does not exist is not reported as missing."""
    context.record_query("variable", format_value(path))
    try:
        context.sources.variable(format_value(path))
    except MissingSource:
        return False
    return True


def _query_variables(context: RenderingContext, prefix: Any = "") -> list[RecordFields]:
    """Return the variables below a prefix. An empty list is a valid result and not reported as missing."""
    context.record_query("variables", format_value(prefix))
    try:
        return [RecordFields(record) for record in context.sources.variables(format_value(prefix))]
    except MissingSource:
        return []


def _require_variables(context: RenderingContext, prefix: Any = "") -> list[RecordFields]:
    """Return the variables below a prefix, and report an empty list as missing, so that the task waits."""
    records = _query_variables(context, prefix)
    if not records:
        context.record_missing(MissingSource(f"variables under {format_value(prefix) or 'the root'}"))
    return records


def _query_services(context: RenderingContext) -> list[RecordFields]:
    context.record_query("services", "")
    return _query_records(context, context.sources.services)


def _query_service(context: RenderingContext, *arguments: Any) -> list[RecordFields]:
    """Return the instances of a service, and record the query.

    `service "db"` returns all of them. `service 2 "key" "db"` selects two by a hash of the key, so the same key selects
    the same two instances while both exist.
    """
    match arguments:
        case (name,):
            count, key = None, ""
        case (int(count), key, name):
            pass
        case _:
            raise EvaluationError('service takes a name, or a count, a key and a name: service 1 "key" "name"')
    context.record_query("service", format_value(name))
    records = _query_records(context, lambda: context.sources.service(format_value(name)))
    return records if count is None else _choose_instances(records, format_value(key))[: max(count, 0)]


def _query_records(
    context: RenderingContext, query: Callable[[], Iterable[Mapping[str, object]]]
) -> list[RecordFields]:
    """Return the records of a query. If the query fails, record that its result is missing and return an empty list."""
    try:
        return [RecordFields(record) for record in query()]
    except MissingSource as missing:
        context.record_missing(missing)
        return []


def _choose_instances(instances: Sequence[RecordFields], key: str) -> list[RecordFields]:
    """Return the instances in an order that depends on the key: sorted by a hash of key and instance id, highest first.

    This is rendezvous hashing: when an instance is added or removed, the order of the others does not change.
    """
    return sorted(
        instances,
        key=lambda instance: hashlib.sha256(f"{key}\0{instance.get('ID', '')}".encode()).digest(),
        reverse=True,
    )


def _format_timestamp(context: RenderingContext, layout: Any = "2006-01-02T15:04:05Z07:00") -> str:
    """Return the current time by a layout of `format_time`, or as "unix", "unixMilli" or "unixNano"."""
    now_ns = context.sources.now_ns()
    match layout:
        case "unix":
            return str(now_ns // 1_000_000_000)
        case "unixMilli":
            return str(now_ns // 1_000_000)
        case "unixNano":
            return str(now_ns)
        case _:
            return format_time(now_ns, format_value(layout))


def _execute_template(context: RenderingContext, name: Any, value: Any = None) -> str:
    return context.render_named_template(format_value(name), value)


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Any], Arity]]] = {
    "env": (_query_environment, Arity(1, 1)),
    "envOrDefault": (_query_environment_or_default, Arity(2, 2)),
    "mustEnv": (_require_environment, Arity(1, 1)),
    "file": (_query_file, Arity(1, 1)),
    "variable": (_query_variable, Arity(1, 1)),
    "variableExists": (_query_variable_exists, Arity(1, 1)),
    "variables": (_query_variables, Arity(0, 1)),
    "nomadVar": (_query_variable, Arity(1, 1)),
    "nomadVarExists": (_query_variable_exists, Arity(1, 1)),
    "nomadVarList": (_query_variables, Arity(0, 1)),
    "nomadVarListSafe": (_require_variables, Arity(0, 1)),
    "services": (_query_services, Arity(0, 0)),
    "service": (_query_service, Arity(1, 3)),
    "nomadServices": (_query_services, Arity(0, 0)),
    "nomadService": (_query_service, Arity(1, 3)),
    "timestamp": (_format_timestamp, Arity(0, 1)),
    "executeTemplate": (_execute_template, Arity(1, 2)),
}
