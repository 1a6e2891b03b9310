"""Job files: JSON and YAML, as documents that servers read and judge. What is wrong with the text is told with its place."""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from wharf.cli.common.documents import STDIN, YAML_SUFFIXES, _json, _text, _yaml
from wharf.cli.common.errors import CliError, ValidationIssue, parse_validation_issues

HCL_SUFFIXES: Final = (".hcl", ".nomad", ".wharf")


DURATION_FIELDS: Final = frozenset({
    "CheckRestartGrace", "Delay", "Grace", "HealthyDeadline", "Interval", "KillTimeout", "LostAfter", "Max", "MaxClientDisconnect",
    "MaxDelay", "MaxRunDuration", "Min", "MinHealthyTime", "ProgressDeadline", "ShutdownDelay", "Splay", "Stagger",
    "StopAfterClientDisconnect", "StopOnClientAfter", "TTL", "Timeout",
})  # fmt: skip
"""Written as `30s` in a file, and as nanoseconds on the wire."""
MIN_MAX_FIELDS: Final = frozenset({"Min", "Max"})
"""Lengths of time where a template waits; of scaling they are counts."""
OPAQUE_FIELDS: Final = frozenset({"Config", "Env", "Meta", "Params"})
"""What stands in these is nobody's but the task's."""
_NO_NUMBER: Final = re.compile(r"expected a whole number(?: or null)?, got text")
_UNKNOWN_FIELD: Final = re.compile(r"Job\.(\w+(?:\[\d+\]|\.\w+)*) (is not a known field.*)")
MIN_DURATION_NS: Final = 1_000_000
"""Nobody means less than this by the length of anything that jobs name."""
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


class JobFile(NamedTuple):
    """`source`: as it stands in the file. `document`: the job alone, with the wire's names."""

    name: str
    source: str
    format: str
    document: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.document.get("ID") or "")

    def format_errors(self, text: str) -> str:
        """What servers say is wrong with the job, with the lines and columns of this file: one line for each thing."""
        return "\n".join(self._placed(one) for one in parse_validation_issues(text))

    def format_warning(self, warning: str) -> str:
        """A warning, with the place of the field that it is about."""
        found = _UNKNOWN_FIELD.fullmatch(warning)
        if found is None:
            return warning
        return f"{self._where(found[1])}: {found[1]} {found[2]}"

    def find_unitless_durations(self) -> list[str]:
        """What can be submitted, and is hardly meant: lengths of time whose unit is missing."""
        return [
            f"{self._where(place)}: {place}: {length} without a unit is so many nanoseconds: write {length}s for seconds"
            for place, length in _next_to_nothing(self.document)
        ]

    def _placed(self, complaint: ValidationIssue) -> str:
        if not complaint.field_path:
            return f"{self.name}: {complaint.text}"
        if _NO_NUMBER.fullmatch(complaint.text) and _is_length_of_time(complaint.field_path):
            said = "expected a length of time, as 30s or 1h30m, and there is another text"
            return f"{self._where(complaint.field_path)}: {complaint.field_path}: {said}"
        return f"{self._where(complaint.field_path)}: {complaint.field_path}: {complaint.text}"

    def _where(self, place: str) -> str:
        steps = [key or int(number) for key, number in _STEP.findall(f".{place}")]
        line, column = _place_of(self.source, [] if place == "Job" else steps)
        return f"{self.name}:{line}:{column}"


def read_job_file(path: str) -> JobFile:
    """`-` is what is typed or piped in. Raises `Failed`."""
    name = "standard input" if path == STDIN else path
    text = _text(path, name)
    if path.endswith(HCL_SUFFIXES):
        raise CliError(
            f"{name}: job files in HCL are not read yet; write it in YAML or JSON, or let the tool that knows it print it "
            "as JSON and pipe that in: `wharf job run -`"
        )
    format = "yaml" if path.endswith(YAML_SUFFIXES) or (path == STDIN and not text.lstrip().startswith("{")) else "json"
    document = _yaml(name, text) if format == "yaml" else _json(name, text)
    if not isinstance(document, dict):
        raise CliError(f"{name}: expected a job, and there is {_kind(document)}")
    job = document.get("Job", document)
    if not isinstance(job, dict):
        raise CliError(f"{name}: Job: expected a job, and there is {_kind(job)}")
    if not job.get("ID"):
        raise CliError(f"{name}: the job has no ID{_misspelled_id(job)}")
    return JobFile(name, text, format, _with_nanoseconds(job))


def _misspelled_id(job: dict[str, Any]) -> str:
    other = next((key for key in job if key.lower() == "id"), None)
    if other is None or other == "ID":
        return ": give it one, as ID: web"
    return f", but {other}: names are those of the HTTP API, as ID, Type and TaskGroups"


def _with_nanoseconds(value: Any) -> Any:  # As it came, but for its durations.
    from wharf.contract.wire.times import DurationError, parse_duration_ns

    if isinstance(value, list):
        return [_with_nanoseconds(one) for one in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for key, one in value.items():
        if key in DURATION_FIELDS and isinstance(one, str):
            try:
                found[key] = parse_duration_ns(one)
            except DurationError:
                found[key] = one  # Servers say what is wrong with it.
        else:
            found[key] = one if key in OPAQUE_FIELDS else _with_nanoseconds(one)
    return found


def _is_length_of_time(place: str) -> bool:
    within, _, name = place.rpartition(".")
    return name in DURATION_FIELDS and (name not in MIN_MAX_FIELDS or within.endswith("Wait"))


def _next_to_nothing(value: Any, place: str = "") -> Iterator[tuple[str, int]]:  # Of whatever stands there.
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from _next_to_nothing(one, f"{place}[{number}]")
    elif isinstance(value, dict):
        for key, one in value.items():
            there = f"{place}.{key}" if place else key
            if type(one) is int and 0 < one < MIN_DURATION_NS and _is_length_of_time(there):
                yield there, one
            elif key not in OPAQUE_FIELDS:
                yield from _next_to_nothing(one, there)


def _place_of(source: str, steps: list[str | int]) -> tuple[int, int]:
    """Line and column, from 1, of what the steps lead to, or of the last step that there is. JSON is YAML, here."""
    from ruamel.yaml import YAML

    node = YAML(typ="rt", pure=True).compose(source)
    entries = {key.value: (key, value) for key, value in node.value} if isinstance(node.value, list) else {}
    if "Job" in entries:
        node = entries["Job"][1]
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


def _kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case list():
            return "a list"
        case str():
            return "a text"
        case _:
            return "a single value"
