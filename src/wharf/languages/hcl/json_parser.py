"""Parses documents written as JSON into the same tree as HCL.

JSON does not show which names are labels: an object inside an object may be a label or an attribute. So every name
becomes an attribute, and `queries.find_blocks` finds the blocks, as it does for HCL that uses objects.
"""

import json
import re
from typing import Final

from wharf.languages.hcl.lexer import NUMBER, convert_number
from wharf.languages.hcl.source import MAX_DOCUMENT_CHARS, SourceText
from wharf.languages.hcl.tree import (
    Attribute,
    Body,
    BooleanValue,
    Expression,
    ListValue,
    NullValue,
    NumberValue,
    ObjectValue,
    TextValue,
)

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_KEYWORD: Final = re.compile(r"(?:true|false|null)\b")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_STRING_DECODER: Final = json.JSONDecoder()
_EXPECTED_VALUE: Final = "a value (a text in quotes, a number, true, false, null, a list or an object)"


def parse_json(text: str, *, max_chars: int = MAX_DOCUMENT_CHARS) -> Body:
    """Return the tree of a JSON document. Raises `HclSyntaxError` with the location and what was expected there."""
    source = SourceText(text, max_chars=max_chars)
    return _JsonParser(source).parse_document()


class _JsonParser:
    """Parses one document from the start. `_offset` is the position of the next character."""

    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._text = source.text
        self._offset = source.start

    def parse_document(self) -> Body:
        """Return the tree of the whole text. Raises `HclSyntaxError`."""
        self._skip_space()
        if not self._starts_with("{"):
            raise self._source.make_unexpected_error(self._offset, '"{"')
        body = self._parse_object().body
        self._skip_space()
        if self._offset < len(self._text):
            raise self._source.make_unexpected_error(self._offset, "the end")
        return body

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._offset)
        self._offset = space.end() if space else self._offset

    def _starts_with(self, text: str) -> bool:
        return self._text.startswith(text, self._offset)

    def _skip_character(self, character: str) -> bool:
        """Skip the next character and the space after it if it is this one. Return whether it was skipped."""
        if not self._starts_with(character):
            return False
        self._offset += 1
        self._skip_space()
        return True

    def _parse_value(self) -> Expression:
        """Parse any JSON value."""
        location = self._source.get_location(self._offset)
        if self._starts_with("{"):
            return self._parse_object()
        if self._starts_with("["):
            return self._parse_list()
        if self._starts_with('"'):
            return TextValue(self._parse_string(), location)
        if keyword := _KEYWORD.match(self._text, self._offset):
            self._offset = keyword.end()
            return NullValue(location) if keyword[0] == "null" else BooleanValue(keyword[0] == "true", location)
        number = NUMBER.match(self._text, self._offset)
        if number is None:
            raise self._source.make_unexpected_error(self._offset, _EXPECTED_VALUE)
        value = NumberValue(convert_number(self._source, self._offset, number[0]), location)
        self._offset = number.end()
        return value

    def _parse_string(self) -> str:
        """Parse a string with the standard library's decoder. Lone surrogates are an error: they are not UTF-8."""
        start_offset = self._offset
        try:
            value, self._offset = _STRING_DECODER.raw_decode(self._text, start_offset)
        except json.JSONDecodeError as error:
            reason = f"invalid string: {error.msg[:1].lower()}{error.msg[1:].removesuffix(' at')}"
            raise self._source.make_error(min(error.pos, len(self._text)), reason) from None
        assert isinstance(value, str), "text that starts with a quote is decoded as a string"
        if _SURROGATE.search(value):
            raise self._source.make_error(
                start_offset, "this string has half of a surrogate pair: characters above \\uffff need two escapes"
            )
        return value

    def _parse_list(self) -> ListValue:
        """Parse a list. A comma after the last element is an error."""
        location = self._source.get_location(self._offset)
        self._source.enter_nesting(self._offset)
        self._skip_character("[")
        elements: list[Expression] = []
        while not self._starts_with("]"):
            elements.append(self._parse_value())
            self._skip_space()
            if not self._skip_character(","):
                break
            if self._starts_with("]"):
                raise self._source.make_unexpected_error(self._offset, _EXPECTED_VALUE)
        if not self._starts_with("]"):
            raise self._source.make_unexpected_error(
                self._offset, '"," or "]"', fix=f"the list was opened at {location.line}:{location.column}"
            )
        self._offset += 1
        self._source.leave_nesting()
        return ListValue(tuple(elements), location)

    def _parse_object(self) -> ObjectValue:
        """Parse an object. A comma after the last attribute is an error."""
        location = self._source.get_location(self._offset)
        self._source.enter_nesting(self._offset)
        self._skip_character("{")
        items: list[Attribute] = []
        while not self._starts_with("}"):
            items.append(self._parse_attribute())
            self._skip_space()
            if not self._skip_character(","):
                break
            if self._starts_with("}"):
                raise self._source.make_unexpected_error(self._offset, "a name in quotes")
        if not self._starts_with("}"):
            raise self._source.make_unexpected_error(
                self._offset, '"," or "}"', fix=f"the brace was opened at {location.line}:{location.column}"
            )
        self._offset += 1
        self._source.leave_nesting()
        return ObjectValue(Body(tuple(items), location), location)

    def _parse_attribute(self) -> Attribute:
        """Parse a name, a colon and a value."""
        location = self._source.get_location(self._offset)
        if not self._starts_with('"'):
            raise self._source.make_unexpected_error(self._offset, "a name in quotes")
        name = self._parse_string()
        self._skip_space()
        if not self._skip_character(":"):
            raise self._source.make_unexpected_error(self._offset, '":"')
        return Attribute(name, self._parse_value(), location)
