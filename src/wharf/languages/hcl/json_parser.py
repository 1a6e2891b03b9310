"""Documents written as JSON, read into the same tree.

JSON cannot say which names are labels: an object inside an object may be either. So every name becomes an attribute,
and `reading.blocks` finds blocks in it as it does in HCL, where they may be written so too.
"""

import json
import re
from typing import Final

from wharf.languages.hcl.lexer import MAX_NUMBER_CHARS, convert_number
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
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])")
_WORD: Final = re.compile(r"(?:true|false|null)\b")
_HALF: Final = re.compile("[\ud800-\udfff]")
_STRINGS: Final = json.JSONDecoder()
_VALUE: Final = "a value (a text in quotes, a number, true, false, null, a list or an object)"


def parse_json(text: str, *, max_chars: int = MAX_DOCUMENT_CHARS) -> Body:
    """The tree of a JSON document, or NotADocument with the place and what was expected there."""
    source = SourceText(text, max_chars=max_chars)
    return _Parser(source).document()


class _Parser:
    """`_at` is where the reading is."""

    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._text = source.text
        self._at = source.start

    def document(self) -> Body:
        self._skip()
        if not self._stands("{"):
            raise self._source.make_unexpected_error(self._at, '"{"')
        body = self._object().body
        self._skip()
        if self._at < len(self._text):
            raise self._source.make_unexpected_error(self._at, "the end")
        return body

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at

    def _stands(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, character: str) -> bool:
        """Goes past the character and the space after it, if it stands here."""
        if not self._stands(character):
            return False
        self._at += 1
        self._skip()
        return True

    def _value(self) -> Expression:
        place = self._source.get_location(self._at)
        if self._stands("{"):
            return self._object()
        if self._stands("["):
            return self._list()
        if self._stands('"'):
            return TextValue(self._string(), place)
        if word := _WORD.match(self._text, self._at):
            self._at = word.end()
            return NullValue(place) if word[0] == "null" else BooleanValue(word[0] == "true", place)
        number = _NUMBER.match(self._text, self._at)
        if number is None:
            raise self._source.make_unexpected_error(self._at, _VALUE)
        if len(number[0]) > MAX_NUMBER_CHARS:
            raise self._source.make_error(self._at, f"a number has at most {MAX_NUMBER_CHARS} characters")
        value = NumberValue(convert_number(self._source, self._at, number[0]), place)
        self._at = number.end()
        return value

    def _string(self) -> str:
        start = self._at
        try:
            value, self._at = _STRINGS.raw_decode(self._text, start)
        except json.JSONDecodeError as error:
            reason = f"this text is wrong: {error.msg[:1].lower()}{error.msg[1:].removesuffix(' at')}"
            raise self._source.make_error(min(error.pos, len(self._text)), reason) from None
        assert isinstance(value, str), "what begins with a quote is decoded as a text"
        if _HALF.search(value):
            raise self._source.make_error(start, "this text has half a character: escapes above \\uffff come in pairs")
        return value

    def _list(self) -> ListValue:
        place = self._source.get_location(self._at)
        self._source.enter_nesting(self._at)
        self._take("[")
        elements: list[Expression] = []
        while not self._stands("]"):
            elements.append(self._value())
            self._skip()
            if not self._take(","):
                break
            if self._stands("]"):
                raise self._source.make_unexpected_error(self._at, _VALUE)
        if not self._stands("]"):
            raise self._source.make_unexpected_error(
                self._at, '"," or "]"', fix=f"the list was opened at {place.line}:{place.column}"
            )
        self._at += 1
        self._source.leave_nesting()
        return ListValue(tuple(elements), place)

    def _object(self) -> ObjectValue:
        place = self._source.get_location(self._at)
        self._source.enter_nesting(self._at)
        self._take("{")
        items: list[Attribute] = []
        while not self._stands("}"):
            items.append(self._attribute())
            self._skip()
            if not self._take(","):
                break
            if self._stands("}"):
                raise self._source.make_unexpected_error(self._at, "a name in quotes")
        if not self._stands("}"):
            raise self._source.make_unexpected_error(
                self._at, '"," or "}"', fix=f"the brace was opened at {place.line}:{place.column}"
            )
        self._at += 1
        self._source.leave_nesting()
        return ObjectValue(Body(tuple(items), place), place)

    def _attribute(self) -> Attribute:
        place = self._source.get_location(self._at)
        if not self._stands('"'):
            raise self._source.make_unexpected_error(self._at, "a name in quotes")
        name = self._string()
        self._skip()
        if not self._take(":"):
            raise self._source.make_unexpected_error(self._at, '":"')
        return Attribute(name, self._value(), place)
