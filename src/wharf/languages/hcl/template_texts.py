"""Returns expressions as the texts of templates, as a file in YAML, JSON or TOML has them.

Such a file has no expressions outside of its texts: `count = var.n` of HCL is the text `${var.n}` there.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from typing import Any, Final

from wharf.languages.hcl.bodies import SyntaxArgument
from wharf.languages.hcl.call_nodes import CallNode
from wharf.languages.hcl.diagnostics import SourceFile
from wharf.languages.hcl.expression_parser import ExpressionParser
from wharf.languages.hcl.loops import TemplateFor, TemplateIf, TemplateNode, TemplateParts
from wharf.languages.hcl.nodes import LiteralNode, ObjectNode, ParenthesizedNode, RelocatedNode, SyntaxNode, TupleNode
from wharf.languages.hcl.reader import ParseError
from wharf.languages.hcl.references import ReferenceNode
from wharf.languages.hcl.values import MAPPINGS, SEQUENCES, HclObject, HclTuple, Value, to_plain

MARKERS: Final = re.compile(r"((?<!\$)\$++|(?<!%)%++)\{")
"""The start of an interpolation or directive, also an escaped one. It takes linear time."""
_NODE_REFERENCE: Final = re.compile(r"\$\{(?!(?:var|local)\b)[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*\}")
"""A reference that the node replaces. As a template, it is the same text."""
_ESCAPED: Final = re.compile(r'[\\"\x00-\x1f\x7f\u2028\u2029\ufeff]')
_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}

TEXT_FUNCTIONS: Final = frozenset({
    "base64decode", "base64encode", "chomp", "file", "format", "indent", "join", "jsonencode", "lower", "md5", "regex_replace",
    "replace", "sha1", "sha256", "sha512", "substr", "title", "trim", "trimprefix", "trimspace", "trimsuffix", "upper",
    "urlencode", "yamlencode",
})  # fmt: skip
"""Functions whose value is a text."""


class TemplateText(str):
    """The source of a template, in place of its value. `type_name` is the type of the value, if it is known."""

    type_name: str = ""

    def convert(self, *type_names: str) -> str:
        """Return the template whose value is converted to types, one after the other, as an argument of HCL converts it."""
        if self.type_name == type_names[-1]:
            return str(self)
        expression = find_interpolation(self) or quote_template(self)
        for name in type_names:
            expression = f"convert({expression}, {name})"
        return f"${{{expression}}}"


def escape_template(text: str, *, keeps_references: bool = True) -> str:
    """Return the template whose value is a text. References for the node stay as they are, unless not `keeps_references`."""
    if "{" not in text:
        return text

    def escape(match: re.Match[str]) -> str:
        is_reference = keeps_references and match[1] == "$" and _NODE_REFERENCE.match(text, match.start()) is not None
        return match[0] if is_reference else f"{match[1]}{match[1][0]}{{"

    return MARKERS.sub(escape, text)


def escape_value(value: Value, *, keeps_references: bool = True) -> Value:
    """Return a value with all of its texts as templates."""

    def escape_text(text: str) -> str:
        return escape_template(text, keeps_references=keeps_references)

    if isinstance(value, str):
        return escape_text(value)
    if isinstance(value, SEQUENCES):
        return HclTuple(tuple([escape_value(item, keeps_references=keeps_references) for item in value.items]))
    if isinstance(value, MAPPINGS):
        return HclObject({
            escape_text(key): escape_value(item, keeps_references=keeps_references)
            for key, item in value.entries.items()
        })  # fmt: skip
    return value


def split_template(text: str) -> list[tuple[bool, str]]:
    """Return the parts of a template: whether each is an interpolation or a directive, and its text.

    From the first error on, a template is one text.
    """
    ranges: list[tuple[int, int]] = []
    if MARKERS.search(text) is not None:
        with suppress(ParseError):
            ExpressionParser(SourceFile("", text)).parse_raw(ranges)
    pieces: list[tuple[bool, str]] = []
    literal_start = 0
    for start, end in ranges:
        if text[start + 1] != "{":
            continue  # An escape is literal text.
        pieces += [(False, text[literal_start:start])] if start > literal_start else []
        pieces.append((True, text[start:end]))
        literal_start = end
    pieces += [(False, text[literal_start:])] if literal_start < len(text) else []
    return pieces


def find_interpolation(text: str) -> str:
    """Return the expression of a template that is one interpolation, whose value keeps its type, or an empty text."""
    pieces = split_template(text)
    is_one = len(pieces) == 1 and pieces[0][0] and text.startswith("${")
    return text[2:-1].removeprefix("~").removesuffix("~").strip() if is_one else ""


def quote_template(text: str) -> str:
    """Return a template as a quoted string. The source of its expressions stays, with its line breaks."""
    return f'"{"".join(piece if is_code else escape_quoted(piece) for is_code, piece in split_template(text))}"'


def escape_quoted(text: str) -> str:
    """Return a text with the escapes of quoted strings."""
    return _ESCAPED.sub(lambda match: _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}", text)


def to_plain_template(value: Value) -> Any:
    """Return a value as JSON has it, with templates as plain texts."""
    return _drop_text_types(to_plain(value))


def _drop_text_types(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _drop_text_types(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_drop_text_types(item) for item in value]
    return str(value) if isinstance(value, TemplateText) else value


class TemplateWriter:
    """Writes the expressions of one source as templates."""

    def __init__(self, source: SourceFile, variable_types: Mapping[str, str]) -> None:
        self._source = source.text
        self._variable_types = variable_types
        self._keeps_references = True
        self.kept_ranges: list[tuple[int, int]] = []
        """The offsets of expressions that the templates contain as they are written, with their comments."""

    def build_declaration_writer(self) -> "TemplateWriter":
        """Return a writer for the declarations of variables. They have no references for nodes: such a text is escaped."""
        writer = copy(self)
        writer._keeps_references = False
        return writer

    def _escape(self, text: str) -> str:
        return escape_template(text, keeps_references=self._keeps_references)

    def write_argument(self, argument: SyntaxArgument, evaluate: Callable[[], Value]) -> Value:
        """Return the value of an argument as a template: lists and objects of templates.

        `evaluate` returns the value of an expression without names and calls. Other expressions stay.
        """
        if not argument.references and not argument.calls:
            return escape_value(evaluate(), keeps_references=self._keeps_references)
        return self.write(argument.value)

    def write(self, node: SyntaxNode) -> Value:
        """Return a node as a template, and the items of lists and objects as templates of their own."""
        match node:
            case LiteralNode(value=value):
                return escape_value(value, keeps_references=self._keeps_references)
            case ParenthesizedNode(inner=inner):
                return self.write(inner)
            case TupleNode(items=items):
                return HclTuple(tuple([self.write(item) for item in items]))
            case ObjectNode(entries=entries):
                return HclObject({
                    self._escape(key) if isinstance(key, str) else self.write_text(key): self.write(value)
                    for key, value in entries
                })  # fmt: skip
            case _:
                text = TemplateText(self.write_text(node))
                text.type_name = self._find_type(node) if find_interpolation(text) else "string"
                return text

    def _find_type(self, node: SyntaxNode) -> str:
        """Return the type of an expression, or an empty text if it is not known."""
        if isinstance(node, ReferenceNode):
            if node.root not in ("var", "local"):
                return "string"  # The node replaces the text.
            is_whole = node.root == "var" and len(node.steps) == 1 and node.name is not None
            return self._variable_types.get(node.name or "", "") if is_whole else ""
        return "string" if isinstance(node, CallNode) and node.name in TEXT_FUNCTIONS else ""

    def write_text(self, node: SyntaxNode) -> str:
        """Return a node as a text whose value it is."""
        match node:
            case LiteralNode(value=str() as text):
                return self._escape(text)
            case ParenthesizedNode(inner=inner):
                return self.write_text(inner)
            case TemplateNode(parts=parts):
                return self._write_parts(parts)
            case RelocatedNode(start=start, end=end) if self._source.startswith('"', start):
                text = json.loads(self._source[start:end])  # A string of the JSON form is a template already.
                return str(text)
            case _:
                return f"${{{self._get_interpolation(node)}}}"

    def _get_source(self, node: SyntaxNode) -> str:
        self.kept_ranges.append((node.start, node.end))
        return self._source[node.start : node.end]

    def _write_parts(self, parts: TemplateParts) -> str:
        pieces: list[str] = []
        for part in parts:
            match part:
                case str():
                    piece = self._escape(part)
                case SyntaxNode():
                    piece = f"${{{self._get_interpolation(part)}}}"
                case TemplateIf():
                    otherwise = f"%{{ else }}{self._write_parts(part.else_parts)}" if part.else_parts else ""
                    condition = self._get_source(part.condition)
                    piece = f"%{{ if {condition} }}{self._write_parts(part.parts)}{otherwise}%{{ endif }}"
                case TemplateFor(loop=loop):
                    names = f"{loop.key_name}, {loop.value_name}" if loop.key_name is not None else loop.value_name
                    head = f"%{{ for {names} in {self._get_source(loop.collection)} }}"
                    piece = f"{head}{self._write_parts(part.parts)}%{{ endfor }}"
            if pieces and pieces[-1][-1:] in ("$", "%") and piece[:1] == pieces[-1][-1]:
                # The sign would double that of the marker, which makes it an escape.
                pieces.append(f'${{"{piece[0]}"}}')
                pieces[-2] = pieces[-2][:-1]
            pieces.append(piece)
        return "".join(pieces)

    def _get_interpolation(self, node: SyntaxNode) -> str:
        """Return the expression of an interpolation, as it is written."""
        is_reference = isinstance(node, ReferenceNode) and node.root not in ("var", "local")
        return node.text if is_reference else self._get_source(node)  # type: ignore[attr-defined]  # it is a reference
