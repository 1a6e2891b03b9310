"""Job files: JSON and YAML, as documents that servers read and judge. What is wrong with the text is told with its place."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from wharf.cli.complaints import Complaint, complaints_in
from wharf.cli.failing import Failed

STDIN: Final = "-"
LARGEST_BYTES: Final = 10_000_000
MOST_VALUES: Final = 1_000_000
YAML_ENDINGS: Final = (".yaml", ".yml")
HCL_ENDINGS: Final = (".hcl", ".nomad", ".wharf")


DURATIONS: Final = frozenset({
    "CheckRestartGrace", "Delay", "Grace", "HealthyDeadline", "Interval", "KillTimeout", "LostAfter", "Max", "MaxClientDisconnect",
    "MaxDelay", "MaxRunDuration", "Min", "MinHealthyTime", "ProgressDeadline", "ShutdownDelay", "Splay", "Stagger",
    "StopAfterClientDisconnect", "StopOnClientAfter", "TTL", "Timeout",
})  # fmt: skip
"""Written as `30s` in a file, and as nanoseconds on the wire."""
BOUNDS: Final = frozenset({"Min", "Max"})
"""Lengths of time where a template waits; of scaling they are counts."""
OPAQUE: Final = frozenset({"Config", "Env", "Meta", "Params"})
"""What stands in these is nobody's but the task's."""
_TWICE: Final = re.compile(r'found duplicate key "([^"]+)"')
_NO_NUMBER: Final = re.compile(r"expected a whole number(?: or null)?, got text")
_UNKNOWN_FIELD: Final = re.compile(r"Job\.(\w+(?:\[\d+\]|\.\w+)*) (is not a known field.*)")
SHORTEST_NS: Final = 1_000_000
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

    def placed(self, text: str) -> str:
        """What servers say is wrong with the job, with the lines and columns of this file: one line for each thing."""
        return "\n".join(self._placed(one) for one in complaints_in(text))

    def noted(self, warning: str) -> str:
        """A warning, with the place of the field that it is about."""
        found = _UNKNOWN_FIELD.fullmatch(warning)
        if found is None:
            return warning
        return f"{self._where(found[1])}: {found[1]} {found[2]}"

    def remarks(self) -> list[str]:
        """What can be submitted, and is hardly meant: lengths of time whose unit is missing."""
        return [
            f"{self._where(place)}: {place}: {length} without a unit is so many nanoseconds: write {length}s for seconds"
            for place, length in _next_to_nothing(self.document)
        ]

    def _placed(self, complaint: Complaint) -> str:
        if not complaint.place:
            return f"{self.name}: {complaint.said}"
        if _NO_NUMBER.fullmatch(complaint.said) and _is_length_of_time(complaint.place):
            said = "expected a length of time, as 30s or 1h30m, and there is another text"
            return f"{self._where(complaint.place)}: {complaint.place}: {said}"
        return f"{self._where(complaint.place)}: {complaint.place}: {complaint.said}"

    def _where(self, place: str) -> str:
        steps = [key or int(number) for key, number in _STEP.findall(f".{place}")]
        line, column = _place_of(self.source, [] if place == "Job" else steps)
        return f"{self.name}:{line}:{column}"


def read_job_file(place: str) -> JobFile:
    """`-` is what is typed or piped in. Raises `Failed`."""
    name = "standard input" if place == STDIN else place
    text = _text(place, name)
    if place.endswith(HCL_ENDINGS):
        raise Failed(
            f"{name}: job files in HCL are not read yet; write it in YAML or JSON, or let the tool that knows it print it "
            "as JSON and pipe that in: `wharf job run -`"
        )
    format = (
        "yaml" if place.endswith(YAML_ENDINGS) or (place == STDIN and not text.lstrip().startswith("{")) else "json"
    )
    document = _yaml(name, text) if format == "yaml" else _json(name, text)
    if not isinstance(document, dict):
        raise Failed(f"{name}: expected a job, and there is {_kind(document)}")
    job = document.get("Job", document)
    if not isinstance(job, dict):
        raise Failed(f"{name}: Job: expected a job, and there is {_kind(job)}")
    if not job.get("ID"):
        raise Failed(f"{name}: the job has no ID{_misspelled_id(job)}")
    return JobFile(name, text, format, _with_nanoseconds(job))


def read_document(place: str) -> tuple[str, Any]:
    """A name for any file of JSON or YAML, and what stands in it. Raises `Failed`."""
    name = "standard input" if place == STDIN else place
    text = _text(place, name)
    is_json = text.lstrip().startswith("{") and not place.endswith(YAML_ENDINGS)
    return name, _json(name, text) if is_json else _yaml(name, text)


def _text(place: str, name: str) -> str:
    try:
        raw = sys.stdin.buffer.read(LARGEST_BYTES + 1) if place == STDIN else Path(place).read_bytes()
    except FileNotFoundError:
        raise Failed(f"{name}: there is no such file: check the path") from None
    except OSError as error:
        raise Failed(f"{name}: it cannot be read: {error.strerror}") from error
    if len(raw) > LARGEST_BYTES:
        raise Failed(f"{name}: it is larger than {LARGEST_BYTES // 1_000_000} MB, which no job is")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Failed(f"{name}:{line}: it is no UTF-8 text") from error


def _json(name: str, text: str) -> Any:  # Whatever stands there.
    def unique(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in entries:
            if key in found:
                raise Failed(f"{name}: {key} stands twice in one object: keep one")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise Failed(f"{name}:{error.lineno}:{error.colno}: {error.msg[0].lower()}{error.msg[1:]}") from error
    except RecursionError:
        raise Failed(f"{name}: it is nested deeper than any job") from None


def _yaml(name: str, text: str) -> Any:  # Whatever stands there.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 2)  # In which `on` and `no` are words.
    try:
        documents = [_with_text_keys(document, _Room()) for document in reader.load_all(text)]
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        raise Failed(f"{name}{place}: {_said_of_yaml(error.context, error.problem)}") from error
    except (YAMLError, ValueError) as error:
        raise Failed(f"{name}: {str(error).splitlines()[0]}") from error
    except RecursionError:
        raise Failed(f"{name}: it is nested deeper than any job") from None
    except _TooMuch:
        raise Failed(f"{name}: what its aliases stand for is more than any job is") from None
    if not documents:
        raise Failed(f"{name}: it is empty")
    if len(documents) != 1:
        raise Failed(f"{name}: expected one job, and there are {len(documents)} documents")
    return documents[0]


def _said_of_yaml(context: str | None, problem: str | None) -> str:
    """As the reader of YAML says it, but for the two mistakes that people make most."""
    if problem is not None and "character '\\t'" in problem:
        return "a tab; YAML is indented by spaces alone"
    if problem is not None and (twice := _TWICE.match(problem)):
        return f"{twice[1]} stands twice in one object: keep one"
    return " ".join(part for part in (context, problem) if part).splitlines()[0]


def _misspelled_id(job: dict[str, Any]) -> str:
    other = next((key for key in job if key.lower() == "id"), None)
    if other is None or other == "ID":
        return ": give it one, as ID: web"
    return f", but {other}: names are those of the HTTP API, as ID, Type and TaskGroups"


class _TooMuch(Exception):
    pass


class _Room:
    """For so many values there is room: a few aliases of aliases can stand for more than any memory holds."""

    def __init__(self) -> None:
        self.left = MOST_VALUES


def _with_text_keys(value: Any, room: _Room) -> Any:  # As JSON has them.
    room.left -= 1
    if room.left < 0:
        raise _TooMuch
    if isinstance(value, dict):
        return {str(key): _with_text_keys(one, room) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_text_keys(one, room) for one in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def _with_nanoseconds(value: Any) -> Any:  # As it came, but for its durations.
    from wharf.wire.go_duration import DurationError, parse_duration_ns

    if isinstance(value, list):
        return [_with_nanoseconds(one) for one in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for key, one in value.items():
        if key in DURATIONS and isinstance(one, str):
            try:
                found[key] = parse_duration_ns(one)
            except DurationError:
                found[key] = one  # Servers say what is wrong with it.
        else:
            found[key] = one if key in OPAQUE else _with_nanoseconds(one)
    return found


def _is_length_of_time(place: str) -> bool:
    within, _, name = place.rpartition(".")
    return name in DURATIONS and (name not in BOUNDS or within.endswith("Wait"))


def _next_to_nothing(value: Any, place: str = "") -> Iterator[tuple[str, int]]:  # Of whatever stands there.
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from _next_to_nothing(one, f"{place}[{number}]")
    elif isinstance(value, dict):
        for key, one in value.items():
            there = f"{place}.{key}" if place else key
            if type(one) is int and 0 < one < SHORTEST_NS and _is_length_of_time(there):
                yield there, one
            elif key not in OPAQUE:
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
