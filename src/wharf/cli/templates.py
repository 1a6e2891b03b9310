"""A small language for `--format`: text with `{{…}}` in it, as tools of this kind have it. It cannot do anything but show.

`{{.Name}}`, `{{.JobSummary.Summary}}`, `{{range .}}…{{else}}…{{end}}`, `{{range $i, $job := .}}`, `{{if .Stop}}…{{else if …}}…
{{else}}…{{end}}`, `{{with .Deployment}}…{{end}}`, `{{$name := …}}`, `{{/* a remark */}}`, pipes (`{{.IDs | join ", "}}`),
parentheses (`(index . 0).ID`), `{{-` and `-}}` that take away the space beside them, and the functions of `FUNCTIONS`.
Names are those of `--json`. It reads mappings, lists and plain values, and no attribute of any object, so a template can reach nothing else.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

NOTHING: Final = "<no value>"
MOST_STEPS: Final = 1_000_000
_MARK: Final = re.compile(r"\{\{(-\s)?(.*?)(\s-)?\}\}", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|`[^`]*`)|(?P<number>-?\d+(?:\.\d+)?)(?![\w.])|(?P<assign>:=)|(?P<mark>[(|,])"""
    r"""|(?P<closed>\)(?:\.\w+)*)|(?P<path>\$?\w*(?:\.\w+)+|\$\w*|\.)|(?P<word>\w+)|(?P<wrong>\S))"""
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


class TemplateError(Exception):
    """A template that is none, or that asks for what is not there: what, and where."""


class Fields(dict[str, Any]):  # What a record holds is of any kind.
    """A record by its wire's names: all of them, so that a name that is missing is a mistake."""


def plain(value: Any) -> Any:  # Any value goes in; mappings, lists and plain values come out.
    """What `--json` and templates see of a value: records with all of their fields, also the empty ones."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        found = ((wire, getattr(value, name)) for name, wire in names)
        return Fields((wire, plain(one)) for wire, one in found if one is not msgspec.UNSET)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return msgspec.to_builtins(value)


def render(template: str, value: Any) -> str:  # What `plain` gives.
    """Raises TemplateError."""
    pieces = list(_pieces(template))
    body, rest = _parse_block(pieces, 0, ())
    assert rest == len(pieces), "a block reads to the end of what it is in"
    return "".join(_Run(value).block(body, value, {"$": value}))


# -- reading


class _Piece(NamedTuple):
    text: str
    is_action: bool
    at: int


class _Node(NamedTuple):
    kind: str  # text, show, set, if, range, with
    text: str = ""
    expression: Any = None
    names: tuple[str, ...] = ()
    body: Any = ()
    otherwise: Any = ()


def _pieces(template: str) -> Iterator[_Piece]:
    at, is_trimmed = 0, False
    for found in _MARK.finditer(template):
        text = template[at : found.start()]
        text = text.lstrip() if is_trimmed else text
        text = text.rstrip() if found[1] else text
        if text:
            yield _Piece(text, False, at)
        action = found[2].strip()
        if not action.startswith("/*"):
            yield _Piece(action, True, found.start())
        at, is_trimmed = found.end(), bool(found[3])
    rest = template[at:]
    if "{{" in rest:
        raise TemplateError(f"the template opens {{{{ at character {at + rest.index('{{') + 1} and does not close it")
    rest = rest.lstrip() if is_trimmed else rest
    if rest:
        yield _Piece(rest, False, at)


def _parse_block(pieces: list[_Piece], at: int, opened: tuple[_Piece, ...]) -> tuple[tuple[_Node, ...], int]:
    """What stands until the `end` or `else` of the innermost block; the place of that."""
    nodes: list[_Node] = []
    while at < len(pieces):
        piece = pieces[at]
        word, _, rest = piece.text.partition(" ")
        if not piece.is_action:
            nodes.append(_Node("text", piece.text))
        elif word in ("end", "else"):
            if not opened:
                raise TemplateError(
                    f"the template has {{{{{word}}}}} at character {piece.at + 1} and nothing that it ends"
                )
            return tuple(nodes), at
        elif word in ("if", "range", "with"):
            node, at = _parse_branch(pieces, at, word, rest, opened)
            nodes.append(node)
        else:
            names, expression = _parse_pipeline(piece.text, piece.at)
            nodes.append(_Node("set" if names else "show", expression=expression, names=names))
        at += 1
    if opened:
        raise TemplateError(f"the template lacks the {{{{end}}}} of {{{{{opened[-1].text}}}}}")
    return tuple(nodes), at


def _parse_branch(pieces: list[_Piece], at: int, word: str, rest: str, opened: tuple[_Piece, ...]) -> tuple[_Node, int]:
    piece = pieces[at]
    names, expression = _parse_pipeline(rest, piece.at)
    body, at = _parse_block(pieces, at + 1, (*opened, piece))
    otherwise: tuple[_Node, ...] = ()
    if pieces[at].text != "end":
        more = pieces[at].text.partition(" ")[2].strip()
        if more:  # `else if …` is an if that ends with the same end.
            next_word, _, next_rest = more.partition(" ")
            node, at = _parse_branch(pieces, at, next_word, next_rest, opened)
            return _Node(word, expression=expression, names=names, body=body, otherwise=(node,)), at
        otherwise, at = _parse_block(pieces, at + 1, (*opened, piece))
    return _Node(word, expression=expression, names=names, body=body, otherwise=otherwise), at


class _Call(NamedTuple):
    name: str
    arguments: tuple[Any, ...]


class _Path(NamedTuple):
    root: str
    names: tuple[str, ...]


class _Field(NamedTuple):
    """Of what an expression in parentheses gives: `(index . 0).ID`."""

    of: Any
    names: tuple[str, ...]


class _Constant(NamedTuple):
    value: Any


def _parse_pipeline(text: str, at: int) -> tuple[tuple[str, ...], Any]:
    tokens = [(str(found.lastgroup), found[found.lastgroup or 0]) for found in _TOKEN.finditer(text)]
    wrong = next((token for kind, token in tokens if kind == "wrong"), "")
    if wrong:
        raise TemplateError(
            f"the template has {wrong} at character {at + 1}, in {{{{{text}}}}}: that means nothing here"
        )
    names: tuple[str, ...] = ()
    assign = next((place for place, (kind, _) in enumerate(tokens) if kind == "assign"), None)
    if assign is not None:
        names = tuple(token for _, token in tokens[:assign] if token != ",")
        tokens = tokens[assign + 1 :]
    if not tokens:
        raise TemplateError(f"the template has {{{{{text}}}}} at character {at + 1}: something to show is missing")
    expression, rest = _parse_pipe(tokens, text)
    if rest:
        raise TemplateError(f"the template has {rest[0][1]} too many in {{{{{text}}}}}")
    return names, expression


def _parse_pipe(tokens: list[tuple[str, str]], text: str) -> tuple[Any, list[tuple[str, str]]]:
    expression, tokens = _parse_call(tokens, text)
    while tokens and tokens[0][1] == "|":
        stage, tokens = _parse_call(tokens[1:], text)
        if not isinstance(stage, _Call):
            raise TemplateError(f"the template pipes into what is no function, in {{{{{text}}}}}")
        expression = _Call(stage.name, (*stage.arguments, expression))
    return expression, tokens


def _parse_call(tokens: list[tuple[str, str]], text: str) -> tuple[Any, list[tuple[str, str]]]:
    if not tokens:
        raise TemplateError(f"the template stops in the middle of {{{{{text}}}}}")
    kind, token = tokens[0]
    if kind != "word" or token in ("true", "false", "nil"):
        return _parse_operand(tokens, text)
    if token not in FUNCTIONS:
        near = difflib.get_close_matches(token, list(FUNCTIONS), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(FUNCTIONS)}"
        raise TemplateError(f"the template calls {token}, which is no function: {hint} (a field begins with a dot)")
    arguments: list[Any] = []
    tokens = tokens[1:]
    while tokens and tokens[0][1] != "|" and tokens[0][0] != "closed":
        argument, tokens = _parse_operand(tokens, text)
        arguments.append(argument)
    return _Call(token, tuple(arguments)), tokens


def _parse_operand(tokens: list[tuple[str, str]], text: str) -> tuple[Any, list[tuple[str, str]]]:
    (kind, token), rest = tokens[0], tokens[1:]
    match kind:
        case "text":
            inner = token[1:-1]
            if token[0] == '"':
                inner = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), inner)
            return _Constant(inner), rest
        case "number":
            return _Constant(float(token) if "." in token else int(token)), rest
        case "path":
            root, _, names = token.partition(".")
            return _Path(root or ".", tuple(name for name in names.split(".") if name)), rest
        case "word" if token in ("true", "false", "nil"):
            return _Constant({"true": True, "false": False, "nil": None}[token]), rest
        case "word" if token in FUNCTIONS:
            return _Call(token, ()), rest
        case "mark" if token == "(":
            inner_expression, rest = _parse_pipe(rest, text)
            if not rest or rest[0][0] != "closed":
                raise TemplateError(f"the template lacks a ) in {{{{{text}}}}}")
            fields = tuple(rest[0][1].split(".")[1:])
            return _Field(inner_expression, fields) if fields else inner_expression, rest[1:]
        case _:
            raise TemplateError(f"the template has {token} in {{{{{text}}}}}: a field begins with a dot")


# -- showing


def shown(value: Any) -> str:
    """A value as text."""
    match value:
        case None:
            return NOTHING
        case bool():
            return "true" if value else "false"
        case str() | int():
            return str(value)
        case float():
            return f"{value:g}"
        case dict():
            return "map[" + " ".join(f"{key}:{shown(one)}" for key, one in sorted(value.items())) + "]"
        case _:
            return "[" + " ".join(shown(one) for one in value) + "]"


class _Run:
    def __init__(self, value: Any) -> None:
        self._value = value
        self._steps = 0

    def block(self, nodes: tuple[_Node, ...], dot: Any, names: dict[str, Any]) -> Iterator[str]:
        names = dict(names)
        for node in nodes:
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise TemplateError(f"the template goes on for more than {MOST_STEPS:,} steps")
            match node.kind:
                case "text":
                    yield node.text
                case "show":
                    yield shown(self.find(node.expression, dot, names))
                case "set":
                    names[node.names[0]] = self.find(node.expression, dot, names)
                case "range":
                    yield from self._range(node, dot, names)
                case _:
                    yield from self._branch(node, dot, names)

    def _branch(self, node: _Node, dot: Any, names: dict[str, Any]) -> Iterator[str]:
        value = self.find(node.expression, dot, names)
        if node.names:
            names = {**names, node.names[0]: value}
        if not value:
            yield from self.block(node.otherwise, dot, names)
        else:
            yield from self.block(node.body, value if node.kind == "with" else dot, names)

    def _range(self, node: _Node, dot: Any, names: dict[str, Any]) -> Iterator[str]:
        value = self.find(node.expression, dot, names)
        if isinstance(value, str) or not isinstance(value, list | dict | None):
            raise TemplateError(f"range goes over a list or a map, and this is {shown(value)[:40]}")
        entries = sorted(value.items()) if isinstance(value, dict) else list(enumerate(value or ()))
        if not entries:
            yield from self.block(node.otherwise, dot, names)
        for key, one in entries:
            given = (key, one) if len(node.names) == 2 else (one,)
            yield from self.block(node.body, one, {**names, **dict(zip(node.names, given, strict=False))})

    def find(self, expression: Any, dot: Any, names: dict[str, Any]) -> Any:
        match expression:
            case _Constant(value):
                return value
            case _Path(root, path):
                if root == ".":
                    value = dot
                elif root in names:
                    value = names[root]
                else:
                    raise TemplateError(f"the template never set {root}")
                for name in path:
                    value = _field(value, name)
                return value
            case _Field(of, path):
                value = self.find(of, dot, names)
                for name in path:
                    value = _field(value, name)
                return value
            case _Call(name, arguments):
                return _call(name, [self.find(argument, dot, names) for argument in arguments])
        raise AssertionError(f"no expression: {expression}")


def _field(value: Any, name: str) -> Any:
    if isinstance(value, Fields):
        if name not in value:
            near = difflib.get_close_matches(name, list(value), n=1)
            hint = f"did you mean .{near[0]}?" if near else f"there are {', '.join(value)}"
            raise TemplateError(f"there is no field .{name}: {hint}")
        return value[name]
    if isinstance(value, dict):
        return value.get(name)
    if value is None:
        return None
    kind = (
        "a list: {{range .}} goes over it" if isinstance(value, list) else f"{shown(value)[:40]}, which has no fields"
    )
    raise TemplateError(f"the template asks for .{name} of {kind}")


def _call(name: str, arguments: list[Any]) -> Any:
    try:
        return FUNCTIONS[name](*arguments)
    except TemplateError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError):
        given = ", ".join(shown(argument)[:40] for argument in arguments)
        raise TemplateError(f"the function {name} cannot be used so: {name}({given})") from None


def _join(first: Any, second: Any) -> str:
    """Both orders: `join .IDs ", "` and `.IDs | join ", "`."""
    values, between = (first, second) if isinstance(second, str) else (second, first)
    return str(between).join(shown(one) for one in values or ())


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else value[key]
    return value


def _and(*values: Any) -> Any:
    return next((value for value in values if not value), values[-1])


def _or(*values: Any) -> Any:
    return next((value for value in values if value), values[-1])


def _printf(form: str, *values: Any) -> str:
    left = list(values)

    def put(found: re.Match[str]) -> str:
        if found[3] == "%":
            return "%"
        value = left.pop(0)
        match found[3]:
            case "q":
                text = f'"{shown(value)}"'
            case "f":
                text = f"{float(value):.{int((found[2] or '.6')[1:])}f}"
            case "d":
                text = str(int(value))
            case _:
                text = shown(value)
        width = min(abs(int(found[1] or 0)), 500)
        return text.ljust(width) if (found[1] or "").startswith("-") else text.rjust(width)

    return re.sub(r"%(-?\d+)?(\.\d)?([svqdft%])", put, form)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "len": lambda value: len(value or ()),
    "join": _join,
    "index": _index,
    "eq": lambda first, *others: any(first == other for other in others),
    "ne": lambda first, second: first != second,
    "lt": lambda first, second: first < second,
    "le": lambda first, second: first <= second,
    "gt": lambda first, second: first > second,
    "ge": lambda first, second: first >= second,
    "not": lambda value: not value,
    "and": _and,
    "or": _or,
    "print": lambda *values: "".join(shown(value) for value in values),
    "println": lambda *values: " ".join(shown(value) for value in values) + "\n",
    "printf": _printf,
    "json": _json,
    "toJSON": _json,
    "upper": lambda text: str(text).upper(),
    "lower": lambda text: str(text).lower(),
    "short": lambda text: str(text)[:8],
}
