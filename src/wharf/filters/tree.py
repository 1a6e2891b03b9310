"""What an expression is once it is parsed: frozen nodes, equal when they mean the same.

Places in the text are carried for errors and take no part in equality. Whether a value was quoted is not kept, because
it means nothing; nor is the form of a selector.
"""

import enum
from dataclasses import dataclass, field
from typing import TypeAlias


class Operator(enum.Enum):
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
    def positive(self) -> "Operator":
        """The operator that this one is, or is the opposite of."""
        return _POSITIVE.get(self, self)

    @property
    def is_negated(self) -> bool:
        return self in _POSITIVE


_POSITIVE = {
    Operator.NOT_EQUAL: Operator.EQUAL,
    Operator.NOT_CONTAINS: Operator.CONTAINS,
    Operator.NOT_MATCHES: Operator.MATCHES,
    Operator.IS_NOT_EMPTY: Operator.IS_EMPTY,
    Operator.IS_NOT_NIL: Operator.IS_NIL,
}


class Quantifier(enum.Enum):
    ANY = "any"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Selector:
    """The way to a value: names of fields, keys of maps and indexes of lists, all as text."""

    parts: tuple[str, ...]
    at: int = field(default=0, compare=False)
    parts_at: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return ".".join(self.parts)

    @property
    def path(self) -> str:
        return "/" + "/".join(self.parts)

    def place_of(self, part: int) -> int:
        """Where a part begins in the text; the whole where that is not known."""
        return self.parts_at[part] if part < len(self.parts_at) else self.at


@dataclass(frozen=True, slots=True)
class Value:
    """What is compared with: the text of a word, a number or a string. The field's kind says what it stands for."""

    text: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Match:
    """One term. `value` is None for the operators that ask after emptiness and null only."""

    selector: Selector
    operator: Operator
    value: Value | None = None


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
class Collection:
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
    at: int = field(default=0, compare=False)


Expression: TypeAlias = Match | Not | And | Or | Collection


def has_collections(node: Expression) -> bool:
    match node:
        case Collection():
            return True
        case Not(operand):
            return has_collections(operand)
        case And(operands) | Or(operands):
            return any(has_collections(operand) for operand in operands)
        case Match():
            return False
