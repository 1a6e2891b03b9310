"""Decode submitted JSON into a record of any type, and list everything that is wrong with it.

Submitted JSON is looser than the records. Field names match in any case; the exact case wins. Null means that a field is
missing. Unknown fields are dropped and reported as warnings. Bytes are base64. All problems are reported together, each
with its path in wire names. Records that Wharf wrote itself (log, snapshots, replies of its own servers) are exact:
msgspec decodes them directly, without this module.

A record type may describe its submitted form with class attributes:

- `ignored_when_submitted`: wire names that are accepted and dropped (fields that only the server sets, and obsolete ones);
- `only_when_submitted`: wire names, with their types, that exist only in the submitted form;
- `text_when_missing`: the message for a required field that is missing;
- `complete_submission(submitted)`: fills in fields of the submitted object that depend on its other fields.

This module checks types only. Validation checks values: known words and numbers in range.
"""

import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Final, Generic, TypeVar

import msgspec

from wharf.languages.suggestions import find_nearest_name

T = TypeVar("T")

MAX_JSON_DEPTH: Final = 64
"""Nesting levels of an opaque value; protects recursive code against deep input."""
MAX_REPORTED_PROBLEMS: Final = 20
"""Problems reported for one object; limits the size of an error reply."""
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
# fields. It takes the value, its path, and the list to which it adds unknown fields, and returns the normalized value.
Normalizer = Callable[[object, FieldPath, "list[UnknownField]"], object]


class DecodingProblem(msgspec.Struct, frozen=True):
    """A part of the input that cannot be decoded."""

    path: str  # Such as `TaskGroups[0].Count`; empty for the whole input.
    message: str  # What is wrong with it, such as `expected text, got a number`.

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class DecodingError(Exception):
    """The error for input that cannot be decoded as the requested record type. Holds at least one problem."""

    def __init__(self, problems: tuple[DecodingProblem, ...]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


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
    """Decode submitted JSON as a record, and collect unknown fields. Raises `DecodingError` with all problems."""
    return convert_object(record_type, decode_json(body))


def convert_object(record_type: type[T], submitted: object) -> DecodedInput[T]:
    """Convert decoded JSON to a record, and collect unknown fields. Raises `DecodingError` with all problems.

    `submitted` is not modified.
    """
    unknown: list[UnknownField] = []
    normalizer = _find_normalizer(record_type)
    normalized = normalizer(submitted, [], unknown) if normalizer is not None else submitted
    try:
        value = msgspec.convert(normalized, record_type, str_keys=True)
    except msgspec.ValidationError as error:
        problems = _find_problems(record_type, normalized, [], str(error))
        raise DecodingError(tuple(problems)) from None
    return DecodedInput(value, tuple(unknown))


def decode_json(body: bytes) -> object:
    """Return the value of a JSON text. Raises `DecodingError`, with line and column if they are known."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise _make_json_error(body, str(error)) from None
    except UnicodeDecodeError as error:
        raise _make_error([], f"the JSON is not UTF-8 {_format_location(body, error.start)}") from None
    except RecursionError:
        raise _make_error([], "the JSON is nested too deeply") from None


def fill_with_nulls(record_type: type, submitted: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of a submitted object in which each missing field of the record type is null.

    Nested records are filled too, and names that are not fields are dropped. The endpoint that parses job files returns
    this if `Canonicalize` is false.
    """
    schema = _get_input_schema(record_type)
    filled: dict[str, object] = {name: submitted.get(name) for name in (*schema.fields, *schema.submitted_only_fields)}
    for name, inner in schema.nested.items():
        value = filled.get(name)
        if isinstance(value, dict) and inner.value_type is dict:
            filled[name] = {key: fill_with_nulls(inner.record, item) for key, item in value.items()}
        elif isinstance(value, dict):
            filled[name] = fill_with_nulls(inner.record, value)
        elif isinstance(value, list | tuple):
            filled[name] = [fill_with_nulls(inner.record, item) for item in value]
    return filled


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
            name: _find_normalizer(value_type) for name, value_type in (field_types | submitted_only_fields).items()
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
    """Return `X` for the type `X | None`. Other types, such as `X | Y`, are returned unchanged."""
    if typing.get_origin(value_type) not in (typing.Union, types.UnionType):
        return value_type
    members = [member for member in typing.get_args(value_type) if member is not types.NoneType]
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


def _find_normalizer(value_type: object) -> Normalizer | None:
    """Return the function that normalizes values of this type, or `None` if they need no normalizing.

    Normalizing corrects field names, drops nulls and unknown fields, and checks limits.
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
    normalizer = _find_normalizer(element)
    if container is dict:
        return _make_map_normalizer(normalizer, "" if element is str else None)
    return _make_list_normalizer(normalizer) if normalizer is not None else None


def _make_record_normalizer(record_type: type[msgspec.Struct]) -> Normalizer:
    """Return a function that normalizes a submitted object for this record type."""

    def normalize(submitted: object, path: FieldPath, unknown: list[UnknownField]) -> object:
        # The schema is built at the first call, not here, because record types may contain themselves.
        return _normalize_record(_get_input_schema(record_type), submitted, path, unknown)

    return normalize


def _normalize_record(schema: _InputSchema, submitted: object, path: FieldPath, unknown: list[UnknownField]) -> object:
    """Return the submitted object with exact field names, without nulls and without unknown or ignored fields.

    Adds the unknown fields to `unknown`. Raises `DecodingError` if an integer has more than 64 bits. `path` is the path
    of the object; it is extended while fields are normalized, and restored.
    """
    if not isinstance(submitted, dict):
        return submitted  # The conversion reports the expected type.
    fields = schema.fields
    normalized: dict[str, object] = {}
    for submitted_name, value in submitted.items():
        name = submitted_name
        if name not in fields:
            exact = schema.exact_names.get(name.lower())
            if exact is None:
                _add_unknown_field(path, name, unknown, schema)
                continue
            if exact in submitted and exact != name:
                continue  # The exact name was submitted as well and wins.
            name = exact
        if value is None or name in schema.ignored_fields:
            continue
        normalizer = fields[name]
        if normalizer is not None:
            path.append(name)
            normalized[name] = normalizer(value, path, unknown)
            path.pop()
        else:
            if type(value) is int and not MIN_INTEGER <= value <= MAX_INTEGER:
                raise _make_error([*path, name], "the number is too large")
            normalized[name] = value
    return schema.complete(normalized) if schema.complete is not None else normalized


def _make_list_normalizer(normalize_element: Normalizer) -> Normalizer:
    """Return a function that normalizes each element of a submitted list with `normalize_element`."""

    def normalize(submitted: object, path: FieldPath, unknown: list[UnknownField]) -> object:
        """Return the list with normalized elements; a value of another type unchanged."""
        if not isinstance(submitted, list | tuple):
            return submitted
        elements = []
        for position, value in enumerate(submitted):
            path.append(position)
            elements.append(normalize_element(value, path, unknown))
            path.pop()
        return elements

    return normalize


def _make_map_normalizer(normalize_value: Normalizer | None, when_null: object) -> Normalizer:
    """Return a function that normalizes each value of a submitted map with `normalize_value`.

    If `normalize_value` is None, the function only replaces null values by `when_null`.
    """

    def normalize(submitted: object, path: FieldPath, unknown: list[UnknownField]) -> object:
        """Return the map with normalized values; a value of another type unchanged."""
        if not isinstance(submitted, dict):
            return submitted
        if normalize_value is None:
            return {key: when_null if value is None else value for key, value in submitted.items()}
        values = {}
        for key, value in submitted.items():
            path.append(key)
            values[key] = normalize_value(value, path, unknown)
            path.pop()
        return values

    return normalize


def _normalize_opaque(submitted: object, path: FieldPath, unknown: list[UnknownField]) -> object:  # noqa: ARG001 (a Normalizer)
    """Return a value of any type unchanged, after a check of its depth and its integers.

    Such values, for example the configuration of a driver, have no declared type. Raises `DecodingError`.
    """
    if isinstance(submitted, str | bool | float) or submitted is None:
        return submitted
    _check_opaque_limits(submitted, path, depth=0)
    return submitted


def _check_opaque_limits(value: object, path: FieldPath, *, depth: int) -> None:
    """Raise `DecodingError` if the value is nested too deeply or holds an integer that is too large."""
    if depth > MAX_JSON_DEPTH:
        raise _make_error(path, f"nested deeper than {MAX_JSON_DEPTH} levels")
    if type(value) is int:
        if not MIN_INTEGER <= value <= MAX_INTEGER:
            raise _make_error(path, "the number is too large")
        return
    if isinstance(value, dict):
        for inner in value.values():
            _check_opaque_limits(inner, path, depth=depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_opaque_limits(inner, path, depth=depth + 1)


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
    unknown.append(UnknownField(_format_path([*path, name]), nearest or ""))


# ---- finding all problems after a failed conversion


def _find_problems(value_type: object, value: object, path: FieldPath, message: str) -> Iterator[DecodingProblem]:
    """Yield the problems of a value, each at the deepest path whose value does not convert, up to a limit.

    `message` is msgspec's error text, used if no part of the value is at fault. Slow: call this only after a failed
    conversion.
    """
    found = list(_iter_inner_problems(value_type, value, path))
    if not found:
        found = [DecodingProblem(_format_path(path), _describe_conversion_error(message, value))]
    yield from found[:MAX_REPORTED_PROBLEMS]


def _iter_inner_problems(value_type: object, value: object, path: FieldPath) -> Iterator[DecodingProblem]:
    """Yield the problems of the fields of a record, or of the elements of a list or map; nothing for other values."""
    value_type = _without_none(value_type)
    if _is_record(value_type) and isinstance(value, dict):
        schema = _get_input_schema(value_type)
        yield from _iter_missing_fields(value_type, schema, value, path)
        # Each part is (name, key or position; type; value).
        parts = [(name, schema.types[name], value[name]) for name in value if name in schema.types]
    elif (inner := _get_container_types(value_type)) is not None and isinstance(value, dict):
        parts = [(key, inner[1], item) for key, item in value.items()]
    elif inner is not None and isinstance(value, list | tuple):
        parts = [(position, inner[1], item) for position, item in enumerate(value)]
    else:
        return
    for name, part_type, part in parts:
        try:
            msgspec.convert(part, type=part_type, str_keys=True)
        except msgspec.ValidationError as error:
            yield from _find_problems(part_type, part, [*path, name], str(error))


def _iter_missing_fields(
    record_type: type[msgspec.Struct], schema: _InputSchema, submitted: dict[str, object], path: FieldPath
) -> Iterator[DecodingProblem]:
    """Yield a problem for each required field of the record type that the submitted object does not have."""
    for field in msgspec.structs.fields(record_type):
        if field.required and field.encode_name not in submitted:
            message = schema.text_when_missing.get(field.encode_name, "is required")
            yield DecodingProblem(_format_path([*path, field.encode_name]), message)


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
        return text[:1].lower() + text[1:]
    expected = " or ".join(TYPE_DESCRIPTIONS.get(name, name) for name in match[1].split(" | "))
    sentence = f"expected {expected}, got {TYPE_DESCRIPTIONS.get(match[2], match[2])}"
    if "int" in match[1] and isinstance(value, str) and _DURATION.match(value):
        return f"{sentence}; durations are whole numbers of nanoseconds (30s is 30000000000)"
    return sentence


def _make_json_error(body: bytes, message: str) -> DecodingError:
    """Return the error for a body that is not JSON, with line and column if they are known.

    `message` is msgspec's error text.
    """
    if not body.strip():
        return _make_error([], "the JSON is empty")
    if "truncated" in message:
        return _make_error([], f"the JSON ends too early {_format_location(body, len(body))}")
    try:
        # msgspec does not report line and column; the slower decoder of the standard library does.
        json.loads(body)
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        return _make_error([], f"the JSON is malformed: {reason} (line {error.lineno}, column {error.colno})")
    except (ValueError, RecursionError):
        pass
    return _make_error([], f"the JSON is malformed: {message.removeprefix('JSON is malformed: ')}")


def _format_location(body: bytes, byte_offset: int) -> str:
    """Return the position of a byte offset as text: `(line 2, column 5)`, both counted from 1."""
    before = body[:byte_offset]
    line = before.count(b"\n") + 1
    column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
    return f"(line {line}, column {column})"


def _make_error(path: FieldPath, message: str) -> DecodingError:
    """Return a `DecodingError` with a single problem at this path."""
    return DecodingError((DecodingProblem(_format_path(path), message),))


_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def _format_path(path: FieldPath) -> str:
    """Return a path as text, such as `TaskGroups[0].Meta[a.b]`.

    Names follow a dot; list positions and names with unusual characters are in brackets.
    """
    text = ""
    for step in path:
        if isinstance(step, int) or not _PLAIN_NAME.match(step):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text
