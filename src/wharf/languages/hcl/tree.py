"""What a document is once it is parsed: frozen nodes, equal when they say the same.

Places are carried for errors and take no part in equality. A value is a node of its own, an `Expression`: today each
is a literal; references, calls and templates will be further nodes, and whoever reads a value already asks which it is.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias


class SourceLocation(NamedTuple):
    """Line and column count from 1, the offset counts characters from 0."""

    line: int
    column: int
    offset: int


START_LOCATION: Final = SourceLocation(1, 1, 0)


@dataclass(frozen=True, slots=True)
class TextValue:
    value: str
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class NumberValue:
    value: int | float
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class BooleanValue:
    value: bool
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class NullValue:
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class ListValue:
    elements: tuple["Expression", ...]
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class ObjectValue:
    """Names and values between braces. What may stand in a block may stand here: older documents mix the two."""

    body: "Body"
    location: SourceLocation = field(default=START_LOCATION, compare=False)


Expression: TypeAlias = TextValue | NumberValue | BooleanValue | NullValue | ListValue | ObjectValue


@dataclass(frozen=True, slots=True)
class Attribute:
    """`name = value`"""

    name: str
    value: Expression
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class Block:
    """`type "label" { ... }`, with any number of labels."""

    type: str
    labels: tuple[TextValue, ...]
    body: "Body"
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class Body:
    """A document, or what stands between the braces of a block, in the order of the text. A name may recur."""

    items: tuple[Attribute | Block, ...] = ()
    location: SourceLocation = field(default=START_LOCATION, compare=False)


def get_item_name(item: Attribute | Block) -> str:
    return item.type if isinstance(item, Block) else item.name
