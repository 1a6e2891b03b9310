"""The syntax tree of HCL and JSON documents: frozen nodes that are equal if they mean the same.

Locations are stored for errors and ignored by comparisons. Every value is an `Expression` node; today all of them are
literals.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from wharf.languages.source_locations import SourceLocation

START_LOCATION: Final = SourceLocation(1, 1)


@dataclass(frozen=True, slots=True)
class TextValue:
    """A string in quotes, or a heredoc."""

    value: str
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class NumberValue:
    """An integer or a decimal number."""

    value: int | float
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class BooleanValue:
    """`true` or `false`."""

    value: bool
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class NullValue:
    """`null`. An attribute with this value counts as absent."""

    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class ListValue:
    """Values between brackets."""

    elements: tuple["Expression", ...]
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class ObjectValue:
    """An object: items between braces. It may contain blocks, because older documents mix objects and blocks."""

    body: "Body"
    location: SourceLocation = field(default=START_LOCATION, compare=False)


Expression: TypeAlias = TextValue | NumberValue | BooleanValue | NullValue | ListValue | ObjectValue


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute: `name = value`."""

    name: str
    value: Expression
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class Block:
    """A block: `type "label" { ... }`, with any number of labels."""

    type: str
    labels: tuple[TextValue, ...]
    body: "Body"
    location: SourceLocation = field(default=START_LOCATION, compare=False)


@dataclass(frozen=True, slots=True)
class Body:
    """The items of a document, block or object, in the order of the text. Several items may have the same name."""

    items: tuple[Attribute | Block, ...] = ()
    location: SourceLocation = field(default=START_LOCATION, compare=False)


def get_item_name(item: Attribute | Block) -> str:
    """Return the name of an attribute or the type of a block."""
    return item.type if isinstance(item, Block) else item.name
