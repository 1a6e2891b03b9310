"""Makes text from a template: walks its tree with a value and the sources, within bounds."""

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


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """How far a template may go. `text_max` counts every text that is made on the way, too, twentyfold."""

    max_steps: int = 1_000_000
    max_text_chars: int = 16 << 20


class RenderResult(NamedTuple):
    text: str
    # (kind, name) of what was asked: environment, file, variable, variables, service, services.
    queries: frozenset[tuple[str, str]]
    # What is not there yet. While this is not empty the text is not to be used.
    missing: tuple[str, ...]


class ParsedTemplate:
    """A template that was read, and can be rendered as often as one likes. Raises TemplateError."""

    def __init__(self, source: str, *, left: str = "", right: str = "", is_strict: bool = False) -> None:
        self._source = source
        self._tree = parse_template(source, FUNCTION_ARITIES, left or "{{", right or "}}")
        self._is_strict = is_strict

    def render(
        self, value: Any = None, sources: TemplateSources | None = None, limits: RenderLimits | None = None
    ) -> RenderResult:
        """Raises TemplateError."""
        run = _Run(
            self._source, self._tree, sources or NoSources(), limits or RenderLimits(), is_strict=self._is_strict
        )
        text = run.whole(value)
        return RenderResult(text, frozenset(run.queries), tuple(run.missing))


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


VariableStack = list[tuple[str, list[Any]]]  # Each variable in a box of its own: `=` changes it for all who see it.


class _Run:
    def __init__(
        self, source: str, parsed: tree.TemplateTree, sources: TemplateSources, bounds: RenderLimits, *, is_strict: bool
    ) -> None:
        self._source = source
        self._tree = parsed
        self.sources = sources
        self._bounds = bounds
        self._is_strict = is_strict
        self._steps = 0
        self._made = 0
        self._includes = 0
        self.queries: set[tuple[str, str]] = set()
        self.missing: dict[str, None] = {}

    def whole(self, value: Any) -> str:
        return self._text_of(self._tree.body, value, 0)

    # -- what functions may do (functions.asking.Rendering)

    def record_query(self, kind: str, name: str) -> None:
        self.queries.add((kind, name))

    def record_missing(self, missing: MissingSource) -> None:
        self.missing[str(missing)] = None

    def render_named_template(self, name: str, value: Any) -> str:
        if name not in self._tree.named_blocks:
            raise EvaluationError(f'no template is named "{name}"')
        return self._text_of(self._tree.named_blocks[name], value, 0)

    # -- nodes

    def _text_of(self, block: tree.NodeList, value: Any, at: int) -> str:
        self._includes += 1
        if self._includes > MAX_INCLUDE_DEPTH:
            raise TemplateError(f"templates include each other more than {MAX_INCLUDE_DEPTH} deep", self._source, at)
        pieces: list[str] = []
        length = 0
        for piece in self._block(block, value, [("$", [value])]):
            length += len(piece)
            if length > self._bounds.max_text_chars:
                raise TemplateError(f"the text grows over {self._bounds.max_text_chars:,} characters", self._source, at)
            pieces.append(piece)
        self._includes -= 1
        return "".join(pieces)

    def _block(self, block: tree.NodeList, dot: Any, names: VariableStack) -> Iterator[str]:
        mark = len(names)
        for node in block:
            match node:
                case tree.TextNode(text):
                    yield text
                case tree.OutputNode(expression, at):
                    self._step(at)
                    yield format_value(self._value(expression, dot, names))
                case tree.Assignment():
                    self._assign(node, dot, names)
                case tree.Conditional():
                    yield from self._branch(node, dot, names)
                case tree.RangeLoop():
                    yield from self._range(node, dot, names)
                case tree.LoopJump(is_break):
                    raise _Break if is_break else _Continue
                case tree.Include(name, expression, at):
                    self._step(at)
                    value = None if expression is None else self._value(expression, dot, names)
                    yield self._text_of(self._tree.named_blocks[name], value, at)
        del names[mark:]

    def _assign(self, node: tree.Assignment, dot: Any, names: VariableStack) -> None:
        self._step(node.offset)
        value = self._value(node.expression, dot, names)
        if node.is_new:
            names.append((node.name, [value]))
        else:
            self._box(node.name, names, node.offset)[0] = value

    def _branch(self, node: tree.Conditional, dot: Any, names: VariableStack) -> Iterator[str]:
        self._step(node.offset)
        mark = len(names)
        value = self._value(node.expression, dot, names)
        names.extend((name, [value]) for name in node.names)
        if is_true(value):
            yield from self._block(node.body, value if node.is_with else dot, names)
        else:
            yield from self._block(node.else_body, dot, names)
        del names[mark:]

    def _range(self, node: tree.RangeLoop, dot: Any, names: VariableStack) -> Iterator[str]:
        self._step(node.offset)
        entries = self._entries(self._value(node.expression, dot, names), node.offset)
        mark = len(names)
        if not entries:
            yield from self._block(node.else_body, dot, names)
        for key, one in entries:
            self._step(node.offset)
            given = (key, one) if len(node.names) == 2 else (one,)
            names.extend((name, [value]) for name, value in zip(node.names, given, strict=False))
            try:
                yield from self._block(node.body, one, names)
            except _Continue:
                continue
            except _Break:
                break
            finally:
                del names[mark:]

    def _entries(self, value: Any, at: int) -> list[tuple[Any, Any]]:
        match value:
            case None:
                return []
            case dict():
                return sorted(value.items())
            case list():
                return list(enumerate(value))
            case bool():
                pass
            case int() if value <= self._bounds.max_steps:
                return [(number, number) for number in range(value)]
        raise TemplateError(
            f"range goes over a list, a map or a number, and not over {format_value(value)[:40]}", self._source, at
        )

    # -- expressions

    def _value(self, expression: tree.Expression, dot: Any, names: VariableStack) -> Any:
        match expression:
            case tree.Constant(value):
                return value
            case tree.Dot():
                return dot
            case tree.VariableReference(name, at):
                return self._box(name, names, at)[0]
            case tree.FieldAccess(of, name, at):
                value = self._value(of, dot, names)
                try:
                    return get_field(value, name, is_strict=self._is_strict)
                except EvaluationError as error:
                    raise TemplateError(str(error), self._source, at) from None
            case tree.FunctionCall(name, arguments, at):
                return self._call(name, arguments, at, dot, names)
        raise AssertionError(f"no expression: {expression}")

    def _call(self, name: str, arguments: tuple[tree.Expression, ...], at: int, dot: Any, names: VariableStack) -> Any:
        self._step(at)
        if name in ("and", "or"):
            value: Any = None
            for argument in arguments:
                value = self._value(argument, dot, names)
                if is_true(value) == (name == "or"):
                    break
            return value
        given = [self._value(argument, dot, names) for argument in arguments]
        call: Callable[..., Any]
        if name in PURE_FUNCTIONS:
            call = PURE_FUNCTIONS[name][0]
        else:
            call, given = SOURCE_FUNCTIONS[name][0], [self, *given]
        try:
            made = call(*given)
        except EvaluationError as error:
            raise TemplateError(str(error), self._source, at) from None
        self._made += len(made) if isinstance(made, str | list | dict) else 0
        if self._made > 20 * self._bounds.max_text_chars:
            raise TemplateError("this makes more text than a template may", self._source, at)
        return made

    def _box(self, name: str, names: VariableStack, at: int) -> list[Any]:
        for known, box in reversed(names):
            if known == name:
                return box
        raise TemplateError(f"{name} is not set here", self._source, at)

    def _step(self, at: int) -> None:
        self._steps += 1
        if self._steps > self._bounds.max_steps:
            raise TemplateError(
                f"the template goes on for more than {self._bounds.max_steps:,} steps", self._source, at
            )
