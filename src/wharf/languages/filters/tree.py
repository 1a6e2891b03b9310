"""The syntax tree of filters, and its canonical text.

Nodes are frozen and equal if they mean the same: offsets are stored for errors and ignored by comparisons, and quotes
around values are not stored. `format_filter` writes a tree as text that parses to the same tree.
"""

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias


class FilterOperator(enum.Enum):
    """The operators that a filter can apply to a value. Each positive operator, such as `matches`, has a negated one."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    CONTAINS = "contains"
    NOT_CONTAINS = "not contains"
    MATCHES = "matches"
    NOT_MATCHES = "not matches"
    IS_EMPTY = "is empty"
    IS_NOT_EMPTY = "is not empty"
    IS_NIL = "is nil"
    IS_NOT_NIL = "is not nil"

    @property
    def positive(self) -> "FilterOperator":
        """The operator without its negation, such as EQUAL for NOT_EQUAL."""
        return _POSITIVE.get(self, self)

    @property
    def is_negated(self) -> bool:
        return self in _POSITIVE


_POSITIVE = {
    FilterOperator.NOT_EQUAL: FilterOperator.EQUAL,
    FilterOperator.NOT_CONTAINS: FilterOperator.CONTAINS,
    FilterOperator.NOT_MATCHES: FilterOperator.MATCHES,
    FilterOperator.IS_NOT_EMPTY: FilterOperator.IS_EMPTY,
    FilterOperator.IS_NOT_NIL: FilterOperator.IS_NIL,
}


class Quantifier(enum.Enum):
    """Whether the body must hold for at least one member or for every member."""

    ANY = "any"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Selector:
    """The path to a value: names of fields, keys of maps and indexes of lists, all as text."""

    parts: tuple[str, ...]
    offset: int = field(default=0, compare=False)
    part_offsets: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return ".".join(self.parts)

    @property
    def path(self) -> str:
        """The selector as a JSON pointer, for error texts."""
        return "/" + "/".join(self.parts)

    def get_part_offset(self, part: int) -> int:
        """Return the offset of a part in the text; that of the whole selector if the part's own is unknown."""
        return self.part_offsets[part] if part < len(self.part_offsets) else self.offset


@dataclass(frozen=True, slots=True)
class LiteralValue:
    """The right side of a comparison, as text: a word, a number or a string. The field's kind decides its meaning."""

    text: str
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Match:
    """One term: a selector, an operator and a value. `value` is `None` for `is empty`, `is nil` and their opposites."""

    selector: Selector
    operator: FilterOperator
    value: LiteralValue | None = None


@dataclass(frozen=True, slots=True)
class Not:
    """The negation of an expression."""

    operand: "Expression"


@dataclass(frozen=True, slots=True)
class And:
    """Two or more operands, evaluated from the left until one is false."""

    operands: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Two or more operands, evaluated from the left until one is true."""

    operands: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class QuantifiedExpression:
    """An `any` or `all`: whether the body holds for some or for every member of a list or a map.

    With one bound name, `member` is that name; it stands for an element of a list or a key of a map. With two, `key`
    (or index) and `value` are the names, and a name written as `_` is `None`.
    """

    quantifier: Quantifier
    selector: Selector
    body: "Expression"
    member: str | None = None
    key: str | None = None
    value: str | None = None
    offset: int = field(default=0, compare=False)


Expression: TypeAlias = Match | Not | And | Or | QuantifiedExpression


def has_quantifiers(node: Expression) -> bool:
    """Return whether the expression contains an `any` or `all`."""
    match node:
        case QuantifiedExpression():
            return True
        case Not(operand):
            return has_quantifiers(operand)
        case And(operands) | Or(operands):
            return any(has_quantifiers(operand) for operand in operands)
        case Match():
            return False


def iterate_matches(node: Expression) -> Iterator[Match]:
    """Yield every term of the expression."""
    match node:
        case Match():
            yield node
        case Not(operand):
            yield from iterate_matches(operand)
        case And(operands) | Or(operands):
            for operand in operands:
                yield from iterate_matches(operand)
        case QuantifiedExpression():
            yield from iterate_matches(node.body)


def iterate_record_selectors(node: Expression, bound_names: frozenset[str] = frozenset()) -> Iterator[Selector]:
    """Yield every selector that begins at a field of the record, not at a name that an `any` or `all` binds."""
    match node:
        case Match(selector):
            if selector.parts[0] not in bound_names:
                yield selector
        case Not(operand):
            yield from iterate_record_selectors(operand, bound_names)
        case And(operands) | Or(operands):
            for operand in operands:
                yield from iterate_record_selectors(operand, bound_names)
        case QuantifiedExpression():
            if node.selector.parts[0] not in bound_names:
                yield node.selector
            names = {name for name in (node.member, node.key, node.value) if name is not None}
            yield from iterate_record_selectors(node.body, bound_names | names)


def count_terms(node: Expression) -> int:
    """Return the number of terms of the expression."""
    return sum(1 for _ in iterate_matches(node))


_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_/]*")
_DOTTED: Final = re.compile(r"[A-Za-z][A-Za-z0-9_/]*|[0-9]+")
# A selector that is only one of these names could be parsed as a keyword, so it is written as a JSON pointer.
_KEYWORD_NAMES: Final = frozenset({"not", "contains", "matches", "in", "is", "any", "all"})
# The characters that must be escaped in a quoted string.
_ESCAPED: Final = {ord("\\"): "\\\\", ord('"'): "\\x22", ord("\n"): "\\n"}


def format_filter(node: Expression) -> str:
    """Return the canonical text of an expression: values are quoted, and parentheses are written only if needed."""
    match node:
        case Match(selector, operator, value):
            text = f"{_format_selector(selector)} {operator.value}"
            return text if value is None else f"{text} {_format_value(value)}"
        case Not(operand):
            return f"not {_format_in_parentheses(operand, And | Or | QuantifiedExpression)}"
        case And(operands):
            return " and ".join(
                _format_in_parentheses(operand, And | Or | QuantifiedExpression) for operand in operands
            )
        case Or(operands):
            *all_but_last, last = operands
            last_text = _format_in_parentheses(last, Or)
            return " or ".join(
                [*(_format_in_parentheses(operand, Or | QuantifiedExpression) for operand in all_but_last), last_text]
            )
        case QuantifiedExpression():
            names = node.member or f"{node.key or '_'}, {node.value or '_'}"
            selector_text = _format_selector(node.selector)
            return f"{node.quantifier.value} {selector_text} as {names} {{ {format_filter(node.body)} }}"


def _format_in_parentheses(node: Expression, types_to_group: type | object) -> str:
    """Return the text of an operand, in parentheses if it is a node of these types."""
    text = format_filter(node)
    return f"({text})" if isinstance(node, types_to_group) else text  # type: ignore[arg-type]  # unions of classes are allowed


def _format_selector(selector: Selector) -> str:
    """Return a selector with dots and brackets, or as a JSON pointer if its first part is not a plain name."""
    first, *other_parts = selector.parts
    if not _NAME.fullmatch(first) or (not other_parts and first in _KEYWORD_NAMES):
        escaped = (part.replace("~", "~0").replace("/", "~1") for part in selector.parts)
        return f'"/{"/".join(escaped)}"'
    return first + "".join(
        f".{part}" if _DOTTED.fullmatch(part) else f"[{_quote_string(part)}]" for part in other_parts
    )


def _format_value(value: LiteralValue) -> str:
    return _quote_string(value.text)


def _quote_string(text: str) -> str:
    return f'"{text.translate(_ESCAPED)}"'
