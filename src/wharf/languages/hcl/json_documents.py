"""The JSON form of documents: blocks are objects, and labels are their keys. Strings are templates.

JSON does not show which objects are blocks, so the tree is converted by a schema.
"""

import copy
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from wharf.languages.hcl.bodies import BlockLabel, SyntaxArgument, SyntaxBlock, SyntaxBody
from wharf.languages.hcl.diagnostics import DiagnosticList, SourceFile, SourceRange
from wharf.languages.hcl.expression_parser import ExpressionParser
from wharf.languages.hcl.nodes import LiteralNode, ObjectNode, RelocatedNode, SyntaxNode, TupleNode
from wharf.languages.hcl.numerals import NumberError, parse_number
from wharf.languages.hcl.reader import NAME, ParseError, SourceReader
from wharf.languages.hcl.references import ReferenceNode
from wharf.languages.hcl.schemas import BlockSchema, BodySchema
from wharf.languages.hcl.values import Value, normalize_text

_SPACE: Final = re.compile(r"[ \t\r\n]*+")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+(?![\w.])")
_KEYWORD: Final = re.compile(r"(?:true|false|null)\b")
_KEYWORDS: Final[Mapping[str, Value]] = {"true": True, "false": False, "null": None}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_STRING_START: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_SINGLE_QUOTED: Final = re.compile(r"'([^'\n]*+)'")
_NOT_FINITE: Final = re.compile(r"[+-]?(?:NaN|nan|Infinity|inf)\b")
_WORD: Final = re.compile(r"[\w.+-]++")
_WORD_FIXES: Final = {
    "true": "write true", "false": "write false", "none": "write null", "null": "write null", "undefined": "write null",
    "nil": "write null", "yes": "write true", "no": "write false",
}  # fmt: skip
_COMMENT: Final = re.compile(r"(?://|#)[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?")
_COMMENT_KEY: Final = "//"
"""A key that holds a comment."""
DYNAMIC: Final = "dynamic"
N = TypeVar("N", bound=SyntaxNode)
_DYNAMIC_ATTRIBUTES: Final = ("for_each", "iterator", "labels")


@dataclass(slots=True)
class JsonScalar:
    """A string, number, bool or null, with its offsets."""

    value: Value
    start: int
    end: int


@dataclass(slots=True)
class JsonExpression(JsonScalar):
    """A string that is an expression, without `${ }` around it."""


@dataclass(slots=True)
class JsonArray:
    """An array with its offsets."""

    items: "list[JsonNode]"
    start: int
    end: int


class JsonProperty(NamedTuple):
    """A key of an object, with its offsets, and the value."""

    key: str
    start: int
    end: int
    value: "JsonNode"


@dataclass(slots=True)
class JsonObject:
    """An object with its offsets. A key may occur twice."""

    properties: list[JsonProperty]
    start: int
    end: int


JsonNode = JsonScalar | JsonArray | JsonObject


class JsonDocumentParser(SourceReader):
    """Parses a JSON document into a tree with offsets. Raises `ParseError`."""

    _suspect: int | None = None
    """The first bracket that is closed at another indentation: if one is not closed, it is probably this one."""

    def parse_document(self) -> JsonObject:
        """Return the object that is the whole document."""
        self._skip()
        if not self.starts_with("{"):
            raise self._make_error('"{"')
        node = self._parse_object()
        self._check_end()
        return node

    def parse_any(self) -> JsonNode:
        """Return the value that is the whole document."""
        self._skip()
        node = self._parse_value()
        self._check_end()
        return node

    def _check_end(self) -> None:
        self._skip()
        if self.pos >= len(self.text):
            return
        if self.text[self.pos] in "}]":
            raise ParseError(f"this {self.text[self.pos]} closes nothing", self.pos, self.pos + 1, "delete it")
        raise self._make_error("the end of the file")

    def _skip(self) -> None:
        self.pos = _SPACE.match(self.text, self.pos).end()  # type: ignore[union-attr]  # it always matches

    def _parse_value(self) -> JsonNode:
        """Parse any JSON value."""
        start = self.pos
        self.count_node(start)
        character = self.text[start : start + 1]
        if character == "{":
            return self._parse_object()
        if character == "[":
            return self._parse_array()
        if character == '"':
            return JsonScalar(self._parse_string(), start, self.pos)
        match = _KEYWORD.match(self.text, start)
        if match is not None:
            self.pos = match.end()
            return JsonScalar(_KEYWORDS[match[0]], start, self.pos)
        match = _NUMBER.match(self.text, start)
        if match is None:
            raise self._make_value_error()
        self.pos = match.end()
        try:
            return JsonScalar(parse_number(match[0]), start, self.pos)
        except NumberError as error:
            raise ParseError(str(error), start, self.pos) from None

    def _parse_string(self) -> str:
        start = self.pos
        match = _STRING.match(self.text, start)
        if match is None:
            raise self._make_string_error(start)
        self.pos = match.end()
        raw = match[0]
        text: str = json.loads(raw) if "\\" in raw else raw[1:-1]
        if _SURROGATE.search(text):
            raise ParseError(
                "this string has half of a surrogate pair", start, self.pos, "characters above \\uffff need two escapes"
            )
        return text

    def _parse_array(self) -> JsonArray:
        start = self.pos
        self.enter(start)
        self.pos += 1
        items: list[JsonNode] = []
        self._skip()
        while not self.starts_with("]"):
            items.append(self._parse_value())
            self._skip_separator("]", (start, start + 1, "the list was opened at"))
        self._compare_indentation(start)
        self.pos += 1
        self.depth -= 1
        return JsonArray(items, start, self.pos)

    def _parse_object(self) -> JsonObject:
        start = self.pos
        self.enter(start)
        self.pos += 1
        opening = (start, start + 1, "the object was opened at")
        properties: list[JsonProperty] = []
        self._skip()
        while not self.starts_with("}"):
            key_start = self.pos
            if not self.starts_with('"'):
                raise self._make_key_error(opening)
            key = self._parse_string()
            key_end = self.pos
            self._skip()
            if not self.starts_with(":"):
                raise self._make_error('":" after the key')
            self.pos += 1
            self._skip()
            properties.append(JsonProperty(key, key_start, key_end, self._parse_value()))
            self._skip_separator("}", opening)
        self._compare_indentation(start)
        self.pos += 1
        self.depth -= 1
        return JsonObject(properties, start, self.pos)

    def _skip_separator(self, closing: str, opening: tuple[int, int, str]) -> None:
        """Skip the comma after a value, if the list or object goes on. Raises `ParseError`."""
        end = self.pos
        self._skip()
        if self.starts_with(","):
            comma = self.pos
            self.pos += 1
            self._skip()
            if self.starts_with(closing):
                raise ParseError(f'a "," is before the {closing}', comma, comma + 1, "delete the comma")
            if self.starts_with(","):
                raise ParseError("two commas follow each other", self.pos, self.pos + 1, "delete one")
        elif not self.starts_with(closing):
            raise self._make_separator_error(closing, opening, end)

    def _compare_indentation(self, start: int) -> None:
        """Compare the indentation of the bracket at the position with that of the line of its opening bracket."""
        line = self.text.rfind("\n", 0, self.pos) + 1
        if self._suspect is None and line > start and not self.text[line : self.pos].strip():
            opening_line = self.text.rfind("\n", 0, start) + 1
            indentation = _SPACE.match(self.text, opening_line).end() - opening_line  # type: ignore[union-attr]  # always
            if indentation != self.pos - line:
                self._suspect = start

    # -- errors

    def _make_separator_error(self, closing: str, opening: tuple[int, int, str], end: int) -> ParseError:
        """Return the error of what follows a value, which ends at the offset `end`."""
        character = self.text[self.pos : self.pos + 1]
        if character == "":
            return self._make_open_error(opening)
        if character in "}]":
            fix = f"write {closing}"
            return ParseError(
                f"{character} does not close {self.text[opening[0]]}", self.pos, self.pos + 1, fix, opening
            )
        if character in '"{[' or _KEYWORD.match(self.text, self.pos) or _NUMBER.match(self.text, self.pos):
            return ParseError('a "," is missing after this value', max(end - 1, 0), end, "write a comma after it")
        return self._make_error(f'"," or "{closing}"', opening)

    def _make_open_error(self, opening: tuple[int, int, str]) -> ParseError:
        start = opening[0] if self._suspect is None else self._suspect
        sign = self.text[start]
        closing = "}" if sign == "{" else "]"
        return ParseError(f"the {sign} that opens here is not closed", start, start + 1, f"write {closing} at its end")

    def _make_key_error(self, opening: tuple[int, int, str]) -> ParseError:
        start = self.pos
        if start >= len(self.text):
            return self._make_open_error(opening)
        quoted = _SINGLE_QUOTED.match(self.text, start)
        name = NAME.match(self.text, start)
        if quoted is not None:
            return ParseError("a key needs double quotes", start, quoted.end(), f'write "{quoted[1][:80]}"')
        if name is not None:
            return ParseError("a key needs double quotes", start, name.end(), f'write "{name[0][:80]}"')
        return self._make_error("a key in double quotes", opening)

    def _make_value_error(self) -> ParseError:
        """Return the error of what is not a JSON value."""
        start = self.pos
        if match := _SINGLE_QUOTED.match(self.text, start):
            return ParseError("a text needs double quotes", start, match.end(), f'write "{match[1][:80]}"')
        if match := _NOT_FINITE.match(self.text, start):
            return ParseError(f"{match[0]} is not a number that JSON has", start, match.end(), "write a finite number")
        if match := _WORD.match(self.text, start):
            word = match[0]
            fix = _WORD_FIXES.get(word.lower(), f'write "{word[:80]}" if it is a text')
            if re.match(r"[+.]?\d", word):
                fix = f'write {_repair_number(word)}, or "{word[:80]}" if it is a text'
            return ParseError(f"{word[:80]} is not a JSON value", start, match.end(), fix)
        if self.pos < len(self.text) and self.text[self.pos] in "}],":
            before = self.text.rfind(":", 0, start)
            if before >= 0 and not self.text[before + 1 : start].strip():
                return ParseError("the key has no value", before, before + 1, "write one, or null")
        return self._make_error("a JSON value")

    def _make_string_error(self, start: int) -> ParseError:
        """Return the error of a string that does not end, or that has an unknown escape or a control character."""
        match = _STRING_START.match(self.text, start)
        assert match is not None, "the string begins with a quote"
        end = match.end()
        character = self.text[end : end + 1]
        if character == "\\" and self.text[end + 1 : end + 2] not in ("", "\n"):
            return ParseError(
                "this escape is unknown", end, end + 2,
                'write \\\\ for a backslash; the escapes are \\n \\r \\t \\b \\f \\" \\\\ \\/ \\uNNNN',
            )  # fmt: skip
        if character not in ("", "\n", "\r", "\\"):
            return ParseError(
                f"the control character #x{ord(character):04x} is not allowed in a JSON string", end, end + 1,
                f"write \\u{ord(character):04x}" if character != "\t" else "write \\t",
            )  # fmt: skip
        return ParseError(
            "the quote that opens here is not closed on its line", start, end,
            'write " at the end of the text, and \\n for a line break in it',
        )  # fmt: skip

    def _make_error(self, expected: str, related: tuple[int, int, str] | None = None) -> ParseError:
        """Return the error of what is at the position."""
        comment = _COMMENT.match(self.text, self.pos)
        if comment is not None:
            return ParseError(
                "JSON has no comments", self.pos, comment.end(), "delete it, or write the file in YAML or HCL"
            )
        return self.make_unexpected_error(expected, "", related)


def _repair_number(word: str) -> str:
    """Return a number as JSON has it, from one such as `.5`, `+1`, `007` or `0x1F`."""
    try:
        return str(int(word, 0))
    except ValueError:
        text = word.lstrip("+")
        return f"0{text}" if text.startswith(".") else text.lstrip("0") or "0"


def _is_argument_value(node: JsonNode) -> bool:
    """Return whether a value is an argument, if its name may be an argument or a block: a scalar, or a list of texts."""
    if isinstance(node, JsonArray):
        return bool(node.items) and all(
            isinstance(item, JsonScalar) and isinstance(item.value, str) for item in node.items
        )
    return isinstance(node, JsonScalar)


class JsonBodyBuilder:
    """Converts JSON objects to bodies by a schema. Errors are added to the diagnostics."""

    def __init__(self, source: SourceFile, diagnostics: DiagnosticList) -> None:
        self._source = source
        self._diagnostics = diagnostics

    def build_body(self, nodes: Sequence[JsonNode], schema: BodySchema) -> SyntaxBody:
        """Return the body that the objects describe together."""
        body = SyntaxBody()
        for node in nodes:
            for property_ in self._list_properties(node):
                if property_.key == _COMMENT_KEY:
                    continue
                if property_.key == DYNAMIC and schema.blocks and DYNAMIC not in schema.attributes:
                    self._add_dynamic(body, property_, schema)
                elif (block := schema.blocks.get(property_.key)) is not None and not (
                    property_.key in schema.attributes and _is_argument_value(property_.value)
                ):
                    self._add_blocks(body, property_, property_.value, block, ())
                else:
                    self._add_argument(body, property_)
        return body

    def _list_properties(self, node: JsonNode) -> Iterator[JsonProperty]:
        """Yield the properties of an object, or of all objects of a list."""
        if isinstance(node, JsonObject):
            yield from node.properties
        elif isinstance(node, JsonArray):
            for item in node.items:
                yield from self._list_properties(item)
        elif node.value is not None:
            self._diagnostics.add(self._source, node.start, node.end, "expected a JSON object for this block")

    def _add_argument(self, body: SyntaxBody, property_: JsonProperty) -> None:
        """Add an argument. Its value is an expression."""
        name = property_.key
        if name in body.arguments:
            first = body.arguments[name]
            place = SourceRange(self._source, first.name_start, first.name_end)
            self._diagnostics.add(
                self._source, property_.start, property_.end, f'the argument "{name[:80]}" occurs twice',
                "delete one of them", related=(place, "the first is at"),
            )  # fmt: skip
            return
        references: list[ReferenceNode] = []
        calls: list[SyntaxNode] = []
        value = self._build_expression(property_.value, references, calls)
        body.arguments[name] = SyntaxArgument(name, property_.start, property_.end, value, references, calls)

    def _add_blocks(
        self,
        body: SyntaxBody,
        header: JsonProperty,
        node: JsonNode,
        schema: BlockSchema,
        labels: tuple[BlockLabel, ...],
    ) -> None:
        """Add the blocks of a property: one for each object, below the keys that are labels."""
        if isinstance(node, JsonScalar):
            if node.value is not None:
                self._diagnostics.add(
                    self._source, node.start, node.end, f'expected a JSON object for the block "{header.key[:80]}"',
                    f'write "{header.key[:80]}": {{ {_describe_labels(schema)}... {"} " * len(schema.labels)}}}',
                )  # fmt: skip
        elif isinstance(node, JsonArray):
            for item in node.items:
                self._add_blocks(body, header, item, schema, labels)
        elif len(labels) < len(schema.labels):
            for key, start, end, value in node.properties:
                if key != _COMMENT_KEY:
                    self._add_blocks(body, header, value, schema, (*labels, BlockLabel(key, start, end)))
        else:
            inner = self.build_body([node], schema.body)
            end = labels[-1].end if labels else header.end
            block = SyntaxBlock(header.key, labels, inner, labels[0].start if labels else header.start, header.end, end)
            block.end = node.end
            body.blocks.append(block)

    def _add_dynamic(self, body: SyntaxBody, header: JsonProperty, schema: BodySchema) -> None:
        """Add dynamic blocks, which are below their type."""
        for kind in self._list_properties(header.value):
            block = schema.blocks.get(kind.key)
            content = BlockSchema(block.body if block is not None else BodySchema(is_free_form=True))
            dynamic = BlockSchema(BodySchema(_DYNAMIC_ATTRIBUTES, {"content": content}))
            label = BlockLabel(kind.key, kind.start, kind.end)
            self._add_blocks(body, header, kind.value, BlockSchema(dynamic.body, ("type",)), (label,))

    def _build_expression(self, node: JsonNode, references: list[ReferenceNode], calls: list[SyntaxNode]) -> SyntaxNode:
        """Return the expression of a JSON value."""
        if isinstance(node, JsonArray):
            items = [self._build_expression(item, references, calls) for item in node.items]
            return TupleNode(items, node.start, node.end)
        if isinstance(node, JsonObject):
            entries: list[tuple[str | SyntaxNode, SyntaxNode]] = []
            for key, start, end, value in node.properties:
                key_node = self._build_text(key, start, end, references, calls)
                plain = key_node.value if isinstance(key_node, LiteralNode) else None
                entries.append(
                    (plain if isinstance(plain, str) else key_node, self._build_expression(value, references, calls))
                )
            return ObjectNode(entries, node.start, node.end)
        if isinstance(node.value, str):
            is_expression = isinstance(node, JsonExpression)
            return self._build_text(node.value, node.start, node.end, references, calls, is_expression=is_expression)
        return LiteralNode(node.value, node.start, node.end)

    def _build_text(
        self,
        text: str,
        start: int,
        end: int,
        references: list[ReferenceNode],
        calls: list[SyntaxNode],
        *,
        is_expression: bool = False,
    ) -> SyntaxNode:
        """Return the expression of a string, which is a template unless `is_expression`.

        Its syntax errors are added to the diagnostics.
        """
        if not is_expression and "${" not in text and "%{" not in text:
            return LiteralNode(normalize_text(text), start, end)
        find_offset = _map_offsets(self._source.text, start, end, text)
        parser = ExpressionParser(SourceFile(self._source.name, text))
        try:
            node = parser.parse_whole_source() if is_expression else parser.parse_raw()
        except ParseError as error:
            places = (find_offset(error.start), find_offset(error.end)) if find_offset is not None else (start, end)
            message, fix = error.message, error.fix
            if is_expression:
                message = message.replace("the end of the file", "its end")
                fix = fix or "write a whole expression, such as var.name > 0"
            self._diagnostics.add(self._source, *places, message, fix)
            return LiteralNode(None, start, end)
        if isinstance(node, LiteralNode):
            return LiteralNode(node.value, start, end)
        references += [_relocate(reference, start, end, find_offset) for reference in parser.references]
        calls += [_relocate(call, start, end, find_offset) for call in parser.calls]
        return RelocatedNode(node, start, end, find_offset)


def _relocate(node: N, start: int, end: int, find_offset: Callable[[int], int] | None) -> N:
    """Return a copy of a node of a string, with offsets of the document. Checks report errors at these offsets."""
    relocated = copy.copy(node)
    relocated.start, relocated.end = start, end
    if find_offset is not None:
        relocated.start, relocated.end = find_offset(node.start), find_offset(node.end)
    return relocated


def _map_offsets(source: str, start: int, end: int, text: str) -> Callable[[int], int] | None:
    """Return a function from offsets in a string to offsets in the source, or `None` if the source has escapes.

    The lines of the string are in the source one after the other, with blanks before them: this is so for JSON, and for
    block texts of YAML.
    """
    for first in (start, start + 1):
        if source.startswith(text, first) and first + len(text) <= end:
            return lambda offset: first + offset
    line_starts: list[int] = []
    source_starts: list[int] = []
    text_start = 0
    source_start = source.find("\n", start) + 1
    for line in text.splitlines(keepends=True):
        source_line = source[source_start : source.find("\n", source_start) + 1 or len(source)]
        indentation = len(source_line.removesuffix("\n").removesuffix("\r")) - len(line.removesuffix("\n"))
        if indentation < 0 or not source_line[indentation:].startswith(line.removesuffix("\n")):
            return None
        line_starts.append(text_start)
        source_starts.append(source_start + indentation)
        text_start += len(line)
        source_start += len(source_line)
    if not line_starts or source_start > end + 1:
        return None

    def find_offset(offset: int) -> int:
        line = bisect_right(line_starts, offset) - 1
        return source_starts[line] + offset - line_starts[line]

    return find_offset


def _describe_labels(schema: BlockSchema) -> str:
    """Return the keys around a block that are its labels, for a message."""
    return "".join(f'"{label}": {{ ' for label in schema.labels)
