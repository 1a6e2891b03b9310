"""Job files: reads JSON and YAML into the document that servers validate, and adds positions to validation errors."""

import functools
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from wharf.cli.common.documents import STDIN, YAML_SUFFIXES, parse_json, parse_yaml, read_utf8_text
from wharf.cli.common.errors import CliError, ValidationIssue, parse_validation_issues

HCL_SUFFIXES: Final = (".hcl", ".nomad", ".wharf")
"""Files with these endings are rejected with a hint, because HCL job files are not supported."""
DURATION_FIELDS: Final = frozenset({
    "CheckRestartGrace", "Delay", "Grace", "HealthyDeadline", "Interval", "KillTimeout", "LostAfter", "Max",
    "MaxClientDisconnect",
    "MaxDelay", "MaxRunDuration", "Min", "MinHealthyTime", "ProgressDeadline", "ShutdownDelay", "Splay", "Stagger",
    "StopAfterClientDisconnect", "StopOnClientAfter", "TTL", "Timeout",
})  # fmt: skip
"""Fields that a file may write as `30s`; the API has them in nanoseconds."""
MIN_MAX_FIELDS: Final = frozenset({"Min", "Max"})
"""Durations in the `Wait` block of a template, but counts in a scaling policy."""
OPAQUE_FIELDS: Final = frozenset({"Config", "Env", "Meta", "Params"})
"""Maps whose keys the user chooses: a key such as `Timeout` in them is not a duration field."""
_NOT_A_NUMBER: Final = re.compile(r"expected a whole number(?: or null)?, got text")
_UNKNOWN_FIELD: Final = re.compile(r"Job\.(\w+(?:\[\d+\]|\.\w+)*) (is not a known field.*)")
MIN_DURATION_NS: Final = 1_000_000
"""A shorter duration in a job is almost certainly a number of seconds without its unit."""
INHERITED_BLOCKS: Final = {
    re.compile(r"^TaskGroups\[\d+\]\.Update\."): "Update.",
    re.compile(r"^TaskGroups\[\d+\]\.ReschedulePolicy\."): "Reschedule.",
    re.compile(r"^TaskGroups\[\d+\]\.Migrate\."): "Migrate.",
    re.compile(r"\.Tasks\[\d+\]\.RestartPolicy\."): ".RestartPolicy.",
    re.compile(r"\.Checks\[\d+\]\.CheckRestart\."): ".CheckRestart.",
}
"""Paths of blocks that inherit fields, each with the path of the block that they inherit from."""
_PATH_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


class JobFile(NamedTuple):
    """A job file: `source` is its text, `document` the job's object with the field names of the API."""

    name: str
    source: str
    format: str
    document: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.document.get("ID") or "")

    def format_errors(self, text: str) -> str:
        """Return the server's validation errors with the lines and columns of this file, one line each."""
        # Several groups may inherit one field of the job: its problem is reported once.
        return "\n".join(dict.fromkeys(self._format_issue(issue) for issue in parse_validation_issues(text)))

    def format_warning(self, warning: str) -> str:
        """Return a server's warning, with the position of the field that it is about."""
        unknown_field = _UNKNOWN_FIELD.fullmatch(warning)
        if unknown_field is None:
            return warning
        return f"{self._locate(unknown_field[1])}: {unknown_field[1]} {unknown_field[2]}"

    def find_unitless_durations(self) -> list[str]:
        """Return a warning for each duration that is so short that its unit is probably missing."""
        return [
            f"{self._locate(path)}: {path}: {duration} without a unit means nanoseconds: write {duration}s for seconds"
            for path, duration in _iter_tiny_durations(self.document)
        ]

    def _format_issue(self, issue: ValidationIssue) -> str:
        """Return one validation problem with its position; a number error of a duration field names the format."""
        if not issue.field_path:
            located = self.format_warning(issue.text)
            return located if located != issue.text else f"{self.name}: {issue.text}"
        text, field_path = issue.text, self._find_origin(issue.field_path)
        if _NOT_A_NUMBER.fullmatch(text) and _is_duration_field(field_path):
            value = self._find_value(field_path)
            text = f'expected a duration such as 30s or 1h30m, got "{value}"'
        return f"{self._locate(field_path)}: {field_path}: {text}"

    def _find_origin(self, field_path: str) -> str:
        """Return the path at which the file has the value of a field: groups and tasks inherit policies from above."""
        for pattern, replacement in INHERITED_BLOCKS.items():
            origin = pattern.sub(replacement, field_path)
            if origin != field_path and self._find_value(field_path) is None and self._find_value(origin) is not None:
                return origin
        return field_path

    def _locate(self, field_path: str) -> str:
        """Return `file:line:column` of a field; of its parent if the file does not have the field."""
        steps = [] if field_path == "Job" else _parse_field_path(field_path)
        position = _find_position(self.source, steps)
        return f"{self.name}:{position[0]}:{position[1]}" if position is not None else self.name

    def _find_value(self, field_path: str) -> Any:  # Any value of the document.
        """Return the value of a field of the document; None if there is none."""
        value: Any = self.document
        for step in _parse_field_path(field_path):
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def _parse_field_path(field_path: str) -> list[str | int]:
    """Return the keys and indexes of a path such as `TaskGroups[0].Count`."""
    return [key or int(number) for key, number in _PATH_STEP.findall(f".{field_path}")]


def read_job_file(path: str) -> JobFile:
    """Read a job file; `-` is standard input. Raises CliError if it is not JSON or YAML, or has no job ID."""
    name = "standard input" if path == STDIN else path
    text = read_utf8_text(path, name)
    if path.endswith(HCL_SUFFIXES):
        raise CliError(
            f"{name}: HCL job files are not supported: write YAML or JSON, or convert the file to JSON with "
            "the tool that wrote it and pipe that in: `wharf job run -`"
        )
    format = "yaml" if path.endswith(YAML_SUFFIXES) or (path == STDIN and not text.lstrip().startswith("{")) else "json"
    document = parse_yaml(name, text) if format == "yaml" else parse_json(name, text)
    if not isinstance(document, dict):
        raise CliError(f"{name}: expected a job, got {_describe_type(document)}")
    job = document.get("Job", document)
    if not isinstance(job, dict):
        raise CliError(f"{name}: Job: expected a job, got {_describe_type(job)}")
    if not job.get("ID"):
        raise CliError(f"{name}: the job has no ID{_suggest_id_field(job)}")
    return JobFile(name, text, format, _convert_durations(job))


def _suggest_id_field(job: dict[str, Any]) -> str:
    """Return a hint for a job without an ID; if it has `id`, that field names are written as in the API."""
    misspelled_key = next((key for key in job if key.lower() == "id"), None)
    if misspelled_key is None or misspelled_key == "ID":
        return ": add one, such as ID: web"
    return f", but {misspelled_key}: write field names as the HTTP API does, such as ID, Type and TaskGroups"


def _convert_durations(value: Any) -> Any:  # Any value of the document, of the same type.
    """Return the value with durations such as `30s` converted to nanoseconds.

    Invalid ones stay: the server rejects them.
    """
    from wharf.contract.wire.times import DurationError, parse_duration_ns

    if isinstance(value, list):
        return [_convert_durations(item) for item in value]
    if not isinstance(value, dict):
        return value
    converted: dict[str, Any] = {}
    for key, item in value.items():
        if key in DURATION_FIELDS and isinstance(item, str):
            try:
                converted[key] = parse_duration_ns(item)
            except DurationError:
                converted[key] = item
        else:
            converted[key] = item if key in OPAQUE_FIELDS else _convert_durations(item)
    return converted


def _is_duration_field(field_path: str) -> bool:
    """Return whether the field of this path is a duration. `Min` and `Max` are durations only in a `Wait` block."""
    parent, _, name = field_path.rpartition(".")
    return name in DURATION_FIELDS and (name not in MIN_MAX_FIELDS or parent.endswith("Wait"))


def _iter_tiny_durations(value: Any, path: str = "") -> Iterator[tuple[str, int]]:  # Any value of the document.
    """Yield the durations below MIN_DURATION_NS in a document, each as its field path and its nanoseconds."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _iter_tiny_durations(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            item_path = f"{path}.{key}" if path else key
            if type(item) is int and 0 < item < MIN_DURATION_NS and _is_duration_field(item_path):
                yield item_path, item
            elif key not in OPAQUE_FIELDS:
                yield from _iter_tiny_durations(item, item_path)


@functools.lru_cache(maxsize=1)
def _compose_nodes(source: str) -> Any:  # A node of ruamel.yaml, which has no types for nodes.
    """Return the node of the job with the positions of all values, or None if the source has too many values.

    Cached, because a file is parsed once for all its problems. JSON is parsed as YAML, of which it is a subset, because
    only the YAML parser keeps positions.
    """
    from ruamel.yaml.error import YAMLError

    from wharf.languages.yaml_reader import create_yaml_reader

    try:
        node = create_yaml_reader().compose(source)
    except YAMLError:
        return None
    entries = {key.value: (key, value) for key, value in node.value} if isinstance(node.value, list) else {}
    return entries["Job"][1] if "Job" in entries else node


def _find_position(source: str, steps: list[str | int]) -> tuple[int, int] | None:
    """Return line and column, from 1, of the value that a field path leads to, or of the last part of the path that
    exists; None if the positions are not known.
    """
    node = _compose_nodes(source)
    if node is None:
        return None
    mark = node.start_mark
    for step in steps:
        if isinstance(step, int):
            if not isinstance(node.value, list) or step >= len(node.value):
                break
            node = node.value[step]
            mark = node.start_mark
        else:
            pair = next(((key, value) for key, value in node.value if key.value == step), None)
            if pair is None:
                break
            mark, node = pair[0].start_mark, pair[1]
    return mark.line + 1, mark.column + 1


def _describe_type(value: object) -> str:
    """Return the type of a YAML value in words, for error texts."""
    match value:
        case None:
            return "nothing"
        case list():
            return "a list"
        case str():
            return "text"
        case _:
            return "a number or bool"
