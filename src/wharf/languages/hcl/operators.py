"""Operators of expressions, and their evaluation without recursion."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from wharf.languages.hcl.budget import Budget
from wharf.languages.hcl.conversions import (
    ConversionError,
    to_bool,
    to_number_value,
)
from wharf.languages.hcl.diagnostics import ExpressionError
from wharf.languages.hcl.nodes import (
    Scope,
    SyntaxNode,
)
from wharf.languages.hcl.numerals import Number, NumberError, divide, get_remainder, limit_number
from wharf.languages.hcl.values import (
    Value,
    build_key,
    measure_value,
)

FRACTION_STEPS: Final = 20
"""The steps of one operation on fractions, beside one step for every 32 bits of its operands."""


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
        """Return the result for two operands. Raises `ExpressionError`."""
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
        budget.use_steps(FRACTION_STEPS + ((_count_bits(left_number) + _count_bits(right_number)) >> 5))
        if symbol in _COMPARISONS:
            return _COMPARISONS[symbol](left_number, right_number)
        try:
            return _ARITHMETIC[symbol](left_number, right_number)
        except NumberError as error:
            raise ExpressionError(str(error), self.outer_start, self.right[1]) from None

    def apply_unary(self, operand: Value) -> Value:
        """Return the result for one operand. Raises `ExpressionError`."""
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
            raise ExpressionError(str(error), self.outer_start, self.right[1]) from None
        return number

    def _operand(self, position: int, value: Value, convert: Callable[[Value], Any]) -> Any:
        """Convert an operand. Raises `ExpressionError` at the operand."""
        try:
            return convert(value)
        except ConversionError as error:
            start, end = (self.left or self.right) if position == 0 else self.right
            fix = error.fix
            if self.symbol == "+" and isinstance(value, str) and not fix:
                fix = 'to join texts, write "${a}${b}"'
            raise ExpressionError(f"operator {self.symbol}: {error.message}", start, end, fix) from None


def _count_bits(number: Number) -> int:
    """Return the bits of a number, which the time of an operation depends on."""
    return number.numerator.bit_length() + number.denominator.bit_length()


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
        errors: list[ExpressionError] = []
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
            except ExpressionError as error:
                errors.append(error)
                stack.append(_FAILED)
        if errors:
            raise ExpressionError.join(errors)
        result: Value = stack[0]
        return result


_FAILED: Final = object()
