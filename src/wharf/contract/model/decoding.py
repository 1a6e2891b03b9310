"""Decode submitted JSON into a record of any type, and list what is wrong with it.

Submitted JSON is looser than the records. Field names match in any case; the exact case wins. Null means that a field is
missing. Unknown fields are dropped and reported as warnings. Bytes are base64. The first problems are reported together, each
with its path in wire names. Records that Wharf wrote itself (log, snapshots, replies of its own servers) are exact:
msgspec decodes them directly, without this module.

A record type may describe its submitted form with class attributes:

- `ignored_when_submitted`: wire names that are accepted and dropped (fields that only the server sets, and obsolete ones);
- `only_when_submitted`: wire names, with their types, that exist only in the submitted form;
- `text_when_missing`: the message for a required field that is missing;
- `complete_submission(submitted)`: fills in fields of the submitted object that depend on its other fields.

This module checks types, and the limits of `body_limits`: a body above a limit is refused before the rest is decoded.
Validation checks values: known words and numbers in range.
"""

import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Final, Generic, TypeVar

import msgspec

from wharf.contract.model.body_limits import (
    LIMITS_BY_FIELD,
    MAX_ITEMS,
    MAX_JSON_VALUES,
    MAX_KEY_CHARS,
    MAX_OBJECT_FIELDS,
    MAX_REPORTED_PROBLEMS,
    MAX_TEXT_CHARS,
    MAX_TOTAL_ITEMS,
    MAX_TOTAL_ITEMS_BY_BODY,
    NAME_KEY_FIELDS,
    NAME_LIST_FIELDS,
    OBJECT_ITEMS,
    FieldLimits,
    cut_echo,
    find_name_problem,
    is_name_field,
)
from wharf.contract.model.json_errors import find_json_problem
from wharf.languages.suggestions import find_nearest_name

T = TypeVar("T")

MAX_JSON_DEPTH: Final = 64
"""Nesting levels of an opaque value; protects recursive code against deep input."""
MAX_UNKNOWN_FIELDS: Final = 100
"""Unknown fields reported as warnings; limits the size of a reply."""
MAX_HINTS: Final = 10
"""Unknown fields for which a similar name is searched; the search is slow."""
# Integers are 64 bits wide: msgpack and other readers of the records support no wider ones.
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**63 - 1

# A path into the input: field names and list positions, such as ["TaskGroups", 0, "Count"].
FieldPath = list[str | int]
# A normalizer brings a submitted value into the form that msgspec converts: exact field names, no nulls, no unknown
# fields. It takes the value, its path and the progress of decoding the body, and returns the normalized value.
Normalizer = Callable[[object, FieldPath, "_Progress"], object]


class DecodingProblem(msgspec.Struct, frozen=True):
    """A part of the input that cannot be decoded."""

    path: str  # Such as `TaskGroups[0].Count`; empty for the whole input.
    message: str  # What is wrong with it, such as `expected text, got a number`.

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class DecodingError(Exception):
    """The error for input that cannot be decoded as the requested record type. Holds at least one problem.

    Its text also has the first unknown fields: a misspelled name often explains a missing field.
    """

    def __init__(self, problems: tuple[DecodingProblem, ...], unknown_fields: "tuple[UnknownField, ...]" = ()) -> None:
        super().__init__("; ".join(str(each) for each in (*problems, *unknown_fields)))
        self.problems = problems
        self.unknown_fields = unknown_fields


class UnknownField(msgspec.Struct, frozen=True):
    """A field of the input that the record type does not have, and the most similar name of a field that it has."""

    path: str  # Such as `TaskGroups[0].Cuont`.
    suggestion: str = ""  # Empty if no known name is similar.

    def __str__(self) -> str:
        hint = f": did you mean {self.suggestion}? It was ignored" if self.suggestion else "; it was ignored"
        return f"{self.path} is not a known field{hint}"


class DecodedInput(msgspec.Struct, Generic[T], frozen=True):
    """A decoded record, and the unknown fields of the input that were dropped."""

    value: T
    unknown_fields: tuple[UnknownField, ...] = ()

    @property
    def unknown_paths(self) -> tuple[str, ...]:
        """The paths of the unknown fields, such as `TaskGroups[0].Cuont`."""
        return tuple(field.path for field in self.unknown_fields)

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each unknown field, for the reply to the client."""
        return tuple(str(field) for field in self.unknown_fields)


def decode_record(record_type: type[T], body: bytes) -> DecodedInput[T]:
    """Decode submitted JSON as a record, and collect unknown fields. Raises `DecodingError` with the first problems."""
    return convert_object(record_type, decode_json(body))


def convert_object(record_type: type[T], submitted: object) -> DecodedInput[T]:
    """Convert decoded JSON to a record, and collect unknown fields. Raises `DecodingError` with the first problems.

    `submitted` is not modified.
    """
    progress = _Progress(MAX_TOTAL_ITEMS_BY_BODY.get(getattr(record_type, "__name__", ""), MAX_TOTAL_ITEMS))
    body_type: typing.Any = record_type  # mypy does not know that every type is hashable.
    normalizer = _get_body_normalizer(body_type)
    normalized = normalizer(submitted, [], progress) if normalizer is not None else submitted
    try:
        value = msgspec.convert(normalized, record_type, str_keys=True)
    except msgspec.ValidationError as error:
        # Stops after the first problems: to search a large body for all of them would take seconds.
        problems = islice(_iter_problems(record_type, normalized, [], str(error)), MAX_REPORTED_PROBLEMS)
        raise DecodingError(tuple(problems), tuple(progress.unknown_fields[:MAX_HINTS])) from None
    return DecodedInput(value, tuple(progress.unknown_fields))


def decode_json(body: bytes) -> object:
    """Return the value of a JSON text. Raises `DecodingError`, with line and column or with the path of the field."""
    if len(body) > MAX_JSON_VALUES and _count_values(body) > MAX_JSON_VALUES:
        raise _make_error([], f"the JSON holds more than {MAX_JSON_VALUES} values, lists and objects")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = find_json_problem(body, str(error))
        raise _make_error([*problem.path], problem.message) from None
    except RecursionError:
        raise _make_error([], "the JSON is nested too deeply") from None


_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def _count_values(body: bytes) -> int:
    """Return about how many values a JSON text holds, without building them."""

    def count(text: bytes) -> int:
        return text.count(b",") + text.count(b"[") + text.count(b"{")

    found = count(body)
    # A template may consist of commas and braces. To leave out texts takes long, so it is done only for suspicious bodies.
    return found if found <= MAX_JSON_VALUES else count(_TEXT.sub(b"", body))


class _Progress:
    """What decoding has seen of one body: its unknown fields, and how many list items and map entries are left."""

    __slots__ = ("_max_items", "items_left", "unknown_fields")

    def __init__(self, max_items: int) -> None:
        self.unknown_fields: list[UnknownField] = []
        self.items_left = max_items
        self._max_items = max_items

    def count_items(self, count: int, limit: int, path: FieldPath) -> None:
        """Count the items of a list or map. Raises `DecodingError` above its limit or the limit of the whole body."""
        if count > limit:
            raise _make_error(path, f"holds {count} items, more than the limit of {limit}")
        self.items_left -= count
        if self.items_left < 0:
            raise self.make_total_error(path)

    def make_total_error(self, path: FieldPath) -> DecodingError:
        """Return the error for a body that holds too many items in all."""
        return _make_error(path, f"the body holds more than {self._max_items} list items and map entries in all")


# ---- input schemas, computed once for each record type


class _NestedRecord(msgspec.Struct, frozen=True):
    """The records that a field holds: their type, and whether the field holds one, a list or a map of them."""

    record: type[msgspec.Struct]  # The type of the records.
    value_type: type  # `msgspec.Struct` for one record, `tuple` for a list, `dict` for a map of them.


class _InputSchema(msgspec.Struct, frozen=True):
    """How submitted objects of one record type are decoded. Names are wire names, such as `JobID`."""

    fields: dict[str, Normalizer | None]  # Name -> normalizer, or None if values need no normalizing.
    types: dict[str, object]  # Name -> type annotation, for the fields of the record.
    nested: dict[str, _NestedRecord]  # Name -> nested records, for fields that hold records.
    exact_names: dict[str, str]  # Lower-case name -> exact name, for all known names, also ignored ones.
    ignored_fields: frozenset[str]  # Names that are accepted and dropped.
    submitted_only_fields: dict[str, object]  # Name -> type, for fields that exist only in the submitted form.
    text_when_missing: Mapping[str, str]  # Name -> message, for required fields that are missing.
    complete: Callable[[dict[str, object]], dict[str, object]] | None
    """Fills in fields that depend on other fields of the object; None if nothing depends."""


@cache
def _get_input_schema(record_type: type[msgspec.Struct]) -> _InputSchema:
    """Return the input schema of a record type, built once from its annotations and class attributes."""
    hints = typing.get_type_hints(record_type)
    name_pairs = zip(record_type.__struct_fields__, record_type.__struct_encode_fields__, strict=True)
    field_types: dict[str, object] = {wire: hints[attribute] for attribute, wire in name_pairs}
    submitted_only_fields: dict[str, object] = dict(getattr(record_type, "only_when_submitted", {}))
    ignored_fields: frozenset[str] = getattr(record_type, "ignored_when_submitted", frozenset())
    nested = {
        name: inner
        for name, value_type in (field_types | submitted_only_fields).items()
        if (inner := _find_nested_record(value_type)) is not None
    }
    return _InputSchema(
        fields={
            name: _find_field_normalizer(f"{record_type.__name__}.{name}", value_type)
            for name, value_type in (field_types | submitted_only_fields).items()
        },
        types=field_types,
        nested=nested,
        exact_names={name.lower(): name for name in (*field_types, *submitted_only_fields, *ignored_fields)},
        ignored_fields=ignored_fields,
        submitted_only_fields=submitted_only_fields,
        text_when_missing=getattr(record_type, "text_when_missing", {}),
        complete=getattr(record_type, "complete_submission", None),
    )


def _without_none(value_type: object) -> object:
    """Return `X` for `X | None` and `X | UnsetType`. Other types, such as `X | Y`, are returned unchanged."""
    if typing.get_origin(value_type) not in (typing.Union, types.UnionType):
        return value_type
    members = [member for member in typing.get_args(value_type) if member not in (types.NoneType, msgspec.UnsetType)]
    return members[0] if len(members) == 1 else value_type


def _is_record(value_type: object) -> typing.TypeGuard[type[msgspec.Struct]]:
    """Return whether the type is a record type, that is, a subclass of `msgspec.Struct`."""
    return isinstance(value_type, type) and issubclass(value_type, msgspec.Struct)


def _get_container_types(value_type: object) -> tuple[type, object] | None:
    """Return (tuple, X) for a list or tuple of X, (dict, X) for a dict with values X, and `None` for other types."""
    origin = typing.get_origin(value_type)
    arguments = typing.get_args(value_type)
    if origin in (tuple, list) and arguments:
        return tuple, arguments[0]
    if origin is dict:
        return dict, arguments[1]
    return None


def _find_nested_record(value_type: object) -> _NestedRecord | None:
    """Return the records that a field of this type holds: their type, and whether it is one, a list or a map.

    Returns `None` if it holds no records.
    """
    value_type = _without_none(value_type)
    if _is_record(value_type):
        return _NestedRecord(value_type, msgspec.Struct)
    inner = _get_container_types(value_type)
    if inner is None or not _is_record(element := _without_none(inner[1])):
        return None
    return _NestedRecord(element, inner[0])


# ---- normalizing: names, nulls and limits; types are checked by the conversion


_DEFAULT_LIMITS: Final = FieldLimits("")


def _find_field_normalizer(field: str, value_type: object) -> Normalizer | None:
    """Return the normalizer of a field, as `Record.Field`, with the limits and the name rule of this field."""
    limits = LIMITS_BY_FIELD.get(field, _DEFAULT_LIMITS)
    if field in NAME_LIST_FIELDS:
        return _make_list_normalizer(_normalize_name, limits)
    normalizer = _find_normalizer(value_type, limits)
    if normalizer is not None and field in NAME_KEY_FIELDS:
        return _make_named_map_normalizer(normalizer)
    if normalizer is None and is_name_field(field):
        return _normalize_name
    if normalizer is None and limits.max_text_chars != MAX_TEXT_CHARS:
        return _make_text_normalizer(limits.max_text_chars)
    return normalizer


@cache
def _get_body_normalizer(body_type: object) -> Normalizer | None:
    """Return the function that normalizes bodies of this type. Few types of bodies exist, so each is searched once."""
    return _find_normalizer(body_type, _DEFAULT_LIMITS)


def _find_normalizer(value_type: object, limits: FieldLimits) -> Normalizer | None:
    """Return the function that normalizes values of this type, or `None` for scalar values.

    Normalizing corrects field names, drops nulls and unknown fields, and checks limits. `limits` apply to a list, a map
    or their texts; lists and maps inside have the default limits.
    """
    value_type = _without_none(value_type)
    if _is_record(value_type):
        return _make_record_normalizer(value_type)
    if value_type is object or value_type is typing.Any:
        return _normalize_opaque
    inner = _get_container_types(value_type)
    if inner is None:
        return None
    container, element = inner
    normalizer = _find_normalizer(element, _DEFAULT_LIMITS)
    if container is dict:
        return _make_map_normalizer(normalizer, "" if element is str else None, limits)
    return _make_list_normalizer(normalizer, limits)


def _make_record_normalizer(record_type: type[msgspec.Struct]) -> Normalizer:
    """Return a function that normalizes a submitted object for this record type."""

    def normalize(submitted: object, path: FieldPath, progress: _Progress) -> object:
        # The schema is built at the first call, not here, because record types may contain themselves.
        return _normalize_record(_get_input_schema(record_type), submitted, path, progress)

    return normalize


def _normalize_record(schema: _InputSchema, submitted: object, path: FieldPath, progress: _Progress) -> object:
    """Return the submitted object with exact field names, without nulls and without unknown or ignored fields.

    Adds the unknown fields to `progress`. Raises `DecodingError` if a value is above a limit. `path` is the path of the
    object; it is extended while fields are normalized, and restored.
    """
    if not isinstance(submitted, dict):
        return submitted  # The conversion reports the expected type.
    if len(submitted) > MAX_OBJECT_FIELDS:
        raise _make_error(path, f"has {len(submitted)} fields, more than the limit of {MAX_OBJECT_FIELDS}")
    progress.items_left -= OBJECT_ITEMS
    if progress.items_left < 0:
        raise progress.make_total_error(path)
    fields = schema.fields
    normalized: dict[str, object] = {}
    for submitted_name, value in submitted.items():
        name = submitted_name
        if name not in fields:
            exact = schema.exact_names.get(name.lower())
            if exact is None:
                _add_unknown_field(path, name, progress.unknown_fields, schema)
                _check_dropped_value(name, value, path, progress)
                continue
            if exact in submitted and exact != name:
                # The exact name was submitted as well and wins.
                _check_dropped_value(name, value, path, progress)
                continue
            name = exact
        if value is None:
            continue
        if name in schema.ignored_fields:
            _check_dropped_value(name, value, path, progress)
            continue
        normalizer = fields[name]
        if normalizer is not None:
            path.append(name)
            normalized[name] = normalizer(value, path, progress)
            if name in schema.submitted_only_fields and name in schema.nested and not isinstance(value, dict):
                # The conversion does not see the field.
                raise _make_error(path, f"expected an object or null, got {_describe_json_type(value)}")
            path.pop()
        else:
            problem = _find_scalar_problem(value, MAX_TEXT_CHARS)
            if problem:
                raise _make_error([*path, name], problem)
            normalized[name] = value
    return schema.complete(normalized) if schema.complete is not None else normalized


def _find_scalar_problem(value: object, max_text_chars: int) -> str:
    """Return the problem of a number or text that is above a limit; "" for all other values."""
    if type(value) is str:
        if len(value) > max_text_chars:
            return f"is {len(value)} characters long, more than the limit of {max_text_chars}"
    elif type(value) is int and not MIN_INTEGER <= value <= MAX_INTEGER:
        return f"the number is too large: write one from {MIN_INTEGER} to {MAX_INTEGER}"
    return ""


def _describe_json_type(value: object) -> str:
    """Return the type of a value in the words of other errors."""
    if isinstance(value, bool):
        return "true or false"
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "a number"


def _normalize_name(submitted: object, path: FieldPath, progress: _Progress) -> object:  # noqa: ARG001 (a Normalizer)
    """Return an id or name unchanged. Raises `DecodingError` if it is too long or contains a forbidden character."""
    problem = find_name_problem(submitted) if isinstance(submitted, str) else _find_scalar_problem(submitted, 0)
    if problem:
        raise _make_error(path, problem)
    return submitted


def _make_text_normalizer(max_chars: int) -> Normalizer:
    """Return a function that returns a text unchanged, or raises `DecodingError` if it is longer than `max_chars`."""

    def normalize(submitted: object, path: FieldPath, progress: _Progress) -> object:  # noqa: ARG001 (a Normalizer)
        problem = _find_scalar_problem(submitted, max_chars)
        if problem:
            raise _make_error(path, problem)
        return submitted

    return normalize


def _make_list_normalizer(normalize_element: Normalizer | None, limits: FieldLimits) -> Normalizer:
    """Return a function that normalizes each element of a submitted list with `normalize_element`.

    If that is None, the function only checks limits.
    """
    max_items, max_chars = limits.max_items, limits.max_text_chars

    def normalize(submitted: object, path: FieldPath, progress: _Progress) -> object:
        """Return the list with normalized elements; a value of another type unchanged."""
        if not isinstance(submitted, list | tuple):
            return submitted
        progress.count_items(len(submitted), max_items, path)
        if normalize_element is None:
            for position, value in enumerate(submitted):
                problem = _find_scalar_problem(value, max_chars)
                if problem:
                    raise _make_error([*path, position], problem)
            return submitted
        elements = []
        for position, value in enumerate(submitted):
            path.append(position)
            elements.append(normalize_element(value, path, progress))
            path.pop()
        return elements

    return normalize


def _make_map_normalizer(normalize_value: Normalizer | None, when_null: object, limits: FieldLimits) -> Normalizer:
    """Return a function that normalizes each value of a submitted map with `normalize_value`.

    If `normalize_value` is None, the function only replaces null values by `when_null`, and checks limits.
    """
    max_items, max_chars = limits.max_items, limits.max_text_chars

    def normalize(submitted: object, path: FieldPath, progress: _Progress) -> object:
        """Return the map with normalized values; a value of another type unchanged."""
        if not isinstance(submitted, dict):
            return submitted
        progress.count_items(len(submitted), max_items, path)
        values: dict[str, object] = {}
        for key, value in submitted.items():
            if len(key) > MAX_KEY_CHARS:
                raise _make_error([*path, key], f"the key is longer than {MAX_KEY_CHARS} characters")
            if normalize_value is not None:
                path.append(key)
                values[key] = normalize_value(value, path, progress)
                path.pop()
                continue
            problem = _find_scalar_problem(value, max_chars)
            if problem:
                raise _make_error([*path, key], problem)
            values[key] = when_null if value is None else value
        return values

    return normalize


def _make_named_map_normalizer(normalize_map: Normalizer) -> Normalizer:
    """Return a function that normalizes a submitted map with `normalize_map`, and whose keys are ids or names."""

    def normalize(submitted: object, path: FieldPath, progress: _Progress) -> object:
        normalized = normalize_map(submitted, path, progress)
        for key in normalized if isinstance(normalized, dict) else ():
            problem = find_name_problem(key)
            if problem:
                raise _make_error(path, f"has a key that {problem}")
        return normalized

    return normalize


def _normalize_opaque(submitted: object, path: FieldPath, progress: _Progress) -> object:
    """Return a value of any type unchanged, after a check of its depth and its limits.

    Such values, for example the configuration of a driver, have no declared type. Raises `DecodingError`.
    """
    if isinstance(submitted, bool | float) or submitted is None:
        return submitted
    _check_opaque_limits(submitted, path, progress, depth=0)
    return submitted


def _check_dropped_value(name: str, value: object, path: FieldPath, progress: _Progress) -> None:
    """Check a value that is dropped like one without a declared type. It counts as an item of the body.

    Otherwise, fields that nobody reads could hold as much as the whole body may.
    """
    progress.items_left -= 1
    if progress.items_left < 0:
        raise progress.make_total_error(path)
    if isinstance(value, dict | list | str):
        path.append(name)
        _check_opaque_limits(value, path, progress, depth=0)
        path.pop()


def _check_opaque_limits(value: object, path: FieldPath, progress: _Progress, *, depth: int) -> None:
    """Raise `DecodingError` if the value is nested too deeply, or holds a number, text, list or map above a limit."""
    if depth > MAX_JSON_DEPTH:
        raise _make_error(path[: len(path) - depth], f"nested deeper than {MAX_JSON_DEPTH} levels")
    if isinstance(value, dict):
        progress.count_items(len(value), MAX_ITEMS, path)
        for key, inner in value.items():
            path.append(key)
            if len(key) > MAX_KEY_CHARS:
                raise _make_error(path, f"the key is longer than {MAX_KEY_CHARS} characters")
            _check_opaque_limits(inner, path, progress, depth=depth + 1)
            path.pop()
    elif isinstance(value, list | tuple):
        progress.count_items(len(value), MAX_ITEMS, path)
        for position, inner in enumerate(value):
            path.append(position)
            _check_opaque_limits(inner, path, progress, depth=depth + 1)
            path.pop()
    else:
        problem = _find_scalar_problem(value, MAX_TEXT_CHARS)
        if problem:
            raise _make_error(path, problem)


def _add_unknown_field(path: FieldPath, name: str, unknown: list[UnknownField], schema: _InputSchema) -> None:
    """Add an unknown field to `unknown`, with the most similar known name as a suggestion.

    Does nothing if `unknown` is full. After the first fields it searches for no suggestion, because the search is slow.
    """
    # A body of only unknown names must cause neither a huge reply nor a long search for similar names.
    if len(unknown) >= MAX_UNKNOWN_FIELDS:
        return
    nearest = None
    if len(unknown) < MAX_HINTS:
        known = [exact for exact in schema.exact_names.values() if exact not in schema.ignored_fields]
        nearest = find_nearest_name(name, known)
    unknown.append(UnknownField(format_path([*path, name]), nearest or ""))


class SubmittedFields(msgspec.Struct, frozen=True):
    """The fields that submitted objects of one record type may have. Names are wire names."""

    names: tuple[str, ...]
    ignored_names: frozenset[str]  # The names that are accepted and dropped; `names` holds them too.
    nested: Mapping[str, "_NestedRecord"]  # For fields that hold records: their type, and whether one, a list or a map.


@cache
def list_submitted_fields(record_type: type[msgspec.Struct]) -> SubmittedFields:
    """Return the fields that submitted objects of a record type may have."""
    schema = _get_input_schema(record_type)
    return SubmittedFields(tuple(schema.exact_names.values()), schema.ignored_fields, schema.nested)


# ---- finding all problems after a failed conversion


def _iter_problems(value_type: object, value: object, path: FieldPath, message: str) -> Iterator[DecodingProblem]:
    """Yield the problems of a value, each at the deepest path whose value does not convert.

    `message` is msgspec's error text, used if no part of the value is at fault. Slow: call this only after a failed
    conversion, and take only the first problems.
    """
    is_found = False
    for problem in _iter_inner_problems(value_type, value, path):
        is_found = True
        yield problem
    if not is_found:
        yield DecodingProblem(format_path(path), _describe_conversion_error(message, value))


def _iter_inner_problems(value_type: object, value: object, path: FieldPath) -> Iterator[DecodingProblem]:
    """Yield the problems of the fields of a record, or of the elements of a list or map; nothing for other values."""
    value_type = _without_none(value_type)
    parts: Iterable[tuple[str | int, object, object]]  # Name, key or position; type; value.
    if _is_record(value_type) and isinstance(value, dict):
        schema = _get_input_schema(value_type)
        yield from _iter_missing_fields(value_type, schema, value, path)
        parts = ((name, schema.types[name], value[name]) for name in value if name in schema.types)
    elif (inner := _get_container_types(value_type)) is not None and inner[0] is dict and isinstance(value, dict):
        element_type = inner[1]
        parts = ((key, element_type, item) for key, item in value.items())
    # A list in place of a map has no limit, so its elements are not searched; the same holds for a map in place of a list.
    elif inner is not None and inner[0] is tuple and isinstance(value, list | tuple):
        element_type = inner[1]
        parts = ((position, element_type, item) for position, item in enumerate(value))
    else:
        return
    for name, part_type, part in parts:
        try:
            msgspec.convert(part, type=part_type, str_keys=True)
        except msgspec.ValidationError as error:
            yield from _iter_problems(part_type, part, [*path, name], str(error))


def _iter_missing_fields(
    record_type: type[msgspec.Struct], schema: _InputSchema, submitted: dict[str, object], path: FieldPath
) -> Iterator[DecodingProblem]:
    """Yield a problem for each required field of the record type that the submitted object does not have."""
    for field in msgspec.structs.fields(record_type):
        if field.required and field.encode_name not in submitted:
            message = schema.text_when_missing.get(field.encode_name, "is required")
            yield DecodingProblem(format_path([*path, field.encode_name]), message)


TYPE_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "an object", "null": "null", "bytes": "base64 text", "datetime": "a time (RFC 3339)",
}  # fmt: skip
_EXPECTED = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_DURATION = re.compile(r"[-+]?\d+(\.\d+)?(ns|us|µs|ms|s|m|h)")


def _describe_conversion_error(message: str, value: object) -> str:
    """Return msgspec's error message about `value` in the words of JSON: `expected text, got a number`."""
    text = message.split(" - at `", 1)[0]
    match = _EXPECTED.match(text)
    if match is None:
        return cut_echo(text[:1].lower() + text[1:])
    expected = " or ".join(TYPE_DESCRIPTIONS.get(name, name) for name in match[1].split(" | "))
    sentence = f"expected {expected}, got {TYPE_DESCRIPTIONS.get(match[2], match[2])}"
    if "int" in match[1] and isinstance(value, float):
        return f"expected {expected}, got {value!r}: write it without a decimal point and an exponent"
    if "int" in match[1] and isinstance(value, str) and _DURATION.match(value):
        return f"{sentence}; durations are whole numbers of nanoseconds (30s is 30000000000)"
    return sentence


def _make_error(path: FieldPath, message: str) -> DecodingError:
    """Return a `DecodingError` with a single problem at this path."""
    return DecodingError((DecodingProblem(format_path(path), message),))


_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def format_path(path: FieldPath) -> str:
    """Return a path as text, such as `TaskGroups[0].Meta[a.b]`.

    Names follow a dot; list positions and names with unusual characters are in brackets.
    """
    text = ""
    for step in (cut_echo(step) if isinstance(step, str) else step for step in path):
        if isinstance(step, int) or not _PLAIN_NAME.match(step):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text
