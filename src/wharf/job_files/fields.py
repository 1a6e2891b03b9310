"""Names of fields and short forms of job files in YAML, JSON and TOML.

A file names fields as the API does, in any case, as HCL does, or with underscores: `TaskGroups`, `taskGroups`, `group` and
`task_groups` are the same field. Any other name is an error.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import msgspec

from wharf.contract.model.decoding import SubmittedFields, list_submitted_fields
from wharf.contract.model.jobs.constraints import Operand
from wharf.contract.model.jobs.job import Job
from wharf.contract.wire.times import DurationError, parse_duration_ns
from wharf.job_files.hcl.block_types import Argument, ArgumentKind, BlockType
from wharf.job_files.hcl.blocks import JOB
from wharf.job_files.hcl.places import FilePath, format_path
from wharf.languages.suggestions import find_nearest_name

DURATION_FIELDS: Final = frozenset({
    "CheckRestartGrace", "Delay", "Grace", "HealthyDeadline", "Interval", "KillTimeout", "LostAfter", "Max",
    "MaxClientDisconnect",
    "MaxDelay", "MaxRunDuration", "Min", "MinHealthyTime", "ProgressDeadline", "ShutdownDelay", "Splay", "Stagger",
    "StopAfterClientDisconnect", "StopOnClientAfter", "TTL", "Timeout", "HealthTimeout", "ConnectTimeout",
})  # fmt: skip
"""Fields that a file may write as `30s`; the API has them in nanoseconds."""
_STATIC_PORTS: Final = "ReservedPorts"
COMPARISONS: Final = ("Constraints", "Affinities")
"""Fields whose items may be texts such as `${attr.kernel.name} = linux`."""
MAX_LISTED_FIELDS: Final = 12
"""The known fields that an error lists if no name is similar."""
_LEFT: Final = re.compile(r"(?:\$\{[^{}]*\}|[^\s${]|\$(?!\{)|\{)+")
_SYMBOLS: Final = ("==", "!=", "<=", ">=", "=", "<", ">")
_WORDS: Final = tuple(str(operand) for operand in Operand if str(operand).replace("_", "").isalpha())
_UNARY: Final = frozenset({Operand.IS_SET, Operand.IS_NOT_SET})
_OPERAND: Final = re.compile(
    rf"\s*(?P<symbol>{'|'.join(map(re.escape, _SYMBOLS))})\s*|\s+(?P<word>{'|'.join(sorted(_WORDS, key=len, reverse=True))})(?=\s|$)\s*"
)


class ComparisonError(ValueError):
    """A text is not a comparison such as `${attr.kernel.name} = linux`."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """A problem of a field, with its path in the file. `is_name`: the name is wrong, not the value."""

    path: FilePath
    message: str
    fix: str = ""


@dataclass(slots=True)
class NormalizedJob:
    """A job with the field names of the API. `origins` maps paths of the document to other paths in the file."""

    document: dict[str, Any]
    problems: list[FieldProblem] = field(default_factory=list)
    origins: dict[FilePath, FilePath] = field(default_factory=dict)


def normalize_job(submitted: Mapping[str, Any]) -> NormalizedJob:
    """Return the job of a file with the field names of the API and without short forms.

    Problems are unknown fields, fields that occur twice, and comparisons that cannot be read. Types are not checked.
    """
    result = NormalizedJob({})
    result.document = _Normalizer(result).normalize_record(submitted, Job, JOB, (), ())
    return result


class _Normalizer:
    """Walks over a job and its record types together."""

    def __init__(self, result: NormalizedJob) -> None:
        self._result = result

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
                self._add_unknown_field(key, key_path, names)
                continue
            name = found.argument.field if found.argument is not None else found.name
            if found.argument is not None and found.argument.operand:
                self._set_operand(normalized, keys, found.argument, value, key_path)
                continue
            if name in keys:
                other = f", also as {keys[name]}" if keys[name] != key else ""
                self._add_problem(key_path, f"the field {name} occurs twice{other}", "remove one")
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
                normalized[name] = value
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
        if not isinstance(value, dict):
            return value
        return self.normalize_record(value, record_type, block, path, file_path)

    def _set_operand(
        self, normalized: dict[str, Any], keys: dict[str, str], argument: Argument, value: Any, file_path: FilePath
    ) -> None:
        """Store a short form of a comparison, such as `version: ">= 1.2"`."""
        if "Operand" in keys:
            self._add_problem(file_path, f"{keys['Operand']} sets the operand too", "remove one")
            return
        keys["Operand"] = argument.name
        normalized["Operand"] = argument.operand
        normalized[argument.field] = str(value).lower() if isinstance(value, bool) else value

    def _parse_comparison(self, text: str, file_path: FilePath) -> Any:
        """Return the fields of a comparison that is written as a text."""
        try:
            return parse_comparison(text)
        except ComparisonError as error:
            self._add_problem(file_path, str(error), "write LEFT OPERAND RIGHT, such as ${attr.kernel.name} = linux")
            return {}

    def _add_unknown_field(self, key: str, path: FilePath, names: "_FieldNames") -> None:
        nearest = find_nearest_name(key, names.listed)
        fix = f"did you mean {nearest}?" if nearest is not None else ""
        if not fix:
            listed = names.listed
            fix = f"the fields are {', '.join(listed[:MAX_LISTED_FIELDS])}" + (
                ", ..." if len(listed) > MAX_LISTED_FIELDS else ""
            )
        self._add_problem(path, f"{format_path(path)} is not a known field", fix)

    def _add_problem(self, path: FilePath, message: str, fix: str = "") -> None:
        self._result.problems.append(FieldProblem(path, message, fix))


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
    return _FieldNames(tuple(listed), frozenset(durations | DURATION_FIELDS), spellings)


def _list_items(
    name: str, value: Any, block: BlockType | None, file_path: FilePath
) -> list[tuple[Any, FilePath]] | None:
    """Return the items of a list with their paths in the file, or `None` if the value is no list.

    With a block, the value may be written as in the JSON form of HCL: one block without a list around it, and blocks with a
    label below their labels, such as `group: {web: {...}}`.
    """
    if isinstance(value, list):
        return [(item, (*file_path, at)) for at, item in enumerate(value)]
    if name in COMPARISONS and isinstance(value, str):
        return [(value, file_path)]
    if block is None or not isinstance(value, dict):
        return None
    if not block.label_fields:
        return [(value, file_path)]
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
