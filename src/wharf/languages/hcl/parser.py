"""Parses HCL into a tree, by recursive descent. The next character determines the rule, so no text is parsed twice.

Newlines are equivalent to spaces, and commas between the items of a body are optional, because older documents omit
them. `parse_document` also accepts the same documents as JSON.
"""

from typing import Final, NamedTuple

from wharf.languages.hcl.json_parser import parse_json
from wharf.languages.hcl.lexer import DecodedText, HclLexer
from wharf.languages.hcl.source import MAX_DOCUMENT_CHARS, SourceText
from wharf.languages.hcl.tree import (
    Attribute,
    Block,
    Body,
    BooleanValue,
    Expression,
    ListValue,
    NullValue,
    NumberValue,
    ObjectValue,
    TextValue,
)
from wharf.languages.source_locations import SourceLocation

_BOOLEANS: Final = {"true": True, "false": False}
_EXPECTED_VALUE: Final = "a value (a text in quotes, a number, true, false, a list or an object)"


def parse_hcl(text: str, *, max_chars: int = MAX_DOCUMENT_CHARS) -> Body:
    """Return the tree of an HCL document. Raises `HclSyntaxError` with the location and what was expected there."""
    source = SourceText(text, max_chars=max_chars)
    return _HclParser(source).parse_document_body()


class _ParsedBody(NamedTuple):
    """A body, and the offset after it."""

    body: Body
    end: int


class _ParsedItem(NamedTuple):
    """An attribute or a block, and the offset after it."""

    item: Attribute | Block
    end: int


class _ParsedValue(NamedTuple):
    """A value, and the offset after it."""

    value: Expression
    end: int


class _HclParser:
    """Parses one document. Each `_parse_` method starts at an offset and returns a node with the offset after it."""

    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._lexer = HclLexer(source)

    def parse_document_body(self) -> Body:
        return self._parse_items(self._source.start, opened_at=None).body

    def _parse_braces(self, offset: int, *, allows_colons: bool) -> _ParsedBody:
        """Parse the items between braces. `offset` is that of the opening brace."""
        self._source.enter_nesting(offset)
        body, end = self._parse_items(
            offset + 1, opened_at=self._source.get_location(offset), allows_colons=allows_colons
        )
        self._source.leave_nesting()
        return _ParsedBody(body, end + 1)

    def _parse_items(
        self, offset: int, *, opened_at: SourceLocation | None, allows_colons: bool = False
    ) -> _ParsedBody:
        """Parse items up to the closing brace, or to the end of the document if `opened_at` is `None`."""
        start = self._source.get_location(offset)
        items: list[Attribute | Block] = []
        while True:
            offset = self._lexer.skip_space(offset)
            if items and self._lexer.starts_with(offset, ","):
                offset = self._lexer.skip_space(offset + 1)
            if self._lexer.is_end(offset) and opened_at is None:
                break
            if self._lexer.is_end(offset) and opened_at is not None:
                fix = f"the brace was opened at {opened_at.line}:{opened_at.column}"
                raise self._source.make_unexpected_error(offset, 'a name or "}"', fix=fix)
            if self._lexer.starts_with(offset, "}") and opened_at is not None:
                break
            item, offset = self._parse_item(offset, in_braces=opened_at is not None, allows_colons=allows_colons)
            items.append(item)
        return _ParsedBody(Body(tuple(items), start), offset)

    def _parse_item(self, offset: int, *, in_braces: bool, allows_colons: bool) -> _ParsedItem:
        """Parse an attribute, or a block with its labels. `allows_colons` allows `name: value` as in JSON."""
        name = self._parse_word(offset)
        if name is None:
            raise self._source.make_unexpected_error(offset, 'a name or "}"' if in_braces else "a name")
        location = self._source.get_location(offset)
        labels: list[TextValue] = []
        end = self._lexer.skip_space(name.end)
        while (label := self._parse_word(end)) is not None:
            labels.append(TextValue(label.value, self._source.get_location(end)))
            end = self._lexer.skip_space(label.end)
        if self._lexer.starts_with(end, "{"):
            body, end = self._parse_braces(end, allows_colons=False)
            return _ParsedItem(Block(name.value, tuple(labels), body, location), end)
        if labels:
            raise self._source.make_unexpected_error(end, '"{" after a label', fix='a value takes "=" before it')
        if self._lexer.starts_with(end, "=") or (allows_colons and self._lexer.starts_with(end, ":")):
            value, end = self._parse_value(self._lexer.skip_space(end + 1))
            return _ParsedItem(Attribute(name.value, value, location), end)
        raise self._source.make_unexpected_error(
            end, '"=", "{" or a label', fix='write "="' if self._lexer.starts_with(end, ":") else ""
        )

    def _parse_word(self, offset: int) -> DecodedText | None:
        """Parse a name, or a text in quotes, as attributes, blocks and labels have it.

        Return `None` if neither starts here.
        """
        return self._lexer.read_name(offset) or (
            self._lexer.read_string(offset) if self._lexer.starts_with(offset, '"') else None
        )

    # -- values --------------------------------------------------------------------------------------------------

    def _parse_value(self, offset: int) -> _ParsedValue:
        """Parse a list, an object, a string, a number or a keyword."""
        location = self._source.get_location(offset)
        if self._lexer.starts_with(offset, "["):
            return self._parse_list(offset)
        if self._lexer.starts_with(offset, "{"):
            body, end = self._parse_braces(offset, allows_colons=True)
            return _ParsedValue(ObjectValue(body, location), end)
        string = self._lexer.read_string(offset)
        if string is not None:
            return _ParsedValue(TextValue(string.value, location), string.end)
        number = self._lexer.read_number(offset)
        if number is not None:
            return _ParsedValue(NumberValue(number.value, location), number.end)
        word = self._lexer.read_name(offset)
        if word is None:
            raise self._source.make_unexpected_error(offset, _EXPECTED_VALUE)
        if word.value == "null":
            return _ParsedValue(NullValue(location), word.end)
        if word.value not in _BOOLEANS:
            raise self._source.make_error(
                offset, f"expected {_EXPECTED_VALUE}, found the word {word.value[:80]}; put text in quotes"
            )
        return _ParsedValue(BooleanValue(_BOOLEANS[word.value], location), word.end)

    def _parse_list(self, offset: int) -> _ParsedValue:
        """Parse a list. A comma after the last element is allowed."""
        location = self._source.get_location(offset)
        self._source.enter_nesting(offset)
        elements: list[Expression] = []
        offset = self._lexer.skip_space(offset + 1)
        while not self._lexer.starts_with(offset, "]"):
            value, offset = self._parse_value(offset)
            elements.append(value)
            offset = self._lexer.skip_space(offset)
            if self._lexer.starts_with(offset, ","):
                offset = self._lexer.skip_space(offset + 1)
            elif not self._lexer.starts_with(offset, "]"):
                raise self._source.make_unexpected_error(
                    offset, '"," or "]"', fix=f"the list was opened at {location.line}:{location.column}"
                )
        self._source.leave_nesting()
        return _ParsedValue(ListValue(tuple(elements), location), offset + 1)


def parse_document(text: str, *, max_chars: int = MAX_DOCUMENT_CHARS) -> Body:
    """Return the tree of a document: JSON if the text starts with a brace, HCL otherwise. Raises `HclSyntaxError`."""
    is_json = text.lstrip("\ufeff \t\r\n").startswith("{")
    return parse_json(text, max_chars=max_chars) if is_json else parse_hcl(text, max_chars=max_chars)
