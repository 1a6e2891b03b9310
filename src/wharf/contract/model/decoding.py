"""Reading what others submit: JSON to a record of any type.

Submitted JSON is looser than what the records hold: names match in any case (the exact case wins), null means that a
field was not given, unknown names are put aside (their paths become warnings), bytes are base64. What is wrong is told
all at once, each with its path in the wire's names. Records that we wrote ourselves (log, snapshots, replies of our own
servers) are exact and are decoded by msgspec directly, without this module.

A record type may say more about its submitted form by class attributes:

- `ignored_when_submitted`: wire names that are read and dropped (what only the server sets, and what no longer counts);
- `only_when_submitted`: wire names, with their types, that exist in the submitted form alone;
- `text_when_missing`: what to say when a required field is not given;
- `complete_submission(given)`: fills, in the object as given, what depends on other fields of it.

Nothing is judged here: that a word is known or a number in range is for validation.
"""

import difflib
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Final, Generic, TypeVar

import msgspec

T = TypeVar("T")

MAX_JSON_DEPTH: Final = 64
MAX_REPORTED_PROBLEMS: Final = 20
MAX_UNKNOWN_FIELDS: Final = 100
MAX_HINTS: Final = 10
MAX_HINTED_NAME_CHARS: Final = 64
MIN_NAME_SIMILARITY: Final = 0.75
# What a record can hold: msgpack and the peers know no wider whole number.
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**63 - 1

FieldPath = list[str | int]
# Takes what was submitted, where it stands, and the list to which unknown paths are added.
Normalizer = Callable[[object, FieldPath, "list[UnknownField]"], object]


class DecodingProblem(msgspec.Struct, frozen=True):
    """One thing that could not be read, and where."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class DecodingError(Exception):
    """The input can not be read as the record that is asked for. It holds every problem found, at least one."""

    def __init__(self, problems: tuple[DecodingProblem, ...]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


class UnknownField(msgspec.Struct, frozen=True):
    """A name that nobody knows, and the one that may have been meant."""

    path: str
    suggestion: str = ""

    def __str__(self) -> str:
        hint = f": did you mean {self.suggestion}? It was ignored" if self.suggestion else "; it was ignored"
        return f"{self.path} is not a known field{hint}"


class DecodedInput(msgspec.Struct, Generic[T], frozen=True):
    """What was read, and the fields that nobody knows."""

    value: T
    unknown_fields: tuple[UnknownField, ...] = ()

    @property
    def unknown_paths(self) -> tuple[str, ...]:
        """Their paths."""
        return tuple(field.path for field in self.unknown_fields)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The unknown fields as sentences for the reply."""
        return tuple(str(field) for field in self.unknown_fields)


def decode_record(record_type: type[T], body: bytes) -> DecodedInput[T]:
    """Reads JSON."""
    return convert_object(record_type, decode_json(body))


def convert_object(record_type: type[T], given: object) -> DecodedInput[T]:
    """Reads an object that is decoded already; it is not changed."""
    unknown: list[UnknownField] = []
    tidier = _tidier(record_type)
    tidy = tidier(given, [], unknown) if tidier is not None else given
    try:
        value = msgspec.convert(tidy, record_type, str_keys=True)
    except msgspec.ValidationError as error:
        problems = _find_problems(record_type, tidy, [], str(error))
        raise DecodingError(tuple(problems)) from None
    return DecodedInput(value, tuple(unknown))


def decode_json(body: bytes) -> object:
    """Decodes JSON; an error says the line and the column."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise _bad_json(body, str(error)) from None
    except UnicodeDecodeError as error:
        raise _problem([], f"the JSON is not UTF-8 {_place(body, error.start)}") from None
    except RecursionError:
        raise _problem([], "the JSON is nested too deeply") from None


def fill_with_nulls(record_type: type, given: Mapping[str, object]) -> dict[str, object]:
    """The object as given, with every field that was not given as null: what `parse` answers without `Canonicalize`."""
    shape = _shape(record_type)
    filled: dict[str, object] = {name: given.get(name) for name in (*shape.fields, *shape.extras)}
    for name, inner in shape.nested.items():
        value = filled.get(name)
        if isinstance(value, dict) and inner.kind is dict:
            filled[name] = {key: fill_with_nulls(inner.record, item) for key, item in value.items()}
        elif isinstance(value, dict):
            filled[name] = fill_with_nulls(inner.record, value)
        elif isinstance(value, list | tuple):
            filled[name] = [fill_with_nulls(inner.record, item) for item in value]
    return filled


# ---- what a type looks like, worked out once


class _Nested(msgspec.Struct, frozen=True):
    """A field that holds records: one, a list of them or a map of them."""

    record: type[msgspec.Struct]
    kind: type


class _Shape(msgspec.Struct, frozen=True):
    """How the submitted form of one record type is read."""

    fields: dict[str, Normalizer | None]
    types: dict[str, object]
    nested: dict[str, _Nested]
    # The names of every case that is known, folded -> exact.
    folded: dict[str, str]
    ignored: frozenset[str]
    extras: dict[str, object]
    text_when_missing: Mapping[str, str]
    complete: Callable[[dict[str, object]], dict[str, object]] | None


@cache
def _shape(record_type: type[msgspec.Struct]) -> _Shape:
    hints = typing.get_type_hints(record_type)
    named = zip(record_type.__struct_fields__, record_type.__struct_encode_fields__, strict=True)
    field_types: dict[str, object] = {wire: hints[attribute] for attribute, wire in named}
    extras: dict[str, object] = dict(getattr(record_type, "only_when_submitted", {}))
    ignored: frozenset[str] = getattr(record_type, "ignored_when_submitted", frozenset())
    nested = {name: inner for name, kind in (field_types | extras).items() if (inner := _nested(kind)) is not None}
    return _Shape(
        fields={name: _tidier(kind) for name, kind in (field_types | extras).items()},
        types=field_types,
        nested=nested,
        folded={name.lower(): name for name in (*field_types, *extras, *ignored)},
        ignored=ignored,
        extras=extras,
        text_when_missing=getattr(record_type, "text_when_missing", {}),
        complete=getattr(record_type, "complete_submission", None),
    )


def _without_none(kind: object) -> object:
    """`X | None` -> `X`. Other unions stay as they are."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    members = [member for member in typing.get_args(kind) if member is not types.NoneType]
    return members[0] if len(members) == 1 else kind


def _is_record(kind: object) -> typing.TypeGuard[type[msgspec.Struct]]:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _element(kind: object) -> tuple[type, object] | None:
    """The container and what it holds: (tuple, X), (dict, X), or nothing for other types."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (tuple, list) and arguments:
        return tuple, arguments[0]
    if origin is dict:
        return dict, arguments[1]
    return None


def _nested(kind: object) -> _Nested | None:
    kind = _without_none(kind)
    if _is_record(kind):
        return _Nested(kind, msgspec.Struct)
    inner = _element(kind)
    if inner is None or not _is_record(element := _without_none(inner[1])):
        return None
    return _Nested(element, inner[0])


# ---- tidying: names, nulls, bounds; no types


def _tidier(kind: object) -> Normalizer | None:
    """How a value of this type is tidied; None for those that are taken as they are."""
    kind = _without_none(kind)
    if _is_record(kind):
        return _record_tidier(kind)
    if kind is object or kind is typing.Any:
        return _tidy_opaque
    inner = _element(kind)
    if inner is None:
        return None
    container, element = inner
    tidier = _tidier(element)
    if container is dict:
        return _map_tidier(tidier, "" if element is str else None)
    return _list_tidier(tidier) if tidier is not None else None


def _record_tidier(record_type: type[msgspec.Struct]) -> Normalizer:
    def tidy(given: object, path: FieldPath, unknown: list[UnknownField]) -> object:
        # Asked for at the first use: types may hold themselves.
        return _tidy_record(_shape(record_type), given, path, unknown)

    return tidy


def _tidy_record(shape: _Shape, given: object, path: FieldPath, unknown: list[UnknownField]) -> object:
    if not isinstance(given, dict):
        return given  # Conversion tells what was expected.
    fields = shape.fields
    tidy: dict[str, object] = {}
    for submitted, value in given.items():
        name = submitted
        if name not in fields:
            exact = shape.folded.get(name.lower())
            if exact is None:
                _note_unknown(path, name, unknown, shape)
                continue
            if exact in given and exact != name:
                continue  # Also given in the exact case, which wins.
            name = exact
        if value is None or name in shape.ignored:
            continue
        tidier = fields[name]
        if tidier is not None:
            path.append(name)
            tidy[name] = tidier(value, path, unknown)
            path.pop()
        else:
            if type(value) is int and not MIN_INTEGER <= value <= MAX_INTEGER:
                raise _problem([*path, name], "the number is too large")
            tidy[name] = value
    return shape.complete(tidy) if shape.complete is not None else tidy


def _list_tidier(element: Normalizer) -> Normalizer:
    def tidy(given: object, path: FieldPath, unknown: list[UnknownField]) -> object:
        if not isinstance(given, list | tuple):
            return given
        elements = []
        for position, value in enumerate(given):
            path.append(position)
            elements.append(element(value, path, unknown))
            path.pop()
        return elements

    return tidy


def _map_tidier(element: Normalizer | None, when_null: object) -> Normalizer:
    def tidy(given: object, path: FieldPath, unknown: list[UnknownField]) -> object:
        if not isinstance(given, dict):
            return given
        if element is None:
            return {key: when_null if value is None else value for key, value in given.items()}
        elements = {}
        for key, value in given.items():
            path.append(key)
            elements[key] = element(value, path, unknown)
            path.pop()
        return elements

    return tidy


def _tidy_opaque(given: object, path: FieldPath, unknown: list[UnknownField]) -> object:  # noqa: ARG001 (a Tidier)
    """A value that nobody here understands is kept as it is, if it is bounded."""
    if isinstance(given, str | bool | float) or given is None:
        return given
    _bound_opaque(given, path, depth=0)
    return given


def _bound_opaque(value: object, path: FieldPath, *, depth: int) -> None:
    if depth > MAX_JSON_DEPTH:
        raise _problem(path, f"nested deeper than {MAX_JSON_DEPTH} levels")
    if type(value) is int:
        if not MIN_INTEGER <= value <= MAX_INTEGER:
            raise _problem(path, "the number is too large")
        return
    if isinstance(value, dict):
        for inner in value.values():
            _bound_opaque(inner, path, depth=depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _bound_opaque(inner, path, depth=depth + 1)


def _note_unknown(path: FieldPath, name: str, unknown: list[UnknownField], shape: _Shape) -> None:
    # A body of nothing but unknown names must not grow the reply without bound, nor the time that it takes.
    if len(unknown) >= MAX_UNKNOWN_FIELDS:
        return
    near: list[str] = []
    if len(unknown) < MAX_HINTS and len(name) <= MAX_HINTED_NAME_CHARS:
        known = [each for each in shape.folded if shape.folded[each] not in shape.ignored]
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=MIN_NAME_SIMILARITY)
    unknown.append(UnknownField(_spell([*path, name]), shape.folded[near[0]] if near else ""))


# ---- telling what is wrong


def _find_problems(kind: object, value: object, path: FieldPath, message: str) -> Iterator[DecodingProblem]:
    """Goes down to every place that does not convert. Slow, and only walked when conversion has failed."""
    found = list(_inner_problems(kind, value, path))
    if not found:
        found = [DecodingProblem(_spell(path), _in_words(message, value))]
    yield from found[:MAX_REPORTED_PROBLEMS]


def _inner_problems(kind: object, value: object, path: FieldPath) -> Iterator[DecodingProblem]:
    kind = _without_none(kind)
    if _is_record(kind) and isinstance(value, dict):
        shape = _shape(kind)
        yield from _missing_fields(kind, shape, value, path)
        parts = [(name, shape.types[name], value[name]) for name in value if name in shape.types]
    elif (inner := _element(kind)) is not None and isinstance(value, dict):
        parts = [(key, inner[1], item) for key, item in value.items()]
    elif inner is not None and isinstance(value, list | tuple):
        parts = [(position, inner[1], item) for position, item in enumerate(value)]
    else:
        return
    for name, part_kind, part in parts:
        try:
            msgspec.convert(part, type=part_kind, str_keys=True)
        except msgspec.ValidationError as error:
            yield from _find_problems(part_kind, part, [*path, name], str(error))


def _missing_fields(
    record_type: type[msgspec.Struct], shape: _Shape, given: dict[str, object], path: FieldPath
) -> Iterator[DecodingProblem]:
    for field in msgspec.structs.fields(record_type):
        if field.required and field.encode_name not in given:
            message = shape.text_when_missing.get(field.encode_name, "is required")
            yield DecodingProblem(_spell([*path, field.encode_name]), message)


TYPE_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "an object", "null": "null", "bytes": "base64 text", "datetime": "a time (RFC 3339)",
}  # fmt: skip
_EXPECTED = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_DURATION = re.compile(r"[-+]?\d+(\.\d+)?(ns|us|µs|ms|s|m|h)")


def _in_words(message: str, value: object) -> str:
    """Translates what the library says."""
    text = message.split(" - at `", 1)[0]
    match = _EXPECTED.match(text)
    if match is None:
        return text[:1].lower() + text[1:]
    expected = " or ".join(TYPE_DESCRIPTIONS.get(name, name) for name in match[1].split(" | "))
    sentence = f"expected {expected}, got {TYPE_DESCRIPTIONS.get(match[2], match[2])}"
    if "int" in match[1] and isinstance(value, str) and _DURATION.match(value):
        return f"{sentence}; durations are whole numbers of nanoseconds (30s is 30000000000)"
    return sentence


def _bad_json(body: bytes, message: str) -> DecodingError:
    if not body.strip():
        return _problem([], "the JSON is empty")
    if "truncated" in message:
        return _problem([], f"the JSON ends too early {_place(body, len(body))}")
    try:
        # The slower decoder knows the exact place; it is asked only to say it.
        json.loads(body)
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        return _problem([], f"the JSON is malformed: {reason} (line {error.lineno}, column {error.colno})")
    except (ValueError, RecursionError):
        pass
    return _problem([], f"the JSON is malformed: {message.removeprefix('JSON is malformed: ')}")


def _place(body: bytes, offset: int) -> str:
    before = body[:offset]
    line = before.count(b"\n") + 1
    column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
    return f"(line {line}, column {column})"


def _problem(path: FieldPath, message: str) -> DecodingError:
    return DecodingError((DecodingProblem(_spell(path), message),))


_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def _spell(path: FieldPath) -> str:
    """`TaskGroups[0].Meta[a.b]`: names after a dot, positions and unusual names in brackets."""
    text = ""
    for step in path:
        if isinstance(step, int) or not _PLAIN_NAME.match(step):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text
