"""What a template is once it is read: nodes that make text, and expressions that have a value.

`at` is the place in the source where a node begins, for errors.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Constant:
    value: Any  # A text, a number, a truth or nothing.
    offset: int


@dataclass(frozen=True, slots=True)
class Dot:
    offset: int


@dataclass(frozen=True, slots=True)
class VariableReference:
    name: str  # With its dollar sign; the sign alone is what the template was given.
    offset: int


@dataclass(frozen=True, slots=True)
class FieldAccess:
    """`.Name` of a value."""

    operand: "Expression"
    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class FunctionCall:
    name: str
    arguments: tuple["Expression", ...]
    offset: int


Expression = Constant | Dot | VariableReference | FieldAccess | FunctionCall


@dataclass(frozen=True, slots=True)
class TextNode:
    text: str


@dataclass(frozen=True, slots=True)
class OutputNode:
    expression: Expression
    offset: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """`{{$name := …}}` makes a variable, `{{$name = …}}` changes the one that is there."""

    name: str
    is_new: bool
    expression: Expression
    offset: int


@dataclass(frozen=True, slots=True)
class Conditional:
    """`if`, and `with`, in whose body the dot is the value."""

    names: tuple[str, ...]
    expression: Expression
    body: "NodeList"
    else_body: "NodeList"
    is_with: bool
    offset: int


@dataclass(frozen=True, slots=True)
class RangeLoop:
    names: tuple[str, ...]
    expression: Expression
    body: "NodeList"
    else_body: "NodeList"
    offset: int


@dataclass(frozen=True, slots=True)
class LoopJump:
    """`break` or `continue` of the innermost `range`."""

    is_break: bool
    offset: int


@dataclass(frozen=True, slots=True)
class Include:
    """`{{template "name" value}}`"""

    name: str
    expression: Expression | None
    offset: int


TemplateNode = TextNode | OutputNode | Assignment | Conditional | RangeLoop | LoopJump | Include
NodeList = tuple[TemplateNode, ...]


@dataclass(frozen=True, slots=True)
class TemplateTree:
    body: NodeList
    # What `define` and `block` named.
    named_blocks: dict[str, NodeList] = field(default_factory=dict)
