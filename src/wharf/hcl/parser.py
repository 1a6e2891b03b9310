"""From HCL to the tree, by recursive descent. What stands at a place tells what it is, so nothing is tried twice.

Newlines mean no more than spaces, and commas between the items of a body may be left out: older documents rely on it.
"""

from typing import Final, NamedTuple

from wharf.hcl.lexer import Found, Lexer
from wharf.hcl.source import LENGTH_MAX, Source
from wharf.hcl.tree import Attribute, Block, Body, Boolean, Expression, List, Null, Number, Object, Place, Text

_WORDS: Final = {"true": True, "false": False}
_VALUE: Final = "a value (a text in quotes, a number, true, false, a list or an object)"


def parse(text: str, *, length_max: int = LENGTH_MAX) -> Body:
    """The tree of a document, or NotADocument with the place and what was expected there."""
    source = Source(text, length_max=length_max)
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
    def __init__(self, source: Source) -> None:
        self._source = source
        self._lexer = Lexer(source)

    def document(self) -> Body:
        return self._items(self._source.start, opened_at=None).body

    def _braces(self, at: int, *, colons: bool) -> _ParsedBody:
        """What stands between braces; `at` is the opening one."""
        self._source.descend(at)
        body, end = self._items(at + 1, opened_at=self._source.place(at), colons=colons)
        self._source.ascend()
        return _ParsedBody(body, end + 1)

    def _items(self, at: int, *, opened_at: Place | None, colons: bool = False) -> _ParsedBody:
        """Items up to the closing brace, or to the end of the document where no brace was opened."""
        start = self._source.place(at)
        items: list[Attribute | Block] = []
        while True:
            at = self._lexer.skip(at)
            if items and self._lexer.starts(at, ","):
                at = self._lexer.skip(at + 1)
            if self._lexer.is_end(at) and opened_at is None:
                break
            if self._lexer.is_end(at) and opened_at is not None:
                mend = f"the brace was opened at {opened_at.line}:{opened_at.column}"
                raise self._source.unexpected(at, 'a name or "}"', mend=mend)
            if self._lexer.starts(at, "}") and opened_at is not None:
                break
            item, at = self._item(at, in_braces=opened_at is not None, colons=colons)
            items.append(item)
        return _ParsedBody(Body(tuple(items), start), at)

    def _item(self, at: int, *, in_braces: bool, colons: bool) -> _ParsedItem:
        name = self._word(at)
        if name is None:
            raise self._source.unexpected(at, 'a name or "}"' if in_braces else "a name")
        place = self._source.place(at)
        labels: list[Text] = []
        end = self._lexer.skip(name.end)
        while (label := self._word(end)) is not None:
            labels.append(Text(label.value, self._source.place(end)))
            end = self._lexer.skip(label.end)
        if self._lexer.starts(end, "{"):
            body, end = self._braces(end, colons=False)
            return _ParsedItem(Block(name.value, tuple(labels), body, place), end)
        if labels:
            raise self._source.unexpected(end, '"{" after a label', mend='a value takes "=" before it')
        if self._lexer.starts(end, "=") or (colons and self._lexer.starts(end, ":")):
            value, end = self._value(self._lexer.skip(end + 1))
            return _ParsedItem(Attribute(name.value, value, place), end)
        raise self._source.unexpected(
            end, '"=", "{" or a label', mend='write "="' if self._lexer.starts(end, ":") else ""
        )

    def _word(self, at: int) -> Found | None:
        """A name or a label, with quotes or without."""
        return self._lexer.name(at) or (self._lexer.string(at) if self._lexer.starts(at, '"') else None)

    # -- values --------------------------------------------------------------------------------------------------

    def _value(self, at: int) -> _ParsedValue:
        place = self._source.place(at)
        if self._lexer.starts(at, "["):
            return self._list(at)
        if self._lexer.starts(at, "{"):
            body, end = self._braces(at, colons=True)
            return _ParsedValue(Object(body, place), end)
        string = self._lexer.string(at)
        if string is not None:
            return _ParsedValue(Text(string.value, place), string.end)
        number = self._lexer.number(at)
        if number is not None:
            return _ParsedValue(Number(number.value, place), number.end)
        word = self._lexer.name(at)
        if word is None:
            raise self._source.unexpected(at, _VALUE)
        if word.value == "null":
            return _ParsedValue(Null(place), word.end)
        if word.value not in _WORDS:
            raise self._source.refusal(at, f"expected {_VALUE}, found the word {word.value[:80]}; a text takes quotes")
        return _ParsedValue(Boolean(_WORDS[word.value], place), word.end)

    def _list(self, at: int) -> _ParsedValue:
        place = self._source.place(at)
        self._source.descend(at)
        elements: list[Expression] = []
        at = self._lexer.skip(at + 1)
        while not self._lexer.starts(at, "]"):
            value, at = self._value(at)
            elements.append(value)
            at = self._lexer.skip(at)
            if self._lexer.starts(at, ","):
                at = self._lexer.skip(at + 1)
            elif not self._lexer.starts(at, "]"):
                raise self._source.unexpected(
                    at, '"," or "]"', mend=f"the list was opened at {place.line}:{place.column}"
                )
        self._source.ascend()
        return _ParsedValue(List(tuple(elements), place), at + 1)
