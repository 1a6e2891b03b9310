"""What a template is once it is read: nodes that make text, and expressions that have a value.

`at` is the place in the source where a node begins, for errors.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Constant:
    value: Any  # A text, a number, a truth or nothing.
    at: int


@dataclass(frozen=True, slots=True)
class Dot:
    at: int


@dataclass(frozen=True, slots=True)
class Variable:
    name: str  # With its dollar sign; the sign alone is what the template was given.
    at: int


@dataclass(frozen=True, slots=True)
class Field:
    """`.Name` of a value."""

    of: "Expression"
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: tuple["Expression", ...]
    at: int


Expression = Constant | Dot | Variable | Field | Call


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Show:
    expression: Expression
    at: int


@dataclass(frozen=True, slots=True)
class Assign:
    """`{{$name := …}}` makes a variable, `{{$name = …}}` changes the one that is there."""

    name: str
    is_new: bool
    expression: Expression
    at: int


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`, and `with`, in whose body the dot is the value."""

    names: tuple[str, ...]
    expression: Expression
    body: "Block"
    otherwise: "Block"
    moves_dot: bool
    at: int


@dataclass(frozen=True, slots=True)
class Range:
    names: tuple[str, ...]
    expression: Expression
    body: "Block"
    otherwise: "Block"
    at: int


@dataclass(frozen=True, slots=True)
class Jump:
    """`break` or `continue` of the innermost `range`."""

    is_break: bool
    at: int


@dataclass(frozen=True, slots=True)
class Include:
    """`{{template "name" value}}`"""

    name: str
    expression: Expression | None
    at: int


Node = Text | Show | Assign | Branch | Range | Jump | Include
Block = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    body: Block
    # What `define` and `block` named.
    named: dict[str, Block] = field(default_factory=dict)
