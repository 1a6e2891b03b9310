"""References with attributes, indexes and splats: variables, local values, and text that the node replaces."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from wharf.languages.hcl.conversions import (
    ConversionError,
    to_text,
    to_whole,
)
from wharf.languages.hcl.diagnostics import ExpressionError
from wharf.languages.hcl.nodes import (
    LiteralNode,
    Scope,
    SyntaxNode,
    suggest_name,
)
from wharf.languages.hcl.values import (
    MAPPINGS,
    SEQUENCES,
    HclList,
    HclObject,
    HclTuple,
    Value,
    describe_value,
    has_sensitive_parts,
    normalize_text,
)


class Step:
    """A step of a traversal: `.name`, `[key]`, `.0`, `[*]` or `.*`."""

    __slots__ = ("end", "is_dotted", "key", "name", "splat", "start")

    def __init__(
        self,
        start: int,
        end: int,
        *,
        name: str = "",
        key: SyntaxNode | None = None,
        splat: str = "",
        is_dotted: bool = False,
    ) -> None:
        self.start = start
        self.end = end
        self.name = name
        self.key = key
        self.splat = splat
        self.is_dotted = is_dotted

    @property
    def is_plain(self) -> bool:
        """Whether the step is a name or a literal key, as a reference for the node may have it."""
        return not self.splat and (self.key is None or isinstance(self.key, LiteralNode))

    def apply(self, value: Value, scope: Scope) -> Value:
        """Return the attribute or item. Raises `ExpressionError`."""
        if self.key is None:
            _note_sensitive_part(value, self.name, scope)
            return self._get_attribute(value)
        key = self.key.evaluate(scope)
        if isinstance(value, MAPPINGS):
            text = self._convert_key(key, to_text)
            _note_sensitive_part(value, text, scope)
            return self._get_entry(value.entries, text)
        if not isinstance(value, HclTuple | HclList):
            fix = "use substr for a part of a text" if isinstance(value, str) else ""
            raise ExpressionError(f"{describe_value(value)} has no items to index", self.start, self.end, fix)
        index: int = self._convert_key(key, to_whole)
        _note_sensitive_part(value, index, scope)
        if not 0 <= index < len(value.items):
            count = len(value.items)
            message = f"index {index} is outside the list, which has {count} item{'s' if count != 1 else ''}"
            raise ExpressionError(message, self.start, self.end, "the first index is 0")
        return value.items[index]

    def _convert_key(self, key: Value, convert: Callable[[Value], Any]) -> Any:
        if key is None:
            raise ExpressionError("an index must not be null", self.start, self.end)
        try:
            return convert(key)
        except ConversionError as error:
            raise ExpressionError(f"index: {error.message}", self.start, self.end, error.fix) from None

    def _get_attribute(self, value: Value) -> Value:
        if isinstance(value, MAPPINGS):
            return self._get_entry(value.entries, self.name)
        fix = f"write [0].{self.name} for one item, or [*].{self.name} for all" if isinstance(value, SEQUENCES) else ""
        raise ExpressionError(f'{describe_value(value)} has no attribute "{self.name[:80]}"', self.start, self.end, fix)

    def _get_entry(self, entries: Mapping[str, Value], name: str) -> Value:
        if name in entries:
            return entries[name]
        raise ExpressionError(
            f'no key "{name[:80]}" exists here', self.start, self.end, lambda: suggest_name(name, entries, kind="keys")
        )


def _note_sensitive_part(value: Value, key: str | int, scope: Scope) -> None:
    """Note that a part of a value is read. A key that does not exist may be in the message of an error."""
    if isinstance(value, HclObject | HclTuple) and value.sensitive_keys is not None and key in value.sensitive_keys:
        scope.sensitive.has_read = True


def apply_steps(value: Value, steps: Sequence[Step], position: int, scope: Scope) -> Value:
    """Apply the steps from a position to a value. Raises `ExpressionError`."""
    while position < len(steps):
        step = steps[position]
        position += 1
        if not step.splat:
            value = step.apply(value, scope)
            continue
        if step.splat == "[*]":
            end = len(steps)
        else:
            end = position
            while end < len(steps) and not steps[end].splat and (steps[end].key is None or steps[end].is_dotted):
                end += 1
        each_steps = steps[:end]
        items: Sequence[Value] = value.items if isinstance(value, SEQUENCES) else () if value is None else (value,)
        if has_sensitive_parts(value):
            scope.sensitive.has_read = True
        scope.budget.use_steps(len(items) * (1 + end - position))
        scope.budget.use_bytes(8 * len(items))
        value = HclTuple(tuple([apply_steps(item, each_steps, position, scope) for item in items]))
        position = end
    return value


class PostfixNode(SyntaxNode):
    """An expression with attributes, indexes or splats after it."""

    __slots__ = ("base", "steps")

    def __init__(self, base: SyntaxNode, steps: Sequence[Step], start: int, end: int) -> None:
        super().__init__(start, end)
        self.base = base
        self.steps = steps

    def evaluate(self, scope: Scope) -> Value:
        return apply_steps(self.base.evaluate(scope), self.steps, 0, scope)


class ReferenceNode(SyntaxNode):
    """A name with its steps: `var.x`, `local.y`, a name of `for`, or a reference that the node replaces at run time.

    `text` is the source of the reference. In a template, it includes the blanks inside the braces.
    """

    __slots__ = ("root", "root_end", "steps", "text")

    def __init__(self, root: str, root_end: int, steps: Sequence[Step], text: str, start: int, end: int) -> None:
        super().__init__(start, end)
        self.root = root
        self.root_end = root_end
        self.steps = steps
        self.text = text

    @property
    def name(self) -> str | None:
        """The name of the variable or local value, or `None` if the reference is to all of them."""
        first = self.steps[0] if self.steps else None
        if first is None:
            return None
        if first.key is None:
            return first.name or None
        return first.key.value if isinstance(first.key, LiteralNode) and isinstance(first.key.value, str) else None

    def evaluate(self, scope: Scope) -> Value:
        value = self.evaluate_parts(scope)
        if scope.sensitive.is_needed and has_sensitive_parts(value):
            scope.sensitive.has_read = True
        return value

    def evaluate_parts(self, scope: Scope) -> Value:
        root = self.root
        if root in scope.names:
            return apply_steps(scope.names[root], self.steps, 0, scope)
        if root == "var":
            return self._read(scope, scope.variables, scope.sensitive.variables, "variable")
        if root == "local":
            return self._read(scope, scope.locals, scope.sensitive.locals, "local value")
        for step in self.steps:
            if not step.is_plain:
                raise ExpressionError(
                    f"{root[:80]} is replaced on the node, so it has no items here",
                    step.start,
                    step.end,
                    "write names and literal keys only, or put the text in quotes with $${",
                )
        scope.budget.use_bytes(len(self.text) + 3)
        return f"${{{normalize_text(self.text)}}}"

    def _read(self, scope: Scope, values: Mapping[str, Value], sensitive_names: Set[str], kind: str) -> Value:
        """Return a variable or local value. Raises `ExpressionError`, without a message if its error is reported."""
        name = self.name
        root = self.root
        if name is None:
            if any(failed.startswith(f"{root}.") for failed in scope.failed):
                raise self.make_error("")
            scope.budget.use_steps(len(values))
            keys = frozenset(sensitive_names) if scope.sensitive.is_needed else None
            return apply_steps(HclObject(dict(values), keys), self.steps, 0, scope)
        if name in sensitive_names:
            scope.sensitive.has_read = True
        if name in values:
            value = values[name]
            return value if len(self.steps) == 1 else apply_steps(value, self.steps, 1, scope)
        if f"{root}.{name}" in scope.failed:
            raise self.make_error("")
        step = self.steps[0]
        raise ExpressionError(
            f'no {kind} "{name[:80]}" is declared',
            self.start,
            step.end,
            lambda: _suggest_declared_name(root, name, [*values, *_list_failed(scope, root)], kind),
        )


def _suggest_declared_name(root: str, name: str, known: Sequence[str], kind: str) -> str:
    """Return which name was probably meant. A sign - without blanks around it is part of a name."""
    for position in [at for at, character in enumerate(name[:80]) if character == "-"]:
        if name[:position] in known:
            return f"write {root}.{name[:position]} - {name[position + 1 : 80]} to subtract: a name may contain -"
    if not known:
        block = f'variable "{name[:80]}" {{ }}' if root == "var" else f"locals {{ {name[:80]} = ... }}"
        return f"declare it: {block}; in YAML, JSON and TOML, below {'variables' if root == 'var' else 'locals'}"
    return suggest_name(name, known, kind=f"{kind}s")


def _list_failed(scope: Scope, root: str) -> list[str]:
    prefix = f"{root}."
    return [name.removeprefix(prefix) for name in scope.failed if name.startswith(prefix)]
