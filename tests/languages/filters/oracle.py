"""A slow, simple interpreter of expressions, with which tests compare compiled filters.

It walks tree, record and type hints together for each record. It shares only the tree with the package.
"""

import contextlib
import datetime
import enum
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from wharf.languages.filters.tree import (
    And,
    Expression,
    FilterOperator,
    Match,
    Not,
    Or,
    QuantifiedExpression,
    Quantifier,
    Selector,
)


class TypeMismatch(Exception):
    """The expression does not fit the record type."""


class MissingValue(Exception):
    """The record lacks a value that the expression reads."""


class Unfit(MissingValue):
    """The literal is not of the type of an untyped value."""


Names = dict[str, tuple[Any, Any]]  # name -> (hint, value)
ABSENT = object()

# Reference 2.4: the operators of each kind. Every kind that may be null also has `is nil`.
OPERATORS = {
    "text": {"==", "contains", "matches", "is empty"},
    "time": {"==", "contains", "matches", "is empty", "is nil"},
    "boolean": {"=="},
    "integer": {"=="},
    "unsigned": {"=="},
    "float": {"=="},
    "bytes": {"contains", "matches", "is empty", "is nil"},
    "scalars": {"contains", "is empty", "is nil"},
    "structs": {"is empty", "is nil"},
    "map": {"contains", "is empty", "is nil"},
    "struct": {"is nil"},
    "any": {"==", "contains", "matches", "is empty", "is nil"},
}
OPPOSITES = {
    FilterOperator.NOT_EQUAL: "==",
    FilterOperator.NOT_CONTAINS: "contains",
    FilterOperator.NOT_MATCHES: "matches",
    FilterOperator.IS_NOT_EMPTY: "is empty",
    FilterOperator.IS_NOT_NIL: "is nil",
}


# -- hints ---------------------------------------------------------------------------------------------------------


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return a hint without null and unset, and whether it had one of them."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part not in (type(None), msgspec.UnsetType)]
        return (parts[0] if len(parts) == 1 else object), True
    return hint, False


def get_kind(hint: Any) -> str:
    """Return the kind of values with this hint, as in reference 2.4."""
    hint, _ = without_none(hint)
    if typing.get_origin(hint) is typing.Annotated:
        return "unsigned"
    if hint in (object, Any):
        return "any"
    origin = typing.get_origin(hint)
    if origin in (tuple, list, frozenset, set):
        return (
            "scalars"
            if get_kind(typing.get_args(hint)[0]) not in ("struct", "map", "scalars", "structs")
            else "structs"
        )
    if origin is dict:
        return "map"
    if issubclass(hint, msgspec.Struct):
        return "struct"
    if issubclass(hint, datetime.datetime):
        return "time"
    if issubclass(hint, bytes):
        return "bytes"
    if issubclass(hint, str | enum.Enum):
        return "text"
    return {bool: "boolean", int: "integer", float: "float"}[hint]


def find_field(struct: type[msgspec.Struct], name: str) -> tuple[str, Any]:
    """Return the attribute and the hint of a field by its wire name. Raises `TypeMismatch` if it does not exist."""
    for field in msgspec.structs.fields(struct):
        if field.encode_name == name:
            return field.name, typing.get_type_hints(struct, include_extras=True)[field.name]
    raise TypeMismatch(f"no field {name}")


# -- literals ------------------------------------------------------------------------------------------------------


def parse_integer(text: str) -> int | None:
    """Return a whole number in any base. Octal numbers may also have a leading 0 without an o."""
    if re.fullmatch(r"[+-]?0[0-7_]+", text) and "__" not in text and not text.endswith("_"):
        return int(text.replace("_", ""), 8)
    try:
        found = int(text, 0) if text.strip() == text else None
    except ValueError:
        return None
    return found if found is not None and -(2**63) <= found < 2**64 else None


def parse_float(text: str) -> float | None:
    if re.fullmatch(r"[+-]?0x[0-9a-f]*\.?[0-9a-f]*p[+-]?\d+", text, re.ASCII | re.IGNORECASE):
        return float.fromhex(text)
    return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII) else None


def parse_literal(of_kind: str, text: str) -> Any:
    """Return the value of a literal, or `None` if it does not fit the kind."""
    match of_kind:
        case "boolean":
            truth = {"1 t T TRUE true True": True, "0 f F FALSE false False": False}
            return next((value for words, value in truth.items() if text in words.split()), None)
        case "integer":
            return parse_integer(text)
        case "unsigned":
            return None if text[:1] in "+-" else parse_integer(text)
        case "float":
            return parse_float(text)
        case "byte":
            found = None if text[:1] in "+-" else parse_integer(text)
            return found if found is not None and found < 256 else None
        case _:
            return text


def compile_pattern(text: str) -> re.Pattern[str]:
    """Return the compiled pattern. Raises `TypeMismatch` if it is invalid."""
    try:
        # RE2's $ is the end of the text only, Python's a newline before it too.
        return re.compile(re.sub(r"\$$", r"\\Z", text))
    except re.error:
        raise TypeMismatch(f"bad pattern {text}") from None


# -- type checks ---------------------------------------------------------------------------------------------------


def check_types(node: Expression, record: type, names: dict[str, Any]) -> None:
    """Raises `TypeMismatch` if the expression does not fit the record type."""
    match node:
        case Match():
            check_match(node, record, names)
        case Not(operand):
            check_types(operand, record, names)
        case And(operands) | Or(operands):
            for operand in operands:
                check_types(operand, record, names)
        case QuantifiedExpression():
            hint, by_key = find_hint(node.selector, record, names)
            key, value, member = get_member_hints(hint, by_key=by_key)
            if node.key is not None and node.key == node.value:
                raise TypeMismatch("twice")
            bound_names = {node.member: member} if node.member else {node.key: key, node.value: value}
            check_types(
                node.body, record, {**names, **{name: h for name, h in bound_names.items() if name is not None}}
            )


def get_member_hints(hint: Any, *, by_key: bool) -> tuple[Any, Any, Any]:
    """Return the hints of the key, of the value, and of a single bound name."""
    inner, _ = without_none(hint)
    match get_kind(hint):
        case "scalars" | "structs":
            item = typing.get_args(inner)[0]
            return typing.Annotated[int, "index"], item, item
        case "map":
            return str, typing.get_args(inner)[1], str
        case "any":
            return object, object, object
    if by_key:
        return object, object, object
    raise TypeMismatch("not a list or a map")


def find_hint(selector: Selector, record: type, names: dict[str, Any]) -> tuple[Any, bool]:
    """Return the hint of the selected value, and whether the last part is the key of a map."""
    first, *remaining_parts = selector.parts
    hint = names[first] if first in names else find_field(record, first)[1]
    by_key = False
    for part in remaining_parts:
        inner, _ = without_none(hint)
        by_key = False
        match get_kind(hint):
            case "struct":
                hint = find_field(inner, part)[1]
            case "map":
                hint, by_key = typing.get_args(inner)[1], True
            case "scalars" | "structs" if typing.get_origin(inner) is not frozenset and part.isdecimal():
                hint = typing.get_args(inner)[0]
            case "any":
                by_key = True
            case _:
                raise TypeMismatch("nothing below")
    return hint, by_key


def check_match(match: Match, record: type, names: dict[str, Any]) -> None:
    """Raises `TypeMismatch` if the operator or the literal does not fit the selected field."""
    hint, by_key = find_hint(match.selector, record, names)
    operator = OPPOSITES.get(match.operator, match.operator.value)
    of_kind = get_kind(hint)
    may_be_null = without_none(hint)[1]
    if by_key and operator in ("is empty", "is nil"):
        return
    if operator not in OPERATORS[of_kind] and not (operator == "is nil" and may_be_null):
        raise TypeMismatch("no such operator")
    text = match.value.text if match.value else ""
    if operator == "matches":
        compile_pattern(text)
    if operator == "==" and parse_literal(of_kind, text) is None:
        raise TypeMismatch("no such value")
    if operator == "contains" and of_kind in ("scalars", "bytes"):
        inner, _ = without_none(hint)
        item = "byte" if of_kind == "bytes" else get_kind(typing.get_args(inner)[0])
        if parse_literal(item, text) is None:
            raise TypeMismatch("no such element")


# -- evaluation ----------------------------------------------------------------------------------------------------


def evaluate(node: Expression, record: Any, names: Names) -> bool:
    """Return whether the expression matches the record. Raises `MissingValue` if it reads a missing value."""
    match node:
        case Match():
            found = evaluate_match(node, record, names)
            return not found if node.operator in OPPOSITES else found
        case Not(operand):
            return not evaluate(operand, record, names)
        case And(operands):
            return all(evaluate(operand, record, names) for operand in operands)
        case Or(operands):
            return any(evaluate(operand, record, names) for operand in operands)
        case QuantifiedExpression():
            hint, value = look_up(node.selector, record, names)
            if value is ABSENT:
                return node.quantifier is Quantifier.ALL
            results = (
                evaluate(node.body, record, {**names, **bound_names})
                for bound_names in iter_bound_names(node, hint, value)
            )
            return any(results) if node.quantifier is Quantifier.ANY else all(results)


def iter_bound_names(node: QuantifiedExpression, hint: Any, value: Any) -> Iterator[Names]:
    """Yield the bound names of a quantified expression for each member of a value."""
    of_kind = get_kind(hint)
    if of_kind == "any" and not isinstance(value, dict | list | tuple):
        raise MissingValue("not a list or a map")
    if of_kind not in ("any", "map", "scalars", "structs"):
        raise MissingValue("not a list or a map")
    key_hint, value_hint, member_hint = get_member_hints(hint, by_key=False)
    is_map = isinstance(value, dict)
    for key, member in list(value.items()) if is_map else list(enumerate(value or ())):
        if node.member:
            yield {node.member: (member_hint, key if is_map else member)}
        else:
            bound_names = {node.key: (key_hint, key), node.value: (value_hint, member)}
            yield {name: pair for name, pair in bound_names.items() if name is not None}


def look_up(selector: Selector, record: Any, names: Names) -> tuple[Any, Any]:
    """Return the hint and the value of a selector; the value is ABSENT if its last key is missing."""
    first, *remaining_parts = selector.parts
    if first in names:
        hint, value = names[first]
    else:
        attribute, hint = find_field(type(record), first)
        value = getattr(record, attribute)
    for position, part in enumerate(remaining_parts, start=1):
        if value is msgspec.UNSET:
            value = None
        inner, _ = without_none(hint)
        of_kind = get_kind(hint)
        if of_kind == "any":
            of_kind = "map" if isinstance(value, dict) else "scalars" if isinstance(value, list | tuple) else "other"
            inner = {"map": dict[str, object], "scalars": list[object]}.get(of_kind, object)
        if of_kind == "struct" and value is not None:
            attribute, hint = find_field(inner, part)
            value = getattr(value, attribute)
        elif of_kind == "map":
            hint = typing.get_args(inner)[1]
            value = (value or {}).get(part, ABSENT)
            if value is ABSENT and position < len(remaining_parts):
                raise MissingValue("no such key")
        elif of_kind in ("scalars", "structs") and part.isdecimal() and int(part) < len(value or ()):
            hint = typing.get_args(inner)[0]
            value = value[int(part)]
        else:
            raise MissingValue("nothing below")
    if value is msgspec.UNSET:
        value = None
    if get_kind(hint) == "time" and value is None:
        value = ABSENT
    return hint, value


def evaluate_match(match: Match, record: Any, names: Names) -> bool:
    """Return the result of a match with the positive form of its operator."""
    hint, value = look_up(match.selector, record, names)
    operator = OPPOSITES.get(match.operator, match.operator.value)
    if value is ABSENT:
        return operator in ("is empty", "is nil")
    of_kind = get_kind(hint)
    if of_kind == "struct" and operator == "is empty":
        return value is None  # Only under the key of a map: elsewhere it is a type error. A record has fields.
    if operator not in OPERATORS[of_kind] and not (operator == "is nil" and without_none(hint)[1]):
        raise MissingValue("no such operator")
    text = match.value.text if match.value else ""
    if operator == "is nil":
        return value is None
    if of_kind == "any":
        return evaluate_untyped(operator, value, text)
    if value is None and of_kind not in ("map", "scalars", "structs", "bytes"):
        raise MissingValue("null")
    if isinstance(value, datetime.datetime):
        value = msgspec.json.decode(msgspec.json.encode(value))
    if isinstance(value, enum.Enum):
        value = value.value
    match operator:
        case "is empty":
            return not value
        case "==":
            return bool(value == parse_literal(of_kind, text))
        case "matches" if of_kind == "bytes":
            return re.search(compile_pattern(text).pattern.encode(), value or b"") is not None
        case "matches":
            return compile_pattern(text).search(value) is not None
    if of_kind == "bytes":
        return parse_literal("byte", text) in (value or b"")
    if of_kind == "scalars":
        inner, _ = without_none(hint)
        item = typing.get_args(inner)[0]
        if get_kind(item) == "any":
            return evaluate_untyped(operator, list(value or ()), text)
        return parse_literal(get_kind(item), text) in (value or ())
    return value is not None and text in value


def evaluate_untyped(operator: str, value: Any, text: str) -> bool:
    """Return the result of an operator on a value of untyped JSON."""
    match operator, value:
        case "is empty", str() | dict() | list() | tuple():
            return not value
        case "contains", str() | dict():
            return text in value
        case "contains", list() | tuple():
            for element in value:
                if isinstance(element, dict | list | tuple):
                    continue
                with contextlib.suppress(Unfit):
                    if evaluate_untyped("==", element, text):
                        return True
            return False
        case "matches", str():
            return compile_pattern(text).search(value) is not None
        case "==", str():
            return bool(value == text)
        case "==", bool():
            truth = parse_literal("boolean", text)
            if truth is None:
                raise Unfit(text)
            return truth is value
        case "==", int() | float():
            expected = parse_integer(text) if parse_float(text) is None else parse_float(text)
            if expected is None:
                raise Unfit(text)
            return float(value) == float(expected)
    raise MissingValue("no such operator")
