"""Syntax tree of expressions, and their evaluation as a walk of the tree.

Every node has the offsets of its source text. Chains such as `a + b + c` and `a ? b : c ? d : e` are one node, so the walk
is only as deep as brackets and templates nest, and the parser limits that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wharf.languages.hcl.budget import Budget
from wharf.languages.hcl.calls import CallContext, FunctionError, FunctionPorts, FunctionSpec, FunctionTable, Parameter
from wharf.languages.hcl.conversions import (
    ConversionError,
    convert_value,
    describe_pair,
    to_bool,
    to_number_value,
    to_text,
    to_whole,
    unify_types,
)
from wharf.languages.hcl.diagnostics import EvaluationError
from wharf.languages.hcl.numerals import Number, NumberError, divide, get_remainder, limit_number
from wharf.languages.hcl.values import (
    MAPPINGS,
    SEQUENCES,
    HclList,
    HclObject,
    HclTuple,
    Value,
    ValueType,
    build_key,
    describe_value,
    get_type,
    measure_value,
    normalize_text,
)
from wharf.languages.suggestions import find_nearest_name

FRACTION_STEPS: Final = 20
"""The steps of one operation on fractions, which may have thousands of bits."""
SPECIAL_FORMS: Final = ("try", "can", "convert")
"""Functions whose arguments are not evaluated first."""
MAX_LISTED_NAMES: Final = 8
"""The known names that an error lists."""


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
        )


class SyntaxNode:
    """An expression. `evaluate` returns its value or raises `EvaluationError`."""

    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    def evaluate(self, scope: Scope) -> Value:
        """Return the value of the expression. Raises `EvaluationError` and `BudgetExceeded`."""
        raise NotImplementedError

    def make_error(self, message: str, fix: str = "") -> EvaluationError:
        """Return an error at this expression."""
        return EvaluationError(message, self.start, self.end, fix)


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


class RelocatedNode(SyntaxNode):
    """An expression whose offsets belong to another text, such as a JSON string without its escapes."""

    __slots__ = ("inner",)

    def __init__(self, inner: SyntaxNode, start: int, end: int) -> None:
        super().__init__(start, end)
        self.inner = inner

    def evaluate(self, scope: Scope) -> Value:
        try:
            return self.inner.evaluate(scope)
        except EvaluationError as error:
            raise error.relocate(self.start, self.end) from None


def evaluate_all(nodes: Iterable[SyntaxNode], scope: Scope) -> list[Value]:
    """Return the values of all nodes. Raises the errors of all of them together."""
    values: list[Value] = []
    errors: list[EvaluationError] = []
    for node in nodes:
        try:
            values.append(node.evaluate(scope))
        except EvaluationError as error:
            errors.append(error)
    if errors:
        raise EvaluationError.join(errors)
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


class ObjectNode(SyntaxNode):
    """An object literal. A key is a text, or a node that computes the key."""

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[tuple[str | SyntaxNode, SyntaxNode]], start: int, end: int) -> None:
        super().__init__(start, end)
        self.entries = entries

    def evaluate(self, scope: Scope) -> Value:
        scope.budget.use_bytes(16 * len(self.entries))
        entries: dict[str, Value] = {}
        errors: list[EvaluationError] = []
        for key, node in self.entries:
            try:
                name = key if isinstance(key, str) else _evaluate_key(key, scope)
                value = node.evaluate(scope)
            except EvaluationError as error:
                errors.append(error)
            else:
                entries[name] = value
        if errors:
            raise EvaluationError.join(errors)
        return HclObject(entries)


def _evaluate_key(node: SyntaxNode, scope: Scope) -> str:
    """Return the text of a computed key. Raises `EvaluationError`."""
    value = node.evaluate(scope)
    if value is None:
        raise node.make_error("a key must not be null")
    text: str = _convert(node, value, to_text, "a key: ")
    return text


def _convert(node: SyntaxNode, value: Value, convert: Callable[[Value], Any], context: str = "") -> Any:
    """Convert the value of a node. Raises `EvaluationError` at the node."""
    try:
        return convert(value)
    except ConversionError as error:
        raise node.make_error(context + error.message, error.fix) from None


# -- operators


class Operator:
    """An operator in a program of an `OperatorNode`, with the places of its operands."""

    __slots__ = ("end", "left", "right", "start", "symbol")

    def __init__(
        self, symbol: str, start: int, end: int, left: tuple[int, int] | None = None, right: tuple[int, int] = (0, 0)
    ) -> None:
        self.symbol = symbol
        self.start = start
        self.end = end
        self.left = left
        self.right = right

    def apply(self, left: Value, right: Value, budget: Budget) -> Value:
        """Return the result for two operands. Raises `EvaluationError`."""
        symbol = self.symbol
        if type(left) is int and type(right) is int:  # The frequent case. A bool is of type bool here.
            simple = _WHOLE_OPERATIONS.get(symbol)
            if simple is not None:
                result: Value = simple(left, right)
                if type(result) is int and not -(1 << 62) < result < 1 << 62:
                    return self._limit(result)
                return result
        if symbol in ("==", "!="):
            budget.use_steps((measure_value(left) + measure_value(right)) >> 3)
            are_equal: bool = build_key(left) == build_key(right)
            return are_equal if symbol == "==" else not are_equal
        if symbol in ("&&", "||"):
            left_bool: bool = self._operand(0, left, to_bool)
            right_bool: bool = self._operand(1, right, to_bool)
            return (left_bool and right_bool) if symbol == "&&" else (left_bool or right_bool)
        left_number: Number = self._operand(0, left, to_number_value)
        right_number: Number = self._operand(1, right, to_number_value)
        budget.use_steps(FRACTION_STEPS)
        if symbol in _COMPARISONS:
            return _COMPARISONS[symbol](left_number, right_number)
        try:
            return _ARITHMETIC[symbol](left_number, right_number)
        except NumberError as error:
            raise EvaluationError(str(error), self.outer_start, self.right[1]) from None

    def apply_unary(self, operand: Value) -> Value:
        """Return the result for one operand. Raises `EvaluationError`."""
        if self.symbol == "!":
            return not self._operand(1, operand, to_bool)
        number: Number = self._operand(1, operand, to_number_value)
        return -number

    @property
    def outer_start(self) -> int:
        return self.start if self.left is None else self.left[0]

    def _limit(self, number: int) -> int:
        try:
            limit_number(number)
        except NumberError as error:
            raise EvaluationError(str(error), self.outer_start, self.right[1]) from None
        return number

    def _operand(self, position: int, value: Value, convert: Callable[[Value], Any]) -> Any:
        """Convert an operand. Raises `EvaluationError` at the operand."""
        try:
            return convert(value)
        except ConversionError as error:
            start, end = (self.left or self.right) if position == 0 else self.right
            fix = error.fix
            if self.symbol == "+" and isinstance(value, str) and not fix:
                fix = 'to join texts, write "${a}${b}"'
            raise EvaluationError(f"operator {self.symbol}: {error.message}", start, end, fix) from None


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
_ARITHMETIC: Final[Mapping[str, Callable[[Number, Number], Number]]] = {
    "+": lambda left, right: limit_number(left + right),
    "-": lambda left, right: limit_number(left - right),
    "*": lambda left, right: limit_number(left * right),
    "/": divide,
    "%": get_remainder,
}
_WHOLE_OPERATIONS: Final[Mapping[str, Callable[[int, int], int | bool]]] = {
    **_COMPARISONS,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
}


class OperatorNode(SyntaxNode):
    """Operands and operators in the order of their evaluation: each operator follows its operands."""

    __slots__ = ("program",)

    def __init__(self, program: Sequence[SyntaxNode | Operator], start: int, end: int) -> None:
        super().__init__(start, end)
        self.program = program

    def evaluate(self, scope: Scope) -> Value:
        stack: list[Any] = []
        errors: list[EvaluationError] = []
        for element in self.program:
            try:
                if isinstance(element, SyntaxNode):
                    stack.append(element.evaluate(scope))
                    continue
                right = stack.pop()
                if element.left is None:
                    stack.append(right if right is _FAILED else element.apply_unary(right))
                    continue
                left = stack.pop()
                has_failed = left is _FAILED or right is _FAILED
                stack.append(_FAILED if has_failed else element.apply(left, right, scope.budget))
            except EvaluationError as error:
                errors.append(error)
                stack.append(_FAILED)
        if errors:
            raise EvaluationError.join(errors)
        result: Value = stack[0]
        return result


_FAILED: Final = object()


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
                except EvaluationError:
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
                raise self.make_error(
                    f"the values of a conditional need one type, but they are {describe_pair(kind, common)}",
                    "convert one of them",
                )
            common = unified
        if common is None or common == chosen_type:
            return chosen
        try:
            return convert_value(chosen, common, scope.budget)
        except ConversionError as error:
            raise branches[position].make_error(error.message, error.fix) from None


def evaluate_condition(node: SyntaxNode, scope: Scope) -> bool:
    """Return the value of a condition. Raises `EvaluationError` if it is null or not a bool."""
    value = node.evaluate(scope)
    if value is None:
        raise node.make_error("a condition must not be null")
    if isinstance(value, bool):
        return value
    result: bool = _convert(node, value, to_bool, "condition: ")
    return result


# -- names, attributes, indexes


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
        """Return the attribute or item. Raises `EvaluationError`."""
        if self.key is None:
            return self._get_attribute(value)
        key = self.key.evaluate(scope)
        if isinstance(value, MAPPINGS):
            text = self._convert_key(key, to_text)
            return self._get_entry(value.entries, text)
        if not isinstance(value, HclTuple | HclList):
            fix = "use substr for a part of a text" if isinstance(value, str) else ""
            raise EvaluationError(f"{describe_value(value)} has no items to index", self.start, self.end, fix)
        index: int = self._convert_key(key, to_whole)
        if not 0 <= index < len(value.items):
            count = len(value.items)
            message = f"index {index} is outside the list, which has {count} item{'s' if count != 1 else ''}"
            raise EvaluationError(message, self.start, self.end, "the first index is 0")
        return value.items[index]

    def _convert_key(self, key: Value, convert: Callable[[Value], Any]) -> Any:
        if key is None:
            raise EvaluationError("an index must not be null", self.start, self.end)
        try:
            return convert(key)
        except ConversionError as error:
            raise EvaluationError(f"index: {error.message}", self.start, self.end, error.fix) from None

    def _get_attribute(self, value: Value) -> Value:
        if isinstance(value, MAPPINGS):
            return self._get_entry(value.entries, self.name)
        fix = f"write [0].{self.name} for one item, or [*].{self.name} for all" if isinstance(value, SEQUENCES) else ""
        raise EvaluationError(f'{describe_value(value)} has no attribute "{self.name[:80]}"', self.start, self.end, fix)

    def _get_entry(self, entries: Mapping[str, Value], name: str) -> Value:
        if name in entries:
            return entries[name]
        raise EvaluationError(
            f'no key "{name[:80]}" exists here', self.start, self.end, lambda: suggest_name(name, entries, kind="keys")
        )


def suggest_name(name: str, known: Iterable[str], *, kind: str) -> str:
    """Return a sentence with the known name that is nearest, or with some of the known names."""
    names = list(known)
    nearest = find_nearest_name(name, names[:1_000]) if names else None
    if nearest is not None:
        return f'did you mean "{nearest}"?'
    if not names:
        return f"there are no {kind}"
    listed = ", ".join(sorted(names)[:MAX_LISTED_NAMES])
    return f"the {kind} are {listed}{', ...' if len(names) > MAX_LISTED_NAMES else ''}"[:200]


def apply_steps(value: Value, steps: Sequence[Step], position: int, scope: Scope) -> Value:
    """Apply the steps from a position to a value. Raises `EvaluationError`."""
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
        root = self.root
        if root in scope.names:
            return apply_steps(scope.names[root], self.steps, 0, scope)
        if root == "var":
            return self._read(scope, scope.variables, "variable")
        if root == "local":
            return self._read(scope, scope.locals, "local value")
        for step in self.steps:
            if not step.is_plain:
                raise EvaluationError(
                    f"{root[:80]} is replaced on the node, so it has no items here",
                    step.start,
                    step.end,
                    "write names and literal keys only, or put the text in quotes with $${",
                )
        scope.budget.use_bytes(len(self.text) + 3)
        return f"${{{normalize_text(self.text)}}}"

    def _read(self, scope: Scope, values: Mapping[str, Value], kind: str) -> Value:
        """Return a variable or local value. Raises `EvaluationError`, without a message if its error is reported."""
        name = self.name
        root = self.root
        if name is None:
            if any(failed.startswith(f"{root}.") for failed in scope.failed):
                raise self.make_error("")
            scope.budget.use_steps(len(values))
            return apply_steps(HclObject(dict(values)), self.steps, 0, scope)
        if name in values:
            value = values[name]
            return value if len(self.steps) == 1 else apply_steps(value, self.steps, 1, scope)
        if f"{root}.{name}" in scope.failed:
            raise self.make_error("")
        step = self.steps[0]
        raise EvaluationError(
            f'no {kind} "{name[:80]}" is declared',
            self.start,
            step.end,
            lambda: suggest_name(name, [*values, *_list_failed(scope, root)], kind=f"{kind}s"),
        )


def _list_failed(scope: Scope, root: str) -> list[str]:
    prefix = f"{root}."
    return [name.removeprefix(prefix) for name in scope.failed if name.startswith(prefix)]


# -- calls


class CallNode(SyntaxNode):
    """A call. The last argument is a list of arguments if `is_spread`."""

    __slots__ = ("arguments", "is_spread", "name", "name_end")

    def __init__(
        self,
        name: str,
        name_end: int,
        arguments: Sequence[SyntaxNode],
        start: int,
        end: int,
        *,
        is_spread: bool = False,
    ) -> None:
        super().__init__(start, end)
        self.name = name
        self.name_end = name_end
        self.arguments = arguments
        self.is_spread = is_spread

    def evaluate(self, scope: Scope) -> Value:
        function = scope.functions.get(self.name)
        if function is None:
            raise self._make_unknown_error(scope.functions)
        values = evaluate_all(self.arguments, scope)
        places = list(self.arguments)
        if self.is_spread:
            last = values.pop()
            if not isinstance(last, SEQUENCES):
                raise places[-1].make_error(f"expected a list before ..., got {describe_value(last)}")
            values += last.items
            places = [*places[:-1], *[places[-1]] * len(last.items)]
        self._check_count(function, values)
        arguments = []
        steps = 5
        for position, value in enumerate(values):
            parameter = _get_parameter(function, position)
            if value is None and not parameter.allows_null:
                raise places[position].make_error(f"{self.name}: {parameter.name} must not be null")
            try:
                arguments.append(None if value is None else parameter.convert(value))
            except ConversionError as error:
                raise places[position].make_error(
                    f"{self.name}: {parameter.name}: {error.message}", error.fix
                ) from None
            steps += 1 + (measure_value(value) >> 5)
        scope.budget.use_steps(steps)
        try:
            result = function.run(CallContext(scope.budget, scope.ports), *arguments)
        except FunctionError as error:
            place: SyntaxNode = places[error.argument] if 0 <= error.argument < len(places) else self
            raise place.make_error(f"{self.name}: {error.message}", error.fix) from None
        except (ConversionError, NumberError) as error:
            raise self.make_error(f"{self.name}: {error}", getattr(error, "fix", "")) from None
        if isinstance(result, str):
            result = normalize_text(result)
            scope.budget.use_bytes(len(result))
        elif isinstance(result, SEQUENCES):
            scope.budget.use_bytes(8 * len(result.items))
        elif isinstance(result, MAPPINGS):
            scope.budget.use_bytes(16 * len(result.entries))
        return result

    def _check_count(self, function: FunctionSpec, values: Sequence[Value]) -> None:
        """Raise `EvaluationError` if there are too few or too many arguments."""
        needed = len(function.parameters) - function.optional_count + function.min_variadic
        if len(values) < needed:
            parameter = _get_parameter(function, len(values))
            raise self.make_error(
                f"{self.name}: argument {len(values) + 1} ({parameter.name}) is missing", describe_signature(function)
            )
        if function.variadic is None and len(values) > len(function.parameters):
            place = self.arguments[len(function.parameters)] if not self.is_spread else self
            count = len(function.parameters)
            last = f'; the last is "{function.parameters[-1].name}"' if count else ""
            raise place.make_error(
                f"{self.name}: too many arguments: it takes {count}{last}", describe_signature(function)
            )

    def _make_unknown_error(self, functions: FunctionTable) -> EvaluationError:
        def suggest() -> str:
            offered = UNOFFERED_FUNCTIONS.get(self.name)
            if offered is not None:
                return offered
            nearest = find_nearest_name(self.name, [*functions, *SPECIAL_FORMS])
            return f'did you mean "{nearest}"?' if nearest is not None else ""

        return EvaluationError(f'no function "{self.name[:80]}" exists', self.start, self.name_end, suggest)


def _get_parameter(function: FunctionSpec, position: int) -> Parameter:
    if position < len(function.parameters):
        return function.parameters[position]
    return function.variadic or function.parameters[-1]


def describe_signature(function: FunctionSpec) -> str:
    """Return how to call a function, such as `write join(separator, lists...)`."""
    required = len(function.parameters) - function.optional_count
    parts = [p.name if n < required else f"[{p.name}]" for n, p in enumerate(function.parameters)]
    if function.variadic is not None:
        parts.append(f"{function.variadic.name}...")
    return f"write {function.name}({', '.join(parts)})"


class TryNode(SyntaxNode):
    """`try(a, b)`: the first argument without an error."""

    __slots__ = ("arguments",)

    def __init__(self, arguments: Sequence[SyntaxNode], start: int, end: int) -> None:
        super().__init__(start, end)
        self.arguments = arguments

    def evaluate(self, scope: Scope) -> Value:
        scope.budget.use_steps(1)
        messages = []
        for argument in self.arguments:
            try:
                return argument.evaluate(scope)
            except EvaluationError as error:
                messages.append(error.message)
        if any(not message for message in messages):
            raise self.make_error("")
        raise self.make_error(f"try: every argument has an error; the last is: {messages[-1]}")


class CanNode(SyntaxNode):
    """`can(a)`: whether the argument has no error."""

    __slots__ = ("argument",)

    def __init__(self, argument: SyntaxNode, start: int, end: int) -> None:
        super().__init__(start, end)
        self.argument = argument

    def evaluate(self, scope: Scope) -> Value:
        scope.budget.use_steps(1)
        try:
            self.argument.evaluate(scope)
        except EvaluationError:
            return False
        return True


class ConvertNode(SyntaxNode):
    """`convert(value, type)`."""

    __slots__ = ("argument", "kind")

    def __init__(self, argument: SyntaxNode, kind: ValueType, start: int, end: int) -> None:
        super().__init__(start, end)
        self.argument = argument
        self.kind = kind

    def evaluate(self, scope: Scope) -> Value:
        value = self.argument.evaluate(scope)
        scope.budget.use_steps(1)
        try:
            return convert_value(value, self.kind, scope.budget)
        except ConversionError as error:
            raise self.argument.make_error(f"convert: {error.message}", error.fix) from None


# -- for and templates


def list_entries(node: SyntaxNode, scope: Scope, context: str) -> list[tuple[Value, Value]]:
    """Return the keys and values over which a loop runs. Raises `EvaluationError`."""
    value = node.evaluate(scope)
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
        entries = list_entries(self.collection, scope, "for")
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
            name = _evaluate_key(self.key, inner)
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
        errors: list[EvaluationError] = []
        _render_parts(self.parts, scope, pieces, errors)
        if errors:
            raise EvaluationError.join(errors)
        return normalize_text("".join(pieces))


def _render_parts(parts: TemplateParts, scope: Scope, pieces: list[str], errors: list[EvaluationError]) -> None:
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
        except EvaluationError as error:
            errors.append(error)


def _render_loop(part: TemplateFor, scope: Scope, pieces: list[str], errors: list[EvaluationError]) -> None:
    def visit(inner: Scope) -> None:
        _render_parts(part.parts, inner, pieces, errors)
        if errors:
            raise EvaluationError.join([errors.pop()])  # The other iterations would repeat the error.

    part.loop.run(scope, visit)


def _render_value(node: SyntaxNode, value: Value) -> str:
    """Return a value as text inside a longer text. Raises `EvaluationError`."""
    if isinstance(value, str):
        return value
    if value is None:
        raise node.make_error("null has no text", "use coalesce to give a default")
    text: str = _convert(node, value, to_text)
    return text


UNOFFERED_FUNCTIONS: Final[Mapping[str, str]] = {
    "tostring": "write convert(x, string)",
    "tonumber": "write convert(x, number)",
    "tobool": "write convert(x, bool)",
    "tolist": "write convert(x, list(string)), with the type of the items",
    "toset": "write convert(x, set(string)), with the type of the items",
    "tomap": "write convert(x, map(string)), with the type of the values",
    "type": "types are fixed by the variable's type argument",
    "templatefile": 'write the template in the job file, with "%{ for }" and "${ }"',
    "templatestring": 'write the template in the job file, with "%{ for }" and "${ }"',
    "env": "declare a variable and pass its value with -var",
    "timestamp": "pass the time as a variable with -var",
    "plantimestamp": "pass the time as a variable with -var",
    "timecmp": "pass the result as a variable with -var",
    "regex": "use regex_replace",
    "regexall": "use regex_replace",
    "startswith": "compare substr(s, 0, n) with the prefix",
    "endswith": "compare trimsuffix(s, suffix) with s",
    "strcontains": 'compare replace(s, part, "") with s',
    "sum": "write the sum with +",
    "one": "write the list with [0], or try(list[0], null)",
    "alltrue": "write contains(list, false) == false",
    "anytrue": "write contains(list, true)",
    "matchkeys": "write [for ... : ... if ...]",
    "transpose": "write {for ... : ... => ...}",
    "setsubtract": "write [for v in a : v if !contains(b, v)]",
    "sensitive": "remove it; variables with secret names are not shown in messages",
    "nonsensitive": "remove it",
    "textencodebase64": "use base64encode",
    "textdecodebase64": "use base64decode",
    "base64gzip": "compress the data before and pass it as a variable",
    "uuid": "use uuidv4",
    "vault": "use a template block with the secret",
    "consul_key": "use a template block with the key",
    "aws_secretsmanager": "pass the secret as a variable with -var",
    "filesha256": "use sha256(file(path)) with the command line tool",
    "filesha1": "use sha1(file(path)) with the command line tool",
    "filesha512": "use sha512(file(path)) with the command line tool",
    "filemd5": "use md5(file(path)) with the command line tool",
    "filebase64sha256": "use sha256(file(path)) with the command line tool",
    "filebase64sha512": "use sha512(file(path)) with the command line tool",
}
"""Functions of similar tools that do not exist here, and what to write instead."""
