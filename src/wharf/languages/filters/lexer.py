"""The lexer of filters: reads names, numbers, strings and pointers at an offset of the text.

The grammar has no reserved words, so the text is not split into tokens first. The parser requests what may occur at
an offset; the lexer never looks back, and never ahead by more than one word.
"""

import re
from dataclasses import dataclass
from typing import Final

from wharf.languages.escapes import InvalidEscape, replace_escapes
from wharf.languages.filters.errors import make_syntax_error

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_/]*")
_INDEX: Final = re.compile(r"[0-9]+")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_POINTER: Final = re.compile(r'"((?:/[\w\-.~:|]+)+)"')
_AFTER_NUMBER: Final = " \t\r\n)}"
_NAME_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_/")
_SPACE_OR_STRING: Final = re.compile(r"""("[^"]*"|`[^`]*`)|[ \t\r\n]+""")


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Text that was read, and the offset after it."""

    text: str
    end: int


@dataclass(frozen=True, slots=True)
class Pointer:
    """The parts of a JSON pointer, the offset of each part, and the offset after the pointer."""

    parts: tuple[str, ...]
    part_offsets: tuple[int, ...]
    end: int


class FilterLexer:
    """Reads names, numbers and strings of one expression at an offset.

    The methods that start with `read_` return `None` if the text at the offset is something else.
    """

    def __init__(self, source: str) -> None:
        self.source = source

    def skip_space(self, offset: int) -> int:
        """Return the offset after any white space."""
        space = _SPACE.match(self.source, offset)
        return space.end() if space else offset

    def starts_with(self, offset: int, text: str) -> bool:
        return self.source.startswith(text, offset)

    def is_in_name(self, offset: int) -> bool:
        """Return whether a name continues over an offset: the characters on both sides belong to names."""
        return (
            0 < offset < len(self.source)
            and self.source[offset] in _NAME_CHARACTERS
            and self.source[offset - 1] in _NAME_CHARACTERS
        )

    def is_end_of_name(self, end: int) -> bool:
        """Return whether the character before an offset belongs to a name or a number."""
        return end > 0 and self.source[end - 1] in _NAME_CHARACTERS

    def read_without_space(self, start: int, end: int) -> str:
        """Return the text between two offsets without the white space outside of strings."""
        return _SPACE_OR_STRING.sub(lambda match: match[1] or "", self.source[start:end])

    def read_name(self, offset: int) -> TextSpan | None:
        return _make_span(_NAME.match(self.source, offset))

    def read_index(self, offset: int) -> TextSpan | None:
        return _make_span(_INDEX.match(self.source, offset))

    def read_pointer(self, offset: int) -> Pointer | None:
        """Read a JSON pointer in double quotes."""
        pointer = _POINTER.match(self.source, offset)
        if pointer is None:
            return None
        parts, part_offsets = [], []
        part_offset = offset + 2
        for segment in pointer[1].split("/")[1:]:
            parts.append(segment.replace("~1", "/").replace("~0", "~"))
            part_offsets.append(part_offset)
            part_offset += len(segment) + 1
        return Pointer(tuple(parts), tuple(part_offsets), pointer.end())

    def read_number(self, offset: int) -> TextSpan | None:
        """Read a number. Raises `FilterSyntaxError` if the text starts like a number but is not one."""
        if not (
            self.source[offset : offset + 1].isdecimal() and self.source[offset].isascii()
        ) and not self.starts_with(offset, "-"):
            return None
        number = _NUMBER.match(self.source, offset)
        if number is None or (number.end() < len(self.source) and self.source[number.end()] not in _AFTER_NUMBER):
            end = number.end() if number else offset
            reason = 'rule "number": Invalid number literal; put a value that is not a number in quotes'
            raise make_syntax_error(self.source, end, reason)
        return TextSpan(number[0], number.end())

    def read_string(self, offset: int) -> TextSpan | None:
        """Read a string in double quotes or backticks; return its value with escapes replaced.

        Carriage returns are dropped from a string in backticks, as from a raw string in Go.

        Raises `FilterSyntaxError` if the string has no end or an invalid escape.
        """
        quote = self.source[offset : offset + 1]
        if quote not in ('"', "`") or not quote:
            return None
        end = self.source.find(quote, offset + 1)
        if end < 0:
            raise make_syntax_error(self.source, len(self.source), 'rule "string": Unterminated string literal')
        inner = self.source[offset + 1 : end]
        return TextSpan(inner.replace("\r", "") if quote == "`" else self._unescape(inner, offset + 1), end + 1)

    def _unescape(self, inner: str, offset: int) -> str:
        """Replace the escapes in the inside of a string that starts at `offset`. Escaped bytes must form UTF-8."""
        newline = inner.find("\n")
        if newline >= 0:
            reason = 'rule "string": invalid syntax: a string in double quotes ends on its line; use backticks'
            raise make_syntax_error(self.source, offset + newline, reason)
        try:
            return replace_escapes(inner)
        except InvalidEscape as error:
            reason = 'rule "string": invalid syntax: no such escape; write \\\\ for a backslash, or use backticks'
            raise make_syntax_error(self.source, offset + error.offset, reason) from None
        except UnicodeDecodeError:
            reason = 'rule "string": invalid syntax: the bytes of the string are not UTF-8'
            raise make_syntax_error(self.source, offset, reason) from None


def _make_span(match: re.Match[str] | None) -> TextSpan | None:
    return TextSpan(match[0], match.end()) if match else None
