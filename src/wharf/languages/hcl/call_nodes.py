"""Calls of functions, and the special forms `try`, `can` and `convert`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from wharf.languages.hcl.calls import (
    CallContext,
    FunctionError,
    FunctionParameter,
    FunctionSpec,
    FunctionTable,
)
from wharf.languages.hcl.conversions import (
    ConversionError,
    convert_value,
)
from wharf.languages.hcl.diagnostics import ExpressionError
from wharf.languages.hcl.nodes import (
    Scope,
    SyntaxNode,
    evaluate_all,
)
from wharf.languages.hcl.numerals import NumberError
from wharf.languages.hcl.values import (
    MAPPINGS,
    SEQUENCES,
    HclObject,
    Value,
    ValueType,
    describe_value,
    measure_value,
    normalize_text,
)
from wharf.languages.suggestions import find_nearest_name

SPECIAL_FORMS: Final = ("try", "can", "convert")
"""Functions whose arguments are not evaluated first."""
HIDDEN_REASON: Final = "no result; the reason may contain the value of a sensitive variable, so it is not shown"
"""The error of a function with sensitive arguments. Messages of functions quote parts of their arguments."""


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
        function = self._find_function(scope)
        return self._run(function, evaluate_all(self.arguments, scope), scope)

    def evaluate_parts(self, scope: Scope) -> Value:
        """Return the result. That of `merge` has the marks of its arguments, because jobs often join maps with it."""
        sensitive = scope.sensitive
        if self.name != "merge" or self.is_spread or not sensitive.is_needed:
            return self.evaluate(scope)
        function = self._find_function(scope)
        values = evaluate_all(self.arguments, scope, has_parts=True)
        result = self._run(function, values, scope)
        if sensitive.has_read:
            return result
        keys: set[Any] = set()
        has_marks = False
        for value in values:
            if isinstance(value, MAPPINGS):
                keys -= value.entries.keys()
            if isinstance(value, HclObject) and value.sensitive_keys is not None:
                keys |= value.sensitive_keys
                has_marks = True
        return HclObject(result.entries, frozenset(keys)) if has_marks and isinstance(result, MAPPINGS) else result

    def _find_function(self, scope: Scope) -> FunctionSpec:
        function = scope.functions.get(self.name)
        if function is None:
            raise self._make_unknown_error(scope.functions)
        return function

    def _run(self, function: FunctionSpec, values: list[Value], scope: Scope) -> Value:
        """Return the result of the function for the values of the arguments. Raises `ExpressionError`."""
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
            if scope.sensitive.has_read:
                raise place.make_error(f"{self.name}: {HIDDEN_REASON}") from None
            raise place.make_error(f"{self.name}: {error.message}", error.fix) from None
        except (ConversionError, NumberError) as error:
            if scope.sensitive.has_read:
                raise self.make_error(f"{self.name}: {HIDDEN_REASON}") from None
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
        """Raise `ExpressionError` if there are too few or too many arguments."""
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

    def _make_unknown_error(self, functions: FunctionTable) -> ExpressionError:
        def suggest() -> str:
            offered = UNOFFERED_FUNCTIONS.get(self.name)
            if offered is not None:
                return offered
            nearest = find_nearest_name(self.name, [*functions, *SPECIAL_FORMS])
            return f'did you mean "{nearest}"?' if nearest is not None else ""

        return ExpressionError(f'no function "{self.name[:80]}" exists', self.start, self.name_end, suggest)


def _get_parameter(function: FunctionSpec, position: int) -> FunctionParameter:
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
            except ExpressionError as error:
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
        except ExpressionError:
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
    "env": "declare a variable and pass its value with --var",
    "timestamp": "pass the time as a variable with --var",
    "plantimestamp": "pass the time as a variable with --var",
    "timecmp": "pass the result as a variable with --var",
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
    "sensitive": "write sensitive = true in the block of the variable",
    "nonsensitive": "write sensitive = false in the block of the variable",
    "textencodebase64": "use base64encode",
    "textdecodebase64": "use base64decode",
    "base64gzip": "compress the data before and pass it as a variable",
    "uuid": "use uuidv4",
    "vault": "use a template block with the secret",
    "consul_key": "use a template block with the key",
    "aws_secretsmanager": "pass the secret as a variable with --var",
    "filesha256": "use sha256(file(path)) with the command line tool",
    "filesha1": "use sha1(file(path)) with the command line tool",
    "filesha512": "use sha512(file(path)) with the command line tool",
    "filemd5": "use md5(file(path)) with the command line tool",
    "filebase64sha256": "use sha256(file(path)) with the command line tool",
    "filebase64sha512": "use sha512(file(path)) with the command line tool",
}
"""Functions of similar tools that do not exist here, and what to write instead."""
