"""The syntax tree of templates: nodes that produce text, and expressions that have a value.

`offset` is the position in the source at which a node begins, for errors.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Constant:
    """A text, a number, a boolean or `nil` that is written in the template."""

    value: Any
    offset: int


@dataclass(frozen=True, slots=True)
class Dot:
    """The expression `.`, which stands for the current value."""

    offset: int


@dataclass(frozen=True, slots=True)
class VariableReference:
    """A variable. The name includes the dollar sign; `$` alone is the value that the template is rendered with."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class FieldAccess:
    """A field of a value, such as `.Name`."""

    operand: "Expression"
    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function with its arguments."""

    name: str
    arguments: tuple["Expression", ...]
    offset: int


Expression = Constant | Dot | VariableReference | FieldAccess | FunctionCall


@dataclass(frozen=True, slots=True)
class TextNode:
    """Literal text."""

    text: str


@dataclass(frozen=True, slots=True)
class OutputNode:
    """An expression whose value is written as text."""

    expression: Expression
    offset: int


@dataclass(frozen=True, slots=True)
class VariableAssignment:
    """An action that defines a variable (`{{$name := …}}`) or changes a defined one (`{{$name = …}}`)."""

    name: str
    is_new: bool
    expression: Expression
    offset: int


@dataclass(frozen=True, slots=True)
class Conditional:
    """An `if` or `with` action. In the body of `with`, the dot (`.`) stands for the value of the expression."""

    names: tuple[str, ...]
    expression: Expression
    body: "NodeList"
    else_body: "NodeList"
    is_with: bool
    offset: int


@dataclass(frozen=True, slots=True)
class RangeLoop:
    """A `range` action: its body for each entry of the expression's value, or its `else` body if there are no entries.

    `names` are zero, one or two variables for the current entry.
    """

    names: tuple[str, ...]
    expression: Expression
    body: "NodeList"
    else_body: "NodeList"
    offset: int


@dataclass(frozen=True, slots=True)
class LoopJump:
    """A `break` or `continue` action, which applies to the innermost `range`."""

    is_break: bool
    offset: int


@dataclass(frozen=True, slots=True)
class Include:
    """An action `{{template "name" value}}`, which inserts the text of a named template.

    The dot in it stands for the value.
    """

    name: str
    expression: Expression | None
    offset: int


TemplateNode = TextNode | OutputNode | VariableAssignment | Conditional | RangeLoop | LoopJump | Include
NodeList = tuple[TemplateNode, ...]


@dataclass(frozen=True, slots=True)
class TemplateTree:
    """A parsed template: its body, and the named templates of `define` and `block`."""

    body: NodeList
    named_blocks: dict[str, NodeList] = field(default_factory=dict)
