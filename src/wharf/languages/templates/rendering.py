"""Renders templates: evaluates the tree with a value and the sources, within limits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from wharf.languages.templates import tree
from wharf.languages.templates.errors import EvaluationError, TemplateError
from wharf.languages.templates.functions import FUNCTION_ARITIES, PURE_FUNCTIONS, SOURCE_FUNCTIONS
from wharf.languages.templates.parser import parse_template
from wharf.languages.templates.sources import MissingSource, NoSources, TemplateSources
from wharf.languages.templates.values import format_value, get_field, is_true

MAX_INCLUDE_DEPTH: Final = 100
"""How deep named templates may include each other: limits the stack."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """The limits of one rendering.

    `max_text_chars` limits the rendered text. Function results on the way may have twenty times as many characters.
    """

    max_steps: int = 1_000_000
    max_text_chars: int = 16 << 20


class RenderResult(NamedTuple):
    """The rendered text, with the queries that it depends on."""

    text: str
    queries: frozenset[tuple[str, str]]
    """Kind and name of each query: environment, file, variable, variables, service or services."""
    missing: tuple[str, ...]
    """The queried things that do not exist yet. Do not use the text unless this is empty."""


class ParsedTemplate:
    """A parsed template, which can be rendered many times. Raises `TemplateError` if it cannot be parsed.

    `left` and `right` replace the braces. With `is_strict`, a missing key of a map is an error.
    """

    def __init__(self, source: str, *, left: str = "", right: str = "", is_strict: bool = False) -> None:
        self._source = source
        self._tree = parse_template(source, FUNCTION_ARITIES, left or "{{", right or "}}")
        self._is_strict = is_strict

    def render(
        self, value: Any = None, sources: TemplateSources | None = None, limits: RenderLimits | None = None
    ) -> RenderResult:
        """Return the text of the template, with the queries that it depends on.

        The dot (`.`) in the template stands for `value`. Raises `TemplateError` if an expression fails or a limit is
        exceeded.
        """
        rendering = _Rendering(
            self._source, self._tree, sources or NoSources(), limits or RenderLimits(), is_strict=self._is_strict
        )
        text = rendering.render_template(value)
        return RenderResult(text, frozenset(rendering.queries), tuple(rendering.missing))


class _BreakLoop(Exception):
    """Ends the innermost `range`."""


class _ContinueLoop(Exception):
    """Ends the current iteration of the innermost `range`."""


VariableStack = list[tuple[str, list[Any]]]
"""Names and values of the defined variables. A value is in a list of one, so that `=` changes it in outer blocks too."""


class _Rendering:
    """One rendering of a template. It counts steps against the limits and records the queries that functions make."""

    def __init__(
        self,
        source: str,
        parsed_tree: tree.TemplateTree,
        sources: TemplateSources,
        limits: RenderLimits,
        *,
        is_strict: bool,
    ) -> None:
        self._source = source
        self._tree = parsed_tree
        self.sources = sources
        self._limits = limits
        self._is_strict = is_strict
        self._steps = 0
        self._made_items = 0
        self._includes = 0
        self.queries: set[tuple[str, str]] = set()
        self.missing: dict[str, None] = {}

    def render_template(self, value: Any) -> str:
        return self._render_named_block(self._tree.body, value, 0)

    # -- what functions may use (RenderingContext)

    def record_query(self, kind: str, name: str) -> None:
        self.queries.add((kind, name))

    def record_missing(self, missing: MissingSource) -> None:
        self.missing[str(missing)] = None

    def render_named_template(self, name: str, value: Any) -> str:
        """Return the text of a named template. `value` is its dot: the value that `.` stands for in it."""
        if name not in self._tree.named_blocks:
            raise EvaluationError(f'no template is named "{name}"')
        return self._render_named_block(self._tree.named_blocks[name], value, 0)

    # -- nodes

    def _render_named_block(self, block: tree.NodeList, value: Any, offset: int) -> str:
        """Return the text of the template itself or of a named one.

        `value` is its dot: the value that `.` stands for in it. `offset` is the location for errors. Raises
        `TemplateError` beyond the limits of depth and text.
        """
        self._includes += 1
        if self._includes > MAX_INCLUDE_DEPTH:
            raise TemplateError(
                f"templates include each other more than {MAX_INCLUDE_DEPTH} deep", self._source, offset
            )
        parts: list[str] = []
        length = 0
        for part in self._render_block(block, value, [("$", [value])]):
            length += len(part)
            if length > self._limits.max_text_chars:
                raise TemplateError(
                    f"the text has more than {self._limits.max_text_chars:,} characters", self._source, offset
                )
            parts.append(part)
        self._includes -= 1
        return "".join(parts)

    def _render_block(self, block: tree.NodeList, dot: Any, variables: VariableStack) -> Iterator[str]:
        """Yield the text of each node. `dot` is the value that `.` stands for.

        Variables that the nodes define are removed at the end.
        """
        outer_count = len(variables)
        for node in block:
            match node:
                case tree.TextNode(text):
                    yield text
                case tree.OutputNode(expression, offset):
                    self._count_step(offset)
                    yield format_value(self._evaluate(expression, dot, variables))
                case tree.VariableAssignment():
                    self._assign_variable(node, dot, variables)
                case tree.Conditional():
                    yield from self._render_conditional(node, dot, variables)
                case tree.RangeLoop():
                    yield from self._render_loop(node, dot, variables)
                case tree.LoopJump(is_break):
                    raise _BreakLoop if is_break else _ContinueLoop
                case tree.Include(name, expression, offset):
                    self._count_step(offset)
                    value = None if expression is None else self._evaluate(expression, dot, variables)
                    yield self._render_named_block(self._tree.named_blocks[name], value, offset)
        del variables[outer_count:]

    def _assign_variable(self, node: tree.VariableAssignment, dot: Any, variables: VariableStack) -> None:
        """Define a variable, or change the value of a defined one."""
        self._count_step(node.offset)
        value = self._evaluate(node.expression, dot, variables)
        if node.is_new:
            variables.append((node.name, [value]))
        else:
            self._find_variable(node.name, variables, node.offset)[0] = value

    def _render_conditional(self, node: tree.Conditional, dot: Any, variables: VariableStack) -> Iterator[str]:
        """Yield the text of an `if` or `with`, whose variable is visible in the body and the `else`."""
        self._count_step(node.offset)
        outer_count = len(variables)
        value = self._evaluate(node.expression, dot, variables)
        variables.extend((name, [value]) for name in node.names)
        if is_true(value):
            yield from self._render_block(node.body, value if node.is_with else dot, variables)
        else:
            yield from self._render_block(node.else_body, dot, variables)
        del variables[outer_count:]

    def _render_loop(self, node: tree.RangeLoop, dot: Any, variables: VariableStack) -> Iterator[str]:
        """Yield the text of a `range`: the body for each entry, or the `else` if there are no entries."""
        self._count_step(node.offset)
        entries = self._list_loop_entries(self._evaluate(node.expression, dot, variables), node.offset)
        outer_count = len(variables)
        if not entries:
            yield from self._render_block(node.else_body, dot, variables)
        for key, item in entries:
            self._count_step(node.offset)
            loop_values = (key, item) if len(node.names) == 2 else (item,)
            variables.extend((name, [value]) for name, value in zip(node.names, loop_values, strict=False))
            try:
                yield from self._render_block(node.body, item, variables)
            except _ContinueLoop:
                continue
            except _BreakLoop:
                break
            finally:
                del variables[outer_count:]

    def _list_loop_entries(self, value: Any, offset: int) -> list[tuple[Any, Any]]:
        """Return the pairs that a `range` iterates over: index and element, key and value, or a number twice."""
        match value:
            case None:
                return []
            case dict():
                return sorted(value.items())
            case list():
                return list(enumerate(value))
            case bool():
                pass
            case int() if value <= self._limits.max_steps:
                return [(number, number) for number in range(value)]
        raise TemplateError(
            f"range takes a list, a map or a number, got {format_value(value)[:40]}", self._source, offset
        )

    # -- expressions

    def _evaluate(self, expression: tree.Expression, dot: Any, variables: VariableStack) -> Any:
        """Return the value of an expression."""
        match expression:
            case tree.Constant(value):
                return value
            case tree.Dot():
                return dot
            case tree.VariableReference(name, offset):
                return self._find_variable(name, variables, offset)[0]
            case tree.FieldAccess(operand, name, offset):
                value = self._evaluate(operand, dot, variables)
                try:
                    return get_field(value, name, is_strict=self._is_strict)
                except EvaluationError as error:
                    raise TemplateError(str(error), self._source, offset) from None
            case tree.FunctionCall(name, arguments, offset):
                return self._call_function(name, arguments, offset, dot, variables)
        raise AssertionError(f"not an expression: {expression}")

    def _call_function(
        self, name: str, arguments: tuple[tree.Expression, ...], offset: int, dot: Any, variables: VariableStack
    ) -> Any:
        """Return the result of a function. `and` and `or` evaluate no more arguments than they need."""
        self._count_step(offset)
        if name in ("and", "or"):
            value: Any = None
            for argument in arguments:
                value = self._evaluate(argument, dot, variables)
                if is_true(value) == (name == "or"):
                    break
            return value
        argument_values = [self._evaluate(argument, dot, variables) for argument in arguments]
        call: Callable[..., Any]
        if name in PURE_FUNCTIONS:
            call = PURE_FUNCTIONS[name][0]
        else:
            call, argument_values = SOURCE_FUNCTIONS[name][0], [self, *argument_values]
        try:
            result = call(*argument_values)
        except EvaluationError as error:
            raise TemplateError(str(error), self._source, offset) from None
        self._made_items += len(result) if isinstance(result, str | list | dict) else 0
        if self._made_items > 20 * self._limits.max_text_chars:
            raise TemplateError("functions of the template produce too much text", self._source, offset)
        return result

    def _find_variable(self, name: str, variables: VariableStack, offset: int) -> list[Any]:
        """Return the innermost variable of that name, as a list whose only element is its value."""
        for variable_name, value_holder in reversed(variables):
            if variable_name == name:
                return value_holder
        raise TemplateError(f"variable {name} is not defined here", self._source, offset)

    def _count_step(self, offset: int) -> None:
        """Count one more step. Raises `TemplateError` beyond the limit, so that every rendering ends."""
        self._steps += 1
        if self._steps > self._limits.max_steps:
            raise TemplateError(f"the template takes more than {self._limits.max_steps:,} steps", self._source, offset)
