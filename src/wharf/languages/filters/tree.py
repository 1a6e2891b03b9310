"""What an expression is once it is parsed: frozen nodes, equal when they mean the same.

Places in the text are carried for errors and take no part in equality. Whether a value was quoted is not kept, because
it means nothing; nor is the form of a selector.

From tree to text: one canonical form, which parses to the same tree.

Values are always quoted; parentheses stand only where they are needed.
"""

import enum
import re
from dataclasses import dataclass, field
from typing import Final, TypeAlias


class FilterOperator(enum.Enum):
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
        """The operator that this one is, or is the opposite of."""
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
    ANY = "any"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Selector:
    """The way to a value: names of fields, keys of maps and indexes of lists, all as text."""

    parts: tuple[str, ...]
    offset: int = field(default=0, compare=False)
    part_offsets: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return ".".join(self.parts)

    @property
    def path(self) -> str:
        return "/" + "/".join(self.parts)

    def get_part_offset(self, part: int) -> int:
        """Where a part begins in the text; the whole where that is not known."""
        return self.part_offsets[part] if part < len(self.part_offsets) else self.offset


@dataclass(frozen=True, slots=True)
class LiteralValue:
    """What is compared with: the text of a word, a number or a string. The field's kind says what it stands for."""

    text: str
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Match:
    """One term. `value` is None for the operators that ask after emptiness and null only."""

    selector: Selector
    operator: FilterOperator
    value: LiteralValue | None = None


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Expression"


@dataclass(frozen=True, slots=True)
class And:
    """Two operands or more, looked at from the left until one is false."""

    operands: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Two operands or more, looked at from the left until one is true."""

    operands: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class QuantifiedExpression:
    """Whether the body holds for any or for all members of a list or a map.

    `member` is the only name given (an element of a list, a key of a map); else `key` (or index) and `value` are the
    two, None where one is dropped by `_`.
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
    match node:
        case QuantifiedExpression():
            return True
        case Not(operand):
            return has_quantifiers(operand)
        case And(operands) | Or(operands):
            return any(has_quantifiers(operand) for operand in operands)
        case Match():
            return False


_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_/]*")
_DOTTED: Final = re.compile(r"[A-Za-z][A-Za-z0-9_/]*|[0-9]+")
# Fields whose name alone could be read as a keyword where they stand: written as a pointer.
_LIKE_KEYWORDS: Final = frozenset({"not", "contains", "matches", "in", "is", "any", "all"})
# The characters that a quoted string can not hold as they are.
_ESCAPED: Final = {ord("\\"): "\\\\", ord('"'): "\\x22", ord("\n"): "\\n"}


def format_filter(node: Expression) -> str:
    match node:
        case Match(selector, operator, value):
            shown = f"{_print_selector(selector)} {operator.value}"
            return shown if value is None else f"{shown} {_print_value(value)}"
        case Not(operand):
            return f"not {_grouped(operand, And | Or | QuantifiedExpression)}"
        case And(operands):
            return " and ".join(_grouped(operand, And | Or | QuantifiedExpression) for operand in operands)
        case Or(operands):
            *some, last = operands
            shown_last = _grouped(last, Or)
            return " or ".join([*(_grouped(operand, Or | QuantifiedExpression) for operand in some), shown_last])
        case QuantifiedExpression():
            names = node.member or f"{node.key or '_'}, {node.value or '_'}"
            collected = _print_selector(node.selector)
            return f"{node.quantifier.value} {collected} as {names} {{ {format_filter(node.body)} }}"


def _grouped(node: Expression, kinds: type | object) -> str:
    shown = format_filter(node)
    return f"({shown})" if isinstance(node, kinds) else shown  # type: ignore[arg-type]  # unions of classes are allowed


def _print_selector(selector: Selector) -> str:
    first, *others = selector.parts
    if not _NAME.fullmatch(first) or (not others and first in _LIKE_KEYWORDS):
        escaped = (part.replace("~", "~0").replace("/", "~1") for part in selector.parts)
        return f'"/{"/".join(escaped)}"'
    return first + "".join(f".{part}" if _DOTTED.fullmatch(part) else f"[{_print_string(part)}]" for part in others)


def _print_value(value: LiteralValue) -> str:
    return _print_string(value.text)


def _print_string(text: str) -> str:
    return f'"{text.translate(_ESCAPED)}"'
