"""The base of syntax trees of expressions, and literals, lists, objects and conditionals.

The evaluation walks the tree. Every node has the offsets of its source text. Chains such as `a + b + c` and
`a ? b : c ? d : e` are one node, so the walk is only as deep as brackets and templates nest, and the parser limits that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from wharf.languages.hcl.budget import Budget
from wharf.languages.hcl.calls import (
    FunctionPorts,
    FunctionTable,
)
from wharf.languages.hcl.conversions import (
    ConversionError,
    convert_value,
    describe_pair,
    to_bool,
    to_text,
    unify_types,
)
from wharf.languages.hcl.diagnostics import ExpressionError
from wharf.languages.hcl.values import (
    HclObject,
    HclTuple,
    Value,
    ValueType,
    get_type,
    has_sensitive_parts,
    measure_value,
)
from wharf.languages.suggestions import find_nearest_name

MAX_LISTED_NAMES: Final = 8
"""The known names that an error lists."""


class SensitiveReads:
    """The sensitive variables and local values, and whether the expression that is evaluated has read one (record 0249).

    All scopes of an evaluation share one object. `is_needed` is false if no value is sensitive.
    """

    __slots__ = ("has_read", "is_needed", "locals", "variables")

    def __init__(self) -> None:
        self.variables: set[str] = set()
        self.locals: set[str] = set()
        self.is_needed = False
        self.has_read = False


@dataclass(slots=True)
class Scope:
    """What the names of an expression stand for, and the limits of the evaluation.

    `names` are the names of `for` and of dynamic blocks. A name in `failed` has an error that is already reported.
    """

    budget: Budget
    functions: FunctionTable
    ports: FunctionPorts
    variables: Mapping[str, Value] = field(default_factory=dict)
    locals: Mapping[str, Value] = field(default_factory=dict)
    names: dict[str, Value] = field(default_factory=dict)
    failed: frozenset[str] | set[str] = frozenset()
    sensitive: SensitiveReads = field(default_factory=SensitiveReads)

    def with_names(self, names: Mapping[str, Value]) -> "Scope":
        """Return a scope with further names."""
        return Scope(
            self.budget,
            self.functions,
            self.ports,
            self.variables,
            self.locals,
            {**self.names, **names},
            self.failed,
            self.sensitive,
        )


class SyntaxNode:
    """An expression. `evaluate` returns its value or raises `ExpressionError`.

    `evaluate` sets `has_read` of `SensitiveReads` if any part of the value comes from a sensitive variable.
    """

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def evaluate(self, scope: Scope) -> Value:
        """Return the value of the expression. Raises `ExpressionError` and `BudgetExceeded`."""
        raise NotImplementedError

    def evaluate_parts(self, scope: Scope) -> Value:
        """Return the value, with marks at its sensitive parts if the expression is a literal or leads to one.

        Sets `has_read` only if the whole value is sensitive. Callers that do not read the marks call `evaluate`.
        """
        return self.evaluate(scope)

    def make_error(self, message: str, fix: str = "") -> ExpressionError:
        """Return an error at this expression."""
        return ExpressionError(message, self.start, self.end, fix)


class LiteralNode(SyntaxNode):
    """A number, a bool, null, or a text without a template."""

    __slots__ = ("value",)

    def __init__(self, value: Value, start: int, end: int) -> None:
        self.value = value
        self.start = start
        self.end = end

    def evaluate(self, scope: Scope) -> Value:  # noqa: ARG002  # a literal needs no scope
        return self.value


class ParenthesizedNode(SyntaxNode):
    """An expression in parentheses."""

    __slots__ = ("inner",)

    def __init__(self, inner: SyntaxNode, start: int, end: int) -> None:
        super().__init__(start, end)
        self.inner = inner

    def evaluate(self, scope: Scope) -> Value:
        return self.inner.evaluate(scope)

    def evaluate_parts(self, scope: Scope) -> Value:
        return self.inner.evaluate_parts(scope)


class RelocatedNode(SyntaxNode):
    """An expression whose offsets belong to another text, such as a JSON string without its escapes.

    `find_offset` returns the offset in the source of an offset in that text. Without it, errors are at the whole text.
    """

    __slots__ = ("find_offset", "inner")

    def __init__(
        self, inner: SyntaxNode, start: int, end: int, find_offset: Callable[[int], int] | None = None
    ) -> None:
        super().__init__(start, end)
        self.inner = inner
        self.find_offset = find_offset

    def evaluate(self, scope: Scope) -> Value:
        try:
            return self.inner.evaluate(scope)
        except ExpressionError as error:
            raise self._relocate(error) from None

    def evaluate_parts(self, scope: Scope) -> Value:
        try:
            return self.inner.evaluate_parts(scope)
        except ExpressionError as error:
            raise self._relocate(error) from None

    def _relocate(self, error: ExpressionError) -> ExpressionError:
        if self.find_offset is None:
            return error.relocate(self.start, self.end)
        return error.map_offsets(self.find_offset)


def evaluate_all(nodes: Iterable[SyntaxNode], scope: Scope, *, has_parts: bool = False) -> list[Value]:
    """Return the values of all nodes, with marks at sensitive parts if `has_parts`. Raises the errors of all of them together."""
    values: list[Value] = []
    errors: list[ExpressionError] = []
    for node in nodes:
        try:
            values.append(node.evaluate_parts(scope) if has_parts else node.evaluate(scope))
        except ExpressionError as error:
            errors.append(error)
    if errors:
        raise ExpressionError.join(errors)
    return values


class TupleNode(SyntaxNode):
    """A list literal: `[a, b]`."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[SyntaxNode], start: int, end: int) -> None:
        super().__init__(start, end)
        self.items = items

    def evaluate(self, scope: Scope) -> Value:
        scope.budget.use_bytes(8 * len(self.items))
        return HclTuple(tuple(evaluate_all(self.items, scope)))

    def evaluate_parts(self, scope: Scope) -> Value:
        if not scope.sensitive.is_needed:
            return self.evaluate(scope)
        if all(isinstance(node, LiteralNode) for node in self.items):
            return self.evaluate(scope)
        scope.budget.use_bytes(8 * len(self.items))
        parts = _PartReader(scope)
        for position, node in enumerate(self.items):
            parts.read(position, node)
        return HclTuple(tuple(parts.values.values()), parts.finish())


class ObjectNode(SyntaxNode):
    """An object literal. A key is a text, or a node that computes the key."""

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[tuple[str | SyntaxNode, SyntaxNode]], start: int, end: int) -> None:
        super().__init__(start, end)
        self.entries = entries

    def evaluate(self, scope: Scope) -> Value:
        scope.budget.use_bytes(16 * len(self.entries))
        entries: dict[str, Value] = {}
        errors: list[ExpressionError] = []
        for key, node in self.entries:
            try:
                name = key if isinstance(key, str) else evaluate_key(key, scope)
                value = node.evaluate(scope)
            except ExpressionError as error:
                errors.append(error)
            else:
                entries[name] = value
        if errors:
            raise ExpressionError.join(errors)
        return HclObject(entries)

    def evaluate_parts(self, scope: Scope) -> Value:
        if not scope.sensitive.is_needed:
            return self.evaluate(scope)
        scope.budget.use_bytes(16 * len(self.entries))
        parts = _PartReader(scope)
        for key, node in self.entries:
            parts.read(key, node)
        return HclObject(parts.values, parts.finish())


class _PartReader:
    """Evaluates the parts of a literal one by one, and collects the keys of those that are sensitive."""

    def __init__(self, scope: Scope) -> None:
        self.values: dict[Any, Value] = {}
        self._scope = scope
        self._keys: set[str | int] = set()
        self._errors: list[ExpressionError] = []
        self._has_parts = False
        self._had_read = scope.sensitive.has_read

    def read(self, key: str | int | SyntaxNode, node: SyntaxNode) -> None:
        """Add the value of a part. The name of a sensitive key is sensitive, so the whole literal is."""
        sensitive = self._scope.sensitive
        sensitive.has_read = False
        try:
            if isinstance(key, SyntaxNode):
                key = evaluate_key(key, self._scope)
                self._had_read = self._had_read or sensitive.has_read
            value = self.values[key] = node.evaluate_parts(self._scope)
        except ExpressionError as error:
            self._errors.append(error.mark_sensitive() if sensitive.has_read else error)
            return
        if sensitive.has_read:
            self._keys.add(key)
        self._has_parts = self._has_parts or has_sensitive_parts(value)

    def finish(self) -> Set[str | int] | None:
        """Return the keys of the sensitive parts, or `None` if no part is sensitive. Raises `ExpressionError`."""
        self._scope.sensitive.has_read = self._had_read
        if self._errors:
            raise ExpressionError.join(self._errors)
        return frozenset(self._keys) if self._keys or self._has_parts else None


def evaluate_key(node: SyntaxNode, scope: Scope) -> str:
    """Return the text of a computed key. Raises `ExpressionError`."""
    value = node.evaluate(scope)
    if value is None:
        raise node.make_error("a key must not be null")
    text: str = convert_result(node, value, to_text, "a key: ")
    return text


def convert_result(node: SyntaxNode, value: Value, convert: Callable[[Value], Any], context: str = "") -> Any:
    """Convert the value of a node. Raises `ExpressionError` at the node."""
    try:
        return convert(value)
    except ConversionError as error:
        raise node.make_error(context + error.message, error.fix) from None


class ConditionalNode(SyntaxNode):
    """A chain `c1 ? v1 : c2 ? v2 : v3`: pairs of condition and value, and the last value."""

    __slots__ = ("last", "pairs")

    def __init__(self, pairs: Sequence[tuple[SyntaxNode, SyntaxNode]], last: SyntaxNode, start: int, end: int) -> None:
        super().__init__(start, end)
        self.pairs = pairs
        self.last = last

    def evaluate(self, scope: Scope) -> Value:
        position = 0
        for condition, _ in self.pairs:
            if evaluate_condition(condition, scope):
                break
            position += 1
        branches = [*(value for _, value in self.pairs), self.last]
        chosen = branches[position].evaluate(scope)
        common: ValueType | None = None
        chosen_type: ValueType | None = None
        for index in range(len(branches) - 1, -1, -1):
            # Only the type of the other values matters, and one with an error has no type.
            if index == position:
                value = chosen
            else:
                try:
                    value = branches[index].evaluate(scope)
                except ExpressionError:
                    continue
            scope.budget.use_steps(measure_value(value) >> 4)
            kind = get_type(value)
            if index == position:
                chosen_type = kind
            if common is None:
                common = kind
                continue
            unified = unify_types(kind, common)
            if unified is None:
                # The types contain the names of attributes.
                types = "" if scope.sensitive.has_read else f", but they are {describe_pair(kind, common)}"
                raise self.make_error(f"the values of a conditional need one type{types}", "convert one of them")
            common = unified
        if common is None or common == chosen_type:
            return chosen
        try:
            return convert_value(chosen, common, scope.budget)
        except ConversionError as error:
            raise branches[position].make_error(error.message, error.fix) from None


def evaluate_condition(node: SyntaxNode, scope: Scope) -> bool:
    """Return the value of a condition. Raises `ExpressionError` if it is null or not a bool."""
    value = node.evaluate(scope)
    if value is None:
        raise node.make_error("a condition must not be null")
    if isinstance(value, bool):
        return value
    result: bool = convert_result(node, value, to_bool, "condition: ")
    return result


def suggest_name(name: str, known: Iterable[str], *, kind: str) -> str:
    """Return a sentence with the known name that is nearest, or with some of the known names."""
    names = list(dict.fromkeys(known))
    nearest = find_nearest_name(name, names[:1_000]) if names else None
    if nearest is not None:
        return f'did you mean "{nearest}"?'
    if not names:
        return f"there are no {kind}"
    listed = ", ".join(sorted(names)[:MAX_LISTED_NAMES])
    return f"the {kind} are {listed}{', ...' if len(names) > MAX_LISTED_NAMES else ''}"[:200]
