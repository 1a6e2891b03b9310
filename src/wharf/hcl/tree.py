"""What a document is once it is parsed: frozen nodes, equal when they say the same.

Places are carried for errors and take no part in equality. A value is a node of its own, an `Expression`: today each
is a literal; references, calls and templates will be further nodes, and whoever reads a value already asks which it is.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias


class Place(NamedTuple):
    """Line and column count from 1, the offset counts characters from 0."""

    line: int
    column: int
    offset: int


START: Final = Place(1, 1, 0)


@dataclass(frozen=True, slots=True)
class Text:
    value: str
    at: Place = field(default=START, compare=False)


@dataclass(frozen=True, slots=True)
class Number:
    value: int | float
    at: Place = field(default=START, compare=False)


@dataclass(frozen=True, slots=True)
class Boolean:
    value: bool
    at: Place = field(default=START, compare=False)


@dataclass(frozen=True, slots=True)
class Null:
    at: Place = field(default=START, compare=False)


@dataclass(frozen=True, slots=True)
class List:
    elements: tuple["Expression", ...]
    at: Place = field(default=START, compare=False)


@dataclass(frozen=True, slots=True)
class Object:
    """Names and values between braces. What may stand in a block may stand here: older documents mix the two."""

    body: "Body"
    at: Place = field(default=START, compare=False)


Expression: TypeAlias = Text | Number | Boolean | Null | List | Object


@dataclass(frozen=True, slots=True)
class Attribute:
    """`name = value`"""

    name: str
    value: Expression
    at: Place = field(default=START, compare=False)


@dataclass(frozen=True, slots=True)
class Block:
    """`type "label" { ... }`, with any number of labels."""

    type: str
    labels: tuple[Text, ...]
    body: "Body"
    at: Place = field(default=START, compare=False)


@dataclass(frozen=True, slots=True)
class Body:
    """A document, or what stands between the braces of a block, in the order of the text. A name may recur."""

    items: tuple[Attribute | Block, ...] = ()
    at: Place = field(default=START, compare=False)


def name_of(item: Attribute | Block) -> str:
    return item.type if isinstance(item, Block) else item.name
