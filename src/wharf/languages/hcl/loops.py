"""Loops that build lists, objects and text, and templates."""

from collections.abc import Callable

from wharf.languages.hcl.conversions import (
    to_text,
)
from wharf.languages.hcl.diagnostics import ExpressionError
from wharf.languages.hcl.nodes import (
    Scope,
    SyntaxNode,
    convert_result,
    evaluate_condition,
    evaluate_key,
)
from wharf.languages.hcl.values import (
    MAPPINGS,
    SEQUENCES,
    HclList,
    HclObject,
    HclTuple,
    Value,
    describe_value,
    normalize_text,
)


def list_entries(node: SyntaxNode, value: Value, scope: Scope, context: str) -> list[tuple[Value, Value]]:
    """Return the keys and values of the value of a node, over which a loop runs. Raises `ExpressionError`."""
    if isinstance(value, MAPPINGS):
        scope.budget.use_steps(len(value.entries))
        return [(key, value.entries[key]) for key in sorted(value.entries)]
    if isinstance(value, HclTuple | HclList):
        scope.budget.use_steps(len(value.items))
        return list(enumerate(value.items))
    if isinstance(value, SEQUENCES):
        scope.budget.use_steps(len(value.items))
        return [(item, item) for item in value.items]
    fix = "use split for a list of its parts" if isinstance(value, str) else ""
    if isinstance(value, str) and value.startswith("${"):
        fix = "this text is replaced on the node, so its parts are unknown here"
    raise node.make_error(f"{context} needs a list, set, map or object, got {describe_value(value)}", fix)


class Loop:
    """The names and the collection of a `for`. `cost` is the steps of one iteration."""

    __slots__ = ("collection", "cost", "key_name", "value_name")

    def __init__(self, key_name: str | None, value_name: str, collection: SyntaxNode, cost: int) -> None:
        self.key_name = key_name
        self.value_name = value_name
        self.collection = collection
        self.cost = cost

    def run(self, scope: Scope, visit: Callable[[Scope], None]) -> None:
        """Call `visit` for each entry, with a scope that has the names of the loop."""
        entries = list_entries(self.collection, self.collection.evaluate(scope), scope, "for")
        inner = scope.with_names({})
        for key, value in entries:
            scope.budget.use_steps(self.cost)
            if self.key_name is not None:
                inner.names[self.key_name] = key
            inner.names[self.value_name] = value
            visit(inner)


class ForTupleNode(SyntaxNode):
    """`[for v in xs : value if condition]`."""

    __slots__ = ("condition", "loop", "value")

    def __init__(self, loop: Loop, value: SyntaxNode, condition: SyntaxNode | None, start: int, end: int) -> None:
        super().__init__(start, end)
        self.loop = loop
        self.value = value
        self.condition = condition

    def evaluate(self, scope: Scope) -> Value:
        items: list[Value] = []

        def visit(inner: Scope) -> None:
            if self.condition is None or evaluate_condition(self.condition, inner):
                items.append(self.value.evaluate(inner))
                scope.budget.use_bytes(8)

        self.loop.run(scope, visit)
        return HclTuple(tuple(items))


class ForObjectNode(SyntaxNode):
    """`{for k, v in xs : key => value if condition}`. If `is_grouped`, each key holds the list of its values."""

    __slots__ = ("condition", "is_grouped", "key", "loop", "value")

    def __init__(
        self,
        loop: Loop,
        key: SyntaxNode,
        value: SyntaxNode,
        condition: SyntaxNode | None,
        start: int,
        end: int,
        *,
        is_grouped: bool,
    ) -> None:
        super().__init__(start, end)
        self.loop = loop
        self.key = key
        self.value = value
        self.condition = condition
        self.is_grouped = is_grouped

    def evaluate(self, scope: Scope) -> Value:
        entries: dict[str, Value] = {}
        groups: dict[str, list[Value]] = {}

        def visit(inner: Scope) -> None:
            if self.condition is not None and not evaluate_condition(self.condition, inner):
                return
            name = evaluate_key(self.key, inner)
            value = self.value.evaluate(inner)
            scope.budget.use_bytes(16)
            if self.is_grouped:
                groups.setdefault(name, []).append(value)
            elif name in entries:
                raise self.key.make_error(
                    f'the key "{name[:80]}" occurs twice', "write ... after the value to collect the values of a key"
                )
            else:
                entries[name] = value

        self.loop.run(scope, visit)
        if self.is_grouped:
            return HclObject({name: HclTuple(tuple(values)) for name, values in groups.items()})
        return HclObject(entries)


class TemplateIf:
    """`%{ if condition }...%{ else }...%{ endif }`."""

    __slots__ = ("condition", "else_parts", "parts")

    def __init__(self, condition: SyntaxNode, parts: "TemplateParts", else_parts: "TemplateParts") -> None:
        self.condition = condition
        self.parts = parts
        self.else_parts = else_parts


class TemplateFor:
    """`%{ for x in xs }...%{ endfor }`."""

    __slots__ = ("loop", "parts")

    def __init__(self, loop: Loop, parts: "TemplateParts") -> None:
        self.loop = loop
        self.parts = parts


TemplateParts = list["str | SyntaxNode | TemplateIf | TemplateFor"]


class TemplateNode(SyntaxNode):
    """A text with interpolations and directives."""

    __slots__ = ("parts",)

    def __init__(self, parts: TemplateParts, start: int, end: int) -> None:
        super().__init__(start, end)
        self.parts = parts

    def evaluate(self, scope: Scope) -> Value:
        pieces: list[str] = []
        errors: list[ExpressionError] = []
        _render_parts(self.parts, scope, pieces, errors)
        if errors:
            raise ExpressionError.join(errors)
        return normalize_text("".join(pieces))


def _render_parts(parts: TemplateParts, scope: Scope, pieces: list[str], errors: list[ExpressionError]) -> None:
    """Append the texts of the parts to `pieces`, and their errors to `errors`."""
    budget = scope.budget
    for part in parts:
        if isinstance(part, str):
            budget.use_bytes(len(part))
            pieces.append(part)
            continue
        try:
            if isinstance(part, SyntaxNode):
                text = _render_value(part, part.evaluate(scope))
                budget.use_bytes(len(text))
                pieces.append(text)
            elif isinstance(part, TemplateIf):
                chosen = part.parts if evaluate_condition(part.condition, scope) else part.else_parts
                _render_parts(chosen, scope, pieces, errors)
            else:
                _render_loop(part, scope, pieces, errors)
        except ExpressionError as error:
            errors.append(error)


def _render_loop(part: TemplateFor, scope: Scope, pieces: list[str], errors: list[ExpressionError]) -> None:
    def visit(inner: Scope) -> None:
        _render_parts(part.parts, inner, pieces, errors)
        if errors:
            raise ExpressionError.join([errors.pop()])  # The other iterations would repeat the error.

    part.loop.run(scope, visit)


def _render_value(node: SyntaxNode, value: Value) -> str:
    """Return a value as text inside a longer text. Raises `ExpressionError`."""
    if isinstance(value, str):
        return value
    if value is None:
        raise node.make_error("null has no text", "use coalesce to give a default")
    text: str = convert_result(node, value, to_text)
    return text
