"""From HCL to the tree, by recursive descent. What stands at a place tells what it is, so nothing is tried twice.

Newlines mean no more than spaces, and commas between the items of a body may be left out: older documents rely on it.

A document in either of its forms: what begins with a brace is JSON, everything else is HCL.
"""

from typing import Final, NamedTuple

from wharf.languages.hcl.json_parser import parse_json
from wharf.languages.hcl.lexer import Lexer, TextSpan
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
    SourceLocation,
    TextValue,
)

_WORDS: Final = {"true": True, "false": False}
_VALUE: Final = "a value (a text in quotes, a number, true, false, a list or an object)"


def parse_hcl(text: str, *, max_chars: int = MAX_DOCUMENT_CHARS) -> Body:
    """The tree of a document, or NotADocument with the place and what was expected there."""
    source = SourceText(text, max_chars=max_chars)
    return _Parser(source).document()


class _ParsedBody(NamedTuple):
    body: Body
    end: int


class _ParsedItem(NamedTuple):
    item: Attribute | Block
    end: int


class _ParsedValue(NamedTuple):
    value: Expression
    end: int


class _Parser:
    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._lexer = Lexer(source)

    def document(self) -> Body:
        return self._items(self._source.start, opened_at=None).body

    def _braces(self, at: int, *, colons: bool) -> _ParsedBody:
        """What stands between braces; `at` is the opening one."""
        self._source.enter_nesting(at)
        body, end = self._items(at + 1, opened_at=self._source.get_location(at), colons=colons)
        self._source.leave_nesting()
        return _ParsedBody(body, end + 1)

    def _items(self, at: int, *, opened_at: SourceLocation | None, colons: bool = False) -> _ParsedBody:
        """Items up to the closing brace, or to the end of the document where no brace was opened."""
        start = self._source.get_location(at)
        items: list[Attribute | Block] = []
        while True:
            at = self._lexer.skip_space(at)
            if items and self._lexer.starts_with(at, ","):
                at = self._lexer.skip_space(at + 1)
            if self._lexer.is_end(at) and opened_at is None:
                break
            if self._lexer.is_end(at) and opened_at is not None:
                mend = f"the brace was opened at {opened_at.line}:{opened_at.column}"
                raise self._source.make_unexpected_error(at, 'a name or "}"', fix=mend)
            if self._lexer.starts_with(at, "}") and opened_at is not None:
                break
            item, at = self._item(at, in_braces=opened_at is not None, colons=colons)
            items.append(item)
        return _ParsedBody(Body(tuple(items), start), at)

    def _item(self, at: int, *, in_braces: bool, colons: bool) -> _ParsedItem:
        name = self._word(at)
        if name is None:
            raise self._source.make_unexpected_error(at, 'a name or "}"' if in_braces else "a name")
        place = self._source.get_location(at)
        labels: list[TextValue] = []
        end = self._lexer.skip_space(name.end)
        while (label := self._word(end)) is not None:
            labels.append(TextValue(label.value, self._source.get_location(end)))
            end = self._lexer.skip_space(label.end)
        if self._lexer.starts_with(end, "{"):
            body, end = self._braces(end, colons=False)
            return _ParsedItem(Block(name.value, tuple(labels), body, place), end)
        if labels:
            raise self._source.make_unexpected_error(end, '"{" after a label', fix='a value takes "=" before it')
        if self._lexer.starts_with(end, "=") or (colons and self._lexer.starts_with(end, ":")):
            value, end = self._value(self._lexer.skip_space(end + 1))
            return _ParsedItem(Attribute(name.value, value, place), end)
        raise self._source.make_unexpected_error(
            end, '"=", "{" or a label', fix='write "="' if self._lexer.starts_with(end, ":") else ""
        )

    def _word(self, at: int) -> TextSpan | None:
        """A name or a label, with quotes or without."""
        return self._lexer.read_name(at) or (self._lexer.read_string(at) if self._lexer.starts_with(at, '"') else None)

    # -- values --------------------------------------------------------------------------------------------------

    def _value(self, at: int) -> _ParsedValue:
        place = self._source.get_location(at)
        if self._lexer.starts_with(at, "["):
            return self._list(at)
        if self._lexer.starts_with(at, "{"):
            body, end = self._braces(at, colons=True)
            return _ParsedValue(ObjectValue(body, place), end)
        string = self._lexer.read_string(at)
        if string is not None:
            return _ParsedValue(TextValue(string.value, place), string.end)
        number = self._lexer.read_number(at)
        if number is not None:
            return _ParsedValue(NumberValue(number.value, place), number.end)
        word = self._lexer.read_name(at)
        if word is None:
            raise self._source.make_unexpected_error(at, _VALUE)
        if word.value == "null":
            return _ParsedValue(NullValue(place), word.end)
        if word.value not in _WORDS:
            raise self._source.make_error(
                at, f"expected {_VALUE}, found the word {word.value[:80]}; a text takes quotes"
            )
        return _ParsedValue(BooleanValue(_WORDS[word.value], place), word.end)

    def _list(self, at: int) -> _ParsedValue:
        place = self._source.get_location(at)
        self._source.enter_nesting(at)
        elements: list[Expression] = []
        at = self._lexer.skip_space(at + 1)
        while not self._lexer.starts_with(at, "]"):
            value, at = self._value(at)
            elements.append(value)
            at = self._lexer.skip_space(at)
            if self._lexer.starts_with(at, ","):
                at = self._lexer.skip_space(at + 1)
            elif not self._lexer.starts_with(at, "]"):
                raise self._source.make_unexpected_error(
                    at, '"," or "]"', fix=f"the list was opened at {place.line}:{place.column}"
                )
        self._source.leave_nesting()
        return _ParsedValue(ListValue(tuple(elements), place), at + 1)


def parse_document(text: str, *, max_chars: int = MAX_DOCUMENT_CHARS) -> Body:
    is_json = text.lstrip("\ufeff \t\r\n").startswith("{")
    return parse_json(text, max_chars=max_chars) if is_json else parse_hcl(text, max_chars=max_chars)
