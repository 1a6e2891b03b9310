"""Names of fields and short forms of job files in YAML, JSON and TOML.

A file names fields as the API does, in any case, as HCL does, or with underscores: `TaskGroups`, `taskGroups`, `group` and
`task_groups` are the same field. Any other name is an error.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import msgspec

from wharf.contract.model.decoding import SubmittedFields, list_submitted_fields
from wharf.contract.model.drivers import OPTION_NAMES
from wharf.contract.model.jobs.constraints import Operand
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.times import DurationError, parse_duration_ns
from wharf.job_files.hcl.block_types import Argument, ArgumentKind, BlockType
from wharf.job_files.hcl.blocks import JOB
from wharf.job_files.hcl.places import FilePath, format_path
from wharf.languages.hcl.amounts import explain_number, find_duration
from wharf.languages.hcl.diagnostics import FixSource
from wharf.languages.markup import MarkupFormat
from wharf.languages.suggestions import find_nearest_name

DURATION_FIELDS: Final = frozenset({
    "CheckRestartGrace", "Deadline", "Delay", "FinalTimeout", "Grace", "HealthyDeadline", "Interval", "KillTimeout", "LostAfter", "Max",
    "MaxClientDisconnect",
    "MaxDelay", "MaxRunDuration", "Min", "MinHealthyTime", "ProgressDeadline", "ShutdownDelay", "Splay", "Stagger",
    "StopAfterClientDisconnect", "StopOnClientAfter", "TTL", "Timeout", "HealthTimeout", "ConnectTimeout",
})  # fmt: skip
"""Fields that a file may write as `30s`; the API has them in nanoseconds."""
_STATIC_PORTS: Final = "ReservedPorts"
COMPARISONS: Final = ("Constraints", "Affinities")
"""Fields whose items may be texts such as `${attr.kernel.name} = linux`."""
SHORT_TEXTS: Final[Mapping[str, str]] = {"Depends": "On"}
"""Fields whose items may be texts, each with the field of the item that the text sets."""
MAX_LISTED_FIELDS: Final = 12
"""The known fields that an error lists if no name is similar."""
_LEFT: Final = re.compile(r"(?:\$\{[^{}]*\}|[^\s${]|\$(?!\{)|\{)+")
_SYMBOLS: Final = ("==", "!=", "<=", ">=", "=", "<", ">")
_WORDS: Final = tuple(str(operand) for operand in Operand if str(operand).replace("_", "").isalpha())
_UNARY: Final = frozenset({Operand.IS_SET, Operand.IS_NOT_SET})
_OPERAND: Final = re.compile(
    rf"\s*(?P<symbol>{'|'.join(map(re.escape, _SYMBOLS))})\s*|\s+(?P<word>{'|'.join(sorted(_WORDS, key=len, reverse=True))})(?=\s|$)\s*"
)


COMPARISON_PATTERN: Final = (
    rf"[=<>]|\s({'|'.join(_WORDS)})(\s|$)|^\s*{Operand.DISTINCT_HOSTS}\s*$|^\s*[$]\{{(var|local)\."
)
"""The pattern of a text that may be a comparison, for the schema."""
MIN_MAX_FIELDS: Final = frozenset({"Min", "Max"})
"""Durations in the `Wait` block of a template, but counts in a scaling policy."""
COMPARISON_FIX: Final = (
    "write LEFT OPERAND RIGHT, such as ${attr.kernel.name} = linux; the operands are "
    f"{' '.join(_SYMBOLS)} {' '.join(_WORDS)}"
)
DURATION_FIX: Final = "write a number and a unit, such as 30s or 1h30m; the units are ns, us, ms, s, m and h"
_QUOTED_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_NOT_A_NUMBER: Final = re.compile(r"expected a whole number(?: or null)?, got text.*")
_SCALAR: Final = re.compile(r"[\w.+-]{1,80}")
_PORT_PATH: Final = re.compile(r"(?:DynamicPorts|ReservedPorts)\[\d+\]$")
_NOT_A_LIST: Final = re.compile(
    r"expected a list(?: or null)?, got (?:text|a number|a whole number|true or false|a bool)"
)
_MAIN_FIELDS: Final = {"Lock": "Key", "Gate": "Ask"}
"""The field that a user means by a text in place of a block."""
_OTHER_NAMES: Final = {
    "needs": "Depends",
    "dependson": "Depends",
    "requires": "Depends",
    "when": "If",
    "condition": "If",
}
"""Names that other systems have for fields of steps."""
_NOT_A_MAP: Final = re.compile(r"expected an object(?: or null)?, got .*")
_NOT_A_BOOL: Final = re.compile(r"expected .*\bbool\b.*, got text|expected true or false(?: or null)?, got text")
_TRUE_WORDS: Final = frozenset({"true", "yes", "on", "1"})
_FALSE_WORDS: Final = frozenset({"false", "no", "off", "0"})
MAX_OWNERS: Final = 3
"""The places that an error lists for a field that is at a wrong one."""
TYPO_SIMILARITY: Final = 0.85
"""A name that is this similar to a field of its own record is a typing error, even if another record has a field of this name."""


class ComparisonError(ValueError):
    """A text is not a comparison such as `${attr.kernel.name} = linux`."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """A problem of a field, with its path in the file. `is_name`: its name is wrong, not its value."""

    path: FilePath
    message: str
    fix: FixSource = ""
    is_name: bool = False


@dataclass(slots=True)
class NormalizedJob:
    """A job with the field names of the API. `origins` maps paths of the document to other paths in the file."""

    document: dict[str, Any]
    problems: list[FieldProblem] = field(default_factory=list)
    origins: dict[FilePath, FilePath] = field(default_factory=dict)


def normalize_job(submitted: Mapping[str, Any], format: MarkupFormat = MarkupFormat.YAML) -> NormalizedJob:
    """Return the job of a file with the field names of the API and without short forms.

    Problems are unknown fields, fields that occur twice, comparisons that cannot be read, and maps in place of lists and the
    reverse. Other types are not checked. `format` is the language in which fixes are written.
    """
    result = NormalizedJob({})
    result.document = _Normalizer(result, format).normalize_record(submitted, Job, JOB, (), ())
    return result


def has_job_fields(document: Mapping[str, Any]) -> bool:
    """Return whether a document has any field of a job at its top, so that it is probably a job file."""
    names = _get_names(Job, JOB)
    return any(names.find(str(key)) is not None for key in document)


def is_duration_field(field_path: str) -> bool:
    """Return whether the field of this path is a duration. `Min` and `Max` are durations only in a `Wait` block."""
    parent, _, name = field_path.rpartition(".")
    return name in DURATION_FIELDS and (name not in MIN_MAX_FIELDS or parent.endswith("Wait"))


def explain_type(
    field_path: str, message: str, value: Any, format: MarkupFormat, *, file_path: str, written: str = ""
) -> tuple[str, str]:
    """Return the message about a value of a wrong type, and how to write the value in the language of the file.

    `field_path` has the names of the API, and `file_path` those of the file. `written` is the part of the file that has the
    value.
    """
    if isinstance(value, str) and _NOT_A_NUMBER.fullmatch(message):
        if is_duration_field(field_path):
            duration = find_duration(value.replace(" ", "").lower())
            fix = f"write {duration}; the units are ns, us, ms, s, m and h" if duration is not None else DURATION_FIX
            return f'expected a duration such as 30s or 1h30m, got "{value[:80]}"', fix
        # A text such as 500m looks like a duration.
        message = message.partition(";")[0]
        if number := _QUOTED_NUMBER.fullmatch(value.strip()):
            return message, f"write {int(number[0])}, without quotes"
        unit = _list_units().get(field_path.rpartition(".")[2], "")
        return message, explain_number(value.strip(), unit) or "write a number without quotes, such as 3"
    if message.startswith("expected a whole number") and isinstance(value, float):
        unit = _list_units().get(field_path.rpartition(".")[2], "")
        fix = explain_number(f"{value:f}".rstrip("0"), unit)
        return (message.partition(": write it")[0] if fix else message), fix
    if _NOT_A_LIST.fullmatch(message):
        return message, f"write {_write_list(value, format)}"
    if _NOT_A_MAP.fullmatch(message):
        if format is MarkupFormat.TOML and isinstance(value, list) and value and isinstance(value[0], dict):
            header = re.sub(r"\[\d+\]", "", file_path)
            return message, f"write [{header}], not [[{header}]]"
        if isinstance(value, str) and _PORT_PATH.search(field_path):
            return message, f"write {write_port(value, format)}"
        if isinstance(value, str) and (field := _MAIN_FIELDS.get(field_path.rpartition(".")[2])):
            text = value[:80]
            written_field = {
                MarkupFormat.YAML: f"{{{field}: {text}}}",
                MarkupFormat.JSON: f"{{{json.dumps(field)}: {json.dumps(text, ensure_ascii=False)}}}",
            }.get(format, f"{{ {field} = {json.dumps(text, ensure_ascii=False)} }}")
            return message, f"write {written_field}"
        example = {MarkupFormat.YAML: "{name: value}", MarkupFormat.JSON: '{"name": "value"}'}.get(
            format, '{ name = "value" }'
        )
        return message, f"write a map, such as {example}"
    if isinstance(value, str) and _NOT_A_BOOL.fullmatch(message):
        word = value.strip().lower()
        return (
            message,
            "write true" if word in _TRUE_WORDS else "write false" if word in _FALSE_WORDS else "write true or false",
        )
    if message.startswith("expected text") and isinstance(value, bool | int | float):
        # The value has lost zeros: 1.10 is 1.1, and 010 is 10.
        text = written if _SCALAR.fullmatch(written) else str(value).lower()
        return message, f'write it in quotes: "{text}"'
    return message, ""


@cache
def _list_units() -> Mapping[str, str]:
    """Return the units of fields that are numbers, such as `MB`, by the names of the fields."""
    units: dict[str, str] = {}
    queue = [JOB]
    for block in queue:
        units.update({argument.field: argument.unit for argument in block.arguments if argument.unit})
        queue += [inner for inner in block.blocks if inner not in queue]
    return units


def _write_list(value: Any, format: MarkupFormat) -> str:
    """Return a list with a single value, as a file has it."""
    if format is MarkupFormat.YAML:
        text = str(value)
        if match := re.match(r"-(?=\S)", text):
            return f'a blank after each "-", such as "- {text[match.end() :].split(" ")[0][:40]}"'
        return f"[{text[:80]}]"
    return f"[{json.dumps(value, ensure_ascii=False)[:80]}]"


def write_port(label: str, format: MarkupFormat, number_field: str = "", number: Any = None) -> str:
    """Return a port as a file has it, such as `{Label: http, To: 80}`."""
    fields = {"Label": label[:40], **({number_field: number} if str(number).isdecimal() else {})}
    match format:
        case MarkupFormat.YAML:
            return "{" + ", ".join(f"{name}: {item}" for name, item in fields.items()) + "}"
        case MarkupFormat.JSON:
            return json.dumps(fields, ensure_ascii=False)
        case _:
            return "{ " + ", ".join(f"{name} = {json.dumps(item)}" for name, item in fields.items()) + " }"


def _is_field(names: "_FieldNames", key: str, field_name: str) -> bool:
    found = names.find(key)
    return found is not None and found.name == field_name


class _Normalizer:
    """Walks over a job and its record types together."""

    def __init__(self, result: NormalizedJob, format: MarkupFormat) -> None:
        self._result = result
        self._format = format

    def normalize_record(
        self,
        submitted: Mapping[str, Any],
        record_type: type[msgspec.Struct],
        block: BlockType | None,
        path: FilePath,
        file_path: FilePath,
    ) -> dict[str, Any]:
        """Return an object with the field names of its record type."""
        schema = list_submitted_fields(record_type)
        names = _get_names(record_type, block)
        normalized: dict[str, Any] = {}
        keys: dict[str, str] = {}
        for key, value in submitted.items():
            found = names.find(key)
            key_path = (*file_path, key)
            if found is None:
                self._add_unknown_field(key, value, key_path, names, path, submitted)
                continue
            name = found.argument.field if found.argument is not None else found.name
            if found.argument is not None and found.argument.operand:
                self._set_operand(normalized, keys, found.argument, value, key_path)
                continue
            if name in keys:
                other = f", also as {keys[name]}" if keys[name] != key else ""
                self._add_problem(key_path, f"the field {name} occurs twice{other}", "remove one", is_name=True)
                continue
            keys[name] = key
            if key != name:
                self._result.origins[(*path, name)] = key_path
            if isinstance(value, str) and name in names.durations:
                value = _convert_duration(value)
            self._normalize_field(normalized, name, value, schema, found.block, (*path, name), key_path)
        if "Operand" not in keys and keys.keys() & {"LTarget", "RTarget"} & _list_renamed(keys):
            normalized["Operand"] = str(Operand.EQUALS)  # `attribute` and `value` are written as in HCL.
        return normalized

    def _normalize_field(
        self,
        normalized: dict[str, Any],
        name: str,
        value: Any,
        schema: SubmittedFields,
        block: BlockType | None,
        path: FilePath,
        file_path: FilePath,
    ) -> None:
        """Store the value of a field."""
        nested = schema.nested.get(name)
        is_block_form = block is not None and str(file_path[-1]).lower() != name.lower()
        if nested is None:
            normalized[name] = value
        elif nested.value_type is tuple:
            items = _list_items(name, value, block if is_block_form else None, file_path)
            if items is None:
                normalized[name] = None if value is None else []
                if value is not None:
                    self._refuse_value(value, file_path)
                return
            fields = {name: items}
            if is_block_form and block is not None and block.other_field == _STATIC_PORTS:
                fields = {name: [], _STATIC_PORTS: []}
                for item in items:
                    fields[_STATIC_PORTS if _is_static_port(item[0]) else name].append(item)
            for field_name, field_items in fields.items():
                normalized[field_name] = [
                    self._normalize_item(
                        field_name, item, nested.record, block, (*path[:-1], field_name, at), item_path
                    )
                    for at, (item, item_path) in enumerate(field_items)
                ]
        elif isinstance(value, list):
            normalized[name] = None
            is_map = nested.value_type is dict
            self._refuse_list(file_path, is_map=is_map)
        elif nested.value_type is dict and isinstance(value, dict):
            label_fields = block.label_fields if is_block_form and block is not None else ()
            normalized[name] = {
                key: self._normalize_item(
                    name, _add_label(item, label_fields, key), nested.record, block, (*path, key), (*file_path, key)
                )
                for key, item in value.items()
            }
        else:
            normalized[name] = self._normalize_item(name, value, nested.record, block, path, file_path)

    def _normalize_item(
        self,
        name: str,
        value: Any,
        record_type: type[msgspec.Struct],
        block: BlockType | None,
        path: FilePath,
        file_path: FilePath,
    ) -> Any:
        """Return one record of a field. Values of another type stay: the conversion to a job reports them."""
        if path != file_path:
            self._result.origins[path] = file_path
        if name in COMPARISONS and isinstance(value, str):
            return self._parse_comparison(value, file_path)
        if name in SHORT_TEXTS and isinstance(value, str):
            self._result.origins[(*path, SHORT_TEXTS[name])] = file_path
            return {SHORT_TEXTS[name]: value}
        if not isinstance(value, dict):
            return value
        return self.normalize_record(value, record_type, block, path, file_path)

    def _set_operand(
        self, normalized: dict[str, Any], keys: dict[str, str], argument: Argument, value: Any, file_path: FilePath
    ) -> None:
        """Store a short form of a comparison, such as `version: ">= 1.2"`."""
        if "Operand" in keys:
            self._add_problem(file_path, f"{keys['Operand']} sets the operand too", "remove one", is_name=True)
            return
        keys["Operand"] = argument.name
        normalized["Operand"] = argument.operand
        normalized[argument.field] = str(value).lower() if isinstance(value, bool) else value

    def _parse_comparison(self, text: str, file_path: FilePath) -> Any:
        """Return the fields of a comparison that is written as a text."""
        try:
            return parse_comparison(text)
        except ComparisonError as error:
            self._add_problem(file_path, str(error), COMPARISON_FIX)
            return {}

    def _refuse_value(self, value: Any, path: FilePath) -> None:
        """Add the problem of a value that is no list of records."""
        fix = self._get_list_fix(path, value if isinstance(value, dict) else {})
        if isinstance(value, str) and value.startswith("-") and self._format is MarkupFormat.YAML:
            fix = f"write {_write_list(value, self._format)}"
        self._add_problem(path, f"{format_path(path)}: expected a list, got {describe_type(value)}", fix)

    def _get_list_fix(self, path: FilePath, value: Mapping[str, Any]) -> str:
        """Return how to write a list of maps. `value` is the map that the file has instead."""
        key = next(iter(value), "Name")
        if key.startswith("-") and self._format is MarkupFormat.YAML:
            return f'write a blank after each "-", such as "- {key.lstrip("-")}: ..."'
        label = key if value and all(isinstance(item, dict) for item in value.values()) else ""
        match self._format:
            case MarkupFormat.TOML:
                header = ".".join(step for step in path if isinstance(step, str) and step != label)
                return f"write [[{header}]] above each item" + (f', and Name = "{label}" below it' if label else "")
            case MarkupFormat.JSON:
                return f'write [{{"Name": "{label}", ...}}]' if label else "write [ ] around it: [{...}]"
            case _:
                return f'begin each item with "- ", such as "- {f"Name: {label}" if label else f"{key}: ..."}"'

    def _refuse_list(self, path: FilePath, *, is_map: bool) -> None:
        """Add the problem of a list in place of a map."""
        fix = "write the name of each item as its key" if is_map else "write its fields without a list around them"
        if self._format is MarkupFormat.TOML:
            header = ".".join(step for step in path if isinstance(step, str))
            fix = f"write [{header}.NAME] for each item" if is_map else f"write [{header}], not [[{header}]]"
        elif self._format is MarkupFormat.YAML and not is_map:
            fix = 'write its fields without "- " and without [ ]'
        self._add_problem(path, f"{format_path(path)}: expected a map, got a list", fix)

    def _add_unknown_field(
        self,
        key: str,
        value: Any,
        path: FilePath,
        names: "_FieldNames",
        record_path: FilePath,
        submitted: Mapping[str, Any],
    ) -> None:
        """Add the problem of an unknown field: which one was meant, where it belongs, or which fields exist."""
        record = tuple(step for step in record_path if isinstance(step, str))

        def find_fix() -> str:
            listed = names.listed
            more = ", ..." if len(listed) > MAX_LISTED_FIELDS else ""
            fields = f"the fields are {', '.join(listed[:MAX_LISTED_FIELDS])}{more}"
            return (
                self._find_special_fix(key, value, names, record, submitted)
                or self._find_fix(key, value, names, record)
                or fields
            )

        # A function, because searching a similar name takes long, and only the first problems are shown.
        self._add_problem(path, f"{format_path(path)} is not a known field", find_fix, is_name=True)

    def _find_fix(self, key: str, value: Any, names: "_FieldNames", record: tuple[str, ...]) -> str:
        """Return which field was meant, or where it belongs; empty if neither is known. `record` has the fields above it."""
        if not record and _squeeze(key) in ("job", "jobs"):
            return self._describe_top(value)
        typo = find_nearest_name(key, names.all_names, min_similarity=TYPO_SIMILARITY)
        if typo is None and (owners := _describe_owners(_squeeze(key), record)):
            return f"it belongs to {owners}"
        nearest = typo or find_nearest_name(key, names.all_names)
        if nearest is None:
            other = find_nearest_name(_squeeze(key), _list_owners_by_name(), min_similarity=TYPO_SIMILARITY)
            owners = _describe_owners(other, record) if other is not None else ""
            return (
                f"did you mean {_list_owners_by_name()[other][0].name}? It belongs to {owners}"
                if other and owners
                else ""
            )
        field = names.find(nearest)
        if field is None or _squeeze(nearest) == field.name.lower():
            return f"did you mean {nearest}?"
        return f"did you mean {field.name}, or {nearest} as in HCL?"

    def _find_special_fix(
        self, key: str, value: Any, names: "_FieldNames", record: tuple[str, ...], submitted: Mapping[str, Any]
    ) -> str:
        """Return where an option of a driver belongs, or how to write the label of a port; else an empty text."""
        if record in ((), ("TaskGroups",)) and (other := _OTHER_NAMES.get(_squeeze(key))) in names.listed:
            return f"did you mean {other}?"
        if record[-1:] == ("Tasks",) and key in OPTION_NAMES:
            config = next((name for name in submitted if _is_field(names, name, "Config")), "")
            if config and submitted[config] is None and self._format is MarkupFormat.YAML:
                return f"indent it below {config}"
            return f"it is an option of the driver: write it in {config or 'Config'}"
        if record[-1:] in (("DynamicPorts",), ("ReservedPorts",)):
            if _squeeze(key) == "name":
                return "did you mean Label?"
            if type(value) in (int, str) and len(submitted) == 1:
                number = "Value" if record[-1] == "ReservedPorts" else "To"
                return f"write {write_port(key, self._format, number, value)}"
        return ""

    def _describe_top(self, value: Any) -> str:
        """Return where the fields of a job are, for a file that has them below `job`."""
        label = next(iter(value), "") if isinstance(value, dict) and len(value) == 1 else ""
        name = str(label or (value if isinstance(value, str) else "web"))[:80]
        match self._format:
            case MarkupFormat.YAML:
                line = f"ID: {name}"
            case MarkupFormat.TOML:
                line = f'ID = "{name}"'
            case _:
                line = f'"ID": "{name}"'
        return f"write {line}, and the fields of the job at the top of the file beside it"

    def _add_problem(self, path: FilePath, message: str, fix: FixSource = "", *, is_name: bool = False) -> None:
        self._result.problems.append(FieldProblem(path, message, fix, is_name))


@dataclass(frozen=True, slots=True)
class _Owner:
    """A record that has a field: the fields that lead to the record, and the name of the field in the API."""

    path: tuple[str, ...]
    description: str
    name: str


def _describe_owners(name: str, record: tuple[str, ...]) -> str:
    """Return the places of a field that its record does not have. Records around and in the record are preferred."""
    owners = [owner for owner in _list_owners_by_name().get(name, []) if owner.path != record]
    near = [
        owner
        for owner in owners
        if record[: len(owner.path)] == owner.path or (owner.path[:-1] == record and len(owner.path) > 0)
    ]
    return " or ".join(list(dict.fromkeys(owner.description for owner in near or owners))[:MAX_OWNERS])


@cache
def _list_owners_by_name() -> Mapping[str, list[_Owner]]:
    """Return the records that have a field, by its name in lower case without underscores: the nearest to the job first."""
    owners: dict[str, list[_Owner]] = {}
    queue: list[tuple[type[msgspec.Struct], BlockType | None, tuple[str, ...], str]] = [
        (Job, JOB, (), "the top level of the file")
    ]
    seen: set[tuple[type[msgspec.Struct], str]] = set()
    for record_type, block, path, description in queue:
        found: dict[str, _Owner] = {}
        for spelling, found_field in _get_names(record_type, block).by_spelling.items():
            found.setdefault(_squeeze(spelling), _Owner(path, description, found_field.name))
        for name, owner in found.items():
            owners.setdefault(name, []).append(owner)
        schema = list_submitted_fields(record_type)
        inner_blocks = {inner.field: inner for inner in block.blocks} if block is not None else {}
        for field_name, nested in schema.nested.items():
            if (nested.record, field_name) in seen or field_name in schema.ignored_names:
                continue
            seen.add((nested.record, field_name))
            inner = f"an item of {field_name}" if nested.value_type in (tuple, dict) else field_name
            inner = {"TaskGroups": "a group (an item of TaskGroups)", "Tasks": "a task (an item of Tasks)"}.get(
                field_name, inner
            )
            queue.append((nested.record, inner_blocks.get(field_name), (*path, field_name), inner))
    return owners


def describe_type(value: object) -> str:
    """Return the type of a value in words, for error texts."""
    match value:
        case None:
            return "nothing"
        case list():
            return "a list"
        case dict():
            return "a map"
        case str():
            return "text"
        case bool():
            return "true or false"
        case _:
            return "a number"


@dataclass(frozen=True, slots=True)
class _FoundField:
    """A field of the API, and the argument or block of HCL whose name the file uses."""

    name: str
    argument: Argument | None = None
    block: BlockType | None = None


@dataclass(frozen=True, slots=True)
class _FieldNames:
    """The names by which a file may call the fields of a record type. `listed` are those of the API."""

    listed: tuple[str, ...]
    durations: frozenset[str]
    """The fields that a file may write as `30s`."""
    by_spelling: Mapping[str, _FoundField]

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of the API, and those of HCL that differ from them."""
        own = {name.lower() for name in self.listed}
        others = [name for name in self.by_spelling if name == name.lower() and _squeeze(name) not in own]
        return (*self.listed, *others)

    def find(self, key: str) -> _FoundField | None:
        """Return the field that a key of the file names, or `None`."""
        return self.by_spelling.get(key) or self.by_spelling.get(key.lower()) or self.by_spelling.get(_squeeze(key))


def _list_renamed(keys: Mapping[str, str]) -> set[str]:
    """Return the fields that the file does not name as the API does, from the keys of the file by field."""
    return {name for name, key in keys.items() if _squeeze(key) != name.lower()}


def _squeeze(name: str) -> str:
    return name.replace("_", "").lower()


@cache
def _get_names(record_type: type[msgspec.Struct], block: BlockType | None) -> _FieldNames:
    """Return the names of the fields of a record type. Names of the API are stronger than those of HCL."""
    schema = list_submitted_fields(record_type)
    blocks = {inner.field: inner for inner in block.blocks} if block is not None else {}
    for inner in block.blocks if block is not None else ():
        blocks.setdefault(inner.other_field, inner)
    spellings: dict[str, _FoundField] = {}
    for exact in schema.names:
        for spelling in (exact, exact.lower()):
            spellings.setdefault(spelling, _FoundField(exact, block=blocks.get(exact)))
    arguments = block.arguments if block is not None else ()
    for argument in arguments:
        if argument.field in schema.names:
            spellings.setdefault(argument.name, _FoundField(argument.field, argument=argument))
    for inner in blocks.values():
        if inner.field in schema.names:
            spellings.setdefault(inner.name, _FoundField(inner.field, block=inner))
    listed = [name for name in schema.names if name not in schema.ignored_names]
    durations = {argument.field for argument in arguments if argument.kind is ArgumentKind.DURATION}
    # `Min` and `Max` are counts in some blocks.
    counts = MIN_MAX_FIELDS - durations if arguments else frozenset()
    return _FieldNames(tuple(listed), frozenset((durations | DURATION_FIELDS) - counts), spellings)


def _list_items(
    name: str, value: Any, block: BlockType | None, file_path: FilePath
) -> list[tuple[Any, FilePath]] | None:
    """Return the items of a list with their paths in the file, or `None` if the value is no list.

    With a block, the value may be written as in the JSON form of HCL: one block without a list around it, and blocks with a
    label below their labels, such as `group: {web: {...}}`.
    """
    if isinstance(value, list):
        return [(item, (*file_path, at)) for at, item in enumerate(value)]
    if (name in COMPARISONS or name in SHORT_TEXTS) and isinstance(value, str):
        return [(value, file_path)]
    if block is None or not isinstance(value, dict):
        return None
    if not block.label_fields:
        return [(value, file_path)]
    if any(isinstance(content, str | int | float) for content in value.values()):
        return None  # The fields of one block, without the label around them.
    items: list[tuple[Any, FilePath]] = []
    for label, content in value.items():
        for at, item in enumerate(content if isinstance(content, list) else [content]):
            item_path = (*file_path, label, at) if isinstance(content, list) else (*file_path, label)
            items.append((_add_label(item, block.label_fields, label), item_path))
    return items


def _add_label(item: Any, label_fields: Sequence[str], label: str) -> Any:
    """Return the content of a block with its label in the fields that hold it."""
    labels = dict.fromkeys(label_fields, label)
    return {**labels, **item} if isinstance(item, dict) else labels if item is None and labels else item


def _is_static_port(port: Any) -> bool:
    """Return whether a port has a static number."""
    return isinstance(port, dict) and any(_squeeze(key) in ("static", "value") and value for key, value in port.items())


def _convert_duration(text: str) -> str | int:
    """Return the nanoseconds of a duration such as `30s`. An invalid one stays: validation rejects it."""
    try:
        return parse_duration_ns(text)
    except DurationError:
        return text


def parse_comparison(text: str) -> dict[str, str]:
    """Return the fields of a comparison such as `${attr.kernel.name} = linux`. Raises `ComparisonError`.

    `distinct_hosts` has no left side, and `is_set` no right one.
    """
    stripped = text.strip()
    if stripped in (Operand.DISTINCT_HOSTS, f"{Operand.DISTINCT_HOSTS} = true"):
        return {"Operand": str(Operand.DISTINCT_HOSTS), "RTarget": "true"}
    left = _LEFT.match(stripped)
    end = left.end() if left is not None else 0
    # An operand may follow without a blank: `${attr.cpu.numcores}>4`.
    symbol = next((at for at in range(end) if _is_outside(stripped, at) and stripped.startswith(_SYMBOLS, at)), end)
    operand = _OPERAND.match(stripped, symbol)
    if operand is None or symbol == 0:
        raise ComparisonError(f'"{stripped[:80]}" has no operand')
    word = operand["symbol"] or operand["word"]
    right = stripped[operand.end() :]
    if not right and word not in (*_UNARY, Operand.DISTINCT_PROPERTY):
        raise ComparisonError(f'"{stripped[:80]}" has no value after {word}')
    if right and word in _UNARY:
        raise ComparisonError(f'"{stripped[:80]}" has a value after {word}')
    return {"LTarget": stripped[:symbol], "Operand": word, **({"RTarget": right} if right else {})}


def _is_outside(text: str, at: int) -> bool:
    """Return whether a position is outside of a reference `${...}`."""
    return text.rfind("${", 0, at) <= text.rfind("}", 0, at)
