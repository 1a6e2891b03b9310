"""Single plausible mistakes in a source file: shifted boundaries, dropped conditions, swapped arguments and the like.

Each mutation replaces one piece of a file. The sites come from the syntax tree, so the mutated file is still valid Python.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.FloorDiv: ("//", "*"),
}
_OPPOSITE_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SYMMETRIC_FUNCTIONS = frozenset({"compare_digest"})
_LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})


@dataclass(frozen=True, slots=True, order=True)
class Mutation:
    """One mistake: bytes `start` to `end` of the file become `replacement`. Lines count from 1."""

    path: str
    line: int
    end_line: int
    start: int
    end: int
    replacement: str
    mistake: str  # What was done, for the report.

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement.encode() + source[self.end :]


def list_mutations(path: str, source: bytes) -> list[Mutation]:
    """Return all mutations of the functions in a file, in their order in the file.

    Annotations, decorators, docstrings, log lines, assertions (also `strict` of `zip`) and raised errors are left alone:
    tests rightly don't hold their texts.
    """
    return sorted(set(_Finder(path, source).find()))


def find_function_lines(source: str, line: int) -> range:
    """Return the lines of the body of the innermost function around a line; empty outside of functions."""
    bodies = [
        range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    return min((body for body in bodies if line in body), key=len, default=range(0))


class _Finder:
    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source
        self._line_starts = [0]
        for line in source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))

    def find(self) -> Iterator[Mutation]:
        for node in ast.walk(ast.parse(self._source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for statement in node.body:
                    yield from self._visit(statement)

    def _visit(self, node: ast.AST) -> Iterator[Mutation]:
        if isinstance(node, (ast.Raise, ast.Assert, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return  # Inner functions are found by themselves.
        if isinstance(node, ast.keyword) and node.arg == "strict":
            return  # `zip(a, b, strict=True)` is an assertion: the lengths are equal.
        if isinstance(node, ast.Expr) and (_is_log_call(node.value) or isinstance(node.value, ast.Constant)):
            return
        yield from self._mutate(node)
        passed_over = {getattr(node, "annotation", None), *_list_sets(node)}
        for child in ast.iter_child_nodes(node):
            if child not in passed_over:
                yield from self._visit(child)

    def _mutate(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARISONS:
                yield from self._replace_operator(left, right, *_COMPARISONS[type(operator)])
            case ast.BoolOp(op=operator, values=values):
                yield from self._mutate_boolean(node, operator, values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._replace(node, f"({self._text(operand)})", "dropped `not`")
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                if not (_is_text(left) or _is_text(right)):
                    yield from self._replace_operator(left, right, *_ARITHMETIC[type(operator)])
            case ast.AugAssign(target=target, op=operator, value=value) if type(operator) in _ARITHMETIC:
                yield from self._replace_operator(target, value, *_ARITHMETIC[type(operator)])
            case ast.Constant(value=bool() as value):
                yield self._replace(node, str(not value), f"{value} became {not value}")
            case ast.Constant(value=int() as value):
                yield self._replace(node, str(value + 1), f"{value} became {value + 1}")
            case ast.Call():
                yield from self._mutate_call(node)
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield self._replace(node, "pass", "dropped a call")
            case ast.If(test=test) | ast.IfExp(test=test):
                yield self._replace(test, f"(not ({self._text(test)}))", "reversed a condition")
            case ast.comprehension(ifs=[test, *_]):
                yield self._replace(test, "True", "dropped a condition of a comprehension")
            case ast.Tuple(elts=[first, second, *_], ctx=ast.Load()):
                yield from self._swap(first, second, "swapped the first two of a tuple")
            case ast.Continue():
                yield self._replace(node, "break", "`continue` became `break`")
            case ast.Break():
                yield self._replace(node, "continue", "`break` became `continue`")

    def _mutate_boolean(self, node: ast.BoolOp, operator: ast.boolop, values: list[ast.expr]) -> Iterator[Mutation]:
        former, new = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
        yield from self._replace_operator(values[0], values[1], former, new)
        for dropped in values:
            remaining = f" {former} ".join(f"({self._text(value)})" for value in values if value is not dropped)
            yield self._replace(node, f"({remaining})", f"dropped `{self._text(dropped)[:60]}` of `{former}`")

    def _mutate_call(self, node: ast.Call) -> Iterator[Mutation]:
        if isinstance(node.func, ast.Name) and node.func.id in _OPPOSITE_FUNCTIONS:
            opposite = _OPPOSITE_FUNCTIONS[node.func.id]
            yield self._replace(node.func, opposite, f"`{node.func.id}` became `{opposite}`")
        elif len(node.args) >= 2 and not (
            isinstance(node.func, ast.Attribute) and node.func.attr in _SYMMETRIC_FUNCTIONS
        ):
            yield from self._swap(node.args[0], node.args[1], "swapped the first two arguments")

    def _swap(self, first: ast.expr, second: ast.expr, mistake: str) -> Iterator[Mutation]:
        texts = self._text(first), self._text(second)
        if texts[0] == texts[1] or ast.Starred in map(type, (first, second)):
            return
        between = self._source[self._end(first) : self._start(second)].decode()
        yield self._build(
            first, second, self._start(first), self._end(second), f"{texts[1]}{between}{texts[0]}", mistake
        )

    def _replace_operator(self, left: ast.expr, right: ast.expr, pattern: str, new: str) -> Iterator[Mutation]:
        start, end = self._end(left), self._start(right)
        gap = self._source[start:end].decode()
        changed, count = re.subn(
            rf"(?<![\w=<>!]){pattern}(?![\w=<>])" if pattern.isalpha() else pattern, new, gap, count=1
        )
        if count and "#" not in gap:
            texts = gap.strip(" ()\n"), changed.strip(" ()\n")
            yield self._build(left, right, start, end, changed, f"`{texts[0]}` became `{texts[1]}`")

    def _replace(self, node: ast.AST, replacement: str, mistake: str) -> Mutation:
        return self._build(node, node, self._start(node), self._end(node), replacement, mistake)

    def _build(self, first: ast.AST, last: ast.AST, start: int, end: int, replacement: str, mistake: str) -> Mutation:
        line, end_line = first.lineno, last.end_lineno  # type: ignore[attr-defined]
        return Mutation(self._path, line, end_line, start, end, replacement, mistake)

    def _text(self, node: ast.AST) -> str:
        return self._source[self._start(node) : self._end(node)].decode()

    def _start(self, node: ast.AST) -> int:
        line: int = node.lineno  # type: ignore[attr-defined]
        column: int = node.col_offset  # type: ignore[attr-defined]
        return self._line_starts[line - 1] + column

    def _end(self, node: ast.AST) -> int:
        line: int = node.end_lineno  # type: ignore[attr-defined]
        column: int = node.end_col_offset  # type: ignore[attr-defined]
        return self._line_starts[line - 1] + column


def _is_log_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOG_METHODS


def _list_sets(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the tuples of `x in (a, b)`, `except (a, b)` and `isinstance(x, (a, b))`: their order means nothing."""
    match node:
        case ast.Compare(ops=[*_, ast.In() | ast.NotIn()], comparators=comparators):
            yield from (right for right in comparators if isinstance(right, ast.Tuple))
        case ast.ExceptHandler(type=ast.Tuple() as kinds):
            yield kinds
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, ast.Tuple() as kinds]):
            yield kinds


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
